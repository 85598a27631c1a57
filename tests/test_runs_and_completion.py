"""`kilobatch runs`, and the completion of the shells."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def folder(tmp_path_factory, kilobatch):
    """A folder with one run."""
    folder = tmp_path_factory.mktemp("runs")
    words = ("--set", "batch.global=32", "--set", "model={kind: SmallCNN, width: 2}", "--no-report")
    done = kilobatch("train", "digits/baseline", "--out", folder / "a", "--stop-after", "5up", *words, ranks=1)
    assert done.returncode == 0, done.stderr
    return folder


def test_runs_are_listed_and_shown(folder, kilobatch):
    (row,) = json.loads(kilobatch("runs", "list", folder, "--json").stdout)
    assert (row["recipe"], row["ended"], row["update"], row["workers"]) == ("digits-baseline", "stopped", 5, 1)
    assert len(row["group"]) == 12
    assert row["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert str(folder / "a") in kilobatch("runs", "list", folder).stdout
    shown = kilobatch("runs", "show", folder / "a").stdout
    assert "recipe: digits-baseline\nended: stopped\nupdate: 5\nepoch: 0.11\n" in shown
    assert "less than or equal to 65535" in kilobatch("watch", folder, "--port", "65536").stderr
    assert " MB\nfiles: checkpoints, dataset.yaml" in shown


def test_a_report_on_a_folder_of_runs_is_refused_with_what_to_type(folder, kilobatch):
    refused = kilobatch("report", folder)
    said = f"kilobatch: {folder} holds 1 run, and is none; type: kilobatch report {folder / 'a'}\n"
    assert (refused.returncode, refused.stderr) == (2, said)


def test_only_runs_are_removed(folder, tmp_path, kilobatch):
    run = shutil.copytree(folder / "a", tmp_path / "b")
    assert "is no run's folder" in kilobatch("runs", "rm", "-y", tmp_path).stderr
    done = kilobatch("runs", "rm", "-y", run, tmp_path)
    assert done.returncode == 2
    assert run.is_dir()
    closed = f"{sys.executable} -P -m kilobatch runs rm {run} <&-"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Aborted!\n"), "nobody can answer"
    (tmp_path / "link").symlink_to(run)
    done = kilobatch("runs", "rm", "-y", tmp_path / "link")
    assert (done.returncode, f"link is a link; name the run's folder: {run}" in done.stderr) == (2, True), done.stderr
    (tmp_path / "link").unlink()
    assert kilobatch("runs", "rm", "-y", run, run).stdout == f"removed {run}\n"
    assert not run.exists()
    assert kilobatch("runs", "list", tmp_path).stdout == f"no runs in {tmp_path}\n"


COMPLETE = {
    "bash": """
{script}
COMP_WORDS=(kilobatch recipes show goy) COMP_CWORD=3
_kilobatch_completion kilobatch
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
autoload -U compinit && compinit -u -d {folder}/dump
_arguments() {{ print -r -- "$@" }}
{script}
words=(kilobatch recipes show goy) CURRENT=4
_kilobatch_completion
""",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_names_of_recipes(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program = Path(sys.executable).parent / "kilobatch"
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    show = {**environment, "_KILOBATCH_COMPLETE": f"source_{shell}"}
    script = subprocess.run([program], env=show, capture_output=True, text=True, check=True).stdout
    text = COMPLETE[shell].format(script=script, folder=tmp_path)
    command = [shell, "-f" if shell == "zsh" else "--norc"]
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True)
    assert "goyal2017/8192" not in done.stdout
    assert {"goyal2017", "goyal2017/512"} <= {*done.stdout.replace('"', " ").split()}, done.stderr


def test_completion_that_cannot_be_installed_is_refused_in_a_line():
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    text = f"{shlex.quote(sys.executable)} -P -m kilobatch --install-completion\nexit $?\n"  # for the shell around it
    environment = {**os.environ, "HOME": "/proc/nowhere"}
    done = subprocess.run(["bash", "--norc"], input=text, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("kilobatch: completion cannot be installed: ")
    assert "Traceback" not in done.stderr
