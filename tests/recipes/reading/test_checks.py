"""Recipes whose parts go together although they look otherwise."""

import pytest
import yaml

from recipes.errors import RecipeError
from recipes.lint.check import lint_recipe
from recipes.planning.rates import learning_rate_at
from recipes.reading.identity import identity_tree, recipe_id
from recipes.reading.open import open_recipe
from recipes.reports.terminal import curve_text
from trainers.launch.vocabulary import vocabulary

ZERO_FIRST = "schedule: {kind: PiecewiseLinear, points: [[0, 0], [2, 1], [16, 0]]}"


RATE = "learning_rate: {reference: 1, per: 32, %s}"
MOMENTUM = "schedules: {momentum: {kind: PiecewiseLinear, points: [[0, 1], %s]}}"


@pytest.mark.parametrize(
    "lines",
    [
        {"line_5": "epochs: 1up", "line_7": RATE % ZERO_FIRST},
        {"line_5": "epochs: 0.5", "line_7": RATE % f"every: 1, {ZERO_FIRST}"},
        {"line_5": "epochs: 1", "line_7": RATE % "schedule: {kind: SlowStart, boundaries: [2], factors: [0, 1]}"},
        {"line_7": RATE % "schedule: {kind: MultiStep, boundaries: [25], factor: 1e300}"},
        {"line_7": RATE % "schedule: {kind: Exponential, ratio: 1e-308}"},
        {"line_7": RATE % "schedule: {kind: CosineRestarts, first: 10, times: 1e308}"},
        {"line_10": MOMENTUM % "[20, 1.1112]"},  # 1.00008 where the run ends
        {"line_10": MOMENTUM % "[1.001, 1], [1.002, 9], [1.003, 1]"},
    ],
)
def test_a_value_that_no_update_takes_is_not_refused(lines, opened):
    result = opened(**lines)
    assert "learning rate" in curve_text(result.recipe, result.dataset)


OWN = """
import itertools
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Table:
    factors: tuple[float, ...]

    def __call__(self, epoch):
        return self.factors[int(epoch)]

@dataclass(frozen=True)
class Hyperbola:
    length: float

    def __call__(self, epoch):
        return 0.1 / (self.length - epoch)

@dataclass(frozen=True)
class Rise:
    epochs: float

    def __call__(self, epoch):
        return 0 / 0 if 1 < epoch < self.epochs else 1

@dataclass(frozen=True)
class Soft:
    epochs: float
    start: float = 0.25

    def __call__(self, epoch):
        return min(1, self.start + (1 - self.start) * epoch / self.epochs)

@dataclass(frozen=True)
class Endless:
    def __call__(self, epoch):
        return 1

@dataclass(frozen=True)
class Early:
    def __call__(self, epoch):
        return epoch < 2

@dataclass(frozen=True)
class Late:
    def __call__(self, epoch):
        return epoch < 3 if epoch > 2 else 1.0

CALLS = itertools.count(1)

@dataclass(frozen=True)
class Counting:
    def __call__(self, epoch):
        return 1 / next(CALLS)

@dataclass(frozen=True)
class Falling:
    by: float

    def __post_init__(self):
        if self.by < 0:
            raise ValueError("by must be at least 0")

    def __call__(self, epoch):
        return np.float64(1 - self.by * epoch)
"""


@pytest.fixture
def with_own_schedules(write):
    """Opens a recipe of 4 epochs that may use schedules of the user's own."""

    def opened(**lines):
        write(OWN, "own_schedules.py")
        path = write(line_5="epochs: 4", **lines)
        return open_recipe(path, vocabulary=vocabulary(allow_code=True), allow_code=True)

    return opened


@pytest.mark.parametrize("own", ["Table, factors: [1, 0.5, 0.2, 0.1]", "Hyperbola, length: 4"])
@pytest.mark.parametrize("every", ["update", 1])
def test_an_own_schedule_may_end_with_the_run(with_own_schedules, own, every):
    result = with_own_schedules(line_7=RATE % f"every: {every}, schedule: {{kind: own_schedules.{own}}}")
    assert "learning rate" in curve_text(result.recipe, result.dataset)
    lint_recipe("mine.yaml", vocabulary=vocabulary(allow_code=True), allow_code=True)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("Table, factors: [1, 1]", "fails at epoch 2.*: IndexError: tuple index out of range"),
        ("Hyperbola, length: 0", "fails at epoch 0: ZeroDivisionError: .* by zero"),
    ],
)
@pytest.mark.parametrize("key", ["learning_rate.schedule", "schedules.momentum"])
def test_an_own_schedule_that_fails_is_refused(with_own_schedules, key, own, message):
    schedule = f"{{kind: own_schedules.{own}}}"
    of_rate = {"line_7": RATE % f"schedule: {schedule}"}
    lines = of_rate if key == "learning_rate.schedule" else {"line_10": f"schedules: {{momentum: {schedule}}}"}
    with pytest.raises(RecipeError, match=f"{key}: {message}; mend its class, or choose another kind"):
        with_own_schedules(**lines)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("Early", r"learning_rate\.schedule: gives True, which is no number"),
        ("Late", r"learning_rate\.schedule: gives (True|False), which is no number"),
        ("Counting", "learning_rate: is [0-9.]+ at epoch 0, and [0-9.]+ when it is asked again"),
    ],
)
def test_an_own_schedule_that_gives_no_number_or_another_each_time_is_refused(with_own_schedules, own, message):
    with pytest.raises(RecipeError, match=message):
        with_own_schedules(line_7=RATE % f"schedule: {{kind: own_schedules.{own}}}")


@pytest.mark.parametrize(
    ("warmup", "key", "message"),
    [
        ("own_schedules.Rise", "warmup", "fails at epoch 1.*: ZeroDivisionError"),
        ("GradualWarmup", "schedule", "fails at epoch 2.*: IndexError"),
    ],
)
def test_an_own_warmup_or_the_schedule_beside_it_that_fails_is_named(with_own_schedules, warmup, key, message):
    rate = RATE % f"schedule: {{kind: own_schedules.Table, factors: [1, 1]}}, warmup: {{kind: {warmup}, epochs: 2}}"
    with pytest.raises(RecipeError, match=rf"learning_rate\.{key}: {message}"):
        with_own_schedules(line_7=rate)


@pytest.mark.parametrize(
    ("own", "first", "start"),
    [
        ("Rise, epochs: 1", 1, None),
        ("Soft, epochs: 1", 0.25, 0.25),
        ("Soft, epochs: 1, start: {factor: 0.5}", 0.5, 0.5),
    ],
)
def test_an_own_warmup_opens_again_from_its_resolved_recipe_with_the_same_identity(
    with_own_schedules, tmp_path, own, first, start
):
    result = with_own_schedules(line_7=RATE % f"warmup: {{kind: own_schedules.{own}}}")
    assert result.recipe.learning_rate.shape(0.0) == first
    assert identity_tree(result)["recipe"]["learning_rate"]["warmup"].get("start") == start
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(result.tree))
    again = open_recipe(tmp_path / "again.yaml", vocabulary=vocabulary(allow_code=True), allow_code=True)
    assert (again.tree, recipe_id(again)) == (result.tree, recipe_id(result))


def test_an_own_warmup_without_a_length_is_refused(with_own_schedules):
    with pytest.raises(RecipeError, match="warmup.kind: Endless has no `epochs`; add that field to its class"):
        with_own_schedules(line_7=RATE % "warmup: {kind: own_schedules.Endless}")


def test_an_own_schedule_may_give_numbers_of_numpy(with_own_schedules):
    result = with_own_schedules(line_7=RATE % "schedule: {kind: own_schedules.Falling, by: 0.25}")
    assert type(learning_rate_at(result.recipe, 1.0)) is float


def test_a_rate_below_0_is_refused_where_an_update_takes_it(with_own_schedules):
    with_own_schedules(line_7=RATE % "schedule: {kind: own_schedules.Falling, by: 0.2501}")  # below 0 after the last
    with pytest.raises(RecipeError, match=r"learning_rate: is -0\.\d+ at epoch 3.*, which trains uphill; let its"):
        with_own_schedules(line_7=RATE % "schedule: {kind: own_schedules.Falling, by: 0.3}")


def test_an_error_of_own_code_names_its_file(with_own_schedules):
    with pytest.raises(RecipeError, match="schedule: by must be at least 0; see Falling in own_schedules.py$"):
        with_own_schedules(line_7=RATE % "schedule: {kind: own_schedules.Falling, by: -1}")
