import os
import pty
import subprocess
import sys

CODE = """\
import sys, time
from trainers.datasets.progress_bar import showing_progress
with showing_progress("packing", 3, unit="images", after_seconds=float(sys.argv[1])) as add:
    for _ in range(3):
        time.sleep(0.02)
        add(1)
"""


def shown(after_seconds, *, on_terminal):
    """What work of 60 ms writes to stderr."""
    words = [sys.executable, "-c", CODE, str(after_seconds)]
    if not on_terminal:
        return subprocess.run(words, capture_output=True, text=True, check=True).stderr
    ours, theirs = pty.openpty()
    subprocess.run(words, stderr=theirs, check=True, env={**os.environ, "TERM": "xterm"})
    os.write(theirs, b"end")
    found = b""
    while not found.endswith(b"end"):
        found += os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)
    return found.removesuffix(b"end").decode()


def test_a_terminal_gets_a_bar_and_a_log_gets_lines():
    assert "packing" in (bar := shown(0, on_terminal=True))
    assert "3/3" in bar
    assert shown(0, on_terminal=False) == "packing: 0 of 3 images\n"


def test_nothing_is_shown_of_work_that_is_done_soon():
    assert shown(60, on_terminal=True) == ""
