"""`kilobatch verify`: whether a recipe, with the user's own code and data, is the same training however it is divided.

Short runs of the recipe are compared: again, in smaller micro-batches, on two and three ranks, resumed. They are
computed in float64 with `--fast`, where only rounding may differ, about 1e-15, and once as `train` does it, where no
bit may. Where runs differ, the model is looked at layer by layer for what breaks the promise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.packs.make import last_weights
from recipes.planning.division import largest_divisor
from recipes.reading.load import load_tree
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.read import value_at
from recipes.reading.yaml import flow_text
from recipes.schema.image_size import image_sizes
from recipes.schema.positions import settable, written_in_updates
from trainers.launch.preflight import refuse_unbuilt, require_startable
from trainers.launch.train_command import train_words
from trainers.launch.vocabulary import vocabulary
from trainers.runs.mpi_ranks import without_launcher
from trainers.runs.run_folder import TRACE

_UPDATES, _RESUMED_AFTER = 3, 1
_GROUPS = 6  # of the batch that is tried: two and three ranks get as many each
_MOST_SAMPLES = 16  # of a norm group that is tried
_TOLERANCE = 1e-7  # relative, of losses in float64
_SECONDS = 600  # of a run, at most


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison.

    Args:
        name: what was varied.
        holds: whether the runs are the same.
        why: how they differ, and what does it; empty where they are the same.
    """

    name: str
    holds: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What a short run gave: for each update sample ids, digest of the images and loss; the digest of its weights."""

    ids: tuple[Any, ...]
    images: tuple[str, ...]
    losses: tuple[float, ...]
    weights: bytes


def verify(
    recipe: str,
    *,
    overrides: Sequence[str] = (),
    data: Path | None = None,
    allow_code: bool = False,
    tell: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Train a recipe in several ways and compare.

    Args:
        recipe, overrides, data, allow_code: as for `train`.
        tell: called with each check once it is done.
    Raises:
        InputRefused: the recipe cannot be trained here; a run failed, with what it said.
    """
    small = _small(recipe, overrides, data, allow_code)
    opened = _opened(recipe, small, data, allow_code)
    refuse_unbuilt(opened.recipe, opened.dataset)
    require_startable(opened, ranks=3, is_new=True)
    batch, span = opened.recipe.batch.global_.sizes[0], max(opened.recipe.batch.norm_span.sizes)
    words = train_words(recipe, overrides=small, data=data, allow_code=allow_code)
    checks: list[Check] = []

    def done(name: str, why: str) -> None:
        checks.append(Check(name=name, holds=not why, why=why))
        tell(checks[-1])

    with tempfile.TemporaryDirectory(prefix="kilobatch-verify-") as root:
        trial = _Trials(Path(root), words)
        alone = trial("--fast", ranks=1, micro=batch)
        again = trial("--fast", ranks=1, micro=batch)
        found = _first_difference(alone, again, tolerance=1e-12)
        done("same command again", found and _why_random(opened, found))
        if found:
            return checks  # all others would differ as well

        def compare(name: str, why: Callable[[str], str], **how: Any) -> None:
            try:
                tried = trial("--fast", **how)
            except InputRefused as error:  # weights that differ between ranks end a run
                done(name, str(error))
            else:
                found = _first_difference(alone, tried)
                done(name, found and why(found))

        divided, ranks_differ = partial(_why_divided, opened), partial(_why_ranks, opened, checks)
        compare(f"micro-batches of {span} and of {batch} samples", divided, ranks=1, micro=span)
        compare("1 and 2 ranks", ranks_differ, ranks=2, micro=batch)
        compare("1 and 3 ranks", ranks_differ, ranks=3, micro=batch)
        compare(f"3 ranks in micro-batches of {span}", ranks_differ, ranks=3, micro=span)
        why = partial(_why_resumed, opened, checks)
        compare("resumed on 2 ranks after update 1", why, ranks=2, micro=batch, resumed=True)
        try:
            one, three = (trial("--exact", ranks=ranks, micro=batch, dtype="float32") for ranks in (1, 3))
        except InputRefused as error:
            done("equal bits on 1 and 3 ranks", f"cannot be held: {error}")
        else:
            same = (one.weights, one.losses) == (three.weights, three.losses)
            done("equal bits on 1 and 3 ranks", "" if same else _first_difference(one, three, tolerance=0.0))
    return checks


def _small(recipe: str, overrides: Sequence[str], data: Path | None, allow_code: bool) -> list[str]:
    """Overrides that make the recipe's updates small: six norm groups of at most 16 samples.

    They drop what of its updater depends on the number of workers by intention. What is written in updates stays at
    the same time in epochs, and the run has at least the updates that are tried.
    """
    opened = _opened(recipe, overrides, data, allow_code)
    most = min(_MOST_SAMPLES, opened.dataset.num_train // _GROUPS)
    span = largest_divisor(most, [opened.recipe.batch.norm_span.sizes[0]])
    small = [*overrides, f"batch={{global: {_GROUPS * span}, norm_span: {span}}}"]
    written, _ = load_tree(opened.path, overrides=overrides)
    paths = (path for path, _ in written_in_updates(written))
    small += [f"{key}={flow_text(value_at(opened.tree, key))}" for key in dict.fromkeys(map(settable, paths))]
    if opened.recipe.epochs < (least := _UPDATES * _GROUPS * span / opened.dataset.num_train):
        small.append(f"epochs={least}")
    small.append("evaluation.every=1run")
    if opened.recipe.updater.why_not_exact:
        small += ["updater.local_steps=null", "updater.power_sgd_rank=null"]
    if not opened.tree["learning_rate"].get("warmup"):
        return small
    aimed = [*small, f"learning_rate.warmup.target_batch={_GROUPS * span}"]
    try:
        _opened(recipe, aimed, data, allow_code)
    except InputRefused:  # it starts at a rate above the full one of so small a batch
        assumed = [path for path in opened.tree.get("assumed") or () if not path.startswith("learning_rate.warmup")]
        return [*small, "learning_rate.warmup=null", f"assumed={json.dumps(assumed)}"]
    return aimed


def _opened(recipe: str, overrides: Sequence[str], data: Path | None, allow_code: bool) -> OpenedRecipe:
    words = vocabulary(allow_code=allow_code)
    return open_recipe(recipe, vocabulary=words, overrides=overrides, allow_code=allow_code, data_root=data)


class _Trials:
    """Runs a `kilobatch train` in folders of their own; `words` are its own, see `train_words`."""

    def __init__(self, root: Path, words: list[str]) -> None:
        self._root, self._words, self._number = root, words, 0

    def __call__(self, how: str, *, ranks: int, micro: int, resumed: bool = False, dtype: str = "float64") -> _Tried:
        self._number += 1
        folder = self._root / str(self._number)
        given = [*self._words, how, "--trace", "--micro-batch-size", str(micro), "--out", str(folder)]
        if dtype == "float64":  # rounding to 16 bits would hide what is looked for
            given += ["--set", "precision.compute=float32"]
        if resumed:
            self._run([*given, "-n", "1", "--stop-after", f"{_RESUMED_AFTER}up"], dtype)
            given.append("--resume")
        self._run([*given, "-n", str(ranks), "--stop-after", f"{_UPDATES}up"], dtype)
        lines = [json.loads(line) for line in (folder / TRACE).read_text(encoding="utf-8").splitlines()]
        weights = last_weights(folder).read_bytes()
        shutil.rmtree(folder)
        keys = ("sample_ids", "images_sha256", "loss")
        ids, images, losses = ([line[key] for line in lines] for key in keys)
        losses = (math.nan if loss is None else loss for loss in losses)
        return _Tried(ids=tuple(map(tuple, ids)), images=tuple(images), losses=tuple(losses), weights=weights)

    def _run(self, words: list[str], dtype: str) -> None:
        environment = {**without_launcher(os.environ), "CHAINER_DTYPE": dtype}
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True) as run:
            try:
                _, messages = run.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                run.kill()
                what = f"{_UPDATES} updates of {_GROUPS} small norm groups, in {dtype}, take over {_SECONDS} s"
                raise InputRefused(f"{what}; make the model or its images smaller with --set") from None
            except KeyboardInterrupt:  # a terminal's Ctrl-C reached the run too, and a second signal ends its ranks
                run.terminate()
                run.communicate()
                raise
        if run.returncode != 0:
            said = [line for line in messages.splitlines() if line.strip()]
            raise InputRefused(f"a run for the comparison failed, in {dtype}: {' '.join(said[-3:])}; correct it first")


def _first_difference(one: _Tried, other: _Tried, *, tolerance: float = _TOLERANCE) -> str:
    """What differs first between two runs, in words; empty where they are the same."""
    for update in range(len(one.ids)):
        if one.ids[update] != other.ids[update]:
            return f"the order of samples of update {update}"
        if one.images[update] != other.images[update]:
            return f"the images of update {update}"
    for update, (first, second) in enumerate(zip(one.losses, other.losses, strict=True)):
        if not math.isclose(first, second, rel_tol=tolerance, abs_tol=0.0):
            return f"the loss of update {update}: {first:.9g} and {second:.9g}"
    return "the weights" if tolerance == 0 and one.weights != other.weights else ""


def _why_random(opened: OpenedRecipe, found: str) -> str:
    if found.startswith("the loss"):
        layer = _Probe(opened).random_layer()
        what = f"{layer} draws from a global random state" if layer else "something draws from a global random state"
        return f"{found}; {what}: use F.dropout, whose masks are keyed, or draws of kilobatch"
    kinds = _own_kinds(opened, ("augmentation", "dataset"))
    return f"{found}; {kinds or 'the reader or an augmentation'} draws from a global random state: use its `draws`"


def _why_divided(opened: OpenedRecipe, found: str) -> str:
    probe = _Probe(opened)
    if layer := probe.counting_layer():
        way_out = "chainer.links.BatchNormalization has norm groups"
        return f"{found}; {layer} keeps statistics of its own, once a micro-batch: {way_out}"
    if layer := probe.mixing_layer():
        return f"{found}; {layer} looks at the whole micro-batch: what it gives for a sample depends on those beside it"
    return f"{found}; {_own_kinds(opened, ('loss', 'model')) or 'loss or model'} depends on the micro-batch"


def _why_ranks(opened: OpenedRecipe, before: Sequence[Check], found: str) -> str:
    if not found.startswith("the loss"):
        kinds = _own_kinds(opened, ("dataset", "augmentation")) or "the reader or an augmentation"
        return f"{found}; {kinds} depends on the rank: a sample must be the same on any"
    if not before[1].holds:
        return f"{found}; what breaks micro-batches breaks this too"
    at_once = found.startswith("the loss of update 0")
    keys = ("loss", "model") if at_once else ("optimizer", "extensions", "loss", "model")
    kinds = _own_kinds(opened, keys) or "something"
    return f"{found}; {kinds} uses the rank or the number of ranks: averages must count samples, not ranks"


def _why_resumed(opened: OpenedRecipe, before: Sequence[Check], found: str) -> str:
    if not all(check.holds for check in before):
        return f"{found}; what breaks the checks above breaks this too"
    kinds = _own_kinds(opened, ("extensions", "model", "optimizer", "loss")) or "something"
    return f"{found}; {kinds} has a state that no checkpoint keeps: see `state` of extensions, or persistents"


def _own_kinds(opened: OpenedRecipe, keys: Sequence[str]) -> str:
    """The user's own components under these keys of the recipe, in words."""

    def kinds(tree: Any) -> Iterator[str]:
        if isinstance(tree, dict):
            if "." in str(tree.get("kind", "")):
                yield tree["kind"]
            tree = list(tree.values())
        for inner in tree if isinstance(tree, list) else ():
            yield from kinds(inner)

    trees = [opened.dataset_tree if key == "dataset" else opened.tree.get(key) for key in keys]
    return " or ".join(dict.fromkeys(kind for tree in trees for kind in kinds(tree)))


class _Probe:
    """Looks at the model of a recipe layer by layer, on two norm groups of training samples."""

    def __init__(self, opened: OpenedRecipe) -> None:
        import chainer
        import numpy as np

        from trainers.models.batch_norm import NormGroups
        from trainers.training.build import build

        parts = build(opened.recipe, opened.dataset)
        self._model, self._groups = parts.model, NormGroups(opened.recipe.evaluation)
        self._groups.install(self._model)
        self._span = opened.recipe.batch.norm_span.sizes[0]
        size = image_sizes(opened.recipe)[-1]
        images = [parts.load_train(0, index, image_size=size)[0] for index in range(3 * self._span)]
        self._images = np.stack(images).astype(chainer.get_dtype())
        self._seed = opened.recipe.seed

    def mixing_layer(self) -> str | None:
        """The first layer, or code before one, whose result for a norm group depends on the group beside it."""
        a, b, c = (list(range(n * self._span, (n + 1) * self._span)) for n in range(3))
        return self._first_that_differs(self._outputs([*a, *b]), self._outputs([*a, *c]))

    def random_layer(self) -> str | None:
        """The first layer, or code before one, that gives something else when it is called again."""
        own = list(range(self._span))
        return self._first_that_differs(self._outputs(own), self._outputs(own))

    def counting_layer(self) -> str | None:
        """A layer, other than normalisation, that a forward changes."""
        import numpy as np

        from trainers.models.batch_norm import NormGroupBatchNormalization

        def kept() -> dict[str, Any]:
            return {
                f"{path} ({type(link).__name__})": [np.copy(link.__dict__[name]) for name in sorted(link._persistent)]
                for path, link in self._model.namedlinks()
                if not isinstance(link, NormGroupBatchNormalization)
            }

        before = kept()
        self._outputs(list(range(self._span)))
        after = kept()
        changed = (p for p in before if any(not np.array_equal(a, b) for a, b in zip(before[p], after[p], strict=True)))
        return next(changed, None)

    def _outputs(self, indices: list[int]) -> dict[str, Any]:
        """What each layer gets and gives for the first norm group, by path, in the order in which they end."""
        import chainer
        import numpy as np

        from recipes.planning.division import divide
        from trainers.models.keyed_random import KeyedDropout

        division = divide(
            global_batch_size=len(indices), norm_span=self._span, workers=1, micro_batch_size=len(indices)
        )
        self._groups.begin_update(division)
        self._groups.begin_micro_batch(division.micro_batches(0)[0])
        paths = {id(link): f"{path} ({type(link).__name__})" for path, link in self._model.namedlinks()}
        outputs: dict[str, Any] = {}
        span = self._span

        class Watch(chainer.LinkHook):
            name = "kilobatch verify"

            def forward_postprocess(self, args: Any) -> None:
                layer = paths.get(id(args.link), "a layer")
                given = args.args[0] if args.args else None
                for place, each in ((f"the code before {layer}", given), (layer, args.out)):
                    array = getattr(each, "array", each)
                    if getattr(array, "ndim", 0) and len(array) == len(indices):
                        outputs[f"{place}#{len(outputs)}"] = array[:span].copy()

        numbers = np.array(indices)
        keyed = KeyedDropout(self._model, seed=self._seed, epochs=0 * numbers, indices=numbers)
        with chainer.using_config("train", True), chainer.no_backprop_mode(), keyed, Watch():
            self._model(self._images[numbers])
        return outputs

    @staticmethod
    def _first_that_differs(one: dict[str, Any], other: dict[str, Any]) -> str | None:
        import numpy as np

        for name in one:
            if name not in other or not np.allclose(one[name], other[name], rtol=1e-3, atol=1e-5):
                return name.rpartition("#")[0]
        return None
