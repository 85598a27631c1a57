"""Figures of recipes and of runs.

No window is opened and no global state of matplotlib stays changed: figures have their own Agg canvas. This is the only
folder of `recipes` that imports matplotlib; import it where a figure is needed, not at the top of a module.
"""

from recipes.reports.plots.figure import RunPicture, save_figure, svg_text
from recipes.reports.plots.of_data import data_figure
from recipes.reports.plots.of_recipe import curve_figure
from recipes.reports.plots.of_runs import run_pictures, run_style

__all__ = ["RunPicture", "curve_figure", "data_figure", "run_pictures", "run_style", "save_figure", "svg_text"]
