"""A user's own class of samples: the example of the documents runs, and what is wrong is named."""

import json
import pickle
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_dataset
from trainers.launch import vocabulary as vocabulary_module
from trainers.launch.vocabulary import vocabulary

DOCUMENT = (Path(__file__).parents[3] / "docs" / "own-components.md").read_text(encoding="utf-8")
BEGIN = DOCUMENT.index("## Your own class of samples")
SECTION = DOCUMENT[BEGIN : DOCUMENT.index("\n## ", BEGIN)]
CODE, DATASET = (re.search(rf"```{kind}\n(# (\S+).*?)```", SECTION, re.S)[1] for kind in ("python", "yaml"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The two files of the documents, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mydata.py").write_text(CODE)
    (tmp_path / "stripes.yaml").write_text(DATASET)
    yield tmp_path
    sys.modules.pop("mydata", None)


def opened():
    return open_dataset("stripes.yaml", vocabulary=vocabulary(allow_code=True), allow_code=True)


@pytest.mark.mpi
def test_the_example_of_the_documents_learns_its_stripes(folder):
    (command,) = re.findall(r"    kilobatch (train .*?)\n\n", SECTION, re.S)
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command.replace("\\\n", " "))]
    words = [sys.executable, "-P", "-m", "kilobatch", *words, "--out", "run", "--no-report", "-n", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    scores = re.findall(r'"eval_accuracy","value":([0-9.]+)', (folder / "run/metrics.jsonl").read_text())
    assert float(scores[-1]) == 1.0
    assert "mydata.py" in (folder / "run/identity.json").read_text()


def test_a_class_with_load_becomes_a_reader(folder):
    dataset = opened()
    assert (dataset.num_train, dataset.num_eval, dataset.num_classes) == (256, 64, 2)
    samples = dataset.reader.open(None, "train")
    image_HWC, label = samples[3]
    assert (image_HWC.shape, image_HWC.dtype, label, len(samples)) == ((8, 8, 1), np.uint8, 1, 256)
    again = pickle.loads(pickle.dumps(samples))
    np.testing.assert_array_equal(again[3][0], image_HWC)
    with pytest.raises(ValueError, match="split must be 'train' or 'eval'"):
        dataset.reader.open(None, "val")


def test_its_fingerprint_follows_arguments_and_samples(folder):
    found = {opened().reader.fingerprint(None)}
    (folder / "stripes.yaml").write_text(DATASET.replace("noise: 50", "noise: 51"))
    found.add(opened().reader.fingerprint(None))
    assert opened().reader.fingerprint(None) in found
    sys.modules.pop("mydata")
    (folder / "mydata.py").write_text(CODE.replace("= 200", "= 199 "))
    found.add(opened().reader.fingerprint(None))
    assert len(found) == 3


def test_an_installed_package_offers_such_a_class_by_name(folder, monkeypatch):
    sys.path.append(str(folder))
    entry = EntryPoint(name="stripes", value="mydata:Stripes", group="kilobatch.datasets")
    monkeypatch.setattr(vocabulary_module, "entry_points", lambda *, group: [entry] if entry.group == group else [])
    (folder / "stripes.yaml").write_text(DATASET.replace("mydata.Stripes", "stripes"))
    dataset = open_dataset("stripes.yaml", vocabulary=vocabulary())
    assert repr(pickle.loads(pickle.dumps(dataset.reader))) == "Stripes(num_train=256, noise=50)"
    assert dataset.reader.facts(None) == {"num_train": 256, "num_eval": 64, "num_classes": 2}


def test_the_folder_of_the_data_is_given_if_it_is_an_argument(folder):
    (folder / "mydata.py").write_text(CODE.replace("self, split,", "self, split, root,"))
    with pytest.raises(RecipeError, match="Stripes needs the folder of the data: type --data FOLDER"):
        opened()
    (folder / "stripes.yaml").write_text(DATASET + "root: here\n")
    dataset = opened()
    assert len(dataset.reader.open(dataset.root, "eval")) == 64
    assert dataset.reader.reads_folder


@pytest.mark.parametrize(
    "given", ["num_classes = np.int64(2)", "num_classes = property(lambda self: 2)"], ids=["NumPy's", "a property"]
)
def test_the_number_of_classes_may_be_any_attribute_of_an_instance(folder, given):
    (folder / "mydata.py").write_text(CODE.replace("num_classes = 2", given))
    assert json.dumps(opened().reader.facts(None)["num_classes"]) == "2"


def test_without_the_number_of_classes_the_file_must_have_it(folder):
    (folder / "mydata.py").write_text(CODE.replace("num_classes = 2", "num = 2"))
    with pytest.raises(RecipeError, match="num_classes"):
        opened()
    (folder / "stripes.yaml").write_text(DATASET + "num_classes: 2\n")
    assert opened().num_classes == 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("image / 2, label", "returned float64 of shape (8, 8, 1) and label 1"),
        ("image[..., 0], label", "returned uint8 of shape (8, 8) and label 1"),
        ("image, -1", "returned uint8 of shape (8, 8, 1) and label -1"),
        ("image", "returned ndarray and label None"),
    ],
)
def test_a_wrong_sample_is_named(folder, returned, message):
    (folder / "mydata.py").write_text(re.sub(r"return image .*", f"return {returned}", CODE))
    with pytest.raises(ValueError, match=re.escape(f"Stripes.load(1) {message}; it must return an image, uint8")):
        opened().reader.open(None, "train")[1]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("image / 2, label", "Stripes.load(0) returned float64 of shape (8, 8, 1)"),
        ("image.repeat(3, axis=2), label", "sample 0 of train has 3 channels, and the file of data set stripes"),
        ("image[:, 0, 0, 0, 0], label", "sample 0 of train cannot be loaded: IndexError: "),
    ],
    ids=["type", "channels", "error"],
)
def test_a_wrong_sample_is_refused_before_the_run(folder, kilobatch, returned, message):
    (folder / "mydata.py").write_text(re.sub(r"return image .*", f"return {returned}", CODE))
    changes = ("dataset=stripes.yaml", *(f"augmentation.{split}=[]" for split in ("train", "eval")))
    words = [word for change in changes for word in ("--set", change)]
    done = kilobatch("train", "digits/baseline", "--allow-code", *words, "--out", folder / "run", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (folder / "run").exists()


def test_a_class_without_split_is_refused(folder):
    (folder / "mydata.py").write_text(CODE.replace("split, num_train", "part, num_train"))
    with pytest.raises(RecipeError, match=r"or a class with __len__\(\), load\(index\) and the argument split"):
        opened()
