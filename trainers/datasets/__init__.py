"""Data sets: each a frozen dataclass that opens a split as a sequence of (image_HWC, label).

`open(root, split)` gives the samples of "train" or "eval", in an order that depends on the data alone; a sample's index
is its position in it. Reading must be thread-safe; several threads read if the samples say `threads_pay = True`.
Samples in files may have `path_of(index)` and `require_readable(index)`, a quick check that refuses a broken file.
`facts(root)` counts, `fingerprint(root)` is a SHA-256 over what identifies the data. A reader that needs no folder says
`reads_folder = False`; with it `--data` is refused.
"""

from trainers.datasets.cifar10 import Cifar10
from trainers.datasets.digits import Digits
from trainers.datasets.image_folder import ImageFolder
from trainers.datasets.synthetic import Synthetic

__all__ = ["Cifar10", "Digits", "ImageFolder", "Synthetic"]
