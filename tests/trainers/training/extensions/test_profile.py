"""What `--profile` says where it writes nothing."""

from types import SimpleNamespace

from trainers.runs.phase_clock import PhaseClock
from trainers.training.extensions.profile import Profile


class Alone:
    """The communicator of a single rank."""

    rank, size = 0, 1

    def gather(self, what, root):
        return [what]


def test_a_run_that_ends_before_its_profile_begins_says_so(tmp_path, caplog):
    for end, written in ((8, False), (10, True)):
        clock, updater = PhaseClock(), SimpleNamespace(iteration=0)
        trainer = SimpleNamespace(
            updater=updater, stop_trigger=lambda trainer, end=end: trainer.updater.iteration == end
        )
        profile = Profile(tmp_path / "profile.json", clock, Alone(), updates=(9, 14))
        profile.initialize(trainer)
        for updater.iteration in range(1, end + 1):
            with clock("forward"):
                pass
            profile(trainer)
        profile.finalize()
        assert (tmp_path / "profile.json").is_file() == written
    assert caplog.messages == ["warning: the run ended before updates 9 to 13: no profile"]
