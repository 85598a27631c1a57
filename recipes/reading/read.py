"""A tree into the dataclasses of the schema: `Reading` notes every problem with its line and fills in the defaults.

Its readers return a pair: the object, and the resolved tree with every default. Before it: type hints in words.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from lr_schedules import BatchRamp
from lr_schedules.units import Epochs, Schedule
from recipes.errors import Problem, nearest
from recipes.planning.cluster import Cluster
from recipes.reading.derived import position_rule
from recipes.reading.load import Origins, index_in
from recipes.reading.other_frameworks import key_here, kind_here, value_here
from recipes.reading.yaml import OTHER_WORDS, Origin, OverrideSource
from recipes.schema import Recipe
from recipes.schema.positions import UNITS, NoPosition, counted_by
from recipes.schema.vocabulary import Component, Unbuilt, Vocabulary, described_in, kind_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A key of a mapping in the YAML.

    Args:
        key: as it is written there.
        name: of the dataclass's field: the key, with an underscore appended if Python reserves the word.
        hint: its type.
        default: the value if it is left out; `dataclasses.MISSING` if it must be given.
        younger: the key was added after runs were made: the resolved tree leaves it out where it has its default, so
            that recipes without it resolve to the same bytes, and their runs resume.
    """

    key: str
    name: str
    hint: Any
    default: Any
    younger: bool = False

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The keys of a dataclass, in its order."""
    hints = get_type_hints(cls, include_extras=True)
    fields_ = []
    for field in filter(lambda each: each.init, dataclasses.fields(cls)):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        key, younger = field.name.rstrip("_"), field.metadata.get("younger", False)
        fields_.append(Field(key=key, name=field.name, hint=hints[field.name], default=default, younger=younger))
    return tuple(fields_)


def component_of(hint: Any) -> Component | None:
    """The group of a field that holds a component, None for any other field."""
    if hint == Schedule:
        return Component("schedules")
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Component)), None)


def options_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other hint the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def sections_with(cls: type, key: str) -> list[str]:
    """The keys of a dataclass whose value is a mapping that has this key: for `norm_span` of a recipe, `batch`."""
    return [
        field.key
        for field in fields_of(cls)
        for option in options_of(field.hint)
        if dataclasses.is_dataclass(option) and any(inner.key == key for inner in fields_of(option))
    ]


def words(hint: Any) -> str:
    """A type hint in words: what a value must be.

    >>> words(float), words(Literal["linear", "sqrt"]), words(tuple[int, ...]), words(int | None)
    ('a number', 'linear or sqrt', 'a list, each a whole number', 'a whole number or null')
    """
    plain = {
        float: "a number",
        int: "a whole number",
        str: "text",
        bool: "true or false",
        pathlib.Path: "a path",
        types.NoneType: "null",
        BatchRamp: "a whole number or a ramp",
    }
    options, origin = options_of(hint), get_origin(hint)
    if len(options) > 1:
        return " or ".join(map(words, options))
    if hint == Epochs:
        return UNITS
    if component := component_of(hint):
        return f"{'an' if component.word[0] in 'aeo' else 'a'} {component.word}: `kind` and its keys"
    if origin is Annotated:
        return words(get_args(hint)[0])
    if origin is Literal:
        names = [str(name) for name in get_args(hint)]
        return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    if origin is tuple:
        inner = [word for word in get_args(hint) if word is not ...]
        if ... in get_args(hint):
            return f"a list, each {words(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(map(words, inner))}"
    if origin in (dict, Mapping) and get_origin(get_args(hint)[1]) is tuple:
        return "`key: [value, ...]` pairs"
    if origin in (dict, Mapping) or (dataclasses.is_dataclass(hint) and hint not in plain):
        return "`key: value` pairs"
    return plain.get(hint, "a value")


Path = tuple[str | int, ...]
# (tree, its path, the values of the fields before it) -> (value, resolved tree)
Reader = Callable[[Any, Path, Mapping[str, Any]], tuple[Any, Any]]
# Stands for a value that was refused: the object around it is not built, and no further problem is noted for it.
REFUSED: Any = type("Refused", (), {"__repr__": lambda self: "REFUSED"})()

# What a file may say for a key that it must have.
_EXAMPLES = {
    "dataset": "imagenet",
    "model": "{kind: ResNet50}",
    "epochs": "90",
    "batch": "{global: 256}",
    "learning_rate": "{reference: 0.1, per: 256}",
    "optimizer": "{kind: MomentumSGD, momentum: 0.9}",
    "recipe": "digits/baseline",
    "budget": "{trials: 20}",
}


def _null_meant(raw: object, optional: bool) -> str:
    """A way out of a word that means null, where null may stand; else empty."""
    return "write `null`" if optional and isinstance(raw, str) and OTHER_WORDS.get(raw.lower()) == "null" else ""


@dataclasses.dataclass(kw_only=True)
class Reading:
    """Reads one tree; remembers what is wrong with it and which values it had to fill in.

    Args:
        origins: of the tree's values.
        vocabulary: what `kind` may be.
        lacks: names that the tree says are not built.
        may_lack: the tree has a key `lacks`.
        allow_code: a kind may be a dotted name of the user's own code; None leaves such a component unbuilt, for those
            who only look at the recipe.
        to_epochs: a position as written -> epochs, REFUSED or NoPosition; None while the data set is not known.
        rest_of_run: default length in epochs of a schedule; None if there is no default.
        of_run: the recipe is that of a run that was trained: `refuse_anew` notes warnings.
        copies_in: folders of runs whose copies serve where a file that is named is gone.
        tree: the whole recipe, for ways out that depend on its batch.
    """

    origins: Origins
    vocabulary: Vocabulary
    lacks: tuple[str, ...] = ()
    may_lack: bool = True
    allow_code: bool | None = False
    to_epochs: Callable[[object], float] | None = None
    rest_of_run: float | None = None
    of_run: bool = False
    copies_in: tuple[pathlib.Path, ...] = ()
    tree: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    warnings: list[Problem] = dataclasses.field(default_factory=list)
    notes: dict[Path, str] = dataclasses.field(default_factory=dict)
    not_shown: set[Path] = dataclasses.field(default_factory=set)  # younger keys that have their default

    def refuse(self, path: Path, what: str, way_out: str, *, at_key: bool = False) -> Any:
        """Notes a problem at a path, or at the nearest path above it that was written in a file; returns REFUSED."""
        at_key = at_key and path in self.origins
        self.problems.append(self.origin(path).problem(dotted(path), what, way_out, at_key=at_key))
        return REFUSED

    def refuse_pair(self, path: Path, other: Path, what: str, way_out: str) -> Any:
        """Notes that a value does not go with another: at that one, if it was given last, in a file that extends."""
        if self.is_later(other, path):
            return self.refuse(other, f"does not go with `{dotted(path)}`, {self.origin(path)}: {what}", way_out)
        return self.refuse(path, what, way_out)

    def refuse_anew(self, path: Path, other: Path, what: str, way_out: str) -> None:
        """As `refuse_pair`, for a rule that is younger than runs: in the recipe of a run it notes a warning."""
        self.refuse_pair(path, other, what, way_out)
        if self.of_run:
            self.warnings.append(self.problems.pop())

    def is_later(self, path: Path, other: Path) -> bool:
        """Whether a value was given after another: by an override, or in the file that extends the other's."""
        return self._outer(self.origin(path)) > self._outer(self.origin(other))

    def _outer(self, origin: Origin) -> int:
        if isinstance(origin.file, OverrideSource):
            return 2
        return int(("kilobatch",) in self.origins and origin.file == self.origins["kilobatch",].file)

    def origin(self, path: Path) -> Origin:
        """Where the value at a path, or the nearest path above it, was written."""
        while path not in self.origins:
            path = path[:-1]
        return self.origins[path]

    def record(
        self,
        cls: type,
        raw: object,
        path: Path,
        *,
        using: Mapping[str, Reader] | None = None,
        beside: tuple = (),
        optional: bool = False,
    ) -> tuple[Any, Any]:
        """A mapping as a dataclass.

        Args:
            cls: the dataclass.
            raw: the tree.
            path: of the tree.
            using: key -> reader for a value that is given, instead of by its hint.
            beside: further keys of the mapping, which the caller reads.
            optional: null may stand in its place.
        """
        if not isinstance(raw, dict):
            way_out = _null_meant(raw, optional) or value_here(dotted(path), raw, self.tree) or f"must be {words(cls)}"
            return self.refuse(path, f"is {_shown(raw)}", way_out), raw
        using = using or {}
        fields = fields_of(cls)
        values: dict[str, Any] = {}
        resolved = self._unbuilt_keys(cls, raw, path, [*beside, *(field.key for field in fields)])
        for field in fields:
            given = raw.get(field.key, dataclasses.MISSING)
            inner = (*path, field.key)
            if given is dataclasses.MISSING:
                value, tree = self._left_out(field, inner)
            elif field.key in using:
                value, tree = using[field.key](given, inner, values)
            else:
                value, tree = self.value(field.hint, given, inner)
            values[field.name], resolved[field.key] = value, tree
            if field.younger and value == field.default:
                del resolved[field.key]
                self.not_shown.add(inner)
                self.notes = {noted: note for noted, note in self.notes.items() if noted[: len(inner)] != inner}
        if any(value is REFUSED for value in values.values()):
            return REFUSED, resolved
        try:
            return cls(**values), resolved
        except (TypeError, ValueError) as error:
            return self.refuse_error(error, cls, path), resolved

    def value(self, hint: Any, raw: object, path: Path) -> tuple[Any, Any]:
        """One value by its hint."""
        options = options_of(hint)
        optional = types.NoneType in options
        if len(options) > 1:
            # Words and null first: any other value must be of the remaining option.
            for option in filter(_is_word, options):
                with suppress(ValidationError):
                    return _plain(option, raw), raw
            hint = next((option for option in options if not _is_word(option)), options[0])
        if hint == Epochs:
            return self.position(raw, path)
        if component := component_of(hint):
            return self.component(component, raw, path, optional=optional)
        if dataclasses.is_dataclass(hint):
            return self.record(hint, raw, path, optional=optional)
        if get_origin(hint) is tuple:
            return self._list(hint, raw, path)
        try:
            return _plain(hint, raw), raw
        except PydanticUserError:
            way_out = "annotate it with int, float, str, bool, Literal or a tuple of these"
            return self.refuse(path, f"has the type {hint}, which no YAML can give", way_out), raw
        except ValidationError:
            expected = " or ".join(map(words, options))
            way_out = f"must be {expected}"
            if isinstance(raw, str) and " or " in expected:
                guess = nearest(raw, [str(word) for option in options for word in get_args(option)])
                way_out += f", {guess}" if guess.startswith("did") else ""
                way_out = value_here(dotted(path), raw, self.tree) or way_out
                if bool in options and raw.lower() in OTHER_WORDS:
                    way_out = f"must be {expected}: write `{OTHER_WORDS[raw.lower()]}`"
            elif isinstance(raw, float) and raw.is_integer() and int in options:
                way_out += f": {int(raw)}"
            elif isinstance(raw, int | float) and str in options:
                way_out += ", in quotes"
            return self.refuse(path, f"is {_shown(raw)}", way_out), raw

    def position(self, raw: object, path: Path) -> tuple[Any, Any]:
        """A position or a duration, in epochs."""
        if self.to_epochs is None:
            return REFUSED, raw
        try:
            epochs = self.to_epochs(raw)
        except NoPosition as error:
            return self.refuse(path, str(error), f"write {error.units}"), raw
        if epochs is REFUSED:
            return REFUSED, raw
        resolved = int(epochs) if epochs.is_integer() else epochs
        if isinstance(raw, str) and counted_by(raw):
            self.notes[path] = f"{self.origin(path)}, {position_rule(raw, resolved)}"
        return epochs, resolved

    def component(
        self, component: Component, raw: object, path: Path, *, optional: bool = False, **options: Any
    ) -> tuple[Any, Any]:
        """A mapping with `kind` as an object of the vocabulary; `optional`: null may stand in its place."""
        if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
            known = sorted(getattr(self.vocabulary, component.group))
            way_out = f"give the {component.word} its `kind`" + (f": {' or '.join(known)}" if len(known) < 4 else "")
            if isinstance(raw, str):
                way_out = _null_meant(raw, optional) or self._kind_meant(component, raw)
            what = "has no `kind`" if isinstance(raw, dict) else f"is {_shown(raw)}"
            return self.refuse(path, what, way_out), raw
        kind = raw["kind"]
        # Schedules and warmups must be built: without them there is no curve and no plan.
        left_alone = kind in self.lacks or ("." in kind and self.allow_code is None)
        if left_alone and component.group not in ("schedules", "warmups"):
            fields = {key: value for key, value in raw.items() if key != "kind"}
            return Unbuilt(kind=kind, fields=fields), raw
        cls = self._class_of(component, raw, path)
        if cls is REFUSED:
            return REFUSED, raw
        given = dict(raw)
        needs_epochs = any(field.key == "epochs" and field.required for field in fields_of(cls))
        if component.group == "schedules" and needs_epochs and "epochs" not in given and self.rest_of_run is not None:
            if self.rest_of_run == 0:
                what = f"takes the whole run, and `joins: before` leaves {kind} no time"
                return self.refuse(("learning_rate", "warmup", "epochs"), what, "shorten the warmup"), raw
            given["epochs"] = self.rest_of_run
            self.notes[(*path, "epochs")] = "rule: the rest of the run"
        value, resolved = self.record(cls, given, path, beside=("kind", *options.pop("beside", ())), **options)
        return value, {"kind": kind, **resolved}

    def _kind_meant(self, component: Component, word: str) -> str:
        """A way out of a word in place of a component: `resnet50` is `{kind: ResNet50}`."""
        if word.lower() in OTHER_WORDS:
            return f"give the {component.word} its `kind`"
        known = {kind.lower(): kind for kind in getattr(self.vocabulary, component.group)}
        kind = known.get(word.replace("_", "").lower())
        return (
            kind is None and kind_here(word, {}, self.tree, word=component.word)
        ) or f"write `{{kind: {kind or word}}}`"

    def _class_of(self, component: Component, raw: Mapping[str, Any], path: Path) -> Any:
        group: Mapping[str, type] = getattr(self.vocabulary, component.group)
        kind, inner = raw["kind"], (*path, "kind")
        if "." in kind and not self.allow_code:
            return self.refuse(inner, f"{kind} is code of your own", "pass --allow-code to run it")
        try:
            cls = group[kind]
        except KeyError:
            way_out = kind_here(kind, raw, self.tree, word=component.word)
            way_out = way_out or nearest(kind, sorted(group), called="known")
            way_out += " (or name it in `lacks` if it is not built)" if self.may_lack else ""
            return self.refuse(inner, f"there is no {component.word} called {kind}", way_out)
        except (ImportError, AttributeError, TypeError) as error:
            return self.refuse(inner, f"{kind} cannot be used: {error}", "mend that module, or use another kind")
        if dataclasses.is_dataclass(cls) and not cls.__dataclass_params__.frozen:
            self.refuse_anew(inner, inner, f"{kind} is a mutable dataclass", "add frozen=True to @dataclass")
        return cls

    def _left_out(self, field: Field, path: Path) -> tuple[Any, Any]:
        if field.required:
            example = _EXAMPLES.get(dotted(path))
            way_out = f"add `{field.key}: {example}`" if example else f"add `{field.key}: ...`, {words(field.hint)}"
            return self.refuse(path, "is missing", way_out), None
        self.notes[path] = "default"
        if component_of(field.hint) and field.default is not None:
            return self.component(component_of(field.hint), {"kind": kind_of(field.default)}, path)
        if dataclasses.is_dataclass(field.default):
            return self.record(type(field.default), {}, path)
        plain = list(field.default) if isinstance(field.default, tuple) else field.default
        return field.default, plain

    def _list(self, hint: Any, raw: object, path: Path) -> tuple[Any, Any]:
        inner = get_args(hint)
        if not isinstance(raw, list) or (... not in inner and len(raw) != len(inner)):
            return self.refuse(path, f"is {_shown(raw)}", f"must be {words(hint)}"), raw
        hints = [inner[0]] * len(raw) if ... in inner else inner
        pairs = [self.value(each, raw[i], (*path, i)) for i, each in enumerate(hints)]
        resolved = [tree for _, tree in pairs]
        if any(value is REFUSED for value, _ in pairs):
            return REFUSED, resolved
        return tuple(value for value, _ in pairs), resolved

    def _unbuilt_keys(self, cls: type, raw: Mapping[str, object], path: Path, known: list[str]) -> dict[str, Any]:
        """Keys of methods in `lacks` (`repeated_augmentation` for RepeatedAugmentation); refuses other unknown keys."""
        lacked = {_folded(name) for name in self.lacks}
        unknown = [key for key in raw if key not in known]
        for key in unknown:
            if _folded(key) not in lacked:
                plain = key.removeprefix("n_")  # as Optuna writes
                inside = [f"{section}.{plain}" for section in sections_with(cls, plain)]
                way_out = f"it belongs one level down: {' or '.join(inside)}" if inside else ""
                way_out = way_out or self._of_the_cluster(cls, key, path)
                elsewhere = "" if way_out else key_here(dotted((*path, key)), raw, self.tree)
                way_out = way_out or elsewhere or nearest(key, known, called="known here")
                if not elsewhere and "kind" in known and isinstance(kind := raw.get("kind"), str):
                    place = dotted(path)
                    way_out += f"{'' if way_out.endswith('?') else ';'} if it was left by another kind, remove it; "
                    way_out += f"`{place}: {{kind: {kind}}}` begins without it, and so does --set '{place}={{...}}'"
                self.refuse((*path, key), "is not a known key", way_out, at_key=True)
        return {key: raw[key] for key in unknown}

    def _of_the_cluster(self, cls: type, key: str, path: Path) -> str:
        """A way out of a key of a cluster's file in a recipe; empty if it is none."""
        within = [key] if any(field.key == key for field in fields_of(Cluster)) else sections_with(Cluster, key)
        if cls is not Recipe or path or not within:
            return ""
        where = f"cluster.{key}" if within == [key] else f"cluster.{within[0]}.{key}"
        return f"it belongs to the cluster: `plan` and `train` take --set {where}=..., or write it in its file"

    def refuse_error(self, error: Exception, cls: type, path: Path) -> Any:
        """Notes a dataclass's error at the field it names: `Cosine.epochs must be > 0, got -1` at the key `epochs`."""
        match = re.match(rf"{cls.__name__}\.(\w+) (must .*?)(?:, got (.*))?$", str(error), re.DOTALL)
        key = match and match[1].rstrip("_")
        if match and any(field.key == key for field in fields_of(cls)):
            return self.refuse((*path, key), f"is {match[3]}" if match[3] else "is not possible", match[2])
        return self.refuse(path, str(error), f"see {cls.__name__} in {described_in(cls)}")


def dotted(path: Path) -> str:
    """A path as it is written in messages and in `assumed`."""
    return ".".join(map(str, path))


def names_in(raw: object) -> tuple[str, ...]:
    """The texts in what may be a list: names in `lacks`, before its own problems are noted."""
    return tuple(name for name in raw if isinstance(name, str)) if isinstance(raw, list) else ()


def value_at(tree: Any, path: str) -> Any:
    """The value at a dotted path of a tree; a number is the index in a list.

    Raises:
        LookupError: there is none.
    """
    for key in path.split("."):
        if isinstance(tree, list) and (index := index_in(tree, key)) is not None:
            tree = tree[index]
        elif isinstance(tree, dict):
            tree = tree[key]
        else:
            raise LookupError(path)
    return tree


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint)


def _plain(hint: Any, raw: Any) -> Any:
    """A value of YAML as an object of a type that is neither a component nor a dataclass.

    Raises:
        ValidationError: it is no such value.
        PydanticUserError: no YAML can give this type.
    """
    return _adapter(hint).validate_json(json.dumps(raw), strict=True)


def _is_word(hint: Any) -> bool:
    return hint is type(None) or get_origin(hint) is Literal


def _shown(raw: object) -> str:
    """A value in a message: short; a text, mapping or list with its type."""
    if isinstance(raw, str):
        return f"the text {raw[:40]!r}"
    if isinstance(raw, dict):
        return "a mapping"
    if isinstance(raw, list):
        return f"a list of {len(raw)}"
    return "null" if raw is None else "true" if raw is True else "false" if raw is False else f"{raw}"
