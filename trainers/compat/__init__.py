"""Chainer 7.8.1, ChainerMN and ChainerCV 0.13.1 on Python 3.11 to 3.13, NumPy 2, and CuPy 14 where there is a GPU.

Each patch is a small function whose docstring names the symptom it cures. It waits, as a hook on Python's import, for
the module it belongs to. Nothing is loaded here; all that matters is that `trainers`, or any module of it, is imported
before Chainer, so modules of `trainers` just write `import chainer`. Not even NumPy is loaded here: it reads how many
threads it may use when it is imported, and a rank settles that first (`trainers.launch`).

Left as they are: `chainer.links.caffe` and `chainer.exporters` need protobuf below 4; `chainer.testing` needs the
`pkg_resources` of setuptools below 81. `chainermn.iterators.create_multi_node_iterator` sends data and labels as
float32, exact only below 2**24: prefer `create_synchronized_iterator` or `scatter_index`.
"""

from trainers.compat import chainer_fixes, chainermn_fixes, stand_ins
from trainers.compat.import_hook import ImportHook, PatchReport

_hook = ImportHook(stand_ins.PATCHES + chainer_fixes.PATCHES + chainermn_fixes.PATCHES)


def install() -> None:
    """Arm all patches, for when their modules are imported. Calling it again changes nothing."""
    _hook.install()


def patches() -> list[PatchReport]:
    """The table of patches in the order in which they are listed: name, module, symptom, state."""
    return _hook.reports()
