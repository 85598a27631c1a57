"""Merging: `extends`, null, another `kind`, `--set`, and the origin of every value."""

import os

import pytest

from recipes.errors import RecipeError
from recipes.reading.load import load_tree
from recipes.sharing.pack_file import open_pack, write_pack

BASE = """\
kilobatch: 1
name: base
title: of another publication
model: {kind: SmallResNet, width: 16, blocks: [1, 1]}
learning_rate:
  reference: 0.05
  warmup: {kind: GradualWarmup, epochs: 5}
claims: [1]
source: {year: 2017}
assumed: [model.width, learning_rate.reference]
"""


def test_what_is_derived_or_changed_leaves_the_file_as_it_was_read(write):
    base = write(BASE, "base.yaml")
    derived = write("kilobatch: 1\nextends: ./base.yaml\nmodel: {width: 32}\n", "derived.yaml")
    before = [load_tree(path) for path in (base, derived)]
    assert before[0][0]["claims"] == [1]
    assert before[1][0]["model"]["width"] == 32
    load_tree(base, overrides=["model.blocks.0=7", "learning_rate.warmup=null", "name=other"])
    load_tree(derived, overrides=["model.blocks.1=9"])
    assert [load_tree(path) for path in (base, derived)] == before


def test_circle_of_extends_names_the_chain(write, problem_of):
    write("kilobatch: 1\nextends: ./b.yaml\n", "a.yaml")
    write("kilobatch: 1\nextends: ./c.yaml\n", "b.yaml")
    write("kilobatch: 1\n\nextends: ./a.yaml\n", "c.yaml")
    problem = problem_of("a.yaml")
    assert str(problem).startswith("c.yaml:3:10: extends: a circle: a.yaml -> b.yaml -> c.yaml -> a.yaml; ")


def test_missing_file_and_missing_name(write, problem_of):
    write()
    assert str(problem_of("yours.yaml")).startswith("yours.yaml:1:1: there is no file yours.yaml; ")
    assert "did you mean goyal2017 or " in str(problem_of("goyal2071"))


def test_folder_in_the_place_of_a_file(write, tmp_path, problem_of):
    write(name="a.yaml/b.yaml")
    assert "there is no file a.yaml" in str(problem_of("a.yaml"))


def test_problem_of_a_base_stands_in_the_base(write, problem_of):
    write(name="base.yaml", line_6="batch: {global: 0}")
    assert str(problem_of(write("kilobatch: 1\nextends: ./base.yaml\n"))).startswith("base.yaml:6:17: batch.global: ")


@pytest.mark.parametrize(
    ("override", "position", "path", "cause"),
    [
        ("epochs", "1:1", "", "no assignment"),
        ("=3", "1:1", "", "no assignment"),
        ("extends=goyal2017", "1:1", "extends", "cannot be set"),
        ("epochs=long", "1:8", "epochs", "'long' is not a position"),
        ("batch.globl=3", "1:1", "batch.globl", "not a known key"),
        ("model.width=[1", "1:15", "", "flow sequence"),
        ("augmentation.train.0.size=4", "1:1", "augmentation.train", "is a mapping"),
        ("learning_rate.factors=[{factor: .inf}]", "1:33", "learning_rate.factors.0.factor", "is not a finite number"),
        ("learning_rate.per=99999999999999999999", "1:19", "learning_rate.per", "has more than 64 bits"),
    ],
)
def test_wrong_override_names_the_command_line(override, position, path, cause, write, problem_of):
    problem = problem_of(write(), override)
    assert f"{problem.file}:{problem.line}:{problem.column}" == f"command line:{position}"
    assert problem.path == path
    assert cause in problem.what


def test_second_override_is_the_second_line(write, problem_of):
    assert problem_of(write(), "seed=1", "epochs=long").line == 2


def tree_of(write, text, *overrides):
    write(BASE, "base.yaml")
    return load_tree(write(f"kilobatch: 1\nextends: ./base.yaml\n{text}"), overrides=overrides)


REMOVED = "learning_rate: {warmup: null, per: ~}"
SCALARS = ("a=1e-4", "b=[1, on]", "c={kind: X}", "d=30ep", "e='1'", "f=a=b")
READ = {"a": 1e-4, "b": [1, "on"], "c": {"kind": "X"}, "d": "30ep", "e": "1", "f": "a=b"}


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("", (), {"title": None, "source": None, "name": None, "claims": None}),  # they are a recipe's own
        ("model: {width: 8}", (), {"assumed": ["learning_rate.reference"]}),
        ("model: {blocks: [2]}", (), {"model": {"kind": "SmallResNet", "width": 16, "blocks": [2]}}),
        ("model: {kind: SmallResNet, width: 8}", (), {"model": {"kind": "SmallResNet", "width": 8, "blocks": [1, 1]}}),
        ("model: {kind: SmallCNN}", (), {"model": {"kind": "SmallCNN"}}),
        (REMOVED, (), {"learning_rate": {"reference": 0.05, "per": None}}),
        ("", ("model.kind=SmallCNN", "model.depth=3"), {"model": {"kind": "SmallCNN", "depth": 3}}),
        ("", SCALARS, READ),
    ],
)
def test_mappings_merge_and_all_else_replaces(write, text, overrides, expected):
    tree, _ = tree_of(write, text, *overrides)
    assert {key: tree.get(key) for key in expected} == expected


def test_a_removed_key_may_be_given_again(write):
    write(BASE, "base.yaml")
    write("kilobatch: 1\nextends: ./base.yaml\nmodel: null\n", "middle.yaml")
    tree, _ = load_tree(write("kilobatch: 1\nextends: ./middle.yaml\nmodel: {kind: SmallCNN}\n"))
    assert tree["model"] == {"kind": "SmallCNN"}


def test_a_library_recipe_is_extended_by_name(write):
    tree, origins = load_tree(write("kilobatch: 1\nextends: goyal2017\nepochs: 18\n"))
    assert (tree["epochs"], tree["dataset"]) == (18, "imagenet")
    assert str(origins["epochs",]) == "mine.yaml:3"
    assert str(origins["dataset",]).endswith("recipes/papers/goyal2017.yaml:10")


def test_a_base_in_a_folder_below_may_extend_its_neighbour(write):
    write(BASE, "bases/base.yaml")
    write("kilobatch: 1\nextends: ./base.yaml\nseed: 7\n", "bases/middle.yaml")
    tree, _ = load_tree(write("kilobatch: 1\nextends: bases/middle.yaml\n"))
    assert tree["seed"] == 7


def test_a_link_that_leads_outside_is_not_followed(write, tmp_path, problem_of):
    outside = write(BASE, "outside.yaml")
    path = write("kilobatch: 1\nextends: ./link.yaml\n", "inside/mine.yaml")
    (tmp_path / "inside" / "link.yaml").symlink_to(outside)
    assert "lies outside" in problem_of(path).what


def test_set_adds_changes_and_removes(write):
    overrides = ("learning_rate.per=64", "model.width=32", "updater.double_buffering=false", "learning_rate.warmup=")
    tree, origins = tree_of(write, "", *overrides)
    assert tree["learning_rate"] == {"reference": 0.05, "per": 64}
    assert tree["model"]["width"] == 32
    assert tree["updater"] == {"double_buffering": False}
    assert str(origins["model", "width"]) == "command line"
    assert str(origins["model", "blocks"]) == "base.yaml:4"


def test_set_reaches_into_a_list(write):
    tree, origins = tree_of(write, "train: [{kind: A, size: 1}, {kind: B}]", "train.0.size=2")
    assert tree["train"] == [{"kind": "A", "size": 2}, {"kind": "B"}]
    assert str(origins["train", 0, "size"]) == "command line"
    assert str(origins["train", 1, "kind"]) == "mine.yaml:3"


def test_set_beyond_a_list_is_refused(write, problem_of):
    problem = problem_of(write(line_9="loss: {kind: SoftmaxCrossEntropy}\nlacks: [A]"), "lacks.1=B")
    assert "1 is no place in a list of 1" in problem.what


def test_a_long_chain_of_files_is_refused_where_it_becomes_too_long(tmp_path):
    for number in range(3000):
        (tmp_path / f"f{number}.yaml").write_text(f"kilobatch: 1\nextends: f{number + 1}.yaml\n")
    with pytest.raises(RecipeError, match=r"f31\.yaml:2:10: extends: over 32 files extend one another; write some"):
        load_tree(tmp_path / "f0.yaml")


@pytest.mark.parametrize(
    ("text", "kind", "way_out"),
    [
        ("kilobatch: 1\nextends: digits/baseline\n", "search", "names it, `recipe: own.yaml`, see docs/search.md"),
        ("kilobatch: 1\nextends: digits/baseline\n", "frontier", "names it, `recipe: own.yaml`, see docs/frontier.md"),
        ("kilobatch: 1\nextends: digits/baseline\n", "cluster", "see docs/clusters.md"),
        ("kilobatch: 1\nextends: digits/baseline\n", "data set", "name the one after its `dataset:`"),
        ("reader: {kind: ImageFolder}\nroot: photos\n", "recipe", "name it in a recipe: `dataset: own.yaml`"),
        ("reader: {kind: ImageFolder}\nroot: photos\n", "search", "name it in a recipe: `dataset: own.yaml`"),
        ("kilobatch: 1\nrecipe: digits/baseline\nspace: {}\n", "recipe", "it is for `kilobatch search own.yaml`"),
        ("kilobatch: 1\ngoal: {epochs: 1}\nspace: {}\n", "search", "it is for `kilobatch frontier own.yaml`"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_line(write, text, kind, way_out):
    with pytest.raises(RecipeError, match=rf"^own.yaml:1:1: is the file of a .*, and not of a {kind}; .*{way_out}$"):
        load_tree(write(text, "own.yaml"), kind=kind)


@pytest.mark.parametrize("index", ["9" * 5000, "\u0663", "2"])
def test_what_is_no_index_of_a_list_is_refused(index, write, problem_of):
    path = write(line_4="model: {kind: SmallResNet, blocks: [1, 1]}", line_10=f"assumed: [model.blocks.{index}]")
    assert "there is no value at model.blocks" in problem_of(path).what
    assert "no place in a list of 2" in problem_of(path, f"model.blocks.{index}=1").what
    assert "no place in a list of 2" in problem_of(path, f"model.blocks.{index}.inner=1").what


@pytest.fixture
def in_pack(tmp_path, monkeypatch, write):
    """Puts lines into the recipe of a pack, beside weights and a file that it may extend; its folder in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    write("secret", "secret")

    def packed(lines):
        recipe = f"kilobatch: 1\nname: theirs\n{lines}\n".encode()
        base = b"kilobatch: 1\ninit: {weights: ../../../../../secret}\n"
        files = {"recipe.yaml": recipe, "init.safetensors": b"weights", "sub/base.yaml": base}
        write_pack(tmp_path / "a.kilobatch", {}, files)
        return open_pack(tmp_path / "a.kilobatch").folder

    return packed


STRANGERS = (
    ("init: {weights: %s/secret}", "recipe.yaml:3:17"),
    ("init: {weights: ~/secret}", "recipe.yaml:3:17"),
    ("init: {weights: ../../../../secret}", "recipe.yaml:3:17"),
    ("init: {weights: sub/../../other/init.safetensors, sha256: abc}", "recipe.yaml:3:17"),
    ("here: &it {weights: ~/secret}\ninit: *it", "recipe.yaml:3:21"),
    ("extends: ./sub/base.yaml", "sub/base.yaml:2:17"),
)


@pytest.mark.parametrize("extended", [False, True], ids=["itself", "extended"])
@pytest.mark.parametrize(("lines", "place"), STRANGERS)
def test_a_pack_names_no_weights_outside_its_folder(in_pack, write, tmp_path, monkeypatch, extended, lines, place):
    recipe = in_pack(lines.replace("%s", str(tmp_path))) / "recipe.yaml"
    if extended:
        monkeypatch.setattr("recipes.reading.load.find", lambda kind, name, theirs=recipe: theirs)
        recipe = write("kilobatch: 1\nextends: team/theirs@1\nseed: 3\n")
    with pytest.raises(RecipeError, match=rf"pack \w{{12}}/{place}: init.weights: .* lies outside pack \w{{12}}"):
        load_tree(recipe)
    assert "ask who made it" in str(pytest.raises(RecipeError, load_tree, recipe).value)


def test_a_link_in_the_folder_of_a_pack_leads_to_no_weights_outside_it(in_pack, tmp_path):
    folder = in_pack("init: {weights: init.safetensors}")
    (folder / "init.safetensors").unlink()
    os.symlink(tmp_path / "secret", folder / "init.safetensors")
    with pytest.raises(RecipeError, match="lies outside"):
        load_tree(folder / "recipe.yaml")


def test_weights_of_a_pack_and_of_the_user_may_be_named(in_pack, write, tmp_path):
    folder = in_pack("init: {weights: init.safetensors}")
    assert load_tree(folder / "recipe.yaml")[0]["init"] == {"weights": str(folder / "init.safetensors")}
    mine = f"init.weights={tmp_path}/secret"
    assert load_tree(folder / "recipe.yaml", overrides=[mine])[0]["init"] == {"weights": f"{tmp_path}/secret"}
    for named in ("~/secret", "../secret", f"{tmp_path}/secret"):
        own = write(f"kilobatch: 1\nname: mine\ninit: {{weights: {named}}}\n", "below/own.yaml")
        assert load_tree(own)[0]["init"] == {"weights": f"{tmp_path}/secret"}
