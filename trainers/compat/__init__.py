"""Chainer 7.8.1, ChainerMN and ChainerCV 0.13.1 on Python 3.11 to 3.13, NumPy 2, and CuPy 14 where there is a GPU.

A patch of these libraries enters here. This room imports from no other room of trainers.

Each patch is a small function whose docstring names the symptom it cures. An import hook applies it when the module it
belongs to is imported. So `trainers`, any module of it, or `kilobatch` must be imported before Chainer; modules of
`trainers` just write `import chainer`. Nothing is loaded here, not even NumPy: NumPy reads its number of threads when
it is imported, and a rank sets that first (`trainers.runs.mpi_ranks`).

Left as they are: `chainer.links.caffe` and `chainer.exporters` need protobuf below 4; `chainer.testing` needs the
`pkg_resources` of setuptools below 81. `chainermn.iterators.create_multi_node_iterator` sends data and labels as
float32, exact only below 2**24: prefer `create_synchronized_iterator` or `scatter_index`.
"""

from trainers.compat import chainer_fixes, chainermn_fixes, stand_ins
from trainers.compat.import_hook import ImportHook, PatchReport

_hook = ImportHook(stand_ins.PATCHES + chainer_fixes.PATCHES + chainermn_fixes.PATCHES)


def install() -> None:
    """Install the import hook, and patch modules that are imported already. Calling it again changes nothing."""
    _hook.install()


def patches() -> list[PatchReport]:
    """The table of patches in the order in which they are listed: name, module, symptom, state."""
    return _hook.reports()
