"""Fingerprints of data: digests by which a run's record, and the caches, know them again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def sha256_of_parts(parts: Iterable[str | bytes]) -> str:
    """SHA-256, in hexadecimal, of the parts, each preceded by its length, so that no two lists give the same bytes.

    Names of files may have bytes that are no UTF-8, as `os.fsdecode` gives them.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def fingerprint_of_files(reader: Any, root: Path | None) -> str:
    """SHA-256 over a reader's fields and its `fingerprints(root)`, one of each file or part of its data, in order."""
    return sha256_of_parts([repr(reader), *(word for pair in reader.fingerprints(root).items() for word in pair)])
