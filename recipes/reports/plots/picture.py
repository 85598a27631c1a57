"""A picture of runs, with title and caption."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class RunPicture:
    """One picture of one or several runs.

    Args:
        title: a few words.
        caption: what is drawn, in a sentence.
        figure: the picture.
    """

    title: str
    caption: str
    figure: Figure
