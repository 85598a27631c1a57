import io
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from trainers.datasets import Parquet
from trainers.datasets.byte_ranges import ByteRanges
from trainers.datasets.parquet import RowGroups
from trainers.datasets.samples import UnreadableImage

pyarrow = pytest.importorskip("pyarrow", reason="an extra: pip install '.[parquet]'")
from pyarrow.parquet import read_table, write_table  # noqa: E402


def png(value):
    file = io.BytesIO()
    noise = np.random.default_rng(value).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    noise[0, 0] = value
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


FILES = {"train-00000-of-00002": range(5), "train-00001-of-00002": range(5, 9), "validation-00000-of-00001": range(3)}


@pytest.fixture(autouse=True)
def _settled(monkeypatch):
    """Indexes are kept, though their files have just been made."""
    monkeypatch.setattr("trainers.datasets.index_file._SETTLED_NS", -1_000)


def write(root, *, images=png, labels=int, row_group_size=2, **options):
    (root / "data").mkdir(exist_ok=True)
    for name, numbers in FILES.items():
        column = [{"bytes": images(n), "path": f"{n}.png"} for n in numbers]
        rows = {"image": column, "label": [labels(n) for n in numbers]}
        path = root / "data" / f"{name}.parquet"
        write_table(pyarrow.table(rows), path, row_group_size=row_group_size, **options)
    return root


COMPRESSED = [{"compression": "snappy"}, {"compression": "zstd", "use_dictionary": False}]
PLAIN = [
    {"compression": "none"},
    {"compression": "none", "use_dictionary": False},
    {"compression": "none", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 100},
]


@pytest.mark.parametrize("options", [*COMPRESSED, *PLAIN], ids=str)
def test_each_row_gives_its_image_and_label(tmp_path, options):
    write(tmp_path, **options)
    for _ in range(2):  # made, then read from the index
        samples = Parquet().open(tmp_path, "train")
        assert isinstance(samples, RowGroups if options in COMPRESSED else ByteRanges)
        order = np.random.default_rng(0).permutation(9).tolist()
        assert [samples.encoded(index) for index in order] == [png(index) for index in order]
        assert [samples[index][1] for index in range(9)] == list(range(9))
    assert Parquet().facts(tmp_path) == {"num_train": 9, "num_eval": 3, "num_classes": 9}


def test_equal_images_of_which_one_is_stored_are_found(tmp_path):
    write(tmp_path, images=lambda number: png(number % 2), row_group_size=5, compression="none")
    samples = Parquet().open(tmp_path, "train")
    assert isinstance(samples, ByteRanges)
    assert [samples.encoded(index) for index in range(9)] == [png(index % 2) for index in range(9)]


def test_where_one_file_is_compressed_all_are_read_by_groups(tmp_path):
    write(tmp_path, compression="none")
    path = tmp_path / "data/train-00001-of-00002.parquet"
    write_table(read_table(path), path, compression="snappy")
    samples = Parquet().open(tmp_path, "train")
    assert isinstance(samples, RowGroups)
    assert [samples.encoded(index) for index in range(9)] == [png(index) for index in range(9)]


def test_of_an_index_pyarrow_is_not_needed(tmp_path):
    write(tmp_path, compression="none")
    Parquet().facts(tmp_path)
    code = "import sys; from pathlib import Path; from trainers.datasets import Parquet\n"
    code += "print(Parquet().open(Path(sys.argv[1]), 'eval')[2][1], 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


def test_a_bounded_number_of_groups_is_kept(tmp_path, monkeypatch):
    samples = Parquet().open(write(tmp_path), "train")
    monkeypatch.setattr("trainers.datasets.parquet._CACHE_BYTES", 4 * len(png(0)) + 100)
    for index in range(9):
        samples.encoded(index)
    assert len(samples._kept) == 2
    assert samples.encoded(0) == png(0)


def test_samples_are_named_by_file_and_row(tmp_path):
    samples = Parquet().open(write(tmp_path), "train")
    assert samples.name_of(8) == f"{tmp_path / 'data/train-00001-of-00002.parquet'}, row 3"
    path = tmp_path / "data/train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnreadableImage, match=re.escape(f"{path}: ")):
        samples[8]


def test_images_may_be_a_column_of_bytes_with_another_name(tmp_path):
    for name, numbers in FILES.items():
        rows = {"picture": [png(n) for n in numbers], "class": list(numbers)}
        write_table(pyarrow.table(rows), tmp_path / f"{name}.parquet")
    reader = Parquet(train="train-*.parquet", eval="validation-*.parquet", image="picture", label="class")
    assert reader.open(tmp_path, "train").encoded(7) == png(7)
    with pytest.raises(ValueError, match="no column 'label', it has picture, class; write its name in the reader"):
        Parquet(train="train-*.parquet", eval="validation-*.parquet").open(tmp_path, "train")


def test_rows_without_a_label_or_an_image_are_refused(tmp_path):
    with pytest.raises(ValueError, match="column 'label' must hold whole numbers from 0"):
        Parquet().facts(write(tmp_path, labels=lambda number: -1))
    with pytest.raises(ValueError, match="column 'label' must hold whole numbers from 0"):
        Parquet().facts(write(tmp_path, labels=str))
    samples = Parquet().open(write(tmp_path, images=lambda number: None), "train")
    with pytest.raises(UnreadableImage, match="column 'image' must hold the bytes of an image in each row"):
        samples[0]


def test_a_label_beyond_32_bits_is_no_other_class(tmp_path):
    assert Parquet().facts(write(tmp_path, labels=lambda number: 2**32 + number))["num_classes"] == 2**32 + 9


def test_a_file_without_rows_is_refused(tmp_path):
    write(tmp_path, row_group_size=5)
    path = tmp_path / "data/train-00001-of-00002.parquet"
    write_table(read_table(path).slice(0, 0), path)
    with pytest.raises(ValueError, match=re.escape(f"{path}: row group 0 has no rows; remove the file")):
        Parquet().facts(tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"train-\*\.parquet: no such file; write `train` in the reader"):
        Parquet().facts(tmp_path)
    write(tmp_path)
    path = tmp_path / "data/train-00000-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=re.escape(f"{path}: ") + ".*copy it again"):
        Parquet().facts(tmp_path)


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_the_fingerprint_names_the_file_that_changed(tmp_path, compression):
    before = Parquet().fingerprints(write(tmp_path, compression=compression))
    after = Parquet().fingerprints(write(tmp_path, compression=compression, images=lambda n: png(n + 30 * (n == 5))))
    assert list(before) == [f"data/{name}.parquet" for name in FILES]
    assert [name for name in before if before[name] != after[name]] == ["data/train-00001-of-00002.parquet"]
