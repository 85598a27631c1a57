"""Which checkpoint of a resumed run is its best one, and that a run without a whole one does not lose its record."""

import json
import math
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from recipes.schema import Evaluation
from trainers.metrics import MacroF1
from trainers.runs.errors import RunFailed
from trainers.training.extensions.checkpoints import Checkpoints, better_of, read_together
from trainers.training.extensions.evaluation import Score


def kept_in(folder, **options):
    options = {"every": None, "evaluation": None, "metrics": None, "resumed": None} | options
    return Checkpoints(folder, writes=True, identity={}, **options)


@pytest.mark.parametrize("is_here", [True, False])
def test_the_best_checkpoint_of_a_branch_is_not_one_that_its_parent_has_kept(is_here, tmp_path, caplog):
    best = {"checkpoint": "update-000010", "accuracy": 0.9, "loss": 0.3}
    if is_here:
        (tmp_path / "update-000010").mkdir()
    resumed = {"update": 20, "best": best}
    kept = kept_in(tmp_path, resumed=resumed)
    assert kept.best == (best if is_here else None)
    assert ("the best checkpoint, update-000010 with accuracy 90.00 %, is not in" in caplog.text) == (not is_here)


@pytest.fixture
def resumed(tmp_path):
    """A run's folder with the record of one update."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"key": "train_loss", "update": 0}\n')
    return tmp_path


@pytest.mark.parametrize("damage", ["cut", "not mounted"])
def test_a_run_whose_checkpoints_cannot_be_read_does_not_begin_again(resumed, damage):
    checkpoint = resumed / "checkpoints" / "update-000001"
    if damage == "cut":
        checkpoint.mkdir()
    else:
        checkpoint.symlink_to("/mnt/not/there")
    with pytest.raises(RunFailed, match=r"has update-000001, and none is a whole checkpoint.*bring the checkpoints"):
        read_together(resumed, MPI.COMM_SELF)


@pytest.mark.parametrize("folder", ["empty", "away"])
def test_a_run_whose_checkpoints_were_moved_away_does_not_begin_again(resumed, folder):
    with (resumed / "metrics.jsonl").open("a") as file:
        file.write('{"key":"checkpoint","value":"update-000001","update":1}\n')
    if folder == "away":
        (resumed / "checkpoints").rmdir()
    with pytest.raises(RunFailed, match=r"has lost its checkpoints.*bring the checkpoints back"):
        read_together(resumed, MPI.COMM_SELF)


@pytest.mark.parametrize("lost", ["the folder of checkpoints", "updates that the trace has", "all but the trace"])
def test_a_run_that_has_lost_metrics_with_its_checkpoints_does_not_begin_again(resumed, lost):
    (resumed / "run.yaml").touch()
    if lost == "the folder of checkpoints":
        (resumed / "checkpoints").rmdir()
    else:
        (resumed / "trace.jsonl").write_text("".join(f'{{"update":{update}}}\n' for update in range(3)))
    if lost != "updates that the trace has":
        (resumed / "metrics.jsonl").unlink()
    with pytest.raises(RunFailed, match=r"has lost its checkpoints.*bring the checkpoints back"):
        read_together(resumed, MPI.COMM_SELF)


@pytest.mark.parametrize("there", ["no checkpoint", "no record", "a trace", "a copy", "nothing"])
def test_a_run_that_loses_nothing_begins_at_0(resumed, there):
    if there == "no record":
        (resumed / "checkpoints" / "update-000001").mkdir()
        (resumed / "metrics.jsonl").unlink()
    elif there == "a trace":  # of a run that was killed before its first checkpoint, and between two lines
        (resumed / "run.yaml").touch()
        (resumed / "trace.jsonl").write_text('{"update":0}\n{"update":1}\n')
    elif there == "a copy":
        (resumed / "checkpoints" / "update-000001.bak").mkdir()
    elif there == "nothing":
        (resumed / "checkpoints").rmdir()
        (resumed / "metrics.jsonl").unlink()
    path, content, own, complaints = read_together(resumed, MPI.COMM_SELF)
    assert (path, content, own) == (None, None, {})
    assert len(complaints) == (there == "no record")


def test_checkpoints_that_cannot_be_listed_end_all_ranks(resumed):
    (resumed / "checkpoints").rmdir()
    (resumed / "checkpoints").symlink_to("checkpoints")
    with pytest.raises(RunFailed, match="checkpoints cannot be read: Too many levels of symbolic links"):
        read_together(resumed, MPI.COMM_SELF)


def test_a_state_with_keys_that_a_resumed_run_would_not_get_is_refused_in_new_runs(tmp_path):
    def states(resumed):
        kept = kept_in(tmp_path, resumed=resumed)
        kept.extensions.append(SimpleNamespace(state={1: 0}))
        return kept.states()

    with pytest.raises(ValueError, match="attribute `state` of SimpleNamespace holds a dict with the key 1, a int; "):
        states(None)
    assert states({"best": None, "update": 4}) == [{"1": 0}]


@pytest.mark.mpi
def test_a_checkpoint_that_only_a_stop_has_caused_is_never_the_best(kilobatch, tmp_path):
    def train(name, stop_after, *more):
        words = ("train", "digits/baseline", "--no-report", "--out", tmp_path / name, "--stop-after", stop_after)
        changes = ("model.width=4", "batch.global=32", "learning_rate.warmup=null", "evaluation.every=2up")
        changes += ("learning_rate.schedule={kind: MultiStep, boundaries: [14up], factor: 500}",)  # falls back at once
        words += ("--checkpoint-every", "8up", *(word for change in changes for word in ("--set", change)), *more)
        done = kilobatch(*words, ranks=1)
        assert done.returncode == 0, done.stderr
        state = json.loads(
            (tmp_path / name / "checkpoints" / f"update-{stop_after[:-2]:>06}" / "state.json").read_text()
        )
        return state, [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    train("stopped", "14up")
    (resumed, _), (whole, lines) = train("stopped", "16up", "--resume"), train("whole", "16up")
    scores = {line["update"]: line["value"] for line in lines if line["key"] == "eval_accuracy"}
    assert scores[14] > max(scores[8], scores[16])
    assert resumed == whole
    assert resumed["best"]["accuracy"] == max(scores[8], scores[16])


class CalibrationError:
    higher_is_better = False


@pytest.mark.parametrize(
    ("by", "best"),
    [("accuracy", 2), ("loss", 3), ("macro_f1", 1), ("calibration_error", 4)],
)
def test_the_best_checkpoint_is_that_of_the_score_which_the_recipe_names(by, best):
    """The accuracy of two is equal: the first stays. A score that is no number is never the best."""
    settings = Evaluation(metrics=(MacroF1(), CalibrationError()), best=by)
    figures = ((0.5, 0.9, 0.8, 0.2), (0.7, 0.8, 0.6, 0.3), (0.7, 0.4, 0.7, math.nan), (0.6, 0.5, 0.7, 0.1))
    kept = None
    for update, (accuracy, loss, macro_f1, calibration_error) in enumerate(figures, start=1):
        of_metrics = {"macro_f1": macro_f1, "calibration_error": calibration_error}
        score = Score(accuracy=accuracy, loss=loss, num_samples=10, figures=of_metrics)
        kept = better_of(kept, f"update-{update:06d}", score, settings)
    assert kept["checkpoint"] == f"update-{best:06d}"


def test_the_best_one_of_a_run_from_before_its_recipe_could_name_a_metric_counts_no_more():
    old = {"checkpoint": "update-000001", "accuracy": 0.9, "loss": 0.3}
    score = Score(accuracy=0.8, loss=0.5, num_samples=10, figures={"macro_f1": 0.1})
    settings = Evaluation(metrics=(MacroF1(),), best="macro_f1")
    assert better_of(old, "update-000002", score, settings)["checkpoint"] == "update-000002"
