"""Leases on trials: each trial has one supervisor, the budget is exact, and trials of a dead supervisor are found."""

import json
import os
import signal
import subprocess
import sys
import time

import optuna
import pytest
from optuna.trial import TrialState

from trainers.search.storage_cache import refresh
from trainers.search.trial_leases import (
    LEASE,
    LEASE_SECONDS,
    TrialLeases,
    add_claim,
    has_first_claim,
    is_stale,
    new_lease,
    renewed,
)

SUPERVISOR = """\
import sys
from pathlib import Path

import optuna

from trainers.search.trial_leases import TrialLeases
from trainers.search.storage import open_storage, parse_storage

storage = open_storage(parse_storage(sys.argv[1], Path(".")))
study = optuna.create_study(study_name=sys.argv[2], storage=storage, load_if_exists=True)
leases = TrialLeases(study, Path("."))
print("ready", flush=True)
for line in sys.stdin:
    numbers = []
    for _ in range(int(line)):
        trial = leases.take_stale() or leases.begin(12)
        if trial is None:
            break
        numbers.append(trial.number)
        if len(sys.argv) > 3:
            trial.report(0.5, 1)
            study.tell(trial, 1.0)
            leases.drop(trial)
    print(numbers, flush=True)
"""


class Supervisor:
    """A process that takes as many trials as `ask` requests."""

    def __init__(self, address, study, *options):
        command = [sys.executable, "-c", SUPERVISOR, address.text, study.study_name, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self):
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, trials):
        print(trials, file=self.process.stdin, flush=True)

    def taken(self):
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def study(opened, study_name):
    made = optuna.create_study(study_name=study_name, storage=opened(), load_if_exists=True)
    for value in range(3):
        made.enqueue_trial({"x": value})
    return made


def test_three_supervisors_begin_each_trial_once_and_take_over_each_trial_of_a_dead_one_once(address, study):
    dead = Supervisor(address, study)
    others = [Supervisor(address, study, "tell") for _ in range(3)]
    try:
        dead.ready()
        dead.ask(5)
        assert dead.taken() == [0, 1, 2, 3, 4]  # the queue comes first
        for other in others:
            other.ready()
        dead.process.send_signal(signal.SIGKILL)
        dead.process.wait()
        for other in others:
            other.ask(20)
        taken = [other.taken() for other in others]
    finally:
        for process in (dead, *others):
            process.close()
    assert sorted(number for numbers in taken for number in numbers) == list(range(12)), taken
    refresh(study)
    trials = study.get_trials()
    assert {trial.state for trial in trials[12:]} <= {TrialState.WAITING}  # begun too late, and put back
    trials = trials[:12]
    assert [trial.number for trial in trials] == list(range(12))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert [trial.system_attrs.get("fixed_params") for trial in trials[:4]] == [{"x": 0}, {"x": 1}, {"x": 2}, None]


def test_of_two_that_begin_the_last_trial_at_once_the_later_puts_it_back(opened, study, tmp_path):
    ours, theirs = (TrialLeases(study, tmp_path) for _ in range(2))
    other = optuna.load_study(study_name=study.study_name, storage=opened())
    assert other.get_trials(deepcopy=False)[-1].number == 2  # what it knows from now on
    late = TrialLeases(other, tmp_path)
    for number in range(3):
        assert ours.begin(3).number == number
    assert late.begin(3) is None
    refresh(study)
    assert [trial.state for trial in study.get_trials()] == [TrialState.RUNNING] * 3 + [TrialState.WAITING]
    assert theirs.begin(4).number == 3


def test_a_trial_of_another_host_is_taken_when_its_lease_has_run_out(study, tmp_path):
    ours, trial = TrialLeases(study, tmp_path), study.ask()
    lease = {**new_lease(), "host": "elsewhere"}
    trial.set_user_attr(LEASE, lease)
    assert ours.take_stale() is None
    assert ours.undecided()
    trial.set_user_attr(LEASE, renewed(lease, now=time.time() + 5))
    assert not ours.undecided()  # its supervisor lives
    trial.set_user_attr(LEASE, renewed(lease, now=0.0))
    assert ours.undecided()
    assert ours.take_stale().number == trial.number
    assert ours.take_stale() is None
    assert not ours.undecided()


def test_a_supervisor_that_stood_still_notices_that_it_has_lost_its_trial(study, tmp_path):
    ours = TrialLeases(study, tmp_path)
    trial = ours.begin(10)
    assert ours.holds(trial)
    study._storage.set_trial_user_attr(trial._trial_id, LEASE, {**new_lease(), "host": "elsewhere"})
    ours.renew(now=True)
    assert not ours.holds(trial)


def test_a_trial_that_was_given_back_is_taken_at_once(study, tmp_path):
    ours, theirs = (TrialLeases(study, tmp_path) for _ in range(2))
    trial = ours.begin(10)
    ours.release(trial)
    assert theirs.take_stale().number == trial.number
    assert trial.number not in [held.number for held in iter(theirs.take_stale, None)]


def test_the_first_of_those_that_live_may_do_a_thing(study):
    gone = {**new_lease(), "pid": 2**22 + 1}
    assert add_claim(study, "a thing", gone) == 0
    assert has_first_claim(study, "a thing")
    assert has_first_claim(study, "a thing")  # it is the same process
    elsewhere = {**new_lease(), "host": "elsewhere"}
    assert add_claim(study, "another thing", elsewhere) == 0
    assert not has_first_claim(study, "another thing")
    assert add_claim(study, "another thing", new_lease()) == 2


def lease_of_another_process():
    """The lease, and the process, which lives until it is killed."""
    code = "import json; from trainers.search.trial_leases import new_lease; print(json.dumps(new_lease())); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, eval(process.stdout.readline())


def test_a_missing_lease_is_stale_and_one_of_this_process_is_of_a_session_that_has_ended():
    assert is_stale(None)
    assert is_stale(new_lease())


def test_a_lease_ends_with_its_process():
    process, lease = lease_of_another_process()
    try:
        assert lease["pid"] != os.getpid()
        assert not is_stale(lease)
        assert not is_stale(lease, now=lease["until"] + 1)  # it lives, however late it is
        assert is_stale({**lease, "began": "1"})  # its number was given to another process
    finally:
        process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert is_stale(lease)


def test_of_another_host_a_lease_runs_out():
    lease = {**new_lease(now=1000.0), "host": "elsewhere"}
    assert not is_stale(lease, now=1000.0 + LEASE_SECONDS)
    assert is_stale(lease, now=1000.1 + LEASE_SECONDS)
