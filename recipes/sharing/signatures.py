"""Signatures by SSH keys, as git uses them: `ssh-keygen -Y`, with a list of the keys that a team trusts."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from recipes.errors import InputRefused

_NAMESPACE = "kilobatch"  # so that a signature of something else is none of a pack


def sign(data: bytes, key: Path) -> str:
    """The signature of data by a private key, or by a public one whose private key an agent holds.

    Raises:
        InputRefused: ssh-keygen cannot sign by it.
    """
    done = _run(["sign", "-f", str(key.expanduser()), "-n", _NAMESPACE], data)
    if done.returncode:
        raise InputRefused(f"--sign: {_words(done)}; give the path of a key, such as ~/.ssh/id_ed25519")
    return done.stdout.decode()


def signer(data: bytes, signature: str, allowed: Path) -> str | None:
    """Who has signed data, by a list of keys in the format of ssh-keygen's ALLOWED SIGNERS; None: nobody on it.

    Raises:
        InputRefused: the list cannot be read.
    """
    if not allowed.expanduser().is_file():
        what = f"{allowed}: there is no such list of keys; a line of it is: name ssh-ed25519 AAAA..."
        raise InputRefused(f"{what}; put it back, or name another: kilobatch registry add NAME URL --signers FILE")
    with tempfile.NamedTemporaryFile("w", suffix=".sig") as file:
        file.write(signature)
        file.flush()
        by = ["-s", file.name, "-f", str(allowed.expanduser())]
        found = _run(["find-principals", *by], b"")
        names = found.stdout.decode("utf-8", "replace").splitlines() if found.returncode == 0 else []
        for name in names:
            if _run(["verify", *by, "-I", name, "-n", _NAMESPACE], data).returncode == 0:
                return name
    return None


def _run(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", "-Y", *words], input=data, capture_output=True, timeout=60)
    except FileNotFoundError:
        raise InputRefused("signatures need ssh-keygen; install OpenSSH") from None


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "ssh-keygen failed"
