"""Patches Chainer before any test imports it, readies this checkout for processes, and keeps ranks for the tests."""

import compileall
import functools
import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from contextlib import contextmanager, suppress
from multiprocessing.connection import Listener, wait
from pathlib import Path

import pytest
import typer.testing

import trainers.compat  # noqa: F401
from trainers.runs.mpi_ranks import find_mpiexec
from trainers.training.device import has_gpu

ROOT = Path(__file__).parent.parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
LEFT_OUT = pytest.StashKey()
NEEDS = {  # in the summary, and in the reasons of skipped tests
    "gpu": ("need a GPU with CuPy", "GPU|cudnn"),
    "torch": ("need PyTorch (pip install torch torchvision timm)", "torch|timm"),
    "bfloat16": ("need bfloat16 (pip install ml_dtypes)", "ml_dtypes"),
    "nvidia": ("need NVIDIA's compiler (pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm)", "NVRTC|nvdisasm"),
    "other": ("something else (-rs lists them)", ""),
}
NUM_RESIDENT = 8  # ranks; one that no test has used yet has loaded nothing


typer.testing._get_command = functools.cache(typer.testing._get_command)  # it builds 60 commands at each call


def pytest_configure():
    """Where Python may keep no byte code of its own accord, each of thousands of processes would compile 200 files."""
    if sys.dont_write_bytecode:
        for package in ("lr_schedules", "recipes", "trainers"):
            compileall.compile_dir(ROOT / package, quiet=2)
        for file in ROOT.glob("*.py"):
            compileall.compile_file(file, quiet=2)


def pytest_collection_modifyitems(config, items):
    """Leave out what this machine cannot run."""
    modules = {"torch": "torch", "bfloat16": "ml_dtypes"}
    lacking = [] if has_gpu() else ["gpu"]
    lacking += [name for name, module in modules.items() if importlib.util.find_spec(module) is None]
    first = {item: next(filter(item.get_closest_marker, lacking), None) for item in items}
    left_out = [item for item in items if first[item]]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not first[item]]
        config.stash[LEFT_OUT] = Counter(first[item] for item in left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file run on one worker of xdist. With few cores, files that start ranks run one after another on
    two workers: those of three folders on one, all others on the other, so that both end at about the same time. With
    many, such a file is on as many workers as it has functions.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FilesScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if not starts_ranks(config.rootpath / file):
                return file
            if len(os.sched_getaffinity(0)) > 8:
                return nodeid.partition("[")[0]
            return "some ranks" if {"search", "frontier", "datasets"} & {*Path(file).parts} else "ranks"

    return FilesScheduling(config, log)


@functools.cache
def starts_ranks(file):
    """Whether tests of a file are marked `mpi`."""
    return "mark.mpi" in file.read_text(encoding="utf-8")


def pytest_sessionfinish(session):
    """A worker of xdist gives its counts to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """The counts of a worker; all workers have the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", {})


def pytest_terminal_summary(terminalreporter, config):
    """What did not run here, by what it needs."""
    counts = Counter(config.stash.get(LEFT_OUT, {}))
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        counts[next(name for name, (_, words) in NEEDS.items() if re.search(words, reason))] += 1
    if counts:
        texts = (f"{counts[name]} {text}" for name, (text, _) in NEEDS.items() if counts[name])
        terminalreporter.write_line(f"not run: {', '.join(texts)}")


class ResidentRanks:
    """Ranks that run one program after another, see resident_ranks.py; they are started when the first program comes.

    After a program that ends with a traceback, or not on all ranks, or not in time, the next one has new ranks.
    """

    def __init__(self, folder):
        self._folder, self._starts, self._ranks = folder, 0, []

    def __call__(self, ranks, program, *words, launched=True, strict=True, environment=None, cwd=None, timeout=120):
        """The same as `mpiexec -n RANKS python PROGRAM WORDS` would give, with rank after rank in the output.

        With launched=False the same as `python PROGRAM WORDS`, for one rank. With strict=True warnings are errors.
        """
        if not self._ranks:
            self._start()
        job = {"program": program, "words": [*map(str, words)], "ranks": ranks, "launched": launched, "strict": strict}
        job |= {"environment": {**os.environ, **ONE_THREAD, **(environment or {})}, "folder": cwd or os.getcwd()}
        called, answers = self._ranks[:ranks], {}
        for connection, _ in called:
            connection.send(job)
        until = time.monotonic() + timeout
        while len(answers) < ranks and time.monotonic() < until:
            for connection in wait([one for one, _ in called if one not in answers], until - time.monotonic()):
                try:
                    answers[connection] = connection.recv()
                except (EOFError, ConnectionError):
                    answers[connection] = (-signal.SIGKILL, "", "a resident rank has died\n")
                if answers[connection][0] != 0:
                    until = min(until, time.monotonic() + 5)  # the others may wait for it without end
        if len(answers) < ranks or any(code in (1, -signal.SIGKILL) for code, *_ in answers.values()):
            self.close()
            answers |= {one: (-1, "", "the rank did not end\n") for one, _ in called if one not in answers}
        codes, outputs, errors = zip(*(answers[connection] for connection, _ in called), strict=True)
        code = next((code for code in codes if code), 0)
        return subprocess.CompletedProcess([program, *words], code, "".join(outputs), "".join(errors))

    def _start(self):
        self._starts += 1
        address = str(self._folder / f"ranks-{self._starts}")
        with Listener(address, "AF_UNIX", backlog=NUM_RESIDENT) as listener:
            program = Path(__file__).with_name("resident_ranks.py")
            command = [find_mpiexec(), "-n", str(NUM_RESIDENT), sys.executable, program, address]
            paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": paths}
            with open(f"{address}.log", "wb") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self._mpiexec = subprocess.Popen(command, env=environment, **streams)
            listener._listener._socket.settimeout(60)
            connections = [listener.accept() for _ in range(NUM_RESIDENT)]
        hellos = [(*connection.recv(), connection) for connection in connections]
        self._ranks = [(connection, pid) for _, pid, connection in sorted(hellos, key=lambda hello: hello[0])]

    def close(self):
        for connection, pid in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            connection.close()
        if self._ranks:
            self._mpiexec.wait()
        self._ranks = []


@pytest.fixture
def largest_file():
    """`with largest_file(num_bytes):` no file may get larger, which stands for a full disk."""

    @contextmanager
    def limited(num_bytes):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limited


@pytest.fixture(scope="session")
def kilobatch(run_on_ranks):
    """`kilobatch(*words, ranks=None)`: the finished command, without a process; with ranks, under their launcher."""

    def run(*words, ranks=None, **more):
        return run_on_ranks(ranks or 1, ROOT / "kilobatch.py", *words, launched=ranks is not None, strict=False, **more)

    return run


@pytest.fixture(scope="session")
def run_on_ranks(tmp_path_factory):
    """`run_on_ranks(ranks, program, *words)`: a finished process, as `mpiexec -n RANKS python PROGRAM` would be."""
    resident = ResidentRanks(tmp_path_factory.mktemp("ranks"))
    yield resident
    resident.close()


@pytest.fixture(scope="session")
def installation(tmp_path_factory):
    """The folder `bin` of an environment with a wheel of the checkout, and with this environment's packages but it."""
    folder = tmp_path_factory.mktemp("installation")
    for name in ("configs", "lr_schedules", "recipes", "trainers"):
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("kilobatch.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # A folder that a .pth file names has its own .pth files not read: that of the editable checkout among them.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--quiet"]
    python = environment / "bin" / "python"
    without_compiler = {**os.environ, "CC": "/bin/false"}  # what the checkout has compiled serves here too
    command = [python, "-m", "pip", "install", *how, folder / "copy"]
    subprocess.run(command, check=True, timeout=300, env=without_compiler)
    for compiled in (ROOT / "trainers").rglob("*.so"):
        shutil.copy(compiled, site / compiled.relative_to(ROOT))
    shutil.rmtree(folder / "copy")
    for kind, names in (("bin", "mpi*"), ("bin", "hydra*"), ("lib", "[lm]*")):  # MPI's launchers and libraries
        for file in (Path(sys.prefix) / kind).glob(names):
            (environment / kind / file.name).symlink_to(file)
    return environment / "bin"
