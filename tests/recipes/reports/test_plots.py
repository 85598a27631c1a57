import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from lr_schedules import BatchRamp, Cosine
from recipes.reports.plots import curve_figure, save_figure, svg_text


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_recipe_figure_has_a_panel_a_quantity(make_recipe, imagenet):
    figure = curve_figure(make_recipe(), imagenet)
    assert titles(figure) == ["learning rate (logarithmic)", "global batch size (samples)", "momentum"]
    assert figure.axes[-1].get_xlabel() == "epochs of imagenet (1,281,167 samples)"
    assert titles(curve_figure(make_recipe(momentum=None), imagenet)) == titles(figure)[:2]


def test_recipe_figure_has_a_panel_for_an_image_size_that_moves(make_recipe, imagenet):
    steps = BatchRamp(boundaries=(0.0, 40.0), sizes=(128, 192))
    figure = curve_figure(replace(make_recipe(), image_size=steps), imagenet)
    assert titles(figure)[-2:] == ["momentum", "image size (pixels)"]
    epochs, sizes = figure.axes[-1].lines[0].get_data()
    index = int(np.flatnonzero(np.diff(sizes))[0])
    assert (sizes[index], sizes[index + 1], epochs[index + 1]) == (128, 192, 40.0)


def test_recipe_figure_draws_the_curve_with_vertical_steps(make_recipe, imagenet):
    figure = curve_figure(make_recipe(), imagenet)
    epochs, rates = figure.axes[0].lines[0].get_data()
    assert rates[np.searchsorted(epochs, 45.0)] == pytest.approx(0.16)
    drops = np.flatnonzero(np.diff(rates) < -0.001)
    assert epochs[drops + 1].tolist() == [30.0, 60.0, 80.0]
    assert (epochs[drops + 1] - epochs[drops] < 1e-12).all()


def test_recipe_figure_labels_levels_and_marks_warmup_and_ramp(make_recipe, imagenet):
    figure = curve_figure(make_recipe(), imagenet)
    words = {text.get_text() for text in figure.axes[0].texts}
    assert words == {"0.8", "0.16", "0.016", "0.0016", " warmup ends"}
    for axes in figure.axes:
        assert [line.get_xdata()[0] for line in axes.lines[1:]] == [30.0]
        assert len(axes.patches) == 1
    plain = curve_figure(make_recipe(warmup=False, sizes=(2048,), boundaries=(0.0,)), imagenet)
    assert len(plain.axes[0].lines) == 1
    assert len(plain.axes[0].patches) == 0


def test_cosine_is_drawn_on_a_linear_axis(make_recipe, imagenet):
    figure = curve_figure(make_recipe(schedule=Cosine(epochs=90.0)), imagenet)
    assert figure.axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("title", ["$\\frac{ <script>alert(1)</script>", "_hidden \N{SNOWMAN} & co \u753b\u50cf", ""])
def test_any_title_is_drawn_as_it_is(make_recipe, imagenet, tmp_path, title):
    figure = curve_figure(make_recipe(title=title), imagenet)
    save_figure(figure, tmp_path / "curve.svg")
    tree = ElementTree.parse(tmp_path / "curve.svg")
    written = "".join(tree.getroot().itertext())
    assert "ramped" in written
    assert title in written.replace("\n", "")
    assert not [node for node in tree.iter() if node.tag.endswith("script")]


def test_png_is_a_picture_and_another_ending_is_refused(make_recipe, imagenet, tmp_path):
    figure = curve_figure(make_recipe(), imagenet)
    save_figure(figure, tmp_path / "curve.PNG")
    with Image.open(tmp_path / "curve.PNG") as image:
        assert image.format == "PNG"
        assert image.width == 1280
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10
    with pytest.raises(ValueError, match=r"curve\.jpg: a picture is written as \.png or \.svg"):
        save_figure(figure, tmp_path / "curve.jpg")


def test_same_figure_gives_the_same_bytes(make_recipe, imagenet):
    assert svg_text(curve_figure(make_recipe(), imagenet)) == svg_text(curve_figure(make_recipe(), imagenet))


def test_matplotlib_is_left_as_it_was(make_recipe, imagenet):
    before = dict(mpl.rcParams)
    svg_text(curve_figure(make_recipe(), imagenet))
    assert dict(mpl.rcParams) == before


def test_a_report_loads_no_matplotlib(write_run, tmp_path):
    words = "import sys, recipes.reports.terminal; from recipes.reports.page import write_page; "
    words += "from recipes.reports.record import open_run; write_page([open_run(sys.argv[1])], sys.argv[2]); "
    words += "print('matplotlib' in sys.modules)"
    command = [sys.executable, "-c", words, str(write_run()), str(tmp_path / "page.html")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
