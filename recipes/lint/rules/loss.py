"""Rules on the loss."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault

_BCE = "BinaryCrossEntropy"


def smoothing_under_threshold(case: Case) -> Iterator[Fault]:
    """Label smoothing under a threshold that turns the targets back into 0 and 1.

    Smoothing comes first, then mixing, then the threshold, which undoes the smoothing.

    Way out: `label_smoothing: 0.0`, or `target_threshold: null`.
    Source: timm's binary cross entropy, which Wightman et al. 2021, arXiv 2110.00476, trained with.
    Fires:
        loss: {kind: BinaryCrossEntropy, label_smoothing: 0.1, reduction: class_sum, target_threshold: 0.2}
    Quiet:
        loss: {kind: BinaryCrossEntropy, label_smoothing: 0.1, reduction: class_sum, target_threshold: null}
    """
    loss = case.opened.tree["loss"]
    smoothing, threshold = loss.get("label_smoothing", 0.0), loss.get("target_threshold")
    if loss["kind"] == _BCE and smoothing > 0 and threshold is not None:
        yield Fault(
            keys=("loss.label_smoothing", "loss.target_threshold"),
            what=f"targets smoothed by {smoothing:g} become 0 and 1 again at a threshold of {threshold:g}",
            way_out="write `label_smoothing: 0.0` or `target_threshold: null`",
        )


def mean_over_classes(case: Case) -> Iterator[Fault]:
    """Binary cross entropy as a mean over the classes, with SGD.

    The mean divides the gradient by the number of classes. Adam, LAMB and LARS normalise the gradient and are not
    affected. With SGD the steps become that much smaller at the same rate.

    Way out: `reduction: class_sum`, or a rate that was found with the mean.
    Source: the documentation of Composer's binary cross entropy: about 1,000 times the rate on ImageNet.
    Fires:
        loss: {kind: BinaryCrossEntropy, reduction: class_mean}
    Quiet:
        loss: {kind: BinaryCrossEntropy, reduction: class_sum}
    """
    loss = case.opened.tree["loss"]
    if loss["kind"] == _BCE and loss.get("reduction") == "class_mean" and case.is_sgd:
        yield Fault(
            keys=("loss.reduction", "loss.kind"),
            what=f"gradients {case.opened.dataset.num_classes:,} times smaller than of the sum over classes",
            way_out="write `reduction: class_sum`",
        )
