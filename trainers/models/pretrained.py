"""What a file of weights of a ResNet wants of the recipe that begins with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from recipes.errors import InputRefused

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of torchvision's and timm's ResNets
_POOLING = {"padded_pool": "true", "blur_pool": "false"}  # torchvision's, as an export's metadata have it
# Blocks of the four stages, and whether a block has a third convolution.
_RESNETS = {
    ((2, 2, 2, 2), False): "ResNet18",
    ((3, 4, 6, 3), False): "ResNet34",
    ((3, 4, 6, 3), True): "ResNet50",
    ((3, 4, 23, 3), True): "ResNet101",
    ((3, 8, 36, 3), True): "ResNet152",
}


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A trained ResNet, as its file describes it.

    Args:
        kind: of `model`.
        keys: its other keys.
        channels: of its images.
        mean, std: of each channel, by which its images were normalised, on a scale from 0 to 1.
        size: height and width of its images in pixels; None where the file does not say it.
    """

    kind: str
    keys: dict[str, bool]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None


def pretrained(file: Path) -> Pretrained:
    """The ResNet whose weights a file holds by torchvision's names: torchvision's, timm's, or an export of a run.

    An export says in its metadata how its run pooled and normalised; of others it is as torchvision does.

    Raises:
        InputRefused: the file cannot be read, is none of safetensors, or holds no such weights.
    """
    way_out = "docs/weights.md says how to make one; other networks begin with `init` of a recipe of theirs"
    try:
        with safe_open(file, "np") as opened:
            names, facts = opened.keys(), opened.metadata() or {}
            kind = resnet_with(names)
            if kind is None:
                raise InputRefused(f"{file} holds no ResNet's weights by torchvision's names; {way_out}")
            channels = opened.get_slice("conv1.weight").get_shape()[1]
    except OSError as error:
        raise InputRefused(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise InputRefused(f"{file}: no file of safetensors ({error}); {way_out}") from None
    mean, std, size = _images(file, facts)
    if len(mean) != channels:
        raise InputRefused(f"{file} is for {channels} channels, and does not say how they are normalised; {way_out}")
    keys = {key: facts.get(f"model.{key}", usual) == "true" for key, usual in _POOLING.items()}
    return Pretrained(kind=kind, keys=keys, channels=channels, mean=mean, std=std, size=size)


def _images(file: Path, facts: Mapping[str, str]) -> tuple[tuple[float, ...], tuple[float, ...], int | None]:
    """Mean, standard deviation and size of the images that weights were scored on, by the metadata of an export."""
    if "augmentation.eval" not in facts:
        return *_IMAGENET, None
    try:
        transforms = {each["kind"]: each for each in json.loads(facts["augmentation.eval"])}
        mean, std = (tuple(map(float, transforms["Normalize"][key])) for key in ("mean", "std"))
        crop = transforms.get("CenterCrop")
        return mean, std, None if crop is None else int(crop["size"])
    except (LookupError, TypeError, ValueError) as error:
        what = f"its metadata are not as `kilobatch export` writes them ({type(error).__name__}: {error})"
        raise InputRefused(f"{file}: {what}; export it again") from None


def resnet_with(names: Iterable[str]) -> str | None:
    """The ResNet whose arrays have these names in torchvision, as a kind of model; None for none.

    >>> resnet_with(["conv1.weight", *(f"layer{stage}.{block}.conv1.weight" for stage in "1234" for block in "01")])
    'ResNet18'
    """
    blocks = [set(), set(), set(), set()]
    has_third = False
    for name in names:
        if found := re.match(r"layer([1-4])\.([0-9]+)\.conv([123])\.weight", name):
            blocks[int(found[1]) - 1].add(found[2])
            has_third = has_third or found[3] == "3"
    return _RESNETS.get((tuple(map(len, blocks)), has_third))
