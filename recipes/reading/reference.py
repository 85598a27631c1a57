"""docs/recipes.md: every key of a recipe, a data set, a cluster and a search, from the dataclasses that read them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from functools import cache
from typing import Any

from recipes import schema
from recipes.planning import hardware
from recipes.planning.cluster import Cluster, GradientExchange
from recipes.reading.read import Field, component_of, fields_of, options_of, words
from recipes.schema.positions import UNITS
from recipes.schema.vocabulary import Component, Vocabulary, kind_of

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


@cache
def argument_texts(cls: type) -> dict[str, str]:
    """The texts of `Args:`, by argument, each as one line.

    >>> from lr_schedules import Exponential
    >>> argument_texts(Exponential)
    {'ratio': 'what is left of the factor after one epoch, in (0, 1].'}
    """
    texts: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in (inspect.getdoc(cls) or "").splitlines():
        if line == "Args:":
            inside = True
        elif inside and line and not line.startswith(" "):
            break
        elif inside and (entry := _ENTRY.fullmatch(line)):
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        elif inside and line.strip():
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def first_line(cls: type) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


_INTRODUCTION = """\
# Every key of a recipe

This page lists every key of a recipe, a data set, a cluster and a search. [write-a-recipe.md](write-a-recipe.md)
introduces them with an example. `kilobatch recipes schema --markdown` prints this page from the dataclasses that read
the files.

`kilobatch recipes schema` prints the same as a JSON Schema. An editor with the YAML language server then completes and
checks a recipe whose first line is `# yaml-language-server: $schema=recipe.schema.json`.

**The file.** A recipe is safe YAML and starts with `kilobatch: 1`, the version of these keys. Scalars follow YAML 1.2:
`1e-4` is a number, `on` and `1:30` are text, and only `true` and `false` are booleans. Tags, merge keys and a second
document are refused.

**Positions and durations.** A bare number counts epochs, and so does `30ep`. `500up` counts updates. `1.5Msp` counts
samples (`sp`, `ksp`, `Msp`, `Gsp`). `0.5run` is a part of the run. Opening a recipe turns all of them into epochs.
`every: 5up` is thus the time of the first five updates; after a batch ramp the same time holds fewer updates.

**`extends`** names a recipe of the library, or a path below the folder of this file. Mappings are merged key by key. A
list replaces a list, and null removes a key. A mapping with another `kind` replaces the whole mapping. `name`, `title`,
`source`, `claims` and `card` are not inherited, because nobody has published or measured the derived recipe, nor is
`assumed` of a value that it gives itself. `--set a.b=c` on the command line is one more layer;
`--set augmentation.train.0.size=128` changes an entry of a list.

**`lacks`** names methods that kilobatch does not implement. The recipe may then use a `kind` of that name, or a key
with the name in snake case (`SharpnessAware`: `sharpness_aware`). `validate`, `show`, `curve` and `plan` work;
`train` refuses the recipe and names the method.

**`assumed`, `open`, `card`** record how far the values can be trusted. `assumed` lists keys whose value the source does
not give. `open` lists keys whose value nobody has published; `train` refuses the recipe because of them. `card` is
background for the reader; [library.md](library.md) shows the cards of the library.

**Where a name is looked up.** kilobatch searches the library, then `configs/recipes` in the working directory (or
`configs/datasets`, `configs/clusters`, `configs/searches`, `configs/frontiers`), then the working directory, then
installed packages. A package offers recipes by the entry-point group `kilobatch.recipes`, whose value is a package with
YAML files. A name that ends in `.yaml` is a path.

**Your own code.** `kind: mymodule.MyNet` imports `mymodule.py` from the working directory or from the folder
of the recipe's file, and only under `--allow-code`. MyNet is a frozen dataclass with the method of its group, or for a
model a `chainer.Chain`; the arguments of its constructor are then the keys. See [own-components.md](own-components.md).
"""
_SECTIONS: tuple[tuple[str, type], ...] = (
    ("A recipe", schema.Recipe),
    ("`batch`", schema.Batch),
    ("A step of a ramp", schema.RampStep),
    ("`learning_rate`", schema.LearningRate),
    ("`learning_rate.warmup`", schema.Warmup),
    ("An entry of `learning_rate.factors`", schema.RateFactor),
    ("`schedules`", schema.Schedules),
    ("`stream`", schema.StreamOrder),
    ("`augmentation`", schema.Augmentation),
    ("`augmentation.end`", schema.AugmentationEnd),
    ("`init`", schema.Init),
    ("`evaluation`", schema.Evaluation),
    ("`evaluation.norm_momentum`", schema.NormMomentum),
    ("`stop_at`", schema.StopAt),
    ("`gradient`", schema.Gradient),
    ("`weight_average`", schema.WeightAverage),
    ("`precision`", schema.Precision),
    ("`updater`", schema.Updater),
    ("`updater.local_steps`", schema.LocalSteps),
    ("An entry of `claims`", schema.Claim),
    ("`card`", schema.Card),
    ("`card.evidence`", schema.Evidence),
    ("A data set: `configs/datasets/*.yaml`", schema.Dataset),
    ("`validation` of a data set", schema.Validation),
    ("`on_bad_image` of a data set, as a mapping", schema.StopAfter),
    ("A cluster: `configs/clusters/*.yaml`", Cluster),
    ("`exchange` of a cluster", GradientExchange),
    ("`hardware` of a cluster", hardware.Hardware),
    ("An entry of `rates` of `hardware`", hardware.Rate),
    ("`node_link` of `hardware`", hardware.NodeLink),
    ("`network` of `hardware`", hardware.NetworkLink),
    ("`input` of `hardware`", hardware.Input),
    ("`price` of `hardware`", hardware.Price),
    ("An entry of `all_reduces` of `hardware`", hardware.MeasuredAllReduce),
    ("`coordination` of `hardware`", hardware.Coordination),
    ("A search: `configs/searches/*.yaml`", schema.Search),
    ("`objective` of a search, or an entry of it", schema.Objective),
    ("An entry of `constraints` of a search", schema.Constraint),
    ("`budget` of a search", schema.Budget),
    ("`prior` of a search", schema.Prior),
    ("`confirm` of a search", schema.Confirm),
    ("`rungs` of a search", schema.Rungs),
    ("A frontier: `configs/frontiers/*.yaml`", schema.Frontier),
    ("`goal` of a frontier", schema.FrontierGoal),
    ("`batches` of a frontier, as a ladder", schema.Ladder),
    ("An entry of `methods` of a frontier", schema.Method),
    ("`budget` of a frontier", schema.PointBudget),
    ("`accuracy_at` of a frontier", schema.AccuracyAt),
)
# Keys whose default depends on the rest of the file; their meaning says how.
_RULES = {
    (schema.Recipe, "name"),
    (schema.Recipe, "loss"),
    (schema.Batch, "norm_span"),
    (schema.Warmup, "target_batch"),
    (schema.Search, "name"),
    (schema.Frontier, "name"),
    *((schema.Dataset, key) for key in ("name", "num_train", "num_eval", "num_classes")),
}


def reference(vocabulary: Vocabulary) -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION]
    parts += [f"## {title}\n\n{_about(cls)}\n" for title, cls in _SECTIONS]
    for field in dataclasses.fields(vocabulary):
        word = Component(field.name).word
        parts.append(f"## `kind`: {word}\n")
        for kind, cls in getattr(vocabulary, field.name).items():
            parts.append(f"### {kind}\n\n{_about(cls)}\n")
    return "\n".join(parts).rstrip() + "\n"


def _about(cls: type) -> str:
    rows = [_row(cls, field, argument_texts(cls).get(field.name, "")) for field in fields_of(cls)]
    table = ["| key | value | default | meaning |", "|---|---|---|---|", *rows]
    table = table if rows else ["It has no keys beside `kind`."]
    return "\n".join([first_line(cls), "", *table])


def _row(cls: type, field: Field, text: str) -> str:
    # The warmup's own kind and keys stand in the same mapping as `joins`.
    key = "`kind` and its keys" if (cls, field.key) == (schema.Warmup, "shape") else f"`{field.key}`"
    return f"| {key} | {_type(field.hint)} | {_default(cls, field)} | {text} |".replace("  ", " ")


def _type(hint: Any) -> str:
    options = [option for option in options_of(hint) if option is not type(None)]
    if len(options) == 1 and (component := component_of(options[0])):
        return f"`kind` of {component.word}"
    return words(hint).replace(UNITS, "a position")


def _default(cls: type, field: Field) -> str:
    if (cls, field.key) in _RULES:
        return "by rule"
    if field.required:
        return "required"
    if component_of(field.hint) and field.default is not None:
        return f"`{{kind: {kind_of(field.default)}}}`"
    if dataclasses.is_dataclass(field.default):
        return "its defaults"
    return f"`{json.dumps(field.default)}`" if field.default != "" else "empty"
