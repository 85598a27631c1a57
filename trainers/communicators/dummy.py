"""No communication at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainers.communicators.connection import Connection


@dataclass(frozen=True, kw_only=True)
class Dummy:
    """No exchange: every worker keeps its own gradient. Measures the cost of communication; trains no model.

        nothing on the wire

    The workers' weights drift apart, and what is trained is no model: no checkpoint of it is written.

    Source: ChainerMN's communicator of that name.
    """

    weights_drift = True  # by intention, see `trainers.training.equal_ranks.why_weights_differ`

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`."""
        return Connection(mpi, lambda values, wire: None, num_roundings=0, sent=0.0)
