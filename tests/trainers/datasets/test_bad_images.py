"""An image that cannot be decoded gives its place to the next one that can, where the data set's file says so."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from recipes.errors import RecipeError
from recipes.reading.open import open_dataset
from trainers.datasets.bad_images import SkippingSamples, can_skip, limit_of, open_samples
from trainers.datasets.inspection import dataset_of_folder
from trainers.datasets.samples import UnreadableImage
from trainers.launch.preflight import DataRefused, require_readable
from trainers.launch.vocabulary import vocabulary


@pytest.fixture
def dataset(tmp_path):
    """Six training images, one grey value each, in two classes; 1, 2 and 5 cannot be decoded."""
    for split in ("train", "val"):
        for number in range(6):
            folder = tmp_path / split / ("cat" if number < 3 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4 + number, 3), 10 * number, np.uint8)).save(folder / f"{number}.png")
    for name in ("cat/1.png", "cat/2.png"):
        (tmp_path / "train" / name).write_bytes((tmp_path / "train" / name).read_bytes()[:50])
    (tmp_path / "train/dog/5.png").write_bytes(b"")
    return replace(dataset_of_folder(tmp_path), on_bad_image="skip")


def test_the_next_readable_sample_takes_the_place_with_its_own_label(dataset):
    samples = open_samples(dataset, "train")
    found = [(int(image.max()), label) for image, label in (samples[index] for index in range(6))]
    assert found == [(0, 0), (30, 1), (30, 1), (30, 1), (40, 1), (0, 0)]
    assert [samples[index][1] for index in (5, 2, 1)] == [0, 1, 1]  # again, and in another order
    assert samples.name_of(1) == str(dataset.root / "train/dog/3.png")


def test_each_skip_is_noted_once_with_file_and_cause(dataset):
    samples = open_samples(dataset, "train")
    for index in (1, 2, 1, 5):
        _ = samples[index]
    assert sorted(samples.skipped) == [1, 2, 5]
    assert samples.skipped[2].message.startswith(f"{dataset.root}/train/cat/2.png: not a readable image")


def test_sizes_are_those_of_the_next_image_with_a_header(dataset):
    samples = open_samples(dataset, "train")
    assert samples.size_of(5) == (4, 4)
    assert samples.size_of(4) == (4, 8)
    assert not samples.skipped


def test_a_file_that_is_gone_is_never_skipped(dataset):
    samples = open_samples(dataset, "train")
    (dataset.root / "train/cat/0.png").unlink()
    with pytest.raises(UnreadableImage, match=r"0\.png.*No such file") as caught:
        _ = samples[0]
    assert not can_skip(caught.value)


def test_an_image_for_which_this_rank_lacks_memory_is_never_skipped(dataset, monkeypatch):
    samples = open_samples(dataset, "train")

    def opened(*given, **options):
        raise MemoryError

    monkeypatch.setattr(Image, "open", opened)
    with pytest.raises(MemoryError):
        _ = samples[0]
    assert not samples.skipped


def test_held_out_samples_take_the_place_of_held_out_ones_alone(dataset):
    trained, scored = (open_samples(dataset.holding_out(0.5), split) for split in ("train", "eval"))
    found = [{int(samples[index][0].max()) // 10 for index in range(3)} for samples in (trained, scored)]
    assert found[0] | found[1] == {0, 3, 4}  # all that can be decoded
    assert not found[0] & found[1]


def test_a_split_without_any_image_ends(dataset):
    for path in (dataset.root / "train").rglob("*.png"):
        path.write_bytes(b"")
    samples = open_samples(dataset, "train")
    for _ in range(2):
        with pytest.raises(UnreadableImage, match="no image of train can be decoded"):
            _ = samples[3]


def test_refusing_reads_the_samples_as_they_are(dataset):
    assert not isinstance(open_samples(replace(dataset, on_bad_image="refuse"), "train"), SkippingSamples)


POLICIES = [("refuse", False), ("skip", True), ("{stop_after: 2}", False), ("{stop_after: 3}", True)]


@pytest.mark.parametrize(("policy", "starts"), POLICIES)
def test_a_run_is_refused_before_it_starts_where_it_could_not_end(dataset, tmp_path, policy, starts):
    file = tmp_path / "photos.yaml"
    file.write_text(f"reader: {{kind: ImageFolder}}\nroot: .\nchannels: 3\non_bad_image: {policy}\n")
    opened = open_dataset(str(file), vocabulary=vocabulary())
    assert limit_of(opened) == (int(policy[-2]) if "stop" in policy else None)
    if starts:
        require_readable(opened)
        return
    with pytest.raises(DataRefused, match="3 of its files cannot be read"):
        require_readable(opened)


@pytest.mark.parametrize("policy", ["never", "{stop_after: 0}", "{stop: 1}", "3"])
def test_another_word_is_refused_at_its_line(dataset, tmp_path, policy):
    file = tmp_path / "photos.yaml"
    file.write_text(f"reader: {{kind: ImageFolder}}\nroot: .\nchannels: 3\non_bad_image: {policy}\n")
    with pytest.raises(RecipeError, match=r"photos\.yaml:4:.*on_bad_image"):
        open_dataset(str(file), vocabulary=vocabulary())
