"""Weights of a file for a model: by the names of a checkpoint, or by torchvision's and timm's of a ResNet."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import chainer
import numpy as np
from chainercv.links.model.resnet import ResNet
from safetensors import safe_open

from recipes.errors import InputRefused, listed
from recipes.schema import Init
from trainers.models.imagenet_networks import BasicNetwork, BlurredConvolution2D, pooled_with_padding
from trainers.runs.checkpoint import CheckpointContent, CheckpointError, load_into, read_arrays, weights_of

_LEAVES = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}
_LEAVES |= {"avg_mean": "running_mean", "avg_var": "running_var"}
_EPSILON = 1e-5  # PyTorch's default, and that of torchvision's and timm's ResNets
_TORCHVISION = {"padded_pool": True, "blur_pool": False}  # its pooling, by the keys of `model`
_OLDER = "of an older export of your own run, give the checkpoint's weights.safetensors"
_EXPORT = "give the file that `kilobatch export RUN --format safetensors` writes"
_OTHERS = "name their layers in init.except, or give weights of this model"
_WHOLE = "no run can begin with these; give the weights as they were before they were damaged"
# The blocks of each stage, and whether they are bottlenecks.
_NETWORKS = {(2, 2, 2, 2, False): "ResNet18", (3, 4, 6, 3, False): "ResNet34", (3, 4, 6, 3, True): "ResNet50"}
_NETWORKS |= {(3, 4, 23, 3, True): "ResNet101", (3, 8, 36, 3, True): "ResNet152"}


class UnfitWeights(InputRefused):
    """Weights that a model cannot begin with.

    Args:
        key: of `init` that is wrong.
        what, way_out: what is wrong, and what to do about it.
    """

    def __init__(self, key: str, what: str, way_out: str) -> None:
        self.key, self.what, self.way_out = key, what, way_out
        super().__init__(f"init.{key}: {what}; {way_out}")


def torch_names(model: chainer.Link) -> dict[str, str]:
    """Of a ResNet each path here with its name in torchvision and timm; empty for any other model.

    >>> from trainers.models import ResNet18
    >>> names = torch_names(ResNet18().build(num_classes=10, channels=3, image_size=None))
    >>> names["/res3/a/residual_conv/bn/gamma"], names["/res3/b1/conv2/conv/W"]
    ('layer2.0.downsample.1.weight', 'layer2.1.conv2.weight')
    """
    if type(model) not in (BasicNetwork, ResNet):  # a class of one's own that derives from it may have other layers
        return {}
    names = {}
    for path in weights_of(model):
        *layer, leaf = path.split("/")[1:]
        if leaf in _LEAVES:
            names[path] = f"{_torch_layer(model, layer)}.{_LEAVES[leaf]}"
    return names


def _torch_layer(model: chainer.Link, layer: Sequence[str]) -> str:
    """conv1/bn is bn1, res3/a/conv2/conv layer2.0.conv2, res3/a/residual_conv/bn layer2.0.downsample.1, fc6 fc."""
    if len(layer) == 1:
        return "fc"
    *inside, place, kind = layer
    if place == "residual_conv":
        place = f"downsample.{['conv', 'bn'].index(kind)}"
    elif kind == "bn":
        place = place.replace("conv", "bn")
    if not inside:
        return place
    stage, block = inside
    return f"layer{int(stage.removeprefix('res')) - 1}.{model[stage].layer_names.index(block)}.{place}"


def pattern_here(model: chainer.Link, pattern: str) -> str | None:
    """The paths of what a pattern such as /layer1/* names in torchvision, as a pattern; None for nothing, or too much.

    >>> from trainers.models import ResNet18
    >>> pattern_here(ResNet18().build(num_classes=10, channels=3, image_size=None), "/layer1/*")
    '/res2/*'
    """
    named = [path for path, name in torch_names(model).items() if fnmatchcase(f"/{name.replace('.', '/')}", pattern)]
    inside = posixpath.commonpath(named) if named else "/"
    return None if inside == "/" else inside if inside in named else f"{inside}/*"


def pooling_of(model: chainer.Link) -> dict[str, bool]:
    """The keys of a ResNet that move its logits and leave the names and shapes of its arrays as they are."""
    blurred = any(isinstance(link, BlurredConvolution2D) for link in model.links())
    return {"padded_pool": model.pool1 is pooled_with_padding, "blur_pool": blurred}


def why_not_torch(model: chainer.Link) -> str | None:
    """Why a ResNet with the same weights gives other logits in torchvision, and a way out; None if it does not."""
    keys = _other_keys(model, _TORCHVISION)
    return f"the model's pooling is another; write `{keys}` into `model`" if keys else None


def _other_keys(model: chainer.Link, pooling: Mapping[str, bool]) -> str:
    """The keys in which a ResNet has another pooling than this, with the values of this."""
    here = pooling_of(model)
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in pooling.items() if here[key] != value)


def _require_pooling(model: chainer.Link, file: str, facts: Mapping[str, str]) -> None:
    """Refuse weights of a ResNet with another pooling: that of a file without these facts is torchvision's."""
    what, more, trained = "has torchvision's names, and the model another pooling", f"; {_OLDER}", _TORCHVISION
    if "model.padded_pool" in facts:
        trained = {key: facts.get(f"model.{key}") == "true" for key in trained}
        what, more = "was trained with another pooling", ""
    if keys := _other_keys(model, trained):
        raise UnfitWeights("weights", f"{file} {what}", f"write `{keys}` into `model`{more}")


def to_torch(model: chainer.Link, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights of a ResNet by torchvision's names.

    Chainer adds 2e-5 to a variance and PyTorch 1e-5; the difference is added here, so that the logits are the same.
    """
    return {name: weights[path] + _more(model, path) for path, name in torch_names(model).items()}


def _more(model: chainer.Link, path: str) -> np.float32:
    """What PyTorch's running variance is more than ours; 0 for any other array."""
    *layer, leaf = path.split("/")[1:]
    link = model
    for name in layer:
        link = getattr(link, name)
    return np.float32(link.eps - _EPSILON if leaf == "avg_var" else 0)


def begin_with(model: chainer.Link, init: Init) -> dict[str, str]:
    """Give a model the weights of a file; layers of `init.except_` keep theirs.

    Returns:
        the metadata of the file.
    Raises:
        UnfitWeights: see `weights_for`; the file cannot be read.
    """
    try:
        arrays = read_arrays(init.weights)
    except CheckpointError as error:
        if is_pickle(init.weights):
            what = f"{init.weights} is a pickle or a zip file, and these are never opened"
            raise UnfitWeights("weights", what, "write the weights with safetensors.torch.save_file") from None
        raise UnfitWeights("weights", str(error), _EXPORT) from None
    with safe_open(init.weights, "np") as file:
        facts = file.metadata() or {}
    content = {**weights_of(model), **weights_for(model, arrays, init, facts=facts)}
    load_into(model, None, CheckpointContent(weights=content, optimizer={}, averages={}, pending={}, state={}))
    return facts


def is_pickle(file: str | Path) -> bool:
    """Whether a file that is not of safetensors begins as a pickle or a zip file does, which torch.save writes."""
    try:
        with open(file, "rb") as opened:
            begins = opened.read(9)
            return begins.startswith((b"PK\x03\x04", b"\x80")) and begins[8:] != b"{"  # of safetensors
    except OSError:
        return False


def weights_for(
    model: chainer.Link, arrays: Mapping[str, np.ndarray], init: Init, *, facts: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The arrays of a file by the paths of a model, without those of `init.except_`.

    Chainer's counters (`N`) may be missing: torchvision's files and averages have none.

    Args:
        facts: the metadata of the file: an export says with which pooling a ResNet was trained.
    Raises:
        UnfitWeights: an array is missing, is no array of the model, has another shape or other numbers than floating
            point, or holds NaN, infinity or a negative variance; a name of `init.except_` is that of no layer; a ResNet
            of torchvision, or that of the export, computes something else.
    """
    own, foreign = weights_of(model), torch_names(model)
    if is_foreign := is_torch(model, arrays):
        _require_pooling(model, init.weights, facts)
        found = {path: arrays[name] for path, name in foreign.items() if name in arrays}
        others = {name for name in arrays.keys() - foreign.values() if not name.endswith(".num_batches_tracked")}
    else:
        found = {path: array for path, array in arrays.items() if path in own}
        others = arrays.keys() - own.keys()
    for layer in init.except_:
        if not any(is_in(name, [layer]) for name in (*own, *foreign.values(), *arrays)):
            what = f"there is no layer {layer} in the model, nor in {init.weights}"
            raise UnfitWeights("except", what, "name a layer of the model, or take it out")
    loaded = loaded_paths(model, init)
    wanted = [path for path in (foreign if is_foreign else own) if path in loaded]
    wanted = [path for path in wanted if path in found or not path.endswith("/N")]
    _require_names(model, arrays, init, lacks=[path for path in wanted if path not in found], others=others)
    _require_numbers({path: found[path] for path in wanted}, own, init.weights)
    return {path: found[path] - _more(model, path) if is_foreign else found[path] for path in wanted}


def is_torch(model: chainer.Link, names: Iterable[str]) -> bool:
    """Whether a file has arrays of a ResNet by torchvision's names."""
    return not set(torch_names(model).values()).isdisjoint(names)


def _require_names(
    model: chainer.Link, arrays: Mapping[str, np.ndarray], init: Init, *, lacks: Sequence[str], others: Iterable[str]
) -> None:
    """Refuse a file with too few arrays, or too many."""
    more = [name for name in others if not is_in(name, init.except_)]
    if not lacks and not more:
        return
    what = f"lacks {listed(sorted(lacks))}" if lacks else f"has, and the model lacks, {listed(sorted(more))}"
    way_out = _OTHERS
    if lacks and all(weights_of(model)[path].dtype.kind in "iu" for path in lacks):
        # Of the averages in a checkpoint, which lack what is counted; `except` would draw their layers anew.
        way_out = _EXPORT
    prefix = prefix_of(arrays)
    if prefix and is_torch(model, [name.removeprefix(prefix) for name in arrays]):
        what = f"has names that begin with `{prefix}`"
        way_out = f"save it without that: `{{name.removeprefix({prefix!r}): array for name, array in state.items()}}`"
    elif (network := network_of(arrays)) not in (None, here := network_of(torch_names(model).values())) and here:
        what, way_out = f"has the weights of a {network}", f"write `kind: {network}` into `model`, or give others"
    raise UnfitWeights("weights", f"{init.weights} {what}", way_out)


def prefix_of(names: Iterable[str]) -> str:
    """What all names begin with up to a dot, such as `module.`; empty for nothing."""
    before, dot, _ = posixpath.commonprefix([*names]).rpartition(".")
    return before + dot


def network_of(names: Iterable[str]) -> str | None:
    """Which ResNet has these names in torchvision; None if none.

    >>> network_of(f"layer{stage}.{block}.conv1.weight" for stage in (1, 2, 3, 4) for block in (0, 1))
    'ResNet18'
    """
    layers = {name.rpartition(".")[0] for name in names}
    blocks = [sum(f"layer{stage}.{block}.conv1" in layers for block in range(len(layers))) for stage in (1, 2, 3, 4)]
    return _NETWORKS.get((*blocks, "layer1.0.conv3" in layers))


def _require_numbers(found: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], file: str) -> None:
    """Refuse arrays of another shape, of other numbers than the model's, or with what no training leaves behind."""
    shapes = [
        f"{path} ({_shape(array)}, here {_shape(own[path])})"
        for path, array in found.items()
        if array.shape != own[path].shape
    ]
    kinds = [
        f"{path} ({array.dtype})"
        for path, array in found.items()
        if array.dtype.kind != "f" and own[path].dtype.kind == "f"
    ]
    infinite = [path for path, array in found.items() if not _is_finite(array)]
    negative = [path for path, array in found.items() if path.endswith("/avg_var") and (array < 0).any()]
    for what, names, way_out in (
        ("has in another shape", shapes, _OTHERS),
        ("does not have in floating point", kinds, "give weights that are not quantised"),
        ("has NaN or numbers beyond float32 in", infinite, _WHOLE),
        ("has negative variances in", negative, _WHOLE),
    ):
        if names:
            raise UnfitWeights("weights", f"{file} {what} {listed(sorted(names))}", way_out)


def _shape(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "one number"


def _is_finite(array: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(np.float32)).all())


def loaded_paths(model: chainer.Link, init: Init) -> set[str]:
    """The paths of a model's arrays that come from the file of `init`."""
    foreign, left = torch_names(model), init.except_
    return {path for path in weights_of(model) if not (is_in(path, left) or is_in(foreign.get(path, path), left))}


def is_in(name: str, layers: Iterable[str]) -> bool:
    """Whether an array, by its path here or its name in PyTorch, is of one of the layers, or of a pattern of paths.

    >>> is_in("layer4.0.conv1.weight", ["layer4"]), is_in("/res5/a/conv1/conv/W", ["/res5/*"]), is_in("/fc/W", ["f"])
    (True, True, False)
    """
    path = _as_path(name)
    return any(f"{path}/".startswith(f"{_as_path(layer)}/") or fnmatchcase(path, _as_path(layer)) for layer in layers)


def _as_path(name: str) -> str:
    return "/" + name.replace(".", "/").strip("/")
