"""Rules on positions beside the length of the run."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault


def idle_after_end(case: Case) -> Iterator[Fault]:
    """A weight average or local steps that begin at the end of the run or later, or a schedule read less than once.

    They do nothing: the average stays equal to the weights, every update averages the weights of the replicas, and the
    rate stays what it was in the first update. A recipe that extends another and shortens the run inherits such
    positions.

    Way out: a position within the run, such as `0.5run`, or remove the key.
    Source: arithmetic; a run has no update at or after its end.
    Fires:
        weight_average: {keep: 0.9, per: 8192, start: 90}
    Quiet:
        weight_average: {keep: 0.9, per: 8192, start: 89}
    """
    recipe = case.recipe
    average, local = recipe.weight_average, recipe.updater.local_steps
    positions = {
        "learning_rate.every": (recipe.learning_rate.every, "the schedule is read once"),
        "weight_average.start": (getattr(average, "start", 0.0), "the average always equals the weights"),
        "updater.local_steps.from": (getattr(local, "from_", 0.0), "the weights are averaged after every update"),
    }
    for key, (position, effect) in positions.items():
        if position != "update" and position >= recipe.epochs:
            yield Fault(
                keys=(key, "epochs"),
                what=f"{key} is {position:g} in a run of {recipe.epochs:g} epochs: {effect}",
                way_out=f"write less, such as {0.5 * recipe.epochs:.3g}, or remove it",
            )
