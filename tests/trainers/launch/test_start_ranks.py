"""`kilobatch train`, through the command line and with real ranks: how runs end, go on, and are refused."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from safetensors.numpy import load_file

from trainers.launch import start_ranks
from trainers.launch.request import TrainRequest
from trainers.launch.start_ranks import start_or_join
from trainers.runs.run_folder import FolderRefused, lock_folder
from trainers.runs.stop_request import STOP_FILE

pytestmark = pytest.mark.mpi

KILOBATCH = [sys.executable, "-P", "-m", "kilobatch"]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
SMALL = ("digits/ramp", "--set", "model.width=4", "--set", "evaluation.every=2ep")
END = 24  # update at which runs are compared


def typed(*words, timeout=60, before=()):
    command = [*map(str, before), *KILOBATCH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def train(folder, *words, ranks=2, recipe=SMALL):
    return typed("train", *recipe, "-n", ranks, "--out", folder, "--no-report", *words)


@pytest.fixture(scope="module")
def on_resident_ranks(kilobatch):
    """The same as `train` under the launcher of ranks that are there."""

    def run(folder, *words, ranks=2):
        return kilobatch("train", *SMALL, "--out", folder, "--no-report", *words, ranks=ranks)

    return run


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def last_line(folder):
    return lines(folder)[-1]


def updates(folder):
    return [line["update"] for line in lines(folder) if line["key"] == "train_loss"]


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def weights(folder, update=END):
    return load_file(folder / "checkpoints" / f"update-{update:06d}" / "weights.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 40 updates that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(folder, "--stop-after", f"{END}up", "--trace")
    assert done.returncode == 0, done.stderr
    assert f"stopped: {END} of 165 updates" in done.stdout
    assert " left" not in done.stdout + (folder / "log.txt").read_text(), "the line after the last update has a score"
    assert done.stdout.endswith(f"run: {folder}\n")
    assert not (folder / "report.html").exists()
    return folder


def test_stop_after_counts_from_the_start_of_the_run_and_leaves_the_schedule_as_it_is(
    whole, tmp_path, on_resident_ranks
):
    folder = tmp_path / "run"
    first = on_resident_ranks(folder, "--stop-after", "18up", "--trace")
    assert first.returncode == 0, first.stderr
    assert updates(folder) == list(range(18))
    assert checkpoints(folder)[-1] == "update-000018"
    assert (last_line(folder)["value"], last_line(folder)["reason"]) == ("stopped", "--stop-after")
    then = train(folder, "--stop-after", f"{END}up", "--trace", "--resume")
    assert then.returncode == 0, then.stderr
    assert "resuming from update-000018" in then.stdout
    assert updates(folder) == list(range(END))
    keys = ("update", "epoch", "samples", "sample_ids", "images_sha256", "learning_rate", "momentum", "loss")
    actual, expected = ([[line[key] for key in keys] for line in lines(run, "trace.jsonl")] for run in (folder, whole))
    assert actual == expected
    for path, array in weights(folder).items():
        np.testing.assert_array_equal(array, weights(whole)[path], err_msg=path)


@pytest.mark.parametrize("joins", [False, True])
def test_a_run_that_is_past_its_stop_already_says_so_and_is_left_as_it_is(whole, capsys, joins):
    before, how = lines(whole), {"out": whole, "resume": True, "report": False, "stop_after": f"{END - 4}up"}
    request = TrainRequest(recipe=SMALL[0], overrides=SMALL[2::2], **how)
    assert (start_ranks.train_together(request, MPI.COMM_SELF, threads=1) if joins else start_or_join(request)) == 0
    done = f"update {END} is done already, and --stop-after is update {END - 4}\nrun: {whole}\n"
    assert capsys.readouterr().out == f"nothing to train: {done}"
    assert lines(whole) == before


@pytest.mark.slow
def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    command = [*KILOBATCH, "train", *SMALL, "-n", "1", "--no-report", "--stop-after", "1up"]
    for process in [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]:
        assert process.wait(timeout=60) == 0
    assert [updates(folder) for folder in (tmp_path / "runs").iterdir()] == [[0]] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stop-after", "41up"), "is not empty; add --resume to go on with the run in it"),
        (
            ("--resume", "--set", "seed=7", "--set", "learning_rate.reference=0.01"),
            "learning_rate.reference: 0.05 in the run, 0.01 now; seed: 0 in the run, 7 now",
        ),
    ],
    ids=["not empty", "another recipe"],
)
def test_a_folder_of_another_run_is_refused(whole, kilobatch, words, message):
    done = kilobatch("train", *SMALL, "-n", 2, "--out", whole, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert updates(whole)[-1] == END - 1


@pytest.mark.parametrize("workers", [2, 1, None])
def test_in_a_shell_that_srun_started_ranks_are_started_here(tmp_path, monkeypatch, workers):
    found = []
    for name in ("_start", "_join"):
        monkeypatch.setattr(start_ranks, name, lambda *arguments, name=name: found.append(name))
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    start_or_join(TrainRequest(recipe="digits/large_batch", workers=workers, out=tmp_path / "run"))
    assert found == ["_start"]


def test_a_clock_that_is_set_back_during_a_run_changes_neither_its_verdict_nor_its_lines(tmp_path, monkeypatch, capsys):
    ahead, run = time.time() + 3600, tmp_path / "run"
    monkeypatch.setattr(time, "time", lambda: ahead)  # in this process, not in the rank
    recipe, *overrides = (word for word in SMALL if word != "--set")
    request = TrainRequest(recipe=recipe, overrides=tuple(overrides), workers=1, out=run, report=False)
    assert start_or_join(replace(request, stop_after="1up")) == 0
    assert capsys.readouterr().out.splitlines()[-3].startswith("stopped: 1 of ")


def test_resume_without_a_checkpoint_begins_at_0_and_logs_it(tmp_path, on_resident_ranks):
    (tmp_path / "run").mkdir()
    done = on_resident_ranks(tmp_path / "run", "--resume", "--stop-after", "2up")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "nothing to resume: no whole checkpoint in " in log
    assert "starting at update 0" in log
    assert updates(tmp_path / "run") == [0, 1]


def test_a_run_that_was_done_is_done_again_in_no_update(whole, on_resident_ranks):
    before = checkpoints(whole)
    done = on_resident_ranks(whole, "--resume", "--stop-after", f"{END}up")
    assert done.returncode == 0, done.stderr
    assert updates(whole) == list(range(END))
    assert checkpoints(whole) == before


def start_and_interrupt(folder, interrupt, *, ranks=2):
    """Start a run, call interrupt(process) after three updates, wait for its end."""
    command = [*KILOBATCH, "train", *SMALL, "-n", str(ranks), "--out", str(folder), "--set", "epochs=20"]
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # also where the tests run by nohup
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heeds) as process:
        until = time.monotonic() + 60
        while not ((folder / "metrics.jsonl").exists() and len(updates(folder)) >= 3):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        with pytest.raises(FolderRefused, match="a run is being trained in"):
            lock_folder(folder)
        interrupt(process)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGHUP, 3), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow)]
)
def test_a_signal_ends_in_a_checkpoint_from_which_the_run_goes_on_as_if_nothing_had_been(
    whole, tmp_path, on_resident_ranks, processes_of, number, ranks
):
    folder = tmp_path / "run"
    code, errors = start_and_interrupt(folder, lambda process: process.send_signal(number))
    assert code == 4, errors
    reached = last_line(folder)["update"]
    assert 3 <= reached < END
    assert (last_line(folder)["value"], last_line(folder)["reason"]) == ("stopped", "signal")
    assert f"newest checkpoint: {folder / 'checkpoints'}/update-{reached:06d}; to go on" in errors
    assert (folder / "report.html").exists()
    processes_of(folder, gone=True)
    then = on_resident_ranks(folder, "--resume", "--stop-after", f"{END}up", ranks=ranks)
    assert then.returncode == 0, then.stderr
    assert updates(folder) == list(range(END))
    for path, array in weights(folder).items():
        np.testing.assert_array_equal(array, weights(whole)[path], err_msg=path)


def test_a_run_that_its_stop_file_ended_reports_it(tmp_path):
    folder = tmp_path / "run"
    code, errors = start_and_interrupt(folder, lambda process: (folder / STOP_FILE).touch(), ranks=1)
    assert code == 4, errors
    assert f"kilobatch: stopped by the file {folder}/stop; newest checkpoint: " in errors
    assert (last_line(folder)["value"], last_line(folder)["reason"]) == ("stopped", "stop file")


def test_a_signal_while_the_ranks_start_is_not_lost(tmp_path):
    command = [*KILOBATCH, "train", *SMALL, "-n", "2", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not ((tmp_path / "run" / "log.txt").exists() and children.read_text()):  # mpiexec
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 4, errors
    assert updates(tmp_path / "run") == [0]


def test_a_loss_that_is_not_finite_stops_all_ranks_and_names_what_to_try(tmp_path, on_resident_ranks):
    folder = tmp_path / "run"
    wild = ("--set", "learning_rate.reference=1e30", "--set", "learning_rate.rule=none")
    wild += ("--set", "learning_rate.warmup=null", "--checkpoint-every", "update")
    done = on_resident_ranks(folder, *wild)
    assert done.returncode == 3, done.stderr
    pattern = r"^kilobatch: the (loss|weight) is not finite at update (\d+) on rank \d \((.*?)\), .*$"
    message = re.search(pattern, done.stderr, re.M)
    assert message, done.stderr
    assert message[3].startswith("first bad parameter /")
    assert re.search(r"learning rate \d.*e\+\d\d\. Try a longer warmup", message[0])
    last = f"update-{int(message[2]):06d}"
    assert message[0].endswith(f"Last good checkpoint: {folder / 'checkpoints' / last}")
    assert checkpoints(folder)[-1] == last
    assert "Traceback" not in done.stderr
    assert last_line(folder)["value"] == "failed"


def test_best_and_newest_two_checkpoints_are_kept_and_a_whole_run_resumes_to_its_scores_at_once(
    tmp_path, on_resident_ranks, capsys
):
    short = ("evaluation.every=3up", "epochs=1.5", "learning_rate.reference=0.2", "learning_rate.warmup=null")
    words = [word for change in short for word in ("--set", change)]
    done = on_resident_ranks(tmp_path / "run", *words, "--checkpoint-every", "3up")
    assert done.returncode == 0, done.stderr
    scores = [line for line in lines(tmp_path / "run") if line["key"] == "eval_accuracy"]
    best = max(scores, key=lambda line: (line["value"], -line["update"]))["update"]
    written = [line["update"] for line in lines(tmp_path / "run") if line["key"] == "checkpoint"]
    assert len(written) > 5
    assert checkpoints(tmp_path / "run") == sorted({f"update-{u:06d}" for u in (best, *written[-2:])})
    assert last_line(tmp_path / "run")["best"]["checkpoint"] == f"update-{best:06d}"
    before = lines(tmp_path / "run")
    request = TrainRequest(recipe=SMALL[0], overrides=(*SMALL[2::2], *short), out=tmp_path / "run", resume=True)
    assert start_or_join(replace(request, report=False)) == 0
    scored = f"accuracy {100 * scores[-1]['value']:.2f} %"
    assert re.search(f"finished: .*, {scored}\n.*\nrun: .*, which has ended\n$", capsys.readouterr().out)
    assert lines(tmp_path / "run") == before


def test_a_report_that_cannot_be_written_is_reported(tmp_path, on_resident_ranks):
    folder = tmp_path / "run"
    assert on_resident_ranks(folder, "--stop-after", "1up", ranks=1).returncode == 0
    (folder / "report.html").mkdir()  # in its way
    done = train(folder, "--stop-after", "2up", "--resume", "--report", ranks=1)
    assert done.returncode == 3
    assert "IsADirectoryError" in done.stderr
    assert (
        f"the run has ended, but its report cannot be written; to try again: kilobatch report {folder}" in done.stderr
    )
    assert checkpoints(folder)[-1] == "update-000002"


@pytest.mark.parametrize(
    ("errors", "lines", "code", "says"),
    [
        ("kilobatch: no such file\n" * 2, [], 2, "kilobatch: no such file\n"),
        ("kilobatch: no such file\n", [{"key": "run_start"}], 3, "mpiexec ended with 2\nkilobatch: the run failed; "),
        ("", [], 3, "mpiexec ended with 2\nkilobatch: the run failed; "),
    ],
    ids=["refused", "in mid-run", "without an error"],
)
def test_exit_code_2_of_a_rank_is_a_refusal_only_if_nothing_was_trained(tmp_path, capsys, errors, lines, code, says):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ranks = SimpleNamespace(errors=lambda: errors, num_ranks=1, exits=SimpleNamespace(order=list))
    assert start_ranks._verdict(2, tmp_path, {}, ranks, ended_at_once_by=None) == code
    assert says in (said := capsys.readouterr().err)
    assert (said == says) == (code == 2)
    assert (tmp_path / "log.txt").exists() == (code == 3), "why it failed"


def test_a_run_that_fails_after_a_resume_does_not_keep_the_report_before(tmp_path, on_resident_ranks):
    folder = tmp_path / "run"
    assert on_resident_ranks(folder, "--stop-after", "2up", ranks=1).returncode == 0
    (folder / "report.html").write_text("stopped")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**last_line(folder), "value": "failed", "reason": "no memory"}) + "\n")
    start_ranks.report_failure(folder)
    assert "failed" in (folder / "report.html").read_text()
    (folder / "metrics.jsonl").write_text("damaged\n")
    start_ranks.report_failure(folder)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, on_resident_ranks):
    folder = tmp_path / "run"
    assert on_resident_ranks(folder, "--stop-after", "6up", "--checkpoint-every", "4up").returncode == 0
    with open(folder / "checkpoints" / "update-000006" / "weights.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x77")
    done = on_resident_ranks(folder, "--resume", "--stop-after", "5up")
    assert done.returncode == 0, done.stderr
    log = (folder / "log.txt").read_text()
    assert "warning: passed over " in log
    assert "update-000006/weights.safetensors: differs from its checksum" in log
    assert "resuming from update-000004" in log
    assert updates(folder) == list(range(5))


def test_what_is_not_built_is_refused_by_name(tmp_path, kilobatch):
    done = kilobatch("train", "yamazaki2019", "--set", "lacks=[Shampoo]", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert re.fullmatch(r"kilobatch: not built yet: .+; this recipe can be .*, but not trained\n", done.stderr)
    assert not (tmp_path / "run").exists()


def test_under_a_foreign_mpiexec_it_joins_the_ranks(whole, tmp_path):
    words = ("train", *SMALL, "--out", tmp_path / "run", "--trace", "--stop-after", "20up")
    done = typed(*words, before=(MPIEXEC, "-n", 2))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "trace.jsonl").read_text().splitlines() == (
        (whole / "trace.jsonl").read_text().splitlines()[:20]
    )
    assert "training digits-ramp on 2 workers" in (tmp_path / "run" / "log.txt").read_text()
    assert '<script type="application/json"' in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digits/ramp", "--set", "epochs=-1"), "epochs: "),
        (("digits/ramp", "-n", "3"), "-n 3 was asked for and 2 ranks were launched; leave -n out"),
    ],
    ids=["recipe", "ranks"],
)
def test_what_is_wrong_is_reported_once_under_mpiexec_and_nobody_hangs(tmp_path, words, message):
    done = typed("train", *words, "--out", tmp_path / "run", before=(MPIEXEC, "-n", 2), timeout=30)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count(message) == 1
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_whose_readers_have_left_goes_on_and_a_signal_still_ends_in_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    words = f"train digits/ramp -n 1 --out {folder} --set model.width=4 --set evaluation.every=0.2ep"
    command = [*KILOBATCH, *words.split()]  # a line every four updates
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout.readline() == f"run: {folder}\n"
        assert process.stdout.readline().startswith("training digits-ramp on 1 worker, ")
        assert process.stdout.readline().startswith("update 1/")
        process.stdout.close()  # as `| head -1` does, and a `| tee` that Ctrl-C ended first
        then, until = len(lines(folder)), time.monotonic() + 60
        while len(lines(folder)) < then + 12:
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 4
    last = last_line(folder)
    assert (last["value"], last["reason"]) == ("stopped", "signal")
    assert (folder / "checkpoints" / f"update-{last['update']:06d}").is_dir()
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_or_whose_log_has_no_room_goes_on_to_its_end(tmp_path):
    words = "train digits/ramp -n 1 --stop-after 12up --set model.width=4 --set evaluation.every=0.2ep"
    command = [*KILOBATCH, *words.split(), "--out"]
    ours, theirs = pty.openpty()
    with open("/dev/full", "w") as full:
        disowned = subprocess.Popen([*command, tmp_path / "disowned"], stdout=theirs, stderr=theirs)
        unwritten = subprocess.Popen([*command, tmp_path / "unwritten"], stdout=full, stderr=full)
    os.close(theirs)
    os.close(ours)  # it is no controlling terminal, so that nobody is sent a SIGHUP
    for name, process in (("disowned", disowned), ("unwritten", unwritten)):
        assert process.wait(timeout=120) == 0
        assert last_line(tmp_path / name)["update"] == 12
        assert (tmp_path / name / "report.html").exists()


def test_mpiexec_shows_the_folder_at_once_then_lines_and_scores_as_the_log_does(tmp_path):
    folder = tmp_path / "run"
    words = [*SMALL, "--out", folder, "--no-report", "--stop-after", "8up", "--set", "evaluation.every=0.25ep"]
    done = typed("train", *words, before=(MPIEXEC, "-n", "2"))
    assert done.returncode == 0, done.stderr
    first, training, *said, ending, peak, where = [line.split(" rank 0 ")[1] for line in done.stdout.splitlines()]
    assert (first, training[:32]) == (f"run: {folder}", "training digits-ramp on 2 worker")
    assert [line.split("  ")[0] for line in said if "accuracy" not in line] == ["update 1/165"]
    assert re.fullmatch(r"stopped: 8 of 165 updates, epoch 0\.\d+, accuracy .* %; --stop-after", ending)
    assert (peak[:8], where) == ("peak mem", f"run: {folder}; newest checkpoint: update-000008")
    assert sum("accuracy" in line for line in said) == 2
    assert (folder / "log.txt").read_text() == done.stdout


@pytest.mark.slow
def test_more_ranks_than_cores_are_warned_of_with_the_number_that_fits(whole, tmp_path):
    cores = len(os.sched_getaffinity(0))
    done = train(tmp_path / "run", "--stop-after", "1up", ranks=cores + 1)
    assert f"warning: {cores + 1} ranks share the {cores} cores of " in done.stdout
    assert f"; {cores} would fit: -n" in done.stdout
    assert ("would fit" in (whole / "log.txt").read_text()) == (cores < 2)


def test_without_n_there_are_as_many_ranks_as_the_cores_keep_busy(tmp_path):
    request = TrainRequest(recipe="digits/baseline", out=tmp_path / "run", report=False, stop_after="1up")
    assert start_or_join(request) == 0
    (start,) = [line for line in lines(tmp_path / "run") if line["key"] == "run_start"]
    assert start["workers"] == 1, "an update of digits/baseline is one norm group"


def test_an_extension_that_stops_the_run_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "kilobatch: 1\nname: mine\nextends: digits/ramp\nmodel: {width: 4}\nextensions: [{kind: enough.Enough}]\n"
    )
    (tmp_path / "enough.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Enough:\n"
        "    def build(self):\n        return lambda trainer: setattr(trainer.updater, 'stopping', True)\n"
    )
    words = [*KILOBATCH, "train", "mine.yaml", "--allow-code", "-n", "1", "--out", "run", "--no-report"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert "kilobatch: stopped by an extension of the recipe; newest checkpoint: run/chec" in done.stderr


def children(process):
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def train_until_something_happens(folder, disturb, *words):
    """A long run on two ranks; `disturb(mpiexec)` after its first updates. Code, stderr, seconds until the end."""
    command = [*KILOBATCH, "train", *SMALL, "-n", "2", "--out", str(folder), "--no-report", *words]
    command += ["--set", "epochs=500"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists() or len(updates(folder)) < 4:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        disturb(children(process.pid)[0])
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors, time.monotonic() - began


@pytest.mark.slow
def test_ranks_whose_launcher_was_killed_beside_them_are_ended_and_the_run_fails(tmp_path, processes_of):
    folder = tmp_path / "run"
    code, errors, seconds = train_until_something_happens(
        folder, lambda mpiexec: os.kill(children(mpiexec)[0], signal.SIGKILL)
    )
    assert code == 3
    assert "kilobatch: mpiexec's process beside the ranks" in errors
    assert "was killed" in errors
    assert seconds < 30
    processes_of(folder, gone=True)


@pytest.mark.slow
def test_ranks_that_are_all_stopped_are_noticed_by_their_parent(tmp_path, processes_of):
    folder = tmp_path / "run"

    def stop_all(mpiexec):
        for rank in children(children(mpiexec)[0]):
            os.kill(rank, signal.SIGSTOP)

    code, errors, seconds = train_until_something_happens(folder, stop_all, "--watchdog", "3")
    assert code == 3
    assert "kilobatch: all ranks have been stopped (SIGSTOP) for 3 s" in errors
    assert seconds < 30
    processes_of(folder, gone=True)
