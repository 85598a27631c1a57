"""The network that `WideResNet` builds. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal, LeCunNormal

from trainers.models.normalized_relu import normalized_relu


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
        activated = normalized_relu(self.bn1, x)
        h = normalized_relu(self.bn2, activated, after=self.conv1)
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
        return self.fc(F.average(normalized_relu(self.bn, h), axis=(2, 3)))
