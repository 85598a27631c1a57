"""Exact evaluation: each sample once, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from trainers.extensions.evaluation import Score
from trainers.stream_iterator import LoadImage

_CHUNK = 100  # samples a forward


def score(
    model: chainer.Chain, *, load: LoadImage, num_samples: int, loss: Callable[..., chainer.Variable], mpi: Any
) -> Score:
    """Score a model over samples 0 ... num_samples - 1, split contiguously over the workers.

    Sums over samples are added up over the workers and divided once, so that uneven shares are exact. All workers call
    this together. Bytes on the wire: 16.

    Args:
        model: float32 NCHW -> logits.
        load: (epoch, index) -> image as the model gets it, label.
        num_samples: of the evaluation set.
        loss: (logits, labels) -> mean over the samples given.
        mpi: communicator of all workers.
    """
    sums = np.zeros(2)  # correct, loss
    start, stop = (num_samples * rank // mpi.size for rank in (mpi.rank, mpi.rank + 1))
    for first in range(start, stop, _CHUNK):
        samples = [load(0, index) for index in range(first, min(first + _CHUNK, stop))]
        images_NCHW = np.stack([image for image, _ in samples]).astype(chainer.get_dtype(), copy=False)
        labels = np.array([label for _, label in samples], dtype=np.int32)
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            logits = model(images_NCHW)
            mean_loss = float(loss(logits, labels).array)
        sums += [(logits.array.argmax(axis=1) == labels).sum(), mean_loss * len(labels)]
    totals = np.empty_like(sums)
    mpi.Allreduce(sums, totals)
    return Score(accuracy=totals[0] / num_samples, loss=totals[1] / num_samples, num_samples=num_samples)
