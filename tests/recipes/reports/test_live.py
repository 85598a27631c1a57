import http.client
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from recipes.errors import InputRefused
from recipes.reports import charts, live
from recipes.reports.live import serve, server_of


@contextmanager
def serving(folder):
    """The port of a live page on a folder."""
    with server_of(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def get(port, path="/", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_page_follows_a_run_to_its_end(write_run, metric_lines):
    lines = metric_lines()
    folder = write_run(lines=lines[:30])
    with serving(folder) as port:
        answer, text = get(port)
        assert answer.status == 200
        assert 'data-live="3"' in text
        with open(folder / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines[30:])
        _, text = get(port)
        assert "data-live=" not in text
        assert "98.57&nbsp;% accuracy" in text


def test_a_page_is_made_once_for_all_tabs_until_a_file_of_it_changes(write_run, monkeypatch):
    made = []
    monkeypatch.setattr(live, "page_text", lambda runs, **_: time.sleep(0.05) or made.append(runs) or f"{len(made)}")
    folder = write_run()
    (folder / "evaluation").mkdir()
    with serving(folder) as port, ThreadPoolExecutor() as tabs:
        assert [*tabs.map(lambda _: get(port)[1], range(3))] == ["1", "1", "1"]
        for changed in ("metrics.jsonl", "environment.json", "run.yaml", "evaluation/classes.json"):
            with open(folder / changed, "a") as file:
                file.write("\n")
            before = len(made)
            assert [get(port)[1], get(port)[1]] == [f"{before + 1}"] * 2


def test_a_page_that_takes_long_is_not_made_all_the_time(write_run, monkeypatch):
    monkeypatch.setattr(live, "_REST", 1e9)
    made = []
    monkeypatch.setattr(live, "page_text", lambda runs, **_: made.append(runs) or f"{len(made)}")
    folder = write_run()
    with serving(folder) as port:
        before = get(port)[1]
        (folder / "environment.json").touch()
        assert (before, get(port)[1]) == ("1", "1")


def test_a_page_does_not_wait_for_that_of_another_run(write_run, tmp_path, monkeypatch):
    begun, other = threading.Event(), threading.Event()

    def text(runs, **_):
        begun.set()
        return f"{runs[0].folder.name}, {runs[0].folder.name == 'quick' or other.wait(5)}"

    monkeypatch.setattr(live, "page_text", text)
    write_run("long"), write_run("quick")
    with serving(tmp_path) as port, ThreadPoolExecutor() as tabs:
        long = tabs.submit(get, port, "/long/")
        assert begun.wait(20)
        assert get(port, "/quick/")[1] == "quick, True"
        other.set()
        assert long.result()[1] == "long, True"


def test_a_search_is_served_with_its_trials(write_run, tmp_path):
    trial = write_run()
    (tmp_path / "report.html").write_text("<p>the search's own page")
    with serving(tmp_path) as port:
        assert get(port)[1] == "<p>the search's own page"
        assert "final accuracy" in get(port, f"/{trial.name}/")[1]
        moved, _ = get(port, f"/{trial.name}")
        assert (moved.status, moved.getheader("Location")) == (301, f"/{trial.name}/")


@pytest.mark.parametrize(("own", "may_ask", "runs"), [(True, True, "'sha256-"), (False, False, "'unsafe-inline'")])
def test_a_page_that_lies_in_a_folder_cannot_reach_the_network(tmp_path, own, may_ask, runs):
    script = charts.script() if own else "fetch('http://evil.example')"
    (tmp_path / "report.html").write_text(f"<script>{script}</script>")
    with serving(tmp_path) as port:
        answer, _ = get(port)
    rules = dict(rule.split(" ", 1) for rule in answer.getheader("Content-Security-Policy").split("; "))
    assert (rules["default-src"], rules["img-src"], rules["style-src"]) == ("'none'", "data:", "'unsafe-inline'")
    assert rules.get("connect-src") == ("'self'" if may_ask else None)
    assert rules["script-src"].startswith(runs)
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    # Else its script could open the page of another run, which has the same origin.
    assert rules.get("sandbox") == (None if may_ask else "allow-scripts")


def test_a_folder_of_runs_lists_them(write_run, tmp_path):
    with serving(tmp_path) as port:
        assert "nothing" not in get(port)[1]
        write_run("a run")
        answer, text = get(port)
        assert '<a href="a%20run/">a run</a>' in text
        assert re.search("a run</a></td><td>Finished</td><td>98.57&nbsp;%</td><td>[0-9 :-]{19}<", text)
        assert answer.getheader("Refresh") == "3"


def test_a_run_that_is_not_yet_whole_is_asked_for_again(write_run):
    folder = write_run()
    (folder / "run.yaml").unlink()
    with serving(folder) as port:
        answer, text = get(port)
        assert (answer.status, answer.getheader("Refresh")) == (503, "3")
        assert "run.yaml: missing" in text


@pytest.mark.parametrize(
    "path", ["/../", "/%2e%2e/", "/nothing/", "/run.yaml", "//etc/", "/%00/", f"/{'x' * 5000}/", "/[/", "/%E9/"]
)
def test_only_folders_below_are_served(write_run, path):
    with serving(write_run()) as port:
        assert get(port, path)[0].status == 404


def test_a_page_of_another_site_cannot_read_it_by_a_name_of_its_own(write_run):
    with serving(write_run()) as port:
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "[::1", ":"):
            assert get(port, host=host)[0].status == 404
        for host in (
            f"localhost:{port}",
            "localhost",
            "127.0.0.1",
            "[::1]",
            f"[::1]:{port}",
        ):  # of port 80 the name alone
            assert get(port, host=host)[0].status == 200


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_closed_tab_writes_nothing_to_the_terminal(write_run, monkeypatch, capsys, error):
    def closed(*_, **__):
        raise error

    monkeypatch.setattr("recipes.reports.live.page_text", closed)
    with serving(write_run()) as port, pytest.raises(http.client.RemoteDisconnected):
        get(port)
    assert capsys.readouterr().err == ""


def test_a_missing_folder_and_a_taken_port_are_refused(write_run, tmp_path):
    with pytest.raises(InputRefused, match="no such folder"):
        serve(tmp_path / "nowhere")
    folder = write_run()
    with serving(folder) as port, pytest.raises(InputRefused, match=f"--port: {port} cannot be had: Address already"):
        serve(folder, port=port)


def test_one_folder_does_not_take_the_page_from_the_others(write_run, tmp_path, monkeypatch):
    write_run("good")
    name = "caf\udce9"
    write_run("other").rename(tmp_path / name)
    (tmp_path / "closed").mkdir()
    is_file = Path.is_file

    def refusing(path):
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")  # as for whom it may not be entered, unlike root
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refusing)
    with serving(tmp_path) as port:
        answer, text = get(port)
        assert (answer.status, "closed" in text) == (200, False)
        assert 'href="good/"' in text
        assert 'href="caf%E9/"' in text
        assert get(port, "/caf%E9/")[0].status == 200
        assert get(port, "/closed/")[0].status == 404


def test_a_report_outside_of_the_folder_is_not_served(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "secret.html").write_text("a secret")
    (tmp_path / "runs/a/report.html").symlink_to(tmp_path / "secret.html")
    with serving(tmp_path / "runs") as port:
        assert "a secret" not in get(port, "/a/")[1]
