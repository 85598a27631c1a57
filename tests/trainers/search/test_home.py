"""A search's folder has one supervisor, and must be one that can be written."""

import os

import pytest

from trainers.run_folder import FolderRefused
from trainers.search.home import sole_supervisor


def test_a_second_supervisor_is_refused_and_learns_who_the_first_one_is(tmp_path):
    folder = tmp_path / "search"
    with sole_supervisor(folder), pytest.raises(FolderRefused, match=f"process {os.getpid()} searches in {folder}"):
        sole_supervisor(folder).__enter__()
    with sole_supervisor(folder):
        pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused, match="cannot be written: Not a directory; choose another --out"):
        sole_supervisor(tmp_path / "file" / "search").__enter__()
