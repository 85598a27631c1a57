"""A recipe's card: its facts, and these as text for a terminal and as Markdown."""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from lr_schedules import BatchRamp
from recipes.errors import printable
from recipes.planning.rates import learning_rate_at
from recipes.planning.timeline import timeline_of
from recipes.reading.open import OpenedRecipe
from recipes.reports.wording import counted, duration, number, percent
from recipes.schema import Card, Claim, Recipe

_NUM_POINTS = 1000
_WIDTH = 100  # of a card as text


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The contents of a recipe's card, whose `card` is None where the recipe has none.

    Args:
        claims: (what is claimed, on which hardware, status, source), one for each claim.
        values: (what, value), the recipe in a dozen lines.
        obstacles: why it cannot be trained now; empty if it can.
        has_own_code: it names own modules, which training imports only if it is asked to.
        assumed, open: paths of values that the source does not give, and that nobody published.
    """

    name: str
    title: str
    source: str
    url: str
    card: Card | None
    claims: tuple[tuple[str, str, str, str], ...]
    values: tuple[tuple[str, str], ...]
    obstacles: tuple[str, ...]
    has_own_code: bool
    assumed: tuple[str, ...]
    open: tuple[str, ...]


def card_facts(name: str, opened: OpenedRecipe, *, claims: Sequence[Claim] = ()) -> CardFacts:
    """The facts of an opened recipe.

    Args:
        name: what the library calls it.
        opened: the recipe.
        claims: what its runs have reached, in place of what it claims itself; empty if it has no runs. Their status
            is "by its runs", whatever they say.
    """
    recipe, source = opened.recipe, opened.recipe.source
    parts = [source.get("authors"), source.get("title"), source.get("year")]
    return CardFacts(
        name=name,
        title=recipe.title or "no title",
        source=", ".join(str(part) for part in parts if part),
        url=str(source.get("url", "")),
        card=recipe.card,
        claims=tuple(
            (claim_text(claim), claim.on, "by its runs" if claims else claim.status, claim.source)
            for claim in claims or recipe.claims
        ),
        values=tuple(_values(opened)),
        obstacles=opened.obstacles,
        has_own_code=_has_own_code([opened.tree, opened.dataset_tree]),
        assumed=recipe.assumed,
        open=recipe.open,
    )


def _has_own_code(tree: Any) -> bool:
    """Whether a `kind` in plain data is a dotted name."""
    if isinstance(tree, Mapping):
        return "." in str(tree.get("kind")) or any(map(_has_own_code, tree.values()))
    return isinstance(tree, list) and any(map(_has_own_code, tree))


def claim_text(claim: Claim) -> str:
    """What is claimed, with its deviation and the number of runs.

    >>> fields = {"metric": "top1", "kind": "accuracy", "value": 0.7626, "status": "not run"}
    >>> claim_text(Claim(**fields, deviation=0.0009, runs=5))
    'top-1 76.26 % ± 0.09 (5 runs)'
    >>> claim_text(Claim(metric="hours", kind="time_to_train", value=0.25, status="not run"))
    '15 min 00 s'
    """
    runs = f" ({counted(claim.runs, 'run')})" if claim.runs else ""
    if claim.kind == "accuracy":
        deviation = "" if claim.deviation is None else f" ± {100 * claim.deviation:.2f}"
        return f"{claim.metric.replace('top', 'top-')} {percent(claim.value)}{deviation}{runs}"
    deviation = "" if claim.deviation is None else f" ± {number(claim.deviation)}"
    if claim.metric == "hours":
        return duration(3600 * claim.value) + runs
    return f"{number(claim.value)}{deviation} {claim.metric}{runs}"


def peak_rate(recipe: Recipe) -> float:
    """The largest learning rate of the run, or its limit just before a jump, such as the end of a warmup may be."""
    epochs = [recipe.epochs * point / _NUM_POINTS for point in range(_NUM_POINTS)]
    epochs += recipe.batch.global_.boundaries
    if recipe.learning_rate.warmup is not None:
        end = recipe.learning_rate.warmup.shape.epochs
        epochs += [math.nextafter(end, 0.0), end]
    points = getattr(recipe.learning_rate.schedule, "points", ())
    epochs += [position for position, _ in points]
    return max(learning_rate_at(recipe, epoch) for epoch in epochs)


def _values(opened: OpenedRecipe) -> Iterator[tuple[str, str]]:
    recipe, tree = opened.recipe, opened.tree
    updates = timeline_of(recipe, opened.dataset)
    yield "model", component_text(tree["model"])
    yield "data", f"{opened.dataset.name}, {number(opened.dataset.num_train)} samples"
    yield "length", f"{number(recipe.epochs)} epochs, {number(updates.num_updates)} updates"
    yield "global batch", ramp_text(recipe.batch.global_)
    yield "norm span", ramp_text(recipe.batch.norm_span)
    yield "learning rate", _rate_text(recipe)
    if recipe.learning_rate.warmup is not None:
        warmup = tree["learning_rate"]["warmup"]
        yield "warmup", component_text({key: warmup[key] for key in ("kind", "epochs", "joins")})
    yield "schedule", component_text(tree["learning_rate"]["schedule"])
    yield "optimizer", component_text(tree["optimizer"])
    yield "loss", component_text(tree["loss"])
    yield from _less_usual_values(recipe, tree)
    yield "evaluation", f"every {_every(tree['evaluation']['every'])}, statistics {recipe.evaluation.norm_statistics}"


def _less_usual_values(recipe: Recipe, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if recipe.image_size is not None:
        yield "image size", ramp_text(recipe.image_size)
    yield "augmentation", ", ".join(entry["kind"] for entry in tree["augmentation"]["train"]) or "none"
    if tree["augmentation"]["mix"]:
        yield "mixing", " or ".join(component_text(entry) for entry in tree["augmentation"]["mix"])
    if recipe.stream.repeats > 1:
        yield "repeats", f"each image {recipe.stream.repeats} times in a row"
    if recipe.gradient.clip_norm is not None:
        yield "gradient", f"clipped to a norm of {number(recipe.gradient.clip_norm)}"
    if recipe.weight_average is not None:
        average = recipe.weight_average
        yield "average of weights", f"{average.keep:g} kept over {number(average.per)} samples"
    if recipe.precision.compute != "float32":
        yield "computing", recipe.precision.compute
    if recipe.updater.double_buffering:
        yield "gradients", "one update late"
    if recipe.updater.power_sgd_rank is not None:
        yield "gradients", f"PowerSGD, rank {recipe.updater.power_sgd_rank}"
    if (local := recipe.updater.local_steps) is not None:
        yield "gradients", f"of {local.replicas} replicas by themselves, averaged every {local.every} updates"


def _rate_text(recipe: Recipe) -> str:
    rate = recipe.learning_rate
    peak = f"{peak_rate(recipe):.4g}"
    if rate.rule == "none":
        return f"{peak} at most"
    rule = rate.rule if isinstance(rate.rule, str) else f"to the power {rate.rule:g} of the batch"
    return f"{peak} at most: {rate.reference:g} for {number(rate.per)} samples, {rule}"


def _every(value: Any) -> str:
    return value if isinstance(value, str) else "epoch" if value == 1 else f"{value:g} epochs"


def ramp_text(ramp: BatchRamp) -> str:
    """The sizes of a ramp and their starts.

    >>> ramp_text(BatchRamp(boundaries=(0.0, 30.0), sizes=(2048, 4096)))
    '2,048, from epoch 30 4,096'
    """
    (_, first), *later = ramp.changes
    parts = [number(first), *(f"from epoch {boundary:g} {number(size)}" for boundary, size in later)]
    return ", ".join(parts)


def component_text(tree: Mapping[str, Any]) -> str:
    """A mapping with `kind` in a line, without keys that are null, false, 0 or empty.

    >>> component_text({"kind": "Lars", "momentum": 0.9, "clip": False, "no_decay": ["norm", "bias"]})
    'Lars: momentum 0.9, no_decay norm and bias'
    """
    parts = []
    for key, value in tree.items():
        if key == "kind" or value is None or value is False or value in ([], "", 0):
            continue
        parts.append(key if value is True else f"{key} {_value_text(value)}")
    return f"{tree['kind']}: {', '.join(parts)}" if parts else str(tree["kind"])


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        joint = " and " if all(isinstance(item, str) for item in value) else ", "
        return joint.join(f"({_value_text(item)})" if isinstance(item, list) else _value_text(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def card_text(facts: CardFacts) -> str:
    """The card as lines of at most 100 characters, fewer where the terminal has fewer, unless a word is longer."""
    width = min(shutil.get_terminal_size().columns, _WIDTH) if sys.stdout.isatty() else _WIDTH
    lines = _wrapped(f"{facts.name}: {facts.title}", width)
    lines += [*_wrapped(f"{facts.source} {facts.url}".strip(), width), ""]
    for head, text in _words(facts):
        lines += [*_wrapped(text, width, head=f"{head:<13}", indent=13)]
    lines.append("")
    for claim, on, status, source in facts.claims:
        claimed = "; ".join(part for part in (f"{claim} on {on}" if on else claim, status, source) if part)
        lines += _wrapped(claimed, width, head="claimed      ", indent=13)
    if not facts.claims:
        lines.append("claimed      nothing")
    lines.append("")
    key_width = max(len(key) for key, _ in facts.values) + 2
    for key, value in facts.values:
        lines += _wrapped(value, width, head=f"{key:<{key_width}}", indent=key_width)
    for head, paths in (("assumed", facts.assumed), ("open", facts.open)):
        if paths:
            lines += ["", *_wrapped(", ".join(paths), width, head=f"{head:<13}", indent=13)]
    lines += ["", *_wrapped(_standing(facts), width)]
    return "\n".join(line.rstrip() for line in lines)


def card_markdown(facts: CardFacts, *, picture: str | None = None, level: int = 1) -> str:
    """The card as a section with a heading of `level`; `picture` is the link to one of its curves."""
    parts = [f"{'#' * level} {_escaped(facts.name)}", f"**{_escaped(facts.title)}**"]
    source = _escaped(facts.source)
    if facts.url.startswith("https://"):
        source = f"[{source or 'source'}]({quote(facts.url, safe=':/?#&=%+,;@~')})"
    parts.append(". ".join(filter(None, [source, _escaped(_standing(facts))])))
    if picture is not None:
        parts.append(f"![Learning rate and batch of {_escaped(facts.name)} against epochs]({quote(picture)})")
    parts.append("\n".join(f"- **{head}:** {_escaped(text)}" for head, text in _words(facts)))
    if facts.claims:
        rows = [f"| {' | '.join(map(_cell, claim))} |" for claim in facts.claims]
        parts.append("\n".join(["| claimed | on | status | place in the source |", "|---|---|---|---|", *rows]))
    if facts.open:
        parts.append(f"Open: {_paths(facts.open)}.")
    parts.append("<details><summary>All values, and which are assumed</summary>")
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in facts.values]
    parts.append("\n".join(["| | |", "|---|---|", *rows]))
    parts += [f"Assumed: {_paths(facts.assumed)}."] if facts.assumed else []
    return "\n\n".join([*parts, "</details>"]) + "\n"


def _escaped(text: str) -> str:
    """A text of a recipe in Markdown, on one line: no HTML or link of a stranger, no character that turns it.

    >>> _escaped("see <script> and [this](javascript:x)")
    'see &lt;script> and [this]\\\\(javascript:x)'
    >>> print(_escaped("http://a.b, WWW.a.b \\u202e"))
    http:\\//a.b, WWW\\.a.b \\u202e
    """
    words = " ".join(printable(word) for word in text.split())
    words = words.replace("<", "&lt;").replace("](", "]\\(").replace("://", ":\\//")
    return re.sub(r"(?i)\b(www)\.", r"\1\\.", words)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _paths(paths: tuple[str, ...]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _words(facts: CardFacts) -> Iterator[tuple[str, str]]:
    card = facts.card
    if card is None:
        yield "card", "this recipe has none"
        return
    yield "changed", card.changed
    yield "hardware", card.hardware
    evidence = card.evidence
    heads = (("verified", evidence.verified), ("derived", evidence.derived), ("not checked", evidence.not_checked))
    yield from ((head, text) for head, text in heads if text)
    yield from (("deviation", text) for text in card.deviations)


def _standing(facts: CardFacts) -> str:
    if facts.obstacles:
        return f"Cannot be trained here: {'; '.join(facts.obstacles)}."
    return f"Can be trained here{' with --allow-code' * facts.has_own_code}."


def _wrapped(text: str, width: int, *, head: str = "", indent: int = 0) -> list[str]:
    filler = " " * indent
    # A head that is too long for its column keeps a space before the text.
    head = head if not head or head.endswith(" ") else f"{head} "
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=filler, break_long_words=False, break_on_hyphens=False
    )
