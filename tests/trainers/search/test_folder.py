"""A search's folder has one supervisor and one study, in one of Optuna's storages, named by a word or a URL."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from recipes.errors import InputRefused, RecipeError
from recipes.reading.yaml import block_text
from recipes.search_space.open_search import open_search
from trainers.launch.request import open_request
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.identity import recipe_and_code_id
from trainers.runs.run_folder import FolderRefused, lock_folder
from trainers.search.folder import (
    PASSWORD,
    folder_record,
    opened_storage,
    own_study,
    read_study,
    recipe_change,
    root_cause,
)
from trainers.search.outcome import SearchRequest, trial_request
from trainers.search.start import search


def test_a_second_supervisor_is_refused(tmp_path):
    with lock_folder(tmp_path / "out"), pytest.raises(FolderRefused, match=f"is being trained in {tmp_path}/out; give"):
        search(SearchRequest(search="digits", out=tmp_path / "out"))


@pytest.fixture(scope="module")
def digits():
    return open_search("digits", vocabulary=search_vocabulary())


def test_a_folder_of_something_else_or_with_a_damaged_file_is_refused(tmp_path, digits):
    (tmp_path / "jobs" / "group-00").mkdir(parents=True)  # where only ranks of another launcher waited
    folder_record(tmp_path, digits, resume=False)
    with pytest.raises(FolderRefused, match="there is no search in .* to go on with"):
        folder_record(tmp_path, digits, resume=True)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderRefused, match="is not empty, and holds no run; choose another --out"):
        folder_record(tmp_path, digits, resume=False)
    for text in (b"", b"search: [", b"just words", b"\xff\xfe"):
        (tmp_path / "search.yaml").write_bytes(text)
        with pytest.raises(RecipeError, match="search.yaml:1:"):
            folder_record(tmp_path, digits, resume=False)


def test_a_search_goes_on_where_only_the_words_of_its_recipe_or_data_set_have_changed(tmp_path):
    def opened_over(words):
        (tmp_path / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/batch_256\nname: mine\n{words}")
        text = "kilobatch: 1\nrecipe: mine.yaml\nspace: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}\n"
        (tmp_path / "search.yaml").write_text(f"{text}sampler: {{kind: RandomSampler}}\nbudget: {{trials: 2}}\n")
        return open_search(str(tmp_path / "search.yaml"), vocabulary=search_vocabulary())

    folder = tmp_path / "out"
    folder.mkdir()
    record = folder_record(folder, opened_over("title: before\n"), resume=False)
    own_study(optuna.create_study(), folder, record)
    other = opened_over("title: after\nclaims: [{metric: top1, kind: accuracy, value: 0.9, status: not run}]\n")
    assert folder_record(folder, other, resume=True) == record
    older = {**record, "dataset": {**record["dataset"], "title": "before", "source": None}}
    (folder / "search.yaml").write_text(block_text(older))
    assert folder_record(folder, other, resume=True) == older
    with pytest.raises(FolderRefused, match="holds another search; recipe.epochs: "):
        folder_record(folder, opened_over("epochs: 19\n"), resume=True)


def test_a_recipe_that_is_away_for_a_moment_has_not_changed(tmp_path):
    file, away = tmp_path / "mine.yaml", tmp_path / "away.yaml"
    file.write_text("kilobatch: 1\nextends: digits/batch_256\n")
    space = "space: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}"
    (tmp_path / "search.yaml").write_text(f"kilobatch: 1\nrecipe: mine.yaml\n{space}\nbudget: {{trials: 2}}\n")
    opened = open_search(str(tmp_path / "search.yaml"), vocabulary=search_vocabulary())
    file.rename(away)
    back = threading.Timer(0.2, away.rename, args=(file,))
    back.start()
    assert recipe_change(opened, {}) == ""
    back.join()


def test_own_code_that_is_edited_ends_a_search_and_is_another_one_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which own code is added
    code = "@__import__('dataclasses').dataclass(frozen=True)\nclass Falling:\n    def __call__(self, epoch):\n"
    Path("own_falling.py").write_text(f"{code}        return 1 - epoch / 40\n")
    schedule = "learning_rate: {schedule: {kind: own_falling.Falling}}\n"
    Path("own.yaml").write_text(f"kilobatch: 1\nextends: digits/batch_256\n{schedule}")
    text = "space: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}\nbudget: {trials: 2}\n"
    Path("mine.yaml").write_text(f"kilobatch: 1\nrecipe: own.yaml\nsampler: {{kind: RandomSampler}}\n{text}")
    opened = open_search("mine.yaml", vocabulary=search_vocabulary(allow_code=True), allow_code=True)
    folder = tmp_path / "out"
    record = folder_record(folder, opened, resume=False)
    assert [*record["code"]] == ["own_falling.py"]
    assert recipe_change(opened, record["code"]) == ""
    folder.mkdir()
    own_study(optuna.create_study(), folder, record)
    request = trial_request(opened, 0, {}, folder / "trial", SearchRequest(search="mine.yaml"))
    request = replace(request, checked_id=recipe_and_code_id(open_request(request)))
    open_request(request)
    Path("own_falling.py").write_text(f"{code}        return 1 - epoch / 50\n")
    assert recipe_change(opened, record["code"]) == "code: own_falling.py has changed"
    with pytest.raises(InputRefused, match="what .*own.yaml trains was changed after it had been checked"):
        open_request(request)
    with pytest.raises(FolderRefused, match="holds another search; code: own_falling.py has changed; go on with"):
        folder_record(folder, opened, resume=True)
    del record["code"]  # as older folders have it
    (folder / "search.yaml").write_text(block_text(record))
    assert [*folder_record(folder, opened, resume=True)["code"]] == ["own_falling.py"]


def test_a_search_that_was_begun_before_the_rule_that_refuses_its_recipe_is_refused_with_these_words(
    open_text, tmp_path
):
    recipe, folder = tmp_path / "own.yaml", tmp_path / "out"
    recipe.write_text("kilobatch: 1\nextends: digits/batch_256\n")
    space = "space: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}\n"
    open_text(f"kilobatch: 1\nrecipe: own.yaml\nsampler: {{kind: RandomSampler}}\nbudget: {{trials: 2}}\n{space}", "")
    recipe.write_text(f"{recipe.read_text()}extensions: [{{kind: CSV}}, {{kind: CSV}}]\n")  # a younger rule refuses it
    rule, way_out = r"own.yaml:3:27: extensions.1: writes .*, and so does `extensions.0`; ", "give it another name"

    def refused(what):
        with pytest.raises(RecipeError, match=f"{rule}{what}"):
            search(SearchRequest(search="mine.yaml", out=folder))

    refused(way_out)
    folder.mkdir()
    begun = folder_record(folder, open_search("mine.yaml", vocabulary=search_vocabulary(), of_run=True), resume=False)
    own_study(optuna.create_study(), folder, begun)
    refused(f"{folder} was begun by an older version, .* another --out: {way_out}")
    recipe.write_text(f"{recipe.read_text()}epochs: 7\n")  # then another search was begun
    refused(way_out)


def test_a_search_over_the_held_out_samples_that_an_older_version_began_is_refused_with_these_words(tmp_path):
    file, folder = tmp_path / "mine.yaml", tmp_path / "out"
    space = "space: {evaluation.held_out: {kind: Float, low: 0.1, high: 0.3}}"
    file.write_text(f"kilobatch: 1\nrecipe: digits/batch_256\nbudget: {{trials: 2}}\n{space}\n")
    begun = folder_record(folder, open_search(file, vocabulary=search_vocabulary(), of_run=True), resume=False)
    folder.mkdir()
    own_study(optuna.create_study(), folder, begun)
    with pytest.raises(RecipeError, match=f"by which samples .*; {folder} was begun by an older version, "):
        search(SearchRequest(search=str(file), out=folder))


def test_a_study_and_a_folder_are_each_others_only_one(tmp_path, digits):
    study = optuna.create_study()
    own_study(study, tmp_path, folder_record(tmp_path, digits, resume=False))
    record = folder_record(tmp_path, digits, resume=True)
    assert (record["storage"], record["study"]) == ("sqlite", "digits")
    own_study(study, tmp_path, record)  # it ended before its first trial
    study.ask()
    (tmp_path / "trials").mkdir()
    with pytest.raises(FolderRefused, match="holds another search; storage: "):
        folder_record(tmp_path, digits, resume=False, storage="journal")
    with pytest.raises(FolderRefused, match="is no longer in its storage; put it back"):
        own_study(optuna.create_study(), tmp_path, record)
    (tmp_path / "other").mkdir()
    with pytest.raises(FolderRefused, match="was begun in another folder, and one search owns it; give the search"):
        own_study(study, tmp_path / "other", folder_record(tmp_path / "other", digits, resume=False))


def test_a_study_is_found_again_by_its_url(tmp_path):
    where = f"sqlite:///{tmp_path / 'with %{brace}.db'}"
    with opened_storage(where, tmp_path) as storage:
        study = optuna.create_study(study_name="mine", storage=storage)
        study.tell(study.ask(), float("inf"))  # a loss that diverged
    with opened_storage(where, tmp_path) as storage:
        assert optuna.load_study(study_name="mine", storage=storage).trials[0].value == float("inf")


@pytest.mark.parametrize("storage", ["sqlite", "journal"])
def test_a_study_that_is_lost_or_damaged_is_refused_and_no_empty_one_made(tmp_path, digits, storage):
    own_study(optuna.create_study(), tmp_path, folder_record(tmp_path, digits, resume=False, storage=storage))
    file = tmp_path / {"sqlite": "study.db", "journal": "study.journal"}[storage]
    for _ in range(2):
        with pytest.raises(FolderRefused, match="the study of .* is no longer in its storage; put it back"):
            read_study(tmp_path).__enter__()
        assert not file.exists()
    with opened_storage(storage, tmp_path):
        pass  # an empty one
    with pytest.raises(FolderRefused, match="is no longer in its storage; put it back"):
        read_study(tmp_path).__enter__()
    file.write_bytes(b"no study\nat all\n")
    with pytest.raises(FolderRefused, match=f"{file} cannot be used: .*; check that it may be written, put a damaged"):
        read_study(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("mongo", "mongo is no storage of a study, or no URL; give sqlite, journal, postgresql://"),
        ("postgresql://me:S3?cret@host/db", r"postgresql://me@host/db is no storage of a study, or no URL"),
        ("sqlite:////nowhere/at/all.db", "sqlite:////nowhere/at/all.db cannot be used: unable to open database file"),
        ("grpc://127.0.0.1:1", "grpc://127.0.0.1:1 cannot be used|driver of grpc://127.0.0.1:1 is not installed"),
    ],
)
def test_what_names_no_storage_is_refused_with_what_would(where, message, tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.search.folder._PROXY_SECONDS", 1)
    with pytest.raises(RecipeError, match=message) as refused, opened_storage(where, tmp_path):
        pass
    assert "cret" not in str(refused.value)


def test_a_password_is_shown_and_kept_nowhere(tmp_path, digits, monkeypatch):
    url = "postgresql://me:secret@127.0.0.1:1/db"
    assert folder_record(tmp_path, digits, resume=False, storage=url)["storage"] == url.replace(":secret", "")
    for where in (url, url.replace("postgresql", "mysql")):
        with pytest.raises(RecipeError, match="cannot be used|is not installed") as refused:
            search(SearchRequest(search="digits", out=tmp_path / "out", storage=where))
        assert "secret" not in str(refused.value)
        assert where.replace(":secret", "") in str(refused.value)
    written = [path.read_text(errors="replace") for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert not any("secret" in text for text in written)
    monkeypatch.setenv(PASSWORD, "hidden-one")
    assert root_cause(ValueError("wrong password hidden-one"), "postgresql://me@host/db") == "wrong password ***"


def test_a_password_of_the_environment_may_hold_any_character(tmp_path, monkeypatch):
    urls = []

    def storage(url, **options):
        urls.append(url)
        raise ValueError("no server")

    monkeypatch.setattr(optuna.storages, "RDBStorage", storage)
    monkeypatch.setenv(PASSWORD, "p@ss/w:rd?")
    with pytest.raises(InputRefused, match="cannot be used"), opened_storage("postgresql://me@host/db", tmp_path):
        pass
    assert urls == ["postgresql+psycopg://me:p%40ss%2Fw%3Ard%3F@host/db"]
