"""A network between hosts that are namespaces of this machine, its links throttled by the kernel. Needs root.

Every host is a network namespace with one link to a bridge; the bridge is in a namespace of its own, where mpiexec runs
too, so that nothing of the machine's own network is touched. Both ends of each link have a token bucket filter (`tc
qdisc ... tbf`): a host sends and receives at that rate at most, at the same time, like a port of a switch. There is no
added delay. Packets are jumbo frames unless told otherwise: a network card cuts and joins small ones by itself, here
the cores would that compute. Ranks of different hosts share no memory as far as MPI knows, and must not:
UCX_TLS=tcp,self.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from trainers.launch import find_mpiexec

HUB_ADDRESS = "10.99.0.254"
BURST_BYTES = 65536
_DELETIONS = 20  # tried, a tenth of a second apart
JUMBO = 9000


def address_of(host: int) -> str:
    """The address of a host, counted from 0."""
    return f"10.99.0.{host + 1}"


def throttle_of(device: str, megabits: int) -> list[str]:
    """The command that limits the rate at which a device sends."""
    limit = max(2 * BURST_BYTES, megabits * 125_000 // 25)  # what is queued leaves within 40 ms
    words = f"tc qdisc add dev {device} root tbf rate {megabits}mbit burst {BURST_BYTES} limit {limit}"
    return words.split()


def why_not() -> str | None:
    """Why such a network is impossible here; None if it is possible."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    try:
        with SlowNetwork(hosts=1, megabits=100):
            pass
    except NetworkRefused as error:
        return str(error)
    return None


class NetworkRefused(RuntimeError):
    """The kernel, or its owner, does not let us make such a network."""


class SlowNetwork:
    """A context with these hosts; on leaving it, also after Ctrl-C or SIGTERM, all of them are removed.

    Args:
        hosts: how many, at least 1.
        megabits: a second on each link in each direction; None for no throttle.
        mtu: bytes of a packet.
    Raises:
        NetworkRefused: on entering, with what the kernel said.
    """

    def __init__(self, *, hosts: int, megabits: int | None, mtu: int = JUMBO) -> None:
        self.hosts, self.megabits, self.mtu = hosts, megabits, mtu
        self.hub = f"kilobatch-{os.getpid()}-hub"
        self.names = [f"kilobatch-{os.getpid()}-{host}" for host in range(hosts)]

    def __enter__(self) -> SlowNetwork:
        self._before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="kilobatch-network-")
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would leave the rest
        for name in (*self.names, self.hub):
            if (trouble := _removed(name)) is not None:
                print(f"slow_network: {name} is left: {trouble}; ip netns delete {name}", file=sys.stderr)
        self._folder.cleanup()
        for number, handler in (*self._before.items(), (signal.SIGINT, interrupt)):
            signal.signal(number, handler)

    def run(self, words: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 600) -> None:
        """Run a command as one rank on each host, under mpiexec.

        Raises:
            subprocess.CalledProcessError, subprocess.TimeoutExpired: it failed or took too long.
        """
        command = ["ip", "netns", "exec", self.hub, find_mpiexec(), "-launcher", "ssh"]
        command += ["-launcher-exec", str(self._login), "-localhost", HUB_ADDRESS]
        command += ["-hosts", ",".join(map(address_of, range(self.hosts))), "-ppn", "1", "-n", str(self.hosts), *words]
        given = {**os.environ, **(environment or {}), "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        subprocess.run(command, check=True, env=given, timeout=timeout, start_new_session=True)

    def _build(self) -> None:
        _do("ip", "netns", "add", self.hub)
        inside = ["ip", "netns", "exec", self.hub]
        _do(*inside, "ip", "link", "add", "bridge", "type", "bridge")
        _do(*inside, *f"ip address add {HUB_ADDRESS}/24 dev bridge".split())
        for device in ("lo", "bridge"):
            _do(*inside, *f"ip link set {device} up".split())
        for host, name in enumerate(self.names):
            port, own, mtu = f"port{host}", ["ip", "netns", "exec", name], f"mtu {self.mtu}"
            _do("ip", "netns", "add", name)
            _do(
                *inside,
                *f"ip link add {port} {mtu} type veth peer name eth0 {mtu} netns {name}".split(),
            )
            _do(*inside, *f"ip link set {port} master bridge up".split())
            _do(*own, *f"ip address add {address_of(host)}/24 dev eth0".split())
            for device in ("lo", "eth0"):
                _do(*own, *f"ip link set {device} up".split())
            if self.megabits is not None:
                _do(*own, *throttle_of("eth0", self.megabits))
                _do(*inside, *throttle_of(port, self.megabits))
        self._login = Path(self._folder.name, "login")
        self._login.write_text(login_script(self.names), encoding="utf-8")
        self._login.chmod(0o755)


def login_script(names: Sequence[str]) -> str:
    """A replacement for ssh, called with options, a host's address and a command, run in the host's namespace."""
    cases = "\n".join(f"    {address_of(host)}) name={shlex.quote(name)} ;;" for host, name in enumerate(names))
    return f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{cases}
    *) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec "$name" sh -c "$*"
"""


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NetworkRefused(f"{shlex.join(words)}: {done.stderr.strip() or done.returncode}")


def _removed(name: str) -> str | None:
    """Kill what runs in a namespace and delete it with its links and filters; returns why that failed."""
    for _ in range(_DELETIONS):
        for process in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, text=True)
        if done.returncode == 0 or not Path("/run/netns", name).exists():
            return None
        time.sleep(0.1)
    return done.stderr.strip()


def _stop(number: int, frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    if (reason := why_not()) is not None:
        sys.exit(f"slow_network: {reason}")
    hosts, megabits, *words = sys.argv[1:]
    with SlowNetwork(hosts=int(hosts), megabits=int(megabits) or None) as network:
        began = time.perf_counter()
        network.run(words)
        print(f"{time.perf_counter() - began:.3f} s")
