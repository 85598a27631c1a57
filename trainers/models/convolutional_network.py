"""The plain network that `SmallCNN` builds. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal, LeCunNormal

from trainers.models.normalized_relu import normalized_relu


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
        h = F.max_pooling_2d(normalized_relu(self.bn1, x, after=self.conv1), ksize=2)
        h = F.max_pooling_2d(normalized_relu(self.bn2, h, after=self.conv2), ksize=2)
        h = normalized_relu(self.bn3, h, after=self.conv3)
        return self.fc(F.dropout(F.average(h, axis=(2, 3)), ratio=self.dropout))
