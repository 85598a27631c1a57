import pytest

from recipes.errors import InputRefused
from recipes.open import open_recipe
from trainers.build import build_model
from trainers.vocabulary import vocabulary


def sizes(train, evaluation):
    """Augmentations that end in images of these sides; None leaves the data set's 8x8."""
    return [
        f"augmentation.{split}=[{{kind: Resize, shorter: 64}}, {{kind: {crop}, size: {size}}}]" if size else "seed=0"
        for split, crop, size in (("train", "RandomCrop", train), ("eval", "CenterCrop", evaluation))
    ]


def built(*overrides):
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    return build_model(opened.recipe, opened.dataset)


def test_a_model_of_one_size_is_built_for_the_images_it_is_trained_on():
    assert built("model={kind: AlexNetBN}", *sizes(48, 48)).image_size == 48
    assert built("model={kind: AlexNetBN}", *sizes(48, None)).image_size == 48


def test_a_model_of_one_size_is_refused_where_it_would_be_scored_at_another():
    message = "AlexNetBN takes images of one size, and would be trained on 48x48 and scored on 40x40; give both"
    with pytest.raises(InputRefused, match=message):
        built("model={kind: AlexNetBN}", *sizes(48, 40))


def test_a_model_that_averages_may_be_scored_at_another_size():
    assert built(*sizes(48, 40)).count_params() > 0


@pytest.mark.parametrize("name", ["AlexNetBN", "VGG16"])
def test_images_too_small_for_a_model_are_refused(name):
    with pytest.raises(InputRefused, match=f"{name} needs larger images: nothing is left of 8x8 pixels"):
        built(f"model={{kind: {name}}}")
