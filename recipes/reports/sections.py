"""The sections of a report: each function takes a run and returns markup, empty if there is nothing to show."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from recipes.reading.tree_diff import WORDS
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.wording import counted, duration, number, percent, size

OUTCOMES = {"success": "Finished", "stopped": "Stopped", "failed": "Failed", "unfinished": "Unfinished"}
_MOST_NAMED = 10  # images
_SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


def badge(run: Run) -> Markup:
    """How the run ended, in a word."""
    known = run.outcome if run.outcome in OUTCOMES else "unfinished"
    return tag("span", OUTCOMES.get(run.outcome, run.outcome), class_=f"badge {known}")


def verdict(run: Run) -> Markup:
    """The result of the run in a sentence or two."""
    planned = run.plan.get("num_updates")
    done = len(run.updates)
    reached = f"{number(run.epochs_done)} epochs in {duration(run.seconds)}."
    words = [f"After {reached}"]
    if run.final_accuracy is not None:
        scored = run.evaluations.epoch[np.isfinite(run.evaluations.accuracy)]
        at = number(float(scored[-1]))
        accuracy = f"{percent(run.final_accuracy)} accuracy"
        at_the_end = at == number(run.epochs_done)
        words = [f"{accuracy} after {reached}" if at_the_end else f"{accuracy} at epoch {at}; {reached}"]
    if run.outcome != "success" and isinstance(planned, int) and done < planned:
        words.append(f" {number(done)} of {number(planned)} updates were done.")
    if run.outcome == "unfinished":
        words.append(" It has not written its end: it is still running, or was killed.")
    if run.reason:
        words.append(f" Reason: {run.reason}")
    return tag("p", badge(run), " ", "".join(words), class_="verdict")


def loss_text(loss: float | None) -> str:
    """A loss as a number, or that it is none.

    >>> loss_text(0.71234), loss_text(float("inf")), loss_text(None)
    ('0.7123', 'not finite', '–')
    """
    return number(loss) if loss is None or math.isfinite(loss) else "not finite"


def final_or_last(runs: Iterable[Run]) -> str:
    """How to call the last scores of runs."""
    return "final" if all(run.outcome == "success" for run in runs) else "last"


def tiles(run: Run) -> Markup:
    """The numbers a reader looks for first."""
    best = f"best {percent(run.evaluations.accuracy[run.best])}" if run.best is not None else "not evaluated"
    if run.best is not None:
        best += f" at epoch {number(float(run.evaluations.epoch[run.best]))}"
    batches = sorted({int(size) for size in run.updates.global_batch_size})
    shown = " to ".join(number(batch) for batch in ([batches[0], batches[-1]] if len(batches) > 1 else batches))
    last = float(run.updates.loss[-1]) if len(run.updates) else None
    when = final_or_last([run])
    facts = [
        (percent(run.final_accuracy), f"{when} accuracy", best),
        (loss_text(run.final_loss), f"{when} evaluation loss", f"last training loss {loss_text(last)}"),
        (duration(run.seconds), "time", f"on {_counted(workers(run))}"),
        (number(run.samples_per_second, digits=3), "samples per second", "while updating"),
        (number(len(run.updates)), "updates", f"of {shown or 'no'} samples"),
    ]
    return tag(
        "div",
        *(
            tag("div", tag("b", big), tag("span", name), tag("span", small), class_="tile")
            for big, name, small in facts
        ),
        class_="tiles",
    )


def claims(run: Run) -> Markup:
    """The recipe's claims beside the results."""
    promised = [claim for claim in _listed(run.recipe.get("claims")) if isinstance(claim, dict)]
    if not promised:
        return Markup("")
    rows = []
    for claim in promised:
        claimed, got, difference = _compared(claim, run)
        behind = [str(claim[key]) for key in ("on", "source", "status") if claim.get(key)]
        behind += [counted(claim["runs"], "run")] if claim.get("runs") else []
        rows.append((number(claim.get("metric")), claimed, got, difference, "; ".join(behind)))
    notes = "One run is one draw: a verdict takes several seeds. A time holds for its hardware only."
    if changed := [path for path, text in run.origins.items() if path and text.startswith("command line")]:
        notes = f"This run is not the recipe as claimed: the command line sets {', '.join(sorted(changed))}. {notes}"
    heads = ("metric", "claimed", "this run", "difference", "claimed on")
    return joined([tag("h2", "Claims and outcome"), table(heads, rows), tag("p", notes, class_="muted")])


def plan(run: Run) -> Markup:
    """What each worker did, by segment of the batch ramp."""
    segments = [segment for segment in _listed(run.plan.get("segments")) if isinstance(segment, dict)]
    if not segments:
        return Markup("")
    sized = any(segment.get("image_size") for segment in segments)
    rows = [_segment_cells(segment, sized) for segment in segments]
    summary = f"{_counted(run.plan.get('workers'))} of cluster {run.plan.get('cluster', '–')}, "
    summary += f"{number(run.plan.get('num_updates'))} updates, "
    summary += f"{number(run.plan.get('num_samples'))} samples of {run.plan.get('dataset', '–')}"
    summary += f", {number(run.plan['held_out'])} others held out to be scored" if "held_out" in run.plan else ""
    summary += f", computed in {run.plan['compute']}." if "compute" in run.plan else "."
    if len(run.sessions) > 1:
        summary += f" So the last session was planned; {_by_session(run)}."
    memory = run.plan.get("memory")
    if isinstance(memory, dict):
        parts = [
            f"{key.removesuffix('_bytes').replace('_', ' ')} {size(memory[key])}"
            for key in memory
            if key.endswith("_bytes") and key != "range_bytes"
        ]
        summary += f" Memory on a device: {', '.join(parts)}."
    summary += f" In this run: {run.memory}." if run.memory else ""
    cells = table([*rows[0]], [[*row.values()] for row in rows], class_="numbers")
    return joined([tag("h2", "Plan"), tag("p", summary), cells])


def _segment_cells(segment: dict[str, Any], sized: bool) -> dict[str, str]:
    """A row of the plan, by the heads of its columns."""
    first, count = segment.get("update"), segment.get("num_updates")
    whole = isinstance(first, int) and isinstance(count, int)
    idle = f", {number(segment['idle_workers'])} idle" if segment.get("idle_workers") else ""
    micro_batch, steps = number(segment.get("micro_batch_size")), number(segment.get("accumulation_steps"))
    return {
        "updates": f"{number(first)} to {number(first + count - 1)}" if whole else number(first),
        "from epoch": number(segment.get("epoch")),
        "global batch": number(segment.get("global_batch_size")),
        **({"image size": number(segment.get("image_size"))} if sized else {}),
        "learning rate": " to ".join(dict.fromkeys(number(rate) for rate in _listed(segment.get("learning_rate")))),
        "norm groups": f"{number(segment.get('num_groups'))} of {number(segment.get('norm_span'))}",
        "teams": f"{number(segment.get('num_teams'))} of {counted(segment.get('team_size'), 'rank')}{idle}",
        "samples a worker": _shares(_listed(segment.get("samples_per_worker"))),
        "micro-batch × steps": f"{micro_batch} × {steps}",
    }


def warnings(run: Run) -> Markup:
    """What the reader should know before trusting the numbers."""
    noted = [note.removeprefix("warning: ") for note in run.notes if note.startswith("warning: ")]
    texts = list(dict.fromkeys([*(str(text) for text in _listed(run.plan.get("warnings"))), *noted]))
    if lacks := _listed(run.recipe.get("lacks")):
        texts.append(f"The recipe needs what is not built: {', '.join(map(str, lacks))}.")
    if assumed := _listed(run.recipe.get("assumed")):
        texts.append(f"Assumed, for the recipe's source does not give them: {', '.join(map(str, assumed))}.")
    if diverged := sum(not math.isfinite(loss) for loss in run.updates.loss):
        texts.append(f"The loss was not finite in {number(diverged)} updates.")
    if skipped := run.skipped_images:
        more = f"; and {number(len(skipped) - _MOST_NAMED)} more" if len(skipped) > _MOST_NAMED else ""
        named = f"{'; '.join(skipped[:_MOST_NAMED])}{more}"
        texts.append(f"{counted(len(skipped), 'image')} could not be decoded, and other samples were taken: {named}.")
    if not texts:
        return Markup("")
    return joined([tag("h2", "Warnings"), tag("ul", *(tag("li", text) for text in texts), class_="warnings")])


def changes(run: Run) -> Markup:
    """The values that the recipe's own file and the command line set, where the rest comes from a parent recipe."""
    tree = {key: value for key, value in run.recipe.items() if key not in (*WORDS, "claims", "kilobatch")}
    rows = [(path, text, _origin(path, run.origins)) for path, text in leaves(tree)]
    own = _file_of(run.origins.get("kilobatch", ""))
    files = dict.fromkeys(_file_of(origin) for _, _, origin in rows)
    parents = [file for file in files if file.endswith((".yaml", ".yml")) and file != own]
    changed = [row for row in rows if row[2].startswith("command line") or (parents and _file_of(row[2]) == own)]
    if not changed:
        return Markup("")
    than = Path(parents[0]).stem if parents else "the recipe"
    rows = [(path, text, _shown(origin)) for path, text, origin in changed]
    return joined([tag("h2", f"What differs from {than}"), table(("key", "value", "from"), rows, class_="values")])


def _file_of(origin: str) -> str:
    """The file of an origin such as `mine.yaml:7:1`."""
    return origin.partition(":")[0]


def _shown(origin: str) -> str:
    """An origin without the folders of the machine of the run.

    >>> _shown("/home/me/recipes/papers/digits/naive.yaml:8"), _shown("/home/me/mine.yaml:3"), _shown("a/b.yaml:1")
    ('digits/naive.yaml:8', 'mine.yaml:3', 'a/b.yaml:1')
    """
    origin = origin.rpartition("recipes/papers/")[2]
    return origin.rpartition("/")[2] if origin.startswith("/") else origin


def recipe(run: Run) -> Markup:
    """Every value of the resolved recipe with its origin."""
    tree = {key: value for key, value in run.recipe.items() if key != "claims"}
    rows = [(path, text, _shown(_origin(path, run.origins))) for path, text in leaves(tree)]
    return tag("details", tag("summary", "Recipe"), table(("key", "value", "from"), rows, class_="values"))


def environment(run: Run) -> Markup:
    """Versions, machine and data."""
    machine = {key: value for key, value in run.environment.items() if key != "ranks"}
    rows = list(leaves(machine)) + [(f"dataset.{path}", text) for path, text in leaves(run.dataset)]
    hosts = Counter(str(rank.get("host")) for rank in _listed(run.environment.get("ranks")) if isinstance(rank, dict))
    rows += [(f"ranks on {host}", number(count)) for host, count in hosts.items()]
    return tag("details", tag("summary", "Environment"), table(("what", "value"), rows, class_="values pairs"))


def reproduction(run: Run) -> Markup:
    """How to run it again."""
    commit = run.environment.get("git")
    commit = commit.get("commit") if isinstance(commit, dict) else commit
    lines = [f"git checkout {commit}"] if isinstance(commit, str) and commit else []
    lines.append(_begun_anew(run.command) or "# run.yaml does not say which command was typed")
    weights = "weights to the last bit" if run.plan.get("exact") is True else "weights up to rounding"
    words = f"The same samples, rates and {weights} on any number of workers. "
    words += f"The seed is {number(run.recipe.get('seed', '–'))}."
    return joined([tag("h2", "How to reproduce"), tag("pre", tag("code", "\n".join(lines))), tag("p", words)])


def _begun_anew(command: str) -> str:
    """A command without the options that bind it to its run's folder, where it would be refused or have nothing to do.

    >>> _begun_anew("kilobatch train mine.yaml -n 2 --out runs/a --resume")
    'kilobatch train mine.yaml -n 2'
    """
    try:
        words = shlex.split(command)
    except ValueError:  # not a shell command: the file was changed
        return command
    while "--out" in words[:-1]:
        index = words.index("--out")
        del words[index : index + 2]
    return shlex.join(word for word in words if word != "--resume" and not word.startswith("--out="))


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted paths and texts of a tree's values; a list of plain values is one of them."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(item, (dict, list)) for item in tree):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{path}.{index}")
    else:
        yield path, _plain(tree)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(item) for item in value)}]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else "{}" if value == {} else str(value)


def _origin(path: str, origins: dict[str, str]) -> str:
    """The origin of a value, of a list's first item, or of the nearest value around it that has one."""
    if path not in origins and f"{path}.0" in origins:
        return origins[f"{path}.0"]
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path, "")


def _compared(claim: dict[str, Any], run: Run) -> tuple[str, str, str]:
    value, kind, metric = claim.get("value"), claim.get("kind"), str(claim.get("metric"))
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if known and kind == "accuracy":
        if run.final_accuracy is None or run.outcome != "success":
            return percent(value), "not finished", ""
        return percent(value), percent(run.final_accuracy), f"{100 * (run.final_accuracy - value):+.2f} points"
    if known and kind == "time_to_train" and metric in _SECONDS:
        claimed = value * _SECONDS[metric]
        if run.outcome != "success" or claimed <= 0:
            return duration(claimed), "not finished", ""
        return duration(claimed), duration(run.seconds), f"× {number(run.seconds / claimed, digits=3)}"
    return number(value), "not measured here", ""


def _shares(samples: list[Any]) -> str:
    """Samples of each worker, equal neighbours grouped: `32 on 3, 16 on 1`."""
    shares = [(number(share), len(list(ranks))) for share, ranks in groupby(samples)]
    return shares[0][0] if len(shares) == 1 else ", ".join(f"{share} on {count}" for share, count in shares)


def workers(run: Run) -> str:
    """The number of workers, from the plan; if sessions had different numbers, the smallest and the largest."""
    counts = sorted(count for _, count in run.sessions)
    return f"{number(counts[0])} to {number(counts[-1])}" if len(counts) > 1 else number(run.plan.get("workers"))


def _counted(count: Any) -> str:
    shown = count if isinstance(count, str) else number(count)
    return f"{shown} worker{'' if shown == '1' else 's'}"


def _by_session(run: Run) -> str:
    """`updates 0 to 9 by 4 workers, and from 10 on by 1 worker`."""
    ends = [following - 1 for following, _ in run.sessions[1:]]
    stretches = zip(run.sessions, ends, strict=False)
    earlier = [f"{number(first)} to {number(end)} by {_counted(count)}" for (first, count), end in stretches]
    first, count = run.sessions[-1]
    return f"updates {', '.join(earlier)}, and from {number(first)} on by {_counted(count)}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
