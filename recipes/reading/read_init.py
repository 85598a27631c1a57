"""The weights that a run begins with: their file is found and hashed when a recipe is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from shlex import quote
from typing import Any

from recipes.reading.read import REFUSED, Path, Reading
from recipes.schema import Init

_COPY = "init.safetensors"  # in the folder of a run
_OTHER_FILE = "put the file there that this recipe means (of a run's copy the original), or remove this"


def read_init(reading: Reading, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
    """Weights to begin with, with the absolute path of their file and its SHA-256.

    Where the file is gone, the copy of a run that is resumed serves. A file that is not here is refused only where the
    recipe does not know its SHA-256: others can plan it all the same.
    """
    init, tree = reading.value(Init | None, raw, path)
    if init is None or init is REFUSED:
        return init, tree
    file, digest = os.path.abspath(os.path.expanduser(init.weights)), init.sha256  # from here, if an option gives it
    if not os.path.isfile(file):
        copies = (os.path.abspath(folder / _COPY) for folder in reading.copies_in)
        file = next(filter(os.path.isfile, copies), file)
    if os.path.isfile(file):
        with open(file, "rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest is None:
        what = f"there is no file {file}"
        way_out = "give its path from the folder of this file, or its sha256 to plan without it"
        if os.path.isdir(file):
            what = f"{file} is a folder, and no file of weights"
            export = f"kilobatch export {quote(init.weights)} --format safetensors"
            way_out = f"`{export}` writes model.safetensors into the folder of a run: name that"
        return reading.refuse((*path, "weights"), what, way_out), tree
    if init.sha256 not in (None, digest):
        what = f"the SHA-256 of {file} is {digest}"
        return reading.refuse((*path, "sha256"), what, _OTHER_FILE), tree
    if init.sha256 is None:
        reading.notes[(*path, "sha256")] = "rule: of the file"
    init = dataclasses.replace(init, weights=file, sha256=digest)
    return init, {**tree, "weights": file, "sha256": digest}
