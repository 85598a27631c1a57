"""What is told of a trial counts what other supervisors of the study have done."""

from rich.console import Console

from recipes.open_search import open_search
from trainers.search.display import Display
from trainers.search.job import Ending
from trainers.search.outcome import Outcome
from trainers.search.search_options import SearchOptions
from trainers.search.study import FOLDER, SECONDS, new_study, tell_complete
from trainers.search.telling import Telling
from trainers.vocabulary import search_vocabulary


def test_trials_of_other_supervisors_count_and_may_be_the_best(tmp_path):
    opened = open_search("digits", vocabulary=search_vocabulary())
    study = new_study(opened.search)
    display = Display(search=opened.search, folder=tmp_path, console=Console(quiet=True), groups=1)
    options = SearchOptions(folder=tmp_path, stop_file=tmp_path / "stop", hang_seconds=60.0)
    telling = Telling(opened, study, options, display, done=lambda trial: None)

    mine, theirs, running = study.ask(), study.ask(), study.ask()
    display.began(mine.number, {}, resumed=False)
    for trial in (theirs, running):
        trial.set_user_attr(FOLDER, f"trials/trial-{trial.number:04d}")
        trial.set_user_attr(SECONDS, 5.0)
    tell_complete(study, theirs, Outcome(values=[0.9], beyond={}))
    telling.failed(mine, Ending(how="failed", reason="why"))
    assert "trial 0 failed: why; best 90.00 % (trial 1); 2/24 trials" in (tmp_path / "log.txt").read_text()

    tell_complete(study, running, Outcome(values=[0.95], beyond={}))
    telling.failed(study.ask(), Ending(how="failed", reason="why"))
    assert "trial 3 failed: why; best 95.00 % (trial 2); 4/24 trials" in (tmp_path / "log.txt").read_text()
