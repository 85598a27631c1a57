"""Data sets and clusters from files, and what a reader counts itself."""

import pytest

from recipes.errors import RecipeError
from recipes.open import open_cluster, open_dataset
from trainers.vocabulary import vocabulary

FOLDER = "reader: {kind: ImageFolder}\nchannels: 1\nroot: pictures\n"


@pytest.fixture
def pictures(write):
    from PIL import Image

    write(FOLDER, "own.yaml")
    for split, count in (("train", 3), ("val", 2)):
        for label in ("no", "yes"):
            for number in range(count):
                path = write(b"", f"pictures/{split}/{label}/{number}.png")
                Image.new("L", (8, 8)).save(path)


@pytest.mark.usefixtures("pictures")
def test_reader_counts_what_the_file_does_not_say(tmp_path):
    dataset = open_dataset("own", vocabulary=vocabulary())
    assert (dataset.num_train, dataset.num_eval, dataset.num_classes) == (6, 4, 2)
    assert dataset.root.resolve() == tmp_path / "pictures"


@pytest.mark.usefixtures("pictures")
def test_data_root_replaces_the_folder(tmp_path):
    with pytest.raises(RecipeError, match=r"own.yaml:1:9: reader: cannot count: .*; give its folder with --data"):
        open_dataset("own", vocabulary=vocabulary(), data_root=tmp_path / "nowhere")


def test_facts_are_not_counted_where_they_are_given(write):
    write(FOLDER + "num_train: 9\nnum_eval: 3\nnum_classes: 2\n", "own.yaml")
    assert open_dataset("own", vocabulary=vocabulary()).num_train == 9


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_train: 0", "num_train: is 0; must be at least 1"),
        ("std: [0.0]", r"std: is \(0.0,\); must be above 0"),
        ("mean: [0.1, 0.2]", "mean needs one number for each of 1 channels"),
        ("reader: {kind: Imagenet}", "reader.kind: there is no data set reader called Imagenet"),
        ("num_trian: 3", "num_trian: is not a known key; did you mean num_train?"),
    ],
)
def test_wrong_facts_are_refused_in_their_file(write, line, message):
    known = {"num_train": 9, "num_eval": 3, "num_classes": 2, "channels": 1}
    known.pop(line.partition(":")[0], None)
    write("\n".join([*(f"{key}: {value}" for key, value in known.items()), line]), "own.yaml")
    with pytest.raises(RecipeError, match=rf"^own.yaml:\d+:\d+: .*{message}"):
        open_dataset("own.yaml", vocabulary=vocabulary())


def test_wrong_cluster_is_refused_in_its_file(write):
    write("name: c\nnodes: 0\nworkers_per_node: 2\ndevice: tpu\n", "c.yaml")
    with pytest.raises(RecipeError) as caught:
        open_cluster("c.yaml", vocabulary=vocabulary())
    assert [str(problem).split(";")[0] for problem in caught.value.problems] == [
        "c.yaml:1:1: device_memory_bytes: is missing",
        "c.yaml:4:9: device: is the text 'tpu'",
    ]
