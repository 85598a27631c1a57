"""The communicators of the workers that share norm groups."""

from __future__ import annotations

from typing import Any

from recipes.planning.division import Division


class Teams:
    """Gives one worker the communicator of its team, for any team size.

    Args:
        mpi: communicator of all workers.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._by_size: dict[int, Any] = {}

    def of(self, division: Division) -> Any:
        """The communicator of this worker's team, None if teams have one worker; all workers call this together.

        Bytes on the wire: those of MPI_Comm_split, once for each size.
        """
        size = division.team_size
        if size == 1:
            return None
        if size not in self._by_size:
            team = division.team_of(self._mpi.rank)
            colour = division.num_teams if team is None else team
            self._by_size[size] = self._mpi.Split(colour, self._mpi.rank)
        return self._by_size[size]

    def close(self) -> None:
        """Free the communicators; all workers call this together."""
        for team in self._by_size.values():
            team.Free()
        self._by_size.clear()
