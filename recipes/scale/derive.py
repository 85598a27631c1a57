"""Derives a recipe for another batch: the changes with their reasons, the new file, and the text that is printed."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, Problem, RecipeError
from recipes.lint.check import lint_recipe
from recipes.planning.rates import LARGEST_SHARE, LINEAR_HOLDS_TO, largest_linear_batch
from recipes.reading.load import resolved_text
from recipes.reading.open import OpenedRecipe, leaves, open_recipe
from recipes.reading.read import dotted, fields_of
from recipes.reading.registry import (
    can_name_folder,
    is_of_pack,
    library_name,
    require_suffix,
    shown,
    typed,
    versioned_name,
)
from recipes.scale.batch import batch_changes, with_positions
from recipes.scale.promise import require_promise
from recipes.scale.request import Change, Request, by_hand
from recipes.scale.rules import ERRORS_BEYOND, ada_scale, lars, linear, rate_ratio, rmsprop_warmup, square_root
from recipes.schema import Recipe
from recipes.schema.vocabulary import Vocabulary, rate_rule


def not_promised(request: Request) -> Iterator[str]:
    """Conclusions that a reader might draw from the new file and should not, one in a line."""
    kind, largest = request.value("optimizer.kind"), max(request.sizes)
    yield "accuracy: the claims of the reference are not carried over, and nobody has trained this file"
    yield (
        "that the rate is the best one: the best rates that Shallue et al. 2018 (arXiv 1811.03600) found follow "
        "neither the linear rule nor the root"
    )
    reach = float(request.kappa) * largest_linear_batch(request.recipe)
    if (rate_rule(request.recipe.optimizer) == "linear" or kind == "RmspropWarmup") and reach > LINEAR_HOLDS_TO:
        yield f"that linear scaling holds here; Goyal et al. 2017 (arXiv 1706.02677) saw {ERRORS_BEYOND}"
    if kind == "Lars":
        yield (
            "that the points hold elsewhere: they are ResNet-50 on ImageNet to 75.9 %, and between two of them nothing "
            "was run; epochs are those until the decay ends, not until the target"
        )
    if kind == "Lamb":
        yield "that the square root holds for LAMB: it is derived for RMSprop and Adam, whose direction LAMB normalises"
    if largest > LARGEST_SHARE * request.opened.dataset.num_train:
        yield (
            f"that the gradient's noise is as assumed: {largest:,} is more than a tenth of "
            f"{request.opened.dataset.num_train:,} (Smith et al. 2017, arXiv 1711.00489)"
        )
    if request.kappa > 1:
        yield (
            "less time: beyond the noise scale of the gradient (McCandlish et al. 2018, arXiv 1812.06162; `train "
            "--noise-scale`) a larger batch takes nearly as many updates"
        )


_SAID_BY_SCALE = ("batch-over-tenth", "linear-beyond-8k")  # rules of lint


def _found_by_lint(file: Path, options: Mapping[str, Any]) -> Iterator[str]:
    for finding in lint_recipe(file, **options):
        found = f"{finding.what}; {finding.way_out}"
        if finding.rule == "few-updates":
            yield f"that the network is trained: the new file makes {found}"
        elif finding.rule not in _SAID_BY_SCALE:
            yield f"that the file is ready to train: lint reports {finding.rule}: {finding.path}: {found}"


_WIDTH = 116  # columns of the printed text
_HEADER = "# Derived by `kilobatch`, which has printed the source of each reason.\n"


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A recipe at another batch.

    Args:
        before, batch: first global batch of the reference `recipe` and of the new one.
        rates: first full rate of the two.
        changes: every key that was considered, also those that stay.
    """

    recipe: str
    before: int
    batch: int
    rates: tuple[float, float]
    file: Path
    changes: tuple[Change, ...]
    not_promised: tuple[str, ...]

    def as_tree(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "recipe": self.recipe,
            "global_batch_size": [self.before, self.batch],
            "full_rate": list(self.rates),
            "file": str(self.file),
            "changes": [{**asdict(change), "moves": change.moves} for change in self.changes],
            "not_promised": list(self.not_promised),
        }


def scale_recipe(
    name_or_path: str | Path,
    *,
    batch: int,
    vocabulary: Vocabulary,
    beyond: bool = False,
    out: Path | None = None,
    allow_code: bool = False,
    data_root: Path | None = None,
) -> Scaled:
    """A new recipe that extends another one and begins with another global batch.

    Args:
        name_or_path, vocabulary, allow_code, data_root: as for `recipes.open_recipe`.
        batch: the new first global batch; every step of a ramp moves by the same factor.
        beyond: allow batches above those for which linear scaling is published.
        out: the new file; by default the recipe's name and the batch, in the working directory.
    Raises:
        InputRefused: no rule leads to this batch; the message says how far the rule goes.
        RecipeError: the recipe does not open, the file exists or cannot extend the recipe from where it is.
    """
    options: dict[str, Any] = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    opened = open_recipe(name_or_path, **options)
    request = Request(opened=opened, batch=batch, beyond=beyond)
    changes = _required_changes(request, vocabulary)
    file = out or Path(f"{opened.recipe.name}-{batch}.yaml")
    require_name(file)

    def check() -> OpenedRecipe:
        made = open_recipe(file, **options)
        require_promise(opened.recipe, made.recipe, ratio=_rate_ratio(request, changes))
        return made

    title = f"{opened.recipe.name} at batch {batch}, derived by rule and not measured"
    made = write_new(file, derived_text(opened, changes, file, title, name=name_or_path), check)
    return Scaled(
        recipe=opened.recipe.name,
        before=opened.recipe.batch.global_.sizes[0],
        batch=batch,
        rates=(request.rate, replace(request, opened=made).rate),
        file=file,
        changes=changes,
        not_promised=(*not_promised(request), *_found_by_lint(file, options)),
    )


def scaling_changes(opened: OpenedRecipe, *, batch: int, vocabulary: Vocabulary) -> tuple[Change, ...]:
    """What the rules change of a recipe at another batch; nothing is written.

    Raises:
        InputRefused: no published rule leads to this batch.
    """
    return _required_changes(Request(opened=opened, batch=batch), vocabulary)


def _required_changes(request: Request, vocabulary: Vocabulary) -> tuple[Change, ...]:
    _require_batch(request)
    changes = tuple(with_positions(request, (*batch_changes(request), *_by_optimizer(request, vocabulary))))
    _require_published(request, changes)
    return changes


def _by_optimizer(request: Request, vocabulary: Vocabulary) -> Iterator[Change]:
    kind = request.value("optimizer.kind")
    of_kind: Mapping[str, Callable[[Request], Iterator[Change]]] = {
        "AdaScale": ada_scale,
        "Lars": partial(lars, vocabulary=vocabulary),
        "RmspropWarmup": rmsprop_warmup,
    }
    of_rule = {"linear": linear, "sqrt": square_root}
    rule = of_kind.get(kind) or of_rule.get(rate_rule(request.recipe.optimizer))
    if rule is None:
        known = sorted({*of_kind, *(name for name in vocabulary.optimizers if rate_rule(vocabulary.optimizers[name]))})
        raise InputRefused(f"no rule says how {kind} follows the batch; known: {', '.join(known)}; {by_hand(kind)}")
    return rule(request)


def _rate_ratio(request: Request, changes: Sequence[Change]) -> float:
    """What the full rate is multiplied by, by the rule for this optimizer."""
    kind, rule = request.value("optimizer.kind"), request.recipe.learning_rate.rule
    if kind == "Lars":
        return next(change.after for change in changes if change.key == "learning_rate.reference") / request.rate
    if kind == "AdaScale" and rule == "none":  # the measured gain scales it
        return 1.0
    return rate_ratio(request)


def _require_batch(request: Request) -> None:
    name, first = request.recipe.name, request.recipe.batch.global_.sizes[0]
    if request.batch == first:
        raise InputRefused(f"{name} has a batch of {first:,} already; nothing was written")
    num_train = request.opened.dataset.num_train
    if max(request.sizes) > num_train:
        largest = f"{max(request.sizes):,} samples an update" + (
            " at the ramp's largest" if len(request.sizes) > 1 else ""
        )
        raise InputRefused(f"--batch {request.batch}: {largest}, and there are {num_train:,}; ask for fewer")


def _require_published(request: Request, changes: Sequence[Change]) -> None:
    """Refuse to scale a value that the recipe leaves open."""
    for path in request.recipe.open:
        for change in changes:
            if change.moves and f"{change.key}.".startswith(f"{path}."):
                raise InputRefused(f"{change.key} is left open by {request.recipe.name}: give it first")


def derived_text(
    opened: OpenedRecipe, changes: Sequence[Change], file: Path, title: str, *, name: str | Path = ""
) -> str:
    """The new file: what it extends, and only the changes, each with its reason as a comment.

    Args:
        name: by which the recipe was opened, for one in a registry.
    """
    order = [field.key for field in fields_of(Recipe)]
    moving = sorted((c for c in changes if c.moves), key=lambda change: order.index(change.key.partition(".")[0]))
    tree: dict[str, Any] = {"kilobatch": 1, "title": title, "extends": link(opened.path, file, name)}
    origins = dict.fromkeys(tree, "")
    for change in moving:
        inner, (*parents, last) = tree, change.key.split(".")
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = change.after
        origins |= dict.fromkeys(map(dotted, leaves(change.after, (change.key,))), change.reason)
    gone = tuple(f"{change.key}." for change in moving if change.after is None)
    kept = [path for path in opened.recipe.assumed if not path.startswith(gone)]
    tree["assumed"] = sorted({*kept, *(change.key for change in moving)})
    origins |= dict.fromkeys(map(dotted, leaves(tree["assumed"], ("assumed",))), "")
    return _HEADER + resolved_text(tree, origins)


def require_name(file: Path) -> None:
    """Refuse a file whose name, which is also the new recipe's name, cannot name a run's folder."""
    if not can_name_folder(file.stem):
        what = f"{file.stem!r} is the new recipe's name too, and cannot name a run's folder"
        way_out = "give a -o of the letters a to z and A to Z, digits, `_`, `.` and `-`, at most 200"
        raise RecipeError([Problem(file=shown(file), what=what, way_out=way_out)])


def link(path: Path, file: Path, name: str | Path = "") -> str:
    """The value of `extends` in `file` that refers to the recipe at `path`, which was opened by `name`."""
    known = versioned_name(str(name)) if is_of_pack(path) else library_name(path)
    if known is not None:
        return known
    if is_of_pack(path):
        way_out = "push it into a registry, and give its name there: REGISTRY/NAME@VERSION"
        what = "the recipe of a pack lies beside its data set"
        raise RecipeError([Problem(file=str(name) or shown(path), what=what, way_out=way_out)])
    folder = file.resolve().parent
    if not path.resolve().is_relative_to(folder):
        way_out = f"write it into {shown(path.parent)} or above: -o {Path(os.path.relpath(path.parent)) / file.name}"
        what = f"cannot extend {shown(path)}, which does not lie below it"
        raise RecipeError([Problem(file=str(file), what=what, way_out=way_out)])
    return str(path.resolve().relative_to(folder))


def write_new(file: Path, text: str, check: Callable[[], OpenedRecipe]) -> OpenedRecipe:
    """Writes a new file, and removes it again if it does not open as a recipe.

    Raises:
        RecipeError: it cannot be written, or does not open because of the recipe that it extends.
        InputRefused: a value of its own is refused, with no place in a file that is gone.
    """
    require_suffix(file)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        reason = "exists, and nothing is overwritten" if isinstance(error, FileExistsError) else str(error.strerror)
        problem = Problem(file=shown(file), what=reason, way_out="give another -o")
        raise RecipeError([problem]) from None
    try:
        return check()
    except Exception as error:
        file.unlink()
        own = [it for it in getattr(error, "problems", ()) if it.file == shown(file)]
        if own:
            what = "; ".join(f"{it.path}: {it.what}; {it.way_out}" for it in own)
            raise InputRefused(f"the derived recipe is not valid, and nothing was written: {what}") from None
        raise


def scaled_text(scaled: Scaled, as_json: bool = False, *, allow_code: bool = False) -> str:
    """Every key with its reason and source, then what is not promised.

    Args:
        allow_code: the command was given `--allow-code`, so the next one is too.
    """
    if as_json:
        return json.dumps(scaled.as_tree(), indent=2) + "\n"
    factor = scaled.batch / scaled.before
    rates = "full rate {:.6g} -> {:.6g}".format(*scaled.rates)
    lines = [f"{scaled.recipe}: batch {scaled.before:,} -> {scaled.batch:,} (k = {factor:g}), {rates}", ""]
    width = max(len(change.key) for change in scaled.changes)
    sources = list(dict.fromkeys(change.source for change in scaled.changes if change.source))
    for change in scaled.changes:
        lines += _values(change, width + 2)
        words = change.reason + (f" [{sources.index(change.source) + 1}]" if change.source else "")
        indent = " " * (width + 4)
        lines += textwrap.wrap(words, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    lines += ["", *(f"[{number}] {source}" for number, source in enumerate(sources, 1)), "", "Not promised:"]
    for text in scaled.not_promised:
        lines += textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    look = f"kilobatch recipes lint {typed(scaled.file)}{' --allow-code' if allow_code else ''}"
    lines += ["", f"wrote {scaled.file}; look at it: {look}"]
    return "\n".join(lines) + "\n"


def _values(change: Change, width: int) -> list[str]:
    """A key and its values, in two lines if they are long."""
    start = f"{change.key:{width}}"
    if change.before == change.after:
        return [f"{start}{_value(change.after)}, unchanged" + ("" if change.written else ", and written down")]
    before, after = _value(change.before), _value(change.after)
    if width + len(before) + len(after) > _WIDTH:
        return [f"{start}{before}", f"{' ' * width}-> {after}"]
    return [f"{start}{before} -> {after}"]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return "none" if value is None else json.dumps(value).strip('"')
