import base64
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused
from recipes.reports.charts import script
from recipes.reports.page import page_text, write_page
from recipes.reports.record import open_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>document.title='taken'</script><img src=http://leak.invalid/x onerror=alert(1)>\"'&"


class Parsed(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_page_opens_with_the_title_and_the_verdict(write_run):
    text = Parsed(page_text([open_run(write_run())])).text
    order = [
        "A small ResNet on digits at batch 480",
        "Finished 98.57 % accuracy after 12 epochs",
        "final accuracy",
        "best 98.70 % at epoch 10",
    ]
    order += ["What differs from the recipe", "The curves in numbers", "Warnings", "Plan"]
    order += ["Claims and outcome", "How to reproduce", "Recipe", "Environment"]
    assert "Reason" not in text
    body = text[text.index("A small ResNet", text.index("color-scheme")) :]
    indices = [body.index(words) for words in order]
    assert indices == sorted(indices)


def test_page_follows_light_and_dark_and_every_width(write_run):
    page = page_text([open_run(write_run())])
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_page_takes_nothing_from_outside_and_runs_nothing_of_a_run(write_run):
    page = page_text([open_run(write_run())])
    parsed = Parsed(page)
    assert (
        page.count("://") == page.count("https://github.com/leeoniya/uPlot") == 1
    )  # the library says where it is from
    assert not {"link", "iframe", "img", "object", "image", "base"} & set(parsed.tags)
    assert [value for name, value in parsed.attributes if name in ("src", "href") and not value.startswith("#")] == []
    assert [name for name, _ in parsed.attributes if name.startswith("on")] == []
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", page))
    assert "default-src 'none'" in page
    assert "connect-src" not in page
    data, code = re.findall(r"<script([^>]*)>(.*?)</script>", page, flags=re.DOTALL)
    assert "application/json" in data[0]
    digest = base64.b64encode(hashlib.sha256(code[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page  # this script alone, which is the same for every run
    assert code[1] == script()


def test_only_a_live_page_may_ask_its_server(write_run, metric_lines):
    going = open_run(write_run("going", lines=metric_lines(stop=None, num_updates=20)))
    assert "connect-src 'self'" in page_text([going], live=True)
    assert 'data-live="3"' in page_text([going], live=True)
    for run, live in ((going, False), (open_run(write_run("ended")), True)):
        assert "data-live=" not in page_text([run], live=live)


def test_what_differs_from_the_parent_is_named_with_its_place(write_run):
    origins = {"kilobatch": "mine.yaml:1", "name": "rule: the name of the file", "epochs": "mine.yaml:4",
               "batch": "default", "seed": "command line",
               "model": "recipes/papers/digits/baseline.yaml:7"}  # fmt: skip
    origins["learning_rate"] = "/home/me/secret/mine.yaml:6"
    text = Parsed(page_text([open_run(write_run(origins=origins))])).text
    assert "secret" not in text
    shown = text[text.index("What differs from baseline") : text.index("The curves in numbers")]
    assert "epochs 12 mine.yaml:4" in shown
    assert "seed 0 command line" in shown
    assert "SmallResNet" not in shown
    assert "optimizer state 312 kB, activations not known. " in text
    assert "The same samples, rates and weights to the last bit on any number of workers." in text


def hostile_run(write_run, name="hostile"):
    return open_run(
        write_run(
            name,
            recipe={"title": HOSTILE, "name": HOSTILE, "dataset": HOSTILE, "model": {"kind": HOSTILE, HOSTILE: HOSTILE},
                    "claims": [{"metric": HOSTILE, "kind": "accuracy", "value": HOSTILE, "on": HOSTILE}],
                    "assumed": [HOSTILE], "lacks": [HOSTILE], "seed": HOSTILE},
            origins={HOSTILE: HOSTILE, "name": f"command line {HOSTILE}"},
            plan={"segments": [{"update": HOSTILE, "samples_per_worker": [HOSTILE], "learning_rate": [HOSTILE]}],
                  "warnings": [HOSTILE], "memory": {HOSTILE: HOSTILE}, "cluster": HOSTILE, "workers": HOSTILE},
            dataset={HOSTILE: HOSTILE, "num_train": HOSTILE},
            command=HOSTILE,
            environment={HOSTILE: HOSTILE, "git": {"commit": HOSTILE}, "ranks": [{"host": HOSTILE}], "date": HOSTILE},
        )
    )  # fmt: skip


@pytest.mark.parametrize("num_runs", [1, 2])
def test_everything_of_a_run_is_escaped(write_run, num_runs):
    page = page_text([hostile_run(write_run, f"run{number}") for number in range(num_runs)])
    parsed = Parsed(page)
    assert page.count("<script") == page.count("</script") == 2
    assert "<img" not in page
    assert "img" not in parsed.tags
    assert page.count("&lt;script&gt;") > 15
    assert parsed.text.count(HOSTILE) > 15


@pytest.mark.parametrize(
    "plan", [{}, {"segments": 3}, {"segments": [1, None]}, {"segments": [{}, {}]}, {"warnings": "all", "memory": []}]
)
def test_plan_of_another_shape_does_not_stop_the_report(write_run, plan):
    assert "How to reproduce" in page_text([open_run(write_run(plan=plan))])


@pytest.mark.parametrize(
    "recipe",
    [
        {"claims": 3, "assumed": "all", "lacks": None, "model": "ResNet50"},
        {"claims": [None, {}, {"metric": ["hours"], "kind": "time_to_train", "value": float("inf")}]},
        {
            "claims": [{"metric": "hours", "kind": "time_to_train", "value": 0}],
            "assumed": [{}],
            "name": None,
            "title": [],
        },
    ],
)
def test_recipe_of_another_shape_does_not_stop_the_report(write_run, recipe):
    assert "How to reproduce" in page_text([open_run(write_run(recipe=recipe))])


PAGE = [
    # claims beside what came out
    "top1 98.50 % 98.57 % +0.07 points 2 CPU cores; not run; 3 runs",
    "minutes 2 min 00 s 24.6 s × 0.205",
    "not the recipe as claimed: the command line sets epochs.",
    # the plan by segment
    "0 to 35 0 240 0.0125 to 0.3 10 of 24 3 of 1 rank 88 on 1, 76 on 2 48 × 2",
    "36 to 53 6 480 0.6 to 0.01 20 of 24 3 of 1 rank 168 on 1, 156 on 2 48 × 2",
    "weights 312 kB, gradients 312 kB, optimizer state 312 kB, activations not known",
    # each value with its origin, or the nearest above
    "model.widths [16, 32, 64] digits/large.yaml:7:1",
    "epochs 12 command line:1:8",
    "batch.global.1.size 480 digits/large.yaml:1:1",
    "optimizer.weight_decay 0.0001",
    "optimizer.no_decay [norm] digits/large.yaml:17:80",
    # how to reproduce it
    "git checkout 0123abcd kilobatch train digits/large -n 3 --set epochs=12",
    "The seed is 0.",
]


def test_page_of_a_run_has_claims_plan_origins_and_its_command(write_run):
    text = Parsed(page_text([open_run(write_run())])).text
    assert [words for words in PAGE if words not in text] == []


def test_claims_of_an_unfinished_run_are_not_judged(write_run, metric_lines):
    text = Parsed(page_text([open_run(write_run(lines=metric_lines(stop="stopped", num_updates=20)))])).text
    assert "top1 98.50 % not finished" in text
    assert "Stopped 81.09 % accuracy at epoch 3; 3.333 epochs in " in text
    assert "81.09 % last accuracy" in text
    assert "final" not in text[text.index("Stopped 81.09") : text.index("Plan")]
    assert "20 of 54 updates were done. Reason: asked to" in text


def test_killed_run_is_unfinished(write_run, metric_lines):
    text = Parsed(page_text([open_run(write_run(lines=metric_lines(stop=None, num_updates=20)))])).text
    assert "Unfinished" in text
    assert "it is still running, or was killed" in text


def test_run_without_a_single_update_has_a_page(write_run):
    text = Parsed(page_text([open_run(write_run(lines=[{"key": "run_start", "value": "x", "time_ms": 5}]))])).text
    assert "not evaluated" in text
    assert "After 0 epochs" in text


def test_ranks_of_a_host_are_counted_and_not_listed(write_run):
    ranks = [{"rank": rank, "host": f"node{rank // 8}"} for rank in range(16)]
    text = Parsed(page_text([open_run(write_run(environment={"ranks": ranks}))])).text
    assert "ranks on node0 8 ranks on node1 8" in text


def test_reproduction_begins_anew_in_a_folder_of_its_own(write_run):
    run = open_run(write_run(command="kilobatch train 'my recipe.yaml' -n 3 --out runs/a --resume --trace"))
    assert "kilobatch train 'my recipe.yaml' -n 3 --trace The same" in Parsed(page_text([run])).text


def test_runs_of_one_name_are_told_apart_by_the_shortest_tail_of_their_paths(write_run):
    run = open_run(write_run())
    runs = [replace(run, folder=Path("runs", *parts)) for parts in (("x", "a"), ("y", "a"), ("y", "b"))]
    text = page_text(runs)
    for label in ("x/a", "y/a", "b"):
        assert f"{run.name} ({label})" in text
    assert f"{run.name} (a)" not in text


def test_several_runs_are_compared(write_run, metric_lines):
    runs = [open_run(write_run("a")), open_run(write_run("b", recipe={"seed": 1, "model": {"kind": "Other"}}))]
    runs.append(open_run(write_run("c", lines=metric_lines(stop="failed", num_updates=9), recipe={"name": "third"})))
    page = page_text(runs)
    text = Parsed(page).text
    assert "3 runs compared" in text
    assert "digits/large (a) ends best, with 98.57 % accuracy; the lowest of 3 runs is 45.20 %." in text
    assert "third Failed 45.20 % 45.20 %" in text
    assert page.count("The curves in numbers") == 3
    assert "last accuracy best last loss" in text
    assert "seed 0 1 0" in text
    assert "model SmallResNet: widths [16, 32, 64] Other SmallResNet: widths [16, 32, 64]" in text
    assert "name digits/large digits/large third" not in text  # names are the heads already
    assert page.count("<details>") == 3 * 3  # each run, its recipe and its environment


def test_runs_of_one_recipe_are_recognised(write_run):
    text = Parsed(page_text([open_run(write_run("a")), open_run(write_run("b"))])).text
    assert "the same in every value" in text
    runs = [open_run(write_run("c", recipe={"epochs": 12.0})), open_run(write_run("d", recipe={"title": "told anew"}))]
    assert "the same in every value" in Parsed(page_text(runs)).text


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="at least one run"):
        page_text([])


def test_file_is_written_whole(write_run, tmp_path):
    run = open_run(write_run())
    write_page([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page_text([run])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]
    with pytest.raises(OSError, match="Is a directory"):
        write_page([run], tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_page_is_not_written_through_a_link_in_place_of_its_partial_file(write_run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "report.html.partial").symlink_to("mine")
    write_page([open_run(write_run())], tmp_path / "report.html")
    assert ((tmp_path / "mine").read_text(), (tmp_path / "report.html").is_symlink()) == ("mine", False)


@pytest.fixture
def outside():
    """A proxy that notes what a browser asks of the world, and answers nothing."""
    requests = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_error(404)

        do_CONNECT = do_POST = do_HEAD = do_GET

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], requests
    server.shutdown()
    thread.join()
    server.server_close()


def browse(path, port, tmp_path):
    """The page's document after a real browser has loaded it; whatever it asks for goes to the proxy."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --disable-default-apps --proxy-bypass-list=<-loopback>"
    command = [CHROMIUM, *flags.split(), f"--proxy-server=127.0.0.1:{port}", f"--user-data-dir={tmp_path / 'profile'}"]
    output = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return output.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_browser_draws_the_page_runs_no_script_of_a_run_and_asks_for_nothing(write_run, outside, tmp_path):
    port, requests = outside
    write_page([hostile_run(write_run)], tmp_path / "report.html")
    document = browse(tmp_path / "report.html", port, tmp_path)
    assert "<title>&lt;script&gt;" in document
    assert document.count("<figure ") == document.count("<canvas") >= 4
    assert "How to reproduce" in document
    assert [path for path in requests if "google" not in path] == []  # its own errands, which end at the proxy


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_proxy_of_this_test_does_see_what_a_browser_asks_for(outside, tmp_path):
    port, requests = outside
    (tmp_path / "leaky.html").write_text("<script>document.title='taken'</script><img src=http://leak.invalid/x>")
    document = browse(tmp_path / "leaky.html", port, tmp_path)
    assert "<title>taken</title>" in document
    assert "http://leak.invalid/x" in requests


def test_a_report_that_cannot_be_written_is_refused_with_a_way_out(write_run, tmp_path):
    target = tmp_path / "nowhere" / "page.html"
    done = CliRunner().invoke(kilobatch.app, ["report", str(write_run()), "-o", str(target)])
    assert isinstance(done.exception, InputRefused)
    assert str(done.exception) == f"{target} cannot be written: No such file or directory; give another -o"


def test_a_report_overwrites_only_pages(write_run, tmp_path):
    (tmp_path / "keep.yaml").write_text("kept")
    done = CliRunner().invoke(kilobatch.app, ["report", str(write_run()), "-o", str(tmp_path / "keep.yaml")])
    assert isinstance(done.exception, InputRefused)
    assert "keep.yaml: a report is written as .html or .htm; give another -o" in str(done.exception)
    assert (tmp_path / "keep.yaml").read_text() == "kept"


def test_the_name_of_a_report_is_printed_without_control_characters(write_run, tmp_path):
    done = CliRunner().invoke(kilobatch.app, ["report", str(write_run()), "-o", str(tmp_path / "a\x1b[31m.htm")])
    assert "a\\x1b[31m.htm" in done.stdout


def test_the_page_of_a_run_whose_recipe_lies_in_a_folder_that_is_no_utf_8(write_run, tmp_path):
    write_page([open_run(write_run(command=os.fsdecode(b"kilobatch train caf\xe9.yaml")))], tmp_path / "page.html")
    assert "caf?.yaml" in (tmp_path / "page.html").read_text(encoding="utf-8")
