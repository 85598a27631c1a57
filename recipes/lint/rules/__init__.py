"""The rules: each a function whose name, with `-` for `_`, is its id, and whose docstring is its entry in docs/lint.md.

A docstring says what is found, why that is a fault, `Way out:`, `Source:`, and gives two changes to a recipe: `Fires:`,
which breaks this rule and no other, and `Quiet:`, which just keeps it.
"""

from recipes.lint.rules.batch import batch_over_tenth, double_buffering, updates_while_ramping
from recipes.lint.rules.decay import decay_on_norm, decay_with_batch, lars_on_vectors
from recipes.lint.rules.loss import mean_over_classes, smoothing_under_threshold
from recipes.lint.rules.norm import average_per_update, lagging_statistics, live_last_gamma, wide_norm_span
from recipes.lint.rules.precision import idle_loss_scale
from recipes.lint.rules.rate import linear_adam, linear_beyond_8k, scaled_lars, scaled_twice, unscaled_rate
from recipes.lint.rules.warmup import constant_warmup, no_warmup, warmup_past_decay, warmup_twice
from recipes.lint.rules.workers import float16_sum, span_over_share

__all__ = [
    "average_per_update",
    "batch_over_tenth",
    "constant_warmup",
    "decay_on_norm",
    "decay_with_batch",
    "double_buffering",
    "float16_sum",
    "idle_loss_scale",
    "lagging_statistics",
    "lars_on_vectors",
    "linear_adam",
    "linear_beyond_8k",
    "live_last_gamma",
    "mean_over_classes",
    "no_warmup",
    "scaled_lars",
    "scaled_twice",
    "smoothing_under_threshold",
    "span_over_share",
    "unscaled_rate",
    "updates_while_ramping",
    "warmup_past_decay",
    "warmup_twice",
    "wide_norm_span",
]
