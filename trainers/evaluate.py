"""Exact evaluation: each sample once, whatever the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import chainer
import numpy as np

from trainers.extensions.evaluation import Score
from trainers.stream_iterator import LoadImage

_CHUNK = 100  # samples a forward


def score(
    model: chainer.Chain,
    *,
    load: LoadImage,
    num_samples: int,
    loss: Callable[..., chainer.Variable],
    mpi: Any,
    whole_forwards: bool = False,
) -> Score:
    """Score a model over samples 0 ... num_samples - 1, split contiguously over the workers.

    Sums over samples are added up over the workers and divided once, so that uneven shares are exact. All workers call
    this together. Bytes on the wire: 8 a forward and 8 a worker.

    Args:
        model: float32 NCHW -> logits, on whatever device.
        load: (epoch, index) -> image as the model gets it, label.
        num_samples: of the evaluation set.
        loss: (logits, labels) -> mean over the samples given.
        mpi: communicator of all workers.
        whole_forwards: forwards are those of one worker alone, dealt to all: the score then has its bits, and some
            workers up to 100 samples more than others.
    """
    unit = _CHUNK if whole_forwards else 1
    units = -(-num_samples // unit)
    start, stop = (min(unit * (units * rank // mpi.size), num_samples) for rank in (mpi.rank, mpi.rank + 1))
    correct, losses = 0, []
    for first in range(start, stop, _CHUNK):
        samples = [load(0, index) for index in range(first, min(first + _CHUNK, stop))]
        images_NCHW = np.stack([image for image, _ in samples]).astype(chainer.get_dtype(), copy=False)
        labels = np.array([label for _, label in samples], dtype=np.int32)
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            labels = model.device.send(labels)
            logits = model(model.device.send(images_NCHW))
            mean_loss = float(loss(logits, labels).array)
        correct += int((logits.array.argmax(axis=1) == labels).sum())
        losses.append(mean_loss * len(labels))
    corrects, parts = zip(*mpi.allgather((correct, losses)), strict=True)
    total_loss = math.fsum(chain(*parts))  # exact, so that no order counts
    return Score(accuracy=sum(corrects) / num_samples, loss=total_loss / num_samples, num_samples=num_samples)
