"""Where a study is kept: what `--storage` may name, what is remembered of it, and what every storage promises."""

import sys

import optuna
import pytest
import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState, create_trial

from recipes.errors import InputRefused, RecipeError
from trainers.runs.storage_url import hidden
from trainers.search import start
from trainers.search.start import SearchRequest
from trainers.search.storage import PASSWORD, open_storage, parse_storage, serve_study
from trainers.search.storage_cache import flush, refresh


def new_study(storage, name="mine"):
    return optuna.create_study(study_name=name, storage=storage, load_if_exists=True)


def late(trial, study):
    """A report of a trial that another supervisor has finished; a database gets it at the next flush."""
    trial.report(0.4, 3)
    flush(study)


@pytest.fixture
def two_views(opened, study_name):
    """One study, as two supervisors see it."""
    return [new_study(opened(), study_name) for _ in range(2)]


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("sqlite", "sqlite", "sqlite"),
        ("journal", "journal", "journal"),
        ("sqlite:////tmp/a.db", "sqlite", "sqlite:////tmp/a.db"),
        ("journal:///tmp/a.journal", "journal", "journal:///tmp/a.journal"),
        ("grpc://node7:13000", "grpc", "grpc://node7:13000"),
        ("postgresql://me:se%40cret@host/studies", "database", "postgresql://me@host/studies"),
        (
            "mysql+pymysql://me@host/studies?charset=utf8&passwd=x",
            "database",
            "mysql+pymysql://me@host/studies?charset=utf8",
        ),
        ("postgresql://me@host/db?p%61ssword=secret", "database", "postgresql://me@host/db"),
    ],
)
def test_a_storage_is_shown_without_its_secrets(text, kind, shown, tmp_path):
    address = parse_storage(text, tmp_path)
    assert (address.kind, address.text) == (kind, shown)


def test_files_of_a_search_lie_in_its_folder_wherever_it_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert parse_storage("journal", tmp_path / "out").target == f"{tmp_path}/out/study.journal"
    assert parse_storage("sqlite", tmp_path / "out").target == f"{tmp_path}/out/study.db"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("study.db", "study.db is no storage of a study; give sqlite, journal, "),
        ("sqlite:///study.db", "sqlite:///study.db is relative: in another working directory it would be another file"),
        ("journal://study.journal", "write journal:///"),
        ("journal:///nowhere/at/all", "there is no folder /nowhere/at; make it"),
        ("grpc://host", "grpc://host is no storage"),
        ("grpc://host:many", "grpc://host is no storage"),
        ("postgresql://me:secret@host", "postgresql://me@host is no storage"),
        ("oracle://me:secret@host/db", "oracle://me@host/db is no storage"),
        (
            "postgresql://me:secret?secret@host/db",
            "postgresql://me@host/db is no URL; in a user or a password write @ as",
        ),
        ("postgresql://me:123/secret@host/db", "postgresql://me@host/db is no URL"),
        ("postgresql://me:secret#secret@host/db", "postgresql://me@host/db is no URL"),
        ("postgresql://[me:secret@host/db", "postgresql://[me@host/db is no URL"),
        ("postgresql://me:secret\u2100@host/db", "postgresql://me@host/db is no URL"),
        ("postgresql://me:secret", "postgresql://me is no URL"),
        ("postgresql://host/db?options=x@y&password=secret", "postgresql://host@y is no URL"),
        ("me:secret@host", "@host is no storage"),
        ("grpc://me:secret@host:many", "grpc://me@host:many is no storage"),
    ],
)
def test_what_names_no_storage_is_refused_with_what_would(text, message, tmp_path):
    with pytest.raises(RecipeError) as refused:
        parse_storage(text, tmp_path)
    assert f"--storage: {message}" in str(refused.value) or message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_password_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(PASSWORD, "a/b@c")
    address = parse_storage("postgresql://me@host/db", tmp_path)
    assert address.target == "postgresql+psycopg://me:a%2Fb%40c@host/db"
    assert "a/b@c" not in address.text
    assert parse_storage("mysql://me:own@host/db", tmp_path).target == "mysql+pymysql://me:own@host/db"


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:1/db", "mysql://me:secret@127.0.0.1:1/db"])
def test_a_database_that_cannot_be_used_is_refused_without_its_password(url, tmp_path):
    """Also where its driver is not installed."""
    with pytest.raises(RecipeError) as refused:
        open_storage(parse_storage(url, tmp_path))
    output = str(refused.value)
    assert hidden(url) in output
    assert "secret" not in output
    assert "pip install 'kilobatch[" in output or "check host, user and database" in output


def test_a_proxy_that_does_not_answer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.search.storage._WAIT_SECONDS", 0.2)
    with pytest.raises(RecipeError, match="pip install 'kilobatch.grpc.'|nobody answers at grpc://127.0.0.1:1 within"):
        open_storage(parse_storage("grpc://127.0.0.1:1", tmp_path))


def test_a_server_without_its_package_is_refused_before_it_makes_or_promises_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(RecipeError, match=r"STORAGE: .*grpc.*; pip install 'kilobatch\[grpc\]'"):
        serve_study(f"sqlite:///{tmp_path}/study.db", host="localhost", port=13000)
    assert capsys.readouterr().out == ""
    assert not any(tmp_path.iterdir())


def test_a_journal_stands_behind_no_proxy(tmp_path):
    with pytest.raises(RecipeError, match="STORAGE: journal.* cannot stand behind a proxy; give the URL of a database"):
        serve_study(f"journal://{tmp_path}/study.journal", host="localhost", port=13000)


def test_a_line_of_a_journal_that_was_cut_off_is_dropped(tmp_path):
    address = parse_storage("journal", tmp_path)
    new_study(open_storage(address)).add_trial(create_trial(value=1.0))
    path = tmp_path / "study.journal"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:20])
    mended = open_storage(address)
    assert list(tmp_path.iterdir()) == [path]  # no lock is left, for which all would wait
    study = new_study(mended)
    study.add_trial(create_trial(value=2.0))
    assert [trial.value for trial in new_study(open_storage(address)).get_trials()] == [1.0, 2.0]
    assert path.read_bytes().startswith(whole)


def test_what_one_supervisor_writes_another_one_reads(two_views):
    ours, theirs = two_views
    trial = ours.ask()
    rate = trial.suggest_float("rate", 0.0, 1.0)
    word = trial.suggest_categorical("word", ["a", "b"])
    trial.report(0.25, 1)
    trial.report(0.5, 2)
    trial.set_user_attr("reason", {"deaths": [1]})
    (seen,) = ours.get_trials()
    flush(ours)
    refresh(theirs)
    (read,) = theirs.get_trials()
    for view in (seen, read):
        assert view.state == TrialState.RUNNING
        assert view.params == {"rate": rate, "word": word}
        assert view.intermediate_values == {1: 0.25, 2: 0.5}
        assert view.user_attrs == {"reason": {"deaths": [1]}}
    finished = ours.tell(trial, 0.5)
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.5)
    refresh(theirs)
    assert theirs.best_trial.datetime_complete == finished.datetime_complete
    with pytest.raises(ValueError, match="Cannot tell a COMPLETE trial"):
        theirs.tell(0, 0.7)


def test_a_report_that_another_supervisor_has_written_costs_no_parameter_that_waits_beside_it(two_views):
    ours, theirs = two_views
    first = ours.ask()
    first.suggest_float("rate", 0.0, 1.0)
    refresh(theirs)
    other = optuna.Trial(theirs, first._trial_id)
    other.report(0.1, 1)
    flush(theirs)
    second = ours.ask()
    rate = second.suggest_float("rate", 0.0, 1.0)  # waits: its distribution is known
    first.report(0.2, 1)
    flush(ours)
    refresh(theirs)
    stored = theirs.get_trials()
    assert stored[0].intermediate_values == {1: 0.2}
    assert stored[1].params == {"rate": rate}


def test_what_waits_is_written_before_its_trial_ends_and_replaces_what_another_one_wrote(two_views):
    ours, theirs = two_views
    trial = ours.ask()
    trial.suggest_float("rate", 0.0, 1.0)
    refresh(theirs)
    other = optuna.Trial(theirs, trial._trial_id)
    other.report(0.1, 1)
    other.set_user_attr("seconds", 1.0)
    flush(theirs)
    trial.report(0.2, 1)
    trial.report(0.3, 2)
    trial.set_user_attr("seconds", 2.0)
    ours.tell(trial, 0.3)
    refresh(theirs)
    (stored,) = theirs.get_trials()
    assert stored.intermediate_values == {1: 0.2, 2: 0.3}
    assert (stored.user_attrs, stored.params) == ({"seconds": 2.0}, trial.params)
    with pytest.raises(UpdateFinishedTrialError):
        late(other, theirs)


def test_a_picture_of_the_trials_does_not_change_afterwards(two_views):
    study = two_views[0]
    trial = study.ask()
    before = study.get_trials(deepcopy=False)
    trial.report(0.25, 1)
    assert before[0].intermediate_values == {}
    assert study.get_trials(deepcopy=False)[0].intermediate_values == {1: 0.25}


def test_a_search_keeps_no_password_and_stays_where_its_study_is(tmp_path, capsys):
    search, out = tmp_path / "mine.yaml", tmp_path / "out"
    search.write_text(
        "kilobatch: 1\nrecipe: digits/batch_256\nsampler: {kind: Random}\nbudget: {trials: 1}\n"
        "space: {learning_rate.reference: {kind: Float, low: 0.1, high: 0.2}}\n"
    )
    request = SearchRequest(search=str(search), out=out, storage="postgresql://me:secret@127.0.0.1:1/db")
    messages = []
    for _ in range(2):
        with pytest.raises(InputRefused) as refused:
            start.search(request)
        messages.append(str(refused.value))
        assert "secret" not in messages[-1] + "".join(capsys.readouterr())
        assert not any("secret" in path.read_text() for path in out.iterdir())
        assert not (out / "storage.yaml").exists() or "elsewhere" in messages[-1]
        (out / "storage.yaml").write_text(yaml.safe_dump({"storage": "journal", "study": "mine"}))
    assert "--storage: the driver of postgresql://me@127.0.0.1:1/db" in messages[0] or "cannot be used" in messages[0]
    assert "has its study elsewhere; storage: 'journal' in the run, 'postgresql://me@127.0.0.1:1/db' now" in messages[1]
