"""Class folders from ILSVRC 2012's archives and from Kaggle's files, in small; what is cut off, hostile or missing."""

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from recipes.reading.open import open_dataset
from trainers.datasets import Arrays, ImageFolder, Parquet, TarShards, shard_files
from trainers.datasets.held_out import open_split
from trainers.launch.vocabulary import vocabulary

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
COLORS = {"n00000012": (200, 0, 0), "n00000007": (0, 200, 0), "n02105855": (0, 0, 200)}  # in the order of their IDs
NUMBERS = dict.fromkeys(COLORS, (11, 5, 2933))
TRUTH = [3, 1, 2, 2, 3, 1]  # IDs of the evaluation images
NAMES = list(COLORS)


def encoded(color, kind="JPEG", mode="RGB"):
    file = io.BytesIO()
    Image.new("RGB", (12, 9), color).convert(mode).save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def image_of(name, number):
    """As in ImageNet one JPEG is a PNG, and some have printers' colours."""
    kind = "PNG" if (name, number) == ("n02105855", 2933) else "JPEG"
    return encoded(COLORS[name], kind, "CMYK" if number == 5 else "RGB")


def tar_of(files, mode="w"):
    """A tar of names and contents, or of whole members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = 0 if member is content else len(content)
            archive.addfile(member, None if member is content else io.BytesIO(content))
    return file.getvalue()


def class_tar(name, more=None):
    return tar_of({f"{name}_{n}.JPEG": image_of(name, n) for n in NUMBERS[name]} | (more or {}))


def val_files():
    return {f"ILSVRC2012_val_{n:08d}.JPEG": encoded(COLORS[NAMES[i - 1]]) for n, i in enumerate(TRUTH, 1)}


def devkit():
    kinds = [("ILSVRC2012_ID", "f8"), *((key, object) for key in ("WNID", "words")), ("num_children", "f8")]
    kinds += [("num_train_images", "f8")]
    rows = [(i, name, "a thing", 0, len(NUMBERS[name])) for i, name in enumerate(NAMES, 1)]
    file = io.BytesIO()
    savemat(file, {"synsets": np.array([*rows, (4, "n00001740", "entity", 3, 0)], dtype=kinds)})
    truth = "".join(f"{i}\n" for i in TRUTH).encode()
    files = {"data/meta.mat": file.getvalue(), "data/ILSVRC2012_validation_ground_truth.txt": truth}
    return tar_of({f"ILSVRC2012_devkit_t12/{name}": content for name, content in files.items()}, "w:gz")


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """The folder of the three archives, and beside it a file that says how many images they have."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "archives"
    folder.mkdir()
    (folder / TRAIN).write_bytes(tar_of({f"{name}.tar": class_tar(name) for name in NAMES}))
    (folder / VAL).write_bytes(tar_of(val_files()))
    (folder / DEVKIT).write_bytes(devkit())
    counts = "num_train: 9\nnum_eval: 6\nnum_classes: 3\nchannels: 3\n"
    (tmp_path / "small.yaml").write_text(f"reader: {{kind: ImageFolder}}\n{counts}")
    return folder


@pytest.fixture
def kaggle(archives, tmp_path):
    folder = tmp_path / "kaggle"
    images = folder / "ILSVRC" / "Data" / "CLS-LOC"
    (images / "val").mkdir(parents=True)
    for name in NAMES:
        (images / "train" / name).mkdir(parents=True)
        for number in NUMBERS[name]:
            (images / "train" / name / f"{name}_{number}.JPEG").write_bytes(image_of(name, number))
    for name, content in val_files().items():
        (images / "val" / name).write_bytes(content)
    lines = [f"{Path(name).stem},{NAMES[i - 1]} 1 2 30 40 \n" for name, i in zip(val_files(), TRUTH, strict=True)]
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(lines[::-1]))
    return folder


@pytest.fixture
def prepare(monkeypatch, capsys):
    """Runs the command in this process: (exit code, its output)."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import prepare_imagenet

    def run(source, root="root", *words):
        monkeypatch.setattr(sys, "argv", ["prepare", str(source), str(root), "--dataset", "small.yaml", *words])
        code = prepare_imagenet.main()
        return code, "".join(capsys.readouterr())

    return run


def require_right(root):
    """Each image has the colour of the class that the reader gives it, in both splits."""
    colors = [COLORS[name] for name in sorted(COLORS)]
    for split, count in (("train", 9), ("eval", 6)):
        samples = ImageFolder().open(Path(root), split)
        assert len(samples) == count
        for image_HWC, label in (samples[index] for index in range(count)):
            np.testing.assert_allclose(image_HWC.mean((0, 1)), colors[label], atol=3)
    assert sorted(name for name in os.listdir(root) if not name.startswith(".kilobatch-index")) == ["train", "val"]


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_archives_become_class_folders_and_stay_as_they_are(archives, prepare):
    before = files_below(archives)
    code, output = prepare(archives)
    assert code == 0, output
    require_right("root")
    assert files_below(archives) == before
    assert "9 + 6 images of 3 classes are there" in output
    assert "kilobatch train RECIPE --data root" in output


def test_a_finished_folder_needs_no_source_and_is_checked_again(archives, prepare):
    assert prepare(archives)[0] == 0
    assert prepare("nowhere")[0] == 0
    next(Path("root/val/n00000007").iterdir()).unlink()
    code, output = prepare("nowhere")
    assert code == 2
    assert "says num_eval: 6, and there are 5" in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 4)])
def test_killed_in_the_middle_the_same_command_goes_on(archives, prepare, number, code):
    files = {f"n00000007_{n}.JPEG": b"x" for n in range(4000)}
    (archives / TRAIN).write_bytes(tar_of({"n00000012.tar": class_tar("n00000012"), "n00000007.tar": tar_of(files)}))
    words = [sys.executable, SCRIPTS / "prepare_imagenet.py", archives, "root", "--dataset", "small.yaml"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    half = Path("root/.train.part/.half")
    while process.poll() is None and len(next(os.walk(half), [()])[-1]) < 10:  # the second class
        time.sleep(0.002)
    process.send_signal(number)
    output = process.communicate(timeout=60)[1]
    assert process.returncode == code, output
    assert os.listdir("root") == [".train.part"]
    whole = Path("root/.train.part/n00000012")
    assert set(os.listdir(half.parent)) == {".half", whole.name}
    kept = whole.stat().st_ino

    (archives / TRAIN).write_bytes(tar_of({f"{name}.tar": class_tar(name) for name in NAMES}))
    code, output = prepare(archives)
    assert code == 0, output
    require_right("root")
    assert Path("root/train/n00000012").stat().st_ino == kept


def test_an_archive_that_is_cut_off_is_named_and_the_whole_one_goes_on(archives, prepare):
    whole = {name: (archives / name).read_bytes() for name in (TRAIN, VAL)}
    for name, code, left in ((TRAIN, 2, None), (VAL, 3, [".val.part", "train"])):
        (archives / name).write_bytes(whole[name][: len(whole[name]) // 2])
        exit_code, output = prepare(archives)
        assert (exit_code, name in output, "fetch it again" in output) == (code, True, True), output
        assert (sorted(os.listdir("root")) if Path("root").exists() else None) == left
        (archives / name).write_bytes(whole[name])
    done = {path: path.stat().st_ino for path in Path("root/.val.part").rglob("*.JPEG")}
    assert done
    assert prepare(archives)[0] == 0
    require_right("root")
    assert {Path("root/val", *path.parts[2:]).stat().st_ino for path in done} == set(done.values())


def test_missing_images_are_counted_class_by_class(archives, prepare):
    short = tar_of({"n00000007_5.JPEG": image_of("n00000007", 5)})
    (archives / TRAIN).write_bytes(tar_of({"n00000012.tar": class_tar("n00000012"), "n00000007.tar": short}))
    code, output = prepare(archives)
    assert code == 3
    assert "4 images in 2 classes, where there should be 9 in 3 (n00000007 1 of 3, n02105855 0 of 3)" in output
    assert "fetch it again, remove root/.train.part, then the same command goes on" in output
    assert not Path("root/train").exists()


def member(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


HOSTILE = [
    {"../n00000007_1.JPEG": b"x"},
    {"/n00000007_1.JPEG": b"x"},
    {"n00000007_1.JPEG/../../../../evil": b"x"},
    {"n00000012_1.JPEG": b"x"},
    {"n00000007_1.sh": b"x"},
    {"link": member("n00000007_1.JPEG", tarfile.SYMTYPE, "/etc/passwd")},
    {"link": member("n00000007_1.JPEG", tarfile.LNKTYPE, "n00000007_11.JPEG")},
    {"device": member("n00000007_1.JPEG", tarfile.CHRTYPE)},
    {"fifo": member("n00000007_1.JPEG", tarfile.FIFOTYPE)},
]


@pytest.mark.parametrize("more", HOSTILE, ids=lambda more: next(iter(more)))
def test_hostile_members_of_a_class_are_refused_by_name(archives, prepare, tmp_path, more):
    (archives / TRAIN).write_bytes(tar_of({"n00000007.tar": class_tar("n00000007", more)}))
    before = files_below(tmp_path)
    code, output = prepare(archives)
    assert code == 3, output
    assert f"{archives / TRAIN}: " in output
    written = [name for name in files_below(tmp_path) if name not in before]
    assert {Path(name).parent.as_posix() for name in written} <= {"root/.train.part/.half"}
    assert not Path("root/train").exists()


@pytest.mark.parametrize("name", ["../n00000007.tar", "n00000007/../../evil.tar", "notes.txt"])
def test_hostile_or_strange_members_of_the_archive_are_refused_before_anything_is_written(archives, prepare, name):
    (archives / TRAIN).write_bytes(tar_of({name: class_tar("n00000007")}))
    code, output = prepare(archives)
    assert (code, Path("root").exists()) == (2, False), output
    assert "is no class's name such as n01440764" in output


def test_strange_evaluation_images_are_refused(archives, prepare):
    (archives / VAL).write_bytes(tar_of({"../ILSVRC2012_val_00000001.JPEG": b"x"}))
    code, output = prepare(archives)
    assert code == 3
    assert "'../ILSVRC2012_val_00000001.JPEG', which the devkit does not list" in output
    assert not Path("root/.val.part/ILSVRC2012_val_00000001.JPEG").exists()


def test_missing_and_wrong_sources_are_refused_with_the_way_to_them(archives, prepare):
    for content, message in (
        (None, f"holds no {DEVKIT}"),
        (b"no archive", "damaged or cut off"),
        (tar_of({"data/meta.mat": b"no matrix"}, "w:gz"), "it is not the devkit of tasks 1 and 2"),
    ):
        (archives / DEVKIT).unlink() if content is None else (archives / DEVKIT).write_bytes(content)
        code, output = prepare(archives)
        assert (code, message in output, "--help" in output or "fetch it again" in output) == (2, True, True), output
    assert not Path("root").exists()


def test_a_source_of_one_split_is_refused_by_what_it_lacks(archives, prepare, tmp_path):
    (tmp_path / "photos/train/cat").mkdir(parents=True)
    (tmp_path / "photos/train/cat/1.jpg").touch()
    for words in ((), ("--format", "tar")):
        code, output = prepare(tmp_path / "photos", "root", *words)
        assert (code, "photos: has train/*/*, and no val/*/*; ImageFolder needs both" in output) == (2, True), output
    assert not Path("root").exists()


@pytest.mark.parametrize(("form", "reader"), [("tar", TarShards(eval=None)), ("folder", ImageFolder(eval=None))])
@pytest.mark.parametrize("keys", ["", ", train: '.', eval: null"])
def test_where_samples_are_held_out_one_split_is_enough(archives, prepare, form, reader, keys):
    assert prepare(archives, "photos")[0] == 0
    shutil.rmtree("photos/val")
    if keys:
        Path("photos/train").rename("classes")
        shutil.rmtree("photos")
        Path("classes").rename("photos")
    lines = ["name: small", "root: photos", "channels: 3", "validation: {fraction: 0.3}"]
    Path("small.yaml").write_text("\n".join([f"reader: {{kind: ImageFolder{keys}}}", *lines]))
    code, output = prepare("photos", "root", "--format", form, "--workers", "1")
    assert code == 0, output
    ours, theirs = (open_dataset(name, vocabulary=vocabulary()) for name in ("root/small.yaml", "small.yaml"))
    assert (ours.reader, ours.validation, ours.num_train, ours.num_eval) == (reader, theirs.validation, 7, 2)
    for split in ("train", "eval"):
        samples, others = (open_split(dataset, split) for dataset in (ours, theirs))
        assert [samples.encoded(index) for index in range(len(samples))] == [
            others.encoded(index) for index in range(len(others))
        ]


def test_parquet_without_pyarrow_is_refused_before_anything_is_written(archives, prepare, monkeypatch):
    monkeypatch.setattr(shard_files, "find_spec", lambda name: None)
    code, output = prepare(archives, "root", "--format", "parquet")
    assert (code, "Parquet is written with pyarrow; pip install" in output) == (2, True), output
    assert not Path("root").exists()


def test_two_commands_do_not_fill_the_same_folder(archives, prepare):
    Path("root").mkdir()
    held = os.open("root", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    code, output = prepare(archives)
    os.close(held)
    assert (code, "another of these commands is at work there" in output) == (2, True)
    assert prepare(archives)[0] == 0


def test_of_kaggles_files_hard_links_are_made_and_nothing_is_changed(kaggle, prepare):
    before = files_below(kaggle)
    code, output = prepare(kaggle)
    assert code == 0, output
    require_right("root")
    assert files_below(kaggle) == before
    assert "hard links to its images are made" in output
    assert {path.stat().st_nlink for path in Path("root").rglob("*.JPEG")} == {2}


def test_kaggles_files_are_moved_on_request_and_then_never_told_to_be_removed(kaggle, prepare):
    file = kaggle / "ILSVRC" / "Data" / "CLS-LOC" / "train" / "n00000007" / "n00000007_5.JPEG"
    content = file.read_bytes()
    file.unlink()
    code, output = prepare(kaggle, "root", "--move")
    assert (code, "remove" in output, "put what is missing into root/.train.part, then" in output) == (3, False, True)
    Path("root/.train.part/n00000007/n00000007_5.JPEG").write_bytes(content)
    code, output = prepare(kaggle, "root", "--move")
    assert (code, "its images are moved away" in output) == (0, True)
    require_right("root")
    assert list(files_below(kaggle)) == ["LOC_val_solution.csv"]


def test_kaggles_own_folder_and_unknown_images_are_refused(kaggle, prepare):
    images = kaggle / "ILSVRC" / "Data" / "CLS-LOC"
    code, output = prepare(kaggle, images)
    assert (code, "Kaggle's own folder of images" in output) == (2, True)
    (images / "val" / "holiday.JPEG").write_bytes(b"x")
    code, output = prepare(kaggle)
    assert (code, f"{images}/val/holiday.JPEG: LOC_val_solution.csv has no class of it" in output) == (3, True)
    (images / "val" / "holiday.JPEG").unlink()
    assert prepare(kaggle)[0] == 0
    require_right("root")


FORMS = [("tar", TarShards()), ("parquet", Parquet()), ("arrays", Arrays()), ("folder", ImageFolder())]


def of_colors(reader, root):
    """The class of each image by its colour, and by its label, in both splits."""
    colors = np.array([COLORS[name] for name in sorted(COLORS)])
    for split, count in (("train", 9), ("eval", 6)):
        samples = reader.open(Path(root), split)
        assert len(samples) == count
        for image_HWC, label in (samples[index] for index in range(count)):
            np.testing.assert_allclose(image_HWC.mean((0, 1)), colors[label], atol=4)


@pytest.mark.parametrize("kind", ["archives", "kaggle"])
@pytest.mark.parametrize(("form", "reader"), FORMS, ids=[form for form, _ in FORMS])
def test_a_download_becomes_each_form_and_is_trained_by_its_file(request, prepare, kind, form, reader):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="an extra: pip install '.[parquet]'")
    source = request.getfixturevalue(kind)
    before = files_below(source)
    words = ["--format", form, "--workers", "1", "--shorter", "9"]
    code, output = prepare(source, "root", *words)
    assert code == 0, output
    assert files_below(source) == before
    of_colors(reader, "root")
    assert "to train on them: kilobatch train recipe --set dataset=root/small.yaml" in output.lower()
    dataset = open_dataset("root/small.yaml", vocabulary=vocabulary())
    assert (dataset.name, dataset.reader, dataset.num_train) == ("small", reader, 9)
    assert "shorter side" in dataset.title
    of_colors(dataset.reader, dataset.root)

    code, output = prepare("nowhere", "root", *words)
    assert (code, "all is written; comparing it with manifest.jsonl" in output) == (0, True), output


def test_unchanged_copies_of_archives_have_the_bytes_and_order_of_class_folders(archives, prepare):
    assert prepare(archives, "folders")[0] == 0
    assert prepare(archives, "shards", "--format", "tar", "--per-shard", "4", "--workers", "2")[0] == 0
    for split in ("train", "eval"):
        samples, others = ImageFolder().open(Path("folders"), split), TarShards().open(Path("shards"), split)
        assert [samples.encoded(index) for index in range(len(samples))] == [
            others.encoded(index) for index in range(len(others))
        ]
        assert samples.labels.tolist() == others.labels.tolist()


@pytest.mark.parametrize("kind", ["archives", "kaggle"])
def test_a_class_without_an_evaluation_image_is_refused(request, prepare, archives, kind):
    source, odd = request.getfixturevalue(kind), "n09999999"
    if kind == "kaggle":
        folder = source / "ILSVRC/Data/CLS-LOC/train" / odd
        folder.mkdir()
        (folder / f"{odd}_1.JPEG").write_bytes(image_of(NAMES[0], 1))
    else:
        own = tar_of({f"{odd}_1.JPEG": image_of(NAMES[0], 1)})
        (source / TRAIN).write_bytes(tar_of({f"{name}.tar": class_tar(name) for name in NAMES} | {f"{odd}.tar": own}))
    code, output = prepare(source, "root", "--format", "tar")
    assert (code, f"no evaluation image has class {odd}" in output, Path("root").exists()) == (2, True, False)


def test_counts_are_compared_before_a_form_is_written(archives, prepare):
    files = {name: content for name, content in val_files().items() if "00000006" not in name}
    (archives / VAL).write_bytes(tar_of(files))
    code, output = prepare(archives, "root", "--format", "tar")
    assert (code, Path("root").exists()) == (2, False)
    assert "5 images in eval, where there should be 6; fetch it again" in output


def test_wrong_options_are_refused(archives, prepare):
    code, output = prepare(archives, "root", "--format", "tar", "--move")
    assert (code, "--move is for class folders of Kaggle's images" in output) == (2, True)
    code, output = prepare(archives, archives)
    assert (code, "the folder of the source; name another ROOT" in output) == (2, True)


@pytest.mark.slow
def test_killed_while_shards_are_written_the_same_command_goes_on(archives, prepare):
    files = {f"n00000007_{n}.JPEG": image_of("n00000007", n) for n in range(4000)}
    (archives / TRAIN).write_bytes(tar_of({f"{n}.tar": tar_of(files) if "07" in n else class_tar(n) for n in NAMES}))
    Path("small.yaml").write_text(Path("small.yaml").read_text().replace("num_train: 9", "num_train: 4006"))
    options = ["--format", "tar", "--shorter", "8", "--per-shard", "100", "--workers", "1"]
    words = [sys.executable, SCRIPTS / "prepare_imagenet.py", archives, "root", "--dataset", "small.yaml", *options]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    while process.poll() is None and not Path("root/train-00003.tar").exists():
        time.sleep(0.002)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -9
    kept = Path("root/train-00002.tar").stat().st_ino
    assert not Path("root/val-00000.tar").exists()
    code, output = prepare(archives, "root", *options)
    assert code == 0, output
    assert Path("root/train-00002.tar").stat().st_ino == kept
    assert len(TarShards().open(Path("root"), "train")) == 4006


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shorter", "7"], "begun with images 'shorter side at most 9, "),
        (["--shorter", "9", "--format", "arrays"], "form 'tar', now 'arrays'"),
        (["--shorter", "9", "--per-shard", "5"], "per_chunk 10000, now 5"),
        (None, "now 'the archives of ILSVRC 2012 in other'"),
    ],
    ids=["shorter", "format", "per shard", "source"],
)
def test_a_finished_folder_is_not_taken_for_another_conversion(archives, prepare, words, message):
    assert prepare(archives, "root", "--format", "tar", "--shorter", "9", "--workers", "1")[0] == 0
    before, source = files_below("root"), archives
    if words is None:
        words, source = ["--shorter", "9"], Path("other")
        source.mkdir()
    code, output = prepare(source, "root", "--format", "tar", *words)
    assert (code, message in output) == (2, True), output
    assert files_below("root") == before


def test_the_file_that_is_written_describes_the_same_data(archives, prepare):
    assert prepare(archives, "folders")[0] == 0
    lines = ["name: small", "subset_of: imagenet", "reader: {kind: ImageFolder, channels: 1}", "channels: 1"]
    lines += ["num_train: 9", "num_eval: 6", "num_classes: 3", "mean: [0.5]", "std: [0.2]"]
    Path("small.yaml").write_text("\n".join([*lines, "on_bad_image: {stop_after: 2}"]))
    for form, reader in (("tar", TarShards(channels=1)), ("arrays", Arrays())):
        code, output = prepare("folders", form, "--format", form, "--shorter", "9", "--workers", "1")
        assert code == 0, output
        ours, theirs = (open_dataset(name, vocabulary=vocabulary()) for name in (f"{form}/small.yaml", "small.yaml"))
        assert ours.reader == reader
        assert (ours.channels, ours.subset_of, ours.on_bad_image) == (1, "imagenet", theirs.on_bad_image)
        assert ours.reader.open(ours.root, "train")[0][0].shape == (9, 9 if form == "arrays" else 12, 1)
