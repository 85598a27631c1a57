"""Stand-ins for what Chainer and ChainerCV need while they are imported, and NumPy 2 and Python 3.12 have removed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from trainers.compat.import_hook import Around

if TYPE_CHECKING:
    import numpy


@contextmanager
def numpy_sctypes() -> Iterator[bool]:
    """Gives NumPy its former table of scalar types.

    Symptom: AttributeError: `np.sctypes` was removed (chainer/functions/array/as_strided.py, at import).
    """
    import numpy

    yield _add_to_numpy(
        "sctypes",
        {
            "int": [numpy.int8, numpy.int16, numpy.int32, numpy.int64],
            "uint": [numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64],
            "float": [numpy.float16, numpy.float32, numpy.float64, numpy.longdouble],
            "complex": [numpy.complex64, numpy.complex128, numpy.clongdouble],
            "others": [bool, object, bytes, str, numpy.void],
        },
    )


@contextmanager
def numpy_float() -> Iterator[bool]:
    """Gives NumPy its former name for Python's float.

    Symptom: AttributeError: module 'numpy' has no attribute 'float' (F.resize_images).
    """
    yield _add_to_numpy("float", float)


@contextmanager
def numpy_int() -> Iterator[bool]:
    """Gives NumPy its former name for Python's int.

    Symptom: AttributeError: module 'numpy' has no attribute 'int' (chainercv.experimental.links.FCIS).
    """
    yield _add_to_numpy("int", int)


def _add_to_numpy(name: str, value: object) -> bool:
    import numpy

    if hasattr(numpy, name):
        return False
    setattr(numpy, name, value)
    return True


@contextmanager
def environment_check() -> Iterator[bool]:
    """Replaces Chainer's environment check by an empty one; `kilobatch doctor` does that job.

    Symptom: ModuleNotFoundError: No module named 'numpy.distutils' or 'pkg_resources' (chainer/_environment_check.py,
    at import).
    """
    sys.modules["chainer._environment_check"] = _module("chainer._environment_check", check=lambda: None)
    yield True


@contextmanager
def pkg_resources_later() -> Iterator[bool]:
    """Provides the one function that ChainerCV calls; any other attribute comes from the real `pkg_resources`, on use.

    Symptom: ModuleNotFoundError: No module named 'pkg_resources' (chainercv/__init__.py and chainer.testing, at
    import); with setuptools below 81 a UserWarning that announces its end.
    """

    def get_distribution(name: str) -> SimpleNamespace:
        return SimpleNamespace(version=importlib.metadata.version(name))

    with _temporary_modules(_later("pkg_resources", get_distribution=get_distribution)):
        yield True


@contextmanager
def scipy_later() -> Iterator[bool]:
    """Delays the import of SciPy in modules of Chainer until they first use it.

    Symptom: `import chainer` takes a half longer and brings 180 modules of SciPy, for datasets.svhn, the distributions
    and four functions, whether they are called or not.
    """
    if "scipy" in sys.modules or importlib.util.find_spec("scipy") is None:
        yield False
        return
    parts = {part: _later(f"scipy.{part}") for part in ("io", "linalg", "sparse", "special")}
    with _temporary_modules(_module("scipy", **parts), *parts.values()):
        yield True


@contextmanager
def chainercv_warnings() -> Iterator[bool]:
    """Silences the warnings of Python and Chainer about ChainerCV's code while it is imported.

    Symptom: about 30 lines of SyntaxWarning: invalid escape sequence, at the first import of ChainerCV on Python 3.12;
    DeprecationWarning: Overriding method 'to_cpu'.
    """
    with warnings.catch_warnings():
        for message in ("invalid escape sequence", '"is( not)?" with ', "Overriding method '"):
            warnings.filterwarnings("ignore", message)
        yield True


@contextmanager
def distutils_strtobool() -> Iterator[bool]:
    """Provides the one function of distutils that ChainerCV uses, only while it is imported.

    Symptom: ModuleNotFoundError: No module named 'distutils' (chainercv/utils/download.py, at import on Python 3.12); a
    DeprecationWarning on 3.11.
    """

    def strtobool(value: str) -> int:
        word = value.lower()
        if word in ("y", "yes", "t", "true", "on", "1"):
            return 1
        if word in ("n", "no", "f", "false", "off", "0"):
            return 0
        raise ValueError(f"invalid truth value {value!r}")

    util = _module("distutils.util", strtobool=strtobool)
    with _temporary_modules(_module("distutils", util=util), util):
        yield True


@contextmanager
def nms_gpu_post() -> Iterator[bool]:
    """Replaces ChainerCV's C extension, which an installation with `CC=true` does not build, by NumPy code.

    Symptom: ModuleNotFoundError: No module named 'chainercv.utils.bbox._nms_gpu_post' (at import).
    """
    name = "chainercv.utils.bbox._nms_gpu_post"
    missing = name not in sys.modules and importlib.util.find_spec(name) is None
    if missing:
        sys.modules[name] = _module(name, _nms_gpu_post=select_boxes)
    yield missing


def select_boxes(
    mask: numpy.ndarray, num_boxes: int, boxes_per_word: int, words_per_box: int
) -> tuple[numpy.ndarray, int]:
    """The boxes that survive non-maximum suppression, from the bit mask of the GPU kernel.

    Args:
        mask: (num_boxes * words_per_box,) uint64; bit i of word w of a box: it suppresses box
            w * boxes_per_word + i.
        num_boxes: boxes in the order of their scores.
        boxes_per_word: bits used of each word (64).
        words_per_box: words that hold num_boxes bits.
    Returns:
        (num_boxes,) int32 whose first entries are the survivors' indices, and their number.
    """
    import numpy

    suppresses = mask.reshape(num_boxes, words_per_box)
    suppressed = numpy.zeros(words_per_box, numpy.uint64)
    selection = numpy.zeros(num_boxes, numpy.int32)
    num_selected = 0
    for box in range(num_boxes):
        word, bit = divmod(box, boxes_per_word)
        if int(suppressed[word]) >> bit & 1:
            continue
        selection[num_selected] = box
        num_selected += 1
        suppressed[word:] |= suppresses[box, word:]
    return selection, num_selected


def _module(name: str, **attributes: object) -> ModuleType:
    module = ModuleType(name, "Stands in for a module that is missing here: see trainers.compat.")
    vars(module).update(attributes)
    return module


def _later(name: str, **attributes: object) -> ModuleType:
    """A module with these attributes; any other is that of the real module, imported on first access."""

    def real_attribute(attribute: str) -> object:
        return getattr(importlib.import_module(name), attribute)

    return _module(name, __getattr__=real_attribute, **attributes)


@contextmanager
def _temporary_modules(*modules: ModuleType) -> Iterator[None]:
    replaced = {module.__name__: sys.modules.get(module.__name__) for module in modules}
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield
    finally:
        for name, former in replaced.items():
            if former is None:
                del sys.modules[name]
            else:
                sys.modules[name] = former


_NAME_SCIPY = (
    "chainer.datasets.svhn",
    "chainer.distributions.multivariate_normal",
    "chainer.functions.math.erfcinv",
    "chainer.functions.math.erfcx",
    "chainer.functions.math.erfinv",
    "chainer.functions.math.ndtri",
    "chainer.functions.math.sparse_matmul",
)
PATCHES = (
    Around("chainer", numpy_sctypes),
    Around("chainer", numpy_float),
    Around("chainer", environment_check),
    Around("chainercv", numpy_int),
    Around("chainercv", pkg_resources_later),
    Around("chainer.testing", pkg_resources_later),
    Around("chainercv", chainercv_warnings),
    Around("chainercv.utils.download", distutils_strtobool),
    Around("chainercv.utils.bbox.non_maximum_suppression", nms_gpu_post),
    *(Around(module, scipy_later) for module in _NAME_SCIPY),
)
