"""Leases: a trial of a dead supervisor is found, one of a living supervisor is left alone."""

import os
import subprocess
import sys

from trainers.search.trial_leases import LEASE_SECONDS, is_stale, new_lease


def lease_of_another_process():
    """The lease, and the process, which lives until it is told."""
    code = "import json; from trainers.search.trial_leases import new_lease; print(json.dumps(new_lease())); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, eval(process.stdout.readline())


def test_a_trial_without_a_lease_is_nobodys():
    assert is_stale(None)


def test_a_lease_of_this_process_is_of_a_session_that_has_ended():
    assert is_stale(new_lease())


def test_a_lease_ends_with_its_process():
    process, lease = lease_of_another_process()
    try:
        assert lease["pid"] != os.getpid()
        assert not is_stale(lease)
        assert not is_stale(lease, now=lease["until"] + 1)  # it lives, however late it is
        assert is_stale({**lease, "began": "1"})  # its number was given to another process
    finally:
        process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert is_stale(lease)


def test_of_another_host_a_lease_runs_out():
    lease = {**new_lease(now=1000.0), "host": "elsewhere"}
    assert not is_stale(lease, now=1000.0 + LEASE_SECONDS)
    assert is_stale(lease, now=1000.1 + LEASE_SECONDS)
