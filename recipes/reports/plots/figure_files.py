"""Figures as files and as text."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from recipes.reports.style import MATPLOTLIB


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Writes a figure as PNG or SVG, by the ending of the file's name, and returns that file.

    Raises:
        ValueError: another ending.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"{path}: a picture is written as .png or .svg")
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(path, format=kind[1:], dpi=160, metadata={"Date": None} if kind == ".svg" else None)
    return [Path(path)]


def svg_text(figure: Figure) -> str:
    """A figure as SVG, on a transparent ground, its text as text."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return file.getvalue()
