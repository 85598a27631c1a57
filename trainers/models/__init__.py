"""Models: each a frozen dataclass whose `build` gives a `chainer.Chain` from float32 NCHW to logits."""

from trainers.models.alexnet_bn import AlexNetBN
from trainers.models.cifar_resnet import CifarResNet
from trainers.models.resnet18 import ResNet18
from trainers.models.resnet34 import ResNet34
from trainers.models.resnet50 import ResNet50
from trainers.models.resnet101 import ResNet101
from trainers.models.resnet152 import ResNet152
from trainers.models.small_cnn import SmallCNN
from trainers.models.small_resnet import SmallResNet
from trainers.models.vgg16 import VGG16
from trainers.models.wide_resnet import WideResNet

__all__ = [
    "AlexNetBN",
    "CifarResNet",
    "ResNet101",
    "ResNet152",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "SmallCNN",
    "SmallResNet",
    "VGG16",
    "WideResNet",
]
