"""Figures of recipes, plans and data sets.

No window is opened and no global state of matplotlib stays changed: figures have their own Agg canvas. This is the only
folder of `recipes` that imports matplotlib; import it where a figure is needed, not at the top of a module.
"""

from recipes.reports.plots.figure import save_figure, svg_text
from recipes.reports.plots.of_data import data_figure
from recipes.reports.plots.of_recipe import curve_figure

__all__ = ["curve_figure", "data_figure", "save_figure", "svg_text"]
