"""`kilobatch probe` refuses a wrong -o before it measures for minutes, and names the command that uses its file."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.errors import InputRefused
from trainers.commands import machine
from trainers.launch import join_ranks
from trainers.tasks import probe

CLUSTER = "name: a\nnodes: 1\nworkers_per_node: 1\ndevice: cpu\ndevice_memory_bytes: 1000000000\n"


@pytest.fixture(autouse=True)
def measures_nothing(monkeypatch):
    def measure(*arguments):
        raise AssertionError("it measured")

    monkeypatch.setattr(probe, "probe", measure)
    monkeypatch.setattr(probe, "measure_as_rank", measure)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", r"is no \.yaml file"),
        ("no/a.yaml", "no is no folder; give another place"),
        ("file/a.yaml", "file is no folder; give another place"),
    ],
)
def test_a_place_for_the_file_is_checked_first(tmp_path, name, message):
    (tmp_path / "file").touch()
    with pytest.raises(InputRefused, match=message):
        machine.probe(out=tmp_path / name)


@pytest.mark.parametrize("name", ["my probe.yaml", "clusters of mine/a.yaml"])
def test_the_command_that_uses_the_file_works(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters of mine").mkdir()
    monkeypatch.setattr(probe, "probe", lambda request, opened: {})
    machine.probe(out=Path(name))
    words = shlex.split(capsys.readouterr().out)[:5]
    assert words[:4] == ["kilobatch", "plan", "digits/large_batch", "--cluster"]
    assert "/" in words[4]  # else it is a name of the library
    assert Path(words[4]) == Path(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file to add what these ranks reach together to; write it first on one host"),
        ("- a list", "a.yaml"),
        ("name: [", "a.yaml"),
        ("name: a", "nodes"),
        (CLUSTER, "has no `hardware` to add"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_read_the_file_that_they_add_to_first(tmp_path, monkeypatch, text, message, rank):
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    world = SimpleNamespace(rank=rank, bcast=lambda refused: refused or rank > 0)
    monkeypatch.setattr(join_ranks, "join_world", lambda ranks: world)
    request = probe.ProbeRequest(recipe="digits/large_batch")
    if rank:
        with pytest.raises(machine.typer.Exit):
            machine._add_ranks(tmp_path / "a.yaml", request, 2)
    else:
        with pytest.raises(InputRefused, match=message):
            machine._add_ranks(tmp_path / "a.yaml", request, 2)
