"""Every public name of the component packages keeps the promises that make it a word of a recipe."""

import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from trainers.launch.vocabulary import PACKAGES

ROOT = Path(__file__).parent.parent.parent
GROUPS = ("augmentations", "communicators", "datasets", "losses", "metrics", "mixes", "models", "optimizers")
METHOD = dict.fromkeys(GROUPS, "build") | dict.fromkeys(("augmentations", "metrics", "mixes"), "__call__")
METHOD |= {"communicators": "connect", "datasets": "open"}
REQUIRED = {
    "CenterCrop": {"size": 8},
    "CutMix": {"alpha": 1.0},
    "Cutout": {"size": 8},
    "Mixup": {"alpha": 0.2},
    "Normalize": {"with_": "digits"},
    "RandomCrop": {"size": 8},
    "RandomResizedCrop": {"size": 8},
    "Resize": {"shorter": 8},
}


def package(group):
    return importlib.import_module(PACKAGES[group])


GROUP_OF = {getattr(package(group), name): group for group in GROUPS for name in package(group).__all__}
COMPONENTS = list(GROUP_OF)


def files_of(group):
    """The modules in which a group's components are defined: a package's own, but not those of another group in it."""
    others = {package(other).__name__ for other in GROUPS if other != group}
    module = package(group)
    names = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", [])) if found.name[0] != "_"]
    inside = [f"{module.__name__}.{name}" for name in names]
    return [name for name in inside or [module.__name__] if name not in others]


def make(component):
    return component(**REQUIRED.get(component.__name__, {}))


@pytest.fixture(params=COMPONENTS, ids=lambda component: component.__name__)
def component(request):
    return request.param


@pytest.mark.parametrize("group", GROUPS)
def test_the_public_names_of_a_package_are_sorted_and_are_all_there_are(group):
    names = package(group).__all__
    assert names == sorted(names)
    found = {
        name
        for module in files_of(group)
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, type)
        and value.__module__ == module
        and {"__dataclass_fields__", METHOD[group]} <= {*vars(value)}
    }
    assert found == set(names)


def test_no_name_stands_in_two_groups():
    assert len({component.__name__ for component in COMPONENTS}) == len(COMPONENTS) >= 16


def test_it_is_a_frozen_dataclass_without_a_parent(component):
    assert component.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(component))
    assert component.__mro__ == (component, object)
    made = make(component)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1


def test_it_compares_hashes_and_travels(component):
    made = make(component)
    assert made == make(component)
    assert hash(made) == hash(make(component))
    assert pickle.loads(pickle.dumps(made)) == made
    assert repr(made).startswith(f"{component.__name__}(")


def test_its_fields_have_types_that_a_loader_can_read(component):
    hints = typing.get_type_hints(component)
    assert all(field.name in hints for field in dataclasses.fields(component))


def test_its_docstring_explains_every_field_and_refusal_and_names_a_source(component):
    doc = inspect.getdoc(component)
    first = doc.splitlines()[0]
    assert first.endswith(".")
    assert not first.startswith(component.__name__ + "(")
    assert re.search(r"^Source: ", doc, re.MULTILINE)
    if GROUP_OF[component] not in ("communicators", "metrics") or dataclasses.fields(component):
        assert re.search(r"^Raises:\n    ValueError: ", doc, re.MULTILINE)
    arguments = re.search(r"^Args:\n((?:    .*\n)+)", doc, re.MULTILINE)
    described = re.findall(r"^    ([a-z][\w, ]*): \S", arguments[1] if arguments else "", re.MULTILINE)
    assert [name for names in described for name in names.split(", ")] == [
        field.name for field in dataclasses.fields(component)
    ]


def test_it_refuses_what_is_no_value_of_a_field(component):
    for field in dataclasses.fields(component):
        with pytest.raises(ValueError, match=rf"^{component.__name__}\.{field.name.removesuffix('_')} must be .*got"):
            component(**{**REQUIRED.get(component.__name__, {}), field.name: object()})


def test_it_has_the_method_of_its_group(component):
    signature = inspect.signature(getattr(component, METHOD[GROUP_OF[component]]))
    expected = {
        "augmentations": ["self", "image_HWC", "draws"],
        "communicators": ["self", "mpi"],
        "datasets": ["self", "root", "split"],
        "losses": ["self"],
        "metrics": ["self", "logits", "labels"],
        "mixes": ["self", "images_NCHW", "partners_NCHW", "draws"],
        "models": ["self", "num_classes", "channels", "image_size"],
        "optimizers": ["self"],
    }
    assert list(signature.parameters) == expected[GROUP_OF[component]]


def test_making_all_of_them_loads_no_chainer_and_no_data():
    calls = "\n".join(
        f"from {component.__module__} import {component.__name__}\n"
        f"{component.__name__}(**{REQUIRED.get(component.__name__, {})!r})"
        for component in COMPONENTS
    )
    code = f"import sys\n{calls}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "trainers" in loaded
    assert not loaded & {"chainer", "chainercv", "chainermn", "cupy", "mpi4py", "sklearn", "scipy", "matplotlib"}
