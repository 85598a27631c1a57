"""`kilobatch branch` and `recipes ramp` on a small run: what a branch is, what is compared, what is refused."""

import json
import math
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from recipes.errors import InputRefused
from recipes.lint import lint_recipe
from recipes.planning.rates import batch_size_at, learning_rate_at
from recipes.reading.open import open_recipe
from recipes.reports.noise import noise_windows
from recipes.reports.record import open_run
from recipes.scale import step_changes
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.branch import (
    Branch,
    Branches,
    Branching,
    _checkpoint,
    _window,
    branches_text,
    epsilon_of,
    grown_recipe,
    measured_ramp,
    steps_of,
)


def branches(losses, epsilon=0.01, batch=32, epoch=4.0, run="a", folders=("runs/b",)):
    """The result where batches 32, 64, ... have these losses."""
    parts = []
    for number, loss in enumerate(losses):
        size = batch * 2**number
        facts = {"rate_factor": 2.0**number, "updates": 8, "accuracies": (), "folders": folders}
        parts.append(Branch(batch=size, losses=tuple(loss) if isinstance(loss, list) else (loss,), **facts))
    where = {"run": run, "update": 100, "epoch": epoch, "samples": 3200, "batch": batch, "window_samples": 512}
    return Branches(**where, epsilon=epsilon, epsilon_from="as asked", branches=tuple(parts))


@pytest.mark.parametrize(
    ("losses", "critical", "is_largest"),
    [
        ([0.5, 0.505, 0.52, 0.5], 256, True),  # the last is as good as the best of the smaller ones
        ([0.5, 0.505, 0.512, 0.511], 64, False),  # 0.512 is within epsilon of 0.505, and not of 0.5
        ([0.5, 0.4, 0.409, math.inf], 128, False),
        ([math.inf, math.inf], 32, False),
    ],
)
def test_the_critical_batch_is_the_largest_that_is_not_worse_than_any_smaller_one(losses, critical, is_largest):
    result = branches(losses)
    assert (result.critical.batch, result.is_largest) == (critical, is_largest)
    assert f"critical batch: {'at least ' * is_largest}{critical}" in branches_text(result)


def test_epsilon_is_twice_the_standard_error_of_a_difference_where_seeds_were_given():
    """Variances 0.02, 0.05 and 2 of two seeds: median 0.05, of a difference of means of two 0.05, its root 0.2236."""
    asked = Branching(run=Path("a"), batches=(64,), seeds=2)
    found = branches([[0.5, 0.7], [0.2, 0.2 + 0.1**0.5], [1.0, 3.0], [math.inf, 0.5]]).branches
    words = "twice the standard error of a difference over 2 seeds"
    assert epsilon_of(asked, found) == (pytest.approx(0.4472, abs=1e-4), words)
    assert epsilon_of(replace(asked, epsilon=0.3), found) == (0.3, "as asked")
    assert epsilon_of(asked, branches([0.5, 0.4]).branches)[0] == 0.01


def test_branches_are_read_as_they_were_written(tmp_path):
    result = branches([[0.5, 0.6], [math.inf, 0.5]])
    result.write(tmp_path)
    assert Branches.read(tmp_path) == result


@pytest.mark.parametrize(
    ("changes", "of_branch"),
    [
        *(({"branches": value}, {}) for value in ([], [5])),
        *(({"run": value}, {}) for value in (5, "a\0b")),
        *(({"epoch": value}, {}) for value in ("x", [1], math.nan)),
        ({"epsilon": "x"}, {}),
        *(({}, {"losses": value}) for value in ([], ["a"], [10**400])),
        *(({}, {"batch": value}) for value in ("x", 10**400)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_branches_that_no_command_wrote_are_refused(tmp_path, changes, of_branch):
    branches([[0.5, 0.6], [0.5]]).write(tmp_path)
    file = tmp_path / "branches.json"
    tree = json.loads(file.read_text())
    tree["branches"][-1] |= of_branch
    for text in (json.dumps(tree | changes), "{}", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(InputRefused, match=r"branches.json is not as `kilobatch branch` writes it"):
            Branches.read(tmp_path)


def test_next_commands_work_for_folders_with_spaces_and_name_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my run").mkdir()
    Path("my run/recipe.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    asked = Branching(run=Path("my run"), batches=(64,), data=Path("my data"), allow_code=True)
    with pytest.raises(InputRefused, match="has no checkpoint") as refused:
        _checkpoint(asked, open_recipe("digits/baseline", vocabulary=vocabulary()))
    result = branches([0.5, 0.5, 0.5], epoch=2.0, folders=("my branches/b",))
    said = [str(refused.value), grown_recipe(replace(asked, data=None), result, Path("twice.yaml"))]
    words = [shlex.split(text[text.index("kilobatch train") :])[2:] for text in said]
    ends = ["--stop-after", "0.5run", "--data", "my data", "--allow-code"]
    assert words == [
        ["my run/recipe.yaml", "--out", "ANOTHER", *ends],
        ["my branches/b/recipe.yaml", "--out", "my branches/b", "--resume", "--allow-code"],
    ]


@pytest.mark.parametrize(
    ("at", "has", "words"),
    [
        ("99ep", ("update-000020", "update-000938"), "ends at update 938; .*, here 20up .* --stop-after 0.5run"),
        ("10ep", ("update-000020", "update-000938"), "has no checkpoint after update 469; .* --stop-after 10ep"),
        ("10", ("update-000020",), "has no checkpoint after update 469; .* --stop-after 10$"),
        (None, ("update-000938",), "has no checkpoint before its end; train up to a place of it: .* 0.5run"),
    ],
)
def test_where_no_branch_can_begin_the_next_command_ends_where_one_can(tmp_path, at, has, words):
    for name in has:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    opened = open_recipe("digits/baseline", vocabulary=vocabulary())
    with pytest.raises(InputRefused, match=words):
        _checkpoint(Branching(run=tmp_path, batches=(64,), at=at), opened)


@pytest.mark.parametrize("window", ["0.5", "0.5ep", "750sp"])
def test_a_bare_number_of_a_window_counts_epochs(window):
    asked = Branching(run=Path("a"), batches=(64,), window=window)
    assert _window(asked, open_recipe("digits/baseline", vocabulary=vocabulary()), 32) == 750


def test_branches_survive_a_full_disk(tmp_path, largest_file):
    before = branches([0.5, 0.6])
    before.write(tmp_path)
    with largest_file(20), pytest.raises(OSError, match="File too large"):
        branches([0.5, 0.4]).write(tmp_path)
    assert Branches.read(tmp_path) == before


def test_a_branch_of_a_ramp_changes_nothing_but_the_batch_from_there_on(tmp_path):
    ramp = "batch: {global: [{from: 0, size: 96}, {from: 1, size: 192}], norm_span: [{from: 0, size: 32}, %s]}\n"
    text = f"kilobatch: 1\nextends: digits/ramp\n{ramp % '{from: 1, size: 64}'}"
    (tmp_path / "mine.yaml").write_text(f"{text}evaluation: {{norm_momentum: {{per: update}}}}\n")
    opened = open_recipe(tmp_path / "mine.yaml", vocabulary=vocabulary())
    for batch, moved in ((192, []), (384, ["batch.global", "batch.norm_span"])):
        steps = steps_of(opened, samples=1536 + 192, batch=batch)
        changes = [change for change in step_changes(opened, steps, "a branch") if change.moves]
        assert [change.key for change in changes] == moved
        values = [f"{change.key}={json.dumps(change.after)}" for change in changes]
        there = open_recipe(tmp_path / "mine.yaml", vocabulary=vocabulary(), overrides=values).recipe.batch
        found = [(there.global_(at), there.norm_span(at)) for at in (0.0, 1.1, 1.2)]
        assert found == [(96, 32), (192, 64), (batch, 64)]


@pytest.fixture(scope="module")
def parent(tmp_path_factory, kilobatch):
    """Batch 96 over 28 updates, and what `branch` says after 20 of them, at batches 96 and 192."""
    folder = tmp_path_factory.mktemp("branch")

    def succeeds(*words):
        done = kilobatch(*words, cwd=folder, ranks=1 if words[0] == "train" else None)
        assert done.returncode == 0, done.stderr
        assert words[0] != "branch" or re.fullmatch(r"(batch \d+: loss .*\n)+", done.stderr)
        return done.stdout

    ramp = ("--set", "batch={global: 96, norm_span: 32}", "--set", "learning_rate.warmup.epochs=0.8")
    train = ("train", "digits/ramp", *ramp, "--no-report", "--noise-scale", "--exact", "--out", folder / "a")
    succeeds(*train, "--checkpoint-every", "10up", "--stop-after", "20up")
    early = kilobatch("branch", folder / "a", "--batches", "192", "--at", "10up", cwd=folder)
    assert "--at: epoch 0.64 lies in the warmup, whose rate does not follow the batch" in early.stderr
    words = ("--batches", "192", "--window", "8up", "--json", "-n", "1")
    result = json.loads(succeeds("branch", folder / "a", "--at", "20up", *words))
    ended = kilobatch(*train, "--stop-after", "28up", "--resume", "-n", "1", cwd=folder)
    assert re.search(r"\nnoise scale at batch 96: [0-9.]+ ± [0-9.]+ samples\n", ended.stdout), ended.stderr
    return folder, result


@pytest.mark.mpi
def test_a_branch_of_the_same_batch_is_the_run_and_one_of_twice_the_batch_goes_on_from_its_checkpoint(parent):
    folder, result = parent
    one, two = (open_run(folder / f"a-branches-20/batch-{size}-seed-0") for size in (96, 192))
    run = open_run(folder / "a")
    assert (one.updates.loss == run.updates.loss).all()
    assert (two.updates.loss[:20] == run.updates.loss[:20]).all()
    assert two.updates.global_batch_size[20:].tolist() == [192] * 4
    assert two.updates.samples[20] == 20 * 96
    assert two.updates.learning_rate[20] == pytest.approx(2 * one.updates.learning_rate[20])
    last = "checkpoints/update-000028/weights.safetensors"
    weights = load_file(folder / "a" / last)
    assert all((weights[path] == array).all() for path, array in load_file(one.folder / last).items()), "and momentum"
    assert [branch["updates"] for branch in result["branches"]] == [8, 4]
    for branch, run in zip(result["branches"], (one, two), strict=True):
        chosen = run.updates.samples >= 20 * 96 + 0.75 * 8 * 96
        assert branch["losses"] == [pytest.approx(float(run.updates.loss[chosen].mean()))]
        assert branch["accuracies"] == [run.final_accuracy]
        assert run.evaluations.update[-1] == len(run.updates)


@pytest.mark.mpi
def test_a_second_call_trains_nothing_and_one_that_was_cut_off_goes_on(parent, kilobatch):
    folder, result = parent
    branches, words = folder / "a-branches-20", ("--at", "20up", "--window", "8up", "--json", "-n", "1")
    before = (branches / "batch-96-seed-0/metrics.jsonl").read_bytes()
    shutil.rmtree(branches / "batch-192-seed-0")
    (branches / ".batch-192-seed-0.partial").mkdir()
    done = kilobatch("branch", "a", "--batches", "192", *words, cwd=folder)
    told = json.loads(done.stdout.replace('"a-branches-20', f'"{branches}'))
    assert told == result, "the run's folder is absolute, however it was named"
    assert (branches / "batch-96-seed-0/metrics.jsonl").read_bytes() == before
    longer = kilobatch("branch", folder / "a", "--batches", "192", "--at", "20up", "--window", "9up", cwd=folder)
    assert longer.returncode == 2
    assert "--window 9up: " in longer.stderr
    assert "a-branches-20 holds branches of 768 samples, and these would be of 864; give the" in longer.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--at", "3up", "--batches", "192"), "has no checkpoint after update 3; a run keeps the newest two and the"),
        (("--at", "soon", "--batches", "192"), "--at: 'soon' is not a position"),
        (("--batches", "64,abc"), "--batches abc is no batch"),
        (("--batches", "100"), "the batch of 100 from 1.792 on is no multiple of 32"),
        (("--batches", "192", "--window", "2up"), "fewer than 4 updates of 192; give --window 8up or more"),
        (("--at", "20up", "--batches", "32", "--window", "2up"), "192 samples are fewer than 4 updates of 96"),
        (("--batches", "192", "--window", "1run"), "go past the end of the run"),
        (("--batches", "192", "--window", "8up", "--at", "20up", "-n", "999"), "999 workers are more than the"),
    ],
)
def test_refused_before_anything_is_trained(parent, kilobatch, words, message):
    folder, _ = parent
    done = kilobatch("branch", folder / "a", *words, "--out", folder / "none", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder / "none").exists()


@pytest.mark.mpi
def test_an_optimizer_without_a_rule_is_refused_before_the_window(parent, kilobatch):
    folder, _ = parent
    other = shutil.copytree(folder / "a", folder / "muon")
    text = re.sub(r"\noptimizer:\n(  .*\n)+", "\noptimizer: {kind: Muon}\n", (other / "recipe.yaml").read_text())
    (other / "recipe.yaml").write_text(text)
    done = kilobatch("branch", other, "--batches", "192", "--window", "1up", cwd=folder)
    assert done.returncode == 2
    assert "no rule says how the rate of Muon follows the batch" in done.stderr


@pytest.mark.mpi
def test_a_batch_that_replicas_cannot_share_is_refused_before_anything_is_trained(parent, kilobatch):
    folder, _ = parent
    local = shutil.copytree(folder / "a", folder / "local")
    text, word = (local / "recipe.yaml").read_text(), "\nupdater:\n"
    (local / "recipe.yaml").write_text(text.replace(word, f"{word}  local_steps: {{every: 2, replicas: 3}}\n"))
    words = ("--at", "20up", "--window", "8up", "--batches", "64", "--out", folder / "none")
    done = kilobatch("branch", local, *words, cwd=folder)
    assert "a batch of 64 in norm groups of 32 cannot be shared evenly by 3 replicas" in done.stderr
    assert not (folder / "none").exists()


@pytest.mark.mpi
def test_the_end_of_a_run_is_no_place_to_branch(parent, kilobatch):
    folder, _ = parent
    ended = shutil.copytree(folder / "a", folder / "ended")
    text = (ended / "recipe.yaml").read_text().replace("\nepochs: 20\n", "\nepochs: 1.792\n")
    (ended / "recipe.yaml").write_text(text)
    done = kilobatch("branch", ended, "--batches", "192", cwd=folder)
    assert "ended ends at update 28; a run keeps the newest two and the best, here 20up (epoch 1.28)" in done.stderr
    words = ("--at", "20up", "--window", "8up", "--batches", "100")  # a window that ends with the run
    assert "the batch of 100 from 1.28 on is no multiple of 32" in kilobatch("branch", ended, *words, cwd=folder).stderr


def test_a_ramp_of_branches_stays_below_the_critical_batch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_checkpoints = {"early": ([0.5, 0.5, 0.6], 2.0), "late": ([0.4, 0.4, 0.4, 0.6], 5.0), "a": ([0.1], 0.0)}
    for name, (losses, epoch) in of_checkpoints.items():
        Path(name).mkdir()
        branches(losses, epoch=epoch).write(Path(name))
    Path("a/recipe.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    found = {"out": Path("grown.yaml"), "data": None, "allow_code": False}
    with pytest.raises(InputRefused, match="nothing allows twice the batch of 32: the critical batch is 64, and"):
        measured_ramp([Path("early")], **found)
    scaled = measured_ramp([Path("late"), Path("early")], **found)
    assert scaled.changes[0].after == [{"from": 0.0, "size": 32}, {"from": 5.0, "size": 64}]
    assert lint_recipe(Path("grown.yaml"), vocabulary=vocabulary()) == []


def test_a_ramp_of_branches_finds_their_run_by_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_checkpoints = {"early": (str(tmp_path / "a"), 2.0), "late": ("early/../a", 5.0)}
    for name, (run, epoch) in of_checkpoints.items():
        Path(name).mkdir()
        branches([0.4, 0.4, 0.4, 0.6], run=run, epoch=epoch).write(Path(name))
    found = {"out": Path("grown.yaml"), "data": None, "allow_code": False}
    with pytest.raises(InputRefused, match=r"^late/branches.json: its run, \S+/a, is not there; put it there, or"):
        measured_ramp([Path("late"), Path("early")], **found)
    Path("a").mkdir()
    Path("a/recipe.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    assert measured_ramp([Path("late"), Path("early")], **found).changes[0].after[-1] == {"from": 2.0, "size": 64}


@pytest.mark.mpi
def test_a_recipe_with_twice_the_batch_is_written_only_below_the_critical_batch(parent, monkeypatch):
    folder, _ = parent
    monkeypatch.chdir(folder)
    asked = Branching(run=Path("a"), batches=(192, 384))
    assert "is not above twice the batch, 192" in grown_recipe(asked, branches([0.5, 0.5], batch=96), Path("no.yaml"))
    assert not Path("no.yaml").exists()
    text = grown_recipe(asked, branches([0.5, 0.5, 0.5], batch=96, epoch=3200 / 1500), Path("twice.yaml"))
    assert text.startswith("wrote twice.yaml: batch 192 from epoch 2.13333 on; its branch goes on: kilobatch train ")
    own = grown_recipe(replace(asked, allow_code=True), branches([0.5, 0.5, 0.5], batch=96), Path("own.yaml"))
    assert (text.endswith(" --resume"), own.endswith(" --resume --allow-code")) == (True, True)
    recipe = open_recipe("twice.yaml", vocabulary=vocabulary()).recipe
    before = open_recipe("a/recipe.yaml", vocabulary=vocabulary()).recipe
    assert [batch_size_at(recipe, at) for at in (2.1, 2.2)] == [96, 192]
    for at, factor in ((0.5, 1), (2.1, 1), (2.2, 2), (10.0, 2)):
        assert learning_rate_at(recipe, at) == pytest.approx(factor * learning_rate_at(before, at))


@pytest.mark.mpi
def test_a_ramp_of_the_noise_scale_is_that_of_the_metrics(parent, monkeypatch):
    monkeypatch.chdir(parent[0])
    found = {"data": None, "allow_code": False}
    windows = noise_windows(open_run("a"))
    known = [w.scale.value for w in windows if w.scale is not None and w.scale.standard_error <= w.scale.value / 2]
    assert len(windows) == 2
    assert 64 < max(known) < 192
    bare = shutil.copytree(Path("a"), Path("bare"))
    recipe = (bare / "recipe.yaml").read_text()
    (bare / "recipe.yaml").write_text(recipe.replace("global: 96", "global: 32"))
    scaled = measured_ramp([bare], out=Path("noise.yaml"), **found)
    assert scaled.changes[0].after[-1]["size"] == 32 * 2 ** int(math.log2(min(max(known), 153) / 32))
    (bare / "metrics.jsonl").write_text((bare / "metrics.jsonl").read_text().replace("gradient_noise", "noise"))
    with pytest.raises(InputRefused, match="bare has no noise scale; train with --noise-scale"):
        measured_ramp([bare], out=None, **found)
    with pytest.raises(InputRefused, match="a and bare are two runs"):
        measured_ramp([Path("a"), bare], out=None, **found)
