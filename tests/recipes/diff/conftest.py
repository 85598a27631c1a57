"""`kilobatch recipes diff` as a user types it."""

from functools import partial

import pytest


@pytest.fixture
def diff(run):
    """Compares in an empty folder: (exit code, what is printed or the problems)."""
    return partial(run, "diff")
