"""A search: a supervisor without MPI of its own, and an MPI job for each trial. `start.search` is the way in."""
