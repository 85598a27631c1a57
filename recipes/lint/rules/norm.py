"""Rules on batch normalisation."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault
from recipes.planning.rates import averaged_samples

_NARROWEST, _WIDEST = 8, 512
_MANY_TIMES = 8


def wide_norm_span(case: Case) -> Iterator[Fault]:
    """Statistics shared by more than 512 samples.

    The noise of statistics over few samples regularises. If a whole large batch shares its statistics, that noise is
    gone, and the gap to small batches grows. The rules on normalisation are silent for a model that has none.

    Way out: 32 to 256 samples, whatever the batch.
    Source: Hoffer et al. 2017, arXiv 1705.08741, ghost batches of 128; Goyal et al. 2017: 32; the widest of MLPerf's
        reference points: 424 at batch 67,840.
    Fires:
        batch: {norm_span: 1024}
    Quiet:
        batch: {norm_span: 512}
    """
    widest = max(case.recipe.batch.norm_span.sizes)
    if case.has_norm and widest > _WIDEST:
        yield Fault(
            keys=("batch.norm_span", "batch.global"),
            what=f"{widest:,} samples share statistics",
            way_out="write 32 to 256",
        )


def narrow_norm_span(case: Case) -> Iterator[Fault]:
    """Statistics over fewer than 8 samples.

    Mean and variance of so few are mostly noise, and differ from those that evaluation uses.

    Way out: 32, or a model with group normalisation.
    Source: Wu and He 2018, arXiv 1803.08494, batch normalisation over 32, 16, 8, 4 and 2 images: error 23.6, 23.7,
        24.8, 27.3 and 34.7 % (not checked).
    Fires:
        batch: {norm_span: 2}
    Quiet:
        batch: {norm_span: 8}
    """
    narrowest = min(case.recipe.batch.norm_span.sizes)
    if case.has_norm and narrowest < _NARROWEST and case.largest_batch >= _NARROWEST:
        way_out = "write 32 to 256"
        if "." in case.opened.tree["model"]["kind"]:  # one's own, maybe without batch normalisation
            way_out += ", or `# lint: ignore narrow-norm-span` where the model has no batch normalisation"
        yield Fault(
            keys=("batch.norm_span", "batch.global"),
            what=f"statistics are over {narrowest} sample{'s' if narrowest > 1 else ''}",
            way_out=way_out,
        )


def lagging_average(case: Case) -> Iterator[Fault]:
    """An average of the weights that looks back over more than a quarter of the run.

    It looks back about `per` / (1 - keep) samples. The weights in it are then that old on average. Where the rate falls
    at the end, they are mostly from before the fall.

    Way out: an average over a tenth of the run, or a smaller `per`: a published `keep` belongs to its own batch.
    Source: Busbridge et al. 2023, arXiv 2307.13813; torchvision's recipe: 4 % of its run.
    Fires:
        weight_average: {keep: 0.9999, per: 8192}
    Quiet:
        weight_average: {keep: 0.999, per: 8192}
    """
    average, samples = case.recipe.weight_average, case.recipe.epochs * case.opened.dataset.num_train
    window = 0.0 if average is None else average.per / (1 - average.keep)
    if window > samples / 4:
        yield Fault(
            keys=("weight_average.keep", "weight_average.per", "epochs"),
            what=f"an average over {window / case.opened.dataset.num_train:.3g} of {case.recipe.epochs:g} epochs",
            way_out=f"write `keep: 0.9, per: {max(1, int(samples / 100))}`, a tenth of the run",
        )


def lagging_statistics(case: Case) -> Iterator[Fault]:
    """Running statistics that look back over more than an epoch.

    A moving average over updates looks back over about 1 / (1 - keep) of them. At a large batch these are epochs, and
    the weights have changed since. Evaluation then uses statistics of old weights.

    Way out: `evaluation: {norm_momentum: {keep: K, per: BATCH}}`, which counts in samples, with K at most 1 - BATCH /
        samples of an epoch.
    Source: arithmetic; Akiba et al. 2017, arXiv 1711.04325, gave up the moving average at batch 32,768.
    Fires:
        evaluation: {norm_momentum: {keep: 0.999}}
    Quiet:
        evaluation: {norm_momentum: {keep: 0.99}}
    """
    batch, span = case.largest_batch, max(case.recipe.batch.norm_span.sizes)
    window = averaged_samples(case.recipe.evaluation, global_batch_size=batch, norm_span=span)
    epoch = max(batch, case.opened.dataset.num_train)
    if case.has_norm and window is not None and window > epoch * (1 + 1e-9):  # 24 / (1 - 0.9) is above 240
        keep = (epoch - batch) * 100 // epoch / 100
        yield Fault(
            keys=(
                "evaluation.norm_momentum.keep",
                "evaluation.norm_momentum.per",
                "evaluation.norm_statistics",
                "batch.global",
                "dataset",
            ),
            what=f"the average looks back {window:,.0f} samples of {case.opened.dataset.num_train:,}",
            way_out=f"write `evaluation: {{norm_momentum: {{keep: {keep:g}, per: {batch}}}}}`",
        )


def average_per_update(case: Case) -> Iterator[Fault]:
    """Running statistics that are counted in updates while the batch ramps.

    How fast the average forgets, counted in samples, then changes at every step of the ramp.

    Way out: `norm_momentum: {keep: 0.9, per: SAMPLES}`, with the batch that `keep` was meant for.
    Source: time is samples; the moving average of weights has the same fault: Busbridge et al. 2023, arXiv 2307.13813.
    Fires:
        batch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}
    Quiet:
        batch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}
        evaluation: {norm_momentum: {per: 8192}}
    """
    evaluation = case.recipe.evaluation
    is_averaged = case.has_norm and evaluation.norm_statistics in ("moving_average", "pooled")
    if case.ramps and is_averaged and evaluation.norm_momentum.per == "update":
        yield Fault(
            keys=("evaluation.norm_momentum.per", "batch.global"),
            what=f"keeps {evaluation.norm_momentum.keep:g} an update while the batch moves",
            way_out=f"write `per: {case.first_batch}` beside `keep`",
        )


def live_last_gamma(case: Case) -> Iterator[Fault]:
    """Residual blocks that do not begin as identities, at more than 8 times the reference batch.

    If the last scale of each block starts at 0, the network starts shallow, and the first large steps do less harm.

    Way out: `zero_last_gamma: true`.
    Source: Goyal et al. 2017, arXiv 1706.02677, comparison of both: top-1 error 24.11 % at batch 8,192 without,
        23.74 % with; at 256 they differ by 0.24 points.
    Fires:
        model: {zero_last_gamma: false}
    Quiet:
        batch: {global: 2048}
        model: {zero_last_gamma: false}
    """
    model = case.opened.tree["model"]
    starts_at_1 = model.get("zero_last_gamma") is False and model.get("last_gamma") is None
    if starts_at_1 and case.growth > _MANY_TIMES:
        yield Fault(
            keys=("model.zero_last_gamma", "batch.global", "learning_rate.per"),
            what=f"the last scale of each block starts at 1, at a batch {case.growth:g} times `per`",
            way_out="write `zero_last_gamma: true`",
        )
