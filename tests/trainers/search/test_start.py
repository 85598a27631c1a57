"""What is refused before a search starts, and what a dry run prints: space, first trial, samples and time."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from recipes.errors import InputRefused, RecipeError
from trainers.search import start
from trainers.search.outcome import SearchRequest
from trainers.search.start import _search_study, search
from trainers.search.study import new_study, next_trial

TEXT = """\
objective: [{metric: accuracy}, {metric: device_hours}]
budget: {trials: 6, hours: 2, device_hours: 4}
space:
  optimizer.weight_decay: {kind: Float, low: 1e-5, high: 1e-2, log: true}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 3, learning_rate.warmup.epochs: 1}
constraints: [{metric: loss, at_most: 0.5}, {value: optimizer.weight_decay * 2, at_least: 1e-5}]
enqueue: [recipe]
ranks_per_trial: 2
"""


def test_a_dry_run_prints_on_one_rank_the_space_the_first_trial_and_what_it_takes(open_text, capsys, monkeypatch):
    open_text(TEXT)
    request = SearchRequest(search="mine.yaml", workers=6, dry_run=True)
    monkeypatch.setenv("PMI_SIZE", "6")
    outputs = []
    for rank in range(2):
        monkeypatch.setenv("PMI_RANK", str(rank))
        assert search(request) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[1] == ""
    assert outputs[0].splitlines() == [
        "search mine over digits/batch_256: accuracy, device_hours",
        "tuned: optimizer.weight_decay Float: low 1e-05, high 0.01, log true",
        "tuned: optimizer.kind Categorical: choices [MomentumSGD, Lars]",
        "tuned: optimizer.trust_coefficient Float: low 0.001, high 0.1, log true, when {optimizer.kind [Lars]}",
        "fixed: epochs 3, learning_rate.warmup.epochs 1",
        "first trial: optimizer.weight_decay 0.0001, optimizer.kind MomentumSGD; 18 updates, 4,608 samples",
        "6 trials: 27,648 samples, if all are as long as the first",
        "3 trials side by side, 2 ranks each; time: not planned: cluster laptop describes no hardware; "
        "`kilobatch probe` measures it on this machine or allocation and writes a cluster's file",
    ]


def test_on_a_cluster_with_rates_a_dry_run_has_the_time_of_the_plan(open_text, write_cluster, capsys):
    open_text("budget: {trials: 5}\nfixed: {epochs: 3, learning_rate.warmup.epochs: 1}\n" + SPACE)
    rate = {"model": "SmallResNet", "micro_batch_size": 256, "samples_per_second": 460.8, "scored_per_second": 1e9}
    write_cluster(Path("two.yaml"), rate)
    assert search(SearchRequest(search="mine.yaml", workers=2, dry_run=True, cluster="two.yaml")) == 0
    said = "2 trials side by side, 1 rank each; time: 45.0 s, with 15.0 s a run on two\n"  # with 5 s to start
    assert capsys.readouterr().out.endswith(said)


def test_a_dry_run_of_fixed_values_that_need_the_space(open_text, capsys):
    space = "space: {optimizer.kind: {kind: Categorical, choices: [Adam, Lamb]}}\n"
    open_text(f"{space}fixed: {{optimizer.beta1: 0.8}}\nbudget: {{trials: 2}}\nconfirm: {{top: 3}}\n")
    assert search(SearchRequest(search="mine.yaml", workers=1, dry_run=True)) == 0
    output = capsys.readouterr().out
    assert "fixed: optimizer.beta1 0.8\n" in output
    assert "\n2 trials, 12 runs with all seeds: " in output  # of the two each five more
    assert "\nconfirm: 10 of these runs, " in output


def test_values_of_the_recipe_that_may_have_to_follow_are_warned_of_by_a_dry_run_and_in_the_log(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    warmup = "  warmup:\n    kind: GradualWarmup\n    epochs: 2\n    target_batch: 64  # team/best.yaml:30\n"
    rate = f"learning_rate:\n  reference: 0.05\n  per: 32\n{warmup}  schedule:\n    kind: Cosine\n"
    head = "kilobatch: 1\ndataset: digits\nmodel: {kind: SmallResNet}\nepochs: 6\nbatch: {global: 64}\n"
    optimizer = "optimizer: {kind: MomentumSGD, momentum: 0.9}\n"
    Path("best.yaml").write_text(f"{head}{optimizer}{rate}    epochs: 6  # pack 0123456789ab/recipe.yaml:32\n")
    space = "space: {batch.global: {kind: Categorical, choices: [64, 128]}}\n"
    text = f"kilobatch: 1\nrecipe: best.yaml\n{space}budget: {{trials: 2}}\n"
    names = ["learning_rate.schedule.epochs", "learning_rate.warmup.target_batch"]
    for fixed, number in ((3, 0), (6, 1)):  # six epochs are those that it has
        Path("mine.yaml").write_text(f"{text}fixed: {{epochs: {fixed}}}\n")
        assert search(SearchRequest(search="mine.yaml", workers=1, dry_run=True)) == 0
        lines = capsys.readouterr().err.splitlines()
        assert [line.split()[2] for line in lines] == names[number:]
    monkeypatch.setattr(start, "_search_study", lambda supervisor: 0)
    search(SearchRequest(search="mine.yaml", workers=1, out=Path("out")))
    (line,) = Path("out/log.txt").read_text().splitlines()
    assert f" warning: {names[1]} " in line


def test_a_search_of_which_no_trial_reached_its_target_says_so_and_prints_no_error(open_text, supervised, capsys):
    text = "objective: {metric: updates_to, target: 0.9}\nbudget: {trials: 1}\n"
    opened = open_text(text + SPACE)
    study = new_study(opened.search)
    study.add_trial(create_trial(state=TrialState.PRUNED))
    assert _search_study(supervised(opened, study)) == 3
    written = capsys.readouterr()
    assert written.err == ""
    assert "no trial reached the target" in written.out
    dry = SearchRequest(search="mine.yaml", workers=1, dry_run=True)
    assert search(dry) == 0
    assert "1 trial at a time, 1 rank each; time: not planned: " in capsys.readouterr().out


def test_the_command_that_trains_the_best_recipe_has_the_options_of_the_search(open_text, supervised, capsys):
    opened = open_text(f"objective: {{metric: accuracy}}\nbudget: {{trials: 1}}\n{SPACE}")
    study = new_study(opened.search)
    space = {"learning_rate.reference": FloatDistribution(0.01, 0.5)}
    study.add_trial(create_trial(value=0.9, params=dict.fromkeys(space, 0.1), distributions=space))
    given = {"data": Path("my data"), "cluster": "laptop", "device": "cpu", "allow_code": True}
    options = ".yaml --data 'my data' --cluster laptop --device cpu --allow-code"
    for own, end in (({}, ".yaml"), (given, options)):
        _search_study(supervised(opened, study, **own))
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "to train it: kilobatch train" in line)
        assert line.endswith(end)


HEAD = "kilobatch: 1\nrecipe: digits/batch_256\nbudget: {trials: 6}\nsampler: {kind: KIND}\n"
SPACE = "space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.5}}\n"
TWO = "objective: [{metric: accuracy}, {metric: loss}]\n"


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("CmaEsSampler", TWO, "CmaEsSampler cannot propose values of this search: .* multi-objective"),
        ("NSGAIISampler, population_size: 1", "", "mine.yaml:4:49: sampler.population_size: .* >= 2"),
        ("TPESampler, n_startup_trials: -1", "", "mine.yaml:4:47: sampler.n_startup_trials: .* >= 0"),
        ("TPESampler, group: true", "", "mine.yaml:4:36: sampler.group: is not possible; must be false unless"),
        ("BruteForceSampler", "", "BruteForceSampler cannot propose values of this search: .*step must be given"),
        pytest.param(
            "GPSampler",
            "",
            "GPSampler cannot propose values of this search: it needs PyTorch; pip install",
            marks=pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="PyTorch is installed"),
        ),
    ],
)
def test_a_sampler_is_refused_what_it_cannot_do_before_anything_is_written(tmp_path, kind, more, message):
    (tmp_path / "mine.yaml").write_text(HEAD.replace("KIND", kind) + SPACE + more)
    with pytest.raises(ValueError, match=message):
        search(SearchRequest(search=str(tmp_path / "mine.yaml"), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_more_ranks_than_all_trials_of_the_budget_need_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="-n: 99,999,999,999 ranks are more than all 24 trials .* at most 24$"):
        search(SearchRequest(search="digits", workers=99_999_999_999, out=tmp_path / "out"))
    assert search(SearchRequest(search="digits", workers=24, out=tmp_path / "out", dry_run=True)) == 0
    assert not (tmp_path / "out").exists()


def test_trials_on_other_ranks_than_the_replicas_of_local_steps_are_refused(tmp_path):
    local = "fixed: {updater.local_steps: {every: 4, replicas: 2}}\n"
    (tmp_path / "mine.yaml").write_text(HEAD.replace("KIND", "TPESampler") + SPACE + local)
    with pytest.raises(RecipeError, match="trains 2 replicas .*, or `ranks_per_trial: 2` in a search"):
        search(SearchRequest(search=str(tmp_path / "mine.yaml"), out=tmp_path / "out"))


def test_a_dry_run_refuses_what_names_no_storage():
    with pytest.raises(RecipeError, match="--storage: mongo is no storage of a study, or no URL; give sqlite"):
        search(SearchRequest(search="digits", workers=1, dry_run=True, storage="mongo"))


def test_a_search_goes_on_without_its_prior_once_all_that_is_drawn_from_it_is_enqueued(
    open_text, monkeypatch, tmp_path
):
    monkeypatch.setattr(start, "_search_study", lambda supervisor: len(supervisor.study.trials))
    (tmp_path / "known.yaml").write_text("kilobatch: 1\nextends: digits/batch_256\n")
    request = SearchRequest(search="mine.yaml", out=tmp_path / "out")

    def trials_of(budget):
        open_text(f"budget: {{trials: {budget}}}\nprior: {{recipe: known.yaml, draws: 2}}\n{SPACE}")
        return search(request)

    assert trials_of(1) == 1
    with pytest.raises(RecipeError, match="out: is the folder of the search mine; .* by its own file or name"):
        search(replace(request, search=str(tmp_path / "out")))
    (tmp_path / "known.yaml").unlink()
    assert trials_of(1) == 1
    with pytest.raises(RecipeError, match="known.yaml"):
        trials_of(2)


def test_device_hours_that_an_older_version_measured_are_warned_of(open_text, monkeypatch, tmp_path, capsys):
    def one_more(supervisor):
        supervisor.study.tell(next_trial(supervisor.study, supervisor.search), 0.5)

    monkeypatch.setattr(start, "_search_study", one_more)
    request, record = SearchRequest(search="mine.yaml", out=tmp_path / "out"), tmp_path / "out" / "search.yaml"
    open_text(f"objective: {{metric: device_hours}}\nbudget: {{trials: 9}}\n{SPACE}")
    for _ in range(2):
        search(request)
    assert "warning" not in capsys.readouterr().err
    record.write_text(record.read_text().replace("device_hours: of training\n", ""))
    search(request)
    warning = f"warning: {record.parent} was begun by an older version: device_hours of the"
    assert f"kilobatch: {warning}" in capsys.readouterr().err
    assert (record.parent / "log.txt").read_text().count(warning) == 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_search_that_goes_on_is_not_checked_as_a_new_one(open_text, monkeypatch, tmp_path, resume):
    monkeypatch.setattr(start, "_search_study", lambda supervisor: 0)
    open_text(f"budget: {{trials: 1}}\n{SPACE}")
    request = SearchRequest(search="mine.yaml", out=tmp_path / "out")
    search(request)
    kinds = []
    monkeypatch.setattr(start, "require_startable", lambda opened, *, is_new, **how: kinds.append(is_new) or [])
    search(replace(request, resume=resume))
    search(replace(request, out=tmp_path / "next", goes_on=True))  # of a frontier
    assert kinds == [False, False]


def test_a_search_checks_its_recipe_for_the_device_on_which_trials_train(tmp_path, monkeypatch):
    def refuse(opened, *, on_gpu, **how):
        raise InputRefused(f"checked for {'gpu' if on_gpu else 'cpu'}")

    own = SimpleNamespace(plan=SimpleNamespace(cluster=SimpleNamespace(device="gpu")))  # no GPU is needed
    monkeypatch.setattr(start, "prepare", lambda request, workers: own)
    monkeypatch.setattr(start, "require_startable", refuse)
    with pytest.raises(InputRefused, match="checked for gpu"):
        search(SearchRequest(search="digits", device="gpu", out=tmp_path / "out"))
