"""A plan as text for a terminal."""

from __future__ import annotations

from recipes.planning.planner import Plan
from recipes.reports.curves import points_text
from recipes.reports.wording import counted, size


def plan_text(plan: Plan) -> str:
    """The plan: a row a segment, then memory and warnings."""
    tree = plan.as_tree()
    lines = [
        f"{tree['recipe']} on {tree['dataset']}, {counted(tree['workers'], 'worker')} of {tree['cluster']}: "
        f"{counted(tree['num_updates'], 'update')}, {counted(tree['num_samples'], 'sample')}, "
        f"computed in {tree['compute']}",
        "",
        points_text([_row(segment) for segment in tree["segments"]]),
        "",
    ]
    memory = tree["memory"]
    if memory:
        lines.append(
            f"memory of a device: weights {size(memory['weights_bytes'])} + {_half(memory)}gradients "
            f"{size(memory['gradients_bytes'])} + optimizer state {size(memory['optimizer_state_bytes'])}, "
            "and the activations, which are not known yet"
        )
    else:
        lines.append("memory of a device: not known, the model is not built yet")
    return "\n".join(lines + [f"warning: {warning}" for warning in tree["warnings"]])


def _half(memory: dict) -> str:
    halves = {half: memory.get(f"{half}_weights_bytes") for half in ("float16", "bfloat16")}
    return "".join(f"their {half} casts {size(taken)} + " for half, taken in halves.items() if taken is not None)


def _row(segment: dict) -> dict:
    shares = segment["samples_per_worker"]
    first, last = segment["learning_rate"]
    return {
        "epoch": segment["epoch"],
        "update": segment["update"],
        "updates": segment["num_updates"],
        "batch": segment["global_batch_size"],
        "share": f"{min(shares)}-{max(shares)}" if min(shares) < max(shares) else shares[0],
        "micro_batch": segment["micro_batch_size"],
        "accumulation": segment["accumulation_steps"],
        "norm_span": segment["norm_span"],
        **({} if segment["image_size"] is None else {"image_size": segment["image_size"]}),
        "teams": f"{segment['num_teams']} of {segment['team_size']}",
        "idle": segment["idle_workers"],
        "rate, first and last": f"{first:.6g}, {last:.6g}",
    }
