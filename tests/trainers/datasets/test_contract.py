"""Every data set keeps the promises the stream, the trace and the run's record rely on."""

import io
import pickle
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from recipes.errors import RecipeError
from recipes.planning.stream import held_out
from recipes.reading.open import open_dataset
from recipes.schema import Dataset
from trainers import datasets
from trainers.datasets import Arrays, Cifar10, Cifar100, Digits, ImageFolder, Synthetic, TarShards
from trainers.datasets.held_out import open_split
from trainers.datasets.inspection import inspect
from trainers.launch.preflight import require_data, require_readable
from trainers.launch.vocabulary import vocabulary

CASES = {
    "Cifar10": Cifar10(num_per_file=12),
    "Cifar100": Cifar100(num_train=100, num_eval=100),
    "Digits": Digits(num_eval=100),
    "ImageFolder": ImageFolder(),
    "Synthetic": Synthetic(num_train=60, num_eval=30, num_classes=3, channels=1, size=8),
}
CASES |= {name: getattr(datasets, name)() for name in {*datasets.__all__} - {*CASES}}
if find_spec("pyarrow") is None:  # an extra
    del CASES["Parquet"]


@pytest.fixture
def root(name, folder):
    return folder / "tiny" if name == "TinyImageNet" else folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draws = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (16, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.jpg")
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = draws.integers(0, 256, (12, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(12) % 10
        records.tofile(folder / f"{name}.bin")
    for name in ("train", "test"):
        records = draws.integers(0, 256, (100, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(100)
        records.tofile(folder / f"{name}.bin")
    write_arrays(folder, draws)
    write_idx(folder)
    write_shards(folder)
    write_parquet(folder)
    write_tiny_imagenet(folder)
    return folder


def write_arrays(folder, draws):
    for split, count in (("train", 8), ("val", 4)):
        np.save(folder / f"{split}_images.npy", draws.integers(0, 256, (count, 6, 5, 3), dtype=np.uint8))
        np.save(folder / f"{split}_labels.npy", np.arange(count) % 3)


def write_idx(folder):
    for split, count in (("train", 7), ("t10k", 4)):
        for part, shape in (("images-idx3", (count, 6, 5)), ("labels-idx1", (count,))):
            values = np.arange(np.prod(shape), dtype=np.uint8) % 3
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            (folder / f"{split}-{part}-ubyte").write_bytes(header + values.tobytes())


def write_parquet(folder):
    if find_spec("pyarrow") is None:
        return
    import pyarrow
    from pyarrow.parquet import write_table

    (folder / "data").mkdir()
    for split, name in (("train", "train"), ("val", "validation")):
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted((folder / split).rglob("*.jpg"))]
        table = pyarrow.table({"image": images, "label": [number % 2 for number in range(len(images))]})
        write_table(table, folder / "data" / f"{name}-0.parquet", row_group_size=3)


def write_tiny_imagenet(folder):
    tiny = folder / "tiny"
    for name in ("cat", "dog"):
        shutil.copytree(folder / "train" / name, tiny / "train" / name / "images")
    (tiny / "val" / "images").mkdir(parents=True)
    for number, path in enumerate(sorted((folder / "val").rglob("*.jpg"))):
        shutil.copy(path, tiny / "val" / "images" / f"val_{number}.JPEG")
    lines = [f"val_{number}.JPEG\t{'cat' if number < 3 else 'dog'}\t0\t0\t9\t9\n" for number in range(6)]
    (tiny / "val" / "val_annotations.txt").write_text("".join(lines))


def write_shards(folder):
    """Two archives a split, by the class folders' images; classes by .cls."""
    for split in ("train", "val"):
        images = sorted((folder / split).rglob("*.jpg"))
        for number, half in enumerate((images[::2], images[1::2])):
            with tarfile.open(folder / f"{split}-{number}.tar", "w") as archive:
                for label, path in enumerate(half):
                    name = f"{path.parent.name}{path.stem}"
                    archive.add(path, f"{name}.jpg")
                    member = tarfile.TarInfo(f"{name}.cls")
                    member.size = 1
                    archive.addfile(member, io.BytesIO(b"%d" % (label % 2)))


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("split", ["train", "eval"])
def test_samples_are_images_and_labels(name, split, root):
    samples = CASES[name].open(root, split)
    facts = CASES[name].facts(root)
    assert len(samples) == facts[f"num_{split}"] > 0
    labels = set()
    for index in range(len(samples)):
        image_HWC, label = samples[index]
        assert image_HWC.ndim == 3
        assert image_HWC.dtype in (np.uint8, np.float32)
        assert 0 <= image_HWC.min() <= image_HWC.max() <= 255
        assert type(label) is int
        labels.add(label)
    assert labels == set(range(facts["num_classes"]))


@pytest.mark.parametrize("name", sorted(CASES))
def test_opening_again_gives_the_same_samples(name, root):
    first, second = (CASES[name].open(root, "eval") for _ in range(2))
    for index in range(len(first)):
        assert first[index][0].tobytes() == second[index][0].tobytes()
        assert first[index][1] == second[index][1]


@pytest.mark.parametrize("name", sorted(CASES))
def test_threads_read_the_same_samples(name, root):
    samples = CASES[name].open(root, "train")
    alone = [samples[index][0].tobytes() for index in range(len(samples))]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda index: samples[index][0].tobytes(), [*range(len(samples))] * 4))
    assert together == alone * 4


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_sample_that_somebody_changes_stays_as_it_was(name, root):
    samples = CASES[name].open(root, "train")
    before = samples[0][0].copy()
    image_HWC = samples[0][0]
    if image_HWC.flags.writeable:
        image_HWC[...] = 7
    np.testing.assert_array_equal(samples[0][0], before)


@pytest.mark.parametrize("name", sorted(CASES))
def test_opened_samples_travel_to_other_processes(name, root):
    samples = CASES[name].open(root, "train")
    again = pickle.loads(pickle.dumps(samples))
    assert again[3][0].tobytes() == samples[3][0].tobytes()


@pytest.mark.parametrize("name", sorted(CASES))
def test_fingerprints_are_sha256_of_data_and_fields(name, root):
    fingerprint = CASES[name].fingerprint(root)
    assert re.fullmatch("[0-9a-f]{64}", fingerprint)
    assert CASES[name].fingerprint(root) == fingerprint
    if name.startswith("Cifar"):  # its files must be as long as its fields say; its own tests change a byte
        return
    others = {"Digits": Digits(num_eval=101), "ImageFolder": ImageFolder(channels=1), "Synthetic": Synthetic(seed=1)}
    assert name not in others or others[name].fingerprint(root) != fingerprint


@pytest.mark.parametrize("name", sorted(CASES))
def test_another_split_is_refused(name, root):
    with pytest.raises(ValueError, match="split must be 'train' or 'eval', got 'val'"):
        CASES[name].open(root, "val")


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_held_out_and_the_others_are_the_training_split(name, root, by_class):
    whole, facts = CASES[name].open(root, "train"), CASES[name].facts(root)
    channels = whole[0][0].shape[2]
    dataset = Dataset(name=name, reader=CASES[name], root=root, channels=channels, **facts).holding_out(0.3)
    assert (dataset.num_eval, dataset.num_train) == (len(whole) * 3 // 10, len(whole) - len(whole) * 3 // 10)
    dataset = replace(dataset, validation=replace(dataset.validation, by_class=by_class))
    if by_class and not hasattr(whole, "labels"):
        with pytest.raises(ValueError, match="validation.by_class needs samples with `labels`"):
            open_split(dataset, "train")
        return
    require_data(dataset)
    labels = np.array([whole[index][1] for index in range(len(whole))]) if by_class else None
    places = [each.tolist() for each in held_out(len(whole), dataset.num_eval, labels)]
    assert sorted(places[0] + places[1]) == list(range(len(whole)))
    for split, indices in zip(("train", "eval"), places, strict=True):
        samples = open_split(dataset, split)
        assert len(samples) == len(indices) == getattr(dataset, f"num_{split}")
        assert hasattr(samples, "encoded") == hasattr(whole, "encoded")
        assert getattr(samples, "threads_pay", False) == getattr(whole, "threads_pay", False)
        for number, index in enumerate(indices):
            assert samples[number][0].tobytes() == whole[index][0].tobytes()
            assert samples[number][1] == whole[index][1]
        assert samples.name_of(1) == getattr(whole, "name_of", "sample {}".format)(indices[1])
        assert pickle.loads(pickle.dumps(samples))[1][0].tobytes() == samples[1][0].tobytes()


@pytest.mark.parametrize("name", sorted(name for name in CASES if hasattr(CASES[name], "eval")))
def test_data_without_an_evaluation_split_score_a_share_of_their_training_split(name, root, tmp_path):
    shutil.copytree(root, tmp_path / "data", ignore=shutil.ignore_patterns("val*", ".kilobatch*"))
    file = tmp_path / "own.yaml"
    file.write_text(f"reader: {{kind: {name}}}\nchannels: 3\nroot: data\n")
    with pytest.raises(RecipeError, match="own.yaml:1:9: reader: cannot count"):
        open_dataset(str(file), vocabulary=vocabulary())
    file.write_text(f"{file.read_text()}validation: {{fraction: 0.3}}\n")
    dataset = open_dataset(str(file), vocabulary=vocabulary())
    whole = CASES[name].open(root, "train")
    assert (dataset.num_train, dataset.num_eval) == (len(whole) - len(whole) * 3 // 10, len(whole) * 3 // 10)
    require_data(dataset)
    require_readable(dataset)
    assert re.fullmatch("[0-9a-f]{64}", dataset.reader.fingerprint(dataset.root))
    assert inspect(dataset)["splits"]["eval"]["samples"] == dataset.num_eval
    with pytest.raises(ValueError, match=f"{name} has no evaluation split"):
        dataset.reader.open(dataset.root, "eval")


BELOW_ROOT = "must be a path below the data set's root, got "
WRONG = [
    *((Cifar10, {"num_per_file": value}, "num_per_file must be a whole number >= 1") for value in (0, -1, 2.0, True)),
    *((Digits, {"num_eval": value}, "num_eval must be") for value in (0, 1797, 29.7, True)),
    (ImageFolder, {"train": "../train"}, f"train {BELOW_ROOT}'../train'"),
    (ImageFolder, {"eval": "/val"}, f"eval {BELOW_ROOT}'/val'"),
    (ImageFolder, {"train": ""}, f"train {BELOW_ROOT}''"),
    (ImageFolder, {"train": None}, f"train {BELOW_ROOT}None"),
    (ImageFolder, {"train": "a/../../b"}, f"train {BELOW_ROOT}'a/../../b'"),
    (ImageFolder, {"train": "val"}, "eval must be another path than train, got 'val'"),
    (ImageFolder, {"channels": 4}, "channels must be 1 or 3, got 4"),
    (ImageFolder, {"channels": True}, "channels must be 1 or 3, got True"),
    *(
        (Synthetic, {field: value}, f"{field} must be a whole number >= 1")
        for field in ("num_train", "num_eval", "num_classes", "channels", "size")
        for value in (0, -1, 2.0, None)
    ),
    (Arrays, {"train": "../x"}, f"train {BELOW_ROOT}'../x'"),
    (Cifar100, {"num_eval": 0}, "num_eval must be a whole number >= 1"),
    (TarShards, {"eval": "train-*.tar"}, "eval must be another path than train, got 'train-*.tar'"),
    (TarShards, {"channels": 2}, "channels must be 1 or 3, got 2"),
    (Synthetic, {"seed": -1}, "seed must be a whole number >= 0, got -1"),
    *((Synthetic, {"label_noise": value}, "label_noise must be") for value in (-0.1, 1.0, None, "0.2")),
    (Synthetic, {"num_classes": 1, "label_noise": 0.1}, "label_noise needs another class"),
]


@pytest.mark.parametrize(("make", "fields", "message"), WRONG)
def test_wrong_fields_are_refused(make, fields, message):
    with pytest.raises(ValueError, match=re.escape(f"{make.__name__}.{message}")):
        make(**fields)
