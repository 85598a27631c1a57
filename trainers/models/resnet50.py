"""ChainerCV's ResNet-50."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_flag

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class ResNet50:
    """ResNet-50 as the large-minibatch papers train it: the stride of a bottleneck is on its 3x3 convolution.

    25.557 million parameters with 1,000 classes, in 161 arrays. Convolutions without bias, He normal (fan out); linear
    layer N(0, 0.01) with bias 0; scales 1 and shifts 0. Normalisation adds 2e-5 to the variance (Chainer's value).

    Args:
        zero_last_gamma: let the last scale of every bottleneck start at 0, so that the network starts shallow.
    Raises:
        ValueError: `zero_last_gamma` is no bool.

    Source: Goyal et al. 2017, arXiv 1706.02677 (architecture and initial weights); built from chainercv.links.ResNet50,
        `arch="fb"`, ChainerCV 0.13.1.
    Differs: ChainerCV's first pooling has no padding and keeps the last, partial window (112x112 becomes 56x56 all the
        same); fb.resnet.torch pads by 1.
    """

    zero_last_gamma: bool = True

    def __post_init__(self) -> None:
        require_flag("ResNet50.zero_last_gamma", self.zero_last_gamma)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        import chainer
        import numpy as np
        from chainercv.links import ResNet50 as ChainerCVResNet50

        # A dictionary of our own: ChainerCV writes into its default argument, which later networks then share.
        linear = {"initialW": chainer.initializers.Normal(0.01)}
        model = ChainerCVResNet50(n_class=num_classes, arch="fb", fc_kwargs=linear)
        model.pick = "fc6"  # logits; the softmax behind it belongs to the loss
        # ChainerCV leaves the number of input channels open until the first forward.
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            model(np.zeros((1, channels, 32, 32), dtype=np.float32))
        if self.zero_last_gamma:
            for stage in (model.res2, model.res3, model.res4, model.res5):
                for bottleneck in stage.children():
                    gamma = bottleneck.conv3.bn.gamma
                    gamma.initializer = chainer.initializers.Constant(0, dtype=gamma.dtype)
                    gamma.initialize(gamma.shape)
        return model
