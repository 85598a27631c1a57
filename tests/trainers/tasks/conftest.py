"""Runs on images that a test has drawn."""

import shutil

import pytest


@pytest.fixture(scope="session")
def train_images(kilobatch):
    """`train_images(folder, dataset, changes)`: trains `recipe.yaml` on `images.yaml` into `run`, all in the folder."""

    def train(folder, dataset, changes):
        (folder / "images.yaml").write_text(dataset)
        (folder / "recipe.yaml").write_text(
            f"kilobatch: 1\nextends: digits/baseline\ndataset: images.yaml\n{changes}"
            "augmentation: {train: [{kind: Normalize, with: images}], eval: [{kind: Normalize, with: images}]}\n"
        )
        done = kilobatch("train", folder / "recipe.yaml", "--no-report", "--out", folder / "run", ranks=1)
        assert done.returncode == 0, done.stderr
        return folder

    return train


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run of the fixture `trained`."""
    return shutil.copytree(trained / "run", tmp_path / "run")
