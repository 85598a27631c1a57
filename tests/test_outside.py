"""A stranger's day with an installation: model, augmentation, images, recipes and runs lie in a folder of their own."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parent.parent
# Runs a command on a host of another name, where Linux lets users do so.
ELSEWHERE = ("unshare", "--uts", "--map-root-user", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
RENAMES = bool(shutil.which("unshare")) and subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode == 0
MODEL = """\
from dataclasses import dataclass

import chainer
import chainer.functions as F
import chainer.links as L

class MyNet(chainer.Chain):
    def __init__(self, width: int, num_classes: int, channels: int):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(channels, width, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(width)
            self.fc = L.Linear(width, num_classes)

    def forward(self, images):
        return self.fc(F.average(F.relu(self.norm(self.conv(images))), axis=(2, 3)))

@dataclass(frozen=True, kw_only=True)
class Darken:
    least: float

    def __call__(self, image_HWC, draws):
        return (image_HWC * (self.least + (1 - self.least) * draws.uniform())).astype(image_HWC.dtype)
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
  train:
    - {kind: RandomResizedCrop, size: 12}
    - {kind: HorizontalFlip}
    - {kind: mymodule.Darken, least: 0.8}
    - {kind: Normalize, with: colours}
  eval: [{kind: Resize, shorter: 12}, {kind: CenterCrop, size: 12}, {kind: Normalize, with: colours}]
evaluation: {every: 1ep, norm_statistics: pooled}
"""
IMAGENET3 = """\
name: imagenet3
root: imagenet3
reader: {kind: ImageFolder}
channels: 3
mean: [0.485, 0.456, 0.406]
std: [0.229, 0.224, 0.225]
subset_of: imagenet
"""
FINE = """\
kilobatch: 1
extends: mine.yaml
dataset: imagenet3.yaml
epochs: 2
init: {weights: colours.safetensors, except: [fc]}
augmentation:
  train: [{kind: RandomResizedCrop, size: 12}, {kind: HorizontalFlip}, {kind: Normalize, with: imagenet3}]
  eval: [{kind: Resize, shorter: 12}, {kind: CenterCrop, size: 12}, {kind: Normalize, with: imagenet3}]
"""
FILES = {
    "mymodule.py": MODEL,
    "colours.yaml": DATASET,
    "mine.yaml": RECIPE,
    "imagenet3.yaml": IMAGENET3,
    "fine.yaml": FINE,
}


def write_photos(root, classes=("blue", "red")):
    """JPEGs of several sizes; the channel of a class is brighter."""
    bits = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 10)):
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = bits.integers(14, 24, 2)
                image_HWC = bits.integers(0, 120, (height, width, 3))
                image_HWC[..., 2 - label] += 100
                Image.fromarray(image_HWC.astype(np.uint8)).save(root / split / name / f"{number}.jpg", quality=92)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    write_photos(folder / "photos")
    write_photos(folder / "imagenet3", ("n01440764", "n01443537", "n01484850"))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "recipes").mkdir()  # the name of a package of ours; a user's folder may have it
    (folder / "recipes" / "__init__.py").write_text("raise ImportError('not ours')\n")
    return folder


@pytest.fixture(scope="module")
def kilobatch(folder, installation):
    """Runs a command of the installation in the folder, and returns what it prints."""

    def run(*words, code=0, cwd=folder, before=()):
        command = [*before, installation / "kilobatch", *map(str, words)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


WORDS = ("--allow-code", "--trace", "--no-report", "--decoder", "pillow")


@pytest.fixture(scope="module")
def run(folder, kilobatch):
    """The folder of a whole run on two ranks."""
    assert "finished: 18 of 18 updates" in kilobatch("train", "mine.yaml", *WORDS, "-n", 2, "--out", "out")
    return folder / "out"


def test_own_model_recipe_and_photos_train_evaluate_and_report(folder, run, kilobatch):
    checkout = set(ROOT.iterdir())
    assert "mine.yaml: valid" in kilobatch("recipes", "validate", "mine.yaml", "--allow-code")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracy = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert accuracy[-1] >= 0.9
    scores = json.loads(kilobatch("evaluate", "out", "--allow-code", "--json"))
    assert (scores["accuracy"], scores["num_samples"]) == (accuracy[-1], 20)
    assert "wrote page.html" in kilobatch("report", "out", "-o", "page.html")
    assert "mymodule.MyNet" in (folder / "page.html").read_text()
    assert set(ROOT.iterdir()) == checkout


@pytest.mark.slow
def test_a_stopped_run_goes_on_elsewhere_on_three_ranks_to_the_same_bits(folder, run, tmp_path, kilobatch):
    output = kilobatch("train", "mine.yaml", *WORDS, "-n", 2, "--stop-after", "5up", "--out", "cut")
    assert "stopped: 5 of 18 updates" in output
    shutil.move(folder / "cut", tmp_path / "there")
    shutil.copytree(folder / "photos", tmp_path / "pictures")
    words = ("there/recipe.yaml", *WORDS, "-n", 3, "--out", "there", "--resume", "--data", "pictures")
    output = kilobatch("train", *words, cwd=tmp_path, before=ELSEWHERE if RENAMES else ())
    assert "own code from the copy of a run: mymodule.py" in output
    environment = json.loads((tmp_path / "there" / "environment.json").read_text())
    assert environment["decoder"] == "pillow"
    host = "elsewhere" if RENAMES else os.uname().nodename
    assert [rank["host"] for rank in environment["ranks"]] == [host] * 3
    for name in ("trace.jsonl", "checkpoints/update-000018/weights.safetensors"):
        assert (tmp_path / "there" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.slow
def test_some_classes_of_imagenet_train_under_a_published_recipe_made_smaller(folder, kilobatch):
    smaller = ("epochs=1", "batch.global=24", "batch.norm_span=12", "model={kind: SmallCNN, width: 2}")
    words = [word for value in ("dataset=imagenet3.yaml", *smaller) for word in ("--set", value)]
    assert "finished: 3 of 3 updates" in kilobatch("train", "goyal2017/256", *words, "-n", 2, "--out", "subset")
    assert "goyal2017-256" in (folder / "subset" / "report.html").read_text()
    lines = [json.loads(line) for line in (folder / "subset" / "metrics.jsonl").read_text().splitlines()]
    assert [np.isfinite(line["value"]) for line in lines if line["key"] == "eval_loss"] == [True]


@pytest.mark.slow
def test_weights_of_a_checkpoint_begin_a_model_for_other_classes(folder, run, kilobatch):
    kilobatch("export", "out", "--format", "safetensors", "-o", "colours.safetensors", "--allow-code")
    output = kilobatch("train", "fine.yaml", *WORDS, "-n", 2, "--out", "fine")
    assert re.search(r"begins with the weights of \S+/colours.safetensors, SHA-256 \w+, without fc", output)
    given = load_file(folder / "colours.safetensors")
    tuned = load_file(folder / "fine" / "checkpoints" / "update-000009" / "weights.safetensors")
    assert (given["/fc/W"].shape, tuned["/fc/W"].shape) == ((2, 6), (3, 6))
    listed = json.loads(kilobatch("runs", "list", ".", "--json"))
    assert {run["run"]: run["ended"] for run in listed}["fine"] == "success"


def test_own_code_needs_the_flag(folder, kilobatch):
    output = kilobatch("train", "mine.yaml", "--out", "unflagged", code=2)
    assert "mine.yaml:3:" in output
    assert "--allow-code" in output
    assert not (folder / "unflagged").exists()


@pytest.mark.slow
def test_a_photo_that_is_damaged_in_the_middle_is_named_with_rank_and_sample(folder, tmp_path, kilobatch):
    write_photos(tmp_path / "photos")
    (tmp_path / "photos" / "train" / "red" / "8.jpg").unlink()
    damaged = tmp_path / "photos" / "train" / "red" / "8.png"
    Image.effect_noise((19, 19), 50).convert("RGB").save(damaged)  # of no extreme size, which are looked at before
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    words = ("--allow-code", "-n", 2, "--data", tmp_path / "photos", "--out", "damaged")
    output = kilobatch("train", "mine.yaml", *words, code=3)
    ids = sorted(str(path) for path in (tmp_path / "photos" / "train").glob("*/*"))
    why = rf"not a readable image \(.+\); it is sample {ids.index(str(damaged))}: .+ `on_bad_image: skip`"
    message = rf"^rank [01] on \S+ failed:\n{re.escape(str(damaged))}: {why}"
    assert re.search(message, output, re.MULTILINE), output
    assert "Traceback" not in output


def test_a_broken_photo_is_named_before_the_run(folder, tmp_path, kilobatch):
    write_photos(tmp_path / "photos")
    broken = tmp_path / "photos" / "train" / "red" / "7.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    words = ("--allow-code", "-n", 2, "--data", tmp_path / "photos", "--out", "broken")
    output = kilobatch("train", "mine.yaml", *words, code=2)
    assert "1 of its files cannot be read; replace or remove them" in output
    assert re.search(rf"^{re.escape(str(broken))}: not a readable image \(.+\)$", output, re.MULTILINE), output
    assert not (folder / "broken").exists()
    assert "Traceback" not in output
