"""Curves of the library's recipes, as they were when somebody last looked at them.

After a change that is meant, write them anew and read the difference before committing it:

    PYTHONPATH=. .venv/bin/python tests/recipes/papers/test_golden_curves.py && git diff tests/golden
"""

import json
from pathlib import Path

import pytest

import trainers.compat  # noqa: F401
from recipes.planning.rates import batch_size_at, image_size_at, learning_rate_at, momentum_at, norm_span_at
from recipes.planning.timeline import timeline_of
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from trainers.launch.vocabulary import vocabulary

FOLDER = Path(__file__).parents[2] / "golden" / "curves"
NUM_POINTS = 40


def curve(name):
    """40 updates from the first to the last, as evenly as whole updates allow."""
    opened = open_recipe(name, vocabulary=vocabulary())
    recipe, updates = opened.recipe, timeline_of(opened.recipe, opened.dataset)
    moves = recipe.image_size is not None and len(set(recipe.image_size.sizes)) > 1
    points = []
    for update in (point * (updates.num_updates - 1) // (NUM_POINTS - 1) for point in range(NUM_POINTS)):
        epoch = updates.epoch_at(update)
        points.append(
            {
                "update": update,
                "epoch": epoch,
                "samples": updates.samples_at(update),
                "global_batch_size": batch_size_at(recipe, epoch),
                "norm_span": norm_span_at(recipe, epoch),
                "learning_rate": learning_rate_at(recipe, epoch),
                "momentum": momentum_at(recipe, epoch),
                **({"image_size": image_size_at(recipe, epoch)} if moves else {}),
            }
        )
    return {"num_updates": updates.num_updates, "num_samples": updates.num_samples, "points": points}


@pytest.mark.parametrize(
    "name", sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json"))
)
def test_curve_is_the_golden_one(name):
    golden, now = json.loads((FOLDER / f"{name}.json").read_text()), curve(name)
    points, golden_points = now.pop("points"), golden.pop("points")
    assert now == golden
    assert len(points) == len(golden_points) == NUM_POINTS
    for point, expected in zip(points, golden_points, strict=True):
        # The cosine of another C library may differ in the last bit; nothing else may.
        assert point.pop("learning_rate") == pytest.approx(expected.pop("learning_rate"), rel=1e-14, abs=1e-17)
        assert point == expected


if __name__ == "__main__":
    for recipe_name in names("recipes"):
        path = FOLDER / f"{recipe_name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(curve(recipe_name), indent=1) + "\n")
