"""The words a recipe may use: ours, other packages', and a user's own code."""

import dataclasses
import json
import pickle
import sys
from importlib.metadata import EntryPoint, entry_points

import chainer
import numpy as np
import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_recipe
from recipes.search_space.open_search import open_search
from trainers.launch import vocabulary as vocabulary_module
from trainers.launch.vocabulary import search_vocabulary, vocabulary
from trainers.losses import SoftmaxCrossEntropy, loss_function
from trainers.runs.identity import is_of_the_user

RECIPE = """\
kilobatch: 1
dataset: digits
model: {kind: %s}
epochs: 1
batch: {global: 96}
learning_rate: {reference: 0.05, per: 32}
optimizer: {kind: MomentumSGD}
"""
CODE = """\
import dataclasses
import chainer
import chainer.links as L
import numpy as np

class Net(chainer.Chain):
    def __init__(self, width: int, num_classes: int, depth: int = 2, *, names=("a",)):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(None, num_classes)
        self.width, self.depth, self.names = width, depth, names

@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    size: int = 3

    def build(self, *, num_classes, channels, image_size):
        return (self.size, num_classes)

class Acting(Net):
    def __init__(self, num_classes, width: int = 2, act=chainer.functions.relu, names=(1, [None])):
        super().__init__(width, num_classes, names=names)
        self.act = act

@dataclasses.dataclass(frozen=True, kw_only=True)
class Active(Own):
    act: object = chainer.functions.relu

class Sized(Net):
    def __init__(self, num_classes, width: int = np.int64(2), rates={2: 0.1}):
        super().__init__(width, num_classes)

@dataclasses.dataclass(frozen=True, kw_only=True)
class Milestones(Own):
    rates: dict = dataclasses.field(default_factory=lambda: {2: 0.1})

@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(Own):
    link: chainer.Link = None

@dataclasses.dataclass
class Melting:
    def build(self):
        pass

class Neither:
    pass

class Row(chainer.Sequential):
    def __init__(self, num_classes):
        super().__init__(L.Linear(None, num_classes))

@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    power: int = 2

    def __call__(self, logits, targets):
        return chainer.functions.mean(logits) ** self.power

@dataclasses.dataclass(frozen=True, kw_only=True)
class Nothing:
    power: int = 2

def loss(logits, targets):
    pass
"""
TOLD = {"num_classes": 10, "channels": 1, "image_size": 8}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_code_of_a_test.py").write_text(CODE)
    (tmp_path / "broken_code_of_a_test.py").write_text("1 / 0\n")
    (tmp_path / "ending_code_of_a_test.py").write_text("raise SystemExit(0)\n")

    def open_with(kind, *, allow_code=True):
        path = tmp_path / "mine.yaml"
        path.write_text(RECIPE % kind)
        return open_recipe(path, vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code).recipe

    yield open_with
    sys.modules.pop("own_code_of_a_test", None)


def groups():
    return [getattr(vocabulary(), field.name) for field in dataclasses.fields(vocabulary())]


def test_every_word_is_a_frozen_dataclass_of_keyword_only_fields():
    for group in groups():
        assert len(group) > 0
        for kind, cls in group.items():
            assert cls.__name__ == kind
            assert dataclasses.is_dataclass(cls)
            assert cls.__dataclass_params__.frozen
            assert all(field.kw_only for field in dataclasses.fields(cls))


def test_no_word_belongs_to_two_groups():
    words = [kind for group in groups() for kind in group]
    assert len(words) == len(set(words))


def test_a_word_of_another_package_is_imported_when_it_is_used(monkeypatch):
    entry = EntryPoint(name="Acme", value="acme_that_is_not_installed:Net", group="kilobatch.models")
    monkeypatch.setattr(vocabulary_module, "entry_points", lambda group: [entry] if group == entry.group else [])
    models = vocabulary().models
    assert "Acme" in models
    assert "Acme" in list(models)
    with pytest.raises(ImportError, match="No module named 'acme_that_is_not_installed'"):
        models["Acme"]


def test_other_packages_add_samplers_and_no_ranges(monkeypatch):
    groups = ("kilobatch.samplers", "kilobatch.ranges")
    entries = {group: EntryPoint(name="Acme", value="acme:Acme", group=group) for group in groups}
    monkeypatch.setattr(vocabulary_module, "entry_points", lambda group: [entries[group]] if group in entries else [])
    words = search_vocabulary()
    assert "Acme" in words.samplers
    assert sorted(words.ranges) == ["Categorical", "Float", "Int"]


def test_a_word_of_a_package_that_is_broken_is_refused_where_it_stands(opened, monkeypatch):
    entry = EntryPoint(name="Acme", value="broken_code_of_a_test:Net", group="kilobatch.models")
    monkeypatch.setattr(vocabulary_module, "entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.syspath_prepend(".")
    broken = "broken_code_of_a_test:Net, of an installed package, is broken: ZeroDivisionError: division by zero"
    with pytest.raises(RecipeError, match=f"mine.yaml:3:.*: Acme cannot be used: {broken}; "):
        opened("Acme")
    refused = CliRunner().invoke(kilobatch.app, ["recipes", "schema"]).exception
    assert isinstance(refused, InputRefused)
    assert str(refused) == f"{broken}; mend or remove that package"


def test_an_installed_dataclass_that_is_not_frozen_is_refused_in_new_runs(opened, monkeypatch):
    entry = EntryPoint(name="Acme", value="own_code_of_a_test:Melting", group="kilobatch.models")
    monkeypatch.setattr(vocabulary_module, "entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.syspath_prepend(".")
    with pytest.raises(RecipeError, match=r"mine.yaml:3:.*: Acme is a mutable dataclass; add frozen=True to @data"):
        opened("Acme")
    of_run = open_recipe("mine.yaml", vocabulary=vocabulary(), of_run=True)
    assert "add frozen=True" in str(of_run.warnings)


def test_own_dataclass_is_used_as_it_is(opened):
    recipe = opened("own_code_of_a_test.Own, size: 5")
    assert recipe.model.build(**TOLD) == (5, 10)


def test_arguments_of_an_own_chain_are_the_fields(opened):
    model = opened("own_code_of_a_test.Net, width: 4").model
    assert {field.name for field in dataclasses.fields(model)} == {"width", "depth", "names"}
    assert is_of_the_user(model)
    assert type(model).__module__ == "own_code_of_a_test"
    chain = model.build(**TOLD)
    assert (chain.width, chain.depth, chain.names) == (4, 2, ("a",))
    assert chain.output.b.shape == (10,)


def test_an_argument_whose_default_no_yaml_can_give_is_no_key(opened):
    model = opened("own_code_of_a_test.Acting").model
    assert {field.name for field in dataclasses.fields(model)} == {"width", "names"}
    assert model.build(**TOLD).act is chainer.functions.relu


def test_a_sequential_of_ones_own_is_a_model(opened):
    assert len(opened("own_code_of_a_test.Row").model.build(**TOLD)) == 1


def test_a_loss_of_ones_own_may_be_the_function_itself(opened):
    recipe = opened("own_code_of_a_test.Net, width: 4}\nloss: {kind: own_code_of_a_test.Loss, power: 3")
    assert loss_function(pickle.loads(pickle.dumps(recipe.loss)))(np.full((2, 2), 2, "f"), None).array == 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Called(SoftmaxCrossEntropy):
    def __call__(self, logits, targets):
        return self.label_smoothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built(Called):
    def build(self):
        return lambda logits, targets: 2 * self(logits, targets)


def test_a_loss_derived_from_one_of_the_library_is_what_the_class_itself_defines():
    assert loss_function(Called(label_smoothing=0.5))(None, None) == 0.5
    assert loss_function(Built(label_smoothing=0.5))(None, None) == 1.0


@pytest.mark.parametrize("name", ["Nothing", "Neither", "loss"])
def test_a_loss_of_ones_own_that_cannot_be_called_is_refused(opened, name):
    with pytest.raises(RecipeError, match=r"it is no frozen dataclass with __call__\(\) or build\(\);"):
        opened(f"own_code_of_a_test.Net, width: 4}}\nloss: {{kind: own_code_of_a_test.{name}")


def test_own_model_can_be_sent_to_another_process(opened):
    model = opened("own_code_of_a_test.Net, width: 4").model
    again = pickle.loads(pickle.dumps(model))
    assert dataclasses.asdict(again) == dataclasses.asdict(model)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("own_code_of_a_test.Net", "model.width: is missing"),
        ("own_code_of_a_test.Net, width: wide", "model.width: is the text 'wide'; must be a whole number"),
        ("own_code_of_a_test.Net, width: 4, hight: 3", "model.hight: is not a known key"),
        ("own_code_of_a_test.Odd, link: 3", "model.link: has the type .*Link.*, which no YAML can give"),
        (
            "own_code_of_a_test.Active",
            "the default of act is <function relu .*, which no YAML can give; give",
        ),
        ("own_code_of_a_test.No", "cannot be used: .*has no attribute 'No'"),
        ("own_code_of_a_test.Neither", "it is no frozen dataclass with build.. or a chainer.Chain"),
        ("own_code_of_a_test.Melting", "is a mutable dataclass; add frozen=True to @dataclass"),
        ("sched.Net", "cannot be used: sched is a module of Python; rename yours; "),
        ("no_such_code.Net", "No module named 'no_such_code'"),
        ("broken_code_of_a_test.Net", "ZeroDivisionError: division by zero"),
        ("ending_code_of_a_test.Net", "SystemExit: 0"),
    ],
)
def test_what_is_wrong_with_own_code_is_a_problem_of_its_line(opened, kind, message):
    with pytest.raises(RecipeError, match=rf"^mine.yaml:3:\d+: .*{message}") as caught:
        opened(kind)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", ["Sized", "Milestones"])
def test_numbers_of_numpy_and_mappings_with_numbers_are_defaults_that_a_run_records(opened, name):
    tree = opened(f"own_code_of_a_test.{name}").model
    values = dataclasses.asdict(tree)
    assert json.loads(json.dumps(values)) == json.loads(json.dumps(values | {"rates": {"2": 0.1}}))
    assert values.get("width", 2) == 2


def test_without_allow_code_nothing_is_imported(opened):
    with pytest.raises(RecipeError, match="pass --allow-code to run it"):
        opened("own_code_of_a_test.Net", allow_code=False)
    assert "own_code_of_a_test" not in sys.modules


def test_packages_are_looked_through_once_however_many_names_are_not_built(tmp_path, monkeypatch):
    looks = []

    def looked(*, group):
        looks.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(vocabulary_module, "entry_points", looked)
    file = tmp_path / "mine.yaml"
    lacks = ", ".join(f"Method{number}" for number in range(100))
    file.write_text(f"kilobatch: 1\nextends: digits/baseline\nlacks: [{lacks}]\n")
    assert len(open_recipe(file, vocabulary=vocabulary()).recipe.lacks) == 100
    assert looks
    assert len(looks) == len(set(looks))


def test_a_search_takes_a_sampler_of_own_code_if_it_may(opened, tmp_path):
    parts = "space: {epochs: {kind: Int, low: 1, high: 2}}\nobjective: {metric: accuracy}\nbudget: {trials: 2}\n"
    sampler = "sampler: {kind: own_code_of_a_test.Own, size: 5}\n"
    (tmp_path / "mine.yaml").write_text(f"kilobatch: 1\nrecipe: digits/baseline\n{sampler}{parts}")
    opened = open_search("mine.yaml", vocabulary=search_vocabulary(allow_code=True), allow_code=True)
    assert opened.search.sampler.size == 5
    with pytest.raises(RecipeError, match="own_code_of_a_test.Own is code of your own; pass --allow-code to run it"):
        open_search("mine.yaml", vocabulary=search_vocabulary())
