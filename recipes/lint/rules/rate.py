"""Rules on how the rate follows the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recipes.lint.case import Case, Fault
from recipes.lint.rules.warmup import warmup_to_other_batch
from recipes.planning.rates import (
    LINEAR_HOLDS_TO,
    batch_size_at,
    full_rate,
    full_rate_at,
    largest_linear_batch,
    learning_rate_at,
    scaling_exponent,
    weight_decay_at,
)
from recipes.planning.timeline import timeline_of
from recipes.schema.vocabulary import kind_of, rate_rule

_LARGEST_UNSCALED = 8
_LARGE_DATA = 10**6  # samples, as ImageNet
_LONGEST_STEPS = (8.0, 3.0)  # rate / (1 - momentum) for 256 samples: of small data sets, of large ones
_LARGEST_SHARE = 0.1  # of the weights, in an update. Assumed; 0.04 moved and 0.026 shrunk are the most in the library
_LARGEST_OF_MUON = 1.0  # about the largest singular value of weights as they are drawn. Assumed; 0.24 is published
_MEASURE_THEIR_RATE = ("AdaScale",)


def unscaled_rate(case: Case) -> Iterator[Fault]:
    """The reference batch's rate for a batch that is more than 8 times larger, with SGD.

    The run makes that many times fewer updates of the same size. It ends before the network is trained. A recipe
    without `per` that has the rate of the one it extends is compared with that one's batch.

    Way out: where the rate was found at this batch or scaled by hand, give this batch as `per`; else `rule: linear`
        with the batch of the rate as `per`, and a warmup.
    Source: Goyal et al. 2017, arXiv 1706.02677, comparison of scaling rules at batch 8,192: top-1 error 41.67 % at rate
        0.1, 23.74 % at 3.2.
    Fires:
        learning_rate: {rule: none, warmup: null}
    Quiet:
        batch: {global: 2048}
        learning_rate: {rule: none, warmup: null}
    """
    formula, base = case.recipe.learning_rate, case.base and case.base.recipe
    per = formula.per
    if (
        base is not None
        and "per" not in case.written["learning_rate"]
        and scaling_exponent(base.learning_rate.rule) == 0
    ):
        per = base.batch.global_.sizes[0] if base.learning_rate.reference == formula.reference else per
    growth = case.first_batch / per
    if case.is_sgd and case.exponent == 0 and growth > _LARGEST_UNSCALED:
        way_out = f"write `per: {case.first_batch}` if this is the rate of that batch"
        step, largest = _step(case)
        yield Fault(
            keys=("learning_rate.rule", "batch.global", "learning_rate.per", "optimizer.kind"),
            what=f"the rate of batch {per:,} at batch {case.first_batch:,}, {growth:g} times larger",
            way_out=way_out + f", or `rule: linear, per: {per}` and a warmup" * (growth * step <= largest),
        )


def idle_gain(case: Case) -> Iterator[Fault]:
    """AdaScale whose batch is never above `per`: its gain is 1, and the rate that of SGD at `per`.

    The gain goes from 1 to the batch over `per`. A recipe without `per` has its own first batch there.

    Way out: as `per` the batch that the rate was found at.
    Source: Johnson et al. 2020, arXiv 2007.05105: the gain of S workers lies between 1 and S.
    Fires:
        learning_rate: {rule: none, per: 8192, warmup: null}
        optimizer: {kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}
    Quiet:
        learning_rate: {rule: none, per: 256, warmup: null}
        optimizer: {kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}
    """
    per = case.recipe.learning_rate.per
    if case.optimizer["kind"] == "AdaScale" and case.largest_batch <= per:
        yield Fault(
            keys=("learning_rate.per", "batch.global", "optimizer.kind"),
            what=f"the gain of AdaScale is 1 up to the batch of `per`, {per:,}; the largest is {case.largest_batch:,}",
            way_out="write as `per` the batch that the rate was found at, such as 256",
        )


def decay_of_schedule_free(case: Case) -> Iterator[Fault]:
    """Schedule-free SGD whose rate falls after its warmup.

    The average of the iterates, which is evaluated, does what a decay does. With a decay on top, the late iterates move
    too little to bring the average forward, and the run must know its length again.

    Way out: `schedule: {kind: Constant}` behind the warmup.
    Source: Defazio et al. 2024, arXiv 2405.15682, whose rate is constant behind its warmup.
    Fires:
        optimizer: {kind: ScheduleFreeSGD, weight_decay: 1e-4, no_decay: [norm]}
    Quiet:
        learning_rate: {schedule: {kind: Constant}}
        optimizer: {kind: ScheduleFreeSGD, weight_decay: 1e-4, no_decay: [norm]}
    """
    last = case.rate_at(case.recipe.epochs * (1 - 1e-9))
    if case.is_schedule_free and last < 0.9 * case.peak[0]:
        yield Fault(
            keys=("learning_rate.schedule", "optimizer.kind"),
            what=f"the rate of schedule-free SGD falls from {case.peak[0]:g} to {last:g}",
            way_out="write `schedule: {kind: Constant}`",
        )


def scaled_twice(case: Case) -> Iterator[Fault]:
    """A rate that follows the batch by rule and once more by hand.

    `rule` multiplies the reference rate already. Detected are: AdaScale, whose gain scales too, with a rule; a
    `reference` that is scaled with the batch, compared with the recipe that this one extends, or by as much as the rule
    scales it; a schedule that steps up by the same factor where a ramp does.

    Way out: leave `reference` and `per` as they were found, or scale by hand: `rule: none` and as `per`
        this recipe's batch.
    Source: Goyal et al. 2017, arXiv 1706.02677, linear scaling rule: k times the batch, k times the rate; AdaScale:
        Johnson et al. 2020, arXiv 2007.05105.
    Fires:
        batch: {global: 4096}
        learning_rate: {reference: 0.05}
    Quiet:
        batch: {global: 4096}
        learning_rate: {reference: 0.09}
    """
    formula = case.recipe.learning_rate
    if case.exponent == 0:
        return
    if case.optimizer["kind"] == "AdaScale":
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind"),
            what=f"rule {formula.rule}, and the gain of AdaScale scales as well",
            way_out="write `rule: none`",
        )
    if (ratio := _scaled_by_hand(case)) is not None:
        yield Fault(
            keys=("learning_rate.reference",),
            what=f"{ratio:g} times the reference rate of {case.base.recipe.name}, as the batch, under the same rule",
            way_out=f"write {case.base.recipe.learning_rate.reference:g}: the rule scales it",
        )
    for start in _steps_up_with_batch(case):
        yield Fault(
            keys=("learning_rate.schedule", "batch.global", "learning_rate.rule", "learning_rate.scale_with"),
            what=f"the schedule steps up with the batch at {start:g}, and rule {formula.rule} does too",
            way_out="keep the schedule flat there, or write `scale_with: initial`",
        )


def long_steps(case: Case) -> Iterator[Fault]:
    """A rate that moves or shrinks the weights further than any published one.

    Of SGD counts the full rate, however it is written, over 1 - momentum, for each 256 samples of the batch at that
    time: 1.0 in Goyal et al., at most 2.3 in the library's recipes for ImageNet and 4 for small data sets. A rate that
    was scaled twice, or a momentum that was raised at the same rate, is many times that. Of schedule-free SGD, whose
    rate is 10 to 50 times that of SGD, a fifth of the rate counts. A warmup to another batch is reported as that. An
    update of Adam moves each weight by about the rate, one of LAMB a layer by that share of its norm, one of LARS by
    the rate times `trust_coefficient`: at most 0.04 in the library, and a rate of SGD is many times that. A tenth is
    reported. Muon moves a matrix by singular values of about the rate: 0.02 to 0.24 are published, more than 1 is
    reported; with `scale: largest`, whose step is about Adam's, a tenth. Weight decay shrinks the weights by rate times
    decay, over 1 - momentum where it is part of the gradient. More than a tenth in an update is reported. A factor of
    `/*` in `learning_rate.factors` counts.

    Way out: the rate and momentum of a published recipe with this optimizer, scaled once; a smaller `weight_decay`.
    Source: Smith et al. 2017, arXiv 1711.00489: the noise of SGD goes as rate / (batch (1 - momentum)); the library;
        github.com/KellerJordan/Muon at 857d1ad, airbench94_muon.py of cifar10-airbench at 096d14d, and the README of
        github.com/facebookresearch/schedule_free at 70785b5 (the three as notes made from them have it).
    Fires:
        learning_rate: {reference: 0.4}
    Quiet:
        learning_rate: {reference: 0.2}
    """
    kind, shrunk = case.optimizer["kind"], _shrunk_share(case)
    step, largest = _step(case)
    if (fault := _moved_too_far(case)) is not None:
        yield fault
    elif case.is_sgd and kind not in _MEASURE_THEIR_RATE and step > 1.001 * largest:
        if any(warmup_to_other_batch(case)):
            return
        rate = case.rates[_epoch_of_longest_step(case)]
        smaller = f"write a rate {_rounded_up(step / largest):g} times smaller or more"
        yield Fault(
            keys=(
                *_rate_keys(case),
                "optimizer.momentum",
                "learning_rate.per",
                "batch.global",
                "learning_rate.rule",
                "learning_rate.scale_with",
                "learning_rate.schedule",
                "learning_rate.warmup.target_batch",
                "schedules.momentum",
                "dataset",
            ),
            what=f"rate {rate:.4g}{case.over} is {step:.3g} per 256 samples, published: at most {largest:g}",
            way_out=smaller + ", or a smaller momentum" * (case.momentum_factor > 1) + _or_of_this_batch(case),
        )
    elif shrunk > _LARGEST_SHARE:
        yield Fault(
            keys=("optimizer.weight_decay", "optimizer.decay", "schedules.weight_decay", *_rate_keys(case)),
            what=f"weight decay at rates up to {case.peak[0]:.4g} shrinks the weights by {shrunk:.2g} in an update",
            way_out="write a smaller `weight_decay`",
        )


def _moved_too_far(case: Case) -> Fault | None:
    """The fault of a rate of Adam, LAMB, LARS or Muon that is far above the published ones."""
    rate, kind = case.peak[0], case.optimizer["kind"]
    if kind == "Muon" and case.optimizer.get("scale") != "largest":
        if rate <= _LARGEST_OF_MUON:
            return None
        what = f"rate {rate:.4g} of Muon moves a matrix by singular values of about that, published: at most 0.24"
        return Fault(
            keys=(*_rate_keys(case), "optimizer.kind"), what=what, way_out="write a rate that was found with Muon"
        )
    if kind == "Lars":
        moved = rate * case.optimizer["trust_coefficient"]
    else:
        moved = rate if kind == "Muon" or rate_rule(case.recipe.optimizer) == "sqrt" else 0.0
    if moved < _LARGEST_SHARE:
        return None
    way_out = f"write a rate that was found with {kind}; that of SGD does not carry over"
    if kind == "Lars":
        way_out = "write a smaller rate, or `trust_coefficient: 0.001`"
    return Fault(
        keys=(*_rate_keys(case), "optimizer.trust_coefficient" if kind == "Lars" else "optimizer.kind"),
        what=f"rate {rate:.4g} of {kind} moves the weights by {moved:.2g} in an update, published: at most 0.04",
        way_out=way_out,
    )


def _rate_keys(case: Case) -> tuple[str, ...]:
    factors = ("learning_rate.factors",) if case.factor_of_all != 1 else ()
    return (*factors, "learning_rate.reference")


def _rounded_up(value: float) -> float:
    """A number to two digits, not below it.

    >>> _rounded_up(1.01), _rounded_up(37.3), _rounded_up(1.3)
    (1.1, 38.0, 1.3)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit * (1 - 1e-9)) * unit


def _step(case: Case) -> tuple[float, float]:
    """The longest step of SGD, as `Case.step_at` counts, for 256 samples, and the longest published one."""
    step = _step_per_sample(case, _epoch_of_longest_step(case)) * 256
    return step, _LONGEST_STEPS[case.opened.dataset.num_train >= _LARGE_DATA]


def _epoch_of_longest_step(case: Case) -> float:
    return max(case.rates, key=lambda epoch: _step_per_sample(case, epoch))


def _step_per_sample(case: Case, epoch: float) -> float:
    return case.step_at(epoch) / batch_size_at(case.recipe, epoch)


def _or_of_this_batch(case: Case) -> str:
    """A way out where the reference rate is an ordinary one of this batch: then the rule scales it once more."""
    formula, (step, largest) = case.recipe.learning_rate, _step(case)
    scaled = case.growth**case.exponent
    if case.ramps or scaled < 1.01 or step > largest * scaled:
        return ""
    return (
        f", or, if {formula.reference:g} was found at batch {case.first_batch:,}: `rule: none, per: {case.first_batch}`"
    )


def _shrunk_share(case: Case) -> float:
    """By how much weight decay that follows the rate shrinks the weights in an update, at most."""
    decay = case.optimizer.get("decay") or getattr(case.recipe.optimizer, "decay", "coupled")
    if decay != "times_rate" and not (case.is_sgd and decay == "coupled"):
        return 0.0
    momentum = 0 if decay == "times_rate" else 1
    return max(
        rate * weight_decay_at(case.recipe, epoch) * case.momentum_factor_at(epoch) ** momentum
        for epoch, rate in case.rates.items()
    )


def rate_near_zero(case: Case) -> Iterator[Fault]:
    """A rate below a millionth of the highest in more than a twentieth of the updates, those of a warmup aside.

    These updates move nothing, and the time they take is lost. A schedule that ends before the run, falls by a ratio
    that was meant for a longer time, or begins at 0 and stays there, does that. AdaScale with
    `clock: gain` reaches its end later and is not reported.

    Way out: a schedule that ends with the run, without `epochs`, or one that falls less: a `ratio` nearer to 1, a
        smaller `power`, points or factors above 0.
    Source: arithmetic; the rates of the library's recipes stay above that but for a few updates.
    Fires:
        learning_rate: {schedule: {kind: Cosine, epochs: 20}}
    Quiet:
        learning_rate: {schedule: {kind: Cosine, epochs: 86}}
    """
    if case.optimizer.get("clock") == "gain":
        return
    timeline = timeline_of(case.recipe, case.opened.dataset)
    evenly = range(0, timeline.num_updates, 1 + timeline.num_updates // 1000)
    epochs = [timeline.epoch_at(update) for update in evenly]
    warmup = case.recipe.learning_rate.warmup
    rises_until = 0.0 if warmup is None else warmup.shape.epochs  # a rise may begin at 0
    low = [
        epoch for epoch in epochs if epoch > 0 and epoch >= rises_until and case.rate_at(epoch) < 1e-6 * case.peak[0]
    ]
    if len(low) > 0.05 * len(epochs):
        yield Fault(
            keys=("learning_rate.schedule", "epochs"),
            what=f"below a millionth of the highest rate in {len(low) / len(epochs):.0%} of the updates, "
            f"the first at epoch {low[0]:.3g}",
            way_out=_fall_less(case) if low[-1] > case.peak[1] else "let the schedule begin above 0",
        )


def _fall_less(case: Case) -> str:
    """A way out for a schedule that falls too far, by its kind."""
    schedule, run = case.recipe.learning_rate.schedule, case.recipe.epochs
    if case.clock_starts + (getattr(schedule, "epochs", None) or run) < run * (1 - 1e-9):
        return case.until_end_of_run
    ways_out = {
        "Exponential": "write a `ratio` nearer to 1",
        "MultiStep": "write a `factor` nearer to 1, or fewer `boundaries`",
        "PiecewiseLinear": "put the point with factor 0 at the end of the run, or write a factor above 0",
        "Polynomial": "write a smaller `power`, or an `end` above 0",
        "SlowStart": "write `factors` above 0",
    }
    return ways_out.get(kind_of(schedule), "let the schedule fall less")


def raised_momentum(case: Case) -> Iterator[Fault]:
    """A momentum of SGD that at least doubles 1 / (1 - m) at the rate of the recipe that this one extends.

    Momentum multiplies a step by 1 / (1 - m): 0.99 in place of 0.9 is ten times the rate. A momentum that moves counts
    by the longest step, the highest rate / (1 - m).

    Way out: divide the rate by as much.
    Source: Smith et al. 2017, arXiv 1711.00489: batch proportional to rate / (1 - momentum).
    Fires:
        optimizer: {momentum: 0.95}
    Quiet:
        learning_rate: {reference: 0.05}
        optimizer: {momentum: 0.95}
    """
    if case.base is None or not case.is_sgd:
        return
    formula, others = case.recipe.learning_rate, case.base.recipe.learning_rate
    same_rate = (formula.reference, formula.per) == (others.reference, others.per) and _have_one_rule(case)
    longer = case.momentum_factor / Case(opened=case.base, written={}).momentum_factor
    if same_rate and longer >= 1.999:
        yield Fault(
            keys=("optimizer.momentum", "schedules.momentum", "optimizer.kind"),
            what=f"steps {longer:.3g} times longer than in {case.base.recipe.name}, at the same rate",
            way_out=f"write a reference rate of {formula.reference / longer:.3g}, or the former momentum",
        )


def linear_beyond_8k(case: Case) -> Iterator[Fault]:
    """Linear scaling of SGD's rate, or nearly linear, to a batch above 8,192.

    Up to 8,192 the error stays that of batch 256. Beyond, it grows with every doubling, with or without warmup. A ramp
    counts by the rate that it leads to: a batch that doubles where the rate falls to a fifth is not reported.

    Way out: a batch of at most 8,192 at first and a ramp where the rate falls, Lars, or a rate that was tuned at this
        batch.
    Source: Goyal et al. 2017, arXiv 1706.02677, figure 3: top-1 error 23.74 % at 8,192, 24.79 % at 16,384,
        27.55 % at 32,768, 33.96 % at 65,536. All on ImageNet.
    Fires:
        batch: {global: 16384}
    Quiet:
        batch: {global: 8192}
    """
    formula = case.recipe.learning_rate
    reach = largest_linear_batch(case.recipe)
    if case.is_sgd and case.scales_linearly and reach > max(LINEAR_HOLDS_TO, formula.per):
        yield Fault(
            keys=(
                "batch.global",
                "learning_rate.rule",
                "learning_rate.per",
                "learning_rate.warmup.target_batch",
                "optimizer.kind",
            ),
            what=f"{_scaling(case)} from {formula.per:,} to {reach:,.0f}, seen to hold to {LINEAR_HOLDS_TO:,}",
            way_out="begin with 8192 and grow the batch where the rate falls, use Lars, or tune the rate at this batch",
        )


def linear_adam(case: Case) -> Iterator[Fault]:
    """Scaling of the rate of Adam or LAMB that is linear, or nearer to that than to the root.

    Both divide the gradient by the root of its mean square, which is mostly noise. The noise falls with the root of the
    batch, so at a constant rate the useful part of a step already grows by that root. The square root rule adds the
    other root.

    Way out: `rule: sqrt`, for a rate that was found with this optimizer; `kilobatch recipes scale` moves the betas and
        epsilon with it. A rate that works at this batch: `rule: none`, with it as `reference` and the batch as `per`.
    Source: Malladi et al. 2022, arXiv 2205.10287, the square root scaling rule; the table of rates
        of You et al. 2019, arXiv 1904.00962 (not checked).
    Fires:
        learning_rate: {reference: 0.001, schedule: {kind: Cosine}}
        optimizer: {kind: Adam, weight_decay: 0.0}
    Quiet:
        learning_rate: {reference: 0.001, rule: sqrt, schedule: {kind: Cosine}}
        optimizer: {kind: Adam, weight_decay: 0.0}
    """
    if rate_rule(case.recipe.optimizer) == "sqrt" and case.scales_linearly and case.growth != 1:
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind", "batch.global", "learning_rate.per"),
            what=f"{_scaling(case)} by {case.growth**case.exponent:.4g} for {case.optimizer['kind']}",
            way_out="write `rule: sqrt`, and a reference rate that was found with this optimizer" + _or_keep_it(case),
        )


def scaled_lars(case: Case) -> Iterator[Fault]:
    """A rate of LARS that follows the batch by a rule.

    A layer's step is proportional to its weights and not to its gradient. Over the published points from 1,632 to
    67,840 the rate grows about as B ** 0.3. Neither the linear nor the square root rule fits.

    Way out: `rule: none` and the rate of the nearest published point; `kilobatch recipes scale` interpolates. A rate
        that works at this batch: `rule: none`, with it as `reference` and the batch as `per`.
    Source: reference convergence points of MLPerf Training, ResNet-50 with LARS.
    Fires:
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}
    Quiet:
        learning_rate: {reference: 17.0, rule: none, warmup: {start: 0}}
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}
    """
    if case.optimizer["kind"] == "Lars" and case.exponent > 0 and case.growth != 1:
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind", "batch.global", "learning_rate.per"),
            what=f"{_scaling(case)} by {case.growth**case.exponent:.4g} for Lars",
            way_out="write `rule: none` and a rate that was found at this batch" + _or_keep_it(case),
        )


def _scaling(case: Case) -> str:
    words = {1.0: "linear scaling", 0.5: "sqrt scaling"}
    return words.get(case.exponent, f"scaling with power {case.exponent:g}")


def _or_keep_it(case: Case) -> str:
    """How this recipe's rate is written without a rule; empty while the batch moves, and the rate with it."""
    if case.ramps:
        return ""
    formula, start = case.recipe.learning_rate, ""
    rate = full_rate(formula.reference, case.first_batch, rule=formula.rule, per=formula.per)
    if formula.warmup is not None and case.opened.tree["learning_rate"]["warmup"].get("start") == "reference":
        start = f", with `start: {{factor: {formula.warmup.shape(0.0):.4g}}}` in `warmup`"
    return f", or keep this one: `reference: {rate:.6g}, per: {case.first_batch}, rule: none`{start}"


def _have_one_rule(case: Case) -> bool:
    """Whether the rate follows the batch as in the recipe that this one extends."""
    return case.base is not None and case.exponent == scaling_exponent(case.base.recipe.learning_rate.rule)


def _scaled_by_hand(case: Case) -> float | None:
    """The ratio of the reference rates of recipe and base, if it equals the ratio of their batches; else None."""
    if case.base is None:
        return None
    formula, before = case.recipe.learning_rate, case.base.recipe.learning_rate
    same_rule = formula.per == before.per and _have_one_rule(case)
    growths = (case.first_batch / case.base.recipe.batch.global_.sizes[0], case.growth)
    ratio = formula.reference / before.reference
    scaled = any(math.isclose(ratio, growth, rel_tol=0.01) for growth in growths)
    return ratio if same_rule and scaled and not math.isclose(ratio, 1, rel_tol=0.01) else None


def _steps_up_with_batch(case: Case) -> Iterator[float]:
    """Boundaries of the ramp at which the schedule's factor grows by as much as the scaled rate."""
    for start in case.recipe.batch.global_.boundaries[1:]:
        before = math.nextafter(start, 0)
        if batch_size_at(case.recipe, start) <= batch_size_at(case.recipe, before):
            continue
        scaled = full_rate_at(case.recipe, start) / full_rate_at(case.recipe, before)
        moved = learning_rate_at(case.recipe, start) / max(learning_rate_at(case.recipe, before), 1e-300)
        if scaled > 1 and math.isclose(moved / scaled, scaled, rel_tol=0.01):
            yield start
