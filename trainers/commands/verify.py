"""`kilobatch verify`: the promise of the same training, checked on one's own model and data."""

from __future__ import annotations

from dataclasses import asdict

import typer

from trainers.commands.options import EXIT_FOUND, AllowCode, Data, Json, Recipe, Set, print_json


def verify(
    recipe: Recipe, overrides: Set = None, data: Data = None, allow_code: AllowCode = False, as_json: Json = False
) -> None:
    """Check that your model and data train the same on any ranks.

    Short runs of small batches are compared: again, in other micro-batches, on 1, 2 and 3 ranks, resumed. What breaks
    the promise is named. Exit code 0: all hold, 5: one does not.
    """
    from rich.console import Console
    from rich.markup import escape

    from trainers.tasks.verify import Check
    from trainers.tasks.verify import verify as run

    console = Console(stderr=as_json, highlight=False)

    def tell(check: Check) -> None:
        mark = "[green]holds[/]" if check.holds else f"[red]BROKEN[/], {escape(check.why)}"
        console.print(f"{escape(check.name)}: {mark}", soft_wrap=True)

    try:
        with console.status("training a few updates in several ways"):
            checks = run(recipe, overrides=overrides or (), data=data, allow_code=allow_code, tell=tell)
    except KeyboardInterrupt:
        console.print("interrupted; nothing was decided")
        raise typer.Exit(130) from None
    if as_json:
        print_json([asdict(check) for check in checks])
    broken = sum(not check.holds for check in checks)
    console.print(f"{broken} of {len(checks)} checks do not hold." if broken else f"All {len(checks)} checks hold.")
    raise typer.Exit(EXIT_FOUND if broken else 0)
