"""The slow network is one, and is taken down again; what its benchmark's table has of times, by hand."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PROBE = """
import sys, time
import numpy as np
from mpi4py import MPI
world, values, other = MPI.COMM_WORLD, np.zeros(500_000, np.uint8), np.empty(500_000, np.uint8)
alone = world.Split_type(MPI.COMM_TYPE_SHARED).size == 1
for _ in range(3):
    world.Barrier()
    began = time.perf_counter()
    world.Sendrecv(values, 1 - world.rank, recvbuf=other, source=1 - world.rank)
    seconds = time.perf_counter() - began
if world.rank == 0:
    open(sys.argv[1], "w").write(f"{seconds} {alone}")
"""


AUTO = """
import sys
import trainers.compat
import numpy as np
from mpi4py import MPI
from trainers.communicators import Auto
from trainers.communicators.wire import FullWire
world = MPI.COMM_WORLD
connection = Auto().connect(world.Dup())
values = connection.allocate(250_000, np.float32)
values[...] = 1 + world.rank
connection.sum(values, FullWire())
assert (values == 3).all()
if world.rank == 0:
    open(sys.argv[1], "w").write("\\n".join(connection.choices))
connection.close()
"""


@pytest.fixture
def slow_network():
    import slow_network

    return slow_network


@pytest.fixture
def allowed(slow_network):
    if (reason := slow_network.why_not()) is not None:
        pytest.skip(reason)


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_command_of_a_throttle(slow_network):
    words = "tc qdisc add dev eth0 root tbf rate 100mbit burst 65536 limit 500000"  # 40 ms of 12.5 MB/s
    assert " ".join(slow_network.throttle_of("eth0", 100)) == words
    assert slow_network.throttle_of("eth0", 1)[-1] == "131072"  # never below two bursts


def test_login_script_finds_the_namespace_of_an_address(slow_network, tmp_path):
    (tmp_path / "ip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "ip").chmod(0o755)
    script = slow_network.login_script(["a-0", "a-1"])
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def login(*words):
        return subprocess.run(["sh", "-c", script, "login", *words], capture_output=True, text=True, env=environment)

    assert login("-x", "10.99.0.2", '"proxy"', "--port", "3").stdout == 'netns exec a-1 sh -c "proxy" --port 3\n'
    assert login("10.99.0.3", "proxy").returncode == 1


def test_without_root_the_benchmark_is_skipped(slow_network, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["slow_network.py"])
    monkeypatch.setattr(slow_network, "launched_ranks", lambda: None)
    slow_network.main()
    assert "skipped: network namespaces need root" in capsys.readouterr().out


def test_table_has_a_line_for_each_wire(slow_network):
    seconds = {"compute": [0.2] * 3}
    seconds |= {f"{way} float32": [t] * 3 for way, t in zip(slow_network.WAYS, (0.6, 0.5, 0.2), strict=True)}
    seconds |= {f"{way} float16": [t] * 3 for way, t in zip(slow_network.WAYS, (0.4, 0.3, 0.22), strict=True)}
    assert list(slow_network.table_lines({"ranks": 2, "megabits": 100, "seconds": seconds})) == [
        "| 2 | 100 | 2.00 | float32 | 200 | 600 | 500 | 200 | 25 % | 100 % | 100 % |",
        "| 2 | 100 | 1.00 | float16 | 200 | 400 | 300 | 220 | 50 % | 90 % | 95 % |",
    ]


def test_batch_of_a_ratio(slow_network):
    def samples_at(ratio):
        return slow_network.samples_at(ratio, communication=0.19, compute=(0.1, 0.38))

    assert samples_at(0.5) == 370  # the other calibration
    assert samples_at(1.9) == 32
    assert samples_at(19.0) == 1


def test_the_hidden_share(slow_network):
    hidden = slow_network.hidden
    assert hidden([2.0], none=[2.0], compute=[1.0]) == 0
    assert hidden([1.0], none=[2.0], compute=[1.0]) == 1
    assert hidden([2.5], none=[2.0], compute=[1.0]) == -0.5
    rounds = {"none": [2.0, 12.0, 3.0], "compute": [1.0, 10.0, 2.0]}  # a slow round is slow for all
    assert hidden([1.1, 10.2, 2.5], **rounds) == 0.8, "1 - the median of .1, .2, .5 over that of 1, 2, 1"


def test_each_rank_takes_a_core_of_its_own_if_there_are_enough(slow_network, monkeypatch):
    taken = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 4, 5, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: taken.append(cores))
    for rank in range(2):
        slow_network.take_core(rank, 2)
    slow_network.take_core(0, 5)
    assert taken == [{4}, {5}]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_half_a_megabyte_takes_as_long_as_the_link_says_and_nothing_is_left(slow_network, tmp_path):
    program, file, before = tmp_path / "probe.py", tmp_path / "seconds", namespaces()
    program.write_text(PROBE)
    with slow_network.SlowNetwork(hosts=2, megabits=50) as network:
        assert namespaces() != before
        network.run([sys.executable, str(program), str(file)], timeout=100)
    assert namespaces() == before
    seconds, alone = file.read_text().split()
    assert 0.07 < float(seconds) < 0.4  # 500 kB at 6.25 MB/s are 80 ms, 10 of them in the burst
    assert alone == "True"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_between_such_hosts_auto_finds_that_rings_by_sockets_cost_less(slow_network, tmp_path):
    program, file = tmp_path / "auto.py", tmp_path / "choices"
    program.write_text(AUTO)
    with slow_network.SlowNetwork(hosts=2, megabits=100) as network:
        network.run([sys.executable, str(program), str(file)], environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    rings, bucket = file.read_text().splitlines()
    assert rings.startswith("rings by sockets: a megabyte to the next worker costs ")
    assert bucket.endswith(" ms)")


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_a_probe_between_hosts_writes_their_link_into_the_clusters_file(slow_network, tmp_path):
    file = Path(shutil.copy(ROOT / "configs" / "clusters" / "mn1.yaml", tmp_path / "ours.yaml"))
    with slow_network.SlowNetwork(hosts=2, megabits=200) as network:
        network.run([sys.executable, str(ROOT / "kilobatch.py"), "probe", "-o", str(file)], timeout=100)
    tree = yaml.safe_load(file.read_text())
    assert (tree["nodes"], tree["workers_per_node"]) == (2, 1)
    assert tree["hardware"]["network"]["measured_gb_per_second"] == pytest.approx(0.025, rel=0.15)
    full, half = tree["hardware"]["all_reduces"]
    assert (full["wire"], half["wire"]) == ("float32", "float16")
    assert half["milliseconds"][-1] == pytest.approx(full["milliseconds"][-1] / 2, rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_network_is_taken_down(slow_network, number):
    before = namespaces()
    words = [sys.executable, slow_network.__file__, "--ranks", "2", "--megabits", "100", "--rounds", "1000"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = [f"kilobatch-{process.pid}-{host}" for host in (0, 1)]
    until = time.monotonic() + 60
    while not all(map(_has_processes, names)) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    try:
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
    assert namespaces() == before


def _has_processes(name):
    return bool(subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.strip())


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_figures_of_every_way(run):
    lines, (actual,) = run("slow_network.py", "--ranks 2 --megabits 200 --ratios 1 --rounds 1 --updates 1")
    ways = {f"{way} {wire}" for way in ("none", "buckets", "double") for wire in ("float32", "float16")}
    assert actual["seconds"].keys() == {"compute", *ways}
    assert actual["communication_seconds"] > actual["gradient_bytes"] / 25e6 * 0.9
    assert actual["seconds"]["none float32"][0] > actual["seconds"]["compute"][0]
    assert len([line for line in lines if line.startswith("| 2 | 200 |")]) == 2 + 7  # of both tables
