"""Chainer 7.8.1, ChainerMN and ChainerCV 0.13.1 on Python 3.11 to 3.13 and NumPy 2.

Each patch is a small function whose docstring names the symptom it cures. It waits, as a hook on Python's import, for the
module it belongs to: nothing is loaded here, and it does not matter which import comes first, as long as `trainers` (any
module of it) is imported before Chainer.

    import trainers.compat
    import chainer

Left as they are: `chainer.links.caffe` and `chainer.exporters` need protobuf below 4; `chainer.testing` needs the
`pkg_resources` of setuptools below 81. `chainermn.iterators.create_multi_node_iterator` sends data and labels as float32, exact only
below 2**24: prefer `create_synchronized_iterator` or `scatter_index`.
"""

from trainers.compat import chainer_fixes, chainermn_fixes, stand_ins
from trainers.compat.import_hook import ImportHook, PatchReport

_hook = ImportHook(stand_ins.PATCHES + chainer_fixes.PATCHES + chainermn_fixes.PATCHES)


def install() -> None:
    """Arm all patches: each is applied when its module is imported, at once if it already is. Calling it again changes nothing."""
    _hook.install()


def patches() -> list[PatchReport]:
    """The table of patches in the order in which they are listed: name, module, symptom, state."""
    return _hook.reports()
