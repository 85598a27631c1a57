"""Changes that do not depend on the optimizer: ramp, norm span, averages, evaluation, positions in updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.division import nearest_divisor
from recipes.planning.rates import averaged_samples
from recipes.reading.read import value_at
from recipes.scale.request import Change, Request
from recipes.schema.positions import settable, written_in_updates

_SAME_TIME = "the same time in epochs: so many updates of another batch are another time"
_BUSBRIDGE = "Busbridge et al. 2023, arXiv 2307.13813"


def batch_changes(request: Request) -> Iterator[Change]:
    """Changes of batch or ramp, norm span, running statistics, weight average and evaluation interval."""
    ramp = request.recipe.batch.global_
    reason = "as asked"
    if len(ramp.sizes) > 1:
        reason = "every step of the ramp by the same factor, at the same samples"
    change, given = request.moved("batch.global", _steps(ramp.boundaries, request.sizes), reason), request.written
    if any(written_in_updates(given["batch"]["global"], "batch.global")):
        change = replace(change, before=given["batch"]["global"], reason=f"{reason}; {_SAME_TIME}")
    yield change
    yield _span(request)
    yield _statistics(request)
    if request.value("weight_average") is not None:
        reason = "counted in samples: a larger batch forgets as fast"
        yield request.kept("weight_average.keep", reason, _BUSBRIDGE)
    yield request.kept("evaluation.every", _interval_reason(request))


def with_positions(request: Request, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes, and positions in updates as epochs: so many updates of another batch are another time.

    A key that stays shows no part that is a change of its own.
    """
    changes = tuple(changes)
    moved, positions = {change.key for change in changes if change.moves}, {}
    for path, _ in written_in_updates(dict(request.written)):
        key = settable(path)
        if not any(f"{key}.".startswith(f"{known}.") for known in moved):
            before = value_at(dict(request.written), key)
            positions[key] = Change(key=key, before=before, after=request.value(key), reason=_SAME_TIME)
    parts = moved | set(positions)
    for change in changes:
        if change.key in positions:
            reason = f"{_SAME_TIME}; {change.reason}"
            yield replace(positions.pop(change.key), reason=reason, source=change.source)
        elif isinstance(change.after, dict) and not change.moves:
            rest = {name: value for name, value in change.after.items() if f"{change.key}.{name}" not in parts}
            yield replace(change, before=rest, after=rest)
        else:
            yield change
    yield from positions.values()


def _steps(boundaries: tuple[float, ...], sizes: tuple[int, ...]) -> Any:
    """A ramp as it is written in YAML."""
    if len(sizes) == 1:
        return sizes[0]
    starts = [int(start) if start == int(start) else start for start in boundaries]
    return [{"from": start, "size": size} for start, size in zip(starts, sizes, strict=True)]


def _span(request: Request) -> Change:
    """The norm span: unchanged, or the nearest number that divides the batches it is used with.

    An optimizer that compares norm groups keeps two or more in every batch but its `per`.
    """
    batch, kind = request.recipe.batch, request.value("optimizer.kind")
    compares = getattr(request.recipe.optimizer, "needs_group_gradients", False)
    spans, halved = [], False
    for index, start in enumerate(batch.norm_span.boundaries):
        end = (*batch.norm_span.boundaries, float("inf"))[index + 1]
        pairs = zip(batch.global_.boundaries, request.sizes, strict=True)
        used = [size for begin, size in pairs if start <= begin < end]
        compared = [size for size in used if compares and size != request.recipe.learning_rate.per]
        if 1 in compared:
            what = f"{kind} compares the gradients of norm groups, and an update of 1 sample has one"
            raise InputRefused(f"--batch {request.batch}: {what}; ask for at least 2 samples an update")
        most = min([*used, *(size // 2 for size in compared)])
        halved |= batch.norm_span.sizes[index] > most < min(used)
        spans.append(nearest_divisor(batch.norm_span.sizes[index], used, most=most))
    after, given = _steps(batch.norm_span.boundaries, tuple(spans)), request.written["batch"].get("norm_span")
    if any(written_in_updates(given, "batch.norm_span")):
        reason = _SAME_TIME
        if tuple(spans) != batch.norm_span.sizes:
            reason += "; the nearest number of samples that divides the batch"
        return Change(key="batch.norm_span", before=given, after=after, reason=reason)
    if tuple(spans) == batch.norm_span.sizes:
        reason = "statistics over as many samples as before, whatever the batch"
        return request.kept("batch.norm_span", reason, "Goyal et al. 2017, arXiv 1706.02677: 32 samples a worker")
    reason = "the nearest number of samples that divides the batch"
    if halved:
        reason += f"; {kind} compares the gradients of two norm groups or more"
    return request.moved("batch.norm_span", after, reason)


def _statistics(request: Request) -> Change:
    """The running statistics: unchanged if they average over less than an epoch, else counted in samples."""
    evaluation, first = request.recipe.evaluation, request.recipe.batch.global_.sizes[0]
    average, key = evaluation.norm_momentum, "evaluation.norm_momentum.per"
    if average.per != "update":
        return request.kept(key, "counted in samples: a larger batch forgets as fast", _BUSBRIDGE)
    span = max(request.recipe.batch.norm_span.sizes)
    window = averaged_samples(evaluation, global_batch_size=max(request.sizes), norm_span=span)
    if window is None:
        return request.kept(key, "there is no average: the last update's statistics count")
    if evaluation.norm_statistics == "by_group":
        return request.kept(key, "counted in norm groups, which stay", "Hoffer et al. 2017, arXiv 1705.08741")
    if window <= request.opened.dataset.num_train:
        reason = f"looks back over {window:,.0f} samples, less than an epoch"
        return request.kept(key, reason, "Goyal et al. 2017, arXiv 1706.02677: 0.9 at every batch")
    return request.moved(
        key, first, f"{average.keep:g} an update would look back over {window:,.0f} samples", "arithmetic"
    )


def forgetting_by_samples(request: Request) -> Iterator[Change]:
    """Running statistics that count in samples, where a batch that stays begins to grow."""
    average, how = request.recipe.evaluation.norm_momentum, request.recipe.evaluation.norm_statistics
    if average.per == "update" and how in ("moving_average", "pooled"):
        first = request.recipe.batch.global_.sizes[0]
        yield request.moved("evaluation.norm_momentum.per", first, "forgets as fast at every batch")


def _interval_reason(request: Request) -> str:
    every, num_train = request.recipe.evaluation.every, request.opened.dataset.num_train
    if every == "update":
        return "as before; updates are fewer"
    updates = every * num_train / request.batch
    if updates < 1:
        return "the same samples, now less than an update: after each"
    return f"the same samples, now {updates:,.0f} update{'s' if round(updates) != 1 else ''}"
