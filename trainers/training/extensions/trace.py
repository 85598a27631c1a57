"""`trace.jsonl`: samples, rate and loss of every update in full precision, to check worker invariance."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer

from trainers.training.extensions.metrics import JsonLines


class Trace(Extension):
    """Writes a line an update: progress, rate, loss, and the samples in stream order with a digest of their images.

        images_sha256 = SHA-256 over the 32-byte SHA-256 digests, in stream order, of each image as the model gets it
                        (C order, float32 CHW, mixed where the recipe mixes)

    Bytes on the wire: about 60 a sample and 80 a rank, all to rank 0, each update.

    Args:
        path: the run's `trace.jsonl`, appended to by rank 0.
        mpi: communicator of all workers.
    """

    priority = 260
    trigger = (1, "iteration")

    def __init__(self, path: Path, mpi: Any) -> None:
        self._mpi = mpi
        self._lines = JsonLines(path, writes=mpi.rank == 0)

    def __call__(self, trainer: Trainer) -> None:
        record = trainer.updater.record
        shares = self._mpi.gather(record.seen, root=0)
        if shares is None:
            return
        seen = sorted((sample for share in shares for sample in share), key=lambda sample: sample.position)
        assert [sample.position for sample in seen] == list(range(record.global_batch_size))
        self._lines.write(
            {
                "update": record.update,
                "epoch": record.epoch,
                "samples": record.samples,
                "sample_ids": [sample.index for sample in seen],
                "images_sha256": hashlib.sha256(b"".join(sample.digest for sample in seen)).hexdigest(),
                "learning_rate": record.learning_rate,
                "momentum": record.momentum,
                "global_batch_size": record.global_batch_size,
                **({} if record.image_size is None else {"image_size": record.image_size}),
                "loss": record.loss,
            }
        )

    def finalize(self) -> None:
        """Close the file."""
        self._lines.close()
