"""`kilobatch reproduce`: reruns what a pack claims, and ends in a verdict.

The first rerun has the seed of the first run in the pack: it may have the same bits, or be the same run up to rounding.
Otherwise further seeds follow, and statistics decide.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused, refuse_unreachable, refused
from recipes.packs.make import SAMPLES, last_weights, samples_of
from recipes.planning.timeline import timeline_of
from recipes.reading.identity import identity_ids
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import path_of_pack
from recipes.reading.tree_diff import WORDS, without_place
from recipes.reports.json_text import finite
from recipes.reports.record import Run, open_run
from recipes.reports.wording import counted, percent
from recipes.sharing.canonical import canonical_json, mapping_in, sha256_of
from recipes.sharing.evidence import others_text
from recipes.sharing.pack_file import HEAD, claims_of, runs_of
from trainers import kernels
from trainers.launch.identity import made_of
from trainers.launch.preflight import refuse_folder, refuse_unbuilt
from trainers.launch.train_command import train_words
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_INPUT
from trainers.runs.identity import changes, installed_code, read_identity
from trainers.runs.metrics_file import has_diverged
from trainers.runs.mpi_ranks import without_launcher
from trainers.runs.run_folder import METRICS, TRACE, differences, environment_of, write_whole
from trainers.tasks.verdict import AS_GOOD, UNDECIDED, WORSE, Claimed, Judgement, judge, level_of_look, more_seeds

SAME_BITS, SAME_RUN = "the same bits", "the same run"
_UNEXPLAINED = "samples or losses, and nothing else: the pack's run had another recipe, code or machine"
EXIT_CODES = {SAME_BITS: 0, SAME_RUN: 0, AS_GOOD: 0, WORSE: 5, UNDECIDED: 6}
EVIDENCE, REGISTERED = "evidence.json", "registered.json"
PACK = "pack.txt"  # digest of the pack whose runs a folder has
_SINCE = "passes"  # of kernels: older versions of kilobatch, which are named as such, do not record it
_NO_RECIPE = (*WORDS, "dataset")
_MARGIN = 0.01  # of an accuracy whose claim has none. Assumed: a point.
_DIVERGED_LOSS = 1e3
_STDERR = 2  # what a run prints is no result of this command
_LOSS_MARGIN = 0.05  # of the training loss over a part of a run, as a share of the recorded one. Assumed.
# Rounding grows from update to update: losses are compared while it is small beside any change of the training.
_TOLERANCE, _GROWTH, _COMPARED = 1e-6, 4.0, 6


class RerunFailed(RuntimeError):
    """A training did not end well; `code` is its exit code."""

    def __init__(self, folder: Path, code: int) -> None:
        then = "its input was refused, see above" if code == EXIT_INPUT else "the same command goes on with it"
        super().__init__(f"the run in {folder} ended with exit code {code}; {then}")
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """What is rerun, and how.

    Args:
        pack: path of a pack, or a name in a registry.
        seeds: reruns at most.
        part: share of each run's epochs, up to 1.
        out: folder of the runs; None: one in `runs` for this pack.
        options: of `kilobatch train`.
        register: write margin and seeds down before the first run.
    """

    pack: str
    seeds: int = 5
    part: float = 1.0
    out: Path | None = None
    options: tuple[str, ...] = ()
    data: Path | None = None
    allow_code: bool = False
    register: bool = False


@refuse_unreachable()
def reproduce(rerun: Rerun, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """Rerun a pack; returns the evidence, which is also written.

    Args:
        tell: called with each line for the user.
    Raises:
        InputRefused: it is no pack, has no claim, or cannot be trained here, or no kernels have the name that is asked.
        RerunFailed: a run did not end.
    """
    if (lacks := kernels.missing(kernels.of_the_cpu(kernels.asked()))) is not None:
        raise refused("--kernels", *lacks)
    path = Path(path_of_pack(rerun.pack))
    if not (path.parent / HEAD).is_file():
        raise InputRefused(f"{rerun.pack} is no pack; make one: kilobatch recipes pack {shlex.quote(rerun.pack)}")
    words = vocabulary(allow_code=rerun.allow_code)
    opened = open_recipe(path, vocabulary=words, allow_code=rerun.allow_code, data_root=rerun.data)
    refuse_unbuilt(opened.recipe, opened.dataset)
    refuse_folder(opened.dataset, rerun.data)
    head = mapping_in((path.parent / HEAD).read_bytes())
    recorded = _recorded(path.parent)
    claimed = _claimed(head, opened, recorded, rerun.part)
    digest = path.parent.name
    part = "" if rerun.part == 1 else f"-part-{rerun.part:g}"
    out = rerun.out or Path("runs", f"reproduce-{opened.recipe.name}-{digest[:8]}{part}")
    out.mkdir(parents=True, exist_ok=True)
    _require_pack(out, digest)
    settings = {"pack": digest, "margin": claimed.margin, "seeds": rerun.seeds, "part": rerun.part}
    registered = _registered(out, settings, rerun.register)
    made = made_of(opened)
    _require_same_training(out, made | _installed(opened))
    found = _differences(head, opened, path.parent, recorded, made)
    differ = list(dict.fromkeys([*found, *_older_environments(out, path.parent)]))
    tell(f"claimed: {_shown(claimed, rerun.part)}")
    for line in differ or ["nothing that the pack records"]:
        tell(f"differs here: {line}")
    seeds = _seeds(opened.recipe.seed, recorded, rerun.seeds)
    values: list[float] = []
    verdict, words, judgement = UNDECIDED, "", None
    for seed in seeds:
        run = _trained(rerun, path, out / f"seed-{seed}", seed)
        values.append(_value(run, rerun.part))
        tell(f"seed {seed}: {_value_words(values[-1], rerun.part)}")
        if seed in recorded:
            fits = not any(line.startswith(("recipe", "data", "code", "claim")) for line in differ)
            verdict, words = _same(recorded[seed], head, run, seed, rerun.part) if fits else (UNDECIDED, "")
            wrong = "" if differ else _UNEXPLAINED
            if verdict != UNDECIDED:
                margin = claimed.margin if verdict == SAME_RUN else 0.0
                wrong = _wrong_accuracy(recorded[seed], run, rerun.part, margin=margin)
                wrong = wrong or (_wrong_figure(recorded[seed], run, rerun.part) if verdict == SAME_BITS else "")
                words += f", of one of the pack's {len(recorded)} runs" if len(recorded) > 1 else ""
            if wrong:
                verdict = UNDECIDED
                differ.append(wrong)
                tell(f"differs here: {wrong}")
        if verdict == UNDECIDED:
            judgement = judge(claimed, values, level=level_of_look(len(values), looks=len(seeds)))
            verdict = judgement.verdict
            words = _words(judgement, len(values), more_seeds(claimed, values), rerun.part, others_text(differ))
        if verdict != UNDECIDED:
            break
    evidence = {
        "kilobatch_rerun": 1,
        **settings,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "verdict": verdict,
        "words": words,
        "judgement": judgement and finite(asdict(judgement)),
        "claimed": asdict(claimed),
        "values": {str(seed): value for seed, value in zip(seeds, values, strict=False)},
        "differs": differ,
        "registered": registered,
        "environment": environment_of(out / f"seed-{seeds[0]}"),
    }
    write_whole(out / EVIDENCE, canonical_json(evidence) + b"\n")
    tell(f"verdict: {words}")
    tell(f"wrote {out / EVIDENCE}; kilobatch registry push adds it to the pack's record")
    return evidence


def _recorded(folder: Path) -> dict[int, Run]:
    """The runs in a pack, by seed."""
    runs = sorted((folder / "runs").glob("*"), key=lambda path: int(path.name))
    return {int(run.name): open_run(run) for run in runs}


def _claimed(head: Mapping[str, Any], opened: OpenedRecipe, recorded: Mapping[int, Run], part: float) -> Claimed:
    """What is to be held: the first claim of an accuracy, or, of a part of a run, the loss at its end, negative."""
    if part != 1:
        if not recorded:
            raise InputRefused("--part compares with recorded runs, and the pack of a recipe has none")
        planned = timeline_of(opened.recipe, opened.dataset).num_updates
        for run in recorded.values():
            if run.plan.get("num_updates") != planned or len(run.updates) < _updates(run, part):
                what = f"{run.folder}: its record is not that of the pack's recipe, which has {planned:,} updates"
                raise InputRefused(f"{what}, and --part compares losses at the same ones; leave --part out")
        losses = [_loss(run, part) for run in recorded.values()]
        mean = statistics.fmean(losses)
        spread = statistics.stdev(losses) if len(losses) > 1 else None
        return Claimed(
            value=-mean, deviation=spread, runs=len(losses), margin=_LOSS_MARGIN * mean, resolution=1e-4 * mean
        )
    claim = next((claim for claim in claims_of(head) if claim.kind == "accuracy"), None)
    if claim is None:
        raise InputRefused("the pack claims no accuracy; pack runs, or a recipe with `claims`")
    return Claimed(
        value=claim.value,
        deviation=claim.deviation,
        runs=claim.runs,
        margin=_MARGIN if claim.margin is None else claim.margin,
        resolution=1 / opened.dataset.num_eval,
    )


def _require_pack(out: Path, digest: str) -> None:
    """Refuse a folder with runs of another pack; an empty one becomes this pack's."""
    file = out / PACK
    known = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    if known == digest:
        return
    if known or any(out.glob("seed-*")):
        of = f"pack {known[:12]}" if known else "an unknown pack"
        raise InputRefused(f"{out} has runs of {of}, and this is pack {digest[:12]}; give another --out")
    write_whole(file, f"{digest}\n")


def _installed(opened: OpenedRecipe) -> dict[str, Any]:
    return {"installed": installed_code([opened.tree, opened.dataset_tree], opened.reading.vocabulary)}


def _require_same_training(out: Path, made: Mapping[str, Any]) -> None:
    """Refuse to go on with runs of other code, data, kernels or decoders: the verdict would not be on those of now."""
    from trainers.training.environment import numerical_environment

    now = numerical_environment()
    operators, decoder = now["kernels"]["operators"], now["decoder"]
    for folder in sorted(out.glob("seed-*")):
        found = list(changes(read_identity(folder) or made, made).values())
        environment = environment_of(folder)
        way_out = "give another --out" if "data" in made else "the data are not here: give --data FOLDER"
        ranks = environment.get("ranks") or ()
        if not any(rank.get("gpu") for rank in ranks if isinstance(rank, dict)):  # whose kernels this process has not
            was = environment.get("kernels", {}).get("operators")
            if was not in (None, operators):
                found.append(f"kernels: {was} there, {operators} now")
                way_out += f", or --kernels {was} to go on as before"
        if (was := environment.get("decoder")) not in (None, decoder):
            found.append(f"decoder: {was} there, {decoder} now")
        if found:
            raise InputRefused(f"{folder} has a run with other {'; other '.join(found)}; {way_out}")


def _registered(out: Path, settings: dict[str, Any], register: bool) -> str | None:
    """When margin and seeds were written down, before any run; None if they were not."""
    file = out / REGISTERED
    if file.is_file():
        known = mapping_in(file.read_bytes())
        if {key: known.get(key) for key in settings} != settings:
            raise InputRefused(f"{file} was written for other seeds, margin or part; keep to it, or give another --out")
        return str(known["date"])
    if not register:
        return None
    if any(out.glob("seed-*")):
        raise InputRefused(f"{out} has runs already, and --register comes before the first; give another --out")
    date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_whole(file, json.dumps({**settings, "date": date}, indent=1) + "\n")
    return date


def _differences(
    head: Mapping[str, Any], opened: OpenedRecipe, folder: Path, recorded: Mapping[int, Run], made: Mapping[str, Any]
) -> Iterator[str]:
    """What is not as the pack has recorded it, in words; `made` is of `made_of`."""
    from trainers.training.environment import numerical_environment

    ids, said = identity_ids(opened, made), head.get("ids")
    for what, digest in said.items() if isinstance(said, dict) else ():
        if ids.get(what) != digest and not (what == "data" and digest is None):
            here = f"{ids[what][:12]} here" if ids.get(what) else "not found here"
            here += "; give --data FOLDER" if what == "data" and not ids.get(what) else ""
            yield f"{what}: {str(digest or 'none')[:12]} in the pack, {here}"
    accuracies = [run.final_accuracy for run in recorded.values()]
    if None in accuracies:
        yield f"claim: no accuracy in {accuracies.count(None)} of the pack's {counted(len(accuracies), 'run')}"
    elif accuracies:
        mean = statistics.fmean(accuracies)
        claimed = next((claim.value for claim in claims_of(head) if claim.kind == "accuracy"), mean)
        if not math.isclose(claimed, mean, abs_tol=1e-9):
            yield f"claim: {claimed:.4f} is claimed, and the pack's own runs have {mean:.4f}"
    for seed, run in recorded.items():
        here, there = without_place({**opened.tree, "seed": seed}), without_place(run.recipe)
        changed = differences(here, there, where=("in the pack's recipe", "in its run"))
        yield from (f"recipe, {line}" for line in changed if line.partition(".")[0].partition(":")[0] not in _NO_RECIPE)
    yield from _other_environment(environment_of(folder), numerical_environment(), "here")


def _older_environments(out: Path, folder: Path) -> Iterator[str]:
    """What is not as the pack has recorded it where runs that are there were trained, and is not so here."""
    from trainers.training.environment import numerical_environment

    before = environment_of(folder)
    here = {*_other_environment(before, numerical_environment(), "")}
    for run in sorted(out.glob("seed-*")):
        there = _other_environment(before, environment_of(run), "")
        yield from (f"{line}in {run.name}" for line in there if line not in here)


def _other_environment(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in ("cpu_model", "versions", "libc", "kernels", "decoder", "dtype") if before and now else ():
        was, has = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(has, dict):
            names = sorted(name for name in was.keys() | has.keys() if was.get(name) != has.get(name))
            if key == "kernels" and _SINCE not in was and _version_of(before) != _version_of(now):
                names = [name for name in names if name != _SINCE]
            yield from (f"{key}, {name}: {was.get(name)} in the pack, {has.get(name)} {where}" for name in names)
        elif was != has:
            yield f"{key}: {was} in the pack, {has} {where}"


def _version_of(environment: Mapping[str, Any]) -> Any:
    versions = environment.get("versions")
    return versions.get("kilobatch") if isinstance(versions, dict) else None


def _seeds(first: int, recorded: Mapping[int, Run], number: int) -> list[int]:
    """The seed of the first recorded run, then seeds that no recorded run has."""
    fresh = max([first, *recorded]) + 1
    return [first, *range(fresh, fresh + number - 1)]


def _trained(rerun: Rerun, path: Path, folder: Path, seed: int) -> Run:
    """The run of a seed, which is trained now unless it is there."""
    if (folder / METRICS).is_file():
        run = open_run(folder)
        reached = run.reason == "--stop-after" and len(run.updates) >= _updates(run, rerun.part)
        if run.outcome == "success" or (rerun.part != 1 and reached) or has_diverged(folder):
            return run
    words = train_words(path, overrides=[f"seed={seed}"], data=rerun.data, allow_code=rerun.allow_code)
    words += ["--out", str(folder), "--trace", *rerun.options]
    words += [] if rerun.part == 1 else ["--stop-after", f"{rerun.part!r}run"]
    return train_apart([*words, *(["--resume"] if folder.is_dir() else [])], folder)


def train_apart(words: Sequence[str], folder: Path, *, prints_to: int = _STDERR) -> Run:
    """The run of a `kilobatch train`, see `train_words`, in processes of its own.

    Raises:
        RerunFailed: it did not end, and its numbers are finite.
    """
    done = subprocess.run(words, env=without_launcher(os.environ), stdout=prints_to)
    if done.returncode and not has_diverged(folder):
        raise RerunFailed(folder, done.returncode)
    return open_run(folder)


def _value(run: Run, part: float) -> float:
    """The result of a run, larger is better; a run that diverged has the worst."""
    if part != 1:
        return -_DIVERGED_LOSS if run.outcome == "failed" else -_loss(run, part)
    return 0.0 if run.outcome == "failed" else run.final_accuracy or 0.0


def _loss(run: Run, part: float) -> float:
    """Mean training loss over the last fifth of a part of a run."""
    updates = _updates(run, part)
    return float(run.updates.loss[:updates][-max(1, updates // 5) :].mean())


def _updates(run: Run, part: float) -> int:
    """Updates in a part of a run; `--stop-after` may do one more."""
    return max(1, math.floor(part * int(run.plan["num_updates"])))


def _same(before: Run, head: Mapping[str, Any], run: Run, seed: int, part: float) -> tuple[str, str]:
    """SAME_BITS or SAME_RUN and what was compared, in words; else UNDECIDED and no words."""
    number = _updates(run, part)
    were, are = before.updates.loss[:number], run.updates.loss[:number]
    if min(len(were), len(are)) < number:
        return UNDECIDED, ""
    so_far = "" if part == 1 else f", after {percent(part, digits=0)} of it"
    facts = next((each for each in runs_of(head) if each.get("seed") == seed), {})
    if facts.get("exact") and run.environment.get("exact") and (were == are).all():
        if part != 1:
            return SAME_BITS, f"{SAME_BITS}: every loss is equal{so_far}"
        if sha256_of(last_weights(run.folder).read_bytes()) == facts.get("weights_sha256"):
            return SAME_BITS, f"{SAME_BITS}: every loss, weight, accuracy and metric is equal"
    if has_samples := (before.folder / SAMPLES).is_file():
        recorded = (before.folder / SAMPLES).read_bytes().splitlines()[:number]
        if samples_of(run.folder / TRACE).splitlines()[:number] != recorded:
            return UNDECIDED, ""
    close = zip(were[:_COMPARED], are[:_COMPARED], strict=True)
    limits = [_TOLERANCE * _GROWTH**update for update in range(_COMPARED)]
    if not all(math.isclose(was, now, rel_tol=limit) for (was, now), limit in zip(close, limits, strict=False)):
        return UNDECIDED, ""
    if has_samples:
        return SAME_RUN, f"{SAME_RUN}: samples and images are equal, losses up to rounding{so_far}"
    losses = f"the losses of the first {counted(min(number, _COMPARED), 'update')} are equal up to rounding"
    return SAME_RUN, f"{SAME_RUN}: {losses}; the pack has no samples to compare{so_far}"


def _wrong_accuracy(before: Run, run: Run, part: float, *, margin: float) -> str:
    """Which recorded accuracy is not that of the run, in words; empty if all are as recorded.

    Args:
        margin: 0: every evaluation is compared; above: the last of a whole run, which may differ by this.
    """
    if margin:
        pairs = [(before.final_accuracy, run.final_accuracy)] if part == 1 else []
    else:
        was, has = (
            dict(zip(each.update, each.accuracy, strict=True)) for each in (before.evaluations, run.evaluations)
        )
        updates = was.keys() | has.keys() if part == 1 else was.keys() & has.keys()
        pairs = [(was.get(update), has.get(update)) for update in sorted(updates)]
    for pair in pairs:
        recorded, reached = (math.nan if accuracy is None else float(accuracy) for accuracy in pair)
        if not np.isclose(recorded, reached, rtol=0, atol=margin or 1e-9, equal_nan=True):
            return f"accuracy: the pack records {_accuracy(recorded)}, and the same training has {_accuracy(reached)}"
    return ""


def _wrong_figure(before: Run, run: Run, part: float) -> str:
    """Which recorded loss or metric of an evaluation the run has not in its bits, in words; empty if it has all."""
    last = math.inf if part == 1 else max(run.evaluations.epoch, default=0.0)
    were, are = _figures(before), _figures(run)
    for name, recorded in were.items():
        for epoch, value in recorded:
            if epoch <= last and (epoch, value) not in are.get(name, ()):
                reached = next((f"{has:.6g}" for at, has in are.get(name, ()) if at == epoch), "none")
                what = f"evaluation's {name} at epoch {epoch:.4g}"
                return f"{what}: the pack records {value:.6g}, and the same training has {reached}"
    return ""


def _figures(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Epochs and values of the loss and of each metric of a run's evaluations; an epoch may have two values."""
    columns = {"loss": (run.evaluations.epoch, run.evaluations.loss), **run.metrics}
    pairs = {name: zip(*(column.tolist() for column in both), strict=True) for name, both in columns.items()}
    return {name: [(epoch, value) for epoch, value in found if math.isfinite(value)] for name, found in pairs.items()}


def _accuracy(value: float) -> str:
    return percent(value) if math.isfinite(value) else "none"


def _shown(claimed: Claimed, part: float) -> str:
    spread = "" if claimed.deviation is None else f" ± {_number(claimed.deviation, part)}"
    over = f" over {counted(claimed.runs, 'run')}" if claimed.runs else ""
    margin = f"; a rerun may fall short by {_number(claimed.margin, part)}"
    return f"{_value_words(claimed.value, part)}{spread}{over}{margin}"


def _value_words(value: float, part: float) -> str:
    share = percent(part, digits=0)
    return f"accuracy {percent(value)}" if part == 1 else f"training loss {-value:.4f} after {share} of the run"


def _number(value: float, part: float) -> str:
    return f"{100 * value:.2f} points" if part == 1 else f"{value:.4f}"


def _words(judgement: Judgement, number: int, more: int | None, part: float, others: str) -> str:
    """The verdict of statistics on a number of runs, with its numbers; `others` is of `others_text`."""
    verdict, so_far = judgement.verdict, "" if part == 1 else f", after {percent(part, digits=0)} of it"
    low, high = (_signed(bound, part) for bound in (judgement.lower, judgement.upper))
    difference = _signed(judgement.difference, part)
    words = f"{verdict}{so_far}{others}: the difference is {difference}, its one-sided bounds {low} and {high}"
    if verdict != UNDECIDED:
        return words
    return words + (
        f"; {counted(more, 'more seed')} would decide if they went on like this: --seeds {number + more}"
        if more is not None
        else "; more seeds would not decide: the claim itself rests on too few runs"
    )


def _signed(value: float, part: float) -> str:
    return f"{100 * value:+.2f} points" if part == 1 else f"{value:+.4f}"
