"""The layers of published networks: their parameters and multiply-adds, in the order of the forward pass.

The planner needs when each gradient is ready, how large it is, and how much a smaller image saves. Totals are exact; a
test compares them with the numbers that the networks' authors and libraries print.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Layer:
    """One layer with trained numbers.

    Args:
        parameters: how many.
        multiply_adds: of one sample's forward, or a measured time; only their shares matter. At least 1.
    """

    parameters: int
    multiply_adds: int


@dataclass(frozen=True)
class Network:
    """A network at one image size.

    Args:
        name: as in published tables, such as `resnet50`.
        image_size: side of the images in pixels.
        layers: in the order of the forward pass.
        norm_channels: of each batch normalisation; None where nobody counted.
    """

    name: str
    image_size: int
    layers: tuple[Layer, ...]
    norm_channels: tuple[int, ...] | None = None

    @property
    def num_parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Of one sample's forward."""
        return sum(layer.multiply_adds for layer in self.layers)


def profiled_network(
    name: str,
    parameters: tuple[int, ...],
    microseconds: tuple[int, ...] = (),
    norm_channels: tuple[int, ...] | None = None,
) -> Network:
    """A network of which the sizes of its arrays are known, and maybe the microseconds of backward for each.

    Args:
        name: of the model.
        parameters: of each array, in the order of the forward pass.
        microseconds: of backward, from the array behind it to its own gradient; each is taken to cost the same where
            left out.
        norm_channels: as of `Network`.
    """
    times = microseconds or (1,) * len(parameters)
    layers = tuple(Layer(number, max(time, 1)) for number, time in zip(parameters, times, strict=True))
    return Network(name, 0, layers, norm_channels)


def network_names() -> list[str]:
    """The networks that are known, sorted."""
    return sorted(_NETWORKS)


def known_network(name: str) -> bool:
    """Whether a name of a table or a `kind` of a recipe is one of them.

    >>> known_network("ResNet50"), known_network("inception_v3"), known_network("Perceptron")
    (True, True, False)
    """
    return _plain(name) in _NETWORKS


@cache
def network(name: str, image_size: int, num_classes: int = 1000) -> Network:
    """A published network for square images of three channels.

    Args:
        name: one of `network_names`, in any case, with or without `-`, `_` and the `v` of a version.
        image_size: side of the images in pixels, at least 32.
        num_classes: outputs, at least 1.
    Raises:
        KeyError: no such network is known.

    >>> network("ResNet50", 224).num_parameters
    25557032
    """
    plain = _plain(name)
    layers = _Layers(image_size)
    _NETWORKS[plain](layers, num_classes)
    return Network(plain, image_size, tuple(layers.made), tuple(layers.norms))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace("inceptionv", "inception")


class _Layers:
    """Layers and channels of normalisations as they are added; keeps side and channels of the images between them."""

    def __init__(self, side: int) -> None:
        self.side, self.channels, self.made, self.norms = side, 3, [], []

    def conv(
        self, channels: int, kernel: int | tuple[int, int], stride: int = 1, *, pad: int | None = None, **kind: bool
    ) -> None:
        """A convolution; `norm`: then a batch normalisation of two numbers a channel; `bias`: has one."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padded = max(high, wide) // 2 if pad is None else pad
        self.side = max(1, (self.side + 2 * padded - max(high, wide)) // stride + 1)
        weights = self.channels * channels * high * wide
        normed = kind.get("norm", True)
        extra = 2 * channels * normed + channels * kind.get("bias", False)
        self.made.append(Layer(weights + extra, weights * self.side**2))
        self.norms += [channels] * normed
        self.channels = channels

    def norm(self) -> None:
        self.made.append(Layer(2 * self.channels, self.channels * self.side**2))
        self.norms.append(self.channels)

    def pool(self, kernel: int, stride: int, pad: int = 0) -> None:
        self.side = max(1, (self.side + 2 * pad - kernel) // stride + 1)

    def linear(self, outputs: int, inputs: int | None = None) -> None:
        inputs = self.channels if inputs is None else inputs
        self.made.append(Layer(inputs * outputs + outputs, inputs * outputs))
        self.channels = outputs

    def branches(self, *branches: Callable[[], None]) -> None:
        """Branches from one input, joined by their channels; the side is that of the last."""
        side, channels, total = self.side, self.channels, 0
        for branch in branches:
            self.side, self.channels = side, channels
            branch()
            total += self.channels
        self.channels = total


def _resnet(depths: tuple[int, ...], bottleneck: bool) -> Callable[[_Layers, int], None]:
    def build(net: _Layers, num_classes: int) -> None:
        net.conv(64, 7, 2)
        net.pool(3, 2, 1)
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            outputs = 4 * width if bottleneck else width
            for block in range(depth):
                stride = 2 if stage and not block else 1
                side, channels = net.side, net.channels
                if bottleneck:
                    net.conv(width, 1)
                    net.conv(width, 3, stride)  # the stride stands in the 3x3, as Goyal 2017 has it
                    net.conv(outputs, 1)
                else:
                    net.conv(width, 3, stride)
                    net.conv(width, 3)
                if stride > 1 or channels != outputs:
                    net.side, net.channels = side, channels
                    net.conv(outputs, 1, stride)
        net.linear(num_classes)

    return build


def _vgg(depths: tuple[int, ...]) -> Callable[[_Layers, int], None]:
    def build(net: _Layers, num_classes: int) -> None:
        for depth, width in zip(depths, (64, 128, 256, 512, 512), strict=True):
            for _ in range(depth):
                net.conv(width, 3, norm=False, bias=True)
            net.pool(2, 2)
        net.linear(4096, 512 * 49)  # of 7 x 7 pixels, whatever the image
        net.linear(4096)
        net.linear(num_classes)

    return build


def _alexnet(net: _Layers, num_classes: int) -> None:
    """Krizhevsky 2014 (one tower)."""
    for channels, kernel, stride, pad, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        net.conv(channels, kernel, stride, pad=pad, norm=False, bias=True)
        if pooled:
            net.pool(3, 2)
    net.linear(4096, 256 * 36)
    net.linear(4096)
    net.linear(num_classes)


def _googlenet(net: _Layers, num_classes: int) -> None:
    """Szegedy 2014 with batch normalisation, without auxiliary outputs, as torchvision builds it."""
    net.conv(64, 7, 2)
    net.pool(3, 2, 1)
    net.conv(64, 1)
    net.conv(192, 3)
    net.pool(3, 2, 1)
    for row in (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
        None,
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
        None,
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ):
        if row is None:
            net.pool(3, 2, 1)
            continue
        one, reduced3, three, reduced5, five, pooled = row
        net.branches(
            lambda one=one: net.conv(one, 1),
            lambda a=reduced3, b=three: (net.conv(a, 1), net.conv(b, 3)),
            lambda a=reduced5, b=five: (net.conv(a, 1), net.conv(b, 3)),
            lambda pooled=pooled: net.conv(pooled, 1),
        )
    net.linear(num_classes)


def _inception3(net: _Layers, num_classes: int) -> None:
    """Szegedy 2015, arXiv 1512.00567, without the auxiliary output, as torchvision builds it."""
    conv = net.conv

    def chain(*rows: tuple) -> Callable[[], None]:
        return lambda: [conv(*row[:3], pad=row[3] if len(row) > 3 else None) for row in rows]

    def split(*rows: tuple) -> Callable[[], None]:
        """The last two of the rows side by side."""
        *first, left, right = rows
        return lambda: (chain(*first)(), net.branches(chain(left), chain(right)))

    conv(32, 3, 2, pad=0)
    conv(32, 3, pad=0)
    conv(64, 3)
    net.pool(3, 2)
    conv(80, 1)
    conv(192, 3, pad=0)
    net.pool(3, 2)
    for pooled in (32, 64, 64):
        net.branches(chain((64, 1)), chain((48, 1), (64, 5)), chain((64, 1), (96, 3), (96, 3)), chain((pooled, 1)))
    held = net.channels
    net.branches(chain((64, 1), (96, 3), (96, 3, 2, 0)), chain((384, 3, 2, 0)))
    net.channels += held  # the third branch only pools
    wide, high = (1, 7), (7, 1)
    for width in (128, 160, 160, 192):
        net.branches(
            chain((192, 1)),
            chain((width, 1), (width, wide), (192, high)),
            chain((width, 1), (width, high), (width, wide), (width, high), (192, wide)),
            chain((192, 1)),
        )
    held = net.channels
    net.branches(chain((192, 1), (192, wide), (192, high), (192, 3, 2, 0)), chain((192, 1), (320, 3, 2, 0)))
    net.channels += held
    wide, high = (1, 3), (3, 1)
    for _ in range(2):
        net.branches(
            chain((320, 1)),
            split((384, 1), (384, wide), (384, high)),
            split((448, 1), (384, 3), (384, wide), (384, high)),
            chain((192, 1)),
        )
    net.linear(num_classes)


def _densenet121(net: _Layers, num_classes: int) -> None:
    """Huang 2016, arXiv 1608.06993, table 1."""
    growth = 32
    net.conv(64, 7, 2)
    net.pool(3, 2, 1)
    for stage, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            channels = net.channels
            net.norm()
            net.conv(4 * growth, 1)
            net.conv(growth, 3, norm=False)
            net.channels += channels
        net.norm()
        if stage < 3:
            net.conv(net.channels // 2, 1, norm=False)
            net.pool(2, 2)
    net.linear(num_classes)


_NETWORKS: dict[str, Callable[[_Layers, int], None]] = {
    "alexnet": _alexnet,
    "densenet121": _densenet121,
    "googlenet": _googlenet,
    "inception3": _inception3,
    "resnet18": _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": _resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": _resnet((3, 4, 6, 3), bottleneck=True),
    "resnet101": _resnet((3, 4, 23, 3), bottleneck=True),
    "resnet152": _resnet((3, 8, 36, 3), bottleneck=True),
    "vgg11": _vgg((1, 1, 2, 2, 2)),
    "vgg16": _vgg((2, 2, 3, 3, 3)),
    "vgg19": _vgg((2, 2, 4, 4, 4)),
}
