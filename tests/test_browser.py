"""Pages in a real browser: legible in light and dark, on narrow and wide screens, and live while ranks work."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipes.reports import charts
from recipes.reports.page import document

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

# The lowest contrast of a text with what is behind it, and all that reaches beyond the right edge of the page.
LOOK = r"""(() => {
  const numbers = text => {
    const found = text.match(/[\d.]+(e-?\d+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1; // of color-mix
    return [...found.slice(0, 3).map(one => scale * one), found[3] ?? 1];
  };
  const light = ([r, g, b]) => [r, g, b].map(one => one / 255)
    .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const over = (top, below) => top.slice(0, 3).map((one, at) => one * top[3] + below[at] * (1 - top[3]));
  const behind = node => {
    if (!node) return [255, 255, 255];
    const own = numbers(getComputedStyle(node).backgroundColor);
    return own[3] === 1 ? own : over(own, behind(node.parentElement));
  };
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const worst = { contrast: 99 }, wide = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walk.nextNode()) {
    const node = walk.currentNode, parent = node.parentElement, style = getComputedStyle(parent);
    if (!node.data.trim() || /SCRIPT|STYLE|OPTION/.test(parent.tagName) || !parent.getClientRects().length) continue;
    texts++;
    const paper = behind(parent), ink = over(numbers(parent.closest("svg") ? style.fill : style.color), paper);
    const [low, high] = [light(ink), light(paper)].sort((a, b) => a - b), contrast = (high + 0.05) / (low + 0.05);
    if (contrast < worst.contrast) Object.assign(worst, { contrast, text: node.data.slice(0, 60) });
  }
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest(".scroll, svg, .uplot") && !one.matches(".scroll, svg, .uplot")) continue;
    const { right } = one.getBoundingClientRect();
    if (right > document.documentElement.clientWidth + 1) wide.push(one.outerHTML.slice(0, 80));
  }
  return { ...worst, texts, wide, width: innerWidth, scrolls: document.documentElement.scrollWidth > innerWidth };
})()"""


class Browser:
    """Chromium with one page, driven by its DevTools protocol over pipes."""

    def __init__(self, profile):
        there, self._commands = os.pipe()
        self._answers, here = os.pipe()
        flags = (
            f"--headless --no-sandbox --disable-gpu --no-first-run --user-data-dir={profile} --remote-debugging-pipe"
        )
        command = ["bash", "-c", f'exec "$0" {flags} 3<&{there} 4>&{here}', CHROMIUM]
        self._process = subprocess.Popen(command, pass_fds=(there, here), stderr=subprocess.DEVNULL)
        os.close(there), os.close(here)
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                assert (more := os.read(self._answers, 1 << 16)), "chromium has ended"
                self._buffer += more
            text, self._buffer = self._buffer.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url, *, width=1400, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression, *, seconds=120):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression}: {self.evaluate('document.body.innerText')[:2000]}"
            time.sleep(0.2)
        return value

    def close(self):
        os.close(self._commands)
        self._process.terminate()
        self._process.wait(30)
        os.close(self._answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def started():
    """Starts a program, which is ended with the test; gives its process and the address that it prints."""
    processes = []

    def start(*words, until=r"http://\S+", **how):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **how}
        process = subprocess.Popen(list(map(str, words)), **how)
        processes.append(process)
        for line in process.stdout if until else ():
            if found := re.search(until, line):
                return process, found[0]
        return process, ""

    yield start
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


KILOBATCH = (sys.executable, "-m", "kilobatch")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a run with all sections, of two runs compared, and of a search: name -> file."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "search.yaml").write_text(SEARCH)
    words = ("train", "digits/large_batch", "-n", "2", "--noise-scale", "--set", "epochs=6", "--out")
    commands = [(*words, "a"), (*words, "b"), ("report", "a", "b", "-o", "compared.html")]
    for command in (*commands, ("search", "search.yaml", "-n", "2", "--out", "search")):
        done = subprocess.run([*KILOBATCH, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    pages = {"run": "a/report.html", "compared": "compared.html", "search": "search/report.html"}
    return {name: folder / path for name, path in pages.items()}


SEARCH = """\
kilobatch: 1
name: short
recipe: digits/baseline
fixed: {epochs: 2, batch.global: 256}
space:
  learning_rate.reference: {kind: Float, low: 0.01, high: 0.2, log: true}
  optimizer.weight_decay: {kind: Categorical, choices: [0.0, 0.0001]}
sampler: {kind: RandomSampler}
budget: {trials: 6}
reports: 2
"""


@pytest.mark.mpi
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", ["run", "compared", "search"])
def test_all_text_is_legible_and_nothing_overflows(browser, pages, name, width, dark):
    browser.open(pages[name].as_uri(), width=width, dark=dark)
    seen = browser.evaluate(LOOK)
    assert seen["width"] == width
    assert seen["texts"] > 50
    assert seen["contrast"] >= 4.5, seen
    assert (seen["wide"], seen["scrolls"]) == ([], False)


OVER = "(select => {{ select.value = '{}'; select.onchange(); }})(document.querySelector('form select, .head select'))"


@pytest.mark.mpi
def test_charts_follow_axis_smoothing_and_names(browser, pages):
    browser.open(pages["run"].as_uri())
    assert browser.evaluate("document.querySelectorAll('figure canvas').length") >= 7
    shown = "document.querySelector('.u-legend th').textContent"
    assert browser.evaluate(shown) == "epochs"
    browser.evaluate(OVER.format("time"))
    assert browser.evaluate(shown) == "time"
    pixels = "document.querySelectorAll('canvas')[1].toDataURL()"
    before = browser.evaluate(pixels)
    browser.evaluate("smoothing.value = 30; smoothing.oninput()")
    smooth = browser.evaluate(pixels)
    assert smooth != before
    browser.evaluate("document.querySelectorAll('.uplot')[1].querySelectorAll('.u-legend th')[2].click()")
    assert browser.evaluate(pixels) != smooth


@pytest.mark.mpi
def test_pointing_at_a_chart_shows_values_and_dragging_zooms_all(browser, pages):
    browser.open(pages["run"].as_uri())
    box = browser.evaluate("document.querySelectorAll('.u-over')[1].getBoundingClientRect().toJSON()")

    def mouse(kind, x, buttons=0):
        place = {"x": box["left"] + x * box["width"], "y": box["top"] + 50}
        browser.call("Input.dispatchMouseEvent", type=kind, **place, button="left", buttons=buttons, clickCount=1)

    mouse("mouseMoved", 0.4)
    mouse("mouseMoved", 0.5)
    value = "document.querySelectorAll('.uplot')[1].querySelectorAll('.u-series:not(.raw) td')[1].textContent"
    assert re.match(r"\d[\d.]* \(\d[\d.]*\)", browser.wait(f"/\\d/.test({value}) && {value}"))
    pixels = "document.querySelectorAll('canvas')[0].toDataURL()"
    before = browser.evaluate(pixels)
    for kind, x, buttons in (("mouseMoved", 0.2, 0), ("mousePressed", 0.2, 1), ("mouseMoved", 0.6, 1)):
        mouse(kind, x, buttons)
    mouse("mouseReleased", 0.6)
    browser.wait(f"{pixels} !== {json.dumps(before)}")  # the first chart follows the second
    mouse("mouseMoved", -0.5)
    browser.evaluate("reset.onclick()")
    browser.wait(f"{pixels} === {json.dumps(before)}")


@pytest.mark.mpi
def test_a_trial_is_marked_in_all_charts_and_in_its_row(browser, pages):
    """From its row to the charts, and from its dot in a chart to the row."""
    browser.open(pages["search"].as_uri())

    def point_at(x, y):
        for to_the_left in (1, 0):
            browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - to_the_left, y=y)

    def place_of(element, x=".left", y=".top"):
        box = f"document.querySelector({element!r}).getBoundingClientRect()"
        return browser.evaluate(f"[{box}{x}, {box}{y}]")

    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=3000, deviceScaleFactor=1, mobile=False)
    left, top = place_of("tr[data-name='trial 3']")
    point_at(left + 5, top + 5)
    row = browser.wait("document.querySelector('tr.on')?.cells[0].textContent")
    assert row == "3"
    shown = "[...document.querySelectorAll('.u-legend')].filter(it => it.textContent.includes('(trial 3)')).length"
    assert browser.evaluate(shown) >= 3  # the history and two slices
    chart = "figure:nth-child(2) "
    (x, _), (_, y) = place_of(f"{chart}.u-cursor-x"), place_of(f"{chart}.u-cursor-y")
    point_at(*place_of("h1"))
    browser.wait("picked.textContent === '' && !document.querySelector('tr.on')")
    point_at(x, y)
    browser.wait("picked.textContent.startsWith('trial 3, reference ')")
    assert browser.evaluate("document.querySelector('tr.on').dataset.name") == "trial 3"


@pytest.fixture
def ticks_of(browser, tmp_path):
    """Draws a chart of values over these epochs; gives the numbers at its axes. Further arguments are of the chart."""

    def draw(values, *, axis="epochs", places=None, look="dots", zoom=None, **how):
        curve = charts.curve("at", values, "all", look=look)
        made = charts.chart("scores", "", [curve], axes=[axis], **how)
        places = list(range(len(values))) if places is None else places
        data = {"points": {"at": {axis: places}}, "ends": {"epochs": 10}, "charts": [made]}
        page = document("a chart", charts.drawn(data), style=charts.style(), script=charts.script())
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        browser.open((tmp_path / "page.html").as_uri())
        browser.evaluate("window.ticks = []; CanvasRenderingContext2D.prototype.fillText = text => ticks.push(text)")
        browser.evaluate("reset.onclick()")
        browser.wait("ticks.length > 3")
        if zoom:
            browser.evaluate("ticks.length = 0")
            drag(browser, *zoom)
        return browser.wait("ticks.length > 3 && ticks")

    return draw


def drag(browser, start, end):
    """Over the first chart, from and to these parts of its width."""
    box = browser.evaluate("document.querySelector('.u-over').getBoundingClientRect().toJSON()")
    for kind, x, buttons in (
        ("mouseMoved", start, 0),
        ("mousePressed", start, 1),
        ("mouseMoved", end, 1),
        ("mouseReleased", end, 0),
    ):
        place = {"x": box["left"] + x * box["width"], "y": box["top"] + 50}
        browser.call("Input.dispatchMouseEvent", type=kind, **place, button="left", buttons=buttons, clickCount=1)


def test_an_axis_of_trials_has_whole_numbers_only(ticks_of):
    ticks = ticks_of([1, 3, 2], axis="trial", look="points")
    assert [tick for tick in ticks if tick in ("0", "0.5", "1", "1.5", "2")][:3] == ["0", "1", "2"]


def test_an_axis_of_many_powers_of_ten_has_few_short_labels(ticks_of):
    ticks = [tick for tick in ticks_of([1, 1e9, 1e28], logarithmic="y") if "e" in tick]
    assert 3 <= len(ticks) <= 9
    assert "1e24" in ticks


def test_axes_reach_to_the_end_of_the_run_and_percent_to_100(ticks_of):
    assert "10" in ticks_of([2.5], look="smooth", places=[0])
    zoomed = ticks_of([50, 60, 99, 98, 97], percent=True, zoom=(0.25, 0.34))  # around the fourth
    heights = [float(tick) for tick in zoomed if float(tick) > 10]
    assert 97 <= max(heights) <= 100


def test_neighbours_on_an_axis_have_labels_of_their_own(ticks_of):
    ticks = [tick for tick in ticks_of([0.3353, 0.3354, 0.3355]) if tick.startswith("0.3")]
    assert len(ticks) == len(set(ticks)) > 3


def test_a_curve_is_hidden_by_the_keyboard_and_its_name_keeps_the_focus(browser, ticks_of):
    ticks_of([1, 2, 3])
    browser.evaluate("document.querySelector('.u-legend [role=button]').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert browser.wait("document.activeElement.getAttribute('aria-pressed') === 'false'")


@pytest.mark.mpi
def test_live_page_follows_a_run_of_two_ranks(browser, started, tmp_path):
    words = ("train", "digits/large_batch", "-n", 2, "--out", tmp_path / "run", "--set", "epochs=60", "--no-report")
    run, _ = started(*KILOBATCH, *words, until="update ")
    _, address = started(*KILOBATCH, "watch", tmp_path / "run")
    browser.open(address)
    updates = "+[...document.querySelectorAll('.tile')].at(-1).querySelector('b').textContent"
    first = browser.wait(f"document.querySelector('.tile') && {updates}")
    browser.evaluate(f"window.same = true; {OVER.format('updates')}")
    shown = browser.evaluate("[details, numbers].map(part => part.textContent)")
    browser.evaluate("details.querySelector('details').open = true; details.querySelector('summary').focus()")
    later = browser.wait(f"{updates} > {first} && {updates}")
    assert browser.evaluate("window.same && axes.querySelector('select').value") == "updates", "was loaded anew"
    assert later < 177
    assert run.poll() is None
    browser.wait(f"[details, numbers].every((part, at) => part.textContent !== {json.dumps(shown)}[at])")
    assert browser.evaluate("details.querySelector('details').open && window.same")
    assert browser.evaluate("document.activeElement === details.querySelector('summary')")
    browser.wait("document.body?.innerText.includes('Finished') && document.body.dataset.live === undefined")
    assert browser.evaluate(updates) == 176


@pytest.mark.mpi
def test_live_page_says_why_it_cannot_be_made(browser, started, pages, tmp_path):
    run = shutil.copytree(pages["run"].parent, tmp_path / "run")
    *whole, _ = (run / "metrics.jsonl").read_text().splitlines(keepends=True)  # it has no end: the run goes on
    (run / "metrics.jsonl").write_text("".join(whole))
    _, address = started(*KILOBATCH, "watch", run)
    browser.open(address)
    (run / "metrics.jsonl").write_text("".join([*whole, "{]\n"]))
    browser.wait("state.textContent.includes('not JSON') && state.textContent.includes('may be old')")
    assert browser.evaluate("document.querySelectorAll('figure canvas').length") >= 7
    (run / "metrics.jsonl").write_text("".join(whole))
    browser.wait("state.textContent === ''")


@pytest.mark.mpi
def test_live_page_follows_a_search_of_two_ranks(browser, started, tmp_path):
    (tmp_path / "search.yaml").write_text(SEARCH.replace("epochs: 2", "epochs: 40").replace("trials: 6", "trials: 40"))
    started(*KILOBATCH, "search", "search.yaml", "-n", 2, "--out", "search", cwd=tmp_path, until="")
    while not (tmp_path / "search" / "report.html").is_file():
        time.sleep(0.2)
    _, address = started(*KILOBATCH, "watch", tmp_path / "search")
    browser.open(address)
    assert browser.evaluate("document.body.innerText.includes('The search runs')")
    rows = "document.querySelectorAll('table.trials tbody tr').length"
    browser.evaluate("window.same = true")
    browser.wait("document.querySelector('.head select')")
    first = browser.evaluate(rows)
    browser.evaluate(OVER.format("epochs"))
    browser.wait(f"{rows} > {first}", seconds=120)
    assert browser.evaluate("window.same && document.querySelector('.head select').value") == "epochs", "loaded anew"
    here = browser.evaluate("location.href")
    browser.open((tmp_path / "search" / "report.html").as_uri())  # a file asks no server
    browser.evaluate(f"window.same = true; {OVER.format('epochs')}")
    browser.wait("window.same === undefined")
    assert browser.wait("document.querySelector('.head select')?.value") == "epochs"
    browser.open(here)
    link = browser.wait("document.querySelector('table.trials a')?.href")
    browser.open(link)
    browser.wait("document.querySelectorAll('figure canvas').length > 1")


def tool(name):
    """A program beside this Python or on the path."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.mpi
@pytest.mark.skipif(not tool("tensorboard"), reason="no tensorboard on this machine")
def test_tensorboard_opens_what_was_written(browser, started, kilobatch, tmp_path):
    words = ("train", "digits/large_batch", "--no-report", "--out", tmp_path / "run", "--set", "epochs=6")
    assert kilobatch(*words, "--set", "extensions=[{kind: TensorBoard}]").returncode == 0
    _, address = started(tool("tensorboard"), "--logdir", tmp_path, "--port", 0, "--host", "127.0.0.1")
    browser.open(f"{address}data/plugin/scalars/tags")
    tags = json.loads(browser.evaluate("document.body.innerText"))
    assert {"loss", "eval_accuracy", "learning_rate"} <= set(tags["run/tensorboard"])
    browser.open(f"{address}#timeseries")
    browser.wait("document.querySelector('tb-webapp')?.innerText.includes('eval_accuracy')")


@pytest.mark.mpi
@pytest.mark.skipif(not find_spec("flask"), reason="no server of mlflow on this machine; mlflow-skinny has none")
def test_mlflow_opens_what_was_sent(browser, started, kilobatch, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    words = ("train", "digits/large_batch", "--no-report", "--out", tmp_path / "run", "--set", "epochs=6")
    assert kilobatch(*words, "--set", "extensions=[{kind: MLflow}]").returncode == 0
    number = json.loads((tmp_path / "run" / "mlflow.json").read_text())["run_id"]
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    _, address = started(tool("mlflow"), "server", "--backend-store-uri", store, "--port", 5987, "--workers", 1)
    browser.open(f"{address.rstrip('/')}/#/experiments/1/runs/{number}")
    browser.wait("document.body.innerText.includes('eval_accuracy')")
