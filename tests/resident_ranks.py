"""Ranks that stay: started once by `mpiexec`, they run one program after another for the tests that need ranks.

    mpiexec -n 8 python resident_ranks.py ADDRESS

A program runs on the first ranks, as under `mpiexec -n RANKS python PROGRAM WORDS`: `MPI.COMM_WORLD` is the
communicator of those ranks, and the launcher's variables name their number. The other ranks wait in a read from a
socket.
"""

import gc
import os
import resource
import runpy
import sys
import tempfile
import traceback
import warnings
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path

from mpi4py import MPI

PLACES = tuple(filter(None, sys.path))  # of all that is installed, and of the checkout
WORLD = MPI.COMM_WORLD


@contextmanager
def captured(texts):
    """Within, what this process writes to stdout and stderr goes to files; their text is appended to the list."""
    streams = [(sys.stdout, 1), (sys.stderr, 2)]
    files = [tempfile.TemporaryFile() for _ in streams]  # noqa: SIM115
    before = [os.dup(descriptor) for _, descriptor in streams]
    try:
        for file, (_, descriptor) in zip(files, streams, strict=True):
            os.dup2(file.fileno(), descriptor)
        yield
    finally:
        for file, (stream, descriptor), old in zip(files, streams, before, strict=True):
            stream.flush()
            os.dup2(old, descriptor)
            os.close(old)
            with file:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))


@contextmanager
def process_of_a_job(program, words, ranks, environment, folder, launched, strict):
    """Within, this process looks as if it was started for the program; afterwards it is as before."""
    kept = dict(os.environ), sys.argv, list(sys.path), sys.excepthook, os.getcwd()
    loaded, memory = set(sys.modules), resource.getrlimit(resource.RLIMIT_AS)
    group = WORLD.group.Range_incl([(0, ranks - 1, 1)])
    MPI.COMM_WORLD = WORLD.Create_group(group)
    group.Free()
    launcher = {"PMI_SIZE": ranks, "PMI_RANK": WORLD.rank, "MPI_LOCALNRANKS": ranks} if launched else {}
    os.environ.clear()
    os.environ.update(environment | {name: str(value) for name, value in launcher.items()})
    sys.argv = [str(program), *words]
    sys.path.insert(0, str(Path(program).parent))
    os.chdir(folder)
    with warnings.catch_warnings():
        if strict:
            warnings.simplefilter("error")
        set_dtype(environment.get("CHAINER_DTYPE", "float32"))
        try:
            yield
        finally:
            MPI.COMM_WORLD = WORLD
            resource.setrlimit(resource.RLIMIT_AS, memory)
            os.environ.clear()
            os.environ.update(kept[0])
            for name in set(sys.modules) - loaded:
                if is_of_a_test(sys.modules[name]):
                    del sys.modules[name]
            _, sys.argv, sys.path[:], sys.excepthook, there = kept
            os.chdir(there)


def is_of_a_test(module):
    """Whether another test may have another module of this name."""
    file = getattr(module, "__file__", None)
    return file is not None and not file.startswith(PLACES)


def set_dtype(name):
    """What Chainer does with CHAINER_DTYPE when it is imported."""
    import trainers.compat  # noqa: F401, I001
    import chainer
    import numpy as np

    chainer.global_config.dtype = np.dtype(name)


def exit_code(program):
    """Run the program; what its process would end with, where it ran alone."""
    from trainers.runs.errors import EXIT_FAILED, RunFailed

    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except RunFailed as error:  # on all ranks
        if MPI.COMM_WORLD.rank == 0:
            print(f"kilobatch: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(job):
    texts = []
    with captured(texts), process_of_a_job(**job):
        code = exit_code(job["program"])
        gc.collect()
        if code == 0:
            MPI.COMM_WORLD.Free()
    return code, *texts


if __name__ == "__main__":
    with Client(sys.argv[1]) as tests:
        tests.send((WORLD.rank, os.getpid()))
        while True:
            try:
                job = tests.recv()
            except EOFError:  # the tests have ended
                break
            tests.send(run(job))
