"""The ResNets' common check of `last_gamma`, the initial scale of a block's last normalisation.

ChainerCV's ResNet-101.

ChainerCV's ResNet-152.

ResNet-18.

ResNet-34.

ChainerCV's ResNet-50.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lr_schedules.units import require_number
from recipes.arguments import require_flag, require_share


def require_last_gamma(name: str, value: object, *, is_zero: bool) -> None:
    """Refuse an invalid `last_gamma`, and one beside `zero_last_gamma`.

    Args:
        name: class and field, for the message.
        value: a number of at least 0, or None.
        is_zero: the value of `zero_last_gamma`.
    Raises:
        ValueError: `value` is no number or below 0; it is given although `is_zero`.
    """
    if value is None:
        return
    require_number(name, value, at_least=0)
    if is_zero:
        raise ValueError(
            f"{name} must be null where zero_last_gamma is true, got {value!r}; write zero_last_gamma: false"
        )


if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet101:
    """ResNet-101 as the large-minibatch papers train it: the stride of a bottleneck is on its 3x3 convolution.

    44.549 million parameters with 1,000 classes, in 314 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every bottleneck start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last bottleneck's branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the 33 bottlenecks. The draws are the updater's, see `KeyedDropout`.
    Raises:
        ValueError: `zero_last_gamma` or `blur_pool` is no bool; `last_gamma` is below 0, or given beside
            `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: Goyal et al. 2017, arXiv 1706.02677 (architecture and initial weights); built from
        chainercv.links.ResNet101, `arch="fb"`, ChainerCV 0.13.1.
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: ChainerCV's first pooling has no padding and keeps the last, partial window (112x112 becomes 56x56 all the
        same); fb.resnet.torch pads by 1.
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """

    zero_last_gamma: bool = True
    last_gamma: float | None = None
    blur_pool: bool = False
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        require_flag("ResNet101.zero_last_gamma", self.zero_last_gamma)
        require_last_gamma("ResNet101.last_gamma", self.last_gamma, is_zero=self.zero_last_gamma)
        require_flag("ResNet101.blur_pool", self.blur_pool)
        require_share("ResNet101.stochastic_depth", self.stochastic_depth)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.imagenet_networks import bottleneck_network

        return bottleneck_network(101, num_classes=num_classes, channels=channels, **asdict(self))


if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet152:
    """ResNet-152 as the large-minibatch papers train it: the stride of a bottleneck is on its 3x3 convolution.

    60.193 million parameters with 1,000 classes, in 467 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every bottleneck start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last bottleneck's branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the 50 bottlenecks. The draws are the updater's, see `KeyedDropout`.
    Raises:
        ValueError: `zero_last_gamma` or `blur_pool` is no bool; `last_gamma` is below 0, or given beside
            `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: Goyal et al. 2017, arXiv 1706.02677 (architecture and initial weights); built from
        chainercv.links.ResNet152, `arch="fb"`, ChainerCV 0.13.1.
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: ChainerCV's first pooling has no padding and keeps the last, partial window (112x112 becomes 56x56 all the
        same); fb.resnet.torch pads by 1.
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """

    zero_last_gamma: bool = True
    last_gamma: float | None = None
    blur_pool: bool = False
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        require_flag("ResNet152.zero_last_gamma", self.zero_last_gamma)
        require_last_gamma("ResNet152.last_gamma", self.last_gamma, is_zero=self.zero_last_gamma)
        require_flag("ResNet152.blur_pool", self.blur_pool)
        require_share("ResNet152.stochastic_depth", self.stochastic_depth)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.imagenet_networks import bottleneck_network

        return bottleneck_network(152, num_classes=num_classes, channels=channels, **asdict(self))


if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """ResNet-18 for ImageNet: 8 blocks of two 3x3 convolutions.

    11.690 million parameters with 1,000 classes, in 62 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every block start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last block's branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the 8 blocks. The draws are the updater's, see `KeyedDropout`.
    Raises:
        ValueError: `zero_last_gamma` or `blur_pool` is no bool; `last_gamma` is below 0, or given beside
            `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: He et al. 2015, arXiv 1512.03385, table 1 and option B; initial weights: Goyal et al. 2017, arXiv
        1706.02677. ChainerCV 0.13.1 has none: built from its Conv2DBNActiv.
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: the first pooling has no padding and keeps the last, partial window, as ChainerCV's larger networks do.
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """

    zero_last_gamma: bool = True
    last_gamma: float | None = None
    blur_pool: bool = False
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        require_flag("ResNet18.zero_last_gamma", self.zero_last_gamma)
        require_last_gamma("ResNet18.last_gamma", self.last_gamma, is_zero=self.zero_last_gamma)
        require_flag("ResNet18.blur_pool", self.blur_pool)
        require_share("ResNet18.stochastic_depth", self.stochastic_depth)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.imagenet_networks import basic_network

        return basic_network(18, num_classes=num_classes, channels=channels, **asdict(self))


if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet34:
    """ResNet-34 for ImageNet: 16 blocks of two 3x3 convolutions.

    21.798 million parameters with 1,000 classes, in 110 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every block start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last block's branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the 16 blocks. The draws are the updater's, see `KeyedDropout`.
    Raises:
        ValueError: `zero_last_gamma` or `blur_pool` is no bool; `last_gamma` is below 0, or given beside
            `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: He et al. 2015, arXiv 1512.03385, table 1 and option B; initial weights: Goyal et al. 2017, arXiv
        1706.02677. ChainerCV 0.13.1 has none: built from its Conv2DBNActiv.
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: the first pooling has no padding and keeps the last, partial window, as ChainerCV's larger networks do.
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """

    zero_last_gamma: bool = True
    last_gamma: float | None = None
    blur_pool: bool = False
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        require_flag("ResNet34.zero_last_gamma", self.zero_last_gamma)
        require_last_gamma("ResNet34.last_gamma", self.last_gamma, is_zero=self.zero_last_gamma)
        require_flag("ResNet34.blur_pool", self.blur_pool)
        require_share("ResNet34.stochastic_depth", self.stochastic_depth)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.imagenet_networks import basic_network

        return basic_network(34, num_classes=num_classes, channels=channels, **asdict(self))


if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet50:
    """ResNet-50 as the large-minibatch papers train it: the stride of a bottleneck is on its 3x3 convolution.

    25.557 million parameters with 1,000 classes, in 161 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every bottleneck start at 0, so that the network starts shallow.
        last_gamma: initial value of that scale instead, at least 0; null: 1, or 0 with `zero_last_gamma`.
        blur_pool: low-pass filter before the strided convolutions of the stages, [1, 2, 1] in both directions. The
            first convolution and the first pooling stay as they are.
        stochastic_depth: probability that the last bottleneck's branch is dropped for a sample in training, in [0, 1);
            the ratio grows linearly over the 16 bottlenecks. The draws are the updater's, see `KeyedDropout`.
    Raises:
        ValueError: `zero_last_gamma` or `blur_pool` is no bool; `last_gamma` is below 0, or given beside
            `zero_last_gamma`; `stochastic_depth` is outside [0, 1).

    Source: Goyal et al. 2017, arXiv 1706.02677 (architecture and initial weights); built from
        chainercv.links.ResNet50, `arch="fb"`, ChainerCV 0.13.1.
        `last_gamma`: Nado et al. 2021, arXiv 2102.06356 (not checked).
        `blur_pool`: Zhang 2019, arXiv 1904.11486 (the kernel); libffcv/ffcv-imagenet, train_imagenet.py (its place).
        `stochastic_depth`: Huang et al. 2016, arXiv 1603.09382.
    Differs: ChainerCV's first pooling has no padding and keeps the last, partial window (112x112 becomes 56x56 all the
        same); fb.resnet.torch pads by 1.
        Composer's BlurPool also blurs the max pooling, and counts a blur behind a convolution of stride 1 as nearer to
        the paper. `stochastic_depth` is drawn for each sample, not once for the batch. Neither paper was at hand.
    """

    zero_last_gamma: bool = True
    last_gamma: float | None = None
    blur_pool: bool = False
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        require_flag("ResNet50.zero_last_gamma", self.zero_last_gamma)
        require_last_gamma("ResNet50.last_gamma", self.last_gamma, is_zero=self.zero_last_gamma)
        require_flag("ResNet50.blur_pool", self.blur_pool)
        require_share("ResNet50.stochastic_depth", self.stochastic_depth)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.imagenet_networks import bottleneck_network

        return bottleneck_network(50, num_classes=num_classes, channels=channels, **asdict(self))
