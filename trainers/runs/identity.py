"""What a run was made of besides its recipe: the user's own code, and the data. Recorded, and compared later."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, listed
from recipes.reading.identity import recipe_id
from recipes.reading.open import CODE, OpenedRecipe
from recipes.schema import Dataset
from recipes.schema.vocabulary import Vocabulary
from recipes.sharing.canonical import digest_of
from trainers.runs.run_folder import read_file, write_whole

IDENTITY = "identity.json"
WHATS = ("code", "data")
# The group whose names stand below a key of a recipe or a data set.
_GROUPS = {
    "model": "models",
    "optimizer": "optimizers",
    "loss": "losses",
    "metrics": "metrics",
    "extensions": "extensions",
    "augmentation": "augmentations",
    "mix": "mixes",
    "schedule": "schedules",
    "schedules": "schedules",
    "warmup": "warmups",
    "reader": "datasets",
}


class IdentityChanged(InputRefused):
    """Code or data are not those that the run began with; names them and the way on."""


def is_of_the_user(made: object) -> bool:
    """Whether a class of the user's own, or of another package, made this part, reader or sample set."""
    return not type(made).__module__.startswith("trainers.")


def own_code(trees: Iterable[Any], folders: Sequence[Path]) -> dict[str, Path]:
    """The files of the user's own modules, by their path below a folder: those that dotted kinds name, and what these
    import from beside them.

    Found by reading the source, so that imports within functions count too, and nothing is run.

    Args:
        trees: a resolved recipe and its data set.
        folders: where modules are imported from, first to last.
    """
    return _with_imports(_named_modules(trees), folders)


def _with_imports(modules: Sequence[str], folders: Sequence[Path], *, within: str | None = None) -> dict[str, Path]:
    """The files of modules and of what they import from these folders; `within`: only from this package."""
    waiting, found = [*modules], {}
    while waiting:
        module = waiting.pop()
        if within not in (None, module.partition(".")[0]):
            continue
        for name, file in _files_of(module, folders):
            if name not in found:
                found[name] = file
                waiting += _imports(file, module if file.name == "__init__.py" else module.rpartition(".")[0])
    return dict(sorted(found.items()))


def installed_code(trees: Iterable[Any], vocabulary: Vocabulary) -> dict[str, str]:
    """Version and SHA-256 of each file of the installed packages that give a `kind` by an entry point.

    Of a package these are the module that the entry point names, and what it imports from its own package; where no
    file is found, such as in an archive, its name and version.
    """
    kinds = {pair for tree in trees for pair in _grouped_kinds(tree, None) if pair[0] is not None}
    entries = {getattr(vocabulary, group).entry_point(kind) for group, kind in kinds}
    found = {}
    for entry in entries:
        if entry is None or entry.dist is None:
            continue
        package, name, version = entry.module.partition(".")[0], entry.dist.name, entry.dist.version
        spec = importlib.util.find_spec(package)
        places = spec and (spec.submodule_search_locations or filter(None, [spec.origin]))
        folders = [Path(place).parent for place in places or ()]
        files = _with_imports([entry.module], folders, within=package)
        digests = {f"{path} of {name}": f"{version} {digest}" for path, digest in sha256_of_files(files).items()}
        found |= digests or {name: version}
    return dict(sorted(found.items()))


def code_digests(trees: Sequence[Any], folders: Sequence[Path]) -> dict[str, str | None]:
    """SHA-256 of each file of `own_code`, and None at each module that a dotted kind names and no file has."""
    unseen = [module for module in _named_modules(trees) if not any(_files_of(module, folders))]
    return {**sha256_of_files(own_code(trees, folders)), **dict.fromkeys(unseen)}


def recipe_and_code_id(opened: OpenedRecipe) -> str:
    """SHA-256 of what a recipe trains, in any spelling, and of the user's own code in it."""
    code = sha256_of_files(own_code([opened.tree, opened.dataset_tree], opened.code_folders))
    return digest_of({"recipe": recipe_id(opened), "code": code})


def identity_of(opened: OpenedRecipe) -> dict[str, Any]:
    """What decides a run besides its recipe, as plain data: SHA-256 of each own file, and of each part of the data.

    Beside them `classes`, the names of the classes in the order of their labels, where they have names, and
    `installed`, see `installed_code`, where there is any.
    """
    trees, dataset = [opened.tree, opened.dataset_tree], opened.dataset
    code = sha256_of_files(own_code(trees, opened.code_folders))
    made_of = {"code": code, "data": digests_of_data(dataset.reader, dataset)}
    if names := dataset.class_names():
        made_of["classes"] = names
    if installed := installed_code(trees, opened.reading.vocabulary):
        made_of["installed"] = installed
    return made_of


def digests_of_data(reader: Any, dataset: Dataset) -> dict[str, str]:
    """SHA-256 of each part of the data that a reader finds in the data set's root; of all where it has no parts."""
    parts = getattr(reader, "fingerprints", None)
    return parts(dataset.root) if parts else {dataset.name: reader.fingerprint(dataset.root)}


def sha256_of_files(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file."""
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """In words what of `code` and `data` is not as it was; empty where all is."""
    found = {}
    for what in WHATS:
        was, has = before.get(what), now.get(what) or {}
        if not isinstance(was, Mapping):  # not known
            continue
        if what == "code" and isinstance(before.get("installed"), Mapping):  # runs of older versions have none
            was, has = {**was, **before["installed"]}, {**has, **now.get("installed", {})}
        words = [f"{name} is gone" for name in was if name not in has]
        words += [f"{name} is new" for name in has if name not in was]
        words += [f"{name} has changed" for name in has if name in was and was[name] != has[name]]
        if words:
            found[what] = f"{what}: {listed(words)}"
    return found


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What was recorded in a run's folder; None where nothing was, or it is damaged."""
    try:
        tree = json.loads(read_file(folder / IDENTITY).decode())
    except (OSError, RecursionError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None


def known_identity(folder: Path) -> tuple[dict[str, Any], str]:
    """What a run was made of, as far as its folder tells, and in words why that is not all; empty where it is.

    Without the record, the copies of the run's own code tell what its code was.
    """
    if (recorded := read_identity(folder)) is not None:
        return recorded, ""
    files = {path.relative_to(folder / CODE).as_posix(): path for path in (folder / CODE).rglob("*.py")}
    copies = sha256_of_files({name: file for name, file in sorted(files.items()) if file.is_file()})
    why = f"{folder / IDENTITY} is {'damaged' if os.path.lexists(folder / IDENTITY) else 'missing'}"
    return {"code": copies} if copies else {}, why


def require_same_identity(
    folder: Path, now: Callable[[], Mapping[str, Any]], *, accepted: Sequence[str]
) -> dict[str, str]:
    """Refuse to resume with other code or other data than the run in `folder` has, unless that is accepted.

    Returns:
        what has changed, see `changes`.
    Raises:
        IdentityChanged: names what differs, or the record is damaged.
    """
    before, unknown = known_identity(folder)
    if os.path.lexists(folder / IDENTITY) and unknown and not set(accepted) >= set(WHATS):
        raise IdentityChanged(
            f"{unknown}, so it is not known whether own code or data have changed; put back the run's own file, go on "
            f"all the same with --accept-changed {','.join(WHATS)}, which is recorded, or start anew in another --out"
        )
    changed = changes(before, now()) if before else {}
    refused = [text for what, text in changed.items() if what not in accepted]
    if refused:
        words = ",".join(changed)
        copy = f" ({folder / CODE} has its own code)" if (folder / CODE).is_dir() else ""
        raise IdentityChanged(
            f"{folder} was trained with other {' and '.join(changed)}; {'; '.join(refused)}; put back what it had"
            f"{copy}, go on all the same with --accept-changed {words}, which is recorded, or "
            "start anew in another --out"
        )
    return changed


def write_identity(folder: Path, now: dict[str, Any], files: Mapping[str, Path], *, update: int) -> list[str]:
    """Record what a run is made of from `update` on, and copy its own code; returns warnings of what has changed."""
    before, unknown = known_identity(folder)
    changed = list(changes(before, now).values())
    warnings = [f"warning: goes on from update {update} with changed {text}" for text in changed]
    if unknown and update:
        lost = " or ".join(what for what in WHATS if what not in before)
        changed.append(f"{unknown}: it is not known whether {lost} have changed")
        warnings.append(f"warning: {changed[-1]}")
    accepted = list(before.get("accepted", ()))
    accepted += [{"from_update": update, "changed": changed}] if changed else []
    text = json.dumps({**now, "accepted": accepted}, indent=1) + "\n"
    copy_code(folder, files)
    write_whole(folder / IDENTITY, text)
    return warnings


def copy_code(folder: Path, files: Mapping[str, Path]) -> None:
    """Copy own code into `code/` of a run or a search; `files` as of `own_code`."""
    for name, file in files.items():
        copy = folder / CODE / name
        if file.resolve() != copy.resolve():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_whole(copy, file.read_bytes())


def _named_modules(trees: Iterable[Any]) -> list[str]:
    return sorted({name.rpartition(".")[0] for tree in trees for name in _kinds(tree) if "." in name})


def _kinds(tree: Any) -> Iterator[str]:
    return (kind for _, kind in _grouped_kinds(tree, None))


def _grouped_kinds(tree: Any, group: str | None) -> Iterator[tuple[str | None, str]]:
    """Each `kind`, and the group whose name it is."""
    if isinstance(tree, Mapping):
        if isinstance(kind := tree.get("kind"), str):
            yield group, kind
        for key, inner in tree.items():
            yield from _grouped_kinds(inner, _GROUPS.get(key, group))
    for inner in tree if isinstance(tree, list) else ():
        yield from _grouped_kinds(inner, group)


def _files_of(module: str, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The file of a module and of the packages around it, by its path below the first folder that has it."""
    parts = module.split(".")
    for folder in folders:
        below = [Path(*parts[: n + 1], "__init__.py") for n in range(len(parts))]
        names = [name for name in below if (folder / name).is_file()]
        plain = Path(*parts).with_suffix(".py")
        names += [plain] if (folder / plain).is_file() else []
        if names and not _is_ours(folder / parts[0]):
            yield from ((name.as_posix(), folder / name) for name in names)
            return


def _is_ours(path: Path) -> bool:
    """Whether a folder is one of kilobatch's own packages, as where the working directory is its checkout."""
    ours = Path(__file__).resolve().parents[2]
    return path.resolve() in {ours / name for name in ("trainers", "recipes", "lr_schedules")}


def _imports(file: Path, package: str) -> list[str]:
    """Modules that a file may import: dotted names, absolute."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name]
