"""Cards say what a recipe says; docs/library.md is that of the recipes as they are."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import trainers.compat  # noqa: F401
from recipes.cards import card_facts, card_markdown, card_page, card_text, curve_picture, library_page, write_card
from recipes.cards.pages import PICTURES, library_pictures, published_recipes, write_library_page
from recipes.reading.open import open_recipe
from recipes.schema import Claim
from trainers.launch.vocabulary import vocabulary

DOCS = Path(__file__).parents[3] / "docs"
MADE_BY = "./scripts/docs pages"


@pytest.fixture(scope="module")
def library():
    return published_recipes(vocabulary())


def opened(name):
    return open_recipe(name, vocabulary=vocabulary())


def facts(name):
    return card_facts(name, opened(name))


def test_page_of_the_library_is_up_to_date(library):
    assert (DOCS / "library.md").read_text(encoding="utf-8") == library_page(library, pictures=False), MADE_BY


def test_every_picture_and_section_that_the_page_names_is_there(library):
    text = library_page(library)
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert set(pictures) == set(library_pictures(library))
    assert len(pictures) == len(re.findall("^## ", text, re.MULTILINE)) > 50
    headings = {heading.lower().replace("/", "") for heading in re.findall("^## (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(.*?)\)", text)) == headings


def test_row_of_a_recipe_has_the_status_of_its_claims_and_none_where_nothing_is_claimed():
    for name, status in (("goyal2017", "not run"), ("digits/naive", "reproduced"), ("digits/ramp", "–")):
        (row,) = (line for line in library_page([(name, opened(name))]).splitlines() if line.startswith(f"| [{name}]"))
        assert row.endswith(f" | {status} |")


def test_card_has_claims_values_evidence_and_deviations():
    text = card_text(facts("goyal2017"))
    assert "top-1 76.26 % ± 0.09 (5 runs) on 256 x P100; not run" in text
    assert "learning rate  3.2 at most: 0.1 for 256 samples, linear" in text
    assert "90 epochs, 14,076 updates" in text
    for head in ("changed", "hardware", "verified", "derived", "not checked", "deviation", "assumed"):
        assert re.search(f"^{head} ", text, re.MULTILINE), head
    assert 60 < max(map(len, text.splitlines())) <= 100


def test_card_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = card_text(facts("digits/baseline")).splitlines()
    assert max(map(len, lines)) <= 60


def test_card_has_the_obstacles_to_training():
    assert "Can be trained here." in card_text(facts("digits/baseline"))
    assert "Can be trained here." in card_text(facts("suzuki2018/10gbe_double_buffering"))
    assert "Can be trained here." in card_text(facts("yamazaki2019"))
    lacking = open_recipe("yamazaki2019", vocabulary=vocabulary(), overrides=["lacks=[Shampoo]"])
    assert "not built: Shampoo" in card_text(card_facts("yamazaki2019", lacking))
    text = " ".join(card_text(facts("mikami2018")).split())
    assert "left open: batch.global.1.from, batch.norm_span.1.from, learning_rate.reference" in text


def test_a_claim_of_runs_takes_the_place_of_the_recipes_and_has_no_empty_parts():
    claim = Claim(metric="top1", kind="accuracy", value=0.5, status="reproduced")
    recipe = opened("goyal2017")
    measured = card_facts("goyal2017", recipe, claims=[claim])
    assert "\nclaimed      top-1 50.00 %; by its runs\n" in card_text(measured)
    assert "| top-1 50.00 % |  | by its runs |  |" in card_markdown(measured)
    assert "not run" not in card_page(measured, recipe)
    assert "not run" in card_page(card_facts("goyal2017", recipe), recipe)


def test_a_recipe_of_own_code_can_be_trained_with_allow_code():
    recipe = opened("digits/baseline")
    recipe.tree["model"] = {"kind": "mymodule.MyNet"}
    own = card_facts("digits/baseline", recipe)
    assert card_text(own).endswith("Can be trained here with --allow-code.")
    assert "can be trained here with --allow-code<" in card_page(own, recipe)


def test_card_has_ramps_image_sizes_mixing_and_average():
    assert dict(facts("suzuki2018").values)["global batch"] == "2,048, from epoch 30 4,096"
    assert dict(facts("ffcv2022").values)["image size"] == "160, from epoch 71 192"
    values = dict(facts("torchvision2021").values)
    assert values["mixing"] == "Mixup: alpha 0.2, probability 1 or CutMix: alpha 1, probability 1"
    assert values["average of weights"] == "0.998908 kept over 32,768 samples"
    assert values["repeats"] == "each image 4 times in a row"


def test_recipe_without_a_card(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("kilobatch: 1\nextends: goyal2017\n")
    mine = card_facts("mine", opened(file))
    assert mine.card is None
    assert "this recipe has none" in card_text(mine)
    assert "This recipe has no card." in card_page(mine, opened(file))
    assert "claimed      nothing" in card_text(mine)
    assert "\n\nCan be trained here" in card_markdown(mine), "it has no source"


class _Page(HTMLParser):
    """Collects tags and what they name elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        named = [value for key, value in attributes if key in ("href", "src")]
        self.links += [(tag, value) for value in named if not value.startswith("#")]


def test_page_of_a_card_holds_its_picture_and_loads_nothing():
    page = _Page(card_page(facts("goyal2017"), opened("goyal2017")))
    article, (tag, picture) = page.links
    assert article == ("a", "https://arxiv.org/abs/1706.02677")
    assert (tag, picture[:26]) == ("img", "data:image/svg+xml;base64,")
    assert not page.tags & {"script", "link", "iframe", "object"}


def test_address_that_is_no_web_page_is_no_link(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("kilobatch: 1\nextends: goyal2017\nsource: {title: <b>x</b>, url: 'javascript:alert(1)'}\n")
    text = card_page(card_facts("mine", opened(file)), opened(file))
    assert [tag for tag, _ in _Page(text).links] == ["img"]
    assert "<b>x</b>" not in text


def test_markdown_card_has_its_picture_beside_it(tmp_path):
    files = write_card("digits/ramp", opened("digits/ramp"), tmp_path / "ramp.md")
    assert [file.name for file in files] == ["ramp.md", "ramp.svg"]
    assert "](ramp.svg)" in files[0].read_text()
    assert files[0].read_text() == card_markdown(facts("digits/ramp"), picture="ramp.svg")


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.html or \.md"):
        write_card("goyal2017", opened("goyal2017"), tmp_path / "card.txt")
    assert list(tmp_path.iterdir()) == []


def test_pictures_of_recipes_that_are_gone_are_removed(tmp_path):
    (tmp_path / PICTURES).mkdir(parents=True)
    (tmp_path / PICTURES / "gone.svg").write_text("<svg/>")
    write_library_page([("goyal2017", opened("goyal2017"))], tmp_path / "library.md")
    assert [file.name for file in (tmp_path / PICTURES).iterdir()] == ["goyal2017.svg"]


def test_picture_shows_a_panel_for_each_thing_that_moves():
    def words(name):
        root = ElementTree.fromstring(curve_picture(opened(name).recipe))
        return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]

    assert {"learning rate (logarithmic)", "3.2", "0.32", "0.032", "0.0032"} <= set(words("goyal2017"))
    assert "batch 8,192, momentum 0.9" in words("goyal2017")
    assert {"global batch size", "2,048", "4,096"} <= set(words("suzuki2018"))
    assert {"image size", "160", "192"} <= set(words("ffcv2022"))
    assert "momentum 0.9, stand-ins for what nobody published" in words("mikami2018")
    long = replace(opened("digits/baseline").recipe, epochs=6e7)
    assert ">6e+07<" in curve_picture(long), "a stranger's recipe of so many epochs too"


def test_a_markdown_card_escapes_html_links_and_tables_of_a_stranger(tmp_path):
    file = tmp_path / "mine.yaml"
    attack = "'<script>alert(1)</script> [x](javascript:y) http://x.y www.x.y \u202e a|b'"
    words = f"card: {{changed: {attack}, hardware: {attack}, evidence: {{verified: {attack}}}}}"
    file.write_text(
        f"kilobatch: 1\nextends: goyal2017\ntitle: {attack}\n"
        f"source: {{title: {attack}, url: 'javascript:z'}}\n{words}\n"
        f"lacks: [{attack}]\nclaims: [{{metric: top1, kind: accuracy, value: 0.7, on: {attack}, status: not run, "
        f"source: {attack}}}]\n"
    )
    text = card_markdown(card_facts("mine", opened(file)))
    assert "&lt;script>" in text
    assert "<script" not in text
    assert "](javascript" not in text
    assert "://" not in text
    assert "www." not in text
    assert "\u202e" not in text
    assert "a\\|b |" in text
    assert "<script" not in card_page(card_facts("mine", opened(file)), opened(file))
