"""Data at a URL: by a real S3 server and real HTTP servers, with the same samples and runs as from a folder."""

import http.server
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from trainers.datasets import ImageFolder, TarShards, remote
from trainers.datasets.remote import CannotFetch, Mirror, mirror_of, stage

for package in ("fsspec", "s3fs", "moto.server", "gcsfs"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install kilobatch[remote] moto[server]")

KEY, SECRET = "AKIATESTTESTTEST", "s3cr3t-of-the-test"


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


def test_samples_and_fingerprints_are_those_of_the_folder(s3, images):
    url, reader = Path(s3), ImageFolder()
    assert reader.facts(url) == reader.facts(images)
    assert reader.fingerprints(url) == reader.fingerprints(images)
    for split in ("train", "eval"):
        ours, theirs = reader.open(url, split), reader.open(images, split)
        assert list(ours.labels) == list(theirs.labels)
        for index in range(len(theirs)):
            np.testing.assert_array_equal(ours[index][0], theirs[index][0])
    assert ours.name_of(0) == f"{s3}/val/ant/0.jpg"


def test_a_cache_that_is_too_small_keeps_within_its_size_and_gives_all(s3, images, monkeypatch):
    monkeypatch.setenv(remote.SIZE_VARIABLE, "10 KB")
    samples, whole = ImageFolder().open(Path(s3), "train"), ImageFolder().open(images, "train")
    folder = samples.mirror.folder
    for _ in range(2):
        for index in range(len(whole)):
            assert samples.encoded(index) == whole.encoded(index)
            assert sum(path.stat().st_size for path in folder.rglob("*.jpg")) < 13_000


def test_files_are_fetched_ahead_in_their_order(s3):
    samples = ImageFolder().open(Path(s3), "train")
    samples.will_need(range(5, 9))
    until = time.monotonic() + 20
    while len(found := [path for path in samples.folder.rglob("*.jpg") if not path.name.startswith(".")]) < 4:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert {path.relative_to(samples.folder).as_posix() for path in found} == {samples.paths[i] for i in range(5, 9)}


def test_a_changed_file_is_fetched_anew(s3, monkeypatch):
    import s3fs

    monkeypatch.setattr(remote, "_LISTED_SECONDS", 0)
    for content in (b"before", b"behind"):
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().pipe("images/other/a.bin", content)
        assert Mirror("s3://images/other").read("a.bin") == content


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


def test_other_readers_have_a_whole_copy_and_refuse_what_the_cache_cannot_hold(s3, images, monkeypatch, tmp_path):
    import s3fs

    for split in ("train", "val"):
        names = sorted(path.relative_to(images / split) for path in (images / split).rglob("*.jpg"))
        subprocess.run(["tar", "-C", images / split, "-cf", tmp_path / f"{split}-0.tar", *names], check=True)
        s3fs.S3FileSystem().put(str(tmp_path / f"{split}-0.tar"), f"images/tars/{split}-0.tar")
    assert len(TarShards().open(Path("s3://images/tars"), "train")) == 24
    assert TarShards().fingerprints(Path("s3://images/tars")) == TarShards().fingerprints(tmp_path)
    remote._mirror.cache_clear()
    monkeypatch.setenv(remote.SIZE_VARIABLE, "1KB")
    with pytest.raises(
        InputRefused, match="the cache may have 1,000; .*KILOBATCH_CACHE_SIZE, or .*kilobatch data stage"
    ):
        TarShards().open(Path("s3://images/tars"), "train")


def test_a_staged_copy_is_the_data_and_goes_on_where_it_was_cut_off(s3, images, tmp_path):
    target, counted = tmp_path / "staged", []
    number, num_bytes = stage(Path(s3), target, done=counted.append)
    assert (number, sum(counted)) == (32, num_bytes)
    (target / "train" / "ant" / "3.jpg").write_bytes(b"cut off")
    written = {path: path.stat().st_mtime_ns for path in target.rglob("*.jpg")}
    assert stage(Path(s3), target) == (32, num_bytes)
    again = [path.name for path, before in written.items() if path.stat().st_mtime_ns != before]
    assert again == ["3.jpg"]
    assert ImageFolder().fingerprint(target) == ImageFolder().fingerprint(images)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves files of 100 bytes: `good`, `flaky` (which fails twice), `broken` and `stalled` (which sends nothing)."""

    seen: ClassVar[dict[str, int]] = {}

    def do_GET(self):
        name = self.path.removeprefix("/set").strip("/")
        self.seen[name] = self.seen.get(name, 0) + 1
        if name == "stalled":
            time.sleep(3)
        if name == "broken" or (name == "flaky" and self.seen[name] < 3):
            self.send_error(503)
            return
        links = "".join(f'<a href="{each}">{each}</a>' for each in ("good", "flaky", "broken", "stalled"))
        data = bytes(100) if name else links.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def http_mirror():
    Server.seen.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Mirror(f"http://127.0.0.1:{server.server_port}/set/")
    server.shutdown()
    server.server_close()


def test_a_server_that_fails_is_asked_again_and_then_named(http_mirror):
    assert http_mirror.read("good") == http_mirror.read("flaky") == bytes(100)
    assert Server.seen["flaky"] == 3
    with pytest.raises(CannotFetch, match="/set/broken: cannot be read after 5 attempts .*503"):
        http_mirror.read("broken")
    assert Server.seen["broken"] == 5


def test_a_server_that_stalls_is_given_up(http_mirror, monkeypatch):
    monkeypatch.setattr(remote, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with pytest.raises(CannotFetch, match="/set/stalled: cannot be read after 2 attempts .*no byte came for 0.3 s"):
        http_mirror.read("stalled")


def test_a_server_that_stalls_before_it_lists_is_given_up(monkeypatch):
    monkeypatch.setattr(remote, "STALLED_SECONDS", 0.03)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(CannotFetch, match="/set: cannot be read after 2 attempts .*no byte came for 0.3 s"):
            Mirror(f"http://127.0.0.1:{silent.getsockname()[1]}/set")


def test_a_drivers_message_hides_secrets_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    assert remote._cause(OSError("403 for hush-hush")) == "OSError: 403 for ***"


def test_hdfs_says_what_it_lacks():
    pytest.importorskip("pyarrow", reason="hdfs:// needs pyarrow")
    with pytest.raises(InputRefused, match="hdfs://nowhere:8020/set: cannot be opened .*(JVM|libhdfs|libjvm|HADOOP)"):
        Mirror("hdfs://nowhere:8020/set")


@pytest.mark.slow  # its driver has retries of its own
def test_gcs_that_cannot_be_reached_is_named(monkeypatch):
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises((CannotFetch, InputRefused), match="gs://nowhere/set"):
        Mirror("gs://nowhere/set")


def test_a_folder_is_no_url(tmp_path):
    assert mirror_of(tmp_path) is None
    assert mirror_of(None) is None
