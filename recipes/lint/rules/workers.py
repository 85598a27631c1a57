"""The rule that depends on the number of workers: it needs `--cluster` or `-n`."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault

_ENOUGH = 16  # samples for statistics, see narrow-norm-span: error 23.7 % over 16 images, 24.8 % over 8


def span_over_share(case: Case) -> Iterator[Fault]:
    """Statistics shared by more samples than a worker has.

    The statistics stay exact, but every normalisation layer waits for the other workers of the team, forward and
    backward.

    Way out: fewer workers, or a `norm_span` of at most the worker's share if that is 16 samples or more.
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
        if case.has_norm and span > batch / case.workers:
            share, most = batch // case.workers, batch // span
            fewer = f"use at most {most:,} worker{'s' if most > 1 else ''}"
            yield Fault(
                keys=("batch.norm_span", "batch.global"),
                what=f"{span} samples share statistics, a worker has {batch / case.workers:g} of {batch:,}",
                way_out=f"write at most {share}, or {fewer}" if share >= _ENOUGH else fewer,
            )
            return
