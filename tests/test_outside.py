"""Nothing of a user's lies in the checkout: model, recipe, data and runs are in a folder of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parent.parent
MODEL = """\
import chainer
import chainer.functions as F
import chainer.links as L

class MyNet(chainer.Chain):
    def __init__(self, width: int, num_classes: int, channels: int):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(channels, width, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(width)
            self.output = L.Linear(width, num_classes)

    def forward(self, images):
        return self.output(F.average(F.relu(self.norm(self.conv(images))), axis=(2, 3)))
"""
DATASET = """\
name: colours
title: Reddish and bluish squares
source: written by a test
root: photos
reader: {kind: ImageFolder}
num_train: 48
num_eval: 20
num_classes: 2
channels: 3
mean: [0.5, 0.5, 0.5]
std: [0.25, 0.25, 0.25]
"""
RECIPE = """\
kilobatch: 1
dataset: colours.yaml
model: {kind: mymodule.MyNet, width: 6}
epochs: 6
batch: {global: 16, norm_span: 8}
learning_rate: {reference: 0.2, per: 16, schedule: {kind: Cosine}}
optimizer: {kind: MomentumSGD, momentum: 0.9}
loss: {kind: SoftmaxCrossEntropy}
augmentation:
  train: [{kind: RandomResizedCrop, size: 12}, {kind: HorizontalFlip}, {kind: Normalize, with: colours}]
  eval: [{kind: Resize, shorter: 12}, {kind: CenterCrop, size: 12}, {kind: Normalize, with: colours}]
evaluation: {every: 1ep, norm_statistics: pooled}
"""


def write_photos(root):
    """JPEGs of two classes and of several sizes."""
    bits = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 10)):
        for label, name in enumerate(("blue", "red")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = bits.integers(14, 24, 2)
                image_HWC = bits.integers(0, 120, (height, width, 3))
                image_HWC[..., 2 - 2 * label] += 100
                Image.fromarray(image_HWC.astype(np.uint8)).save(root / split / name / f"{number}.jpg", quality=92)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    write_photos(folder / "photos")
    for name, text in (("mymodule.py", MODEL), ("colours.yaml", DATASET), ("mine.yaml", RECIPE)):
        (folder / name).write_text(text)
    (folder / "recipes").mkdir()  # the name of a package of ours; a user's folder may have it
    (folder / "recipes" / "__init__.py").write_text("raise ImportError('not ours')\n")
    return folder


def kilobatch(folder, *words, code=0):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Path(sys.executable).parent / "kilobatch"
    done = subprocess.run(
        [script, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


WORDS = ("--allow-code", "--trace", "--no-report", "--decoder", "pillow")


@pytest.fixture(scope="module")
def run(folder):
    """The folder of a whole run on two ranks."""
    assert "finished: 18 of 18 updates" in kilobatch(folder, "train", "mine.yaml", *WORDS, "-n", 2, "--out", "out")
    return folder / "out"


def test_own_model_recipe_and_photos_train_evaluate_and_report(folder, run):
    checkout = set(ROOT.iterdir())
    assert "mine.yaml: valid" in kilobatch(folder, "recipes", "validate", "mine.yaml", "--allow-code")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracy = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert accuracy[-1] >= 0.9
    scores = json.loads(kilobatch(folder, "evaluate", "out", "--allow-code", "--json"))
    assert (scores["accuracy"], scores["num_samples"]) == (accuracy[-1], 20)
    assert "wrote page.html" in kilobatch(folder, "report", "out", "-o", "page.html")
    assert "mymodule.MyNet" in (folder / "page.html").read_text()
    assert set(ROOT.iterdir()) == checkout


def test_the_same_run_on_three_ranks_from_a_folder_that_moved(folder, run, tmp_path):
    (tmp_path / "photos").symlink_to(folder / "photos")
    words = (*WORDS, "--stop-after", "4up", "--data", tmp_path / "photos", "-n", 3, "--out", "moved")
    kilobatch(folder, "train", "mine.yaml", *words)
    assert json.loads((folder / "moved" / "environment.json").read_text())["decoder"] == "pillow"
    three, two = ((path / "trace.jsonl").read_text().splitlines() for path in (folder / "moved", run))
    assert (len(three), three) == (4, two[:4])


def test_own_code_needs_the_flag(folder):
    output = kilobatch(folder, "train", "mine.yaml", "--out", "unflagged", code=2)
    assert "mine.yaml:3:" in output
    assert "--allow-code" in output
    assert not (folder / "unflagged").exists()


def test_a_photo_that_is_damaged_in_the_middle_ends_the_run_and_is_named_with_rank_and_sample(folder, tmp_path):
    write_photos(tmp_path / "photos")
    (tmp_path / "photos" / "train" / "red" / "8.jpg").unlink()
    damaged = tmp_path / "photos" / "train" / "red" / "8.png"
    Image.effect_noise((64, 64), 50).convert("RGB").save(damaged)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    words = ("--allow-code", "-n", 2, "--data", tmp_path / "photos", "--out", "damaged")
    output = kilobatch(folder, "train", "mine.yaml", *words, code=3)
    ids = sorted(str(path) for path in (tmp_path / "photos" / "train").glob("*/*"))
    why = rf"not a readable image \(.+\); it is sample {ids.index(str(damaged))}: .+ `on_bad_image: skip`"
    message = rf"^rank [01] on \S+ failed:\n{re.escape(str(damaged))}: {why}"
    assert re.search(message, output, re.MULTILINE), output
    assert "Traceback" not in output


def test_a_broken_photo_is_named_before_the_run(folder, tmp_path):
    write_photos(tmp_path / "photos")
    broken = tmp_path / "photos" / "train" / "red" / "7.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    words = ("--allow-code", "-n", 2, "--data", tmp_path / "photos", "--out", "broken")
    output = kilobatch(folder, "train", "mine.yaml", *words, code=2)
    assert "1 of its files cannot be read; replace or remove them" in output
    assert re.search(rf"^{re.escape(str(broken))}: not a readable image \(.+\)$", output, re.MULTILINE), output
    assert not (folder / "broken").exists()
    assert "Traceback" not in output
