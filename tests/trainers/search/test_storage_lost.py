"""The study's storage goes away in the middle of a search: nothing is lost or counted twice, and the search goes on."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from recipes.errors import RecipeError
from trainers.search.storage import open_storage, parse_storage

pytestmark = pytest.mark.mpi
REPORTS, UPDATES = 4, 36
TEXT = f"""\
space: {{learning_rate.reference: {{kind: Float, low: 0.01, high: 0.1, log: true}}}}
fixed: {{epochs: 6, learning_rate.warmup: null, model: {{kind: SmallCNN, width: 2, first_stride: 2}}}}
reports: {REPORTS}
"""


def test_a_write_waits_for_another_program_that_has_locked_the_file(tmp_path):
    with closing(open_storage(parse_storage("sqlite", tmp_path))) as storage:
        study = optuna.create_study(study_name="mine", storage=storage)
        trial = study.ask()
        trial.report(0.5, 1)
        with closing(sqlite3.connect(tmp_path / "study.db", check_same_thread=False)) as other:
            other.execute("BEGIN EXCLUSIVE")
            began, later = time.monotonic(), threading.Timer(1.0, other.rollback)
            later.start()
            study.tell(trial, 0.5)
            later.join()
        assert time.monotonic() - began > 0.9
    with closing(open_storage(parse_storage("sqlite", tmp_path))) as storage:
        (trial,) = optuna.load_study(study_name="mine", storage=storage).get_trials()
    assert (trial.state, trial.value, trial.intermediate_values) == (TrialState.COMPLETE, 0.5, {1: 0.5})


@pytest.mark.parametrize(
    ("kind", "message"), [("sqlite", "not a database"), ("journal", "Expecting value|cannot be read")]
)
def test_a_file_that_is_no_study_is_refused_with_a_way_out(kind, message, tmp_path):
    address = parse_storage(kind, tmp_path)
    Path(address.target).write_text("this is no study at all\n" * 50)
    with pytest.raises(RecipeError, match=message) as refused:
        open_storage(address)
    assert f"see whether {address.target} is a study that can be written" in str(refused.value)


@pytest.mark.slow
def test_a_file_that_another_program_has_locked_is_waited_for(searching):
    search = searching(TEXT + "budget: {trials: 1}\n", "-n", 1)
    with search.start() as process:
        search.wait_for_checkpoint(0)
        with closing(sqlite3.connect(search.folder / "study.db", timeout=10)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(3)
            other.rollback()
        output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    (trial,) = search.require_complete(1, updates=UPDATES, reports=REPORTS)
    assert "deaths" not in trial.user_attrs  # the ranks went on


def test_a_folder_that_goes_away_ends_the_search_and_the_same_command_goes_on(searching, tmp_path):
    shared, away = tmp_path / "shared", tmp_path / "away"
    shared.mkdir()
    budget = "budget: {trials: 9, device_hours: 1.0e-6}\n"  # spent after the first trial
    search = searching(TEXT + budget, "-n", 1, "--storage", f"journal://{shared}/study.journal")
    with search.start() as process:
        pids = search.wait_for_checkpoint(0)
        shared.rename(away)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 3, output
    assert f"the study in journal://{shared}/study.journal does not answer any more: " in output
    assert "the same command goes on with it" in output
    assert "Traceback" not in output
    assert search.gone(pids)
    away.rename(shared)
    output = search.complete()
    (trial,) = search.require_complete(1, updates=UPDATES, reports=REPORTS)
    assert trial.user_attrs["deaths"] == ["the search was ended"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_server_that_is_started_again_is_waited_for_a_minute(searching, server, kind):
    server = server(kind)
    search = searching(TEXT, "-n", 2, "--storage", server.url)
    codes = []
    for budget, pause in ((2, 3.0), (4, 15.0), (6, None)):  # None: longer than it waits
        search.file.write_text(f"{search.file.read_text().partition('budget:')[0]}budget: {{trials: {budget}}}\n")
        with search.start() as process:
            search.wait_for_checkpoint(budget - 1)
            server.halt()
            if pause is not None:
                time.sleep(pause)
                server.again()
            output = process.communicate(timeout=200)[0]
        if pause is None:
            server.again()
        codes.append(process.returncode)
        assert "Traceback" not in output
        if process.returncode:  # in the middle of a transaction, or of the pause
            assert process.returncode == 3, output
            assert f"the study in {server.url} does not answer any more: " in output
            output = search.complete()
        search.require_complete(budget, updates=UPDATES, reports=REPORTS)
    assert codes[-1] == 3
