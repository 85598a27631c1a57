"""What models of recipes take: shipped, cached or measured; a plan of a shipped recipe builds no model.

To write the shipped file anew, on purpose:

    PYTHONPATH=. .venv/bin/python tests/trainers/launch/test_model_costs.py && git diff trainers/launch
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.planning.memory import ModelCosts
from recipes.reading.open import open_recipe
from trainers.launch import model_costs
from trainers.launch.vocabulary import vocabulary

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "recipes" / "papers"
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))
SHIPPED = json.loads(model_costs.SHIPPED.read_text())


def opened(name, *overrides, **how):
    return open_recipe(name, vocabulary=vocabulary(**how), overrides=overrides, allow_code=bool(how))


@functools.cache
def needed():
    """A recipe and the shape of its images by key: all that the shipped file must hold."""
    found = {}
    for name in NAMES:
        recipe = opened(name)
        for shape in model_costs._shapes(recipe, loads=False).values():
            found.setdefault(model_costs._key(recipe, shape), (name, shape))
    return found


def measured(name, shape):
    from trainers.training.build import build_model
    from trainers.training.model_costs import measure

    recipe = opened(name)
    return measure(build_model(recipe.recipe, recipe.dataset), shape, recipe.recipe.evaluation)


def test_every_recipe_of_the_library_is_in_the_shipped_file_and_nothing_else_is():
    assert sorted(needed()) == sorted(SHIPPED)
    assert len(SHIPPED) >= 12
    for name, _ in needed().values():
        assert model_costs.known_model(opened(name)).num_parameters > 0


def _large(key):
    return [pytest.mark.slow] if " images 3x" in key else []


@pytest.mark.parametrize("key", [pytest.param(key, marks=_large(key)) for key in SHIPPED])
def test_shipped_figures_are_those_of_the_built_model(key):
    shipped, now = ModelCosts.from_tree(SHIPPED[key]), measured(*needed()[key])
    for counted in ("parameter_sizes", "ordered_weights", "norm_channels"):
        assert getattr(shipped, counted) == getattr(now, counted)
    for samples, groups in ((32, 1), (64, 2), (256, 1)):
        for one, other in ((now.activations, shipped.activations),):
            assert one.of(samples, groups) == pytest.approx(other.of(samples, groups), rel=0.03)
        fullest, before = (max(each.of(samples, groups) for each in costs.moments) for costs in (now, shipped))
        assert fullest == pytest.approx(before, rel=0.03)


PLAN = (
    "import sys, kilobatch\ntry:\n    kilobatch.main()\nfinally:\n    print('chainer' in sys.modules, file=sys.stderr)"
)


def plan(*words, folder, cache):
    """A `kilobatch plan`, which says at the end whether Chainer was loaded."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", PLAN, "plan", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.split()[-1] == "True"


def test_a_plan_of_a_shipped_recipe_builds_no_model(tmp_path):
    tree, loaded_chainer = plan("goyal2017", folder=tmp_path, cache=tmp_path / "cache")
    assert not loaded_chainer
    assert tree["memory"]["weights_bytes"] == 4 * 25_557_032
    samples = max(segment["micro_batch_size"] for segment in tree["segments"])
    assert tree["memory"]["total_bytes"] > tree["memory"]["activations_bytes"] > samples * 80e6
    assert not (tmp_path / "cache").exists()


OWN = """\
import chainer
import chainer.functions as F
import chainer.links as L


class Net(chainer.Chain):
    def __init__(self, num_classes, channels, image_size):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(None, {width})
            self.out = L.Linear({width}, num_classes)

    def forward(self, x):
        return self.out(F.relu(self.fc(x)))
"""


def test_the_fullest_moment_of_many_samples_follows_from_those_of_few(monkeypatch):
    """Of one sample a convolution in groups takes views where it copies several."""
    import trainers  # noqa: F401  isort: skip
    import chainer
    import chainer.functions as F
    import chainer.links as L

    from recipes.schema import Evaluation
    from trainers.training import model_costs as measuring

    net = chainer.Sequential(
        L.Convolution2D(4, 8, 5, stride=2, pad=2, groups=2), lambda x: F.mean(x, axis=(2, 3)), L.Linear(8, 4)
    )
    found = [measuring.measure(net, (4, 140, 140), Evaluation())]
    monkeypatch.setattr(measuring, "_FEWEST", 8)
    found.append(measuring.measure(net, (4, 140, 140), Evaluation()))
    few, many = (max(moment.of(8) for moment in costs.moments) for costs in found)
    assert few == pytest.approx(many, rel=0.02)


def test_a_model_of_ones_own_is_measured_once_and_again_when_its_code_changes(tmp_path):
    """Lazy layers are counted too."""
    words, where = ["digits/ramp", "--allow-code", "--set", "model={kind: mine.Net}"], {"folder": tmp_path}
    where["cache"] = tmp_path / "cache"
    seen = []
    for width in (100, 100, 300):
        (tmp_path / "mine.py").write_text(OWN.format(width=width))
        tree, _ = plan(*words, **where)
        assert tree["memory"]["weights_bytes"] == 4 * (64 * width + width + 10 * width + 10)
        assert tree["memory"]["total_bytes"] > 0
        seen.append({(path.name, path.stat().st_mtime_ns) for path in where["cache"].rglob("*.json")})
    assert seen[0] == seen[1] < seen[2]
    assert len(seen[2]) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    tree, loaded_chainer = plan(
        "digits/ramp", "--set", "model={kind: SmallCNN, width: 3}", folder=tmp_path, cache=tmp_path / "cache"
    )
    assert loaded_chainer
    assert tree["memory"]["total_bytes"] > 0


def test_a_damaged_file_of_the_cache_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = opened("digits/ramp", "model={kind: SmallCNN, width: 3}")
    assert model_costs.known_model(recipe) is None
    costs = model_costs.model_of(recipe).costs
    assert model_costs.known_model(recipe).costs == costs
    (kept,) = (tmp_path / "kilobatch/models").iterdir()
    for damaged in (b"", b"[]", b'{"key": 1}', b"\xff"):
        kept.write_bytes(damaged)
        assert model_costs.known_model(recipe) is None
    assert model_costs.model_of(recipe).costs.keys() == costs.keys()
    assert model_costs.known_model(recipe) is not None


def test_a_forward_that_fails_leaves_the_activations_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_broken.py").write_text(OWN.format(width=8).replace("self.out(", "self.fc("))
    model = model_costs.model_of(opened("digits/ramp", "model={kind: own_broken.Net}", allow_code=True))
    assert (model.num_parameters, model.costs) == (8 * 10 + 10 + 8, {})  # what the lazy layer has without a shape


def _write():
    rows = [f"{json.dumps(key)}: {json.dumps(measured(*where).as_tree())}" for key, where in needed().items()]
    model_costs.SHIPPED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    _write()
