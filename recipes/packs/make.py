"""Packs of runs and of recipes: which files stand in them, and what their head says.

The folder of an opened pack is like that of a run: `recipe.yaml` with `dataset.yaml`, `identity.json`, the run's
`run.yaml`, `metrics.jsonl` and `environment.json`, and own code in `code/`. A pack of several runs, which differ in the
seed only, has each in `runs/SEED/` too. Where the recipe begins with given weights, `init.safetensors` holds them.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.cards.card import card_facts, card_markdown
from recipes.cards.picture import curve_picture
from recipes.diff.recipes import compare_recipes
from recipes.errors import InputRefused, RecipeError
from recipes.planning.timeline import timeline_of
from recipes.reading.identity import identity_tree
from recipes.reading.load import chain_of
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import SHOWN_PACK, library_name, shown
from recipes.reading.yaml import block_text
from recipes.reports.record import Run, open_run
from recipes.schema.dataset import url_of
from recipes.schema.vocabulary import Vocabulary
from recipes.sharing.canonical import canonical_json
from recipes.sharing.pack_file import FORMAT, claims_of

_OF_A_RUN = ("run.yaml", "metrics.jsonl", "environment.json")
SAMPLES = "samples.jsonl"  # of each update: digests of its sample ids and its images
WEIGHTS = "weights.safetensors"
_INIT = "init.safetensors"  # what the recipe begins with


def pack_contents(
    opened: OpenedRecipe,
    *,
    ids: Mapping[str, str | None],
    made_of: Mapping[str, Any],
    lock: str,
    runs: Sequence[tuple[OpenedRecipe, Path]] = (),
    own_code: Mapping[str, Path],
    vocabulary: Vocabulary,
    weights: bytes | None = None,
) -> tuple[dict[str, Any], dict[str, bytes | Path]]:
    """Head and files of a pack, for `write_pack`.

    Args:
        opened: the recipe; of runs, that of the lowest seed.
        ids: of `identity_ids`.
        made_of: SHA-256 of own code and of the data, by file and part.
        lock: versions of all packages here, a line each.
        runs: recipe and folder of each, by seed.
        own_code: files by their path below `code/`.
        vocabulary: of the recipe.
        weights: a file of safetensors, of the first run.
    Raises:
        InputRefused: runs that have not ended, or that differ in more than their seeds; weights to begin with that are
            not here.
    """
    _require_seeds_only(runs)
    read = [(each.recipe.seed, folder, open_run(folder)) for each, folder in runs]
    for _, folder, run in read:
        if run.outcome != "success" or run.final_accuracy is None:
            raise InputRefused(f"{folder}: the run has not reached its end; finish it with --resume, then pack it")
    claims = claims_from(opened, [run for *_, run in read])
    facts = card_facts(opened.recipe.name, opened, claims=claims_of({"claims": claims}) if read else ())
    dataset = dict(opened.dataset_tree)
    dataset["root"] = url_of(dataset["root"]) if dataset.get("root") else None  # no path of this machine
    tree, files = {**opened.tree, "dataset": "dataset.yaml"}, dict[str, bytes | Path]()
    if init := opened.tree.get("init"):
        if not Path(init["weights"]).is_file():
            what = f"init.weights: there is no file {init['weights']}, and a pack carries these weights"
            raise InputRefused(f"{what}; put the file there, or name it in the recipe")
        tree["init"], files[_INIT] = {**init, "weights": _INIT}, Path(init["weights"])
    files |= {
        "recipe.yaml": block_text(tree).encode(),
        "dataset.yaml": block_text(dataset).encode(),
        "identity.json": canonical_json({**made_of, "ids": ids}),
        "lock.txt": lock.encode(),
        "card.md": card_markdown(facts, picture="card.svg").encode(),
        "card.svg": curve_picture(opened.recipe).encode(),
    }
    files |= {f"code/{name}": path for name, path in own_code.items()}
    files |= dict(_sources(opened, read[0][2] if read else None, vocabulary))
    for seed, folder, _ in read:
        files |= dict(_files_of_run(folder, f"runs/{seed}/"))
    if read:
        files |= dict(_files_of_run(read[0][1], ""))
    head = {
        "kilobatch_pack": FORMAT,
        "name": opened.recipe.name,
        "title": opened.recipe.title,
        "ids": ids,
        "facts": facts_of(opened, [run for *_, run in read]),
        "runs": [_run(seed, folder, run) for seed, folder, run in read],
        "claims": claims,
    }
    if weights is not None:
        files[WEIGHTS] = weights
    return head, files


def _require_seeds_only(runs: Sequence[tuple[OpenedRecipe, Path]]) -> None:
    seeds: dict[int, Path] = {}
    for opened, folder in runs:
        if identity_tree(opened, without=("seed",)) != identity_tree(runs[0][0], without=("seed",)):
            what = f"{folder} is another training than {runs[0][1]}, not only another seed"
            raise InputRefused(f"{what}; see: kilobatch recipes diff {runs[0][1]} {folder}")
        if opened.recipe.seed in seeds:
            raise InputRefused(f"{folder} has the same seed as {seeds[opened.recipe.seed]}; name one of them")
        seeds[opened.recipe.seed] = folder


def _files_of_run(folder: Path, below: str) -> Iterator[tuple[str, bytes | Path]]:
    yield from ((f"{below}{name}", folder / name) for name in _OF_A_RUN)
    if (folder / SAMPLES).is_file():
        yield f"{below}{SAMPLES}", folder / SAMPLES
    elif (folder / "trace.jsonl").is_file():
        yield f"{below}{SAMPLES}", samples_of(folder / "trace.jsonl")


def samples_of(trace: Path) -> bytes:
    """A trace in short: for each update digests of its sample ids and of its images."""
    lines = []
    with trace.open(encoding="utf-8") as file:
        for text in file:
            line = json.loads(text)
            ids = hashlib.sha256(canonical_json(line["sample_ids"])).hexdigest()
            lines.append(canonical_json({"update": line["update"], "ids": ids, "images": line["images_sha256"]}))
    return b"".join(line + b"\n" for line in lines)


def _sources(opened: OpenedRecipe, run: Run | None, vocabulary: Vocabulary) -> Iterator[tuple[str, bytes]]:
    """The files that the recipe was written in, where each value comes from, and how it differs from its parent."""
    if run is None:
        chain = [path for path, _ in chain_of(opened.path)]
        texts = [path.read_bytes() for path in chain]
    else:
        kept = run.folder / "sources"
        chain = [Path(name) for name in json.loads((kept / "paths.json").read_bytes())] if kept.is_dir() else []
        texts = [(kept / f"{number}.yaml").read_bytes() for number in range(len(chain))]
    stems = [re.sub("[^A-Za-z0-9_.-]", "_", path.stem)[:60] for path in chain]
    files = {
        path: f"sources/{number}-{stem}.yaml" for number, (path, stem) in enumerate(zip(chain, stems, strict=True))
    }
    yield from zip(files.values(), texts, strict=True)
    origins = opened.origins if run is None else run.origins
    yield "origins.json", canonical_json({key: _in_pack(text, files) for key, text in origins.items()})
    if len(chain) > 1 and chain[1].is_file() and chain[1].read_bytes() == texts[1]:
        try:
            found = compare_recipes([str(chain[1]), str(opened.path)], vocabulary=vocabulary, allow_code=None).as_tree()
        except RecipeError:  # a parent that is no whole recipe
            return
        parent = library_name(chain[1]) or chain[1].stem
        for difference in found["differences"]:
            difference["origins"] = [text and _in_pack(text, files) for text in difference["origins"]]
            if difference["path"] in ("init", "init.weights"):
                difference["values"] = [_without_folder(value) for value in difference["values"]]
        yield "diff.json", canonical_json({"parent": parent, **{key: found[key] for key in ("differences", "effects")}})


def _in_pack(origins: str, files: Mapping[Path, str]) -> str:
    """Origins such as `/home/ann/base.yaml:9` by the names of these files in the pack: no path of this machine."""
    return ", ".join(_one_in_pack(origin, files) for origin in origins.split(", "))


def _one_in_pack(origin: str, files: Mapping[Path, str]) -> str:
    file, _, line = origin.rpartition(":")
    if not line.isdecimal() or file.startswith(("rule: ", SHOWN_PACK)):
        return origin
    same = [name for path, name in files.items() if file in (str(path), shown(path))]
    same += [name for path, name in files.items() if str(path).endswith(f"/{file}") or file.endswith(f"/{path}")]
    return f"{same[0] if same else Path(file).name}:{line}"


def _without_folder(value: Any) -> Any:
    """Weights that a recipe begins with, by the name of their file."""
    if isinstance(value, dict):
        return {key: _without_folder(inner) if key == "weights" else inner for key, inner in value.items()}
    return Path(value).name if isinstance(value, str) else value


def _run(seed: int, folder: Path, run: Run) -> dict[str, Any]:
    weights = last_weights(folder)
    return {
        "seed": seed,
        "accuracy": run.final_accuracy,
        "updates": len(run.updates),
        "seconds": round(run.seconds, 1),
        "workers": run.plan.get("workers"),
        "exact": bool(run.environment.get("exact")),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }


def last_weights(folder: Path) -> Path:
    """The weights of a run's newest checkpoint.

    Raises:
        InputRefused: it has none.
    """
    found = sorted(folder.glob(f"checkpoints/update-*/{WEIGHTS}"), key=lambda path: (len(path.parent.name), path))
    if not found:
        raise InputRefused(f"{folder} has no checkpoint, and a pack names the weights that a run came to")
    return found[-1]


def facts_of(opened: OpenedRecipe, runs: Sequence[Run]) -> dict[str, Any]:
    """What a search in a registry asks for; accuracy and device-hours are means over the runs."""
    recipe, claims = opened.recipe, opened.recipe.claims
    accuracies = [run.final_accuracy for run in runs] or [claim.value for claim in claims if claim.kind == "accuracy"]
    ranks = (run.environment.get("ranks") for run in runs)
    devices = [len(each) if isinstance(each, list) and each else 1 for each in ranks]
    hours = [run.seconds / 3600 * number for run, number in zip(runs, devices, strict=True)]
    return {
        "dataset": opened.dataset.name,
        "model": opened.tree["model"]["kind"],
        "batch": max(recipe.batch.global_.sizes),
        "epochs": recipe.epochs,
        "updates": timeline_of(recipe, opened.dataset).num_updates,
        "accuracy": statistics.fmean(accuracies[: len(runs) or 1]) if accuracies else None,
        "device_hours": round(statistics.fmean(hours), 4) if hours else None,
    }


def claims_from(opened: OpenedRecipe, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The accuracy that the runs have reached; without runs, the accuracies that the recipe claims."""
    own = [claim for claim in opened.recipe.claims if claim.kind == "accuracy"]
    if not runs:
        return [{key: value for key, value in vars(claim).items() if value not in (None, "")} for claim in own]
    values = [run.final_accuracy for run in runs]
    on = " and ".join(dict.fromkeys(map(_hardware, runs)))
    claim = {"metric": own[0].metric if own else "top1", "kind": "accuracy", "value": statistics.fmean(values)}
    claim |= {"runs": len(values), "status": "reproduced", "on": on}
    claim |= {"deviation": statistics.stdev(values)} if len(values) > 1 else {}
    claim |= {"margin": own[0].margin} if own and own[0].margin is not None else {}
    return [claim]


def _hardware(run: Run) -> str:
    ranks = [rank for rank in run.environment.get("ranks") or [] if isinstance(rank, dict)]
    device = next((str(rank[key]) for rank in ranks for key in ("gpu", "name") if rank.get(key)), None)
    return f"{len(ranks)} x {device or run.environment.get('cpu', 'unknown')}"
