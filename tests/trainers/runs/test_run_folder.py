"""A run's folder: never overwritten, never resumed with something else."""

import errno
import io
import json
import logging
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml

from recipes.errors import RecipeError
from recipes.reading.load import load_tree
from recipes.reading.open import open_recipe
from trainers.launch.request import TrainRequest
from trainers.launch.start_ranks import start_or_join
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import RankFailed
from trainers.runs.run_folder import (
    CountsChanged,
    FolderRefused,
    checkpoints_in,
    claimed,
    configure_logging,
    dataset_facts,
    folder_required,
    lock_folder,
    log,
    newest_by_name,
    read_file,
    require_same_recipe,
    require_usable,
    write_run,
)
from trainers.training.extensions.metrics import JsonLines
from trainers.training.scored_samples import write_samples

RECIPE = {"name": "r", "title": "t", "epochs": 20.0, "batch": {"global": 96}, "claims": []}


def begun(folder, recipe=RECIPE):
    nothing = dict.fromkeys(("origins", "plan", "dataset_tree", "environment"), {})
    write_run(folder, recipe=recipe, dataset={"num_train": 1500}, command="kilobatch", **nothing)


def test_a_copy_of_a_checkpoint_or_a_file_beside_it_is_none(tmp_path):
    for name in ("update-000009", "update-000010", "update-000010.bak", "update-old"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "update-000011").touch()
    assert newest_by_name(tmp_path) == tmp_path / "checkpoints" / "update-000010"


def test_checkpoints_that_cannot_be_listed_are_refused_and_not_taken_for_none(tmp_path):
    (tmp_path / "checkpoints").symlink_to("checkpoints")
    with pytest.raises(FolderRefused, match="checkpoints cannot be read: Too many levels of symbolic links"):
        checkpoints_in(tmp_path / "checkpoints")
    assert newest_by_name(tmp_path) is None


def test_initial_weights_that_find_no_room_leave_nothing_of_their_copy(tmp_path, largest_file):
    (tmp_path / "weights").write_bytes(bytes(4096))
    (tmp_path / "run").mkdir()
    with largest_file(1024), pytest.raises(OSError, match="File too large"):
        begun(tmp_path / "run", RECIPE | {"init": {"weights": str(tmp_path / "weights")}})
    assert not any((tmp_path / "run").iterdir())


def test_sources_that_a_kill_cut_off_are_written_by_the_next_session(tmp_path):
    (tmp_path / "sources").mkdir()
    begun(tmp_path)
    assert json.loads((tmp_path / "sources" / "paths.json").read_text()) == []


def test_a_folder_of_a_start_that_did_not_come_to_a_run_may_be_used_again(tmp_path):
    (tmp_path / "ranks").mkdir()
    for name in ("log.txt", "stop", "run.yaml"):
        (tmp_path / name).touch()
        if name != "run.yaml":
            require_usable(tmp_path, resume=False)
    with pytest.raises(FolderRefused, match=r"is not empty; add --resume"):
        require_usable(tmp_path, resume=False)


def test_a_folder_that_holds_something_is_refused_unless_a_run_in_it_is_resumed(tmp_path):
    require_usable(tmp_path / "new", resume=False)
    require_usable(tmp_path, resume=False)
    (tmp_path / "precious.txt").touch()
    for resume in (False, True):
        with pytest.raises(FolderRefused, match=r"is not empty, and holds no run; choose another --out"):
            require_usable(tmp_path, resume=resume)
    (tmp_path / "log.txt").touch()
    with pytest.raises(FolderRefused, match=r"is not empty; add --resume"):
        require_usable(tmp_path, resume=False)
    require_usable(tmp_path, resume=True)
    with pytest.raises(FolderRefused, match=r"is a file"):
        require_usable(tmp_path / "precious.txt", resume=True)


def test_a_folder_is_held_by_one_run_until_it_lets_go(tmp_path):
    run = tmp_path / "runs" / "a"
    with lock_folder(run):
        with pytest.raises(FolderRefused, match=rf"a run is being trained in {run}; .* `touch {run}/stop`"):
            lock_folder(run)
        lock_folder(tmp_path / "runs" / "b").close()
    lock_folder(run).close()


def test_a_folder_in_which_a_run_is_being_trained_is_refused_before_ranks_start(tmp_path):
    with lock_folder(tmp_path), pytest.raises(FolderRefused, match="a run is being trained in"):
        start_or_join(TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True))
    assert (tmp_path / "log.txt").read_bytes() == b""


@pytest.mark.mpi
def test_ranks_that_a_launcher_started_refuse_it_too(tmp_path, kilobatch):
    with lock_folder(tmp_path):
        done = kilobatch("train", "digits/ramp", "--resume", "--out", tmp_path, ranks=1)
    assert (done.returncode, done.stderr.count("a run is being trained in")) == (2, 1)


def test_resume_without_a_folder_is_refused_and_begins_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="--resume: goes on in a run's folder, and none is named; name it: --out"):
        start_or_join(TrainRequest(recipe="digits/ramp", resume=True))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def foreign(tmp_path):
    """A run's folder with a record, and beside it what belongs to somebody else."""
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine")
    run.mkdir()
    (run / "metrics.jsonl").touch()
    return run, other


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *((name, "file") for name in ("log.txt", "trace.jsonl", "profile.json", "ranks")),
        *((name, "not there") for name in ("log.txt", "trace.jsonl")),
        *((name, "") for name in ("checkpoints", "evaluation", "ranks", "code", "code/pack", "sources")),
        ("evaluation/worst-00.png", "file"),
    ],
)
def test_a_link_out_of_a_run_is_refused_before_anything_is_written(foreign, name, to):
    run, other = foreign
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(other / to)
    with pytest.raises(FolderRefused, match=f"{run / name} is a link that leads out of the run's folder.*; replace it"):
        require_usable(run, resume=True)
    assert [path.read_text() for path in other.iterdir()] == ["mine"]


def test_links_that_stay_inside_or_to_a_checkpoint_or_to_the_folder_are_used(foreign):
    run, other = foreign
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "update-000003").symlink_to(other)
    (run / "log.txt").symlink_to("session-1.log")
    (run / "evaluation").symlink_to("scores")
    link = run.with_name("link")
    link.symlink_to(run)
    require_usable(link, resume=True)
    lock_folder(link).close()
    assert (run / "session-1.log").is_file()


@pytest.mark.parametrize("write", [lambda run: lock_folder(run), lambda run: configure_logging(run, rank=0, to_file=1)])
def test_no_log_is_written_through_a_link(foreign, write):
    run, other = foreign
    (run / "log.txt").symlink_to(other / "new")
    with pytest.raises(FolderRefused, match="is a link that leads out"):
        write(run)
    assert not (other / "new").exists()


def test_scored_samples_are_not_written_through_a_link(foreign):
    run, other = foreign
    (run / "evaluation").symlink_to(other)
    with pytest.raises(FolderRefused, match="evaluation is a link that leads out of the run's folder"):
        write_samples(run, np.zeros((1, 3)), recipe=None, dataset=None, reached={})


@pytest.mark.parametrize("name", ["init.safetensors", "recipe.yaml"])
def test_a_file_is_not_written_through_a_link_in_place_of_its_partial_one(foreign, name):
    run, other = foreign
    (other / "weights").write_bytes(b"w")
    (run / f".{name}.partial").symlink_to(other / "file")
    begun(run, RECIPE | {"init": {"weights": str(other / "weights")}})
    assert ((other / "file").read_text(), (run / name).is_symlink()) == ("mine", False)


@pytest.mark.parametrize(
    ("name", "make", "refuse"),
    [
        ("stop", Path.mkdir, lambda run: require_usable(run, resume=True)),
        ("ranks", Path.touch, lambda run: require_usable(run, resume=True)),
        ("metrics.jsonl", os.mkfifo, lambda run: require_usable(run, resume=True)),
        ("log.txt", os.mkfifo, lock_folder),
    ],
)
def test_something_else_in_the_place_of_a_runs_own_file_is_refused(foreign, name, make, refuse):
    run, _ = foreign
    (run / "run.yaml").touch()
    (run / "metrics.jsonl").unlink()
    make(run / name)
    with pytest.raises(FolderRefused, match=f"{run / name} is (a folder|no folder|no file)"):
        refuse(run)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused, match=r"file/run cannot be written: Not a directory; choose another --out"):
        lock_folder(tmp_path / "file" / "run")


def test_another_recipe_is_refused_naming_every_difference(tmp_path):
    begun(tmp_path)
    other = {**RECIPE, "epochs": 21.0, "batch": {"global": 192}}
    with pytest.raises(FolderRefused, match=r"batch.global: 96 in the run, 192 now; epochs: 20.0 in the run, 21.0 now"):
        require_same_recipe(tmp_path, other, {"num_train": 1500})
    with pytest.raises(FolderRefused, match=r"epochs: .*; dataset: num_train: 1500 in the run, 1501 now"):
        require_same_recipe(tmp_path, other, {"num_train": 1501})
    with pytest.raises(CountsChanged, match=r"the data have changed: num_train: 1500 in the run, 1501 now; put back"):
        require_same_recipe(tmp_path, RECIPE, {"num_train": 1501})


def test_a_run_goes_on_with_other_texts_of_its_data_set(tmp_path):
    dataset = open_recipe("digits/baseline", vocabulary=vocabulary()).dataset
    facts = dataset_facts(dataset)
    assert dataset_facts(replace(dataset, title="other", source={"year": 2027}, classes=tuple("0123456789"))) == facts
    begun(tmp_path)
    older = {"recipe": RECIPE, "dataset": {**facts, "title": "before", "source": None}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(older))
    require_same_recipe(tmp_path, RECIPE, facts)


@pytest.mark.parametrize("older", sorted((Path(__file__).parent / "older").iterdir()), ids=lambda file: file.stem)
def test_a_run_that_an_older_version_began_is_one_of_the_same_recipe(tmp_path, older):
    """`older` holds recipe and data set of `run.yaml` as versions of that day wrote them."""
    opened = open_recipe("/".join(older.stem.split("-")[:2]), vocabulary=vocabulary())
    (tmp_path / "run.yaml").write_bytes(older.read_bytes())
    require_same_recipe(tmp_path, opened.tree, dataset_facts(opened.dataset))


@pytest.mark.parametrize("text", ["", ": [", "recipe: 1", "[1]", "recipe: {}", "\0"])
def test_a_damaged_record_of_the_recipe_is_refused(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(FolderRefused, match=r"run.yaml is damaged, .*; start anew in another --out"):
        require_same_recipe(tmp_path, RECIPE, {"num_train": 1500})


@pytest.mark.parametrize("left", ["checkpoints/update-000008", "metrics.jsonl"])
def test_a_missing_record_of_the_recipe_is_refused_in_a_run_that_has_trained(tmp_path, left):
    begun(tmp_path)
    (tmp_path / "run.yaml").unlink()
    require_same_recipe(tmp_path, RECIPE, {"num_train": 1500})  # a kill left it so, before the first update
    (tmp_path / left).mkdir(parents=True)
    own = rf"run.yaml is missing, without .*; start anew in another --out, with the run's own {tmp_path}/recipe.yaml$"
    with pytest.raises(FolderRefused, match=own):
        require_same_recipe(tmp_path, RECIPE, {"num_train": 1500})
    for name in ("recipe.yaml", "dataset.yaml"):
        (tmp_path / name).unlink()
    with pytest.raises(FolderRefused, match=r"run.yaml is missing, .* recipe is lost; start anew in another --out$"):
        require_same_recipe(tmp_path, RECIPE, {"num_train": 1500})


@pytest.mark.parametrize("name", ["5e-2", "1e5", "12", "on"])
def test_a_name_that_reads_like_a_number_is_text_in_the_runs_recipe_too(tmp_path, name):
    begun(tmp_path, {"kilobatch": 1, **RECIPE, "name": name})
    assert load_tree(tmp_path / "recipe.yaml")[0]["name"] == name


def test_words_that_change_no_run_may_differ(tmp_path):
    begun(tmp_path)
    require_same_recipe(tmp_path, {**RECIPE, "title": "another", "claims": [{"metric": "top1"}]}, {"num_train": 1500})


def test_only_errors_of_the_folder_itself_are_reported_as_such(tmp_path):
    for name in (tmp_path / "a" / "b", tmp_path):
        with pytest.raises(RankFailed, match="folder cannot be used any more"), folder_required(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
    for error in (
        FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path.parent / "data.png")),
        OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "metrics.jsonl")),
        OSError(errno.EPIPE, "Broken pipe"),
    ):
        with pytest.raises(OSError, match=error.strerror) as raised, folder_required(tmp_path):
            raise error
        assert raised.value is error


def test_a_line_that_cannot_be_written_names_its_file():
    lines = JsonLines(Path("/dev/full"), writes=True)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        lines.write({"key": "x"})
    with suppress(OSError):
        lines.close()


@pytest.fixture
def root_logger():
    """Restored afterwards."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()  # `force` would close those of others
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers


def test_a_line_that_own_code_prints_is_written_at_once_and_whole(tmp_path, root_logger, monkeypatch):
    """Else lines of several ranks mix in the log."""

    class Unbuffered(io.RawIOBase):
        written: ClassVar[list[bytes]] = []

        def writable(self):
            return True

        def write(self, text):
            self.written.append(bytes(text))
            return len(text)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Unbuffered(), write_through=True))
    configure_logging(tmp_path, rank=1, to_file=False)
    print("hello", 3)
    assert Unbuffered.written == [b"hello 3\n"]


def test_lines_of_the_log_hold_no_commands_to_a_terminal(tmp_path, root_logger, capsys):
    configure_logging(tmp_path, rank=0, to_file=True)
    log.warning("cannot read %s", "\x1b[31mred.jpg\x07")
    assert r"cannot read \x1b[31mred.jpg\x07" in (tmp_path / "log.txt").read_text()
    assert "\x1b" not in capsys.readouterr().out


def test_a_default_folder_is_made_once_and_the_next_run_has_a_number(tmp_path):
    names = [claimed(tmp_path / "runs" / "digits-20261126-120000").name for _ in range(3)]
    assert names == ["digits-20261126-120000", "digits-20261126-120000-2", "digits-20261126-120000-3"]
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused, match="cannot be written: Not a directory; choose another --out"):
        claimed(tmp_path / "file" / "run")


def test_a_link_to_a_device_is_not_read(tmp_path):
    """One to /dev/zero would be read without end."""
    (tmp_path / "state.json").symlink_to("/dev/null")
    with pytest.raises(OSError, match="it is no file"):
        read_file(tmp_path / "state.json")
