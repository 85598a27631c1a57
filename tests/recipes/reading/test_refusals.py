"""Wrong recipes: a problem is one line with file, line, column, path, cause and way out; all of a file come at once.

A recipe opens or is refused whatever value stands anywhere in it, and never crashes the program.
"""

import re

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

# The lines that replace those of the valid recipe, by number; then position, path, a part of the cause and one of the
# way out.
CASES = r"""
# Files that are no YAML we read
5| epochs: 20
 | epochs: 30
=> 6:1 epochs: given twice, first on line 5; remove
6| batch:
 |     global: 96
 |   norm_span: 32
=> 8:3: block; indentation
5| epochs: 20 seed: 1
=> 5:16: second `key: value`; quote
9| loss: {kind: SoftmaxCrossEntropy
=> 10:1: flow mapping; brackets
9| ---
 | loss: 1
=> 9:1: second document; remove
4| model: !!python/object/apply:os.system [ls]
=> 4:8: python/object; remove the tag
5| epochs: !epochs 20
=> 5:9: the tag !epochs; remove the tag
6| batch: {<<: {global: 96}}
=> 6:9 batch.<<: merge keys; write the values
6| batch: &b {global: *b}
=> 6:8: inside its own anchor; write the value
6| batch: *b
=> 6:8: undefined alias; anchor
5| epochs: .inf
=> 5:9 epochs: .inf is not a finite number; write a number
5| epochs: 1e999
=> 5:9 epochs: not a finite number; write a number
6| batch: {global: 100000000000000000000}
=> 6:17 batch.global: more than 64 bits; smaller
5| epochs: 9223372036854775808
=> 5:9 epochs: more than 64 bits; smaller
3| title: "\e[2Jgone"
=> 3:8 title: '\x1b'; remove it
6| batch: {"\e[2J": 1}
=> 6:9 batch: '\x1b'; remove it
3| title: "\ud800"
=> 3:8 title: '\ud800'; remove it
# Merging
1| seed: 1
=> 1:1 kilobatch: is missing; `kilobatch: 1`
1| kilobatch: 2
=> 1:12 kilobatch: 2 is not a version; `kilobatch: 1`
9| extends: goyal2071
=> 9:10 extends: no recipe called; goyal2017
9| extends: ./no.yaml
=> 9:10 extends: no file no.yaml; counts from
9| extends: ../x.yaml
=> 9:10 extends: lies outside; move the file
9| extends: /x.yaml
=> 9:10 extends: lies outside; move the file
9| extends: ./mine.yaml
=> 9:10 extends: mine.yaml -> mine.yaml; remove one
# Wrong keys, values and names
5| epoch: 20
 | epochs: 20
=> 5:1 epoch: not a known key; did you mean epochs?
2| name: 2017
=> 2:7 name: is 2017; text, in quotes
7| learning_rate: {reference: 0.05, per: 32, warmpu: {}}
=> 7:43 learning_rate.warmpu: not a known key; did you mean warmup?
8| optimizer: {kind: MomentumSGD, momemtum: 0.9}
=> 8:32 optimizer.momemtum: not a known key; did you mean momentum?
10| norm_span: 32
=> 10:1 norm_span: not a known key; it belongs one level down: batch.norm_span
10| los: ~
=> 10:1 los: not a known; loss
3| title: no data
=> 1:1 dataset: is missing; add `dataset: imagenet`
7| learning_rate: {reference: 0.05}
=> 7:16 learning_rate.per: missing; add
6| batch: {norm_span: 8}
=> 6:8 batch.global: is missing; add `global: ...`, a whole number or a ramp
7| learning_rate: {reference: "0.05", per: 32}
=> 7:28 learning_rate.reference: the text '0.05'; must be a number
6| batch: {global: 8_192}
=> 6:17 batch.global: '8_192'; whole number
6| batch: {global: 96.5}
=> 6:17 batch.global: 96.5; whole number
4| model: {kind: SmallResNet, zero_last_gamma: yes}
=> 4:45 model.zero_last_gamma: the text 'yes'; true or false
7| learning_rate: {reference: -1, per: 32, warmup: {kind: GradualWarmup, epochs: 2, start: 0}}
=> 7:28 learning_rate.reference: is -1.0; must be above 0
7| learning_rate: {reference: 1, per: 9, warmup: {kind: ConstantWarmup, epochs: 2, start: {rate: 0.5}, target_batch: 0}}
=> 7:115 learning_rate.warmup.target_batch: is 0; must be at least 1
3| dataset: digit
=> 3:10 dataset: no dataset called; did you mean digits?
4| model: {kind: SmalResNet}
=> 4:15 model.kind: SmalResNet; SmallResNet
4| model: SmallResNet
=> 4:8 model: the text; {kind: SmallResNet}
10| augmentation: {train: [{kind: Normalize, with: digits}]}
=> 10:15 augmentation.eval: scales pixels otherwise than `augmentation.train`; write `eval: [..., {kind: Normalize,
10| augmentation: {eval: [{kind: Normalize, with: digits}]}
=> 10:15 augmentation.train: scales pixels otherwise than `augmentation.eval`; write `train: [..., {kind: Normalize,
10| augmentation: {train: [{kind: Normalize, with: digits}], eval: [{kind: Normalize, mean: [0.5], std: [0.5]}]}
=> 10:64 augmentation.eval: scales pixels otherwise than `augmentation.train`; as in `train`
10| augmentation: {eval: [{kind: Normalize, with: digits}, {kind: Normalize, with: digits}]}
=> 10:63 augmentation.eval.1.kind: stands after Normalize, which has normalised; remove one of both
10| augmentation: {eval: [{kind: Normalize, with: imagenet}]}
=> 10:47 augmentation.eval.0.with: is 'imagenet'; must be 'digits', the data set of the recipe, unless mean and std
10| augmentation: {train: [{kind: ColorJitter, saturation: 0.4}]}
=> 10:56 augmentation.train.0.saturation: is 0.4; must be 0 for images of 1 channel
3| dataset: digits
 | augmentation: {train: [{kind: Normalize, with: digits}, {kind: RandAugment}]}
=> 4:64 augmentation.train.1.kind: stands after Normalize, whose result is no longer in 0..255; put it before Normalize
4| model: {kind: my.Net}
=> 4:15 model.kind: your own; --allow-code
10| seed: -1
=> 10:7 seed: is -1; 0 or more
2| name: a/b
=> 2:7 name: cannot name a run's folder; letters
2| name: ..
=> 2:7 name: cannot name a run's folder; letters
8| optimizer: {kind: AdaScale}
10| updater: {double_buffering: true}
=> 10:29 updater.double_buffering: AdaScale sets its rate by the gradient; another optimizer
6| batch: {global: 15, norm_span: 15}
8| optimizer: {kind: AdaScale}
=> 6:32 batch.norm_span: AdaScale compares the gradients of norm groups, and the batch of 15; 5 would do
7| learning_rate: {reference: 1, per: 9, warmup: {kind: GradualWarmup, epochs: 2, start: 0}}
8| optimizer: {kind: RmspropWarmup, beta_center: 1}
=> 7:16 learning_rate: is 0 at epoch 0, and RmspropWarmup divides by it until epoch 3.5; remove `warmup`
10| lacks: [SmallResNet]
=> 10:9 lacks.0: SmallResNet is built; remove it
10| assumed: [batch.size]
=> 10:11 assumed.0: no value at batch.size; show
6| batch: {global: [{from: 0, size: 8}]}
 | assumed: [batch.global.1]
=> 7:11 assumed.0: no value at batch.global.1; show
10| claims: [{metric: a, kind: b, value: 1, status: done}]
=> 10:49 claims.0.status: the text 'done'; reproduced, predicted or not run
8| optimizer: {kind: MomentumSGD, momentum: 1.5}
=> 8:42 optimizer.momentum: is 1.5; must be
7| learning_rate: {reference: 0, per: 32}
=> 7:28 learning_rate.reference: is 0; must be above 0
10| evaluation: {every: 0}
=> 10:21 evaluation.every: is 0; must be above 0
10| evaluation: {norm_statistics: poled}
=> 10:31 evaluation.norm_statistics: the text 'poled'; did you mean pooled?
# Lengths, ramps, norm spans and warmups that cannot be
5| epochs: 20epochs
=> 5:9 epochs: 'epochs' is not a unit; 30ep
5| epochs: 0.5up
=> 5:9 epochs: not a whole number of updates; 500up
5| epochs: 2run
=> 5:9 epochs: length of the run; 30ep
6| batch: {global: 0}
=> 6:17 batch.global: is 0; at least 1
6| batch: {global: 96.0}
=> 6:17 batch.global: is 96.0; whole number: 96
5| epochs: 0
=> 5:9 epochs: is 0; longer than 0
5| epochs: 1e300
=> 5:9 epochs: more than 9,007,199,254,740,992 samples; 30ep
5| epochs: 1e99up
=> 5:9 epochs: 1e99up is more than 9,007; 30ep
5| epochs: -1
=> 5:9 epochs: -1 lies before the start; 30ep
6| batch: {global: [{from: 0, size: 96}, {from: 9, size: 192}, {from: 5, size: 288}]}
=> 6:68 batch.global.2.from: 5 does not come after 9; order of time
6| batch: {global: [{from: 1, size: 96}]}
=> 6:25 batch.global.0.from: begins at 1; begins at 0
6| batch: {global: [{from: 0, size: 96}, {from: 20, size: 192}]}
=> 6:46 batch.global.1.from: 20 lies at or after the end of the run; lengthen `epochs`
# Studies: schedules of the optimizer, single rates, a goal, the end of augmentation
8| optimizer: {kind: SGD}
 | schedules: {momentum: {kind: Cosine}}
=> 9:23 schedules.momentum: SGD has no momentum; remove this
8| optimizer: {kind: ScheduleFreeSGD, weight_decay: 0.001}
 | schedules: {momentum: {kind: Cosine}, weight_decay: {kind: Cosine}}
=> 9:23 schedules.momentum: ScheduleFreeSGD has no momentum; choose another `optimizer`, or remove this
8| optimizer: {kind: MomentumSGD, momentum: 0.9}
 | schedules: {weight_decay: {kind: Cosine}}
=> 9:27 schedules.weight_decay: no weight_decay, or it is 0; give `optimizer` a weight_decay
10| schedules: {momentum: {kind: PiecewiseLinear, points: [[0, 1], [10, 2]]}}
=> 10:23 schedules.momentum: must be < 1; factor on `optimizer.momentum`
10| schedules: {momentum: {kind: PiecewiseLinear, points: [[0, 1], [0.105, 1], [0.13, 1.2], [0.19, 1]]}}
=> 10:23 schedules.momentum: at epoch 0.128: ; factor on `optimizer.momentum`
5| epochs: 40
10| schedules: {momentum: {kind: PiecewiseLinear, points: [[0, 1], [39.8, 1], [40, 1.2]]}}
=> 10:23 schedules.momentum: must be < 1; factor on `optimizer.momentum`
10| schedules: {momentum: {kind: MultiStep, boundaries: [5, 10], factor: 1e200}}
=> 10:23 schedules.momentum: at epoch; factor on `optimizer.momentum`
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: MultiStep, boundaries: [5, 10], factor: 1e200}}
=> 7:16 learning_rate: is not a finite number at epoch 10; factors of its schedule
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: MultiStep, boundaries: [5, 19.99], factor: 1e200}}
=> 7:16 learning_rate: is not a finite number at epoch 20; factors of its schedule
7| learning_rate: {reference: 1e308, per: 1}
=> 7:16 learning_rate: is not a finite number at epoch 0; smaller
7| learning_rate: {reference: 5e-324, per: 1000000, warmup: {kind: GradualWarmup, epochs: 2}}
=> 7:16 learning_rate: is 0 from the first update; factor above 0
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: PiecewiseLinear, points: [[0, 0]]}}
=> 7:16 learning_rate: is 0 from the first update; factor above 0
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: SlowStart, boundaries: [10], factors: [0, 0]}}
=> 7:16 learning_rate: is 0 from the first update; factor above 0
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: CosineRestarts, first: 1e-25}}
=> 7:53 learning_rate.schedule: begins anew more than 100,000 times; longer `first`
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: CosineRestarts, first: 1e-9, times: 1.0000001}}
=> 7:53 learning_rate.schedule: begins anew more than 100,000 times; longer `first`
8| optimizer: {kind: RmspropWarmup}
7| learning_rate: {reference: 1, per: 9, schedule: {kind: SlowStart, boundaries: [0.1, 0.15], factors: [1, 0, 1]}}
=> 7:16 learning_rate: is 0 at epoch 0.128, and RmspropWarmup; begin above 0
7| learning_rate: {reference: 0.05, per: 32, factors: [{parameters: [gamma], factor: 2}]}
=> 7:66 learning_rate.factors.0.parameters: is ['gamma']; norm, bias or paths
7| learning_rate: {reference: 0.05, per: 32, factors: [{parameters: [norm], factor: -1}]}
=> 7:82 learning_rate.factors.0.factor: is -1; at least 0
10| stop_at: {}
=> 10:10 stop_at.accuracy: not possible; must be given, or loss
10| stop_at: {metrics: {macro_f1: 0.5}}
=> 10:21 stop_at.metrics.macro_f1: 'macro_f1' is no score of an evaluation; write one of accuracy, loss, or add a metric
10| evaluation: {best: top5, metrics: [{kind: TopAccuracy, k: 5}]}
=> 10:20 evaluation.best: 'top5' is no score of an evaluation; write one of accuracy, loss, top5_accuracy, or add a
10| stop_at: {accuracy: 90}
=> 10:21 stop_at.accuracy: is 90; above 0 and at most 1
10| evaluation: {offset: 20}
=> 10:22 evaluation.offset: 20 lies at or after the end; lengthen `epochs`
10| augmentation: {end: {at: 20}}
=> 10:26 augmentation.end.at: 20 lies at or after the end; end earlier
10| augmentation: {end: {at: 0}}
=> 10:26 augmentation.end.at: is 0; above 0
10| augmentation: {end: {at: 5, train: [{kind: Normalize, with: digits}]}}
=> 10:21 augmentation.end: scales pixels otherwise; same `Normalize`
10| augmentation: {train: [{kind: RandomCrop, size: 6}], eval: [{kind: CenterCrop, size: 4}], end: {at: 5}}
=> 10:96 augmentation.end: images of 4 pixels; that size
10| augmentation: {end: {at: 5, train: [{kind: RandomCrop, size: image_size}]}}
=> 10:62 augmentation.end.train.0.size: means the recipe's `image_size`; add `image_size
6| batch: {global: [{from: 0, size: 96, until: 21, grow_to: 192, by: 96}]}
=> 6:45 batch.global.0.until: 21 lies after the end of the run; lengthen `epochs`
6| batch: {global: [{from: 0, size: 96, until: 9, grow_to: 192, by: 96}, {from: 9, size: 288}]}
=> 6:78 batch.global.1.from: 9 does not come after 9; order of time
6| batch: {global: [{from: 0, size: 96, grow_to: 192}]}
=> 6:18 batch.global.0: without until and by; RampStep
6| batch: {global: [{from: 0, size: 96, until: 9, grow_to: 192, by: 64}]}
=> 6:66 batch.global.0.by: is 64; divide 96 into at most 256 steps
6| batch: {global: [{from: 0, size: 96, until: 9, grow_to: 96, by: 1}]}
=> 6:57 batch.global.0.grow_to: is 96; more than size 96
6| batch: {global: [{from: 0, size: 96}, {from: 5, size: 96, until: 5, grow_to: 97, by: 1}]}
=> 6:66 batch.global.1.until: is 5; after from 5
5| epochs: 0.5run
 | image_size: [{from: 0, size: 6}, {from: 0.5run, size: 8}]
=> 5:9 epochs: 0.5run needs the length of the run; 30ep (epochs), 500up (updates) or 1.5Msp (samples)
6| batch: {global: [{from: 0, size: 96, until: 10up, grow_to: 192, by: 32}], norm_span: 32}
=> 6:45 batch.global.0.until: 10up needs the batch sizes; 30ep (epochs), 1.5Msp (samples) or 0.5run
5| epochs: 18up
6| batch: {global: [{from: 0, size: 96}, {from: 0.5run, size: 192}], norm_span: 32}
7| learning_rate: {reference: 0.05, per: 32, schedule: {kind: CosineRestarts, first: 0.5run}}
=> 6:46 batch.global.1.from: 0.5run needs the length of the run; 30ep (epochs), 500up (updates) or 1.5Msp (samples)
6| batch: {global: [{from: 0}]}
=> 6:18 batch.global.0.size: is missing; add `size: ...`
6| batch: {global: []}
=> 6:17 batch.global: empty list; one number
6| batch: {global: 96, norm_span: 36}
=> 6:32 batch.norm_span: 96 from 0 on is no multiple of 36; 32 would do
6| batch: {global: [{from: 0, size: 96}, {from: 2, size: 1500}], norm_span: 32}
=> 6:74 batch.norm_span: 1500 from 2 on is no multiple of 32; 12 would do
6| batch: {global: [{from: 0, size: 96}, {from: 2, size: 1500}], norm_span: [{from: 0, size: 32}, {from: 2, size: 32}]}
=> 6:74 batch.norm_span: 1500 from 2 on is no multiple of 32; 30 would do
6| batch: {global: 96, norm_span: 192}
=> 6:32 batch.norm_span: no multiple of 192; 96 would do
6| batch: {global: 96, norm_span: [{from: 0, size: 32}, {from: 2, size: 96}]}
=> 6:32 batch.norm_span: changes at 2, where `batch.global` does not; steps of the batch: 0
6| batch: {global: 96, norm_span: 0}
=> 6:32 batch.norm_span: is 0; at least 1
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 25}}
=> 7:81 learning_rate.warmup.epochs: 25 is longer than the run, 20; shorten
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 0}}
=> 7:81 learning_rate.warmup.epochs: is 0; must be > 0
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, start: 0.1}}
=> 7:91 learning_rate.warmup.start: 0.1 may be a rate or a factor; {rate: 0.1} or {factor: 0.1}
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, start: {rate: 0.2}}}
=> 7:91 learning_rate.warmup.start: 0.2 does not lie between 0 and the full rate of batch 96, 0.15; start lower
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, start: refrence}}
=> 7:91 learning_rate.warmup.start: not where; reference
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, start: true}}
=> 7:91 learning_rate.warmup.start: not where; reference
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, joins: add}}
=> 7:91 learning_rate.warmup.joins: 'add'; before or over
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: ConstantWarmup, epochs: 5, start: 0}}
=> 7:92 learning_rate.warmup.start: is 0; must be > 0
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmap, epochs: 5}}
=> 7:58 learning_rate.warmup.kind: no warmup called; GradualWarmup
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, target_batch: 0}}
=> 7:98 learning_rate.warmup.target_batch: is 0; at least 1
7| learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, strat: 0}}
=> 7:84 learning_rate.warmup.strat: not a known key; did you mean start?
10| schedules: {momentum: Null}
=> 10:23 schedules.momentum: is the text 'Null'; write `null`
7| learning_rate: {reference: 0.05, per: 32, warmup: Null}
=> 7:51 learning_rate.warmup: is the text 'Null'; write `null`
10| stop_at: NULL
=> 10:10 stop_at: is the text 'NULL'; write `null`
10| updater: {double_buffering: On}
=> 10:29 updater.double_buffering: is the text 'On'; write `true`
# Mixing and repeats
10| augmentation: {mix: [{kind: CutMix}]}
=> 10:22 augmentation.mix.0.alpha: is missing; add `alpha: ...`, a number
10| augmentation: {mix: [{kind: CutMix, alpha: 1}, {kind: Mixup, alpha: 0}]}
=> 10:69 augmentation.mix.1.alpha: is 0; must be > 0
10| augmentation: {mix: [{kind: Cutout, size: 8}]}
=> 10:29 augmentation.mix.0.kind: there is no mix called Cutout; known: CutMix, Mixup
10| augmentation: {mix: {kind: Mixup, alpha: 1}}
=> 10:21 augmentation.mix: is a mapping; must be a list
10| stream: {repeats: 0}
=> 10:19 stream.repeats: is 0; must be at least 1
10| stream: {repeats: 1500}
=> 10:19 stream.repeats: is 1,500, and digits has 1,500 samples an epoch; such as 3
10| claims: [{metric: top1, kind: accuracy, value: 98.5, status: predicted}]
=> 10:48 claims.0.value: is 98.5; accuracy from 0 to 1
10| claims: [{metric: hours, kind: time_to_train, value: 98.5, runs: -1, status: predicted}]
=> 10:66 claims.0.runs: is -1; at least 0
10| claims: [{metric: top1, kind: accuracy, value: 0.9, margin: -0.1, status: predicted}]
=> 10:61 claims.0.margin: is -0.1; at least 0
10| claims: [{metric: top1, kind: accuracy, value: 0.9, deviation: -0.1, status: predicted}]
=> 10:64 claims.0.deviation: is -0.1; at least 0
10| stream: {repeats: 1.5}
=> 10:19 stream.repeats: is 1.5; must be a whole number
9| loss: {kind: BinaryCrossEntropy, target_threshold: 2}
=> 9:52 loss.target_threshold: is 2; must be < 1
9| loss: {kind: BinaryCrossEntropy, reduction: class_men}
=> 9:45 loss.reduction: the text 'class_men'; must be class_mean or class_sum
# Image sizes
4| model: {kind: SimpleCNN}
 | augmentation: {train: [{kind: RandomCrop, size: 7}], eval: [{kind: CenterCrop, size: 8}]}
=> 5:60 augmentation.eval: trained on 7x7 and scored on 8x8; give both augmentations one size
10| image_size: 8
=> 10:13 image_size: is used by no augmentation; size: image_size
10| augmentation: {train: [{kind: RandomResizedCrop, size: image_size}]}
=> 10:56 augmentation.train.0.size: means the recipe's `image_size`, which is not there; add `image_size: 224`
10| image_size: 8
 | augmentation: {train: [{kind: RandomResizedCrop, size: image_size}], eval: [{kind: CenterCrop, size: image_size}]}
=> 11:102 augmentation.eval.0.size: size of training images; write the number of pixels
10| image_size: [{from: 0, size: 6}, {from: 5, size: -8}]
 | augmentation: {train: [{kind: RandomResizedCrop, size: image_size}]}
=> 10:50 image_size.1.size: is -8; at least 1
10| image_size: [{from: 0, size: 6}, {from: 5, size: 16385}]
 | augmentation: {train: [{kind: RandomResizedCrop, size: image_size}]}
=> 10:13 image_size: is 16385; at most 16384 pixels
10| image_size: 6
 | augmentation: {train: [{kind: RandomResizedCrop, size: image_size}, {kind: Resize, shorter: 20000}]}
=> 11:93 augmentation.train.1.shorter: is 20000; at most 16384 pixels
10| image_size: 8
 | augmentation: {train: [{kind: RandomResizedCrop, size: imagesize}]}
=> 11:56 augmentation.train.0.size: the text 'imagesize'; did you mean image_size?
"""


def cases():
    lines, number = {}, ""
    for row in filter(None, CASES.splitlines()):
        if row.startswith("=> "):
            yield pytest.param(lines, row[3:], id=" ".join(lines.values()))
            lines = {}
        elif not row.startswith("#"):
            key, _, text = row.partition("| ")
            number = key.strip() or number
            lines[f"line_{number}"] = f"{lines[f'line_{number}']}\n{text}" if key == " " else text
    assert not lines


@pytest.mark.parametrize(("lines", "expected"), [*cases()])
def test_wrong_recipe_is_one_line_with_position_cause_and_way_out(lines, expected, write, problem_of):
    position, path, cause, way_out = re.fullmatch(r"(\d+:\d+) ?([^ ]*): (.*); (.*)", expected).groups()
    problem = problem_of(write(**lines))
    assert (f"{problem.file}:{problem.line}:{problem.column}", problem.path) == (f"mine.yaml:{position}", path)
    assert cause in problem.what
    assert way_out in problem.way_out


def test_billion_laughs_are_not_expanded(write, problem_of):
    rows = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    problem = problem_of(write("\n".join(rows)))
    assert "expand to more than 10,000 values" in problem.what


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: " + "[" * 100_000, "50 levels"),
        ("a: 1\n" * 200_000, "10,000 values"),
        ("#" * 2_000_000, "2,000,000 bytes"),
        (b"kilobatch: 1\nname: \xff\n", "UTF-8"),
        (b"kilobatch: 1\nname: \x00\n", "not allowed"),
        ("[1, 2]", "no keys"),
        ("# a comment", "is empty"),
        ("batch:\n\tglobal: 96", "a tab"),
        (f"epochs: {'9' * 5000}", "more than 64 bits"),
    ],
    ids=["deep", "long", "large", "latin-1", "nul", "list", "empty", "tab", "digits"],
)
def test_what_is_no_recipe_at_all_is_refused(text, cause, write, problem_of):
    assert cause in problem_of(write(text)).what


def test_place_of_a_character_that_is_no_text(write, problem_of):
    problem = problem_of(write(b"kilobatch: 1\nname: \xff\n"))
    assert (problem.line, problem.column) == (2, 7)


def test_problem_of_a_data_set_stands_in_its_file(write, problem_of):
    write("num_train: 10\nnum_eval: 0\nnum_classes: 2\nchannels: 1\n", "configs/datasets/few.yaml")
    problem = problem_of(write(line_3="dataset: few"))
    assert str(problem).startswith("configs/datasets/few.yaml:2:11: num_eval: is 0; must be at least 1")


def test_what_an_empty_recipe_is_told_to_add_makes_one_that_opens(tmp_path):
    (path := tmp_path / "mine.yaml").write_text("kilobatch: 1\n")
    with pytest.raises(RecipeError) as caught:
        open_recipe(path, vocabulary=vocabulary())
    added = re.findall("add `(.*)`", str(caught.value))
    assert "optimizer: {kind: MomentumSGD, momentum: 0.9}" in added
    path.write_text("\n".join(["kilobatch: 1", *added]))
    opened = open_recipe(path, vocabulary=vocabulary())
    path.write_text("\n".join(["kilobatch: 1", *added, "loss: {kind: SoftmaxCrossEntropy}"]))
    assert opened.tree == open_recipe(path, vocabulary=vocabulary()).tree
    assert opened.origins["loss.kind"] == "default"


def test_all_problems_of_a_file_are_reported_at_once(write, problem_of):
    path = write(line_2="nmae: mine", line_4="model: {kind: Small}", line_6="batch: {global: 0}", line_9="seed: 1.5")
    with pytest.raises(RecipeError) as caught:
        open_recipe(path, vocabulary=vocabulary())
    lines = [problem.line for problem in caught.value.problems]
    assert lines == [2, 4, 6, 9]
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "batch: {global: 1000}",
            "mine.yaml:3:17: batch.global: does not go with `batch.norm_span`, .*goyal2017.yaml:15: ",
        ),
        (
            "epochs: 3",
            "mine.yaml:3:9: epochs: does not go with `learning_rate.warmup.epochs`, .*goyal2017.yaml:22: 5 is ",
        ),
        ("batch: {norm_span: 33}", "mine.yaml:3:20: batch.norm_span: the batch of 8192 from 0 on is no multiple of 33"),
        (
            "augmentation: {train: [{kind: Normalize, with: digit}]}",
            "mine.yaml:3:48: augmentation.train.0.with: is 'digit'; must be 'imagenet'",
        ),
        (
            "augmentation: {train: [{kind: HorizontalFlip}]}",
            "mine.yaml:3:23: augmentation.train: scales pixels otherwise than `augmentation.eval`",
        ),
        ("dataset: digits", "mine.yaml:3:10: dataset: does not go with the inherited `augmentation`, .*yaml:"),
    ],
)
def test_a_value_that_does_not_go_with_an_inherited_one_is_refused_where_the_user_wrote_it(line, expected, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"kilobatch: 1\nextends: goyal2017\n{line}\n")
    with pytest.raises(RecipeError, match=expected):
        open_recipe(path, vocabulary=vocabulary())


def test_a_file_name_that_cannot_name_a_folder_is_refused_with_the_key_that_helps(write, problem_of):
    problem = problem_of(write(line_2="title: no name", name="猫.yaml"))
    assert str(problem).startswith("猫.yaml:1:1: name: '猫' cannot name a run's folder; add a `name:` of the letters a")


@pytest.mark.parametrize("end", ["", ".yaml"])
@pytest.mark.parametrize(("line", "key"), [(3, "dataset"), (10, "extends")])
@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 4000 + "a"])
def test_a_name_longer_than_a_path_is_refused_in_its_line(line, key, name, end, write, problem_of):
    problem = problem_of(write(**{f"line_{line}": f"{key}: {name}{end}"}))
    assert (problem.file, problem.line, problem.path) == ("mine.yaml", line, key)
    assert "File name too long" in problem.what
