"""Storages of a study: Optuna's own, named by a word or a URL."""

import optuna
import pytest

from recipes.errors import RecipeError
from trainers.search.folder import PASSWORD, folder_record, one_line, opened_storage
from trainers.search.start import search
from trainers.search.trial_run import SearchRequest


@pytest.mark.parametrize("where", ["sqlite", "journal", "url"])
def test_a_study_is_found_again(where, tmp_path):
    where = f"sqlite:///{tmp_path / 'with %{brace}.db'}" if where == "url" else where
    with opened_storage(where, tmp_path) as storage:
        study = optuna.create_study(study_name="mine", storage=storage)
        study.tell(study.ask(), float("inf"))  # a loss that diverged
    with opened_storage(where, tmp_path) as storage:
        assert optuna.load_study(study_name="mine", storage=storage).trials[0].value == float("inf")


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


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:1/db", "mysql://me:secret@127.0.0.1:1/db"])
def test_a_database_that_cannot_be_used_is_refused_without_its_password(url, tmp_path):
    with pytest.raises(RecipeError) as refused, opened_storage(url, tmp_path):
        pass
    assert "secret" not in str(refused.value)
    assert url.replace(":secret", "") in str(refused.value)


def test_a_password_from_the_environment_is_shown_nowhere(monkeypatch):
    monkeypatch.setenv(PASSWORD, "hidden-one")
    assert one_line(ValueError("wrong password hidden-one"), "postgresql://me@host/db") == "wrong password ***"


def test_a_search_keeps_no_password_and_stays_where_its_study_is(tmp_path):
    from recipes.search_space.open_search import open_search
    from trainers.launch.vocabulary import search_vocabulary

    opened = open_search("digits", vocabulary=search_vocabulary())
    url = "postgresql://me:secret@127.0.0.1:1/db"
    place = folder_record(tmp_path, opened, resume=False, storage=url)
    assert place["storage"] == "postgresql://me@127.0.0.1:1/db"
    with pytest.raises(RecipeError, match="cannot be used|is not installed"):
        search(SearchRequest(search="digits", out=tmp_path / "out", storage=url))
    written = [path.read_text(errors="replace") for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert not any("secret" in text for text in written)
