"""Names that `kind` may have: ours, those of other packages and, with `--allow-code`, those of one's own modules."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Literal, get_type_hints

import numpy as np

from lr_schedules import shapes
from lr_schedules.units import Epochs
from recipes.errors import InputRefused
from recipes.reading.registry import entry_points
from recipes.schema.vocabulary import SearchVocabulary, Vocabulary
from recipes.search_space import ranges
from trainers.datasets.own_data import is_own_data, reader_methods
from trainers.runs.identity import own_code

# Arguments that are no keys of the recipe: of a Chain, facts about the data set; of a class of samples, what to open.
_GIVEN = {"models": ("num_classes", "channels", "image_size"), "datasets": ("split", "root")}
# A subclass of these needs no dataclass of its own.
_PLAIN = {"models": "chainer.Chain or chainer.ChainList", "extensions": "chainer.training.Extension"}
_METHODS = {
    **dict.fromkeys(("augmentations", "metrics", "mixes", "schedules", "warmups"), ("__call__",)),
    "datasets": ("open",),
}
_METHODS |= {"losses": ("__call__", "build")}


def own_class(dotted: str, *, group: str) -> type:
    """The dataclass of a dotted name.

    A frozen dataclass with a method of its group is used as it is. Of a `chainer.Chain`, a `ChainList` or a Chainer
    extension the arguments of the constructor become the fields; `num_classes`, `channels` and `image_size` of a model
    come from the data set. Of a class of samples (see `trainers.datasets.own_data`) too; kilobatch gives `split` and
    `root`.

    Raises:
        ImportError: the module is not there or fails, or has the name of one of Python's own.
        TypeError: the name is none of these.
    """
    module_name, _, name = dotted.rpartition(".")
    if (first := module_name.partition(".")[0]) in sys.stdlib_module_names:  # which ranks import, also beside yours
        raise ImportError(f"{first} is a module of Python; rename yours")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end: a folder `recipes` of the user's must not hide ours
    try:
        module = importlib.import_module(module_name)
        _note_files(module)
        cls = getattr(module, name)
    except (Exception, SystemExit) as error:  # a script may end itself
        # An exception of a user's module becomes a problem at the recipe's line, not a traceback of ours.
        raise ImportError(f"{type(error).__name__}: {error}") from error
    methods = _METHODS.get(group, ("build",))
    # Not hasattr: any class can be called, which makes an instance of it.
    is_class = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    has_method = is_class and any(each in vars(base) for base in cls.__mro__ for each in methods)
    if has_method and cls.__dataclass_params__.frozen:
        _require_defaults_of_yaml(cls)
        return cls
    plain = _PLAIN.get(group)
    if plain and isinstance(cls, type) and _is_a(cls, plain):
        return _component_of(cls, dotted, group)
    if group == "datasets" and is_own_data(cls):
        return _component_of(cls, dotted, group)
    if has_method:
        return cls  # which is refused where the recipe is read
    also = f" or a {plain}" if plain else ""
    also = ", or a class with __len__(), load(index) and the argument split" if group == "datasets" else also
    raise TypeError(f"it is no frozen dataclass with {' or '.join(f'{each}()' for each in methods)}{also}")


@dataclass(frozen=True, kw_only=True)
class _Note:
    """What was imported from a file: the module, its spec, which each import or reload makes anew, and its SHA-256."""

    module: str
    spec: ModuleSpec | None
    sha256: str


_noted: dict[Path, _Note] = {}  # of the files of one's own modules


def _note_files(module: ModuleType) -> None:
    if (file := getattr(module, "__file__", None)) is None or Path(file).resolve() in _noted:
        return
    above, depth = Path(file).absolute().parents, module.__name__.count(".") + (Path(file).name == "__init__.py")
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    if depth >= len(above) or above[depth].resolve() in installed:
        return
    for name, path in own_code([{"kind": f"{module.__name__}."}], [above[depth]]).items():
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        _noted.setdefault(path.resolve(), _Note(module=dotted, spec=_spec_of(dotted), sha256=_sha256(path)))


def changed_modules() -> list[Path]:
    """Files of one's own modules that have changed since this process imported them: ranks would take the new ones.

    A module that was imported anew or reloaded counts as imported now.
    """
    for path, note in _noted.items():
        if path.is_file() and (spec := _spec_of(note.module)) is not note.spec:
            _noted[path] = _Note(module=note.module, spec=spec, sha256=_sha256(path))
    return [path for path, note in _noted.items() if not path.is_file() or _sha256(path) != note.sha256]


def _spec_of(module: str) -> ModuleSpec | None:
    return getattr(sys.modules.get(module), "__spec__", None)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_a(cls: type, chainer_classes: str) -> bool:
    pairs = (each.rpartition(".")[::2] for each in chainer_classes.split(" or "))
    return any(module in sys.modules and issubclass(cls, getattr(sys.modules[module], name)) for module, name in pairs)


def _component_of(cls: type, dotted: str, group: str) -> type:
    """A dataclass whose fields are the arguments of a class's constructor that are not given.

    An argument whose default no YAML can give, such as a function, is the class's own affair.
    """
    parameters = inspect.signature(cls).parameters
    try:
        hints = get_type_hints(cls.__init__)
    except NameError:
        hints = {}
    if group == "extensions":  # says how often it runs, see `train.py`
        hints["every"] = Literal["update"] | Epochs | None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    of_kilobatch = _GIVEN.get(group, ())
    fields = [
        (name, hints.get(name, Any), *_default(parameter))
        for name, parameter in parameters.items()
        if name not in of_kilobatch
        and parameter.kind in by_name
        and (parameter.default is parameter.empty or _is_of_yaml(_plain(parameter.default)))
    ]

    def build(self: Any, **of_dataset: Any) -> Any:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return cls(**given, **{name: value for name, value in of_dataset.items() if name in parameters})

    def reduce(self: Any) -> tuple:
        return _remade, (dotted, group, {field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    methods = reader_methods(cls) if group == "datasets" else {"build": build}
    methods |= {"__reduce__": reduce, "__doc__": cls.__doc__}
    made = dataclasses.make_dataclass(cls.__name__, fields, namespace=methods, frozen=True, kw_only=True)
    made.__module__ = cls.__module__  # from Python 3.12 on it would be this module, so that it seemed to be ours
    return made


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    if parameter.default is parameter.empty:
        return ()
    return (dataclasses.field(default_factory=lambda: _plain(parameter.default)),)


def _plain(default: Any) -> Any:
    """A number of NumPy as Python's own."""
    return default.item() if isinstance(default, np.generic) else default


def _require_defaults_of_yaml(cls: type) -> None:
    for field in dataclasses.fields(cls):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if field.init and not (default is dataclasses.MISSING or _is_of_yaml(default)):
            what = f"the default of {field.name} is {default!r}, which no YAML can give"
            raise TypeError(f"{what}; give it a number, text or list, or make it no field: `{field.name}: ClassVar`")


def _is_of_yaml(default: Any) -> bool:
    """Whether a recipe can have this default: a value of YAML, or an object with keys of its own."""
    if isinstance(default, list | tuple):
        return all(map(_is_of_yaml, default))
    if isinstance(default, Mapping):
        return all(isinstance(key, str | int | float) and _is_of_yaml(value) for key, value in default.items())
    is_object = dataclasses.is_dataclass(default) and not isinstance(default, type)
    return is_object or isinstance(default, NoneType | bool | int | float | str)


def _remade(dotted: str, group: str, values: dict[str, Any]) -> Any:
    return own_class(dotted, group=group)(**values)


_SCHEDULES = ("Product", *shapes.__all__)  # of all names in `lr_schedules`
# The module or package whose `__all__` lists the names of a group.
PACKAGES = {
    "models": "trainers.models",
    "optimizers": "trainers.optimizers",
    "losses": "trainers.losses",
    "metrics": "trainers.metrics",
    "augmentations": "trainers.augmentations",
    "mixes": "trainers.augmentations.mixing",
    "datasets": "trainers.datasets",
    "extensions": "trainers.training.extensions",
    "communicators": "trainers.communicators",
    "schedules": "lr_schedules",
    "warmups": "lr_schedules.warmups",
    "ranges": "recipes.search_space.ranges",
    "samplers": "trainers.search.samplers",
}


def vocabulary(*, allow_code: bool = False) -> Vocabulary:
    """All names a recipe may use.

    A name of another package comes from the entry-point group `kilobatch.models`, `kilobatch.optimizers`,
    `kilobatch.losses`, `kilobatch.metrics`, `kilobatch.augmentations`, `kilobatch.mixes`, `kilobatch.datasets`,
    `kilobatch.extensions`, `kilobatch.communicators`, `kilobatch.schedules` or `kilobatch.warmups`, and is imported
    when a recipe uses it.

    Args:
        allow_code: `kind: mymodule.MyNet` imports from the working directory.
    """
    groups = [field.name for field in dataclasses.fields(Vocabulary)]
    return Vocabulary(**{name: _group(name, allow_code=allow_code) for name in groups})


def search_vocabulary(*, allow_code: bool = False) -> SearchVocabulary:
    """All names a search may use, including those of its recipe; for `allow_code` see `vocabulary`.

    Other packages add samplers by the group `kilobatch.samplers`. All ranges are ours.
    """
    return SearchVocabulary(
        **vars(vocabulary(allow_code=allow_code)),
        ranges={kind: getattr(ranges, kind) for kind in ranges.__all__},
        samplers=_group("samplers", allow_code=allow_code),
    )


def _group(name: str, *, allow_code: bool) -> _Group:
    package = importlib.import_module(PACKAGES[name])
    names = _SCHEDULES if name == "schedules" else tuple(package.__all__)
    return _Group(name=name, names=names, allow_code=allow_code)


@dataclass(frozen=True, kw_only=True)
class _Group(Mapping[str, type]):
    """The names of one group; checking for a name and listing the names import nothing."""

    name: str
    names: tuple[str, ...]
    allow_code: bool

    def __getitem__(self, kind: str) -> type:
        if kind in self.names:
            return getattr(importlib.import_module(PACKAGES[self.name]), kind)
        if kind in self._installed:
            return _loaded(self._installed[kind], group=self.name)
        if self.allow_code and "." in kind:
            return own_class(kind, group=self.name)
        raise KeyError(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.names, *self._installed}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, kind: object) -> bool:
        return kind in self.names or kind in self._installed

    def entry_point(self, kind: str) -> EntryPoint | None:
        """That of another package which gives a `kind`; None if kilobatch or own code gives it."""
        return None if kind in self.names else self._installed.get(kind)

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """The names of other packages."""
        found = entry_points(group=f"kilobatch.{self.name}")
        return {entry.name: entry for entry in reversed(list(found))}  # of two with one name the first counts


class KindBroken(ImportError, InputRefused):
    """A `kind` of an installed package cannot be imported."""


def _loaded(entry: EntryPoint, *, group: str) -> type:
    try:
        cls = entry.load()
    except (Exception, SystemExit) as error:
        what = f"{entry.value}, of an installed package, is broken: {type(error).__name__}: {error}"
        raise KindBroken(f"{what}; mend or remove that package") from error
    if dataclasses.is_dataclass(cls):
        return cls
    is_plain = is_own_data(cls) if group == "datasets" else group in _PLAIN and _is_a(cls, _PLAIN[group])
    return _component_of(cls, f"{entry.module}.{entry.attr}", group) if is_plain else cls
