"""What is compared with what: names, files and folders of runs; JSON."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import kilobatch
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.runs.run_folder import dataset_facts, write_run

GOYAL = """\
kilobatch: 1
name: ours
dataset: imagenet
model: {zero_last_gamma: true, kind: ResNet50}
epochs: 90ep
batch: {norm_span: 32, global: [{from: 0, size: 8192}]}
learning_rate:
  reference: 1e-1
  per: 256
  rule: linear
  every: update
  warmup: {kind: GradualWarmup, epochs: 6405835sp, start: reference, joins: multiply}
  schedule: {kind: MultiStep, boundaries: [30, 60ep, 80], factor: 0.1}
optimizer: {kind: CorrectedNesterovAG, momentum: 0.90, weight_decay: 0.0001, no_decay: [norm]}
loss: {kind: SoftmaxCrossEntropy}
augmentation:
  train: [{kind: RandomResizedCrop, size: 224}, {kind: HorizontalFlip}, {kind: Normalize, with: imagenet}]
  eval: [{kind: Resize, shorter: 256}, {kind: CenterCrop, size: 224}, {kind: Normalize, with: imagenet}]
evaluation: {every: 1ep}
"""
CODE = "kilobatch: 1\nextends: digits/baseline\nmodel: {kind: theirs.Net}\n"


@pytest.fixture
def run_of(tmp_path):
    """Writes the folder of a run as `train` does, without training."""

    def write(name, recipe, *overrides):
        opened = open_recipe(recipe, vocabulary=vocabulary(), overrides=overrides)
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        facts = {"recipe": opened.tree, "origins": opened.origins, "dataset": dataset_facts(opened.dataset)}
        write_run(folder, **facts, dataset_tree=opened.dataset_tree, plan={}, environment={}, command="")
        return folder.relative_to(tmp_path)

    return write


def tree_of(diff, *arguments):
    code, out = diff(*arguments, "--json")
    tree = json.loads(out)
    assert code == (0 if tree["same"] else 1)
    return tree


def test_two_library_recipes_differ_in_what_their_files_say(diff):
    tree = tree_of(diff, "goyal2017", "goyal2017/256")
    assert (tree["same"], tree["same_schedule"]) == (False, False)
    batch, warmup = tree["differences"]
    assert (batch["path"], batch["values"], batch["moves_schedule"]) == ("batch.global", [8192, 256], True)
    for origin, written in zip(batch["origins"], ("global: 8192", "global: 256"), strict=True):
        file, _, line = origin.rpartition(":")
        assert written in Path(file).read_text().splitlines()[int(line) - 1]
    assert (warmup["path"], warmup["paths"]) == ("learning_rate.warmup", ["learning_rate.warmup"] * 2)
    assert (warmup["values"][0]["kind"], warmup["values"][1]) == ("GradualWarmup", None)
    assert warmup["origins"][1] == "default"
    assert tree["effects"]["updates"] == ["14,076", "450,411"]
    assert {entry["path"].split(".")[0] for entry in tree["words"]} == {"name", "title", "claims", "card"}


def test_a_recipe_and_its_copy_written_out_are_the_same_training(diff, tmp_path):
    shown = CliRunner().invoke(kilobatch.app, ["recipes", "show", "goyal2017/256"]).stdout
    Path("flat.yaml").write_text(shown)
    assert "extends" not in shown
    code, out = diff("goyal2017/256", "flat.yaml")
    assert code == 0
    assert out.endswith("\nThe same training: every value that training reads is equal.\n")


def test_other_words_for_the_same_values_are_the_same_training(diff):
    Path("ours.yaml").write_text(GOYAL)
    assert tree_of(diff, "goyal2017", "ours.yaml")["differences"] == []
    Path("ours.yaml").write_text(GOYAL.replace("boundaries: [30,", "boundaries: [31,"))
    (only,) = tree_of(diff, "goyal2017", "ours.yaml")["differences"]
    assert only["values"] == [[30, 60, 80], [31, 60, 80]]
    assert only["origins"][1] == "ours.yaml:13"


def test_a_run_is_the_same_training_as_its_recipe(diff, run_of):
    run = run_of("a", "digits/large_batch")
    assert yaml.safe_load((run / "recipe.yaml").read_text())["dataset"] == "dataset.yaml"
    assert diff(run, "digits/large_batch")[0] == 0
    assert diff(run / "recipe.yaml", f"{run}/")[0] == 0


def test_a_value_of_a_run_comes_from_where_the_run_took_it(diff, run_of):
    one, other = run_of("a", "digits/large_batch"), run_of("b", "digits/large_batch", "learning_rate.reference=0.1")
    tree = tree_of(diff, one, other, "digits/large_batch")
    (only,) = tree["differences"]
    assert (only["path"], only["values"]) == ("learning_rate.reference", [0.05, 0.1, 0.05])
    assert only["origins"][1] == "command line"
    assert only["origins"][0] == only["origins"][2]
    assert "digits/baseline.yaml:" in only["origins"][0]
    assert tree["recipes"][1] == {"name": "runs/b", "file": "runs/b/recipe.yaml"}


def test_a_value_changed_since_the_run_comes_from_the_changed_file(diff, run_of):
    file = run_of("a", "digits/large_batch") / "recipe.yaml"
    lines = file.read_text().splitlines()
    position = lines.index("seed: 0")
    file.write_text("\n".join([*lines[:position], "seed: 7", *lines[position + 1 :]]) + "\n")
    (only,) = tree_of(diff, "runs/a", "digits/large_batch")["differences"]
    assert (only["path"], only["origins"][0]) == ("seed", f"runs/a/recipe.yaml:{position + 1}")


def test_the_data_set_of_a_run_comes_from_where_its_recipe_named_it(diff, run_of):
    name, *_ = tree_of(diff, run_of("a", "digits/large_batch"), "goyal2017")["differences"]
    assert (name["path"], name["values"]) == ("dataset.name", ["digits", "imagenet"])
    files = [origin.rpartition("papers/")[2].partition(":")[0] for origin in name["origins"]]
    assert files == ["digits/baseline.yaml", "goyal2017.yaml"]


@pytest.mark.parametrize(
    "head",
    ["", "{", "origins: 3\nrecipe: []\n", "origins: {seed: {}, batch.global: 4}\nrecipe: {seed: 0}\n", None],
)
def test_a_run_whose_record_is_broken_or_gone_is_compared_all_the_same(diff, run_of, head):
    run = run_of("a", "digits/large_batch")
    if head is None:
        (run / "run.yaml").unlink()
    else:
        (run / "run.yaml").write_text(head)
    batch, *_ = tree_of(diff, run, "digits/batch_256")["differences"]
    assert (batch["path"], batch["values"]) == ("batch.global", [512, 256])
    assert batch["origins"][0].startswith("runs/a/recipe.yaml:")


def test_what_a_strangers_record_says_cannot_steer_a_terminal(diff, run_of):
    run = run_of("a", "digits/large_batch")
    head = yaml.safe_load((run / "run.yaml").read_text())
    head["origins"]["batch.global"] = "\x1b[2Jfile:1\n"
    (run / "run.yaml").write_text(yaml.safe_dump(head))
    out = diff(run, "digits/batch_256")[1]
    assert "\x1b" not in out
    assert "?[2Jfile:1?" in out


def test_another_data_set_is_compared_by_its_facts(diff):
    Path("photos.yaml").write_text(
        "name: digits\nnum_train: 1499\nnum_eval: 297\nnum_classes: 10\nchannels: 1\n"
        "mean: [0.305622]\nstd: [0.376256]\nreader: {kind: Digits, num_eval: 297}\n"
    )
    Path("mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\ndataset: photos.yaml\n")
    tree = tree_of(diff, "digits/baseline", "mine.yaml")
    (only,) = tree["differences"]
    assert (only["path"], only["values"], only["origins"][1]) == ("dataset.num_train", [1500, 1499], "mine.yaml:3")
    assert only["moves_schedule"]


def test_a_component_of_two_files_names_both(diff):
    Path("mine.yaml").write_text("kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: {epochs: 3}}\n")
    _, warmup = tree_of(diff, "mine.yaml", "goyal2017/256")["differences"]
    files = [part.rpartition("/")[2] for part in warmup["origins"][0].split(", ")]
    assert [file.partition(":")[0] for file in files] == ["goyal2017.yaml", "mine.yaml"]


def test_a_key_that_two_kinds_share_is_no_part_of_what_their_difference_comes_from(diff):
    Path("mine.yaml").write_text("kilobatch: 1\nextends: goyal2017\noptimizer: {weight_decay: 5e-5}\n")
    result = {entry["path"]: entry for entry in tree_of(diff, "mine.yaml", "nvidia/resnet50_90ep")["differences"]}
    assert "mine.yaml" not in result["optimizer"]["origins"][0]
    assert result["optimizer.weight_decay"]["origins"][0] == "mine.yaml:3"


def test_all_problems_of_all_recipes_are_reported_and_no_code_is_run(diff, tmp_path):
    Path("theirs.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    Path("a.yaml").write_text(CODE)
    Path("b.yaml").write_text("kilobatch: 1\nextends: digits/baseline\nepocs: 3\nseed: x\n")
    code, problems = diff("a.yaml", "b.yaml", "nothing.yaml", tmp_path)
    assert code == 2
    positions = [problem.split(": ")[0] for problem in problems.splitlines()]
    assert positions == [f"{tmp_path}:1:1", "b.yaml:3:1", "b.yaml:4:7", "nothing.yaml:1:1"]
    assert "did you mean epochs?" in problems
    assert "without recipe.yaml" in problems
    assert not Path("ran").exists()


@pytest.mark.parametrize("options", [(), ("--allow-code",)])
def test_own_code_beside_the_recipes_is_compared(diff, options, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    for folder, width in (("one", 8), ("other", 8), ("third", 4)):
        Path(folder).mkdir()
        Path(folder, "a.yaml").write_text(CODE.replace("theirs", "diff_net"))
        Path(folder, "diff_net.py").write_text(
            f"from trainers.models import SmallCNN\nclass Net(SmallCNN):\n    num_more = {width}\n"
        )
    code, out = diff("one/a.yaml", "other/a.yaml", *options)
    assert (code, out.splitlines()[-1]) == (0, "The same training: every value that training reads is equal.")
    (only,) = tree_of(diff, "one/a.yaml", "third/a.yaml", *options)["differences"]
    assert only["path"] == "code.diff_net.py"
    assert not only["moves_schedule"]


def test_own_code_that_is_not_here_makes_no_two_recipes_the_same(diff):
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(CODE)
    code, out = diff("a.yaml", "b.yaml")
    assert code == 1
    words = "The same values; the code of theirs is not here and was not compared (--allow-code imports it)."
    assert words in " ".join(out.split())
    assert tree_of(diff, "a.yaml", "b.yaml")["unseen"] == ["theirs"]


def test_one_recipe_alone_is_refused(diff):
    code, out = diff("goyal2017")
    assert code == 2
    assert "Missing argument 'B'" in out


def test_a_folder_does_not_take_the_place_of_a_name_of_the_library_or_of_a_file(diff, run_of, tmp_path):
    run_of("a", "digits/baseline").rename("goyal2017")
    assert tree_of(diff, "goyal2017", "goyal2017/256")["differences"][0]["values"] == [8192, 256]
    assert tree_of(diff, "./goyal2017", "digits/baseline")["same"]
    Path("mine").mkdir()
    Path("mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    assert tree_of(diff, "mine", "digits/baseline")["same"]
