"""The sheet shows what the model gets: the samples of the stream, in order, augmented and mixed as in a run."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused
from recipes.planning.stream import Stream
from recipes.reading.open import open_recipe
from trainers.datasets.sheet import COLUMNS, Shown, evaluated_samples, sheet, training_samples
from trainers.launch.vocabulary import vocabulary
from trainers.training.build import build

MIX = "augmentation.mix=[{kind: CutMix, alpha: 1.0}]"
TRAIN = "augmentation.train=[{kind: Cutout, size: 5}, {kind: Normalize, with: digits}]"


def opened(*overrides, name="digits/large_batch"):
    return open_recipe(name, vocabulary=vocabulary(), overrides=overrides)


def test_training_samples_are_those_of_the_run_with_normalisation_undone():
    recipe = opened()
    shown = training_samples(recipe.recipe, recipe.dataset, epoch=2, count=10)
    load = build(recipe.recipe, recipe.dataset).load_train
    stream = Stream(seed=recipe.recipe.seed, num_samples=1500)
    for each, epoch, index in zip(shown, *stream.samples(3000, 10), strict=True):
        image_CHW, label = load(int(epoch), int(index))
        pixels = 255 * (image_CHW[0] * recipe.dataset.std[0] + recipe.dataset.mean[0])
        np.testing.assert_allclose(each.image_HWC[:, :, 0], pixels.clip(0, 255), atol=0.51)
        assert each.caption == str(label)


@pytest.mark.parametrize("channels", range(1, 7))
def test_a_picture_has_three_channels_or_the_first(channels):
    image_HWC = np.random.default_rng(0).integers(0, 256, (4, 5, channels), dtype=np.uint8)
    picture = np.asarray(Shown(image_HWC=image_HWC, caption="").picture)
    np.testing.assert_array_equal(picture, image_HWC if channels == 3 else image_HWC[:, :, 0])


def test_another_epoch_shows_other_samples_and_the_same_again():
    recipe = opened()
    first, second, again = (
        [each.image_HWC.tobytes() for each in training_samples(recipe.recipe, recipe.dataset, epoch=epoch)]
        for epoch in (0, 1, 0)
    )
    assert first == again
    assert len(first) == 64
    assert len({*first} & {*second}) < 5


def test_mixed_samples_are_the_same_wherever_the_sheet_begins():
    """Epoch 1 of 1,500 samples begins inside an update of 128 and a norm group of 64."""
    recipe = opened(MIX, "batch={global: 128, norm_span: 64}", "learning_rate.warmup=null", "epochs=3")
    later = training_samples(recipe.recipe, recipe.dataset, epoch=1, count=30)
    whole = training_samples(recipe.recipe, recipe.dataset, epoch=0, count=1500)
    assert len(whole) == 1500
    assert any("," in each.caption for each in later)
    longer = training_samples(recipe.recipe, recipe.dataset, epoch=1, count=300)[:30]
    assert [(each.image_HWC.tobytes(), each.caption) for each in later] == [
        (each.image_HWC.tobytes(), each.caption) for each in longer
    ]


def test_after_the_end_of_augmentation_samples_are_neither_augmented_nor_mixed():
    recipe = opened(MIX, TRAIN, "augmentation.end={at: 2}")
    before, after = (training_samples(recipe.recipe, recipe.dataset, epoch=epoch, count=64) for epoch in (1, 3))
    assert any("," in each.caption for each in before)
    samples, stream = recipe.dataset.reader.open(None, "train"), Stream(seed=recipe.recipe.seed, num_samples=1500)
    for each, index in zip(after, stream.samples(4500, 64)[1].tolist(), strict=True):
        np.testing.assert_allclose(each.image_HWC, samples[index][0], atol=0.51)
        assert each.caption == str(samples[index][1])


def test_the_evaluation_is_shown_in_its_order():
    recipe = opened()
    labels = [recipe.dataset.reader.open(None, "eval")[index][1] for index in range(64)]
    assert [each.caption for each in evaluated_samples(recipe.recipe, recipe.dataset)] == [*map(str, labels)]


def test_growing_images_have_the_size_of_their_epoch():
    sizes = "image_size=[{from: 0, size: 8}, {from: 2, size: 12}]"
    train = "augmentation.train=[{kind: RandomResizedCrop, size: image_size}, {kind: Normalize, with: digits}]"
    recipe = opened(sizes, train)
    for epoch, size in ((0, 8), (3, 12)):
        shown = training_samples(recipe.recipe, recipe.dataset, epoch=epoch, count=3)
        assert {each.image_HWC.shape for each in shown} == {(size, size, 1)}


def test_an_epoch_that_the_recipe_has_not_is_refused():
    recipe = opened("epochs=3", "learning_rate.warmup=null")
    with pytest.raises(InputRefused, match="epoch 4: the recipe ends before; epochs count from 0"):
        training_samples(recipe.recipe, recipe.dataset, epoch=4)


def test_images_stand_in_rows_of_eight_with_enlarged_pixels():
    shown = [
        Shown(image_HWC=np.full((4, 6, 3), 10 * n, np.uint8), caption="a long name of a class " * 9) for n in range(9)
    ]
    paper = np.asarray(sheet(shown, title="nine"))
    side = 96  # 6 pixels, 16 times
    step = side + 6
    assert paper.shape[1] == COLUMNS * step + 6
    for number in range(8):
        assert (paper[40 : 40 + 50, 8 + number * step : 8 + number * step + 90] == 10 * number).all()


def test_the_command_draws_classes_by_name(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (9, 9), (200, 0, 0)).save(tmp_path / split / name / f"{number}.png")
    (tmp_path / "photos.yaml").write_text("reader: {kind: ImageFolder}\nroot: .\nchannels: 3\n")
    (tmp_path / "mine.yaml").write_text(
        "kilobatch: 1\nextends: digits/large_batch\ndataset: photos.yaml\nbatch: {global: 4, norm_span: 4}\n"
        "learning_rate: {warmup: null}\naugmentation: {train: [{kind: HorizontalFlip}], eval: []}\n"
    )
    recipe = open_recipe(str(tmp_path / "mine.yaml"), vocabulary=vocabulary())
    shown = training_samples(recipe.recipe, recipe.dataset, epoch=0)
    assert {each.caption for each in shown} == {"cat", "dog"}
    assert {tuple(each.image_HWC[0, 0]) for each in shown} == {(200, 0, 0)}
    words = ["data", "sheet", str(tmp_path / "mine.yaml"), "-o"]
    assert CliRunner().invoke(kilobatch.app, [*words, str(tmp_path / "sheet.png"), "--eval"]).exit_code == 0
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.width == COLUMNS * (99 + 6) + 6
    for wrong, message in (("sheet.xyz", "unknown file extension"), ("no/sheet.png", "No such file")):
        result = CliRunner().invoke(kilobatch.app, [*words, str(tmp_path / wrong)])
        assert result.exit_code == 2
        assert message in result.stderr
    Image.new("RGB", (12, 9)).save(tmp_path / "train/cat/0.png")
    mixed = open_recipe(str(tmp_path / "mine.yaml"), vocabulary=vocabulary(), overrides=(MIX,))
    with pytest.raises(InputRefused, match="come out as 3x9x(9, 3x9x12|12, 3x9x9), which cannot be mixed; bring all"):
        training_samples(mixed.recipe, mixed.dataset, epoch=0)
