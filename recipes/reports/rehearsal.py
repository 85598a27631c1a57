"""A rehearsal as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recipes.planning.rehearsal import Rehearsal
from recipes.reports.curves import points_text, reads_better_in_decades
from recipes.reports.wording import counted, duration, number, size

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60


def rehearsal_text(rehearsal: Rehearsal) -> str:
    """What the run will do: order, rates, evaluations, checkpoints, restarts, storage."""
    tree, rates = rehearsal.as_tree(), rehearsal.learning_rates
    saves = tree["checkpoints"]
    scale = "logarithmic" if reads_better_in_decades(rates) else "from 0"
    lines = [
        f"{tree['recipe']} on {tree['dataset']}, {counted(tree['workers'], 'worker')}: "
        f"{counted(tree['num_updates'], 'update')}, {counted(tree['num_samples'], 'sample')}; nothing is trained",
        "",
        *_order_lines(tree["order"]),
        "",
        points_text([_row(segment) for segment in tree["segments"]]),
        f"rate, {scale}: {sparkline(rates)}",
        "",
        f"evaluations: {_updates(tree['evaluations'])}",
        f"checkpoints: {_updates(saves['updates'])}; {_each(saves['bytes'])}a failure costs "
        f"at most {counted(saves['longest_gap_updates'], 'update')}",
        *(line for restart in tree["restarts"] for line in _restart_lines(restart, tree["num_updates"])),
        *_storage_lines(tree["storage"]),
        *(f"note: {note}" for note in tree["notes"]),
    ]
    return "\n".join(lines)


def rehearsed_time_text(without: float, with_failures: float, restarts: int) -> str:
    """The time of the run by the planner's model, and what the failures add."""
    if not restarts:
        return f"time: {duration(without)} (`kilobatch plan` says what this rests on)"
    more = duration(with_failures - without)
    return f"time: {duration(with_failures)}, {more} more than without {counted(restarts, 'failure')}"


def sparkline(values: np.ndarray) -> str:
    """Values as a row of bars, each of the largest in its stretch; from 0, or by decades where that reads better.

    >>> sparkline(np.array([0.0, 1.0, 2.0, 4.0]))
    '▁▃▅█'
    """
    highest = np.array([part.max() for part in np.array_split(values, min(_COLUMNS, len(values)))])
    low, high = 0.0, highest.max()
    if reads_better_in_decades(values):
        low, high = np.log(highest[highest > 0].min()), np.log(high)
        highest = np.log(np.maximum(highest, np.exp(low)))
    heights = (highest - low) / ((high - low) or 1.0) * (len(_BARS) - 1)
    return "".join(_BARS[round(float(height))] for height in heights)


def _order_lines(order: Mapping[str, Any]) -> list[str]:
    last, repeats = order["num_samples"] - 1, order["repeats"]
    different = -(-order["num_samples"] // repeats)
    checked = f"sample ids 0 to {last:,} in {counted(order['whole_epochs'], 'whole epoch')}"
    if order["rest"]:
        checked += f", and the {order['rest']:,} that the last updates take of epoch {order['whole_epochs']}"
    if order["faults"]:
        return [f"order: BROKEN. Checked: {checked}", *(f"  {fault}" for fault in order["faults"])]
    comes = f"{different:,} samples come {repeats} times each" if repeats > 1 else "every sample comes once"
    return [
        f"order: {comes} an epoch, over all workers",
        f"  checked: {checked}; {order['drawn']:,} drawn",
    ]


def _row(segment: Mapping[str, Any]) -> dict[str, Any]:
    least, most = segment["samples_per_worker"]
    rate, momentum = segment["learning_rate"], segment["momentum"]
    moves = momentum["first"] != momentum["last"]
    return {
        "epoch": segment["epoch"],
        "update": segment["update"],
        "updates": segment["num_updates"],
        "batch": segment["global_batch_size"],
        "share": most if least == most else f"{least}-{most}",
        "rate, first and last": f"{rate['first']:.6g}, {rate['last']:.6g}",
        "lowest and highest": f"{rate['lowest']:.6g}, {rate['highest']:.6g}",
        "momentum": f"{momentum['first']:.6g}, {momentum['last']:.6g}" if moves else momentum["first"],
    }


def _updates(updates: Sequence[int]) -> str:
    shown = [f"{update:,}" for update in updates]
    some = shown if len(shown) < 6 else [*shown[:3], "...", shown[-1]]
    return f"{len(updates):,}, after {', '.join(some)} update{'' if list(updates) == [1] else 's'}"


def _each(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"about {size(num_bytes)} each; "


def _restart_lines(restart: Mapping[str, Any], num_updates: int) -> list[str]:
    begin, died = restart["restarts_after_updates"], restart["dies_in_update"]
    if begin:
        place = f"from the checkpoint after {begin:,} updates, epoch {restart['restarts_at_epoch']:.5g}"
    else:
        place = "from the beginning: there is no checkpoint yet"
    repeats = (
        f"repeats {counted(restart['repeated_updates'], 'update')}, {counted(restart['repeated_samples'], 'sample')}, "
        f"{restart['repeated_epochs']:.3g} epochs, and the one under way"
    )
    first, last = restart["compared_updates"]
    lines = [
        "",
        f"rank {restart['rank']} dies in update {died:,}, epoch {restart['epoch']:.5g}: "
        f"{counted(restart['workers'], 'worker')} go on {place}",
        f"  {repeats}",
    ]
    if restart["faults"]:
        return [*lines, "  BROKEN. Not as without the failure:", *(f"  {fault}" for fault in restart["faults"])]
    return [
        *lines,
        f"  as without the failure: samples of updates {first:,} to {last:,}; "
        f"rate, momentum, batch and place of updates {begin:,} to {num_updates - 1:,}",
    ]


def _storage_lines(storage: Mapping[str, Any]) -> list[str]:
    """What workers read, as a table, and what is written."""
    written = storage["checkpoint_bytes"]
    last = [] if written is None else [f"rank 0 writes about {size(written)} of checkpoints in all"]
    if not storage["reads"]:
        return ["", "no image is read while it trains: the data set is kept in memory", *last]
    columns = {"images_an_epoch": "images an epoch", "bytes_an_epoch": "an epoch"}
    columns |= {"images_per_second": "images/s", "bytes_per_second": "a second"}
    rows = []
    names = {"all": "all workers", "worker": "the busiest worker", "node": "the busiest node"}
    for who in storage["images_an_epoch"]:
        row: dict[str, Any] = {"reads": names[who]}
        for key, title in columns.items():
            if storage[key] is not None:
                value = storage[key][who]
                row[title] = size(value) if "bytes" in key else number(round(value))
        rows.append(row)
    lines = ["", points_text(rows), f"each evaluation reads {storage['images_an_evaluation']:,} more, over all workers"]
    if storage["image_bytes"] is None:
        lines.append("bytes: not known; give --image-bytes, or --data with the images' folder")
    return lines + last
