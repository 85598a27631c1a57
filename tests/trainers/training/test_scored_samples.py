"""Scored samples are written into the run's own folder only."""

import numpy as np
import pytest

from trainers.runs.run_folder import FolderRefused
from trainers.training.scored_samples import write_samples


def test_scored_samples_are_not_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "run" / "evaluation").symlink_to(tmp_path / "other")
    with pytest.raises(FolderRefused, match="evaluation is a link that leads out of the run's folder"):
        write_samples(tmp_path / "run", np.zeros((1, 3)), recipe=None, dataset=None, reached={})
