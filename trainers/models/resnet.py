"""ResNet-18 to 152 for ImageNet: one dataclass each, made from one table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lr_schedules.units import require_number
from recipes.arguments import require_flag, require_share, younger

if TYPE_CHECKING:
    import chainer

_BASIC = {
    "first": "ResNet-{depth} for ImageNet: {num_blocks} blocks of two 3x3 convolutions.",
    "source": """He et al. 2015, arXiv 1512.03385, table 1 and option B; initial weights: Goyal et al. 2017, arXiv
        1706.02677. ChainerCV 0.13.1 has none: built from its Conv2DBNActiv.""",
    "differs": """without `padded_pool` the first pooling has no padding and keeps the last, partial window, as
        ChainerCV's larger networks do.""",
    "block": "block",
}
_BOTTLENECK = {
    "first": "ResNet-{depth} as the large-minibatch papers train it: the stride of a bottleneck is on its 3x3 "
    "convolution.",
    "source": """Goyal et al. 2017, arXiv 1706.02677 (architecture and initial weights); built from
        chainercv.links.ResNet{depth}, `arch="fb"`, ChainerCV 0.13.1.""",
    "differs": """without `padded_pool` the first pooling is ChainerCV's, which has no padding and keeps the last,
        partial window (112x112 becomes 56x56 all the same); fb.resnet.torch pads by 1.""",
    "block": "bottleneck",
}
_DOCSTRING = """{first}

    {million} million parameters with 1,000 classes, in {num_arrays} arrays. Convolutions without bias, He normal
    (fan out); linear layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance
    (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every {block} start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last {block}'s branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the {num_blocks} {block}s. The draws are the updater's, see `KeyedDropout`.
        padded_pool: pad the first pooling by 1 and drop a partial window, as torchvision and timm do: their weights
            need it, and a model for them.
    Raises:
        ValueError: `zero_last_gamma`, `blur_pool` or `padded_pool` is no bool; `last_gamma` is below 0, or given
            beside `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: {source}
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: {differs}
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """


def _resnet(depth: int, *, million: str, num_arrays: int, num_blocks: int) -> type:
    """The dataclass of one ResNet; the arguments beside `depth` stand in its docstring."""
    name, words = f"ResNet{depth}", _BASIC if depth < 50 else _BOTTLENECK
    numbers = {"depth": depth, "million": million, "num_arrays": num_arrays, "num_blocks": num_blocks}

    class ResNet:
        __doc__ = _DOCSTRING.format(**{key: text.format(**numbers) for key, text in words.items()}, **numbers)
        __qualname__ = name

        zero_last_gamma: bool = True
        last_gamma: float | None = None
        blur_pool: bool = False
        stochastic_depth: float = 0.0
        padded_pool: bool = younger(False)

        def __post_init__(self) -> None:
            require_flag(f"{name}.zero_last_gamma", self.zero_last_gamma)
            if self.last_gamma is not None:
                require_number(f"{name}.last_gamma", self.last_gamma, at_least=0)
                if self.zero_last_gamma:
                    raise ValueError(
                        f"{name}.last_gamma must be null where zero_last_gamma is true, got {self.last_gamma!r}; "
                        "write zero_last_gamma: false"
                    )
            require_flag(f"{name}.blur_pool", self.blur_pool)
            require_flag(f"{name}.padded_pool", self.padded_pool)
            require_share(f"{name}.stochastic_depth", self.stochastic_depth)

        def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
            """The network with all its parameters initialised; `image_size` changes nothing."""
            from trainers.models.imagenet_networks import resnet

            return resnet(depth, num_classes=num_classes, channels=channels, **asdict(self))

    ResNet.__name__ = name
    return dataclass(frozen=True, kw_only=True)(ResNet)


ResNet18 = _resnet(18, million="11.690", num_arrays=62, num_blocks=8)
ResNet34 = _resnet(34, million="21.798", num_arrays=110, num_blocks=16)
ResNet50 = _resnet(50, million="25.557", num_arrays=161, num_blocks=16)
ResNet101 = _resnet(101, million="44.549", num_arrays=314, num_blocks=33)
ResNet152 = _resnet(152, million="60.193", num_arrays=467, num_blocks=50)
