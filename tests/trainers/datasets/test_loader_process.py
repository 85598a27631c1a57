"""Loader workers of either kind give the same run as none, report what goes wrong as a rank does, and leave nothing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from recipes.sharing.canonical import digest_of
from trainers.datasets.augmented import StackedSamples, augmented_samples
from trainers.datasets.loader_process import LoaderProcess
from trainers.launch.request import TrainRequest, open_request

pytestmark = pytest.mark.mpi

OWN = """
import contextlib, os, signal
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True, kw_only=True)
class Slow:
    \"\"\"Kills its process at a sample where the environment says so, each time or once.\"\"\"

    def __call__(self, image_HWC, draws):
        total = sum(range(20_000))  # holds Python's lock
        once, chosen = os.environ.get("KILL_ONCE"), draws.integers(30) == 7
        if once and chosen:
            with contextlib.suppress(FileExistsError):
                os.mkdir(once)
                os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("KILL_ALWAYS") and chosen:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("RAISE") and chosen:
            raise ValueError("a part of mine is broken")
        return image_HWC[:, ::-1] if draws.integers(2) else image_HWC
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe on 96 small JPEGs, with an augmentation of one's own beside it."""
    root, random = tmp_path_factory.mktemp("loader"), np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 4)):
        for name in ("ant", "bee"):
            (root / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "images" / split / name / f"{number:02}.jpg")
    (root / "mine.py").write_text(OWN)
    facts = "name: mine\nchannels: 3\nmean: [0.5, 0.5, 0.5]\nstd: [0.2, 0.2, 0.2]\nreader: {kind: ImageFolder}\n"
    (root / "mine.yaml").write_text(f"{facts}root: images\n")
    return root


def words(folder, out, *more, mix=""):
    normalized = "{kind: Normalize, with: mine}"
    crop = f"{{kind: RandomResizedCrop, size: 24}}, {{kind: mine.Slow}}, {normalized}"
    scored = f"{{kind: Resize, shorter: 24}}, {{kind: CenterCrop, size: 24}}, {normalized}"
    crop = f"{{train: [{crop}], eval: [{scored}]{mix}}}"
    changes = [f"dataset={folder / 'mine.yaml'}", f"augmentation={crop}", "learning_rate.warmup=null", "model.width=4"]
    changes += ["batch={global: [{from: 0, size: 24}, {from: 1, size: 48}], norm_span: 6}", "epochs=2"]
    sets = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/large_batch", *sets, "--no-report", "--trace"]
    return [*command, "--allow-code", "--checkpoint-every", "1up", "--out", str(out), *map(str, more)]


def run(folder, out, *more, environment=None, mix="", timeout=100):
    environment = {**os.environ, **(environment or {})}
    command = words(folder, out, *more, mix=mix)
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=timeout)


def trace(out):
    return (out / "trace.jsonl").read_text()


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    """The trace of a run whose rank loads by itself."""
    out = tmp_path_factory.mktemp("alone") / "run"
    done = run(folder, out, "-n", 1, "--loader-workers", 0)
    assert done.returncode == 0, done.stderr
    return trace(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kind", "number"),
    [(ranks, kind, number) for ranks in (1, 2, 3, 5) for kind in ("threads", "processes") for number in (1, 4)],
)
def test_workers_and_ranks_change_no_sample_and_no_bit(folder, alone, tmp_path, ranks, kind, number):
    done = run(folder, tmp_path / "run", "-n", ranks, "--loader", kind, "--loader-workers", number)
    assert done.returncode == 0, done.stderr
    assert trace(tmp_path / "run") == alone
    many = number > 1
    by = f"{number} loader thread{'s' * many}" if kind == "threads" else f"{number} loader process{'es' * many}"
    assert f", {by}, " in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_resumed_in_mid_epoch_with_other_workers_is_the_same(folder, alone, tmp_path):
    first = run(
        folder, tmp_path / "run", "-n", 2, "--loader-workers", 2, "--loader", "processes", "--stop-after", "2up"
    )
    assert first.returncode == 0, first.stderr
    second = run(folder, tmp_path / "run", "-n", 1, "--loader-workers", 1, "--loader", "threads", "--resume")
    assert second.returncode == 0, second.stderr
    assert trace(tmp_path / "run") == alone


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_mixed_samples_are_the_same(folder, tmp_path, kind):
    traces = []
    for number in (0, 2):
        out = tmp_path / f"run{number}"
        how = ["--loader", kind] if number else []
        done = run(folder, out, "-n", 2, "--loader-workers", number, *how, mix=", mix: [{kind: Mixup, alpha: 0.4}]")
        assert done.returncode == 0, done.stderr
        traces.append(trace(out))
    assert traces[0] == traces[1]


def test_a_process_that_is_killed_is_named_and_started_again(folder, alone, tmp_path, processes_of):
    once = {"KILL_ONCE": str(tmp_path / "killed")}
    done = run(folder, tmp_path / "run", "-n", 2, "--loader", "processes", "--loader-workers", 1, environment=once)
    assert done.returncode == 0, done.stderr
    assert trace(tmp_path / "run") == alone
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "was ended by SIGKILL; it had samples" in log
    assert "it is started again" in log
    processes_of(tmp_path / "run", gone=True)


@pytest.mark.slow
def test_a_process_that_is_killed_again_ends_the_run(folder, tmp_path, processes_of):
    always = {"KILL_ALWAYS": "1"}
    done = run(folder, tmp_path / "run", "-n", 2, "--loader", "processes", "--loader-workers", 2, environment=always)
    assert done.returncode == 3
    assert "was ended by SIGKILL; it had samples" in done.stderr
    assert "It was started again before, and died once more" in done.stderr
    processes_of(tmp_path / "run", gone=True)


def test_what_a_sample_raises_in_a_process_is_raised_in_the_rank(folder, tmp_path):
    raising = {"RAISE": "1"}
    done = run(folder, tmp_path / "run", "-n", 1, "--loader", "processes", "--loader-workers", 1, environment=raising)
    assert done.returncode in (2, 3)
    assert "a part of mine is broken" in done.stderr


def loaders(rank_folder):
    """PIDs of loader processes, by their command line, that this test's run has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, environment = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            if b"load-samples" in words and b"MARK=" + os.fsencode(rank_folder) in environment:
                found.append(int(process.name))
    return found


def parent_of(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_starts_and_ends_leave_nothing(folder, tmp_path, processes_of, number):
    """Runs that end by themselves, by an exception, by a kill of a loader, of a rank, of the parent."""
    how = ("ends", "raises", "kill a loader", "kill a rank", "kill the parent", "stop")[number % 6]
    environment = {**os.environ, "MARK": str(tmp_path), **({"RAISE": "1"} if how == "raises" else {})}
    command = words(folder, tmp_path / "run", "-n", 2, "--loader", "processes", "--loader-workers", 2)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 20
    while how not in ("ends", "raises") and process.poll() is None and time.monotonic() < until:
        if victims := loaders(tmp_path):
            time.sleep(0.02 * (number % 13))
            target, with_signal = {
                "kill a loader": (victims[0], signal.SIGKILL),
                "kill a rank": (parent_of(victims[0]), signal.SIGKILL),
                "kill the parent": (process.pid, signal.SIGKILL),
                "stop": (process.pid, signal.SIGTERM),
            }[how]
            with suppress(ProcessLookupError):
                os.kill(target, with_signal)
            break
        time.sleep(0.01)
    code = process.wait(timeout=60)
    assert code in {"ends": (0,), "raises": (2, 3), "kill a loader": (0,), "kill a rank": (3,), "stop": (0, 4)}.get(
        how, (-9,)
    )
    processes_of(tmp_path / "run", gone=True, timeout=30)
    until = time.monotonic() + 10
    while (left := loaders(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


@pytest.mark.parametrize("pixels", [False, True])
def test_small_images_of_one_array_come_as_arrays(pixels):
    normalize = "{kind: Normalize, with: synthetic}"
    parts = f"train: [{{kind: RandomCrop, size: 16}}, {{kind: HorizontalFlip}}, {normalize}], eval: [{normalize}]"
    changes = ("dataset=synthetic", f"augmentation={{{parts}}}")
    request = TrainRequest(recipe="digits/large_batch", overrides=changes)
    opened = open_request(request)
    load = augmented_samples(opened.recipe, opened.dataset, "train", pixels=pixels)
    wanted = [(epoch, index) for epoch in (0, 3) for index in range(50)]
    asked = {"train": request.as_tree(), "recipe_sha256": digest_of(opened.tree)}
    loader = LoaderProcess(asked, name="loader worker 0")
    try:
        first = loader.load(load, wanted, None)
        loader.load(load, wanted[::-1], None)  # into the same memory
    finally:
        loader.close()
    expected = load.several(wanted, None, lambda: None)
    assert isinstance(first, StackedSamples)
    np.testing.assert_array_equal(first.labels, expected.labels)
    for image, other in zip(*((each.images if pixels else [each.images]) for each in (first, expected)), strict=True):
        np.testing.assert_array_equal(image, other, strict=True)


def test_signals_that_ask_a_rank_to_stop_leave_its_loader_processes(caplog):
    loader, samples = LoaderProcess({}, name="loader worker 0"), SimpleNamespace(split="train", pixels=False)
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, None):
            with pytest.raises(KeyError, match="'train'"):  # not in the request: an answer of a process that lives
                loader.load(samples, [(0, 0)], None)
            if number is not None:
                loader._process.send_signal(number)
    finally:
        loader.close()
    assert not caplog.records
