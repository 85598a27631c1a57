"""What a staged copy has, and what it does not keep."""

import fcntl
import os

import pytest
from typer.testing import CliRunner

import kilobatch as command_line
from recipes.errors import InputRefused
from trainers.datasets.remote import CannotFetch
from trainers.datasets.staging import Source, stage
from trainers.runs.errors import exit_on_error


@pytest.fixture
def source(tmp_path):
    for name in ("train/cat/1.jpg", "train/dog/1.jpg"):
        (tmp_path / "source" / name).parent.mkdir(parents=True)
        (tmp_path / "source" / name).write_bytes(name.encode())
    return tmp_path / "source"


def names_in(folder):
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return sorted(name for name in found if not name.startswith("."))


def test_linked_folders_are_copied_and_loops_refused(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/2.jpg").write_bytes(b"2")
    (source / "train/fox").symlink_to(tmp_path / "elsewhere")
    (source / "train/gnu").symlink_to(source / "train/dog")
    assert stage(source, tmp_path / "staged").num_copied == 4
    assert (tmp_path / "staged/train/fox/2.jpg").read_bytes() == b"2"
    assert (tmp_path / "staged/train/gnu/1.jpg").read_bytes() == b"train/dog/1.jpg"
    for link, message in (("..", "a folder that it lies in"), ("nothing", "leads nowhere"), ("loop", "leads nowhere")):
        (source / "train/loop").symlink_to(link)
        with pytest.raises(InputRefused, match=f"train/loop: a link .*{message}"):
            stage(source, tmp_path / "staged")
        (source / "train/loop").unlink()


def test_what_the_source_no_longer_has_is_removed_and_what_it_never_had_is_named(source, tmp_path):
    target = tmp_path / "staged"
    stage(source, target)
    (source / "train/dog/1.jpg").unlink()
    (target / "notes.txt").write_text("my own")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/2.jpg").write_bytes(b"of another source")
    assert stage(tmp_path / "other", target).extra == ["notes.txt", "train/cat/1.jpg", "train/dog/1.jpg"]
    staged = stage(source, target)
    assert (staged.removed, staged.extra) == (["train/dog/1.jpg"], ["2.jpg", "notes.txt"])
    assert names_in(target) == ["2.jpg", "notes.txt", "train", "train/cat", "train/cat/1.jpg"]
    (target / "train/dog").mkdir()
    (target / "train/dog/1.jpg").write_bytes(b"put there since")
    assert "train/dog/1.jpg" in stage(source, target).extra


def test_a_copy_that_was_changed_since_stays_when_its_source_goes(source, tmp_path):
    stage(source, tmp_path / "staged")
    (source / "train/dog/1.jpg").unlink()
    (tmp_path / "staged/train/dog/1.jpg").write_bytes(b"mine")
    staged = stage(source, tmp_path / "staged")
    assert (staged.removed, staged.extra) == ([], ["train/dog/1.jpg"])
    assert (tmp_path / "staged/train/dog/1.jpg").read_bytes() == b"mine"


def test_two_commands_do_not_fill_one_folder_at_once(source, tmp_path):
    (tmp_path / "staged").mkdir()
    held = os.open(tmp_path / "staged", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(InputRefused, match="staged: another of these commands is at work there; wait for it"):
        stage(source, tmp_path / "staged")
    os.close(held)
    assert stage(source, tmp_path / "staged").num_copied == 2


def test_a_data_set_is_staged_without_being_opened(source, tmp_path, kilobatch):
    facts = "reader: {kind: TarShards}\nchannels: 3\nvalidation: {fraction: 0.1}\nroot: source\n"
    (tmp_path / "mine.yaml").write_text(facts)
    done = kilobatch("data", "stage", "mine.yaml", "--to", "staged", cwd=tmp_path)
    assert (done.returncode, "2 files, " in done.stdout) == (0, True), done.stderr


def test_a_copy_that_fails_ends_with_3_and_one_line(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Source, "block", lambda one, name, start, size: bytes(size))
    words = ["data", "stage", str(source), "--to", str(tmp_path / "staged")]
    with pytest.raises(SystemExit, match="^3$"):
        exit_on_error(CliRunner().invoke(command_line.app, words).exception)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kilobatch: train/")
    assert line.endswith("; the same command goes on")


def test_bytes_that_changed_on_the_way_are_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(Source, "block", lambda one, name, start, size: bytes(size))
    with pytest.raises(CannotFetch, match="its bytes are not those of the SHA256 of the source"):
        stage(source, tmp_path / "staged")


def test_a_folder_is_staged_and_compared_with_what_is_there(source, tmp_path, kilobatch):
    assert stage(source, tmp_path / "a").num_copied == 2
    bad = tmp_path / "a/train/cat/1.jpg"
    bad.write_bytes(bad.read_bytes()[:-3] + b"???")
    done = kilobatch("data", "stage", source, "--to", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert "train/cat/1.jpg: had other bytes than the source, copied again" in done.stdout
    assert "2 files, " in done.stdout
    assert "1 copied, 1 were there" in done.stdout
    assert bad.read_bytes() == (source / "train/cat/1.jpg").read_bytes()
    with pytest.raises(InputRefused, match="lies in the data's own folder"):
        stage(source, source / "copy")
