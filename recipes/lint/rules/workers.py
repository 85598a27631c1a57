"""Rules that depend on the number of workers: they need `--cluster` or `-n`."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault

_LARGEST = 65504.0  # of float16
_SMALLEST = 2.0**-24  # above 0, without full precision
_MAX_WORKERS = 256


def span_over_share(case: Case) -> Iterator[Fault]:
    """Statistics shared by more samples than a worker has.

    The statistics stay exact, but every normalisation layer waits for the other workers of the team, forward and
    backward.

    Way out: a `norm_span` of at most the worker's share, or fewer workers.
    Source: arithmetic; Ying et al. 2018, arXiv 1811.06992, spread normalisation over workers on a network built for
        such sums.
    Fires:
        # lint with -n 256
        batch: {norm_span: 64}
    Quiet:
        # lint with -n 128
        batch: {norm_span: 64}
    """
    assert case.workers is not None
    for start in case.recipe.batch.global_.boundaries:
        batch, span = case.recipe.batch.global_(start), case.recipe.batch.norm_span(start)
        if span > batch / case.workers:
            yield Fault(
                keys=("batch.norm_span", "batch.global"),
                what=f"{span} samples share statistics, a worker has {batch / case.workers:g} of {batch:,}",
                way_out=f"write at most {max(1, batch // case.workers)}, or use at most {batch // span:,} workers",
            )
            return


def float16_sum(case: Case) -> Iterator[Fault]:
    """A float16 sum of gradients over more than 256 workers.

    The sum must not exceed 65,504, so each of P workers must send numbers below 65,504 / P. Numbers below 2^-25 on the
    same scale become 0. The ratio between the largest and the smallest number thus shrinks from 2^40 to 2^40 / P.
    Division before the cast without a scale loses the small gradients; division after the sum overflows.

    Way out: float32 on the wire, sums of at most 256 workers (a float32 sum between groups), or a scale for each
        bucket, with the flushed elements counted.
    Source: the range of IEEE 754 binary16; Akiba et al. 2017, arXiv 1711.04325, sent float16 between 1,024 workers,
        at a top-1 of 74.9 %.
    Fires:
        # lint with -n 257 --wire float16
        batch: {global: 8192, norm_span: 16}
    Quiet:
        # lint with -n 256 --wire float16
        batch: {global: 8192, norm_span: 16}
    """
    assert case.workers is not None
    if case.wire == "float16" and case.workers > _MAX_WORKERS:
        largest, flushed = _LARGEST / case.workers, _SMALLEST / 2 * case.workers
        yield Fault(
            keys=("batch.global",),
            what=f"a float16 sum over {case.workers:,} workers: a gradient above {largest:.3g} overflows if it is "
            f"divided after the sum, one below {flushed:.2g} is lost if it is divided before",
            way_out="send float32, or sum in float32 between groups of at most 256",
        )
