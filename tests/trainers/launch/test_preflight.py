"""Data that are not there, or not what their file says, are refused before anything starts."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import kilobatch
import trainers.compat  # noqa: F401
from recipes.errors import InputRefused
from trainers.launch.preflight import DataRefused, require_room, require_startable
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.start_ranks import start_or_join
from trainers.runs.errors import RankFailed
from trainers.runs.memory import installed_bytes
from trainers.search.outcome import SearchRequest
from trainers.search.start import search
from trainers.tasks.packing import pack
from trainers.tasks.score_run import score_run
from trainers.training.build import build
from trainers.training.trial_images import require_images

DATASET = "name: own\nreader: {kind: ImageFolder}\nroot: own\nchannels: 3\n"
RECIPE = """\
kilobatch: 1
dataset: own.yaml
model: {kind: SmallResNet}
epochs: 1
batch: {global: 2}
learning_rate: {reference: 0.05, per: 2}
optimizer: {kind: MomentumSGD}
loss: {kind: SoftmaxCrossEntropy}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes two samples for training and one for evaluation of each of two classes, a file on them, and a recipe."""
    monkeypatch.chdir(tmp_path)
    for name in ("train/no/1", "train/no/2", "train/yes/1", "train/yes/2", "val/no/1", "val/yes/1"):
        path = Path("own", f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    Path("mine.yaml").write_text(RECIPE)

    def written(**facts):
        facts = {"num_train": 4, "num_eval": 2, "num_classes": 2} | facts
        Path("own.yaml").write_text(DATASET + "".join(f"{key}: {value}\n" for key, value in facts.items()))

    return written


def test_other_data_than_those_of_a_pack_are_refused_as_such(own, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own()
    pack(["mine.yaml"], out=Path("mine.kilobatch"), weights=False, data=None, allow_code=False)
    Path("own/train/no/1.png").unlink()
    said = refusal(recipe="mine.kilobatch", data=Path("own"))
    words = "this is not the data of the pack, which says num_train: 4, and there are 3; give the right folder with"
    assert said == f"data set own: {words} --data"


def refusal(**request):
    """The message with which a run is refused before it has written anything."""
    with pytest.raises(DataRefused) as refused:
        start_or_join(TrainRequest(**{"recipe": "mine.yaml", "out": Path("run")} | request))
    assert not Path("run").exists()
    return str(refused.value)


def test_files_that_cannot_be_read_are_refused_by_name(own):
    own()
    Path("own/train/no/2.png").write_bytes(b"<html>404</html>")
    Path("own/val/yes/1.png").write_bytes(Path("own/val/yes/1.png").read_bytes()[:-25])
    first, *named = refusal().splitlines()
    assert first.startswith(
        "data set own: 2 of its files cannot be read; replace or remove them, or write `on_bad_image"
    )
    assert [line.split(":")[0] for line in named] == ["own/train/no/2.png", "own/val/yes/1.png"]


def test_many_files_that_cannot_be_read_are_counted_and_of_a_large_split_some_are_looked_at(own, monkeypatch):
    own(num_train=32)
    for number in range(3, 31):
        Path(f"own/train/no/{number}.png").touch()
    message = refusal()
    assert message.startswith("data set own: 28 of its files cannot be read")
    assert message.endswith("and 18 more")
    assert message.count("\n") == 11
    monkeypatch.setattr("trainers.launch.preflight._MAX_CHECKED", 8)
    first, *named = refusal().splitlines()
    assert first.startswith("data set own: 7 of its files cannot be read")
    assert [re.search("no/([0-9]+)", line)[1] for line in named] == ["13", "17", "20", "24", "28", "4", "8"]


SEARCH = """\
kilobatch: 1
recipe: mine.yaml
sampler: {kind: RandomSampler}
budget: {trials: 2}
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1}}
"""


def test_a_search_over_files_that_cannot_be_read_is_refused_and_nothing_is_written(own):
    own()
    Path("search.yaml").write_text(SEARCH)
    Path("own/train/no/2.png").write_bytes(b"<html>404</html>")
    with pytest.raises(
        DataRefused, match=r"own: 1 of its files cannot be read; .*\nown/train/no/2\.png: not a readable"
    ):
        search(SearchRequest(search="search.yaml", out=Path("out")))
    assert not Path("out").exists()


def test_a_folder_that_cannot_be_listed_is_refused_by_name(own):
    own()
    Path("search.yaml").write_text(SEARCH)
    Path("own/train/no").rename("own/moved")
    Path("own/train/no").symlink_to("no")  # scandir fails, as it does without the right to read
    for begin in (
        lambda: search(SearchRequest(search="search.yaml", out=Path("out"))),
        lambda: start_or_join(TrainRequest(recipe="mine.yaml", out=Path("out"))),
    ):
        with pytest.raises(DataRefused, match="data set own: .*own/train/no"):
            begin()
    assert not Path("out").exists()


def test_a_folder_for_a_data_set_without_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "data set digits: Digits reads no folder, so photos would not be used; leave --data out"
    Path("run").mkdir()
    Path("run/recipe.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    for begin in (
        lambda: start_or_join(TrainRequest(recipe="digits/baseline", out=Path("out"), data=Path("photos"))),
        lambda: search(SearchRequest(search="digits", out=Path("out"), data=Path("photos"))),
        lambda: score_run(Path("run"), data=Path("photos")),
    ):
        with pytest.raises(DataRefused, match=message):
            begin()
    planned = CliRunner().invoke(kilobatch.app, ["plan", "digits/baseline", "--data", "photos"])
    assert str(planned.exception) == message
    assert not Path("out").exists()


def test_an_image_of_another_size_in_the_middle_of_few_is_found_before_the_run(own):
    own()
    Image.new("RGB", (16, 8)).save("own/train/no/2.png")
    opened = prepare(TrainRequest(recipe="mine.yaml"), workers=1).opened
    with pytest.raises(InputRefused, match=r"makes 3x8x8 of own/train/no/1\.png, 3x8x16 of own/train/no/2\.png"):
        require_images(opened.recipe, opened.dataset)


@pytest.mark.parametrize(
    ("shape", "label", "augmentation", "message"),
    [
        ((3, 8, 8), 1, "[]", r"sample 0 of train is an array of \(3, 8, 8\); its channels stand first: transpose it"),
        ((8, 8), 1, "[]", "sample 0 of train has 1 channels, and the file of data set own says 3; correct `channels`"),
        ((8, 8, 3), 1, "[{kind: RandomCrop, size: 16}]", "sample 0: RandomCrop.size is 16, but the image is 8x8"),
        (
            (8, 8, 3),
            10**12,
            "[]",
            "own: 1,000,000,000,001 classes of 4 training samples: the largest label is one less",
        ),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_refused(tmp_path, monkeypatch, shape, label, augmentation, message):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        np.savez(f"{split}.npz", images=np.zeros((4, *shape), np.uint8), labels=np.array([0, 1, 0, label]))
    Path("own.yaml").write_text("name: own\nreader: {kind: Arrays}\nroot: .\nchannels: 3\n")
    Path("mine.yaml").write_text(f"{RECIPE}augmentation: {{train: {augmentation}}}\n")
    with pytest.raises(InputRefused, match=message):
        require_startable(prepare(TrainRequest(recipe="mine.yaml"), workers=1).opened, ranks=1, is_new=True)


def test_an_image_of_extreme_size_that_is_damaged_in_the_middle_is_no_fault_of_the_augmentation(own):
    own()
    damaged = Path("own/train/no/2.png")
    Image.effect_noise((16, 8), 50).convert("RGB").save(damaged)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    opened = prepare(TrainRequest(recipe="mine.yaml"), workers=1).opened
    with pytest.raises(InputRefused, match=r"^own/train/no/2\.png: not a readable image .*`on_bad_image: skip`"):
        require_images(opened.recipe, opened.dataset)


def test_an_image_too_small_for_a_crop_is_named(own):
    own()
    Image.new("RGB", (8, 5)).save("own/train/yes/2.png")
    opened = prepare(
        TrainRequest(recipe="mine.yaml", overrides=("augmentation.train=[{kind: RandomCrop, size: 8}]",)), workers=1
    ).opened
    load = build(opened.recipe, opened.dataset).load_train
    assert load(0, 0)[0].shape == (3, 8, 8)
    with pytest.raises(RankFailed, match=r"own/train/yes/2\.png: RandomCrop\.size is 8, but the image is 5x8"):
        load(0, 3)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_train": 5}, "says num_train: 5, and there are 4; correct it"),
        ({"num_train": 3}, "says num_train: 3, and there are 4; correct it"),
        ({"num_eval": 1}, "says num_eval: 1, and there are 2; correct it"),
        ({"num_classes": 1}, "says num_classes: 1, and there are 2; correct it"),
        ({"classes": ["yes", "no"]}, "says classes: label 0 is 'yes', and there it is 'no'; correct it"),
    ],
)
def test_other_counts_and_classes_than_those_of_the_file_are_refused(own, facts, message):
    own(**facts)
    assert message in refusal()


@pytest.mark.parametrize("folder", [None, Path("nowhere")])
def test_data_that_are_not_there_are_refused_by_train_and_evaluate(own, folder):
    own()
    if folder is None:
        Path("own").rename("moved")
    message = refusal(data=folder)
    assert message.startswith(f"data set own: {folder or 'own'}/train: no such folder; ")
    assert "; another folder is given with --data" in message
    Path("run").mkdir()
    Path("mine.yaml").rename("run/recipe.yaml")
    Path("own.yaml").rename("run/own.yaml")
    with pytest.raises(DataRefused, match="val: no such folder"):  # what it trained on is not looked at
        score_run(Path("run"), data=folder)


@pytest.mark.parametrize("name", ["goyal2017", "akiba2017"])
def test_imagenet_without_its_folder_is_refused_with_what_to_type_and_how_to_make_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(recipe=name, out=None)
    assert "type --data FOLDER, where FOLDER holds train/CLASS/FILE and val/CLASS/FILE" in message
    script = re.search(r"scripts/\w+\.py", message)[0]
    assert (Path(__file__).parents[3] / script).is_file()
    assert not Path("runs").exists()


def test_where_the_folder_is_wrong_the_way_to_the_data_is_named_too(own):
    own()
    with Path("own.yaml").open("a") as file:
        file.write("obtain: ask Ada for them\n")
    message = refusal(data=Path("nowhere"))
    assert "nowhere/train: no such folder; " in message
    assert message.endswith("; ask Ada for them")


def test_more_samples_than_memory_has_room_to_order_are_refused_before_anything_starts(own):
    Path("own.yaml").write_text(f"reader: {{kind: Synthetic, num_train: {2**45}}}\nchannels: 3\n")
    assert "order of 35,184,372,088,832 training samples takes 703,687,441,776,640 bytes" in refusal()


def test_the_ranks_of_a_machine_share_its_memory(own):
    own()
    dataset = prepare(TrainRequest(recipe="mine.yaml"), workers=1).opened.dataset
    dataset = replace(dataset, num_train=installed_bytes() // 20 // 3)
    require_room(dataset, ranks=3)
    with pytest.raises(DataRefused, match="in each rank here, 4 in all"):
        require_room(dataset, ranks=4)


def test_own_augmentation_of_the_last_part_of_a_run_is_tried_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Broken:\n"
    code += "    def __call__(self, image_HWC, draws):\n        raise ValueError('no such crop')\n"
    Path("own_end_of_a_test.py").write_text(code)
    late = "[{kind: own_end_of_a_test.Broken}, {kind: Normalize, with: digits}]"
    how = {"overrides": (f"augmentation.end={{at: 1, train: {late}}}",), "allow_code": True}
    opened = prepare(TrainRequest(recipe="digits/large_batch", **how), workers=1).opened
    with pytest.raises(InputRefused, match=r"augmentation\.end cannot be applied to sample 0: ValueError: no such"):
        require_startable(opened, ranks=1, is_new=True)


OWN_AUGMENTATIONS = """\
import itertools
from dataclasses import dataclass, field

import numpy as np

CALLS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Own:
    does: str
    seen: list = field(default_factory=list)

    def __call__(self, image_HWC, draws):
        if self.does == "nothing":
            return None
        if self.does == "flatten":
            return image_HWC[:, :, 0]
        if self.does == "transpose":
            return image_HWC.transpose(2, 0, 1)
        if self.does == "remember":
            self.seen.append(draws.uniform())
        if self.does == "count":
            return image_HWC + np.uint8(next(CALLS) % 5)
        if self.does == "draw":
            return image_HWC * np.random.rand()
        return image_HWC * (1 + draws.uniform())
"""


@pytest.mark.parametrize(
    ("does", "refused", "warned"),
    [
        (
            "nothing",
            "augmentation.train: sample 0: Own, number 0 of the list, returns None; let it return an image",
            "",
        ),
        ("flatten", "augmentation.train: sample 0: Own, number 0 of the list, returns an array of shape (8, 8)", ""),
        ("transpose", "augmentation.train.0, Own, makes (1, 8, 8) of (8, 8, 1), height x width x channels", ""),
        ("remember", "augmentation.train.0, Own, changes its own field seen, a key of the recipe", ""),
        ("count", "", "augmentation.train.0, Own, makes other images of the same image with the same draws"),
        ("draw", "", "augmentation.train.0, Own, makes other images of the same image with the same draws"),
        ("brighten", "", ""),
    ],
)
def test_own_augmentation_that_gives_no_image_or_another_each_time_is_named(
    tmp_path, monkeypatch, capsys, does, refused, warned
):
    monkeypatch.chdir(tmp_path)
    Path("own_augmentation_of_a_test.py").write_text(OWN_AUGMENTATIONS)
    parts = f"[{{kind: own_augmentation_of_a_test.Own, does: {does}}}, {{kind: Normalize, with: digits}}]"
    how = {"overrides": (f"augmentation.train={parts}",), "allow_code": True}
    opened = prepare(TrainRequest(recipe="digits/baseline", **how), workers=1).opened
    with pytest.raises(InputRefused, match=re.escape(refused)) if refused else nullcontext():
        require_startable(opened, ranks=1, is_new=True)
    assert f"kilobatch: warning: {warned}" in capsys.readouterr().err if warned else not capsys.readouterr().err
