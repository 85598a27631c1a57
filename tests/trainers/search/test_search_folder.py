"""A search's folder has one supervisor, and must be one that can be written."""

import os

import optuna
import pytest
from optuna.storages import InMemoryStorage

from recipes.search_space.open_search import open_search
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.run_folder import FolderRefused
from trainers.search.search_folder import (
    check_folder,
    lock_folder,
    require_own_trials,
    study_place,
    write_search_file,
)
from trainers.search.study import open_study


def test_a_second_supervisor_is_refused_with_the_process_of_the_first(tmp_path):
    folder = tmp_path / "search"
    with lock_folder(folder), pytest.raises(FolderRefused, match=f"process {os.getpid()} searches in {folder}"):
        lock_folder(folder).__enter__()
    with lock_folder(folder):
        pass


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused, match="cannot be written: Not a directory; choose another --out"):
        lock_folder(tmp_path / "file" / "search").__enter__()


def test_a_folder_of_something_else_is_refused(tmp_path):
    opened = open_search("digits", vocabulary=search_vocabulary())
    check_folder(tmp_path, opened, resume=False)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderRefused, match="is not empty, and holds no run; choose another --out"):
        check_folder(tmp_path, opened, resume=False)


@pytest.mark.parametrize("text", [b"", b"search: [", b"just words", b"\xff\xfe"])
def test_a_folder_with_damaged_files_is_refused(tmp_path, text):
    opened = open_search("digits", vocabulary=search_vocabulary())
    for name in ("search.yaml", "storage.yaml"):
        (tmp_path / name).write_bytes(text)
    with pytest.raises(FolderRefused, match="search.yaml is damaged; .* begin anew in another --out"):
        check_folder(tmp_path, opened, resume=False)
    with pytest.raises(FolderRefused, match="storage.yaml is damaged; .* begin anew in another --out"):
        study_place(tmp_path, opened, storage=None, study=None)


def test_a_search_goes_on_where_only_the_words_of_its_recipe_have_changed(tmp_path):
    def opened_over(words):
        (tmp_path / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/batch_256\nname: mine\n{words}")
        text = "kilobatch: 1\nrecipe: mine.yaml\nspace: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}\n"
        (tmp_path / "search.yaml").write_text(f"{text}sampler: {{kind: Random}}\nbudget: {{trials: 2}}\n")
        return open_search(str(tmp_path / "search.yaml"), vocabulary=search_vocabulary())

    folder, storage = tmp_path / "out", InMemoryStorage()
    folder.mkdir()
    first = opened_over("title: before\n")
    write_search_file(folder, first)
    own = {"name": "mine", "owner": "me", "prior": None}
    open_study(first, storage, **own)
    other = opened_over("title: after\nclaims: [{metric: top1, kind: accuracy, value: 0.9, status: not run}]\n")
    check_folder(folder, other, resume=True)
    open_study(other, storage, **own)
    with pytest.raises(FolderRefused, match="holds another search; recipe.epochs: "):
        check_folder(folder, opened_over("epochs: 19\n"), resume=True)
    with pytest.raises(FolderRefused, match="is of another search; recipe.epochs: "):
        open_study(opened_over("epochs: 19\n"), storage, **own)
    with pytest.raises(FolderRefused, match="was begun in another folder, and one search owns it; choose another"):
        open_study(other, storage, **{**own, "owner": "another"})


def test_a_folder_with_a_trial_of_another_study_is_refused(tmp_path):
    """A trial that the study has queued only is unknown, too."""
    study, trial = optuna.create_study(), tmp_path / "trials" / "trial-0000"
    trial.mkdir(parents=True)
    study.enqueue_trial({})
    with pytest.raises(FolderRefused, match=f"{trial} is of a trial that this search's study does not know"):
        require_own_trials(tmp_path, study)
    study.ask()
    require_own_trials(tmp_path, study)
