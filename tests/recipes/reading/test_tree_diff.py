"""Differences of trees by hand: which values differ, under which names, and their texts."""

import math

import pytest

from recipes.reading.tree_diff import MISSING, Difference, comparable_tree, compare, value_text, value_texts

FLIP = {"kind": "HorizontalFlip", "probability": 0.5}
CROP = {"kind": "RandomCrop", "size": 32, "padding": 4}
CUTOUT = {"kind": "Cutout", "size": 8}
SMALL, CLASH = {**CUTOUT, "size": 4}, {"kind": "Cutout 2"}
RAMP = [{"from": 0, "size": 2048}, {"from": 30, "size": 4096}]


def differing(*trees):
    """Dotted path -> values."""
    return {".".join(difference.path): difference.values for difference in compare(trees)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"epochs": 30}, {"epochs": 30.0}),
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ({"global": 256}, {"global": [{"from": 0, "size": 256}]}),
        ({"global": RAMP}, {"global": [*RAMP, {"from": 60, "size": 4096}]}),
        ({"no_decay": ["norm", "bias"]}, {"no_decay": ["bias", "norm"]}),
        ({"value": math.nan}, {"value": math.nan}),
        ({"mix": []}, {"mix": []}),
    ],
)
def test_what_means_the_same_is_equal(one, other):
    assert differing(one, other) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0.3, 0.1 + 0.2),
        ("1", 1),
        (None, False),
        (None, {}),
        ([30, 60], [60, 30]),
        ([30], [30, 60]),
        ([[0, 1], [1, 2]], [[0, 1], [1, 3]]),
        ([], [0]),
        ({"kind": "A"}, {"kind": "B"}),
        ([{"from": 0.3, "size": 1}], [{"from": 0.3, "size": 2}]),
        ([*RAMP], [RAMP[0], {"from": 30 + 1e-12, "size": 4096}]),
    ],
)
def test_what_is_not_quite_the_same_differs(one, other):
    assert differing({"key": one}, {"key": other}) != {}
    assert differing({"key": other}, {"key": one}) != {}


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        ([{"train": [CROP, FLIP]}, {"train": [CUTOUT, CROP, FLIP]}], {"train.Cutout": (MISSING, CUTOUT)}),
        (
            [{"train": [CROP, FLIP]}, {"train": [FLIP, CROP]}],
            {"train.order": (["RandomCrop", "HorizontalFlip"], ["HorizontalFlip", "RandomCrop"])},
        ),
        ([{"train": [CUTOUT]}, {"train": [CUTOUT, SMALL]}], {"train.Cutout 2": (MISSING, SMALL)}),
        ([{"train": [CLASH, CUTOUT, SMALL]}, {"train": [CLASH, CUTOUT]}], {"train.Cutout 2'": (SMALL, MISSING)}),
        ([{"points": [[0, 0.5], [90, end]]} for end in (0.0, 0.1)], {"points.at 90": (0.0, 0.1)}),
        (
            [{"optimizer": {"kind": "Sgd", "decay": 1e-4}}, {"optimizer": {"kind": "Lars", "trust": 1, "decay": 5e-5}}],
            {"optimizer": ({"kind": "Sgd"}, {"kind": "Lars", "trust": 1}), "optimizer.decay": (1e-4, 5e-5)},
        ),
        ([{"warmup": None}, {"warmup": {"kind": "Gradual"}}], {"warmup": (None, {"kind": "Gradual"})}),
        ([{"seed": 0, "a": 1}, {"seed": 0, "a": 1}, {"seed": 3, "a": 1}], {"seed": (0, 0, 3)}),
    ],
)
def test_differences_by_hand(trees, expected):
    assert differing(*trees) == expected


def test_a_changed_key_behind_an_inserted_augmentation_has_both_paths():
    (inserted, changed) = compare([{"train": [FLIP, CROP]}, {"train": [FLIP, CUTOUT, {**CROP, "padding": 2}]}])[::-1]
    assert (changed.path, changed.values) == (("train", "RandomCrop", "padding"), (4, 2))
    assert changed.tree_paths == ("train.1.padding", "train.2.padding")
    assert (inserted.path, inserted.tree_paths) == (("train", "Cutout"), (None, "train.1"))


def test_steps_of_a_ramp_are_compared_by_where_they_begin():
    differences = compare([{"batch": {"global": 8192}}, {"batch": {"global": RAMP}}])
    assert [difference.path[2:] for difference in differences] == [("from 0",), ("from 30",)]
    assert [difference.values for difference in differences] == [(8192, 2048), (MISSING, 4096)]
    assert differences[1].tree_paths == (None, "batch.global.1.size")
    earlier = [RAMP[0], {"from": 15, "size": 1024}, RAMP[1]]
    assert differing({"global": RAMP}, {"global": earlier}) == {"global.from 15": (MISSING, 1024)}
    assert differing({"image_size": RAMP}, {"image_size": None}) == {"image_size": (RAMP, None)}  # it has no steps


def test_which_differences_move_the_schedule_and_which_are_words():
    names = ("name", "epochs", "batch", "learning_rate", "seed", "dataset")
    trees = [dict.fromkeys(names, value) for value in (1, 2)]
    trees[0] |= {"batch": {"global": 1, "norm_span": 1}, "dataset": {"num_train": 1, "num_eval": 1}}
    trees[1] |= {"batch": {"global": 2, "norm_span": 2}, "dataset": {"num_train": 2, "num_eval": 2}}
    by_path = {".".join(difference.path): difference for difference in compare(trees)}
    moving = {path for path, difference in by_path.items() if difference.moves_schedule}
    assert moving == {"epochs", "batch.global", "learning_rate", "dataset.num_train"}
    assert [path for path, difference in by_path.items() if difference.is_words] == ["name"]


def test_a_data_set_is_compared_by_its_facts_and_not_by_where_it_lies():
    facts = {"name": "photos", "num_train": 9}
    here = comparable_tree({"kilobatch": 1, "seed": 0, "dataset": "photos"}, {**facts, "root": "/a", "title": "x"})
    there = comparable_tree({"seed": 0, "dataset": "dataset.yaml"}, {**facts, "root": "/b", "lacks": []})
    assert here == there == {"seed": 0, "dataset": facts}


def texts(*values, key="key"):
    return value_texts(Difference(path=("batch", key), values=values, tree_paths=("batch.key",) * len(values)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("linear", "linear"),
        ({}, "{}"),
        ({"keep": 0.9, "per": "update"}, "keep 0.9, per update"),
        ([{"from": 0, "size": 8}], "[{from 0, size 8}]"),
        ({"kind": "Constant"}, "Constant"),
    ],
)
def test_values_read_as_in_a_recipe(value, text):
    assert value_text(value) == text


def test_floats_have_the_digits_that_distinguish_them():
    assert texts(37.000107714294856, 35.0) == ["37.0001", "35"]
    assert texts(0.3, 0.1 + 0.2) == ["0.3", "0.30000000000000004"]


def test_what_is_missing_is_a_dash_and_in_a_ramp_nothing_that_moves():
    assert texts(MISSING, None) == ["-", "null"]
    assert texts(MISSING, 4096, key="from 30") == ["as before", "4096"]
