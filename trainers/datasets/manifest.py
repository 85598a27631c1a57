"""The manifest of a prepared data set: how it was made, and the SHA-256 of each of its chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.jsonl"
_OF_ALL, _OF_A_CHUNK = {"source", "images", "per_chunk"}, {"name", "samples", "sha256"}  # in its lines


def read_manifest(root: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """How it was made, and the line of each chunk by its name; what follows a torn or strange line is left out.

    Both are empty if another program has written it: the name is a common one.

    Raises:
        OSError: there is none.
    """
    lines = []
    for text in (root / MANIFEST).read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or not (_OF_A_CHUNK if lines else _OF_ALL) <= line.keys():
            break
        lines.append(line)
    header, *chunks = lines or [{}]
    return header, {line["name"]: line for line in chunks}


def preparation(root: Path) -> dict[str, str]:
    """For the fingerprint: what preparing a data set did to its images; empty where it was not prepared."""
    try:
        header, _ = read_manifest(root)
    except OSError:
        return {}
    return {"preparation": str(header["images"])} if header else {}


def recorded_classes(root: Path) -> list[str]:
    """Names of the classes before a data set was prepared, in the order of their labels; none where it has none.

    The file may come from a stranger: other values than a list of different names count as none.
    """
    try:
        names = read_manifest(root)[0].get("classes")
    except OSError:
        return []
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list and len(set(names)) == len(names) else []


def refuse_unfinished(root: Path | None) -> None:
    """Refuse a data set whose preparation was interrupted.

    Raises:
        ValueError: there are fewer samples than its manifest promises.
    """
    if root is None or not (root / MANIFEST).exists():
        return
    header, lines = read_manifest(root)
    promised = header.get("num_train", 0) + header.get("num_eval", 0)
    there = sum(line["samples"] for line in lines.values())
    if there < promised:
        what = f"only {there:,} of {promised:,} samples are written"
        raise ValueError(f"{root / MANIFEST}: {what}; run scripts/prepare_imagenet.py again, which goes on")
