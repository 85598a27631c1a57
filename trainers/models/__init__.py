"""Models: each a frozen dataclass whose `build` gives a `chainer.Chain` from float32 NCHW to logits."""

from trainers.models.cifar_resnet import CifarResNet
from trainers.models.resnet50 import ResNet50
from trainers.models.small_cnn import SmallCNN
from trainers.models.small_resnet import SmallResNet
from trainers.models.wide_resnet import WideResNet

__all__ = ["CifarResNet", "ResNet50", "SmallCNN", "SmallResNet", "WideResNet"]
