"""Any value in any place of a recipe: it opens, or is refused with a place and a way out."""

import copy
import json

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

VALUES = [None, 0, -1, True, "x", "", [], {}, [[1, 2]], {"kind": "x"}, 1e300, 10**18, "500up", "9" * 30 + "up"]


def paths(tree, path=()):
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths(value, (*path, key))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_recipe_with_this_value_anywhere_opens_or_is_refused(value, tmp_path):
    whole = open_recipe("digits/ramp", vocabulary=vocabulary()).tree
    file = tmp_path / "changed.yaml"
    refusals = []
    for path in list(paths(whole))[1 + VALUES.index(value) % 4 :: 4]:  # each path has a quarter of the values
        changed = copy.deepcopy(whole)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        file.write_text(json.dumps(changed))
        try:
            open_recipe(file, vocabulary=vocabulary())
        except RecipeError as error:
            refusals.append(error)
    assert len(refusals) > 10
    for error in refusals:
        assert len(str(error).splitlines()) == len(error.problems)
        assert all(problem.way_out and problem.line == 1 for problem in error.problems)
