"""Figures as files and as text."""

from __future__ import annotations

import warnings
from io import StringIO
from pathlib import Path
from typing import IO, Any

import matplotlib
from matplotlib.figure import Figure

from recipes.reports.style import MATPLOTLIB


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Writes a figure as PNG or SVG, by the path's suffix; returns the files written.

    A letter that DejaVu Sans has not is a box in a PNG; an SVG has its text as text.

    Raises:
        ValueError: another ending.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"{path}: a picture is written as .png or .svg")
    _save(figure, path, format=kind[1:], dpi=160, metadata={"Date": None} if kind == ".svg" else None)
    return [Path(path)]


def svg_text(figure: Figure) -> str:
    """A figure as SVG, on a transparent ground, its text as text."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    _save(figure, file, format="svg", transparent=True, metadata=nothing)
    return file.getvalue()


def _save(figure: Figure, file: str | Path | IO[str], **options: Any) -> None:
    with matplotlib.rc_context(MATPLOTLIB), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # one a character of a Japanese title
        figure.savefig(file, **options)
