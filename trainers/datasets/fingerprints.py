"""Fingerprints of data: digests by which a run's record, and the caches, know them again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


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


class FingerprintOfFiles:
    """The fingerprint of a reader whose `fingerprints(root)` has one of each file or part of its data."""

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over `fingerprints`, in order, and the fields."""
        return sha256_of_parts([repr(self), *(word for pair in self.fingerprints(root).items() for word in pair)])
