"""Execution of recipes with Chainer, ChainerMN and MPI.

Importing this package loads no Chainer. It sets up `trainers.compat`, so that `import chainer` (and chainermn,
chainercv) anywhere afterwards gives a patched one, whatever the order of the imports below it.
"""

from trainers import compat

compat.install()
