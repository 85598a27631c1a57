"""Models: each a frozen dataclass whose `build` gives a `chainer.Chain` from float32 NCHW to logits."""

from trainers.models.resnet50 import ResNet50
from trainers.models.small_cnn import SmallCNN
from trainers.models.small_resnet import SmallResNet

__all__ = ["ResNet50", "SmallCNN", "SmallResNet"]
