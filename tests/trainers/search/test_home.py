"""A search's folder has one supervisor, and must be one that can be written."""

import os

import pytest

from recipes.open_search import open_search
from trainers.run_folder import FolderRefused
from trainers.search.home import check_folder, place_of_study, sole_supervisor
from trainers.vocabulary import search_vocabulary


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


@pytest.mark.parametrize("text", [b"", b"search: [", b"just words", b"\xff\xfe"])
def test_a_folder_whose_memory_is_damaged_is_refused(tmp_path, text):
    opened = open_search("digits", vocabulary=search_vocabulary())
    for name in ("search.yaml", "storage.yaml"):
        (tmp_path / name).write_bytes(text)
    with pytest.raises(FolderRefused, match="search.yaml is damaged; .* begin anew in another --out"):
        check_folder(tmp_path, opened, resume=False)
    with pytest.raises(FolderRefused, match="storage.yaml is damaged; .* begin anew in another --out"):
        place_of_study(tmp_path, opened)
