"""Which checkpoint of a resumed run is its best one."""

import pytest

from trainers.training.extensions.checkpoints import Checkpoints


@pytest.mark.parametrize("is_here", [True, False])
def test_the_best_checkpoint_of_a_branch_is_not_one_that_its_parent_has_kept(is_here, tmp_path, caplog):
    best = {"checkpoint": "update-000010", "accuracy": 0.9, "loss": 0.3}
    if is_here:
        (tmp_path / "update-000010").mkdir()
    resumed = {"update": 20, "best": best}
    kept = Checkpoints(tmp_path, writes=True, evaluation=None, metrics=None, resumed=resumed, identity={})
    assert kept.best == (best if is_here else None)
    assert ("the best checkpoint, update-000010 with accuracy 90.00 %, is not in" in caplog.text) == (not is_here)
