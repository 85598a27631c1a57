"""Data at a URL: by a real S3 server, with the same samples and runs as from a folder."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from recipes.planning.stream import Stream
from trainers.augmentations import RandomResizedCrop
from trainers.augmentations.pipeline import Pipeline
from trainers.datasets import Arrays, Idx, ImageFolder, Parquet, TarShards, remote, staging
from trainers.datasets.augmented import AugmentedSamples
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes
from trainers.datasets.held_out import ChosenFiles, ChosenSamples
from trainers.datasets.inspection import dataset_of_folder
from trainers.datasets.loader import StreamIterator
from trainers.datasets.remote import CannotFetch, Mirror, mirror_of
from trainers.datasets.staging import Source, stage
from trainers.launch.preflight import require_readable
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.mpi_ranks import _OWN

KEY, SECRET = "AKIATESTTESTTEST", "s3cr3t-of-the-test"


def need(*packages):
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install .[remote] moto[server]")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(remote.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.01)
    remote._mirror.cache_clear()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 24 and 8 small JPEGs in two classes."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for name in ("ant", "bee"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def s3(images):
    """The URL of a bucket with these images, on a server that runs while the tests of this file do."""
    need("s3fs", "moto.server")
    import s3fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        until = time.monotonic() + 30
        while not answers(port):
            assert time.monotonic() < until
            time.sleep(0.05)
        files = s3fs.S3FileSystem()
        files.mkdir("images")
        files.put(f"{images}/", "images/set/", recursive=True)
        yield "s3://images/set"
    server.kill()
    server.wait()


def answers(port):
    with socket.socket() as asked:
        return not asked.connect_ex(("127.0.0.1", port))


@pytest.fixture(scope="module")
def forms(s3, images, tmp_path_factory):
    """Form -> its reader, a folder in that form, and the URL of a copy; Parquet also compressed."""
    need("pyarrow")
    import pyarrow.parquet
    import s3fs

    splits = {split: ImageFolder().open(images, split) for split in ("train", "eval")}
    source = SourceImages(name="a test", splits=splits, classes=names_of_classes(splits["train"]))
    found = {"folder": (ImageFolder(), images, s3)}
    for form, reader in (("tar", TarShards()), ("parquet", Parquet()), ("arrays", Arrays()), ("compressed", Parquet())):
        root = tmp_path_factory.mktemp(form)
        if form == "compressed":
            for path in (found["parquet"][1] / "data").iterdir():
                (root / "data").mkdir(exist_ok=True)
                table = pyarrow.parquet.read_table(path)
                pyarrow.parquet.write_table(table, root / "data" / path.name, compression="zstd", row_group_size=3)
        else:
            conversion = Conversion(form=form, per_chunk=10, shorter=36 if form == "arrays" else None)
            convert(source, root, conversion, workers=1, showing=lambda words, total: nullcontext(lambda count: None))
        s3fs.S3FileSystem().put(f"{root}/", f"images/{form}/", recursive=True)
        found[form] = reader, root, f"s3://images/{form}"
    return found


FORMS = ("folder", "tar", "parquet", "compressed", "arrays")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", ["1GB", "40KB"])
def test_samples_and_fingerprints_are_those_of_the_folder_in_a_cache_of_any_size(forms, form, size, monkeypatch):
    monkeypatch.setenv(remote.SIZE_VARIABLE, size)
    reader, root, url = forms[form]
    assert reader.facts(Path(url)) == reader.facts(root)
    assert reader.fingerprints(Path(url)) == reader.fingerprints(root)
    for split in ("train", "eval"):
        ours, theirs = reader.open(Path(url), split), reader.open(root, split)
        assert list(ours.labels) == list(theirs.labels)
        for index in range(len(theirs)):
            np.testing.assert_array_equal(ours[index][0], theirs[index][0])
    if hasattr(ours, "name_of"):
        assert ours.name_of(0) == theirs.name_of(0).replace(str(root), url)
    kept = [path.stat().st_size for path in ours.mirror.folder.rglob("*") if path.is_file() and path.name[0] != "."]
    assert sum(kept) < (10**9 if size == "1GB" else 46_000)


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_fetched_ahead_in_their_order_and_not_again(forms, form, monkeypatch):
    reader, root, url = forms[form]
    samples, theirs, wanted = reader.open(Path(url), "train"), reader.open(root, "train"), [17, 3, 8]
    folder, asked = samples.mirror.folder, []

    def fetched():
        return {path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".part")}

    before = fetched()
    samples.will_need(wanted)
    until = time.monotonic() + 20
    while len(fetched() - before) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    bring = Mirror._bring
    monkeypatch.setattr(Mirror, "_bring", lambda mirror, path, *what: asked.append(what) or bring(mirror, path, *what))
    for index in wanted:
        np.testing.assert_array_equal(samples[index][0], theirs[index][0])
    files = {name for name, _, _ in asked}
    assert len(asked) == len(files) * (form == "compressed")  # pyarrow reads the footer of each
    assert len(fetched() - before) == 3 + len(asked)


@pytest.mark.parametrize("holds_out", [False, True])
@pytest.mark.parametrize("form", ["tar", "arrays"])
def test_a_loader_asks_for_what_it_will_need(forms, form, holds_out, monkeypatch):
    reader, _, url = forms[form]
    whole, chosen, asked = reader.open(Path(url), "train"), np.arange(23, 3, -1), []
    samples, names = whole, range(len(whole))
    if holds_out:
        names, of_files = chosen, {"labels": whole.labels[chosen], "channels": 3} if form == "tar" else {}
        samples = (ChosenFiles if form == "tar" else ChosenSamples)(samples=whole, indices=chosen, **of_files)
    monkeypatch.setattr(Mirror, "will_need", lambda mirror, pieces: asked.extend(pieces))
    crop = (RandomResizedCrop(size=16),)
    numbers = {"name": "six", "mean": (0.5,) * 3, "std": (0.2,) * 3, "subset_of": ""}
    load = AugmentedSamples(samples, Pipeline(parts=crop, dataset=SimpleNamespace(**numbers), seed=0), "train")

    def iterator_of(batch):
        request = TrainRequest(recipe="digits/baseline", overrides=(f"batch={{global: {batch}, norm_span: {batch}}}",))
        stream = Stream(seed=0, num_samples=len(samples))
        return StreamIterator(plan=prepare(request, workers=1).plan, rank=0, stream=stream, load=load)

    iterator = iterator_of(8)
    seen = [index for part in next(iterator).micro_batches for index in part.indices.tolist()]
    following = [index for part in next(iterator).micro_batches for index in part.indices.tolist()]
    assert len(seen) == len(following) == 8
    pieces = [(whole._piece if form == "tar" else whole.images_NHWC.piece)(names[index]) for index in following]
    assert asked[:8] == pieces
    assert len(asked) > 400
    asked.clear()
    next(next(iterator_of(600)).micro_batches)
    assert len(asked) == 600  # of the second update, however large the first is


def test_before_a_run_no_image_is_fetched_to_be_checked(s3, images, monkeypatch):
    dataset = replace(dataset_of_folder(images), root=Path(s3))
    monkeypatch.setattr(Mirror, "_bring", None)
    require_readable(dataset)


def test_threads_that_need_the_same_bytes_fetch_them_once(forms, monkeypatch):
    samples, calls = TarShards().open(Path(forms["tar"][2]), "train"), []
    real = Mirror._get_range

    def counted(mirror, *what):
        calls.append(what)
        time.sleep(0.1)
        return real(mirror, *what)

    monkeypatch.setattr(Mirror, "_get_range", counted)
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(samples.encoded, [4] * 8))) == 1
    assert len(calls) == 1


def test_a_changed_file_is_fetched_anew(s3, monkeypatch):
    import s3fs

    monkeypatch.setattr(remote, "_LISTED_SECONDS", 0)
    for content in (b"before", b"behind"):
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().pipe("images/other/a.bin", content)
        mirror = Mirror("s3://images/other")
        assert mirror.read("a.bin") == content
        assert mirror.read("a.bin", 1, 3) == content[1:4]


@pytest.mark.mpi
def test_a_run_has_the_bits_of_one_from_the_folder_and_keeps_no_credentials(s3, images, tmp_path, kilobatch):
    facts = "name: six\nchannels: 3\nmean: [0.5, 0.5, 0.5]\nstd: [0.2, 0.2, 0.2]\nreader: {kind: ImageFolder}\n"
    (tmp_path / "six.yaml").write_text(f"{facts}root: {s3}\n")
    part = "{kind: RandomResizedCrop, size: 32}, {kind: Normalize, with: six}"
    words = ["train", "digits/large_batch", "--no-report", "--set", f"dataset={tmp_path / 'six.yaml'}"]
    words += ["--set", f"augmentation={{train: [{part}], eval: [{part}]}}", "--set", "learning_rate.warmup=null"]
    words += ["--set", "batch={global: 12, norm_span: 6}", "--set", "model.width=4", "--stop-after", "3up"]
    weights = []
    for number, (more, size) in enumerate(((["--data", str(images)], "1GB"), ([], "20KB"), ([], "20KB"))):
        run = tmp_path / f"run{number}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(remote.SIZE_VARIABLE, size)
            done = kilobatch(*words, "--out", run, *more, ranks=1 + number % 2, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        weights.append((run / "checkpoints" / "update-000003" / "weights.safetensors").read_bytes())
        written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
        assert not any(word.encode() in each for each in written for word in (KEY, SECRET))
    assert weights[0] == weights[1] == weights[2]
    assert "root: s3://images/set" in (tmp_path / "run1" / "dataset.yaml").read_text()


def test_credentials_in_a_url_are_refused_and_not_repeated(tmp_path, kilobatch):
    (tmp_path / "mine.yaml").write_text("name: mine\nreader: {kind: ImageFolder}\nroot: s3://key:secret@bucket/set\n")
    for words in (["data", "inspect", "mine.yaml"], ["data", "inspect", "imagenet", "--data", "s3://k:secret@b/s"]):
        done = kilobatch(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert "leave them to fsspec" in done.stderr
        assert "secret" not in done.stdout + done.stderr


def test_other_readers_have_a_whole_copy_and_refuse_what_the_cache_cannot_hold(s3, monkeypatch, tmp_path):
    import s3fs

    for split, count in (("train", 7), ("t10k", 4)):
        for part, shape in (("images-idx3", (count, 6, 5)), ("labels-idx1", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            (tmp_path / f"{split}-{part}-ubyte").write_bytes(header + bytes(np.prod(shape)))
    s3fs.S3FileSystem().put(f"{tmp_path}/", "images/idx/", recursive=True)
    assert len(Idx().open(Path("s3://images/idx"), "train")) == 7
    assert Idx().fingerprint(Path("s3://images/idx")) == Idx().fingerprint(tmp_path)
    remote._mirror.cache_clear()
    monkeypatch.setenv(remote.SIZE_VARIABLE, "200")
    with pytest.raises(InputRefused, match="the cache may have 200; .*KILOBATCH_CACHE_SIZE, or .*kilobatch data stage"):
        Idx().open(Path("s3://images/idx"), "train")


def test_a_staged_copy_is_the_data_and_other_bytes_of_the_same_size_are_found(s3, images, tmp_path):
    target, counted = tmp_path / "staged", []
    first = stage(Path(s3), target, done=counted.append)
    assert (first.num_files, first.num_copied, first.replaced, sum(counted)) == (32, 32, [], first.num_bytes)
    assert stage(Path(s3), target).num_copied == 0
    (target / "train" / "ant" / "3.jpg").write_bytes(b"cut off")
    other = target / "val" / "bee" / "2.jpg"
    other.write_bytes(other.read_bytes()[:-3] + b"???")
    again = stage(Path(s3), target)
    assert (again.num_copied, again.replaced) == (2, ["val/bee/2.jpg"])
    (target / staging.RECORD).unlink()  # as after a copy by another program: S3 names the MD5
    other.write_bytes(other.read_bytes()[:-3] + b"???")
    assert stage(Path(s3), target).replaced == ["val/bee/2.jpg"]
    assert ImageFolder().fingerprint(target) == ImageFolder().fingerprint(images)


def test_what_has_changed_at_the_url_is_staged_again(s3, tmp_path, monkeypatch):
    import s3fs

    monkeypatch.setattr(remote, "_JUST_NOW_SECONDS", 0)
    for content in (b"before", b"behind"):
        s3fs.S3FileSystem().pipe("images/changing/a.bin", content)
        s3fs.S3FileSystem.clear_instance_cache()
        mirror_of(Path("s3://images/changing"))._files.invalidate_cache()
        stage(Path("s3://images/changing"), tmp_path)
        assert (tmp_path / "a.bin").read_bytes() == content


@pytest.mark.parametrize("from_url", [True, False])
def test_a_file_that_was_cut_off_goes_on_behind_its_last_block(s3, images, tmp_path, monkeypatch, from_url):
    import s3fs

    monkeypatch.setattr(staging, "_BLOCK", 1000)
    source, content = tmp_path / "source", bytes(np.random.default_rng(1).integers(0, 256, 3500, dtype=np.uint8))
    source.mkdir()
    (source / "large.npy").write_bytes(content)
    s3fs.S3FileSystem().pipe("images/large/large.npy", content)
    root, real, asked = Path("s3://images/large") if from_url else source, Source.block, []

    def cut_off(one, name, start, size):
        asked.append(start)
        if asked == [0, 1000, 2000]:
            raise KeyboardInterrupt
        return real(one, name, start, size)

    monkeypatch.setattr(Source, "block", cut_off)
    with pytest.raises(KeyboardInterrupt):
        stage(root, tmp_path / "staged")
    counted = []
    assert stage(root, tmp_path / "staged", done=counted.append).num_copied == 1
    assert (asked, sum(counted)) == ([0, 1000, 2000, 2000, 3000], 3500)
    assert (tmp_path / "staged" / "large.npy").read_bytes() == content
    assert {path.name for path in (tmp_path / "staged").iterdir()} == {"large.npy", staging.RECORD}


@pytest.fixture
def at_url(tmp_path):
    """The URL of the folder `set`, which has the file a.bin."""
    need("fsspec")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin").write_bytes(b"before")
    return f"file://{tmp_path}/set"


def test_a_part_of_a_file_that_a_killed_process_left_is_removed(at_url, monkeypatch):
    monkeypatch.setenv(remote.SIZE_VARIABLE, "100")
    mirror = Mirror(at_url)
    parts = [mirror.folder / f".a.bin.{number}.part" for number in range(2)]
    for hours, part in enumerate(parts):
        part.write_bytes(bytes(50))
        os.utime(part, (time.time() - 7200 * hours,) * 2)
    mirror.read("a.bin")
    assert [part.exists() for part in parts] == [True, False]


def test_ranks_list_again_where_the_listing_on_their_host_is_of_another_day(at_url, tmp_path, monkeypatch):
    before = Mirror(at_url)
    (tmp_path / "set/a.bin").write_bytes(b"longer than before")
    monkeypatch.setenv(_OWN, "1")
    assert Mirror(before.url).sizes == {"a.bin": 6}  # that of the command that started them
    os.utime(before.folder / ".listing.json", (time.time() - 2 * 86_400,) * 2)
    assert Mirror(before.url).sizes == {"a.bin": 18}


def test_a_file_or_a_range_that_came_in_part_is_not_taken_for_whole(at_url, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    mirror = Mirror(at_url)
    (tmp_path / "set/a.bin").write_bytes(b"half")
    with pytest.raises(CannotFetch, match="4 of 6 bytes came"):
        mirror.fetch("a.bin")
    with pytest.raises(CannotFetch, match="1 of 2 bytes from byte 3 on came"):
        mirror.range("a.bin", 3, 2)


def test_a_file_of_the_cache_counts_only_if_it_is_whole(at_url):
    mirror = Mirror(at_url)
    (mirror.folder / "a.bin").write_bytes(b"be")
    assert mirror.read("a.bin") == b"before"
    assert mirror.read("a.bin", 1, 3) == b"efo"
    (mirror.folder / remote._RANGES / "a.bin" / "1").write_bytes(b"e")
    assert mirror.read("a.bin", 1, 3) == b"efo"


def test_a_file_whose_name_leads_out_of_the_cache_is_refused():
    need("fsspec")
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/bucket/a.bin", b"before")
    files.store["/bucket/../outside"] = files.store.pop("/bucket/a.bin")
    with pytest.raises(InputRefused, match=r"\.\./outside: leads out of the root"):
        Mirror("memory://bucket")
    files.store.clear()


def test_a_drivers_message_hides_secrets_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    assert remote._cause(OSError("403 for hush-hush")) == "OSError: 403 for ***"


def test_hdfs_says_what_it_lacks():
    need("fsspec", "pyarrow")
    with pytest.raises(InputRefused, match="hdfs://nowhere:8020/set: cannot be opened .*(JVM|libhdfs|libjvm|HADOOP)"):
        Mirror("hdfs://nowhere:8020/set")


@pytest.mark.slow  # its driver has retries of its own
def test_gcs_that_cannot_be_reached_is_named(monkeypatch):
    need("gcsfs")
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises((CannotFetch, InputRefused), match="gs://nowhere/set"):
        Mirror("gs://nowhere/set")


def test_a_folder_is_no_url(tmp_path):
    assert mirror_of(tmp_path) is None
    assert mirror_of(None) is None
