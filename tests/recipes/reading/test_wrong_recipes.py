"""Wrong keys, values and names: one line each, with file, line, column, cause and way out; all of a file at once."""

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

# What is changed in the valid recipe -> place, path, a part of the cause, a part of the way out.
WRONG = {
    "unknown key": ({"line_5": "epoch: 20\nepochs: 20"}, "5:1", "epoch", "not a known key", "did you mean epochs?"),
    "a year for a name": ({"line_2": "name: 2017"}, "2:7", "name", "is 2017", "text, in quotes"),
    "unknown inner key": (
        {"line_7": "learning_rate: {reference: 0.05, per: 32, warmpu: {}}"},
        "7:43",
        "learning_rate.warmpu",
        "not a known key",
        "did you mean warmup?",
    ),
    "unknown key of a component": (
        {"line_8": "optimizer: {kind: MomentumSGD, momemtum: 0.9}"},
        "8:32",
        "optimizer.momemtum",
        "not a known key",
        "did you mean momentum?",
    ),
    "key of another section": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nnorm_span: 32"},
        "10:1",
        "norm_span",
        "not a known key",
        "it belongs one level down: batch.norm_span",
    ),
    "null for a misspelt key": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nlos: ~"},
        "10:1",
        "los",
        "not a known",
        "loss",
    ),
    "missing key": ({"line_3": "title: no data"}, "1:1", "dataset", "is missing", "add `dataset: ...`"),
    "missing inner key": (
        {"line_7": "learning_rate: {reference: 0.05}"},
        "7:16",
        "learning_rate.per",
        "missing",
        "add",
    ),
    "missing ramp": (
        {"line_6": "batch: {norm_span: 8}"},
        "6:8",
        "batch.global",
        "is missing",
        "add `global: ...`, a whole number or a ramp",
    ),
    "text for a number": (
        {"line_7": 'learning_rate: {reference: "0.05", per: 32}'},
        "7:28",
        "learning_rate.reference",
        "the text '0.05'",
        "must be a number",
    ),
    "number with underscores": (
        {"line_6": "batch: {global: 8_192}"},
        "6:17",
        "batch.global",
        "'8_192'",
        "whole number",
    ),
    "a fraction of a sample": ({"line_6": "batch: {global: 96.5}"}, "6:17", "batch.global", "96.5", "whole number"),
    "yes for true": (
        {"line_4": "model: {kind: SmallResNet, zero_last_gamma: yes}"},
        "4:45",
        "model.zero_last_gamma",
        "the text 'yes'",
        "true or false",
    ),
    "no rate to warm up to": (
        {"line_7": "learning_rate: {reference: -1, per: 32, warmup: {kind: GradualWarmup, epochs: 2, start: 0}}"},
        "7:28",
        "learning_rate.reference",
        "is -1.0",
        "must be above 0",
    ),
    "a warmup to the rate of no batch": (
        {
            "line_7": "learning_rate: {reference: 1, per: 32, "
            "warmup: {kind: ConstantWarmup, epochs: 2, start: {rate: 0.5}, target_batch: 0}}"
        },
        "7:116",
        "learning_rate.warmup.target_batch",
        "is 0",
        "must be at least 1",
    ),
    "unknown data set": ({"line_3": "dataset: digit"}, "3:10", "dataset", "no dataset called", "did you mean digits?"),
    "unknown model": ({"line_4": "model: {kind: SmalResNet}"}, "4:15", "model.kind", "SmalResNet", "SmallResNet"),
    "model without kind": ({"line_4": "model: SmallResNet"}, "4:8", "model", "the text", "{kind: SmallResNet}"),
    "another data set's numbers": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\naugmentation: {eval: [{kind: Normalize, with: imagenet}]}"},
        "10:47",
        "augmentation.eval.0.with",
        "is 'imagenet'",
        "must be 'digits', the data set of the recipe, unless mean and std are given",
    ),
    "colour of a grey image": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\naugmentation: {train: [{kind: ColorJitter, saturation: 0.4}]}"},
        "10:56",
        "augmentation.train.0.saturation",
        "is 0.4",
        "must be 0 for images of 1 channel",
    ),
    "levels after their normalisation": (
        {"line_3": "dataset: digits\naugmentation: {train: [{kind: Normalize, with: digits}, {kind: RandAugment}]}"},
        "4:64",
        "augmentation.train.1.kind",
        "stands after Normalize, whose result is no longer in 0..255",
        "put it before Normalize",
    ),
    "code of one's own": ({"line_4": "model: {kind: my.Net}"}, "4:15", "model.kind", "your own", "--allow-code"),
    "seed below 0": ({"line_9": "loss: {kind: SoftmaxCrossEntropy}\nseed: -1"}, "10:7", "seed", "is -1", "0 or more"),
    "name with a slash": ({"line_2": "name: a/b"}, "2:7", "name", "cannot name a run's folder", "letters"),
    "name of dots": ({"line_2": "name: .."}, "2:7", "name", "cannot name a run's folder", "letters"),
    "double buffering with a gain": (
        {
            "line_8": "optimizer: {kind: AdaScale}",
            "line_9": "loss: {kind: SoftmaxCrossEntropy}\nupdater: {double_buffering: true}",
        },
        "10:29",
        "updater.double_buffering",
        "AdaScale sets its rate by the gradient",
        "another optimizer",
    ),
    "a gain without norm groups to compare": (
        {"line_6": "batch: {global: 15, norm_span: 15}", "line_8": "optimizer: {kind: AdaScale}"},
        "6:32",
        "batch.norm_span",
        "AdaScale compares the gradients of norm groups, and the batch of 15 from 0 on is one group",
        "5 would do",
    ),
    "lacks what is there": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nlacks: [SmallResNet]"},
        "10:9",
        "lacks.0",
        "SmallResNet is built",
        "remove it",
    ),
    "assumes what is not there": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nassumed: [batch.size]"},
        "10:11",
        "assumed.0",
        "no value at batch.size",
        "show",
    ),
    "assumes a step that is not there": (
        {"line_6": "batch: {global: [{from: 0, size: 8}]}\nassumed: [batch.global.1]"},
        "7:11",
        "assumed.0",
        "no value at batch.global.1",
        "show",
    ),
    "claim of an unknown status": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nclaims: [{metric: a, kind: b, value: 1, status: done}]"},
        "10:49",
        "claims.0.status",
        "the text 'done'",
        "reproduced, predicted or not run",
    ),
    "value outside its range": (
        {"line_8": "optimizer: {kind: MomentumSGD, momentum: 1.5}"},
        "8:42",
        "optimizer.momentum",
        "is 1.5",
        "must be",
    ),
    "rate of 0": (
        {"line_7": "learning_rate: {reference: 0, per: 32}"},
        "7:28",
        "learning_rate.reference",
        "is 0",
        "must be above 0",
    ),
    "evaluation every 0 epochs": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nevaluation: {every: 0}"},
        "10:21",
        "evaluation.every",
        "is 0",
        "must be above 0",
    ),
    "word that is almost one": (
        {"line_9": "loss: {kind: SoftmaxCrossEntropy}\nevaluation: {norm_statistics: poled}"},
        "10:31",
        "evaluation.norm_statistics",
        "the text 'poled'",
        "did you mean pooled?",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_recipe_is_one_line_with_place_cause_and_way_out(case, write, problem_of):
    lines, position, path, cause, way_out = WRONG[case]
    problem = problem_of(write(**lines))
    assert f"{problem.file}:{problem.line}:{problem.column}" == f"mine.yaml:{position}"
    assert problem.path == path
    assert cause in problem.what
    assert way_out in problem.way_out


def test_problem_of_a_data_set_stands_in_its_file(write, problem_of):
    write("num_train: 10\nnum_eval: 0\nnum_classes: 2\nchannels: 1\n", "configs/datasets/few.yaml")
    problem = problem_of(write(line_3="dataset: few"))
    assert str(problem).startswith("configs/datasets/few.yaml:2:11: num_eval: is 0; must be at least 1")


def test_all_problems_of_a_file_are_reported_at_once(write, problem_of):
    path = write(line_2="nmae: mine", line_4="model: {kind: Small}", line_6="batch: {global: 0}", line_9="seed: 1.5")
    with pytest.raises(RecipeError) as caught:
        open_recipe(path, vocabulary=vocabulary())
    lines = [problem.line for problem in caught.value.problems]
    assert lines == [1, 2, 4, 6, 9]  # the first one: `loss` is missing
    assert len(str(caught.value).splitlines()) == 5


def test_a_file_name_that_cannot_name_a_folder_is_refused_with_the_key_that_helps(write, problem_of):
    problem = problem_of(write(line_2="title: no name", name="猫.yaml"))
    assert str(problem).startswith("猫.yaml:1:1: name: '猫' cannot name a run's folder; add a `name:` of the letters a")
