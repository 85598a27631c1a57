"""How gradients are exchanged: a line in the log and the metrics."""

from __future__ import annotations

import logging
from typing import Any

from chainer.training import Extension, Trainer

from recipes.reports.wording import exchange_words
from trainers.gradients.exchange import Exchange
from trainers.training.extensions.metrics import Metrics

log = logging.getLogger("kilobatch")


class ExchangeLine(Extension):
    """Writes a line after the first exchange: a communicator that chooses by measurement has chosen by then.

    Args:
        name: of the communicator, as the cluster file spells it.
        exchange: of all workers.
        metrics: gets the line.
    """

    priority = 245
    default_name = "gradient_exchange"
    trigger = (1, "iteration")

    def __init__(self, name: str, exchange: Exchange, metrics: Metrics) -> None:
        self._name, self._exchange, self._metrics = name, exchange, metrics
        self._written = False

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        if self._written or updater.record.exchanged is None:
            return
        self._written = True
        facts = described(self._exchange)
        self._metrics.record(
            "gradient_exchange", self._name, update=updater.iteration, epoch=updater.epoch_detail, **facts
        )
        log.info("gradients: %s", exchange_words({"value": self._name, **facts}))
        self._metrics.restart_clock()


def described(exchange: Exchange) -> dict[str, Any]:
    """Choices, buckets and bytes of an exchange; all workers call this together.

    `sent_bytes` is what the worker that sends most puts on the wire in an update; None if the MPI library decides.
    Bytes on the wire of this call: about 30 from each worker to each.
    """
    connection, flat = exchange.connection, exchange.flat
    num_bytes = exchange.wire.num_bytes
    sent = [connection.sent_values(bucket.span.stop - bucket.span.start) for bucket in exchange.buckets]
    own = None if None in sent else float(sum(sent)) * num_bytes
    everyone = connection.mpi.allgather(own)
    return {
        "choices": list(connection.choices),
        "wire": exchange.wire.name,
        "overlap": exchange.overlaps,
        "waiting": connection.wait_mode,
        "num_buckets": len(exchange.buckets),
        "gradient_bytes": len(flat.values) * flat.values.itemsize,
        "sent_bytes": None if None in everyone else round(max(everyone)),
    }
