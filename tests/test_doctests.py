"""The examples in the docstrings of the three packages."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("lr_schedules", "recipes", "trainers")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    results = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert results.failed == 0 < results.attempted


def test_there_are_examples():
    assert len({name.partition(".")[0] for name in MODULES}) == 3
    assert len(MODULES) > 60
