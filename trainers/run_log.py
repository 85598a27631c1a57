"""The log of a run, and the report at its end."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

from trainers.run_folder import LOG, REPORT

log = logging.getLogger("kilobatch")


def log_to(folder: Path, *, rank: int, to_file: bool) -> None:
    """From now on rank 0 logs everything, the others their warnings.

    Args:
        folder: of the run.
        rank: of this process.
        to_file: into the run's log file as well, where that is not stdout.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if to_file and rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(folder / LOG, encoding="utf-8"))
    logging.basicConfig(
        level=logging.WARNING,
        handlers=handlers,
        format=f"%(asctime)s rank {rank} %(message)s",
        force=True,
    )
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)


def write_report(folder: Path) -> None:
    """Write the report page of a run into its folder; the last thing that a process does.

    So it can do without garbage collection, which takes a sixth of the time that Matplotlib needs.
    """
    gc.disable()
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    write_page([open_run(folder)], folder / REPORT)
