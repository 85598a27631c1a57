"""Runs on a folder with images that cannot be decoded."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.mpi
BAD = ("train/a/01.png", "train/b/03.png", "train/b/04.png", "val/b/05.png")
MINE = """\
kilobatch: 1
extends: digits/large_batch
dataset: photos.yaml
batch: {global: 8, norm_span: 4}
learning_rate: {warmup: null}
model: {kind: SmallCNN, width: 4}
augmentation: {train: [{kind: RandomResizedCrop, size: 8}, {kind: HorizontalFlip}], eval: []}
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """`photos(policy)`: a recipe on 24 training images, of which 3 cannot be decoded."""
    folder = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in "ab":
            (folder / split / name).mkdir(parents=True)
            for number in range(12):
                pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number:02}.png")
    for name in BAD:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:60] + content[-12:])  # ends as a PNG does

    def recipe(policy, images=folder):
        beside = tmp_path_factory.mktemp("recipe")
        facts = f"reader: {{kind: ImageFolder}}\nroot: {images}\nchannels: 3\n"
        (beside / "photos.yaml").write_text(f"{facts}on_bad_image: {policy}\n")
        (beside / "mine.yaml").write_text(MINE)
        return str(beside / "mine.yaml")

    recipe.folder = folder
    return recipe


def skipped(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sorted((line["split"], line["index"]) for line in lines if line["key"] == "skipped_image")


def test_a_run_that_skips_is_the_same_on_1_2_and_3_ranks(tmp_path, photos, train, kilobatch):
    recipe = photos("skip")
    options = ("--exact", "--set", "evaluation.every=1ep")
    runs = [train(tmp_path / f"{n}", n, *options, recipe=recipe, stop_after=3) for n in (1, 2, 3)]
    for run in runs:
        assert [line["images_sha256"] for line in run.trace] == [line["images_sha256"] for line in runs[0].trace]
        for name, array in runs[0].weights.items():
            np.testing.assert_array_equal(run.weights[name], array)
        assert skipped(run.folder) == [("eval", 17), ("train", 1), ("train", 15), ("train", 16)]
        for name in BAD:
            assert run.log.count(name) == 1
    scored = kilobatch("evaluate", runs[0].folder, environment={"KILOBATCH_DECODER": "pillow"})
    assert scored.returncode == 0
    assert "images are decoded by pillow, in the run by turbo" in scored.stderr
    assert "sample 17 of eval is skipped" in scored.stderr
    assert kilobatch("report", runs[0].folder).returncode == 0
    assert "4 images could not be decoded" in (runs[0].folder / "report.html").read_text()


def test_a_run_ends_after_the_number_it_may_skip(tmp_path, photos, kilobatch):
    words = ("--out", tmp_path / "run", "--no-report", "--exact")
    done = kilobatch("train", photos("{stop_after: 2}"), *words, ranks=2)
    assert done.returncode == 3
    assert "images cannot be decoded, and on_bad_image stops after 2" in done.stderr
    assert "Last good checkpoint" in done.stderr


def test_a_run_that_a_bad_image_ended_goes_on_by_skipping_it(tmp_path, photos, kilobatch):
    """The bad image is one of the evaluation, after update 3."""
    images = tmp_path / "images"
    shutil.copytree(photos.folder, images)
    for name in BAD[:3]:
        shutil.copy(images / "train/a/00.png", images / name)
    words = ("--out", tmp_path / "run", "--no-report", "--exact", "--stop-after", "3up", "--checkpoint-every", "update")
    words += ("--set", "evaluation.every=1ep")
    done = kilobatch("train", photos("refuse", images), *words, ranks=1)
    assert done.returncode != 0
    assert "val/b/05.png" in done.stderr
    done = kilobatch("train", photos("skip", images), *words, "--resume", ranks=1)
    assert done.returncode == 0, done.stderr
    assert "resuming from update-000002" in done.stdout
    assert skipped(tmp_path / "run") == [("eval", 17)]
    assert done.stdout.count("warning: sample 17 of eval is skipped: ") == 1
