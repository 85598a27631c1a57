"""`kilobatch branch`: short runs from one checkpoint at several batches, and the critical batch there."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from recipes.errors import InputRefused, refuse_unreachable
from recipes.planning.rates import full_rate
from recipes.planning.timeline import timeline_of
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.yaml import block_text
from recipes.reports.noise import noise_windows
from recipes.reports.record import Run, open_run
from recipes.reports.wording import percent
from recipes.scale import Measured, Scaled, ramp_recipe, step_changes, stepped_recipe
from recipes.scale.ramp import MERRILL, required_rule
from recipes.schema.positions import typed_position
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.train_command import train_words
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import read_checkpoint
from trainers.runs.identity import IDENTITY
from trainers.runs.metrics_file import has_diverged, truncate_records
from trainers.runs.run_folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    METRICS,
    RECIPE,
    RUN,
    checkpoints_in,
    dataset_facts,
    require_run,
    require_same_recipe,
    update_of,
    write_whole,
)
from trainers.tasks.reproduce import train_apart

BRANCHES = "branches.json"
EPSILON = 0.01  # of the loss: Merrill et al. 2025
_COMPARED = 0.25  # share of the window, at its end, over which losses are averaged. Assumed.
_FEWEST = 4  # updates in the window: one at least lies in the part that is compared


@dataclass(frozen=True, kw_only=True)
class Branching:
    """What is branched.

    Args:
        run: folder of the run.
        at: position of the checkpoint, such as 30ep; None: the newest.
        batches: global batches; that of the run is added.
        window: how long each branch trains, in samples the same: epochs, updates of the run's batch, or samples.
        seeds: branches of each batch; the first goes on with the run's own samples.
        epsilon: how much larger a loss counts as the same; None: from the seeds, else 0.01.
        out: folder of the branches; None: one beside the run.
        workers: that train; None: those that pay.
    """

    run: Path
    batches: tuple[int, ...]
    at: str | None = None
    window: str = "1ep"
    seeds: int = 1
    epsilon: float | None = None
    out: Path | None = None
    workers: int | None = None
    data: Path | None = None
    allow_code: bool = False

    @property
    def options(self) -> str:
        """Options of next commands, as they were given: the data set's folder, and that own code is allowed."""
        return f" --data {quote(str(self.data))}" * (self.data is not None) + " --allow-code" * self.allow_code


@dataclass(frozen=True, kw_only=True)
class Branch:
    """The branches of one batch.

    Args:
        batch: global batch.
        rate_factor: its rate over that of the run.
        updates: in the window.
        losses: mean training loss over the last quarter of the window, of each seed; infinite where it diverged.
        accuracies: at the end of the window, of each seed that did not diverge.
        folders: of the runs.
    """

    batch: int
    rate_factor: float
    updates: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    folders: tuple[str, ...]

    @property
    def loss(self) -> float:
        """The mean over the seeds."""
        return math.fsum(self.losses) / len(self.losses)


@dataclass(frozen=True, kw_only=True)
class Branches:
    """What the branches of a checkpoint say.

        critical batch = the largest whose loss is at most that of every smaller batch + epsilon

    Args:
        run: the folder, absolute; `update`, `epoch`, `samples`, `batch`: of its checkpoint.
        window_samples: of each branch.
        epsilon_from: where epsilon comes from, in words.
    """

    run: str
    update: int
    epoch: float
    samples: int
    batch: int
    window_samples: int
    epsilon: float
    epsilon_from: str
    branches: tuple[Branch, ...] = field(default=())

    @property
    def critical(self) -> Branch:
        """The largest branch that lost nothing."""
        return [branch for branch in self.branches if self.holds(branch)][-1]

    def holds(self, branch: Branch) -> bool:
        """Whether a branch lost nothing against all smaller batches; the smallest always does."""
        smaller = [other.loss for other in self.branches if other.batch < branch.batch]
        return not smaller or (branch.loss < math.inf and branch.loss <= min(smaller) + self.epsilon)

    @property
    def is_largest(self) -> bool:
        """Whether no larger batch was tried, so that the critical batch is at least this."""
        return self.critical == self.branches[-1]

    @property
    def measured(self) -> Measured:
        """For a ramp, which stays below the critical batch; nothing where even the smallest branch diverged."""
        best = self.critical
        return Measured(epoch=self.epoch, batch=best.batch - 1.0 if math.isfinite(best.loss) else None)

    @classmethod
    def read(cls, folder: Path) -> Branches:
        """Those that `measure_branches` wrote; raises InputRefused."""
        try:
            tree = json.loads((folder / BRANCHES).read_text(encoding="utf-8"))
            parts = tree.pop("branches")
            for part in parts:
                part |= {name: tuple(part[name]) for name in ("accuracies", "folders")}
                part["losses"] = tuple(math.inf if loss is None else loss for loss in part["losses"])
            made = cls(**tree, branches=tuple(Branch(**part) for part in parts))
            _ = Path(made.run).resolve(), made.measured  # fail on what is no path or number, or is missing
            if not all(map(math.isfinite, (made.update, made.epoch, made.samples, made.batch, made.window_samples))):
                raise ValueError("a position is not finite")
            return made
        except (OSError, ArithmeticError, RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputRefused(f"{folder / BRANCHES} is not as `kilobatch branch` writes it: {error}") from error

    def write(self, folder: Path) -> None:
        """Write them as JSON; an infinite loss as null."""
        tree = asdict(self)
        for part in tree["branches"]:
            part["losses"] = [loss if math.isfinite(loss) else None for loss in part["losses"]]
        write_whole(folder / BRANCHES, json.dumps(tree, indent=1) + "\n")


@refuse_unreachable()
def measure_branches(asked: Branching, *, tell: Callable[[str], None]) -> tuple[Branches, Path]:
    """Train the branches that are not there yet, and compare them; returns the result and its folder.

    Args:
        tell: called with each line for the user.
    Raises:
        InputRefused: no checkpoint is at that position, or a branch cannot be trained.
        RerunFailed: a branch did not end.
    """
    opened = _open(asked)
    rule = required_rule(opened)
    checkpoint = _checkpoint(asked, opened)
    state = read_checkpoint(checkpoint).state
    update, samples, num_train = state["update"], state["samples"], opened.dataset.num_train
    batch = timeline_of(opened.recipe, opened.dataset).segment_of(update - 1).global_batch_size
    window = _window(asked, opened, batch)
    _require_room(asked, opened, samples=samples, window=window)
    sizes = sorted({batch, *asked.batches})
    recipes = {size: _overrides(opened, samples=samples, batch=size, end=samples + window) for size in sizes}
    seeds = range(opened.recipe.seed, opened.recipe.seed + asked.seeds)
    out = asked.out or asked.run.with_name(f"{asked.run.name}-branches-{update}")
    if (out / BRANCHES).is_file() and (there := Branches.read(out).window_samples) != window:
        what = f"{out} holds branches of {there:,} samples, and these would be of {window:,}"
        raise InputRefused(f"--window {asked.window}: {what}; give the same window, or another --out")
    places = {size: {seed: out / f"batch-{size}-seed-{seed}" for seed in seeds} for size in sizes}
    records = {}
    for size, changes in recipes.items():  # refused now, not when others have trained
        branch = _prepared(asked, changes)
        for seed, folder in places[size].items():
            record = {"recipe": {**branch.tree, "seed": seed}, "dataset": dataset_facts(branch.dataset)}
            if (folder / RECIPE).is_file():  # else a call was killed before its first update
                require_same_recipe(folder, **record)
            records[folder] = record
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for size, changes in recipes.items():
        folders = places[size]
        runs = [
            _trained(asked, each, checkpoint, records[each], [*changes, f"seed={seed}"], end=samples + window)
            for seed, each in folders.items()
        ]
        ends = [run.final_accuracy for run in runs if not has_diverged(run.folder)]
        branch = Branch(
            batch=size,
            rate_factor=full_rate(1.0, size, rule=rule, per=batch),
            updates=-(-window // size),
            losses=tuple(_loss(run, after=samples + (1 - _COMPARED) * window) for run in runs),
            accuracies=tuple(value for value in ends if value is not None),
            folders=tuple(map(str, folders.values())),
        )
        found.append(branch)
        tell(f"batch {size:,}: loss {branch.loss:.4f} after {branch.updates} updates")
    epsilon, words = epsilon_of(asked, found)
    result = Branches(
        run=str(asked.run.resolve()),
        update=update,
        epoch=samples / num_train,
        samples=samples,
        batch=batch,
        window_samples=window,
        epsilon=epsilon,
        epsilon_from=words,
        branches=tuple(found),
    )
    result.write(out)
    return result, out


def _open(asked: Branching) -> OpenedRecipe:
    """The recipe of the run."""
    require_run(asked.run)
    words = vocabulary(allow_code=asked.allow_code)
    return open_recipe(asked.run / RECIPE, vocabulary=words, allow_code=asked.allow_code, data_root=asked.data)


def _prepared(asked: Branching, changes: Sequence[str]) -> OpenedRecipe:
    """The recipe of the run, changed, which can be trained on the workers that were asked for."""
    request = TrainRequest(
        recipe=str(asked.run / RECIPE),
        overrides=tuple(changes),
        data=asked.data,
        allow_code=asked.allow_code,
    )
    return prepare(request, workers=asked.workers).opened


def _checkpoint(asked: Branching, opened: OpenedRecipe) -> Path:
    """The checkpoint at a position: that after the first update that reaches it."""
    timeline = timeline_of(opened.recipe, opened.dataset)
    known = {update_of(path): path for path in checkpoints_in(asked.run / CHECKPOINTS)}
    known.pop(0, None)
    try:
        position = None
        if asked.at is not None:
            position = typed_position(
                asked.at,
                num_train=opened.dataset.num_train,
                epochs=opened.recipe.epochs,
                updates_to_samples=lambda updates: timeline.samples_at(min(updates, timeline.num_updates)),
            )
    except ValueError as error:
        raise InputRefused(f"--at: {error}; write it as 30ep, 500up, 1.5Msp or 0.5run") from None
    update = max(known, default=0) if position is None else timeline.first_update_at(position)
    if update in known and update < timeline.num_updates:
        return known[update]
    place = asked.at if position is not None and update < timeline.num_updates else "0.5run"
    again = f"kilobatch train {quote(str(asked.run / RECIPE))} --out ANOTHER --stop-after {place}{asked.options}"
    there = ", ".join(
        f"{number}up (epoch {timeline.epoch_at(number):.2f})" for number in known if number < timeline.num_updates
    )
    if not there:
        but = " before its end" if known else ""
        raise InputRefused(f"{asked.run} has no checkpoint{but}; train up to a place of it: {again}")
    why = "ends at" if update in known else "has no checkpoint after"
    raise InputRefused(
        f"--at: {asked.run} {why} update {update}; a run keeps the newest two and the best, here {there}. Name one of "
        f"these by --at, or train up to another place and branch from that: {again}"
    )


def _window(asked: Branching, opened: OpenedRecipe, batch: int) -> int:
    """The samples of a branch."""
    try:
        epochs = typed_position(
            asked.window,
            num_train=opened.dataset.num_train,
            epochs=opened.recipe.epochs,
            updates_to_samples=lambda updates: updates * batch,
        )
    except ValueError as error:
        raise InputRefused(f"--window: {error}; write it as 1ep, 500up, 1.5Msp or 0.1run") from None
    samples = round(epochs * opened.dataset.num_train)
    largest = max(batch, *asked.batches)
    if samples < _FEWEST * largest:
        what = f"{samples:,} samples are fewer than {_FEWEST} updates of {largest:,}"
        least = -(-_FEWEST * largest // batch)
        raise InputRefused(f"--window {asked.window}: {what}; give --window {least}up or more, or smaller batches")
    return samples


def _require_room(asked: Branching, opened: OpenedRecipe, *, samples: int, window: int) -> None:
    """A branch lies behind the warmup, and ends before the run does."""
    recipe, num_train = opened.recipe, opened.dataset.num_train
    warmup = recipe.learning_rate.warmup
    if warmup is not None and samples / num_train < warmup.shape.epochs:
        what = f"epoch {samples / num_train:.2f} lies in the warmup, whose rate does not follow the batch"
        raise InputRefused(f"--at: {what}; branch from epoch {warmup.shape.epochs:g} on")
    left = recipe.epochs * num_train - samples
    if window > left:
        what = f"{window:,} samples go past the end of the run, {left:,.0f} after the checkpoint"
        raise InputRefused(f"--window {asked.window}: {what}; make it shorter, or branch earlier")


def _overrides(opened: OpenedRecipe, *, samples: int, batch: int, end: int) -> list[str]:
    """The recipe of a branch, as changes of that of the run."""
    changes = step_changes(opened, steps_of(opened, samples=samples, batch=batch), "a branch")
    moved = [f"{change.key}={json.dumps(change.after)}" for change in changes if change.moves]
    offset = end if end / opened.dataset.num_train < opened.recipe.epochs else 0  # the end of a run is scored anyway
    return [*moved, "stop_at=null", "evaluation.every=1run", f"evaluation.offset={offset}sp"]


def steps_of(opened: OpenedRecipe, *, samples: int, batch: int) -> list[tuple[float, int]]:
    """The steps of a run's batch up to a number of samples, and a batch from there on."""
    ramp, epoch = opened.recipe.batch.global_, samples / opened.dataset.num_train
    steps = [step for step in zip(ramp.boundaries, ramp.sizes, strict=True) if step[0] < epoch]
    return steps if steps[-1][1] == batch else [*steps, (epoch, batch)]


def _trained(
    asked: Branching, folder: Path, checkpoint: Path, record: dict[str, Any], changes: Sequence[str], *, end: int
) -> Run:
    """The run of a branch, which is trained now unless it is there; `record` is what it is trained with."""
    if (folder / RECIPE).is_file():
        run = open_run(folder)
        if run.outcome == "success" or run.reason == "--stop-after" or has_diverged(folder):
            return run
    else:
        _begin(asked.run, folder, checkpoint, record)
    words = train_words(asked.run / RECIPE, overrides=changes, data=asked.data, allow_code=asked.allow_code)
    words += ["--out", str(folder), "--resume", "--stop-after", f"{end}sp"]
    words += ["-n", str(asked.workers)] if asked.workers else []
    return train_apart(words, folder, prints_to=subprocess.DEVNULL)


def _begin(run: Path, folder: Path, checkpoint: Path, record: dict[str, Any]) -> None:
    """A folder with the run's checkpoint, and its records up to there, that `train --resume` goes on with."""
    partial = folder.with_name(f".{folder.name}.partial")
    for left in (partial, folder):  # of a call that was killed before its first update
        left.unlink() if left.is_symlink() else shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(checkpoint, partial / CHECKPOINTS / checkpoint.name)
    for name in (METRICS, ENVIRONMENT, IDENTITY):
        if (run / name).is_file():
            shutil.copyfile(run / name, partial / name)
    write_whole(partial / RUN, block_text({"kilobatch": 1, **record}))
    truncate_records(partial, read_checkpoint(checkpoint).state["update"])
    partial.rename(folder)


def _loss(run: Run, *, after: float) -> float:
    """Mean training loss over the samples from a position on; infinite where the run diverged before its end."""
    updates = run.updates
    chosen = updates.samples >= after
    if has_diverged(run.folder) or not chosen.any() or not np.isfinite(updates.loss[chosen]).all():
        return math.inf
    return float(np.average(updates.loss[chosen], weights=updates.global_batch_size[chosen]))


def epsilon_of(asked: Branching, found: Sequence[Branch]) -> tuple[float, str]:
    """How much larger a loss counts as the same, and where that comes from."""
    if asked.epsilon is not None:
        return asked.epsilon, "as asked"
    spreads = [statistics.variance(each.losses) for each in found if len(each.losses) > 1 and math.isfinite(each.loss)]
    if not spreads:
        return EPSILON, "Merrill et al. 2025's and not measured; --seeds 3 measures it"
    error = math.sqrt(2 * statistics.median(spreads) / asked.seeds)  # a batch that goes wrong spreads most
    return 2 * error, f"twice the standard error of a difference over {asked.seeds} seeds"


def branches_text(result: Branches) -> str:
    """The table and the critical batch."""
    rows = [("batch", "rate", "updates", "loss", "accuracy", "")]
    for branch in result.branches:
        diverged = branch.loss == math.inf
        spread = f" ± {statistics.stdev(branch.losses):.4f}" if len(branch.losses) > 1 and not diverged else ""
        accuracy = percent(statistics.fmean(branch.accuracies)) if branch.accuracies else "-"
        verdict = "diverged" if diverged else "as good" if result.holds(branch) else "worse"
        cells = (f"{branch.batch:,}", f"x{branch.rate_factor:.3g}", f"{branch.updates}", f"{branch.loss:.4f}{spread}")
        rows.append((*cells, accuracy, verdict))
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:5]]
    lines = ["  ".join(map(str.rjust, row, widths)) + f"  {row[5]}" for row in rows]
    about = f"after update {result.update} (epoch {result.epoch:.2f}), batch {result.batch:,}"
    last = f"critical batch: {'at least ' * result.is_largest}{result.critical.batch:,}"
    epsilon = f"epsilon {result.epsilon:.4f}, {result.epsilon_from}"
    text = [f"{about}: {result.window_samples:,} samples each", "", *map(str.rstrip, lines), "", epsilon, last]
    return "\n".join(text) + "\n"


def grown_recipe(asked: Branching, result: Branches, file: Path) -> str:
    """Write the run's recipe with twice the batch from the checkpoint on, if the branches allow it; says what was done.

    Raises:
        InputRefused: as `stepped_recipe`.
    """
    twice = 2 * result.batch
    if result.critical.batch <= twice:
        hint = f"; it may be more: add {2 * twice:,} to --batches" if result.is_largest else ""
        return f"{file} was not written: the critical batch is not above twice the batch, {twice:,}{hint}"
    opened = _open(asked)
    steps = steps_of(opened, samples=result.samples, batch=twice)
    reason = f"allowed by the branches of {asked.run.name}"
    stepped_recipe(
        opened,
        steps,
        reason=reason,
        source=MERRILL,
        out=file,
        vocabulary=vocabulary(allow_code=asked.allow_code),
        allow_code=asked.allow_code,
        data_root=asked.data,
    )
    same = next((branch.folders[0] for branch in result.branches if branch.batch == twice), None)
    done = f"wrote {file}: batch {twice:,} from epoch {result.epoch:.6g} on"
    if same is None:
        return done
    way = f"kilobatch train {quote(f'{same}/{RECIPE}')} --out {quote(same)} --resume{asked.options}"
    return f"{done}; its branch goes on: {way}"


def measured_ramp(folders: Sequence[Path], *, out: Path | None, data: Path | None, allow_code: bool) -> Scaled:
    """The ramp of a run's noise scale, or of its branches at several checkpoints.

    The noise scale of a window is unresolved where its standard error is more than half of it.

    Raises:
        InputRefused: the folders are of several runs, or hold neither; or as `ramp_recipe`.
    """
    if all((folder / BRANCHES).is_file() for folder in folders):
        found = sorted(map(Branches.read, folders), key=lambda each: each.epoch)
        named, by, measured = [Path(each.run) for each in found], "the branches", [each.measured for each in found]
    else:
        named, by, measured = folders, "the noise scale", []
    runs = {path.resolve(): path for path in named}
    if len(runs) > 1:
        both = " and ".join(sorted(map(str, runs.values())))
        raise InputRefused(f"--from: {both} are two runs; name one, or branches of one")
    run = named[0]
    if measured and not run.is_dir():
        where = folders[0] / BRANCHES
        raise InputRefused(f"{where}: its run, {run}, is not there; put it there, or write its new path as `run`")
    require_run(run)
    if not measured:
        windows = noise_windows(open_run(run))
        if not windows:
            raise InputRefused(
                f"{run} has no noise scale; train with --noise-scale, in updates of more than one norm group or "
                f"micro-batch, or branch from it"
            )
        for window in windows:
            scale = window.scale
            known = scale is not None and scale.standard_error <= scale.value / 2
            measured.append(Measured(epoch=window.first_epoch, batch=scale.value if known else None))
    return ramp_recipe(
        run / RECIPE,
        measured,
        by=by,
        out=out,
        vocabulary=vocabulary(allow_code=allow_code),
        allow_code=allow_code,
        data_root=data,
    )
