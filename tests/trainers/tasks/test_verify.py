"""`kilobatch verify` finds planted faults and names them, and passes recipes of the library."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from trainers.launch.train_command import train_words
from trainers.launch.vocabulary import vocabulary
from trainers.tasks import verify
from trainers.tasks.verify import _small, _Trials

pytestmark = pytest.mark.mpi

CODE = """\
import os
from dataclasses import dataclass

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

RANKS = int(os.environ.get("PMI_SIZE", 1))
RANK = int(os.environ.get("PMI_RANK", 0))


class Plain(chainer.Chain):
    def forward(self, h):
        return h


class Net(chainer.Chain):
    Middle = Plain

    def __init__(self, num_classes, channels):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(channels, 4, 3, pad=1)
            self.bn = L.BatchNormalization(4)
            self.middle = self.Middle()
            self.fc = L.Linear(4, num_classes)

    def forward(self, x):
        h = self.middle(F.relu(self.bn(self.conv(x))))
        return self.fc(F.average(h, axis=(2, 3)))


class Wide(chainer.Chain):
    def forward(self, h):
        return h - F.broadcast_to(F.mean(h, axis=(0, 2, 3), keepdims=True), h.shape)


class Unkeyed(chainer.Chain):
    def forward(self, h):
        return h * (np.random.rand(*h.shape) > 0.5).astype(h.dtype)


class Counts(chainer.Chain):
    def __init__(self):
        super().__init__()
        self.add_persistent("mean", np.zeros(4))

    def forward(self, h):
        if chainer.config.train:
            self.mean = 0.5 * self.mean + 0.5 * h.array.mean(axis=(0, 2, 3))
        return h - self.mean.astype(h.dtype)[None, :, None, None]


class WithWide(Net):
    Middle = Wide


class MixesBetween(Net):
    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        return self.fc(F.average(h - F.broadcast_to(F.mean(h, axis=0, keepdims=True), h.shape), axis=(2, 3)))


class WithUnkeyed(Net):
    Middle = Unkeyed


class WithCounts(Net):
    Middle = Counts


@dataclass(frozen=True)
class Jitter:
    def __call__(self, image_HWC, draws):
        return np.clip(image_HWC + np.random.normal(size=image_HWC.shape), 0, 255).astype(np.float32)


@dataclass(frozen=True)
class ByRank:
    def __call__(self, image_HWC, draws):
        return image_HWC if RANK == 0 else image_HWC[::-1]


@dataclass(frozen=True)
class MeanOverRanks:
    def build(self):
        return lambda logits, targets: F.softmax_cross_entropy(logits, targets) / RANKS
"""
FAULTS = {
    "batch-wide layer": ("model={kind: faults.WithWide}", "micro-batches of", "/middle (Wide) looks at the whole m"),
    "batch-wide code between layers": (
        "model={kind: faults.MixesBetween}",
        "micro-batches of",
        "the code before /fc (Linear) looks at the whole micro-batch",
    ),
    "global random state": (
        "augmentation.train=[{kind: faults.Jitter}]",
        "same command again",
        "faults.Jitter draws from a global random state",
    ),
    "rank in the data": (
        "augmentation.train=[{kind: faults.ByRank}]",
        "1 and 2 ranks",
        "faults.ByRank depends on the rank",
    ),
    "unkeyed dropout": (
        "model={kind: faults.WithUnkeyed}",
        "same command again",
        "/middle (Unkeyed) draws from a global random state",
    ),
    "statistics outside norm groups": (
        "model={kind: faults.WithCounts}",
        "micro-batches of",
        "/middle (Counts) keeps statistics of its own",
    ),
    "an average by ranks": (
        "loss={kind: faults.MeanOverRanks}",
        "1 and 2 ranks",
        "faults.MeanOverRanks or faults.Net uses the rank or the number of ranks",
    ),
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    (folder / "faults.py").write_text(CODE)

    def run(recipe, *overrides):
        words = ["verify", recipe, "--allow-code", "--json", *(word for each in overrides for word in ("--set", each))]
        command = [sys.executable, "-P", "-m", "kilobatch", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        assert done.returncode in (0, 5), done.stderr
        checks = json.loads(done.stdout)
        broken = sum(not check["holds"] for check in checks)
        assert done.returncode == 5 * (broken > 0)
        end = f"{broken} of {len(checks)} checks do not hold." if broken else f"All {len(checks)} checks hold."
        assert done.stderr.splitlines()[-1] == end
        return {check["name"]: check["why"] for check in checks}

    return run


def test_runs_that_take_too_long_are_refused_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "_SECONDS", 0.01)
    with pytest.raises(InputRefused, match=r"take over 0.01 s; make the model or its images smaller with --set"):
        _Trials(tmp_path, train_words("digits/large_batch"))("--fast", ranks=1, micro=32)


@pytest.mark.parametrize(
    "fault", [name if name == "unkeyed dropout" else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_planted_fault_is_found_and_named(verified, fault):
    override, where, said = FAULTS[fault]
    model = () if override.startswith("model") else ("model={kind: faults.Net}",)
    found = verified("digits/baseline", override, *model)
    (why,) = [why for name, why in found.items() if name.startswith(where)][:1]
    assert said in why, found
    first = next(name for name, why in found.items() if why)
    assert first.startswith(where), found


@pytest.mark.slow
def test_a_model_without_a_fault_passes(verified):
    assert set(verified("digits/baseline", "model={kind: faults.Net}").values()) == {""}


@pytest.mark.parametrize(("per", "has_warmup"), [(32, True), (512, False)])
def test_a_warmup_from_the_reference_rate_is_left_out_where_the_small_batch_has_a_lower_one(per, has_warmup):
    changes = _small("digits/large_batch", [f"learning_rate.per={per}"], None, False)
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary(), overrides=changes)
    assert opened.recipe.batch.global_.sizes == (96,)
    assert bool(opened.tree["learning_rate"]["warmup"]) == has_warmup


@pytest.mark.parametrize("word", ["local_steps={every: 4, replicas: 2}", "power_sgd_rank=2"])
def test_what_depends_on_the_workers_by_intention_is_left_out(word):
    changes = _small("digits/large_batch", [f"updater.{word}"], None, False)
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary(), overrides=changes)
    assert opened.recipe.updater.why_not_exact is None


@pytest.mark.parametrize(
    ("changes", "epochs", "at"),
    [
        (["epochs=0.05", "learning_rate.warmup=null"], 3 * 96 / 1500, None),
        (["epochs=20.5"], 20.5, None),
        (["epochs=60up", "augmentation.end.at=15"], 60 * 512 / 1500, 15.0),
        (["augmentation.end.at=45up", "learning_rate.warmup.epochs=6up"], 20.0, 45 * 512 / 1500),
    ],
)
def test_the_small_run_is_as_long_and_changes_at_the_same_times(changes, epochs, at):
    small = _small("digits/large_batch", [*changes, "batch.global=512"], None, False)
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary(), overrides=small)
    assert opened.recipe.epochs == pytest.approx(epochs, abs=1e-12)
    assert at is None or opened.recipe.augmentation.end.at == pytest.approx(at, abs=1e-12)


TRAINABLE = [
    name
    for name in names("recipes")
    if not (opened := open_recipe(name, vocabulary=vocabulary())).obstacles
    and opened.dataset.name in ("digits", "synthetic", "cifar10")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINABLE if name.startswith("digits")])
def test_recipes_of_the_library_pass(verified, name):
    assert set(verified(name).values()) == {""}


ON_IMAGENET = [
    name
    for name in names("recipes")
    if not (opened := open_recipe(name, vocabulary=vocabulary())).obstacles and opened.dataset.name == "imagenet"
]
SMALLER = ("dataset=four.yaml", "batch={global: 24, norm_span: 4}", "model={kind: SmallCNN, width: 4, first_stride: 4}")
FACTS = """\
name: imagenet
reader: {kind: ImageFolder}
root: images
channels: 3
mean: [0.485, 0.456, 0.406]
std: [0.229, 0.224, 0.225]
"""


@pytest.fixture(scope="module")
def four_classes(tmp_path_factory):
    """A folder in ImageNet's form, 24 JPEGs to train on, and the data set's file beside it."""
    folder, draws = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 2)):
        for name in ("n01440764", "n01443537", "n02105855", "n15075141"):
            (folder / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (260, 300, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / split / name / f"{name}_{number}.JPEG")
    (folder / "four.yaml").write_text(FACTS)
    return folder


@pytest.mark.parametrize("name", ["goyal2017", "suzuki2018", "akiba2017", "you2019"])
def test_a_recipe_for_imagenet_can_be_made_small(name):
    opened = open_recipe(name, vocabulary=vocabulary(), overrides=_small(name, [], None, False))
    assert opened.recipe.batch.global_.sizes == (96,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_IMAGENET)
def test_recipes_for_imagenet_pass_with_a_smaller_model(four_classes, name):
    tree = open_recipe(name, vocabulary=vocabulary()).tree
    changes = [*SMALLER, "learning_rate.warmup=null"] if tree["learning_rate"].get("warmup") else SMALLER
    if tree["precision"]["compute"] == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes, for bfloat16, is not installed")
    if tree["augmentation"].get("end"):  # in updates, and so small a data set has fewer
        changes = [*changes, "augmentation.end=null"]
    # `assumed` names keys of what is replaced.
    gone = ("model.", "learning_rate.warmup", "augmentation.end")
    assumed = [path for path in tree.get("assumed") or () if not path.startswith(gone)]
    words = ["verify", name, "--json", *(word for each in changes for word in ("--set", each))]
    command = [sys.executable, "-P", "-m", "kilobatch", *words, "--set", f"assumed={json.dumps(assumed)}"]
    done = subprocess.run(command, cwd=four_classes, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 5), done.stderr
    assert {check["name"]: check["why"] for check in json.loads(done.stdout) if not check["holds"]} == {}


@pytest.mark.slow
def test_ctrl_c_ends_the_run_that_is_compared_and_says_so(tmp_path):
    command = [sys.executable, "-P", "-m", "kilobatch", "verify", "digits/baseline"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True) as run:
        assert "holds" in run.stdout.readline()  # the first check; the next run starts
        time.sleep(1.5)
        os.killpg(run.pid, signal.SIGINT)
        assert run.communicate()[0] == "interrupted; nothing was decided\n"
    assert run.returncode == 130
    sessions = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            sessions.add(stat.read_text().rpartition(")")[2].split()[3])
    assert str(run.pid) not in sessions
