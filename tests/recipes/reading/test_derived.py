"""Values that a rule filled in, in the recipe of a run, a pack or a search: they follow what changes them."""

from hashlib import sha256

import pytest

from recipes.reading.identity import recipe_id
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.scale import step_changes
from recipes.sharing.pack_file import open_pack
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.vocabulary import vocabulary
from trainers.runs.run_folder import write_run

WARMUP = "warmup: {kind: GradualWarmup, epochs: 5, start: reference, joins: before}"
RATE = f"learning_rate: {{reference: 0.05, per: 32, schedule: {{kind: Cosine}}, {WARMUP}}}"
LATER = ["batch.global=80", "epochs=30"]
FOLLOWED = {"norm_span": 20, "target_batch": 80, "epochs": 25}


def opened_from(name, *overrides):
    return open_recipe(name, vocabulary=vocabulary(), overrides=overrides)


def followed(opened):
    rate = opened.tree["learning_rate"]
    return {
        "norm_span": opened.tree["batch"]["norm_span"],
        "target_batch": rate["warmup"]["target_batch"],
        "epochs": rate["schedule"]["epochs"],
    }


def run_of(opened, folder):
    """The folder of a run as its training writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"recipe": opened.tree, "origins": opened.origins, "dataset_tree": opened.dataset_tree}
    write_run(folder, **parts, plan={}, dataset={}, environment={}, command="kilobatch train")
    return folder / "recipe.yaml"


@pytest.fixture
def written_as(tmp_path, run, write):
    """The path of a recipe as a run, a pack or a search writes it."""

    def written(kind, recipe):
        if kind == "run":
            return run_of(recipe, tmp_path / "a")
        if kind == "run of a run":
            return run_of(opened_from(run_of(recipe, tmp_path / "a")), tmp_path / "b")
        if kind == "pack":
            code, text = run("pack", recipe.path, "-o", "a.kilobatch")
            assert code == 0, text
            return open_pack(tmp_path / "a.kilobatch").folder / "recipe.yaml"
        return write(resolved_text(recipe.tree, recipe.origins), "best.yaml")

    return written


@pytest.mark.parametrize("kind", ["run", "run of a run", "pack", "search"])
def test_it_opens_unchanged_to_the_same_recipe_and_follows_an_option(written_as, opened, kind):
    recipe = opened(line_7=RATE)
    path = written_as(kind, recipe)
    same = opened_from(path)
    assert {**same.tree, "dataset": "digits"} == recipe.tree
    assert recipe_id(same) == recipe_id(recipe)
    assert followed(same) == {"norm_span": 32, "target_batch": 96, "epochs": 15}
    assert same.origins["learning_rate.schedule.epochs"] == "rule: the rest of the run"
    changed = opened_from(path, *LATER)
    assert followed(changed) == FOLLOWED == followed(opened(*LATER, line_7=RATE))
    assert changed.warnings == ()


def test_it_follows_a_file_that_extends_it_through_another(written_as, opened, write):
    written_as("run", opened(line_7=RATE))
    write("kilobatch: 1\nextends: ./a/recipe.yaml\nbatch: {global: 80}\nepochs: 30\n", "middle.yaml")
    assert followed(opened_from(write("kilobatch: 1\nextends: ./middle.yaml\nseed: 7\n", "last.yaml"))) == FOLLOWED


@pytest.mark.parametrize(
    ("change", "epochs"),
    [
        ("seed=7", 15),
        ("learning_rate.warmup=null", 20),
        ("learning_rate.warmup.joins=null", 20),
        ("learning_rate.warmup.epochs=8", 12),
        ("learning_rate.schedule.epochs=9", 9),
    ],
)
def test_a_schedule_takes_the_rest_of_the_run_unless_it_is_given(written_as, opened, change, epochs):
    path = written_as("run", opened(line_7=RATE))
    assert followed_epochs(opened_from(path, change)) == epochs


def followed_epochs(opened):
    return opened.tree["learning_rate"]["schedule"]["epochs"]


def test_factors_of_a_schedule_and_schedules_of_the_optimizer_follow(written_as, opened):
    factors = "{kind: Product, factors: [{kind: Cosine}, {kind: Polynomial, power: 2, epochs: 20}]}"
    rate = f"learning_rate: {{reference: 0.05, per: 32, schedule: {factors}}}"
    recipe = opened(line_7=rate, line_10="schedules: {momentum: {kind: Cosine, end: 0.9}}")
    changed = opened_from(written_as("run", recipe), "epochs=30").tree
    assert [each["epochs"] for each in changed["learning_rate"]["schedule"]["factors"]] == [30, 20]
    assert changed["schedules"]["momentum"]["epochs"] == 30


def test_what_the_author_gave_stays_without_a_word(written_as, opened):
    given = RATE.replace("Cosine", "Cosine, epochs: 15").replace("joins", "target_batch: 96, joins")
    changed = opened_from(written_as("run", opened(line_6="batch: {global: 96, norm_span: 16}", line_7=given)), *LATER)
    assert followed(changed) == {"norm_span": 16, "target_batch": 96, "epochs": 15}
    assert changed.warnings == ()


UNITS = (
    "learning_rate: {reference: 0.05, per: 32, schedule: {kind: PiecewiseLinear,"
    " points: [[0, 1], [60up, 0.5], [0.5run, 0.25], [1run, 0]]}}"
)


def points_of(opened):
    return [epoch for epoch, _ in opened.tree["learning_rate"]["schedule"]["points"]]


@pytest.mark.parametrize("kind", ["run", "run of a run", "pack", "search"])
def test_positions_in_parts_of_the_run_and_in_updates_are_that_again(written_as, opened, kind):
    """The run has 20 epochs of 1,500 samples, and batches of 96."""
    recipe = opened(line_7=UNITS)
    path = written_as(kind, recipe)
    same = opened_from(path)
    assert points_of(same) == points_of(recipe) == [0, 3.84, 10, 20]
    assert recipe_id(same) == recipe_id(recipe)
    assert same.origins["learning_rate.schedule.points.2.0"].endswith(", 0.5run = 10")
    assert points_of(opened_from(path, "epochs=30")) == [0, 3.84, 15, 30]
    assert points_of(opened_from(path, "batch.global=192")) == [0, 7.68, 10, 20]
    changed = opened_from(path, "epochs=150up", "batch.global=96")
    assert points_of(changed) == [0, 3.84, 4.8, 9.6]
    assert changed.warnings == ()


def test_parts_of_a_run_of_so_many_updates_follow_its_batch(written_as, opened):
    recipe = opened("epochs=150up", line_7=UNITS)
    path = written_as("run", recipe)
    assert points_of(recipe) == [0, 3.84, 4.8, 9.6]
    changed = opened_from(path, "batch.global=192")
    assert changed.tree["epochs"] == 19.2
    assert points_of(changed) == [0, 7.68, 9.6, 19.2]


def test_what_else_positions_are_counted_by_counts_too(written_as, opened):
    """A batch that changes within the run, and samples that are held out."""
    recipe = opened(line_6="batch: {global: [{from: 0, size: 96}, {from: 0.25run, size: 192}]}", line_7=UNITS)
    path = written_as("run", recipe)
    for change in ("epochs=12", "evaluation.held_out=0.2"):
        given = {"line_6": "batch: {global: [{from: 0, size: 96}, {from: 0.25run, size: 192}]}", "line_7": UNITS}
        again, ours = opened(change, **given), opened_from(path, change)
        assert (points_of(ours), ours.tree["batch"]) == (points_of(again), again.tree["batch"])
    as_trained = open_recipe(path, vocabulary=vocabulary(), overrides=["evaluation.held_out=0.2"], as_trained=True)
    assert points_of(as_trained) == points_of(recipe)


def test_a_recipe_scaled_or_ramped_from_that_of_a_run_keeps_the_epochs_of_its_updates(written_as, opened, run):
    """As where its own file is scaled."""
    steps = "schedule: {kind: MultiStep, boundaries: [60up, 0.5run], factor: 0.1}"
    recipe = opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, {steps}}}")
    path = written_as("run", recipe)
    for source, file in ((recipe.path, "a.yaml"), (path, "b.yaml")):
        code, text = run("scale", source, "--batch", "192", "-o", file)
        assert code == 0, text
    boundaries = [opened_from(file).tree["learning_rate"]["schedule"]["boundaries"] for file in ("a.yaml", "b.yaml")]
    assert boundaries == [[3.84, 10]] * 2


@pytest.mark.parametrize("kind", ["run", "search"])
def test_a_run_of_such_a_recipe_is_resumed_by_the_same_command(written_as, opened, tmp_path, kind):
    path = written_as(kind, opened(line_7=UNITS))
    words = {"recipe": str(path), "overrides": ("epochs=30", "batch.global=192"), "out": tmp_path / "again"}
    new, again = (prepare(TrainRequest(**words, resume=resume), workers=1).opened for resume in (False, True))
    assert points_of(new) == points_of(again) == [0, 7.68, 15, 30]
    changes = step_changes(opened_from(path), [(0.0, 96), (10.0, 192)], "a branch")
    moved = {change.key: change.after for change in changes if change.moves}
    assert moved["learning_rate.schedule.points"][1] == [3.84, 0.5]


def test_a_comment_that_somebody_wrote_changes_no_value(opened, write):
    warmup = "warmup: {kind: GradualWarmup, epochs: 5}}  # as in the paper, 100up = 5"
    recipe = opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, {warmup}")
    assert recipe.tree["learning_rate"]["warmup"]["epochs"] == 5
    text = resolved_text(recipe.tree, dict.fromkeys(recipe.origins, "as in the paper, 100up = 5"))
    path = write(text, "own.yaml")
    assert opened_from(path, "batch.global=192").tree["learning_rate"]["warmup"]["epochs"] == 5


def test_the_record_of_a_position_is_read_from_a_path_of_any_letters(written_as, opened, tmp_path, monkeypatch):
    odd = tmp_path / "it's #2"
    odd.mkdir()
    recipe = opened(line_7=UNITS)
    origins = {key: text.replace("mine.yaml", f"{odd}/mine.yaml") for key, text in recipe.origins.items()}
    (odd / "best.yaml").write_text(resolved_text(recipe.tree, origins))
    assert points_of(opened_from(odd / "best.yaml", "epochs=30")) == [0, 3.84, 15, 30]


def test_a_position_that_was_edited_since_is_the_users_own(written_as, opened):
    path = written_as("search", opened(line_7=UNITS))
    text = path.read_text()
    assert text.count("- 10 ") == 1
    path.write_text(text.replace("- 10 ", "- 11 "))
    assert points_of(opened_from(path, "epochs=30")) == [0, 3.84, 11, 30]


@pytest.mark.parametrize("kind", ["run", "search"])
def test_a_value_that_was_edited_since_is_the_users_own(written_as, opened, kind):
    path = written_as(kind, opened(line_7=RATE))
    text = path.read_text()
    assert text.count("epochs: 15") == 1
    path.write_text(text.replace("epochs: 15", "epochs: 11"))
    assert followed_epochs(opened_from(path, "epochs=30")) == 11


def test_a_value_of_an_older_run_or_search_that_says_nothing_stays_with_a_warning(opened, tmp_path, write):
    recipe = opened(line_7=RATE)
    before = {key: f"pack 0123456789ab/recipe.yaml:{line}" for line, key in enumerate(recipe.origins, 1)}
    run_of(recipe, tmp_path / "a")
    parts = {"recipe": recipe.tree, "origins": before, "dataset_tree": recipe.dataset_tree}
    write_run(tmp_path / "a", **parts, plan={}, dataset={}, environment={}, command="kilobatch train")
    for path in (tmp_path / "a" / "recipe.yaml", write(resolved_text(recipe.tree, before), "best.yaml")):
        assert opened_from(path).warnings == opened_from(path, "seed=7").warnings == ()
        changed = opened_from(path, "epochs=30")
        assert followed_epochs(changed) == 15
        assert len(changed.warnings) == 1
        assert changed.warnings[0].startswith("learning_rate.schedule.epochs stays 15, from ")
        name = "learning_rate.schedule.epochs"
        assert changed.warnings[0].endswith(f"; {name}=null derives it anew, {name}=15 keeps it")
        assert followed_epochs(opened_from(path, "epochs=30", f"{name}=null")) == 25
        assert opened_from(path, "epochs=30", f"{name}=null").warnings == ()


def test_a_recipe_scaled_from_that_of_a_run_is_that_scaled_from_its_file(written_as, opened, run):
    names = (written_as("run", opened(line_7=RATE)), "mine.yaml")
    results = [run("scale", name, "--batch", "192", "-o", f"{number}.yaml") for number, name in enumerate(names)]
    assert [code for code, _ in results] == [0, 0], results
    assert recipe_id(opened_from("0.yaml")) == recipe_id(opened_from("1.yaml"))


def test_other_weights_to_begin_with_bring_their_own_digest(written_as, opened, tmp_path):
    recipe_folder = tmp_path / "weights"
    recipe_folder.mkdir()
    for name in ("first", "other"):
        (recipe_folder / name).write_text(name)
    path = written_as("run", opened(line_10="init: {weights: weights/first}"))
    first, other = opened_from(path), opened_from(path, "init.weights=weights/other")
    assert first.recipe.init.sha256 != other.recipe.init.sha256
    assert other.recipe.init.sha256 == sha256(b"other").hexdigest()


def test_the_record_of_a_file_with_other_ends_of_lines_is_read(opened, write):
    recipe = opened(line_7=RATE)
    text = resolved_text(recipe.tree, recipe.origins)
    for end in ("\r\n", "\r", "\x85", "\u2028"):
        assert followed(opened_from(write(text.replace("\n", end), "best.yaml"), *LATER)) == FOLLOWED


@pytest.mark.parametrize("record", [None, "", "{", "[" * 200, "[1]", "origins: [", "origins: {epochs: !!python/x 1}"])
def test_where_the_record_is_lost_or_damaged_a_warning_names_the_value(written_as, opened, record):
    path = written_as("run", opened(line_7=RATE))
    (path.parent / "run.yaml").unlink()
    for name in ("run.yaml", "origins.json") if record is not None else ():
        (path.parent / name).write_text(record)
    assert opened_from(path, "seed=7").warnings == ()
    changed = opened_from(path, *LATER[1:])
    assert followed_epochs(changed) == 15
    assert [line.partition(" stays ")[0] for line in changed.warnings] == ["learning_rate.schedule.epochs"]
