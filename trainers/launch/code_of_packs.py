"""Own code that a stranger's pack names: it must be the pack's, not a file of the user's that has the module's name."""

from __future__ import annotations

import operator
from functools import reduce

from recipes.errors import InputRefused
from recipes.reading.open import OpenedRecipe, leaves
from recipes.reading.read import dotted
from recipes.reading.registry import SHOWN_PACK, is_of_pack
from trainers.runs.identity import own_code


def require_code_of_packs(opened: OpenedRecipe) -> None:
    """Refuse files of the user's for modules that a pack names: they would be trained, and packed, in place of its own.

    A file with the bytes of the pack's own is none.

    Raises:
        InputRefused: names the line of the pack and the file.
    """
    named = [(opened.origins.get("dataset", ""), opened.dataset_tree)]
    for leaf in leaves(opened.tree):
        if leaf[-1:] == ("kind",):
            kind = reduce(operator.getitem, leaf, opened.tree)
            named.append((opened.origins[dotted(leaf)], {"kind": kind}))
    of_packs = [folder for folder in opened.code_folders if is_of_pack(folder)]
    for origin, tree in named:
        if not origin.startswith(SHOWN_PACK):
            continue
        theirs = {name: file.read_bytes() for name, file in own_code([tree], of_packs).items()}
        for name, file in own_code([tree], opened.code_folders).items():
            if not is_of_pack(file) and file.read_bytes() != theirs.get(name):
                what = f"{origin}: names code of the pack, and your {file} would take its place as {name}"
                raise InputRefused(f"{what}; name it in a recipe of your own if you mean it, or move it away")
