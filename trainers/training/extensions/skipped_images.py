"""Reports each image that a run has skipped, once, and ends the run when they are too many."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from chainer.training import Extension, Trainer

from trainers.datasets.bad_images import SkippedImage, TooManyBadImages
from trainers.training.extensions.metrics import Metrics

log = logging.getLogger("kilobatch")


class SkippedImages(Extension):
    """Writes a line `skipped_image` for each image in whose place another was taken; all ranks call it together.

    Loading runs ahead of the updates, so an image may be named, and the run end, some updates before its own.

    Bytes on the wire: about 20 an update from each rank to each, and 200 more for each image.

    Args:
        skipped: of each split, the images that this rank has skipped so far; they grow while it loads.
        limit: how many different images may be skipped from the start of this session on; None: any number.
        metrics: where the lines go.
        mpi: communicator of all workers.
    """

    priority = 230  # after the evaluation, which may skip too
    trigger = (1, "iteration")
    default_name = "skipped images"

    def __init__(
        self, skipped: Sequence[Mapping[int, SkippedImage]], *, limit: int | None, metrics: Metrics, mpi: Any
    ) -> None:
        self._skipped, self._limit, self._metrics, self._mpi = skipped, limit, metrics, mpi
        self._known: dict[tuple[str, int], SkippedImage] = {}

    def __call__(self, trainer: Trainer) -> None:
        """Report those that are new.

        Raises:
            TooManyBadImages: on all ranks.
        """
        own = [image for images in self._skipped for image in list(images.values()) if _key(image) not in self._known]
        found = {_key(image): image for images in self._mpi.allgather(own) for image in images}
        for key, image in sorted(found.items()):
            text = f"warning: sample {image.index} of {image.split} is skipped: {image.message}"
            more = {} if self._known else {"note": f"{text}; the log names any further ones"}  # on the terminal
            self._known[key] = image
            more |= {"split": image.split, "index": image.index, "update": trainer.updater.iteration}
            self._metrics.record("skipped_image", image.message, **more)
            if self._mpi.rank == 0:
                log.warning("%s", text)
        if self._limit is not None and len(self._known) > self._limit:
            last = list(self._known.values())[-1]
            raise TooManyBadImages(
                f"{len(self._known)} images cannot be decoded, and on_bad_image stops after {self._limit}; the last is "
                f"{last.message}; replace them (`kilobatch data verify` names all), or raise stop_after"
            )


def _key(image: SkippedImage) -> tuple[str, int]:
    return image.split, image.index
