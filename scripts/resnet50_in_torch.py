"""ResNet-50 in PyTorch, layer for layer and name for name ChainerCV's with `arch="fb"`: to measure beside it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from resnet50_in_chainer import RATE
from torch import nn

_STAGES = {"res2": (3, 64, 1), "res3": (4, 128, 2), "res4": (6, 256, 2), "res5": (3, 512, 2)}
_NAMES = {"W": "weight", "gamma": "weight", "beta": "bias", "b": "bias"}  # Chainer's, PyTorch's


class Normalised(nn.Module):
    """A convolution without bias and its batch normalisation."""

    def __init__(self, num_in: int, num_out: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(num_out, eps=2e-5, momentum=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1; ReLU after each but the last, and after the sum."""

    def __init__(self, num_in: int, width: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        self.conv1 = Normalised(num_in, width, 1)
        self.conv2 = Normalised(width, width, 3, stride)
        self.conv3 = Normalised(width, 4 * width, 1)
        if projects:
            self.residual_conv = Normalised(num_in, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        h = self.conv3(h)
        h += self.residual_conv(x) if hasattr(self, "residual_conv") else x
        return torch.relu_(h)


class ResNet50(nn.Module):
    """Logits of images (samples, 3, height, width)."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = Normalised(3, 64, 7, 2)
        num_in = 64
        for stage, (count, width, stride) in _STAGES.items():
            blocks = {"a": Bottleneck(num_in, width, stride, projects=True)}
            blocks |= {f"b{i}": Bottleneck(4 * width, width, 1, projects=False) for i in range(1, count)}
            self.add_module(stage, nn.Sequential())
            for name, block in blocks.items():
                self.get_submodule(stage).add_module(name, block)
            num_in = 4 * width
        self.fc6 = nn.Linear(num_in, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 3, 2, ceil_mode=True)
        for stage in _STAGES:
            h = self.get_submodule(stage)(h)
        return self.fc6(h.mean(dim=(2, 3)))


def take_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy Chainer's parameters, by their paths, into the layers of the same names; all must have a counterpart."""
    found = dict(model.named_parameters())
    with torch.no_grad():
        for path, values in weights.items():
            *layers, name = path.strip("/").split("/")
            found.pop(".".join([*layers, _NAMES[name]])).copy_(torch.from_numpy(values))
    assert not found, f"without weights: {sorted(found)}"


def optimizer_of(model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """The SGD of goyal2017, at a rate so small that the weights do not change."""
    parts: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for path, parameter in model.named_parameters():
        parts["bn." in path].append(parameter)
    groups = [{"params": parts[True]}, {"params": parts[False], "weight_decay": 1e-4}]
    return torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True, fused=fused or None)
