"""The messages of groups of ranks, and where the groups are placed."""

import os
import time
from contextlib import nullcontext
from socket import gethostname

import pytest

from recipes.errors import RecipeError
from trainers.launch.request import TrainRequest
from trainers.runs.mpi_ranks import LaunchError
from trainers.runs.rank_exits import SHARED_MEMORY_WAY_OUT
from trainers.search.group import ANSWERS, ORDERS, Group, MessageReader, RunEnd, cause_of, write_message
from trainers.search.placement import Placement, hosts_named, place, placements, require_ssh


def test_each_message_comes_once_in_order_and_whole(tmp_path):
    path = tmp_path / "orders.jsonl"
    reader = MessageReader(path)
    assert reader.next() is None
    for number in range(2):
        write_message(path, {"number": number})
    with open(path, "ab", buffering=0) as file:
        file.write(b'{"numb')
        assert [reader.next() for _ in range(3)] == [{"number": 0}, {"number": 1}, None]
        file.write(b'er": 3}\n')
    assert reader.next() == {"number": 3}


def test_a_writer_is_dead_when_its_file_has_not_been_touched_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.search.group._DEAD_SECONDS", 0.05)
    path = tmp_path / "orders.jsonl"
    reader = MessageReader(path)
    assert not reader.writer_is_dead
    time.sleep(0.06)
    assert not reader.writer_is_dead  # it was never there
    path.touch()
    assert not reader.writer_is_dead
    time.sleep(0.06)
    os.utime(path, (1, 1))  # the time that another host's clock sets does not matter
    assert not reader.writer_is_dead
    time.sleep(0.06)
    assert reader.writer_is_dead
    path.unlink()
    assert reader.writer_is_dead


@pytest.fixture
def started(tmp_path):
    """`started(script)`: a group whose launcher runs this, and the file of its results."""
    groups = []

    def start(script="sleep 60"):
        placement = Placement(hosts=("a", "a"), local_ranks=(0, 1), launcher=("sh", "-c", script))
        group = Group(0, tmp_path, placement)
        groups.append(group)
        group.train(TrainRequest(recipe="digits/ramp"))
        return group, next(group.folder.rglob(ORDERS)).with_name(ANSWERS)

    yield start
    for group in groups:
        group.kill()
        group.wait()
        group.ended(tmp_path / "run.log")  # waits for the thread that reads the output


def test_only_ends_of_runs_are_results(started):
    group, results = started()
    write_message(results, {"joined": ["b (GPU 0)", "c (GPU 1)"]})
    write_message(results, {"how": "success"})
    assert group.ended(group.log) == RunEnd(how="success")
    assert group.name == "group 0 on b (GPU 0), c (GPU 1)"
    assert group.ended(group.log) is None
    group.kill()
    group.wait()
    assert group.ended(group.log).how == "died"  # they had joined


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("rank; srun: error: Unable to create step", "srun: error: Unable to create step"),
        ("rank; [mpiexec@a] error; ssh: no route; ssh: no route", "ssh: no route"),
        ("[mpiexec@a] error; No module named kilobatch", "No module named kilobatch"),
        ("[mpiexec@a] error", "[mpiexec@a] error"),
        ("kilobatch: MPI joins 1; srun: error", "kilobatch: MPI joins 1"),
        ("Abort; MPIDU_Init_shm: no; x", f"MPI cannot start: MPIDU_Init_shm: no; {SHARED_MEMORY_WAY_OUT}"),
        ("", "the ranks ended without a message"),
    ],
)
def test_ranks_that_end_before_they_join_were_not_started_by_the_launchers_words(started, tmp_path, written, reason):
    text = written.replace("; ", "\n")
    group, _ = started(f"echo '{text}' >&2; exit 1")
    group.wait()
    log = tmp_path / "log.txt"
    assert group.ended(log) == RunEnd(how="not_started", reason=reason)
    assert log.read_text() == f"{text}\n"
    assert (group.poll(), group.name) == (1, "group 0 on a")


NO_SUCH = "ValueError: no such thing"
HANGS = "rank 1 on here hangs in update 3, for 40.1 s"


@pytest.mark.parametrize(
    ("errors", "how", "reason"),
    [
        (f"rank 1 on here failed:\nTraceback\n  File x\n{NO_SUCH}\n\nAbort(3)\n", "failed", f"rank 1: {NO_SUCH}"),
        ("rank 0 on here failed:\n1.jpg: cut off\n\nAbort(3) on node 0\n", "failed", "rank 0: 1.jpg: cut off"),
        ("kilobatch: the loss is not finite\n", "failed", "the loss is not finite"),
        (f"kilobatch: {HANGS}:\n  a.py:7\nNo progress for 40.1 s; --watchdog allows 40.\n", "died", HANGS),
        ("Traceback:\n  File x\nImportError: no module\n", "failed", "ImportError: no module"),
        ("", "failed", "the ranks ended without a message"),
    ],
)
def test_cause_of_a_failure(errors, how, reason):
    assert cause_of(errors) == RunEnd(how=how, reason=reason)


HERE = gethostname()
NO_SRUN = {"PATH": "/nowhere"}


def launched(group):
    """The words of its launcher without the program's folder."""
    return " ".join(group.launcher).rpartition("/")[2]


@pytest.mark.parametrize(
    ("asked", "hosts", "local_ranks", "last"),
    [
        ({"each": 2, "workers": 5}, [HERE * 2, HERE * 2], [(0, 1), (2, 3)], "mpiexec -n 2"),
        ({"each": 3, "workers": None}, [HERE * 3], [(0, 1, 2)], "mpiexec -n 3"),
        (
            {"each": 3, "workers": 9, "hosts": "a:4,b"},
            ["aaa", "bbb", "bba"],
            [(0, 1, 2), (0, 1, 2), (3, 4, 3)],
            "mpiexec -n 3 -hosts b:2,a:1",
        ),
        ({"each": 2, "workers": None, "hosts": "a:2,b:2"}, ["aa", "bb"], [(0, 1)] * 2, "mpiexec -n 2 -hosts b:2"),
    ],
)
def test_groups_by_mpiexec_are_whole_on_a_host_where_they_fit(asked, hosts, local_ranks, last):
    for container in ({}, {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "12"}):  # where no srun is
        groups = placements(**asked, environment={**NO_SRUN, **container})
        assert ["".join(group.hosts) for group in groups] == hosts
        assert [group.local_ranks for group in groups] == local_ranks
        assert launched(groups[-1]) == last


@pytest.mark.parametrize(
    ("slots", "each", "expected"),
    [
        ([4, 4], 2, ["aa", "aa", "bb", "bb"]),
        ([4, 4, 4], 3, ["aaa", "bbb", "ccc", "abc"]),
        ([4, 4, 4], 6, ["aaaabb", "ccccbb"]),
        ([0, 2], 1, ["b", "b"]),
        ([1, 3, 2], 2, ["cc", "bb", "ab"]),
    ],
)
def test_hosts_are_filled_before_groups_spread(slots, each, expected):
    placed = place(dict(zip("abc", slots, strict=False)), each=each, groups=sum(slots) // each)
    assert ["".join(hosts) for hosts in placed] == expected


def test_hosts_with_numbers_need_no_total_and_may_be_addresses():
    assert hosts_named("a:1, b:2", None) == {"a": 1, "b": 2}
    assert hosts_named("10.0.0.1,node-7.cluster", 4) == {"10.0.0.1": 2, "node-7.cluster": 2}


@pytest.mark.parametrize(
    "hosts", ["a,b 3", "a,b:4 4", "a:1,b:1 3", "a,b ", "a,,b 2", "a:x 2", "a:0 2", "a: 2", "a:1:2 2", "a,a 2", " 2"]
)
def test_hosts_that_make_no_sense_are_refused(hosts):
    hosts, _, workers = hosts.partition(" ")
    with pytest.raises(RecipeError, match="does not name different hosts with"):
        hosts_named(hosts, int(workers) if workers else None)


@pytest.fixture
def allocation(tmp_path):
    """`allocation(tasks, cores, resources)`: the environment of a batch script on three nodes."""

    def allocate(tasks="4(x2),2", cores="4(x2),2", resources=()):
        lines = "".join(f"     Nodes={nodes} CPU_IDs=0-3 Mem=0 GRES={gres}\n" for nodes, gres in resources)
        (tmp_path / "job").write_text(f"JobId=17\n{lines}   MinCPUsNode=1\n")
        scontrol = f"""\
case "$2 $3" in
    "job --details") exec /bin/cat {tmp_path}/job;;
    "hostnames n[1-3]") echo n1 n2 n3;;
    "hostnames n[1-2]") echo n1 n2;;
    "hostnames n3") echo n3;;
    *) echo "slurm_load_jobs error: $*" >&2; exit 1
esac
"""
        for name, text in (("scontrol", scontrol), ("srun", "")):
            (tmp_path / name).write_text("#!/bin/sh\n" + text)
            (tmp_path / name).chmod(0o755)
        names = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "PATH": str(tmp_path)}
        return {**names, "SLURM_TASKS_PER_NODE": tasks, "SLURM_JOB_CPUS_PER_NODE": cores}

    return allocate


def test_groups_are_steps_on_nodes_of_the_allocation_unless_hosts_are_named(allocation):
    assert launched(placements(each=1, workers=2, hosts="a,b", environment=allocation())[0]).startswith("mpiexec")
    groups = placements(each=3, workers=None, environment=allocation())
    assert [group.hosts for group in groups] == [("n1",) * 3, ("n2",) * 3, ("n3", "n3", "n1")]
    rest = "--exact --cpus-per-task=1 --mem=0 --immediate=45 --kill-on-bad-exit=1 --input=none"
    assert launched(groups[0]) == f"srun --ntasks=3 --nodes=1 --nodelist=n1 {rest}"
    several = "srun --ntasks=3 --nodes=2 --nodelist=n3,n3,n1 --distribution=arbitrary"
    assert launched(groups[2]) == f"{several} {rest}"
    assert len(placements(each=4, workers=8, environment=allocation())) == 2


@pytest.mark.parametrize(("step", "launcher"), [("0", "mpiexec -n 3"), ("4294967290", "srun ")])
def test_in_a_shell_that_srun_started_groups_are_on_this_machine_but_not_in_that_of_salloc(allocation, step, launcher):
    shell = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": step}
    group = placements(each=3, workers=None, environment={**allocation(), **shell})[0]
    assert launched(group).startswith(launcher)


def test_a_rank_has_its_share_of_the_cores(allocation):
    allocated = allocation(tasks="1(x3)", cores="16(x3)")
    assert "--cpus-per-task=16" in placements(each=2, workers=None, environment=allocated)[0].launcher
    groups = placements(each=8, workers=24, environment=allocated)  # more than tasks
    assert [set(group.hosts) for group in groups] == [{"n1"}, {"n1"}, {"n2"}]
    assert "--cpus-per-task=1" in groups[0].launcher


@pytest.mark.parametrize("gpu", ["gpu:{}(IDX:0-3)", "gpu:a100:{}(IDX:0-3),nic:2(IDX:0-1)", "gpu:{}"])
def test_on_nodes_with_gpus_each_rank_has_one(allocation, gpu):
    resources = [("n[1-2]", gpu.format(4)), ("n3", gpu.format(1))]
    for tasks, workers in (("1(x3)", 8), ("16(x3)", 8), ("1(x3)", None)):
        allocated = allocation(tasks=tasks, cores="16(x3)", resources=resources)
        groups = placements(each=4, workers=workers, environment=allocated)
        assert [group.hosts for group in groups] == [("n1",) * 4, ("n2",) * 4]
        assert {"--cpus-per-task=4", "--gpus-per-task=1"} <= set(groups[0].launcher)
        with pytest.raises(RecipeError, match="more than the 9 that the allocation has cores and GPUs for"):
            placements(each=1, workers=10, environment=allocated)


def test_what_an_allocation_or_the_number_of_ranks_does_not_hold_is_refused(allocation):
    with pytest.raises(RecipeError, match="3 ranks are fewer than the 4 of a trial"):
        placements(each=4, workers=3, environment=NO_SRUN)
    with pytest.raises(RecipeError, match="more than the 10 that the allocation has cores and GPUs for"):
        placements(each=1, workers=11, environment=allocation())
    with pytest.raises(LaunchError, match="does not describe the allocation: slurm_load_jobs error"):
        placements(each=1, workers=None, environment={**allocation(), "SLURM_JOB_NODELIST": "gone"})


def test_an_allocation_of_which_only_the_number_is_known_is_this_machine_and_a_heterogeneous_one_is_refused(allocation):
    words = {name: value for name, value in allocation().items() if name in ("SLURM_JOB_ID", "PATH")}
    assert placements(each=1, workers=2, environment=words)[0].hosts == (gethostname(),)
    with pytest.raises(LaunchError, match=r"heterogeneous .* srun --het-group=0 .* --hosts"):
        placements(each=1, workers=2, environment={**words, "SLURM_HET_SIZE": "2"})


def test_other_hosts_are_refused_where_ssh_is_missing():
    require_ssh(["localhost", "127.0.0.1"], environment={"PATH": ""})
    for environment in ({}, {"HYDRA_LAUNCHER": "rsh"}):
        with pytest.raises(LaunchError, match="192.0.2.1 are started over ssh") if not environment else nullcontext():
            require_ssh(["localhost", "192.0.2.1"], environment={"PATH": "/nowhere", **environment})
