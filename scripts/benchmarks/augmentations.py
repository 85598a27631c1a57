"""Images a second that each augmentation makes on one core, beside a peer that does the same.

    .venv/bin/python scripts/benchmarks/augmentations.py
    .venv/bin/python scripts/benchmarks/augmentations.py --size 224 --images 32 --rounds 15 --json F

The images are smooth colours with edges, uint8, of `--size` pixels. An augmentation is called as the pipeline calls it:
draws of its own for each image, one after the other. A peer is what another library would call, with random numbers of
its own:

    Resize, CenterCrop, ...    the same steps by Pillow alone
    PcaLighting                ChainerCV's pca_lighting, which neither clips nor rounds back to uint8
    ColorJitter                Pillow's ImageEnhance in a random order, without the hue
    RandAugment                timm's rand-m9-n2-inc1, where it is installed
    TrivialAugment             torchvision's TrivialAugmentWide, bilinear, where it is installed

Ours and peer take turns within a round; a figure is the median over the rounds, a ratio that of ours over the peer's
within the same round. The clock counts processor time, which other processes hardly change; the first round is not
counted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from timing import head, parser_of, row, write_json

import trainers.compat  # noqa: F401
from recipes.planning.random_bits import draws
from trainers.augmentations import (
    CenterCrop,
    ColorJitter,
    Cutout,
    HorizontalFlip,
    Normalize,
    PcaLighting,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    TrivialAugment,
)

Peer = Callable[[np.ndarray], Any]


def cases(size: int) -> dict[str, tuple[Callable[..., np.ndarray], Peer | None]]:
    """All augmentations on images of `size` pixels with usual settings, and their peers on a uint8 HWC image."""
    small, jitter = 7 * size // 8, {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
    return {
        "RandomResizedCrop": (RandomResizedCrop(size=size), lambda image: pillow_crop(image, size)),
        "RandomCrop": (RandomCrop(size=size, padding=size // 8), None),
        "HorizontalFlip": (HorizontalFlip(), pillow_flip),
        "Resize": (Resize(shorter=small), lambda image: pillow_resize(image, small)),
        "CenterCrop": (CenterCrop(size=small), None),
        "Normalize": (Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), None),
        "ColorJitter": (ColorJitter(**jitter), pillow_jitter),
        "ColorJitter, hue": (ColorJitter(**jitter, hue=0.1), None),
        "PcaLighting": (PcaLighting(), chainercv_lighting),
        "RandAugment": (RandAugment(), timm_augment()),
        "TrivialAugment": (TrivialAugment(), torchvision_augment()),
        "RandomErasing": (RandomErasing(probability=1.0), None),
        "Cutout": (Cutout(size=size // 2), None),
    }


def pillow_resize(image_HWC: np.ndarray, size: int, box: tuple[int, ...] | None = None) -> np.ndarray:
    return np.asarray(Image.fromarray(image_HWC).resize((size, size), Image.Resampling.BILINEAR, box=box))


def pillow_crop(image_HWC: np.ndarray, size: int) -> np.ndarray:
    """Half of the image, at a random place, resized."""
    height, width, _ = image_HWC.shape
    top, left = random.randrange(height // 4), random.randrange(width // 4)
    return pillow_resize(image_HWC, size, (left, top, left + 3 * width // 4, top + 3 * height // 4))


def pillow_flip(image_HWC: np.ndarray) -> np.ndarray:
    image = Image.fromarray(image_HWC)
    return np.asarray(ImageOps.mirror(image) if random.random() < 0.5 else image)


def pillow_jitter(image_HWC: np.ndarray) -> np.ndarray:
    """Brightness, contrast and saturation in a random order."""
    image = Image.fromarray(image_HWC)
    enhancements = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    random.shuffle(enhancements)
    for enhance in enhancements:
        image = enhance(image).enhance(random.uniform(0.6, 1.4))
    return np.asarray(image)


def chainercv_lighting(image_HWC: np.ndarray) -> np.ndarray:
    """Lighting noise, with the conversions to its CHW and back."""
    from chainercv.transforms import pca_lighting

    return pca_lighting(image_HWC.transpose(2, 0, 1).astype(np.float32), 25.5).transpose(1, 2, 0)


def timm_augment() -> Peer | None:
    """timm's RandAugment at the same magnitude, None where it is not installed."""
    try:
        from timm.data.auto_augment import rand_augment_transform
    except ImportError:
        return None
    augment = rand_augment_transform("rand-m9-n2-inc1", {})
    return lambda image_HWC: np.asarray(augment(Image.fromarray(image_HWC)))


def torchvision_augment() -> Peer | None:
    """torchvision's TrivialAugment, None where it is not installed."""
    try:
        from torchvision.transforms import InterpolationMode, TrivialAugmentWide
    except ImportError:
        return None
    augment = TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)
    return lambda image_HWC: np.asarray(augment(Image.fromarray(image_HWC)))


def photos(count: int, size: int) -> list[np.ndarray]:
    """Smooth colours with edges, uint8."""
    rows, columns = np.mgrid[:size, :size]
    images = []
    for number in range(count):
        waves = [127 + 120 * np.sin(rows / (9 + k + number) + columns / (15 - k)) for k in range(3)]
        image_HWC = np.stack(waves, axis=2).astype(np.uint8)
        image_HWC[size // 4 : size // 2, size // 3 :] = 250 - 5 * number
        images.append(image_HWC)
    return images


def rate(call: Callable[[np.ndarray, int], Any], images: list[np.ndarray]) -> float:
    began = time.process_time()
    for index, image_HWC in enumerate(images):
        call(image_HWC, index)
    return len(images) / (time.process_time() - began)


def measured(
    ours: Callable[..., np.ndarray], peer: Peer | None, images: list[np.ndarray], rounds: int
) -> dict[str, float | None]:
    """Medians over the rounds: images a second, the peer's, and the ratio within a round."""
    calls = [lambda image, index: ours(image, draws(0, "augmentation", 0, index, 0))]
    calls += [lambda image, index: peer(image)] if peer else []
    rates = [[rate(call, images) for call in calls] for _ in range(rounds + 1)][1:]
    return {
        "images_per_second": statistics.median(round_[0] for round_ in rates),
        "peer_images_per_second": statistics.median(round_[1] for round_ in rates) if peer else None,
        "ratio": statistics.median(round_[0] / round_[1] for round_ in rates) if peer else None,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels (224)")
    parser.add_argument("--images", type=int, default=32, help="images of a round (32)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that are counted (15)")
    options = parser.parse_args()
    images = photos(options.images, options.size)
    random.seed(0)
    print(head(["augmentation", "images/s", "peer", "ratio"]), flush=True)
    figures = {}
    for name, (ours, peer) in cases(options.size).items():
        figures[name] = measured(ours, peer, images, options.rounds)
        of_ours, of_peer, ratio = figures[name].values()
        print(row([name, f"{of_ours:,.0f}", *((f"{of_peer:,.0f}", f"{ratio:.2f}") if peer else ("", ""))]), flush=True)
    settings = {"size": options.size, "images": options.images, "rounds": options.rounds}
    write_json(options.json, {**settings, "augmentations": figures})


if __name__ == "__main__":
    main()
