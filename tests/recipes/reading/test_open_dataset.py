"""Data sets and clusters from files, and what a reader counts itself."""

import re

import pytest

from recipes.errors import RecipeError
from recipes.planning.cluster import GradientExchange
from recipes.reading.load import overrides_by_file
from recipes.reading.open import open_cluster, open_dataset
from trainers.communicators import Ring
from trainers.launch.vocabulary import vocabulary

FOLDER = "reader: {kind: ImageFolder, channels: 1}\nchannels: 1\nroot: pictures\n"


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
    message = r"own.yaml:1:9: reader: cannot count: .*; give another folder with --data"
    with pytest.raises(RecipeError, match=f"{message}, or write num_train here to plan$"):
        open_dataset("own", vocabulary=vocabulary(), data_root=tmp_path / "nowhere")
    with pytest.raises(RecipeError, match=f"{message}$"):  # something is there
        open_dataset("own", vocabulary=vocabulary(), data_root=tmp_path / "pictures/train")


def test_facts_are_not_counted_where_they_are_given(write):
    write(FOLDER + "num_train: 9\nnum_eval: 3\nnum_classes: 2\n", "own.yaml")
    assert open_dataset("own", vocabulary=vocabulary()).num_train == 9


SOURCES = "sources: [{debian: some-data, folder: /usr/share/some}]"


def test_a_data_set_that_is_not_obtained_may_have_any_name(write):
    write(FOLDER + "name: my photos\nnum_train: 9\nnum_eval: 3\nnum_classes: 2\n", "own.yaml")
    assert open_dataset("own.yaml", vocabulary=vocabulary()).name == "my photos"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_train: 0", "num_train: is 0; must be at least 1"),
        (
            "mean: [124]",
            r"mean: is \(124\.0,\); must be from 0 to 1, of pixel values scaled to 0\.\.1: divide those of",
        ),
        ("std: [58.4]", r"std: is \(58\.4,\); must be from 0 to 1, of pixel values"),
        ("std: [0.0]", r"std: is \(0.0,\); must be above 0"),
        ("mean: [0.1, 0.2]", "mean: is a list of 2; must be one number a channel, 1 in all"),
        ("reader: {kind: Imagenet}", "reader.kind: there is no data set reader called Imagenet"),
        (f"name: ../../..\n{SOURCES}", "name: '../../..' cannot name a folder, .*; write a `name:` of the letters"),
        (f"name: a/b\n{SOURCES}", "name: 'a/b' cannot name a folder"),
        ("num_trian: 3", "num_trian: is not a known key; did you mean num_train?"),
    ],
)
def test_wrong_facts_are_refused_in_their_file(write, line, message):
    known = {"num_train": 9, "num_eval": 3, "num_classes": 2, "channels": 1}
    known.pop(line.partition(":")[0], None)
    write("\n".join([*(f"{key}: {value}" for key, value in known.items()), line]), "own.yaml")
    with pytest.raises(RecipeError, match=rf"^own.yaml:\d+:\d+: .*{message}"):
        open_dataset("own.yaml", vocabulary=vocabulary())


@pytest.mark.parametrize("reader", ["{kind: ImageFolder}", "{kind: ImageFolder, channels: 2}", "{kind: mine.Own}"])
def test_beside_a_validation_a_reader_that_cannot_count_is_the_only_problem(write, reader):
    write(f"reader: {reader}\nchannels: 3\nroot: nowhere\nvalidation: {{fraction: 0.1}}\n", "own.yaml")
    with pytest.raises(RecipeError) as caught:
        open_dataset("own.yaml", vocabulary=vocabulary(), allow_code=None)
    (problem,) = caught.value.problems
    assert problem.path.startswith("reader")


def test_of_a_wrong_reader_what_it_would_count_is_not_called_missing(write):
    write("reader: {kind: Digits, num_eval: 0}\nchannels: 1\n", "own.yaml")
    with pytest.raises(RecipeError) as caught:
        open_dataset("own.yaml", vocabulary=vocabulary())
    assert [problem.path for problem in caught.value.problems] == ["reader.num_eval"]


def test_what_a_reader_of_own_code_would_count_is_not_called_missing_where_no_code_is_run(write):
    write("reader: {kind: mydata.Stripes}\nchannels: 1\n", "own.yaml")
    with pytest.raises(RecipeError) as caught:
        open_dataset("own.yaml", vocabulary=vocabulary(), allow_code=None)
    (problem,) = caught.value.problems
    assert str(problem).startswith("own.yaml:1:16: reader.kind: mydata.Stripes is code of your own, and counts the sam")


GREY = "reader: {kind: ImageFolder}\nchannels: 1\nnum_train: 9\nnum_eval: 3\nnum_classes: 2\n"


def test_a_reader_gives_as_many_channels_as_the_file_says_unless_it_has_its_own(write):
    write(GREY, "own.yaml")
    dataset = open_dataset("own.yaml", vocabulary=vocabulary())
    assert dataset.reader.channels == 1
    write(GREY.replace("channels: 1", "channels: 4"), "own.yaml")
    with pytest.raises(RecipeError, match="own.yaml:1:9: reader.channels: is 4; must be 1 or 3"):
        open_dataset("own.yaml", vocabulary=vocabulary())


def test_a_reader_whose_images_have_other_channels_than_the_file_says_is_refused(write):
    write(GREY.replace("Folder", "Folder, channels: 3"), "own.yaml")
    message = "own.yaml:2:11: channels: is 1, and ImageFolder gives images of 3; write channels: 1 in `reader` too, "
    with pytest.raises(RecipeError, match=message):
        open_dataset("own.yaml", vocabulary=vocabulary())


def test_wrong_cluster_is_refused_in_its_file(write):
    write("name: c\nnodes: 0\nworkers_per_node: 2\ndevice: tpu\n", "c.yaml")
    with pytest.raises(RecipeError) as caught:
        open_cluster("c.yaml", vocabulary=vocabulary())
    assert [str(problem).split(";")[0] for problem in caught.value.problems] == [
        "c.yaml:1:1: device_memory_bytes: is missing",
        "c.yaml:4:9: device: is the text 'tpu'",
    ]


CLUSTER = "name: c\nnodes: 1\nworkers_per_node: 2\ndevice: cpu\ndevice_memory_bytes: 1\n"


def test_overrides_change_a_cluster_where_its_file_says_nothing_and_where_it_does(write):
    write(CLUSTER + "exchange: {wire: bfloat16, overlap: false}\n", "c.yaml")
    words = ("cluster.exchange.wire=float16", "cluster.exchange.communicator={kind: Ring}", "cluster.nodes=3")
    cluster = open_cluster("c.yaml", vocabulary=vocabulary(), overrides=words)
    assert cluster.exchange == GradientExchange(communicator=Ring(), wire="float16", overlap=False)
    assert cluster.num_workers == 6


def test_overrides_for_the_recipe_leave_the_cluster_alone(write):
    own, of_cluster = overrides_by_file([" cluster.nodes=2", "seed=1", "clusters=3", "cluster"])
    assert own == (None, "seed=1", "clusters=3", None)
    assert of_cluster == (" cluster.nodes=2", None, None, "cluster")
    write(CLUSTER, "c.yaml")
    assert open_cluster("c.yaml", vocabulary=vocabulary(), overrides=[None, None]).num_workers == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.exchange.wire=float8", "command line:2:23: exchange.wire: is the text 'float8'"),
        ("cluster.exchange.wir=float16", "command line:2:1: exchange.wir: is not a known key; did you mean wire?"),
        ("cluster.exchange.communicator={kind: Rign}", "command line:2:38: exchange.communicator.kind: there is no"),
        ("cluster.exchange.bucket_bytes=0", "command line:2:31: exchange.bucket_bytes: is 0; must be"),
        ("cluster.nodes", "command line:2:1: --set cluster.nodes is no assignment"),
        ("cluster=mn1", "command line:2:1: cluster: cannot be set as a whole; give the file with --cluster"),
        ("cluster.kilobatch=2", "command line:2:1: kilobatch: cannot be set"),
    ],
)
def test_wrong_override_of_a_cluster_names_the_option_and_the_place_in_it(write, override, message):
    write(CLUSTER, "c.yaml")
    with pytest.raises(RecipeError, match=re.escape(message)):
        open_cluster("c.yaml", vocabulary=vocabulary(), overrides=[None, override])
