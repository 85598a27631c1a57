"""What contradicts in a recipe of images that change their size over the run."""

from __future__ import annotations

from recipes.reading.read import Reading
from recipes.schema import Recipe
from recipes.schema.image_size import IMAGE_SIZE, image_sizes, keys_of_image_size, late_sizes


def check_image_size(reading: Reading, recipe: Recipe) -> None:
    """Notes contradictions between `image_size` and the augmentations; `trainers.training.build` checks the model's."""
    users = 0
    for index, entry in enumerate(recipe.augmentation.train):
        for key in keys_of_image_size(entry):
            users += 1
            if recipe.image_size is None:
                what, way_out = "means the recipe's `image_size`, which is not there", "add `image_size: 224`"
                reading.refuse(("augmentation", "train", index, key), what, way_out)
    for index, entry in enumerate(recipe.augmentation.eval):
        for key in keys_of_image_size(entry):
            what = "is the size of training images, which is not that of evaluation"
            reading.refuse(("augmentation", "eval", index, key), what, "write the number of pixels")
    end = recipe.augmentation.end
    if end is not None and end.train is not None and recipe.image_size is None:
        for index, entry in enumerate(end.train):
            for key in keys_of_image_size(entry):
                what, way_out = "means the recipe's `image_size`, which is not there", "add `image_size: 224`"
                reading.refuse(("augmentation", "end", "train", index, key), what, way_out)
    elif end is not None:
        late = late_sizes(recipe)
        for size, before in zip(late, image_sizes(recipe)[-len(late) :], strict=True):
            if None not in (size, before) and size != before:
                what = f"makes images of {size} pixels, where `augmentation.train` makes {before}"
                reading.refuse(("augmentation", "end"), what, "write `end.train` with that size")
                break
    if recipe.image_size is not None and not users:
        way_out = "write `size: image_size` into an entry of `augmentation.train`, or remove `image_size`"
        reading.refuse((IMAGE_SIZE,), "is used by no augmentation", way_out)
