"""The process of a loader worker: it opens the rank's recipe and loads samples of it."""

from __future__ import annotations

from functools import cache
from typing import Any

from recipes.errors import InputRefused
from recipes.sharing.canonical import digest_of
from trainers.datasets import loader_process
from trainers.datasets.augmented import AugmentedSamples, Split, augmented_samples
from trainers.launch.request import TrainRequest, open_request


def serve_samples(socket: int, memory: int) -> None:
    """Be a loader worker's process: load samples until the rank closes the socket, a file descriptor."""
    loader_process.serve(socket, memory, _opened)


def _opened(request: dict[str, Any]) -> Any:
    """Opens splits of the rank's recipe, each once."""
    opened = open_request(TrainRequest.from_tree(request["train"]))
    if digest_of(opened.tree) != request["recipe_sha256"]:
        raise InputRefused("the recipe's file was changed while the run began; begin it again")

    @cache
    def samples_of(split: Split, pixels: bool) -> AugmentedSamples:
        return augmented_samples(opened.recipe, opened.dataset, split, pixels=pixels)

    return samples_of
