"""What is told of a trial counts what other supervisors of the study have done."""

from optuna.trial import TrialState
from rich.console import Console

from recipes.search_space.open_search import open_search
from trainers.launch.vocabulary import search_vocabulary
from trainers.search.display import Display
from trainers.search.study import FOLDER, REASON, SECONDS, TrialResult, new_study, tell_complete
from trainers.search.trial_recorder import SearchOptions, TrialRecorder
from trainers.search.trial_run import Report


def recorder_of(opened, folder):
    """Of a new study in memory; with its display."""
    display = Display(search=opened.search, folder=folder, console=Console(quiet=True), groups=1)
    options = SearchOptions(folder=folder, stop_file=folder / "stop", hang_seconds=60.0)
    return TrialRecorder(opened, new_study(opened.search), options, display, before_tell=lambda trial: None), display


def test_trials_of_other_supervisors_count_and_may_be_the_best(tmp_path):
    recorder, display = recorder_of(open_search("digits", vocabulary=search_vocabulary()), tmp_path)
    study = recorder.study

    mine, theirs, running = study.ask(), study.ask(), study.ask()
    display.began(mine.number, {}, resumed=False)
    for trial in (theirs, running):
        trial.set_user_attr(FOLDER, f"trials/trial-{trial.number:04d}")
        trial.set_user_attr(SECONDS, 5.0)
    tell_complete(study, theirs, TrialResult(values=[0.9], violations={}))
    recorder.tell_failed(mine, "why")
    assert "trial 0 failed: why; best 90.00 % (trial 1); 2/24 trials" in (tmp_path / "log.txt").read_text()

    tell_complete(study, running, TrialResult(values=[0.95], violations={}))
    recorder.tell_failed(study.ask(), "why")
    assert "trial 3 failed: why; best 95.00 % (trial 2); 4/24 trials" in (tmp_path / "log.txt").read_text()


def test_a_pruned_trial_says_where(tmp_path):
    recorder, _ = recorder_of(open_search("digits", vocabulary=search_vocabulary()), tmp_path)
    recorder.tell_pruned(recorder.study.ask(), 3)
    (trial,) = recorder.study.get_trials()
    assert (trial.state, trial.user_attrs[REASON]) == (TrialState.PRUNED, "pruned at report 3 of 10")


def test_reports_of_a_search_for_two_objectives_are_for_the_display_alone(tmp_path):
    """Optuna takes none."""
    text = "kilobatch: 1\nname: mine\nrecipe: digits/batch_256\nsampler: {kind: Random}\nbudget: {trials: 2}\n"
    text += "space: {optimizer.weight_decay: {kind: Float, low: 0.1, high: 1}}\n"
    (tmp_path / "mine.yaml").write_text(text + "objective: [{metric: loss, direction: minimize}, {metric: accuracy}]\n")
    recorder, _ = recorder_of(open_search(tmp_path / "mine.yaml", vocabulary=search_vocabulary()), tmp_path)
    trial = recorder.study.ask()
    recorder.report(trial, Report(number=1, value=0.5, epoch=1.0))
    assert recorder.reporting["metric"] == "accuracy"
    assert recorder.study.get_trials()[0].intermediate_values == {}
