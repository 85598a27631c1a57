"""What a search does when ranks, or it itself, end in the middle."""

import os
import re
import signal
import time

import pytest
from optuna.trial import TrialState

from trainers.search.study import reason_of

pytestmark = pytest.mark.mpi
SPACE = "space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}\n"
LONG = SPACE + "fixed: {epochs: 8, model: {kind: SmallCNN, width: 2, first_stride: 2}}\nreports: 4\n"
UPDATES = 47  # 8 epochs of 1,500 samples at batch 256
NET = '''\
import os
import time

import chainer
import chainer.links as L
import numpy as np
from mpi4py import MPI


class Net(chainer.Chain):
    """Has the trouble that its argument names in its fifth forward."""

    def __init__(self, num_classes: int, trouble: str = "none"):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(64, num_classes)
        self.trouble, self.seen = trouble, 0

    def __call__(self, images):
        self.seen += 1
        if self.seen >= 5 and MPI.COMM_WORLD.rank == 1:
            if self.trouble == "raise":
                raise ValueError("trouble on purpose")
            troubles = {"leave": (os._exit, 0), "hang": (time.sleep, 3600), "memory": (np.empty, 2**59)}
            call, argument = troubles.get(self.trouble, (print, ""))  # no memory, not even for one norm group
            call(argument)
        logits = self.output(images)
        return logits * float("nan") if self.trouble == "nan" and self.seen > 4 else logits
'''


@pytest.fixture
def searching_net(searching, tmp_path):
    """`searching_net(text, *options)`: a search over a recipe with the network above, on two ranks a trial."""
    (tmp_path / "trouble.py").write_text(NET)
    recipe = "kilobatch: 1\nextends: digits/batch_256\nmodel: {kind: trouble.Net, trouble: none}\nepochs: 2\n"
    (tmp_path / "net.yaml").write_text(recipe + "learning_rate: {warmup: null}\n")

    def make(text, *options):
        search = searching(f"{text}ranks_per_trial: 2\nretries: 0\n", "-n", 2, "--allow-code", *options)
        search.file.write_text(search.file.read_text().replace("digits/batch_256", "net.yaml"))
        return search

    return make


def test_a_killed_rank_a_killed_search_and_a_trial_that_something_else_stops_cost_a_checkpoint_at_most(searching):
    search = searching(LONG + "budget: {trials: 3}\nranks_per_trial: 2\n", "-n", 4, "--storage", "journal")
    with search.start() as process:
        search.wait_for_checkpoint(0, 1)
        first = search.pids(0)
        os.kill(first[1], signal.SIGKILL)
        while search.pids(0) == first and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=600)
    assert search.gone([*search.pids(0), *search.pids(1)])  # no rank outlives its supervisor
    before = search.trials()
    assert before[0].state == TrialState.RUNNING
    search.options = ("-n", 2)  # one group in place of two; the storage is known
    search.file.write_text(search.file.read_text().replace("trials: 3", "trials: 4"))
    with search.start() as process:
        search.wait_for_checkpoint(3)
        os.kill(search.pids(3)[0], signal.SIGTERM)
        output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    trials = search.require_complete(4, updates=UPDATES, reports=4)
    ((reason, checkpoint),) = trials[0].user_attrs["deaths"]
    assert reason == "rank 1 was ended by SIGKILL"
    assert checkpoint.startswith("update-")
    log = (search.folder / "log.txt").read_text()
    assert "trial 0: rank 1 was ended by SIGKILL; it goes on from its last checkpoint" in log
    assert re.search(r"trial 3: stopped at update \d+, not by this search; it goes on from its last checkpoint", log)
    assert not any("deaths" in trial.user_attrs for trial in trials[1:3])  # an end of the search is no fault of a trial
    assert [trial.params for trial in trials[: len(before)]] == [trial.params for trial in before]
    resumed = [line for line in search.metrics(0) if line["key"] == "run_start"][-1]
    assert resumed["notes"][0].startswith("resuming from update-")


@pytest.mark.parametrize("ways", [["a signal"], pytest.param(["the file", "a signal"], marks=pytest.mark.slow)])
def test_a_search_that_a_file_or_a_signal_stopped_says_so_and_goes_on(searching, ways):
    search, pids = searching(LONG.replace("epochs: 8", "epochs: 40") + "budget: {trials: 1}\n", "-n", 1), None
    stops = {
        "the file": lambda process: (search.folder / "stop").touch(),
        "a signal": lambda process: process.send_signal(signal.SIGTERM),
    }
    said = {"the file": f"the file {search.folder}/stop", "a signal": "a signal"}
    for way in ways:
        with search.start() as process:
            while search.pids(0) == pids:
                time.sleep(0.02)
            pids = search.pids(0)
            stops[way](process)
            output = process.communicate(timeout=600)[0]
        assert process.returncode == 4, output
        assert f"kilobatch: stopped by {said[way]}; the same command goes on" in output
        assert "trial 0 stopped at update " in output
        search.options = ("-n", 1, "--resume")
    (trial,) = search.trials()
    assert trial.state == TrialState.RUNNING
    assert "deaths" not in trial.user_attrs


@pytest.mark.slow
def test_a_failed_trial_has_its_reason_and_the_search_goes_on(searching_net):
    text = """\
space:
  model.trouble: {kind: Categorical, choices: [none, raise, nan, memory, leave]}
  batch.global: {kind: Categorical, choices: [128, 256]}
  batch.norm_span: {kind: Categorical, choices: [32, 256]}
budget: {trials: 6}
enqueue:
  - {model.trouble: raise, batch.global: 256, batch.norm_span: 32}
  - {model.trouble: nan, batch.global: 256, batch.norm_span: 32}
  - {model.trouble: memory, batch.global: 256, batch.norm_span: 32}
  - {model.trouble: leave, batch.global: 256, batch.norm_span: 32}
  - {model.trouble: none, batch.global: 128, batch.norm_span: 256}
  - {model.trouble: none, batch.global: 256, batch.norm_span: 32}
"""
    search = searching_net(text)
    search.complete()
    trials = search.trials()
    fail, complete = TrialState.FAIL, TrialState.COMPLETE
    assert [trial.state for trial in trials] == [fail, complete, fail, fail, TrialState.PRUNED, complete]
    raised, nan, memory, left, unplanned = map(reason_of, trials[:5])
    assert raised == "rank 1: ValueError: trouble on purpose"
    assert "ValueError: trouble on purpose" in (search.run_folder(0) / "log.txt").read_text()
    update = trials[1].user_attrs["diverged"]
    assert nan == f"the loss or a weight is not finite at update {update}"
    assert (trials[1].value, update < 3) == (0.0, True)  # the fifth forward, however groups are put together
    assert memory.startswith("rank 1: memory ran out")
    assert "MemoryError: Unable to allocate" in memory
    assert left == "rank 1 left before the run ended, without an error of its own; 1 death without a new checkpoint"
    assert "norm_span" in unplanned
    assert "search mine trial 4" in unplanned
    assert not search.run_folder(4).exists()
    first, second, third, fourth, last = (search.pids(number) for number in (0, 1, 2, 3, 5))
    assert second == third  # all ranks came to the end of that run: they are kept
    assert len({*first, *second, *fourth, *last}) == 8


@pytest.mark.slow
def test_a_trial_that_hangs_is_ended(searching_net):
    text = "space: {model.trouble: {kind: Categorical, choices: [none, hang]}}\nbudget: {trials: 2}\n"
    text += "enqueue: [{model.trouble: hang}, {model.trouble: none}]\n"
    search = searching_net(text, "--hang-after", 40)
    search.complete()
    hung, fine = search.trials()
    assert (hung.state, fine.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert hung.user_attrs["reason"].startswith("no update for 40 s, after update ")
    assert search.gone(search.pids(0))


def test_a_host_that_is_not_there_costs_no_trial(searching, tmp_path):
    login = tmp_path / "login"
    login.write_text("#!/bin/sh\necho no way to $1 >&2\nexit 255\n")
    login.chmod(0o755)
    search = searching(LONG + "budget: {trials: 3}\n", "-n", 2, "--hosts", "left,right")
    code, output = search.run(HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=str(login))
    assert code == 3, output
    assert "its ranks were not started on group 0" in output
    assert "is set aside: " in output
    assert "no way to " in output
    assert "kilobatch: 3 of 3 trials are left: group " in output
    assert "Traceback" not in output
    assert not [trial for trial in search.trials() if trial.state.is_finished()]
