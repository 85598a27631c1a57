"""Data sets, and the loading of their samples into micro-batches.

A class in `__all__` is a frozen dataclass that opens a split as a sequence of (image_HWC, label). This room imports
from augmentations, kernels and runs.

`open(root, split)` returns the samples of "train" or "eval", in an order that depends on the data alone; a sample's
index is its position in it. Reading must be thread-safe; several threads read if the samples have `threads_pay = True`.
Samples in files may have `name_of(index)` and `require_readable(index)`, a quick check that refuses a broken file.
`facts(root)` counts, `fingerprint(root)` is a SHA-256 over what identifies the data. With `reads_folder = False` a data
set needs no folder, and `--data` is refused. A field `eval` takes None where the files have no evaluation split.
"""

from trainers.datasets.arrays import Arrays
from trainers.datasets.cifar import Cifar10, Cifar100
from trainers.datasets.digits import Digits
from trainers.datasets.idx import Idx
from trainers.datasets.image_folder import ImageFolder
from trainers.datasets.parquet import Parquet
from trainers.datasets.synthetic import Synthetic
from trainers.datasets.tar_shards import TarShards
from trainers.datasets.tiny_imagenet import TinyImageNet

__all__ = [
    "Arrays",
    "Cifar10",
    "Cifar100",
    "Digits",
    "Idx",
    "ImageFolder",
    "Parquet",
    "Synthetic",
    "TarShards",
    "TinyImageNet",
]
