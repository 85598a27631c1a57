"""`kilobatch search status`: what a search does now, from files in its folder; it locks and writes nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from recipes.reports.wording import duration, number
from trainers.runs.progress_lines import RunState
from trainers.runs.run_folder import LOG, METRICS, RUN, FolderRefused

STATUS = "status.json"  # written by the supervisor, every few seconds
_SILENT_SECONDS = 60.0  # after which a supervisor on another host is taken for dead
_LAST_LINES = 5


def write_status(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write `status.json`, whole or not at all; a full disk does not end the search for it."""
    partial = folder / f".{STATUS}.partial"
    process = {"written": time.time(), "host": socket.gethostname(), "process": os.getpid()}
    with suppress(OSError):
        partial.write_text(json.dumps({**tree, **process}, indent=1), encoding="utf-8")
        partial.rename(folder / STATUS)


def status_tree(folder: Path) -> dict[str, Any]:
    """What `status.json` holds, with update, epoch and seconds left of each running trial, and the end of the log.

    Raises:
        FolderRefused: no search has begun in this folder.
    """
    try:
        tree = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise FolderRefused(f"there is no {STATUS} of a search in {folder}; name the folder of one") from None
    tree["state"] = _state(tree)
    for trial in tree["running"]:
        trial |= _progress(folder / trial["folder"])
    log = folder / LOG
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return tree | {"log": lines[-_LAST_LINES:]}


def status_text(tree: Mapping[str, Any]) -> str:
    """The same in lines; those on the log and on whether it runs only if the tree has them."""
    states, budget = tree["states"], tree["budget"]
    ended = sum(states.values()) - states.get("running", 0)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    limit = f" of {budget['device_hours']:g}" if budget["device_hours"] else ""
    left = ""
    if tree["seconds_left"]:
        hours = f"{number(tree['seconds_left'] * tree['ranks'] / 3600, digits=2)} device-hours"
        left = f", about {duration(tree['seconds_left'])} and {hours} left"
    lines = [f"search {tree['search']} over {tree['recipe']}: {tree['state']}"] if "state" in tree else []
    lines.append(f"trials: {ended} of {budget['trials']} ended{f' ({counts})' if counts else ''}{left}")
    lines.append(f"device-hours: {tree['device_hours']:.3g}{limit}")
    for best in tree["best"]:
        values = ", ".join(f"{path} {number(value)}" for path, value in best["values"].items())
        lines.append(f"best: trial {best['trial']}, {best['text']}, with {values}")
    lines += ["confirmed: " + ", ".join(map(" ".join, row.items())) for row in tree["confirmed"]]
    for trial in tree["running"]:
        at = f"update {trial['update']} of {trial['updates']}, epoch {trial['epoch']:.2f}" if "update" in trial else ""
        rest = f"about {duration(trial['seconds_left'])} left" if trial.get("seconds_left") else ""
        parts = [f"trial {trial['trial']}", at, f"for {duration(trial['seconds'])}", trial["text"], trial["note"], rest]
        lines.append(f"running: {', '.join(filter(None, parts))}")
    lines += [f"set aside: {place}, {why}" for place, why in tree["set_aside"].items()]
    return "\n".join(lines + (["log:", *(f"  {line}" for line in tree["log"])] if "log" in tree else []))


def _state(tree: Mapping[str, Any]) -> str:
    if tree["ended"]:
        return "stopped; the same command goes on with it" if tree["running"] else "ended"
    here = tree["host"] == socket.gethostname()
    silent = max(0.0, time.time() - tree["written"])
    if silent > _SILENT_SECONDS or (here and not os.path.exists(f"/proc/{tree['process']}")):
        return f"not running, without a word for {duration(silent)}; the same command goes on with it"
    return f"running, as process {tree['process']} on {tree['host']}"


def _progress(folder: Path) -> dict[str, Any]:
    """How far the newest run of a trial is; nothing before its first update."""
    runs = sorted(folder.glob(f"**/{METRICS}"), key=lambda path: path.stat().st_mtime)
    if not runs:
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    plan = yaml.load((runs[-1].parent / RUN).read_text(encoding="utf-8"), Loader=loader)["plan"]
    state = RunState(total_updates=plan["num_updates"], total_samples=plan["num_samples"])
    for text in runs[-1].read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # being written
        if line["key"] == "run_start":  # of this session: its pace counts
            state = RunState(total_updates=plan["num_updates"], total_samples=plan["num_samples"])
        state.take(line)
    progress = {"update": state.updates, "updates": state.total_updates, "epoch": state.epoch}
    return progress | {"seconds_left": state.seconds_left} if state.updates else {}
