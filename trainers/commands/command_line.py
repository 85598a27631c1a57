"""The list of commands; each stands in a module of this room."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainers.commands import (
    branch,
    data,
    frontier,
    machine,
    plan,
    recipes,
    registry,
    rehearse,
    reproduce,
    runs,
    search,
    train,
    verify,
)
from trainers.commands.options import OPTIONS_OF_GROUPS

EXAMPLES = """\b
Examples:
  kilobatch recipes list
  kilobatch recipes card goyal2017
  kilobatch plan goyal2017 --cluster mn1 -n 256
  kilobatch rehearse akiba2017 --cluster mn1 --fail 3@epoch12
  kilobatch train digits/large_batch -n 2
  kilobatch search digits -n 2 --dry-run
"""


_FOR_ALL_RANKS = ("train", "search", "search-ranks", "frontier", "doctor", "probe", "probe-ranks", "load-samples")


class _Commands(TyperGroup):
    """Knows commands of two words, as `search status`, beside one that is the first word alone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        if args[0] not in self.commands:
            groups = [name for name, group in self.commands.items() if args[0] in getattr(group, "commands", ())]
            if groups:
                full = " or ".join(f"`kilobatch {name} {args[0]}`" for name in groups)
                ctx.fail(f"No such command '{args[0]}'. Did you mean {full}?")
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)

    def invoke(self, ctx: Any) -> Any:
        """Answers `train --lr 0.1`, an option that is a value of the recipe, with the `--set` for it."""
        words = [*ctx.args]
        try:
            return super().invoke(ctx)
        except typer.BadParameter.__base__ as error:
            option = getattr(error, "option_name", "")
            if not hasattr(error, "possibilities") or not _takes_values_of_recipes(error.ctx):
                raise
            from recipes.reading.other_frameworks import option_here

            value = next((it for before, it in pairwise(words) if before == option and it[:2] != "--"), "...")
            value = next((it.partition("=")[2] for it in words if it.startswith(f"{option}=")), value)
            if setting := option_here(option, value):
                error.ctx.fail(f"No such option: {option}. It is a value of the recipe: {setting}")
            raise


def _takes_values_of_recipes(ctx: Any) -> bool:
    parameters = {parameter.name for parameter in ctx.command.params}
    return "overrides" in parameters and not parameters.isdisjoint(("recipe", "recipes"))


app = typer.Typer(cls=_Commands, epilog=EXAMPLES, **OPTIONS_OF_GROUPS)
app.add_typer(recipes.app, name="recipes")
app.add_typer(data.app, name="data")
app.add_typer(registry.app, name="registry")
app.add_typer(runs.app, name="runs")
app.command()(train.train)
app.command(hidden=True)(train.load_samples)
app.command(epilog="kilobatch search status DIR shows what a search does now.")(search.search)
app.command("search status")(search.search_status)
app.command(hidden=True)(search.search_ranks)
app.command(epilog=frontier.EXAMPLES)(frontier.frontier)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command()(rehearse.rehearse)
app.command()(verify.verify)
app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(epilog=branch.EXAMPLES)(branch.branch)
recipes.app.command()(branch.ramp)
app.command()(runs.evaluate)
app.command()(runs.predict)
app.command()(runs.export)
app.command()(runs.report)
app.command()(runs.watch)
app.command()(machine.doctor)
app.command()(machine.probe)
app.command(hidden=True)(machine.probe_ranks)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"kilobatch {version('kilobatch')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Trains with large minibatches, the same run on one worker or many."""


@contextmanager
def _open_streams() -> Iterator[None]:
    """Open /dev/null for closed standard streams: a file opened later would otherwise take a stream's place."""
    for name in (name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None):
        setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
        os.set_inheritable(getattr(sys, name).fileno(), True)
    sys.stdout.reconfigure(errors="replace")  # a character that the terminal cannot show becomes a question mark
    try:
        yield
    finally:
        sys.stdout.flush()


def app_of(word: str) -> typer.Typer:
    """The command line with the command of this name alone, if there is one: building all takes 0.1 s."""
    commands = [it for it in app.registered_commands if _name(it).split()[0] == word]
    groups = [it for it in app.registered_groups if it.name == word]
    if not (commands or groups):
        return app
    alone = copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone


def _name(command: Any) -> str:
    return command.name or command.callback.__name__.replace("_", "-")


def _has_work(word: str) -> bool:
    """Whether this process runs the command: of one process that a launcher started on several ranks, rank 0 alone.

    It is no rank then: with the launcher's variables it would wait in MPI for the others, which have left.
    """
    if word in _FOR_ALL_RANKS:
        return True
    from trainers.runs.mpi_ranks import launched_by_us, launched_rank, launched_ranks, without_launcher

    if launched_ranks() is None or launched_by_us():
        return True
    if launched_rank() > 0:
        return False
    for name in os.environ.keys() - without_launcher().keys():
        del os.environ[name]
    return True


def main() -> None:
    """Runs the command line."""
    if not _has_work(next(iter(sys.argv[1:]), "")):
        return
    atexit.register(gc.freeze)  # skips the garbage collection at exit, which would take 0.2 s
    try:
        with _open_streams():
            app_of(next(iter(sys.argv[1:]), ""))(prog_name="kilobatch")
    except (ModuleNotFoundError, OSError, ValueError) as error:
        from trainers.runs.errors import EXIT_INPUT, exit_on_error

        if "--install-completion" in sys.argv and isinstance(error, OSError):
            print(f"kilobatch: completion cannot be installed: {error}; --show-completion prints it", file=sys.stderr)
            sys.exit(EXIT_INPUT)
        exit_on_error(error)
        raise
