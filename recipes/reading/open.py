"""Opens recipes, data sets and clusters: from a name or a path to checked objects."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recipes.errors import InputRefused, RecipeError, refuse_unreachable
from recipes.planning.cluster import Cluster
from recipes.reading.derived import UNSURE, position_of, unsure
from recipes.reading.load import Origins, chain_of, load_tree, not_taken_over
from recipes.reading.read import REFUSED, Reading, dotted, names_in
from recipes.reading.read_recipe import read_recipe
from recipes.reading.registry import (
    PACKED,
    can_name_folder,
    find,
    find_or_refuse,
    is_of_pack,
    obtained_folder,
    require_possible,
)
from recipes.schema import Dataset, Recipe, Validation
from recipes.schema.dataset import url_of
from recipes.schema.vocabulary import Component, Unbuilt, Vocabulary

_RUN = "run.yaml"  # of a run, beside its recipe
_SEARCH = "search.yaml"  # in the folder of a search
CODE = "code"  # in the folder of a run or a pack: its own modules


@dataclass(frozen=True, kw_only=True)
class OpenedRecipe:
    """A recipe, checked.

    Args:
        recipe: with every position in epochs.
        dataset: its facts; of a recipe that holds samples out, with these in place of its evaluation split.
        tree: of the recipe, resolved: every default filled in; as a YAML file it opens to the same recipe.
        dataset_tree: of the data set, resolved, its `root` absolute; as a YAML file it opens to the same data set.
        origins: dotted path -> where the value comes from: `file:line`, `default`, `rule: ...`, `command line` or
            `search NAME trial 17`.
        path: of the file.
        reading: with the origins of its values, for later checks that refuse one.
        code_folders: where own code is looked for, first to last.
        not_taken_over: a line for each mapping that another `kind` on the command line replaced.
        unsure: a line for each value that may have to follow what was changed, and stays, see `derived.py`.
        counted: which of `num_train`, `num_eval` and `num_classes` the data set's file leaves to its reader.
    """

    recipe: Recipe
    dataset: Dataset
    tree: dict[str, Any]
    dataset_tree: dict[str, Any]
    origins: dict[str, str]
    path: Path
    reading: Reading
    code_folders: tuple[Path, ...]
    not_taken_over: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a new run would be refused for, if a run was trained with this recipe; `not_taken_over` and `unsure`."""
        return (*map(str, self.reading.warnings), *self.not_taken_over, *self.unsure)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why it cannot be trained now; empty if it can."""
        lacking = [*self.recipe.lacks, *self.dataset.lacks]
        reasons = (("not built", lacking), ("left open", self.recipe.open))
        return tuple(f"{words}: {', '.join(names)}" for words, names in reasons if names)


@refuse_unreachable()
def open_recipe(
    name_or_path: str | Path,
    *,
    vocabulary: Vocabulary,
    overrides: Sequence[str | None] = (),
    overrides_from: str = "command line",
    allow_code: bool | None = False,
    data_root: Path | None = None,
    copies_in: Sequence[Path] = (),
    of_run: bool | None = False,
    as_trained: bool = False,
) -> OpenedRecipe:
    """A recipe by its name in the library or the path of its file.

    Args:
        name_or_path: such as `goyal2017` or `./mine.yaml`.
        vocabulary: what `kind` may be.
        overrides: `a.b=c` as given to `--set`; None for an option that is for another file.
        overrides_from: who gave the overrides, for the origins.
        allow_code: a kind may be a dotted name, imported by the vocabulary; None: it is left unbuilt.
        data_root: folder of the data set's files, instead of its own `root`.
        copies_in: folders of runs whose copies of own code and initial weights may serve, after all others.
        of_run: a run was trained with it, so that rules younger than the run give `warnings`; None: if the file is that
            in the folder of a run.
        as_trained: it is looked at for the model of a run: positions are the epochs that they were then, also where
            other samples are scored than in the run.
    Raises:
        RecipeError: with all problems of the recipe, of what it extends, or of its data set.
    """
    path = find_or_refuse("recipes", str(name_or_path))
    how = {"overrides": overrides, "overrides_from": overrides_from, "counted_anew": not as_trained}
    tree, origins = load_tree(path, **how)
    folders = _code_folders(path, copies_in)
    if allow_code:
        _add_to_python_path(folders)
    of_run = path.name == PACKED and (path.parent / _RUN).is_file() if of_run is None else of_run
    how = {"allow_code": allow_code, "of_run": of_run, "copies_in": tuple(copies_in)}
    reading = Reading(origins=origins, vocabulary=vocabulary, **how)

    dataset_tree: dict[str, Any] = {}
    counted: list[str] = []

    def dataset_of(name: str) -> Dataset:
        require_possible(name)
        chain = chain_of(path) if name.endswith((".yaml", ".yml")) else []
        beside = (part.parent / name for part, _ in chain if (part.parent / name).is_file())
        file = next(beside, None) or find("datasets", name)
        how = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
        dataset, resolved, missing = _open_dataset(file, **how)
        dataset_tree.update(resolved)
        counted.extend(missing)
        return dataset

    recipe, dataset, resolved = read_recipe(reading, tree, stem=path.stem, open_dataset=dataset_of)
    reading.to_epochs = None  # all positions are read, and no process could be sent this function
    if reading.problems:
        raise RecipeError(reading.problems)
    origins_of = {dotted(leaf): _origin(leaf, reading.origins, reading.notes) for leaf in leaves(resolved)}
    typed = any(overrides) and overrides_from == "command line"  # a search would warn in each trial
    lost = not_taken_over(load_tree(path)[0], resolved, origins_of) if typed else ()
    return OpenedRecipe(
        recipe=recipe,
        dataset=dataset,
        tree=resolved,
        dataset_tree=dataset_tree,
        origins=origins_of,
        path=path,
        reading=reading,
        code_folders=folders,
        not_taken_over=tuple(lost),
        unsure=tuple(unsure(tree, origins)),
        counted=tuple(counted),
    )


def _code_folders(path: Path, copies_in: Sequence[Path]) -> tuple[Path, ...]:
    """The working directory, the folder of a recipe's file, then the copies in runs and packs, also in one that it
    extends. For the recipe of a pack, and for those that a search has written, the copies come first.
    """
    beside = [] if path.parent.resolve() == Path.cwd() else [path.parent]
    copies = [folder / CODE for folder in (*(file.parent for file, _ in chain_of(path)), *copies_in)]
    copies = [folder for folder in copies if folder.is_dir()]
    of_search = any((folder / _SEARCH).is_file() for folder in path.absolute().parents[:2])
    first = [folder for folder in copies if folder.parent == path.parent and (is_of_pack(path) or of_search)]
    return (*first, Path.cwd(), *beside, *(folder for folder in copies if folder not in first))


def _add_to_python_path(folders: Sequence[Path]) -> None:
    """Append the folders of own code: a folder `recipes` of the user's must not hide ours.

    If the working directory is already in the path, folders that come before it are put before it.
    """
    here = Path.cwd()
    texts = [str(folder.resolve()) for folder in folders]
    place = next((n for n, entry in enumerate(sys.path) if Path(entry).resolve() == here), len(sys.path))
    sys.path[place:place] = [text for text in texts[: folders.index(here)] if text not in sys.path]
    sys.path += [text for text in texts if text not in sys.path]


def open_dataset(
    name: str,
    *,
    vocabulary: Vocabulary,
    allow_code: bool | None = False,
    overrides: Sequence[str] = (),
    data_root: Path | None = None,
    counting: bool = True,
) -> Dataset:
    """A data set's facts by its name or path.

    Args:
        overrides: `a.b=c`, of its file.
        counting: let the reader count what the file leaves out; else these counts are of no data.
    Raises:
        RecipeError: with all that is wrong.
    """
    file = find_or_refuse("datasets", name)
    dataset, *_ = _open_dataset(
        file,
        vocabulary=vocabulary,
        allow_code=allow_code,
        data_root=data_root,
        counting=counting,
        overrides=overrides,
    )
    return dataset


def open_cluster(name: str, *, vocabulary: Vocabulary, overrides: Sequence[str | None] = ()) -> Cluster:
    """A cluster by its name or path.

    Args:
        name: such as `laptop`, or a path.
        vocabulary: what `kind` may be.
        overrides: `cluster.a.b=c` as given to `--set`; None for an option that is for another file.
    Raises:
        RecipeError: with all that is wrong with it or with an override.
    """
    return read_cluster(name, vocabulary=vocabulary, overrides=overrides)[0]


def read_cluster(name: str, *, vocabulary: Vocabulary, overrides: Sequence[str | None] = ()) -> tuple[Cluster, Reading]:
    """A cluster, see `open_cluster`, and its `Reading`, for later checks that refuse a value."""
    path = find_or_refuse("clusters", name)
    tree, origins = load_tree(path, overrides=overrides, kind="cluster")
    tree.pop("kilobatch", None)
    reading = Reading(origins=origins, vocabulary=vocabulary)
    cluster, _ = reading.record(Cluster, tree, ())
    if reading.problems:
        raise RecipeError(reading.problems)
    return cluster, reading


def _open_dataset(
    path: Path,
    *,
    vocabulary: Vocabulary,
    allow_code: bool | None,
    data_root: Path | None,
    counting: bool = True,
    overrides: Sequence[str] = (),
) -> tuple[Dataset, dict[str, Any], list[str]]:
    """The data set, its resolved tree, and the keys that the reader has counted."""
    tree, origins = load_tree(path, kind="data set", overrides=overrides)
    tree.pop("kilobatch", None)
    lacks = names_in(tree.get("lacks"))
    reading = Reading(origins=origins, vocabulary=vocabulary, allow_code=allow_code, lacks=lacks)
    tree.setdefault("name", path.stem)
    name = str(tree["name"])
    if tree.get("sources") and not can_name_folder(name):
        way_out = "write a `name:` of the letters a to z and A to Z, digits, `_`, `.` and `-`, at most 200"
        reading.refuse(("name",), f"{name!r} cannot name a folder, and files of the data set lie in one", way_out)
        raise RecipeError(reading.problems)
    root = data_root
    if root is None and isinstance(tree.get("root"), str):
        text = tree["root"]
        root = Path(text) if url_of(text) else path.parent / os.path.expanduser(text)
    if data_root is None and (obtained := _obtained(tree)) is not None and (root is None or not root.exists()):
        root = obtained
    if root is not None and (url := url_of(root)) and "@" in urlsplit(url).netloc:
        what = "the URL of the data holds credentials, and recipes and runs are shared"
        raise InputRefused(f"{what}; leave them to fsspec: its configuration, or variables such as AWS_PROFILE")
    missing = [key for key in ("num_train", "num_eval", "num_classes") if key not in tree]
    _count(tree, missing, root, reading, counting)
    dataset, resolved = reading.record(Dataset, tree, ())
    if tree.get("validation") is None:  # a younger key, see `read_recipe`
        resolved.pop("validation", None)
    elif dataset is not REFUSED:
        dataset = dataclasses.replace(dataset, reader=_without_evaluation(dataset.reader))
    if dataset is not REFUSED and dataset.reader is not None and "channels" not in tree["reader"]:
        dataset = _with_channels(dataset, resolved["reader"], reading)
    if dataset is not REFUSED and (gives := getattr(dataset.reader, "channels", dataset.channels)) != dataset.channels:
        what = f"is {dataset.channels}, and {type(dataset.reader).__name__} gives images of {gives}"
        way_out = f"write channels: {dataset.channels} in `reader` too, or {gives} here"
        reading.refuse(("channels",), what, way_out)
    if reading.problems:
        raise RecipeError(reading.problems)
    resolved = {**resolved, "root": root and (url_of(root) or os.path.realpath(root))}
    return dataclasses.replace(dataset, root=root), resolved, missing


def _obtained(tree: Mapping[str, Any]) -> Path | None:
    """The folder where `kilobatch data get` put the files of a data set; None if it did not."""
    for source in tree.get("sources") or ():
        if isinstance(source, dict) and source.get("url"):
            folder = obtained_folder(str(tree["name"])) / str(source.get("folder") or "")
            if folder.is_dir():
                return folder
    return None


def _count(tree: dict[str, Any], missing: list[str], root: Path | None, reading: Reading, counting: bool) -> None:
    """Fills in the counts that the file leaves out, by the reader; those of what is held out, by its share."""
    if not missing or "reader" not in tree:
        return
    # Problems of the reader itself are noted when the whole file is read.
    trial = dataclasses.replace(reading, problems=[], notes={})
    reader, _ = trial.component(Component("datasets"), tree["reader"], ("reader",))
    validation, _ = trial.value(Validation | None, tree.get("validation"), ("validation",))
    shares = validation.split(10**9) if isinstance(validation, Validation) else {}
    any_counts = dict.fromkeys(missing, 1) | shares  # where only the reader is to be refused
    if isinstance(reader, Unbuilt):
        if "." in reader.kind:
            what = f"{reader.kind} is code of your own, and counts the samples"
            reading.refuse(("reader", "kind"), what, f"pass --allow-code to run it, or write {missing[0]} here to plan")
            tree.update(any_counts)
        return
    if reader is REFUSED or not counting:
        tree.update(any_counts)
        return
    try:
        if isinstance(validation, Validation):
            facts = _without_evaluation(reader).facts(root)
            facts |= validation.split(facts["num_train"])
        else:
            facts = {"num_eval": 1} | reader.facts(root)  # a reader without that split is refused by `Dataset`
    except (LookupError, OSError, ValueError) as error:
        way_out = f"give {'its' if root is None else 'another'} folder with --data"
        if root is None or not root.exists():  # else the data are there, and not as they should be
            way_out += f", or write {missing[0]} here to plan"
        reading.refuse(("reader",), f"cannot count: {error}", way_out)
        facts = any_counts
    tree.update({key: facts[key] for key in missing if key in facts})


def _with_channels(dataset: Dataset, reader: dict[str, Any], reading: Reading) -> Any:
    """The data set, whose reader gives as many channels if it has a key for them, also in its tree `reader`."""
    if all(field.name != "channels" for field in dataclasses.fields(dataset.reader)):
        return dataset
    try:
        given = dataclasses.replace(dataset.reader, channels=dataset.channels)
    except ValueError as error:
        return reading.refuse_error(error, type(dataset.reader), ("reader",))
    reader["channels"] = dataset.channels
    return dataclasses.replace(dataset, reader=given)


def _without_evaluation(reader: Any) -> Any:
    """The reader for data that have no evaluation split; itself if it has no key for one."""
    return reader if getattr(reader, "eval", None) is None else dataclasses.replace(reader, eval=None)


def leaves(tree: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values of a tree that hold no others; `path` is that of the tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [leaf for key, value in pairs for leaf in leaves(value, (*path, key))] or [path]


def _origin(leaf: tuple[str | int, ...], origins: Origins, notes: Mapping[tuple[str | int, ...], str]) -> str:
    """The origin of a value: where it, or the nearest mapping around it, was written, or that it was filled in."""
    for length in range(len(leaf), -1, -1):
        path = leaf[:length]
        if path in notes:
            return notes[path]
        if path in origins and (length or not leaf):
            rule = origins[path].rule
            if position_of(rule):
                return f"{origins[path]}, {rule}"
            return rule if rule not in ("", UNSURE) else str(origins[path])
    return "default"
