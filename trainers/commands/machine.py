"""`kilobatch doctor`: what this machine can do."""

from __future__ import annotations

import typer

from trainers.commands.options import Json


def doctor(as_json: Json = False) -> None:
    """What is installed here, what is broken, and what to do. Exit code 3 where nothing trains."""
    from trainers.launch.doctor import examine, print_diagnosis

    diagnosis = examine()
    print_diagnosis(diagnosis, as_json=as_json)
    raise typer.Exit(0 if diagnosis.trains_on_cpu else 3)
