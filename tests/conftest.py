"""Patches Chainer before any test imports it, and readies this checkout for the processes that tests start."""

import compileall
import sys
from pathlib import Path

import trainers.compat  # noqa: F401

ROOT = Path(__file__).parent.parent


def pytest_configure():
    """Where Python may keep no byte code of its own accord, each of thousands of processes would compile 200 files."""
    if sys.dont_write_bytecode:
        for place in ("lr_schedules", "recipes", "trainers"):
            compileall.compile_dir(ROOT / place, quiet=2)
        for file in ROOT.glob("*.py"):
            compileall.compile_file(file, quiet=2)
