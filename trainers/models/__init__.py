"""Models: each a frozen dataclass whose `build` gives a `chainer.Chain` from float32 NCHW to logits.

Networks enter here, with normalisation over norm groups and draws that are keyed by sample. This room imports from
communicators, kernels and runs.
"""

from trainers.models.resnet import ResNet18, ResNet34, ResNet50, ResNet101, ResNet152
from trainers.models.small_images import CifarResNet, SimpleCNN, SmallCNN, SmallResNet, WideResNet
from trainers.models.vgg_alexnet import VGG16, AlexNetBN

__all__ = [
    "AlexNetBN",
    "CifarResNet",
    "ResNet101",
    "ResNet152",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "SimpleCNN",
    "SmallCNN",
    "SmallResNet",
    "VGG16",
    "WideResNet",
]
