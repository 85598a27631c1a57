"""How the workers' gradients become one sum: what `communicator` in a cluster file may name.

A component is connected once, with an MPI communicator of its own, and gives a `Connection`: `allocate` the memory of
the gradients, `sum` parts of it in place. All workers end with the same bits, whatever the algorithm and the wire.

Bytes on the wire: each component says what a sum sends. To be connected costs less than a kilobyte from each worker to
each, beside what `Auto` measures.
"""

from trainers.communicators.auto import Auto
from trainers.communicators.cuda_aware_mpi import CudaAwareMpi
from trainers.communicators.direct import Direct
from trainers.communicators.dummy import Dummy
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical
from trainers.communicators.mpi_allreduce import MpiAllreduce
from trainers.communicators.nccl import Nccl
from trainers.communicators.ring import Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.torus import Torus

__all__ = [
    "Auto",
    "CudaAwareMpi",
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
