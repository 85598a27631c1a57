"""Run folders as `trainers` writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lr_schedules import BatchRamp, GradualWarmup
from recipes.reading.open import open_dataset, open_recipe
from recipes.schema import Dataset, Recipe
from recipes.schema.vocabulary import Unbuilt
from trainers.launch.vocabulary import vocabulary

NUM_TRAIN = 1440
RECIPE = {
    "kilobatch": 1,
    "name": "digits/large",
    "title": "A small ResNet on digits at batch 480",
    "source": {"title": "measured here", "year": 2025},
    "dataset": "digits",
    "model": {"kind": "SmallResNet", "widths": [16, 32, 64]},
    "epochs": 12,
    "batch": {"global": [{"from": 0, "size": 240}, {"from": 6, "size": 480}], "norm_span": 24},
    "learning_rate": {
        "reference": 0.05,
        "per": 32,
        "rule": "linear",
        "warmup": {"kind": "GradualWarmup", "epochs": 3, "start": "reference", "joins": "multiply"},
        "schedule": {"kind": "Cosine", "epochs": 12},
    },
    "optimizer": {"kind": "MomentumSGD", "momentum": 0.9, "weight_decay": 1e-4, "no_decay": ["norm"]},
    "evaluation": {"every": 1, "norm_statistics": "pooled"},
    "seed": 0,
    "claims": [
        {"metric": "top1", "kind": "accuracy", "value": 0.985, "runs": 3, "on": "2 CPU cores", "status": "not run"},
        {"metric": "minutes", "kind": "time_to_train", "value": 2, "runs": 3, "on": "2 CPU cores", "status": "not run"},
    ],
    "assumed": ["batch.norm_span"],
}
ORIGINS = {
    "": "recipes/papers/digits/large.yaml:1:1",
    "kilobatch": "recipes/papers/digits/large.yaml:1",
    "model": "recipes/papers/digits/large.yaml:7:1",
    "epochs": "command line:1:8",
    "optimizer.no_decay.0": "recipes/papers/digits/large.yaml:17:80",
    "augmentation": "default of the schema",
}


def _segment(update: int, num_updates: int, size: int, rates: list[float]) -> dict[str, Any]:
    samples = update * 240
    return {
        "update": update, "num_updates": num_updates, "samples": samples, "epoch": samples / NUM_TRAIN,
        "global_batch_size": size, "norm_span": 24, "num_groups": size // 24, "team_size": 1, "num_teams": 3,
        "idle_workers": 0, "samples_per_worker": [size // 3 + 8, size // 3 - 4, size // 3 - 4],
        "micro_batch_size": 48, "accumulation_steps": 2, "learning_rate": rates,
    }  # fmt: skip


def lines_of_a_run(*, stop: str | None = "success", num_updates: int = 54) -> list[dict[str, Any]]:
    """The lines of a run of 36 updates of 240 samples and 18 of 480, an evaluation each epoch."""
    lines: list[dict[str, Any]] = [{"key": "run_start", "value": "digits/large", "time_ms": 1_000_000}]
    samples, clock = 0, 1_000_500
    for update in range(num_updates):
        size = 240 if samples < 6 * NUM_TRAIN else 480
        epoch = samples / NUM_TRAIN
        rate = 0.05 * size / 32 * min(1.0, (epoch + 0.1) / 3) * (1 + math.cos(math.pi * epoch / 12)) / 2
        seconds = 0.3 * size / 240 * (1 + 0.2 * math.sin(7 * update)) + (2.0 if update == 0 else 0.0)
        clock += round(1000 * seconds)
        loss = 2.3 * math.exp(-epoch / 2.2) * (1 + 0.15 * math.sin(5 * update)) + 0.01
        lines.append({
            "key": "train_loss", "value": loss, "time_ms": clock, "update": update, "epoch": epoch, "samples": samples,
            "learning_rate": rate, "momentum": 0.9, "global_batch_size": size, "update_seconds": seconds,
        })  # fmt: skip
        before, samples = samples, samples + size
        if samples // NUM_TRAIN > before // NUM_TRAIN:
            reached = {"time_ms": clock + 100, "update": update + 1, "epoch": samples / NUM_TRAIN, "samples": samples}
            accuracy = 0.987 - 0.85 * math.exp(-epoch / 1.8) + (0.004 if 9 < epoch < 10 else 0.0)
            lines.append({"key": "eval_accuracy", "value": accuracy, **reached})
            lines.append({"key": "eval_loss", "value": 2.2 * math.exp(-epoch / 2.0) + 0.05, **reached})
    if stop:
        end = {"update": num_updates, "epoch": samples / NUM_TRAIN, "samples": samples, "time_ms": clock + 500}
        lines.append({"key": "run_stop", "value": stop, "reason": "" if stop == "success" else "asked to", **end})
    return lines


@pytest.fixture
def metric_lines() -> Callable[..., list[dict[str, Any]]]:
    """Gives the lines of a run, to be changed by a test."""
    return lines_of_a_run


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run's folder and gives its path; `recipe` and `head` are laid over what is there otherwise."""

    def write(name: str = "run", *, lines: list[dict[str, Any]] | None = None, recipe: dict[str, Any] | None = None,
              environment: dict[str, Any] | None = None, **head: Any) -> Path:  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        plan = {
            "recipe": "digits/large", "dataset": "digits", "cluster": "laptop", "workers": 3, "num_updates": 54,
            "num_samples": 17280, "segments": [_segment(0, 36, 240, [0.0125, 0.3]), _segment(36, 18, 480, [0.6, 0.01])],
            "memory": {"weights_bytes": 312_000, "gradients_bytes": 312_000, "optimizer_state_bytes": 312_000,
                       "activations_bytes": None, "range_bytes": [1, 2], "rests_on": "counted", "update": 0},
            "exact": True,
            "warnings": ["from update 0 on 0 of 3 workers have no samples"],
        }  # fmt: skip
        tree = {
            "kilobatch": 1, "recipe": {**RECIPE, **(recipe or {})}, "origins": ORIGINS, "plan": plan,
            "dataset": {"name": "digits", "num_train": NUM_TRAIN, "num_eval": 357, "num_classes": 10},
            "command": "kilobatch train digits/large -n 3 --set epochs=12", **head,
        }  # fmt: skip
        (folder / "run.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        text = "".join(json.dumps(line) + "\n" for line in (lines_of_a_run() if lines is None else lines))
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
        machine = {
            "versions": {"python": "3.11.9", "chainer": "7.8.1", "numpy": "2.4.6"}, "platform": "Linux-6.1",
            "cpu": "a processor", "mpi": "MPICH 4.3", "threads_per_rank": 1,
            "git": {"commit": "0123abcd", "dirty": False},
            "ranks": [{"rank": rank, "host": "here"} for rank in range(3)], "data_fingerprint": "sha256:9f2c",
            "date": "2025-06-01T12:00:00+00:00",
        }  # fmt: skip
        (folder / "environment.json").write_text(json.dumps({**machine, **(environment or {})}), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def imagenet() -> Dataset:
    return open_dataset("imagenet", vocabulary=vocabulary())


@pytest.fixture
def make_recipe() -> Callable[..., Recipe]:
    """Makes a recipe: 90 epochs, five of warmup, rate steps of a tenth, the batch 2048 and from epoch 30 on 4096."""

    def make(
        *,
        momentum: float | None = 0.9,
        warmup: bool = True,
        schedule: Any = None,
        sizes: tuple[int, ...] = (2048, 4096),
        boundaries: tuple[float, ...] = (0.0, 30.0),
        **changes: Any,
    ) -> Recipe:
        recipe = open_recipe("suzuki2018", vocabulary=vocabulary()).recipe
        rate = recipe.learning_rate
        start = replace(rate.warmup, shape=GradualWarmup(epochs=5.0, start=256 / sizes[0]), target_batch=sizes[0])
        return replace(
            recipe,
            batch=replace(recipe.batch, global_=BatchRamp(boundaries=boundaries, sizes=sizes)),
            learning_rate=replace(rate, warmup=start if warmup else None, schedule=schedule or rate.schedule),
            optimizer=Unbuilt(kind="MomentumSGD", fields={} if momentum is None else {"momentum": momentum}),
            **{"name": "ramped", "title": "A ramp", **changes},
        )

    return make
