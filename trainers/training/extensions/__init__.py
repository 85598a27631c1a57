"""Chainer extensions: what happens between updates on all ranks, beside training.

A recipe names them in `extensions`. The other modules of this room hold those that every run has: metrics, evaluation,
checkpoints, and on request trace and profile.

A component is a frozen dataclass. `build()` returns a Chainer extension: a `chainer.training.Extension`, or a function
of the trainer. All ranks call it together, in the order of the recipe, after the evaluation of that update and before
its checkpoint. A field `every` (epochs, or `update`) says after which updates; without it the extension's own `trigger`
does. `trainer.get_extension("Metrics").write(key, value)` appends a line to `metrics.jsonl`. If the extension has an
attribute `state`, plain data and equal on all ranks, checkpoints keep it and `--resume` sets it. A component may have
`require()`, which refuses to begin where a package is missing.
"""

from trainers.training.extensions.loggers import CSV, MLflow, TensorBoard
from trainers.training.extensions.weight_norms import WeightNorms

__all__ = ["CSV", "MLflow", "TensorBoard", "WeightNorms"]
