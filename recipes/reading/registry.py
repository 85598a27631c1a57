"""Finds recipes, data sets, clusters, searches and frontiers by name."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from shlex import quote

from recipes.errors import InputRefused, Problem, RecipeError, nearest, refuse_unreachable
from recipes.sharing.cache import cache_folder
from recipes.sharing.pack_file import SUFFIX, open_pack
from recipes.sharing.registries import is_in_registry, registry_of

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")  # a folder's name may have 255 characters, and a run adds its date

_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARY = {
    "recipes": _PACKAGE / "papers",
    "datasets": _PACKAGE.parent / "configs" / "datasets",
    "searches": _PACKAGE.parent / "configs" / "searches",
    "frontiers": _PACKAGE.parent / "configs" / "frontiers",
    "clusters": _PACKAGE.parent / "configs" / "clusters",
}
_ONE = {
    "recipes": "recipe",
    "datasets": "dataset",
    "clusters": "cluster",
    "searches": "search",
    "frontiers": "frontier",
}
_SUFFIXES = (".yaml", ".yml")
PACKED = "recipe.yaml"  # the recipe in a pack
SHOWN_PACK = "pack "  # begins what is shown for the path of a file of a pack, see `shown`
_LONGEST_PART, _LONGEST_PATH = 255, 4000  # bytes
_FEW = 20  # names that fit into a message
_LIST = "`kilobatch recipes list` has the names"


class UnknownNameError(LookupError):
    """No file has this name: `what` was looked for, and a `way_out`."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what)
        self.what = what
        self.way_out = way_out


def find(kind: str, name: str) -> Path:
    """The file of a recipe, a data set, a cluster or a search.

    A name that ends in `.yaml` is a path, and one of a recipe that ends in `.kilobatch` is the path of a pack. Any
    other name is searched for in the library, in `./configs/KIND` and in the working directory, in this order, then
    among the recipes of installed packages, then in the registries that were added. `digits-ramp`, as in the name of a
    run's folder, also finds `digits/ramp`.

    Args:
        kind: `recipes`, `datasets`, `clusters`, `searches` or `frontiers`.
        name: such as `goyal2017`, `digits/large_batch` or `./mine.yaml`.
    Raises:
        UnknownNameError: there is no such file.

    >>> find("recipes", "nothing/here.yaml")
    Traceback (most recent call last):
    recipes.reading.registry.UnknownNameError: there is no file nothing/here.yaml
    """
    require_possible(name)
    if name.endswith(_SUFFIXES) or (kind == "recipes" and name.endswith(SUFFIX)):
        path = Path(os.path.expanduser(name))
        if path.is_file():
            return open_pack(path).folder / PACKED if path.suffix == SUFFIX else path
        raise UnknownNameError(f"there is no file {name}", f"give another path, or a name: {_some(kind, name)}")
    for folder in (_LIBRARY[kind], Path("configs", kind), Path()):
        for suffix in _SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                return path
    for known, path in _named(kind):
        if name in (known, known.replace("/", "-")):
            return path
    if kind == "recipes" and is_in_registry(name):
        registry, pack, version = registry_of(name)
        entry = registry.entry(pack, version)
        registry.require_signed(entry)
        return registry.pull(entry).folder / PACKED
    raise UnknownNameError(f"there is no {_ONE[kind]} called {name!r}", f"{_some(kind, name)}; a path ends in .yaml")


def require_possible(name: str) -> None:
    """Refuse a name or a path that no file system takes, before it is looked for.

    Raises:
        UnknownNameError: it is too long.
    """
    if not _is_possible(name):
        raise UnknownNameError("cannot be read: File name too long", f"check the path; {_LIST}")


def _is_possible(name: str) -> bool:
    longest = max(len(os.fsencode(part)) for part in name.split("/"))
    return longest <= _LONGEST_PART and len(os.fsencode(name)) <= _LONGEST_PATH


def path_of_pack(name: str) -> str:
    """The recipe's path in a pack that was named, by its file or in a registry; any other name unchanged."""
    return str(find_or_refuse("recipes", name)) if name.endswith(SUFFIX) or is_in_registry(name) else name


def obtained_folder(name: str) -> Path:
    """Where `kilobatch data get` puts the files of a data set.

    Raises:
        InputRefused: its name would lead elsewhere.
    """
    if not can_name_folder(name):
        raise InputRefused(f"{name!r} cannot name a folder in the cache; give another `name`, or --to FOLDER")
    return cache_folder() / "datasets" / name


def can_name_folder(name: str) -> bool:
    """Whether the folder of a run or a search can have this name on every machine."""
    return _NAME.fullmatch(name) is not None and name.strip(".") != ""


def require_suffix(file: Path) -> None:
    """Refuse a new file that could not be opened again by its path.

    Raises:
        RecipeError: it does not end in `.yaml`.
    """
    if file.suffix not in _SUFFIXES:
        way_out = f"call it {Path(os.path.abspath(file).rstrip('/') or 'mine').with_suffix('.yaml').name}"
        what = "the path of a recipe ends in .yaml"
        raise RecipeError([Problem(file=shown(file), what=what, way_out=way_out)])


@refuse_unreachable()
def find_or_refuse(kind: str, name: str) -> Path:
    """As `find`, for a name from the command line, which may also be the folder of a run.

    Raises:
        RecipeError: there is no such file, or the place to look in cannot be reached.
    """
    try:
        return find(kind, name)
    except UnknownNameError as error:
        of_run = Path(os.path.expanduser(name), "recipe.yaml")
        if kind == "recipes" and _is_possible(name) and of_run.is_file():
            return of_run
        raise RecipeError([Problem(file=name, what=error.what, way_out=error.way_out)]) from None


def names(kind: str) -> list[str]:
    """All names that `find` accepts, except those of files in the working directory itself, sorted, each once."""
    return sorted({name for name, _ in _named(kind)})


def is_of_library(path: Path) -> bool:
    """Whether a recipe's file is one of the library."""
    return path.resolve().is_relative_to(_LIBRARY["recipes"])


def library_name(path: Path) -> str | None:
    """The name of a recipe's file by which it is found from any folder; None for a file of the user's own."""
    for name, known in (*_below(_LIBRARY["recipes"]), *_of_packages()):
        if known.resolve() == path.resolve():
            return name
    return None


@refuse_unreachable()
def versioned_name(name: str) -> str | None:
    """The name of a recipe in a registry with its version, by default the newest; None for any other name."""
    if not is_in_registry(name):
        return None
    registry, pack, version = registry_of(name)
    return registry.entry(pack, version).name


def is_of_pack(path: Path) -> bool:
    """Whether a recipe's file is one of a pack, in the cache."""
    return path.resolve().is_relative_to(cache_folder().resolve() / "packs")


def shown(path: Path) -> str:
    """A path as a user would open it: relative if it lies below the working directory."""
    path, here = Path(os.path.realpath(path)), Path.cwd().resolve()  # `resolve` raises at a link to itself
    if path.is_relative_to(packs := cache_folder().resolve() / "packs"):
        digest, *parts = path.relative_to(packs).parts or ("",)
        return "/".join([f"{SHOWN_PACK}{digest[:12]}", *parts])
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def entry_points(*, group: str) -> Iterable[metadata.EntryPoint]:
    """Those of installed packages. Looking through these takes 10 ms, so it is done once until one is installed."""
    return _all_entry_points(tuple((folder, _changed(folder)) for folder in sys.path)).select(group=group)


@lru_cache(maxsize=1)
def _all_entry_points(path: tuple[tuple[str, int], ...]) -> metadata.EntryPoints:
    return metadata.entry_points()


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def typed(path: Path) -> str:
    """A path as a word of a command that is shown to be typed."""
    return quote(f"./{path}" if str(path).startswith("-") else str(path))


def _some(kind: str, name: str) -> str:
    known = names(kind)
    way_out = nearest(name.removesuffix(".yaml"), known, called=f"known {kind}")
    return way_out if len(known) <= _FEW or way_out.startswith("did") else _LIST


def _named(kind: str) -> Iterator[tuple[str, Path]]:
    yield from _below(_LIBRARY[kind])
    yield from _below(Path("configs", kind))
    if kind == "recipes":
        yield from _of_packages()


def _of_packages() -> Iterator[tuple[str, Path]]:
    """Recipes of installed packages."""
    for entry in entry_points(group="kilobatch.recipes"):
        # find_spec, not load: listing recipes must not run another package's code.
        try:
            spec = importlib.util.find_spec(entry.value)
        except Exception:  # of `a.b` it imports `a`, which is not there, or broken
            continue
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from ((f"{entry.name}/{name}", path) for name, path in _below(Path(folder)))


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.yaml")):
        yield path.relative_to(folder).with_suffix("").as_posix(), path
