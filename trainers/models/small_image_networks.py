"""Networks for small images: plain, residual and wide residual. Imports Chainer."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal, LeCunNormal

from trainers.runs.errors import UnfitImage


class ConvolutionalNetwork(chainer.Chain):
    """Three 3x3 convolutions with batch normalisation and ReLU, 2x2 max pooling between them, average, linear layer.

    Args:
        num_in: channels of an image.
        num_classes: logits.
        width: channels of the first convolution; the others have 2 and 4 times as many.
        dropout: probability that a feature of the average is dropped while training.
        first_stride: stride of the first convolution.
    """

    def __init__(self, num_in: int, num_classes: int, *, width: int, dropout: float, first_stride: int) -> None:
        super().__init__()
        self.dropout = dropout
        with self.init_scope():
            self.conv1 = L.Convolution2D(num_in, width, 3, first_stride, pad=1, nobias=True, initialW=HeNormal())
            self.bn1 = L.BatchNormalization(width)
            self.conv2 = L.Convolution2D(width, 2 * width, 3, pad=1, nobias=True, initialW=HeNormal())
            self.bn2 = L.BatchNormalization(2 * width)
            self.conv3 = L.Convolution2D(2 * width, 4 * width, 3, pad=1, nobias=True, initialW=HeNormal())
            self.bn3 = L.BatchNormalization(4 * width)
            self.fc = L.Linear(4 * width, num_classes, initialW=LeCunNormal())

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Logits, samples x classes."""
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), ksize=2)
        h = F.max_pooling_2d(F.relu(self.bn2(self.conv2(h))), ksize=2)
        h = F.relu(self.bn3(self.conv3(h)))
        return self.fc(F.dropout(F.average(h, axis=(2, 3)), ratio=self.dropout))


def require_side(images_NCHW: chainer.Variable, side: int, name: str) -> None:
    """Refuse images of another size than a model was built for; `name` is that of the model.

    Raises:
        UnfitImage: they are of another size.
    """
    height, width = images_NCHW.shape[2:]
    if (height, width) != (side, side):
        raise UnfitImage(
            f"{name} was built for images of {side}x{side} pixels and got {height}x{width}: its first linear layer "
            "takes every pixel; give the images for training and for evaluation one size, or take a model that "
            "averages them, such as ResNet50"
        )


class SimpleNetwork(chainer.Chain):
    """Two 5x5 convolutions with ReLU and 2x2 max pooling, a hidden linear layer with ReLU and dropout, a linear layer.

    Args:
        num_in: channels of an image.
        num_classes: logits.
        image_size: side of an image in pixels, at least 4.
        widths: channels of the convolutions.
        hidden: features of the hidden layer.
        dropout: probability that one of them is dropped while training.
    """

    def __init__(
        self, num_in: int, num_classes: int, *, image_size: int, widths: tuple[int, int], hidden: int, dropout: float
    ) -> None:
        if image_size < 4:
            raise ValueError(f"SimpleCNN needs images of at least 4 pixels, got {image_size}")
        super().__init__()
        self.dropout, self.image_size = dropout, image_size
        first, second = widths
        with self.init_scope():
            self.conv1 = L.Convolution2D(num_in, first, 5, pad=2, initialW=HeNormal())
            self.conv2 = L.Convolution2D(first, second, 5, pad=2, initialW=HeNormal())
            self.hidden = L.Linear((image_size // 4) ** 2 * second, hidden, initialW=HeNormal())
            self.fc = L.Linear(hidden, num_classes, initialW=LeCunNormal())

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Logits, samples x classes.

        Raises:
            UnfitImage: the images are of another size than the network was built for.
        """
        require_side(x, self.image_size, "SimpleCNN")
        for convolution in (self.conv1, self.conv2):
            x = F.relu(F.max_pooling_2d(convolution(x), ksize=2, cover_all=False))  # a quarter of the values for ReLU
        return self.fc(F.dropout(F.relu(self.hidden(x)), ratio=self.dropout))


class ResidualBlock(chainer.Chain):
    """Basic block with the activation after the sum ("post-activation").

        y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))

    The shortcut is the identity. Where the shape changes it is a 1x1 convolution with batch normalisation
    (`projection`, the paper's option B), or every `stride`-th pixel with zeros for the new channels (`identity_pad`,
    option A, no parameters).

    Args:
        num_in: channels of `x`.
        num_out: channels of `y`.
        stride: of the first convolution and of the shortcut.
        zero_last_gamma: let bn2's scale start at 0, so that the block starts as its shortcut.
        shortcut: `projection` or `identity_pad`.

    Source: He et al. 2015, arXiv 1512.03385, figure 2 left. Zero gamma: Goyal et al. 2017, arXiv 1706.02677.
    """

    def __init__(
        self, num_in: int, num_out: int, *, stride: int, zero_last_gamma: bool, shortcut: str = "projection"
    ) -> None:
        super().__init__()
        self.changes_shape = num_in != num_out or stride != 1
        self.projects = self.changes_shape and shortcut == "projection"
        self.stride = stride
        self.num_out = num_out
        with self.init_scope():
            self.conv1 = L.Convolution2D(num_in, num_out, 3, stride, 1, nobias=True, initialW=HeNormal())
            self.bn1 = L.BatchNormalization(num_out)
            self.conv2 = L.Convolution2D(num_out, num_out, 3, 1, 1, nobias=True, initialW=HeNormal())
            self.bn2 = L.BatchNormalization(num_out, initial_gamma=0 if zero_last_gamma else 1)
            if self.projects:
                self.shortcut_conv = L.Convolution2D(num_in, num_out, 1, stride, nobias=True, initialW=HeNormal())
                self.shortcut_bn = L.BatchNormalization(num_out)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Samples x `num_out` x height / stride x width / stride, rounded up."""
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self._shortcut(x))

    def _shortcut(self, x: chainer.Variable) -> chainer.Variable:
        if self.projects:
            return self.shortcut_bn(self.shortcut_conv(x))
        if not self.changes_shape:
            return x
        kept = x[:, :, :: self.stride, :: self.stride]
        num_samples, num_in, height, width = kept.shape
        zeros = self.xp.zeros((num_samples, self.num_out - num_in, height, width), dtype=kept.dtype)
        return F.concat([kept, zeros], axis=1)


class ResidualNetwork(chainer.Chain):
    """A 3x3 convolution, stages of residual blocks, a global average and a linear layer.

    Args:
        num_in: channels of an image.
        num_classes: logits.
        width: channels of the first stage; each stage has twice as many as the one before, at half the size.
        blocks: blocks in each stage.
        zero_last_gamma, shortcut: see `ResidualBlock`.
    """

    def __init__(
        self,
        num_in: int,
        num_classes: int,
        *,
        width: int,
        blocks: tuple[int, ...],
        zero_last_gamma: bool,
        shortcut: str = "projection",
    ) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(num_in, width, 3, pad=1, nobias=True, initialW=HeNormal())
            self.bn1 = L.BatchNormalization(width)
            self.blocks = chainer.ChainList()
            num_in = width
            for stage, num_blocks in enumerate(blocks):
                num_out = width * 2**stage
                for place in range(num_blocks):
                    stride = 2 if stage > 0 and place == 0 else 1
                    block = ResidualBlock(
                        num_in, num_out, stride=stride, zero_last_gamma=zero_last_gamma, shortcut=shortcut
                    )
                    self.blocks.append(block)
                    num_in = num_out
            self.fc = L.Linear(num_in, num_classes, initialW=LeCunNormal())

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Logits, samples x classes."""
        h = F.relu(self.bn1(self.conv1(x)))
        for block in self.blocks:
            h = block(h)
        return self.fc(F.average(h, axis=(2, 3)))


class WideBlock(chainer.Chain):
    """Basic block with normalisation and activation before each convolution ("pre-activation").

        a = relu(bn1(x));    y = conv2(dropout(relu(bn2(conv1(a))))) + shortcut

    The shortcut is x, or a 1x1 convolution of a where the number of channels changes.

    Args:
        num_in: channels of `x`.
        num_out: channels of `y`.
        stride: of the first convolution and of the shortcut; 1 where the number of channels stays.
        dropout: probability that a value between the convolutions is dropped while training.
    """

    def __init__(self, num_in: int, num_out: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        assert stride == 1 or num_in != num_out
        self.dropout = dropout
        self.projects = num_in != num_out
        he = HeNormal(fan_option="fan_out")
        with self.init_scope():
            self.bn1 = L.BatchNormalization(num_in)
            self.conv1 = L.Convolution2D(num_in, num_out, 3, stride, 1, nobias=True, initialW=he)
            self.bn2 = L.BatchNormalization(num_out)
            self.conv2 = L.Convolution2D(num_out, num_out, 3, 1, 1, nobias=True, initialW=he)
            if self.projects:
                self.shortcut_conv = L.Convolution2D(num_in, num_out, 1, stride, nobias=True, initialW=he)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Samples x `num_out` x height / stride x width / stride, rounded up."""
        activated = F.relu(self.bn1(x))
        h = F.relu(self.bn2(self.conv1(activated)))
        if self.dropout:
            h = F.dropout(h, ratio=self.dropout)
        return self.conv2(h) + (self.shortcut_conv(activated) if self.projects else x)


class WideResidualNetwork(chainer.Chain):
    """A 3x3 convolution, three stages of wide blocks, normalisation, a global average and a linear layer.

    Args:
        num_in: channels of an image.
        num_classes: logits.
        blocks: blocks in each stage.
        widen: the stages have 16, 32 and 64 times as many channels.
        dropout: see `WideBlock`.
    """

    def __init__(self, num_in: int, num_classes: int, *, blocks: int, widen: int, dropout: float) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(num_in, 16, 3, pad=1, nobias=True, initialW=HeNormal(fan_option="fan_out"))
            self.blocks = chainer.ChainList()
            num_in = 16
            for stage in range(3):
                num_out = 16 * widen * 2**stage
                for place in range(blocks):
                    stride = 2 if stage > 0 and place == 0 else 1
                    self.blocks.append(WideBlock(num_in, num_out, stride=stride, dropout=dropout))
                    num_in = num_out
            self.bn = L.BatchNormalization(num_in)
            self.fc = L.Linear(num_in, num_classes, initialW=LeCunNormal())

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Logits, samples x classes."""
        h = self.conv1(x)
        for block in self.blocks:
            h = block(h)
        return self.fc(F.average(F.relu(self.bn(h)), axis=(2, 3)))
