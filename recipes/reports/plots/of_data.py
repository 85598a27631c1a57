"""The picture of a data set: how large its images and its classes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recipes.reports.style import MATPLOTLIB


def data_figure(found: Mapping[str, Any]) -> Figure:
    """For each split the images by their shorter side, and the classes by their samples, largest first.

    Args:
        found: what `trainers.datasets.inspection.inspect` gives.
    """
    splits = found["splits"]
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.4, 2.6 * len(splits)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(splits), 2, squeeze=False)
        for (sides, classes), (name, split) in zip(grid, splits.items(), strict=True):
            if histogram := split["images"].get("histogram"):
                sides.stairs(histogram["images"], histogram["edges"], fill=True)
            sides.set_title(f"{name}: {split['images']['looked_at']:,} images")
            sides.set_xlabel("shorter side in pixels")
            counts = sorted(split["classes"]["counts"], reverse=True)
            classes.stairs(counts, fill=True)
            classes.set_title(f"{name}: {split['samples']:,} samples")
            classes.set_xlabel("classes, largest first")
            classes.xaxis.set_major_locator(MaxNLocator(integer=True))
            classes.set_ylim(bottom=0)
    return figure
