"""Execution of recipes with Chainer, ChainerMN and MPI.

Importing this package loads no Chainer. It sets up `trainers.compat`, so that `import chainer` (and chainermn,
chainercv) anywhere afterwards gives a patched one, whatever the order of the imports below it, and `trainers.kernels`,
which compute for it.
"""

from trainers import compat, kernels
from trainers.compat.import_hook import After, ImportHook

compat.install()
ImportHook([After(module, hook) for module, hook in kernels.HOOKS]).install()
