"""All-reduce of gradients over the workers: the algorithms that `communicator` in a cluster file may name.

An algorithm of the all-reduce enters here, with the number formats (`wire`) and transports (`mpi_messages`, `tcp_ring`,
`gpu`) that algorithms share. This room imports from runs only.

A component is connected once, with an MPI communicator of its own. Its `connect` returns a `Connection`: `allocate` the
memory of the gradients, `sum` parts of it in place. All workers end with the same bits, whatever the algorithm and the
wire. To add one, copy `ring.py`; see `wire.Wire` for the two kinds of receive buffers. MPICH has several hosts on one
machine by MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1.

Bytes on the wire: the docstring of each component has those of a sum. To be connected costs less than a kilobyte from
each worker to each, beside what `Auto` measures.
"""

from trainers.communicators.auto import Auto
from trainers.communicators.chainermn_own import ChainerMN
from trainers.communicators.connection import Dummy
from trainers.communicators.direct import Direct
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical
from trainers.communicators.mpi_allreduce import MpiAllreduce
from trainers.communicators.nccl import Nccl
from trainers.communicators.ring import Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.torus import Torus

__all__ = [
    "Auto",
    "ChainerMN",
    "Direct",
    "Dummy",
    "HalvingDoubling",
    "Hierarchical",
    "MpiAllreduce",
    "Nccl",
    "Ring",
    "SharedWindow",
    "Torus",
]
