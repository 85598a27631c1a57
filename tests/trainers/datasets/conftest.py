"""Web servers on this machine."""

import http.server
import threading
from contextlib import ExitStack

import pytest


@pytest.fixture(scope="module")
def serve():
    """Starts a web server that answers by a handler, until the module's tests are done; gives its URL."""
    with ExitStack() as servers:

        def start(handler):
            server = servers.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
