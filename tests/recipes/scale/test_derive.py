"""What moves whatever the optimizer is, the file that is written, and what is refused."""

import os
import sys
from pathlib import Path

import pytest

from recipes.errors import InputRefused, RecipeError
from recipes.lint import lint_recipe
from recipes.reading.open import open_recipe
from recipes.reading.registry import find
from recipes.scale import parse_batch, scale_recipe, seesaw_recipe
from recipes.sharing.pack_file import write_pack
from recipes.sharing.registries import add_registry
from trainers.launch.vocabulary import vocabulary

HALF_SAMPLES = "{global: [{from: 0, size: 32}, {from: 1, size: 48}], norm_span: 16}"


def test_batch_words():
    sizes = {"32k": 32768, "8K": 8192, "1.5k": 1536, "8192": 8192, " 64k ": 65536, "1": 1}
    assert {text: parse_batch(text) for text in sizes} == sizes
    for text in ("", "0", "-1", "k", "32kk", "1.3333k", "8M", "1e4"):
        with pytest.raises(InputRefused, match="8k for 8"):
            parse_batch(text)


@pytest.mark.parametrize(("batch", "span"), [(64, 32), (48, 24), (1024, 32), (90, 30), (97, 1), (16, 16)])
def test_norm_span_stays_or_is_the_nearest_that_divides(batch, span, scale):
    assert scale("digits/baseline", batch)[1].recipe.batch.norm_span.sizes == (span,)


def test_norm_span_divides_every_batch_of_its_step(scale):
    text = (
        "kilobatch: 1\nextends: digits/baseline\n"
        "batch:\n  global: [{from: 0, size: 32}, {from: 1, size: 64}]\n"
        "  norm_span: [{from: 0, size: 16}, {from: 1, size: 32}]\n"
    )
    opened = scale("steps.yaml", 24, text=text)[1]
    assert opened.recipe.batch.global_.sizes == (24, 48)
    assert opened.recipe.batch.norm_span.sizes == (12, 24)


def test_running_statistics_are_counted_in_samples_once_they_would_lag(scale, change_of):
    text = "kilobatch: 1\nextends: digits/baseline\nevaluation: {norm_momentum: {keep: 0.9, per: update}}\n"
    assert change_of(scale("own.yaml", 128, text=text)[0], "evaluation.norm_momentum.per") == ("update", "update")
    # 256 / (1 - 0.9) = 2,560 samples, and there are 1,500
    assert change_of(scale("own.yaml", 256)[0], "evaluation.norm_momentum.per") == ("update", 32)


def test_average_of_the_weights_stays(scale, change_of):
    text = "kilobatch: 1\nextends: digits/baseline\nweight_average: {keep: 0.999, per: 32}\n"
    made, opened = scale("own.yaml", 128, text=text)
    assert change_of(made, "weight_average.keep") == (0.999, 0.999)
    assert (opened.recipe.weight_average.keep, opened.recipe.weight_average.per) == (0.999, 32)


def test_positions_in_updates_keep_their_time(scale, change_of):
    text = (
        "kilobatch: 1\nextends: goyal2017/256\nepochs: 10000up\n"
        "learning_rate: {schedule: {boundaries: [5000up, 1.5, 9000up]}}\nevaluation: {every: 500up}\n"
        "image_size: [{from: 0, size: 128}, {from: 5000up, size: 160}]\n"
        "augmentation: {train: [{kind: RandomResizedCrop, size: image_size}, {kind: Normalize, with: imagenet}]}\n"
    )
    made, opened = scale("own.yaml", 512, text=text)
    epochs = 10000 * 256 / 1281167
    assert opened.recipe.epochs == pytest.approx(epochs)
    assert opened.recipe.learning_rate.schedule.boundaries == pytest.approx((epochs / 2, 1.5, 0.9 * epochs))
    assert opened.recipe.evaluation.every == pytest.approx(epochs / 20)
    assert opened.recipe.image_size.boundaries == pytest.approx((0, epochs / 2))
    assert change_of(made, "epochs")[0] == "10000up"
    assert change_of(made, "learning_rate.schedule.boundaries")[1] == pytest.approx([epochs / 2, 1.5, 0.9 * epochs])


UPS = """\
kilobatch: 1
extends: goyal2017
batch: {global: [{from: 0, size: 2048}, {from: 18768up, size: 4096}]}
learning_rate: {warmup: {epochs: 782up, start: reference, target_batch: 2048}}
evaluation: {every: 626up, norm_momentum: {per: 2048}}
extensions: [{kind: WeightNorms, every: 626up}]
"""


def test_a_position_in_updates_is_said_to_move_and_no_key_to_stay_beside_it(scale, change_of):
    made, opened = scale("own.yaml", 4096, text=UPS)
    keys = [change.key for change in made.changes]
    assert len(keys) == len(set(keys))
    assert change_of(made, "evaluation.every") == ("626up", opened.recipe.evaluation.every)
    (every,) = [change for change in made.changes if change.key == "evaluation.every"]
    assert every.reason.endswith("now 313 updates")
    short, _ = scale("short.yaml", 4096, text=UPS.replace("626up", "3up"))
    assert [it.reason for it in short.changes if it.key == "evaluation.every"][0].endswith("now 2 updates")  # 1.5
    assert change_of(made, "batch.global")[0] == [{"from": 0, "size": 2048}, {"from": "18768up", "size": 4096}]
    kept = {"kind": "GradualWarmup", "start": "reference", "joins": "multiply"}
    assert change_of(made, "learning_rate.warmup") == (kept, kept)
    assert change_of(made, "learning_rate.warmup.epochs") == ("782up", opened.recipe.learning_rate.warmup.shape.epochs)
    assert change_of(made, "extensions")[0] == [{"kind": "WeightNorms", "every": "626up"}]


def test_warmup_in_updates_goes_with_the_warmup(scale):
    text = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: {epochs: 782up}}\n"
    assert scale("own.yaml", 256, text=text)[1].recipe.learning_rate.warmup is None


def test_file_has_a_title_and_assumes_every_scaled_key(scale, tmp_path):
    made, opened = scale("goyal2017", 256)
    assert made.file.name == "goyal2017-256.yaml"
    recipe = opened.recipe
    assert (recipe.name, recipe.claims, recipe.card) == ("goyal2017-256", (), None)
    assert recipe.title == "goyal2017 at batch 256, derived by rule and not measured"
    moved = {change.key for change in made.changes if change.moves}
    assert moved == {"batch.global", "learning_rate.warmup"}
    assert set(recipe.assumed) == moved | {"augmentation.train", "evaluation.every", "seed"}
    assert "  # as asked\n" in (tmp_path / made.file).read_text()


def test_what_is_assumed_of_a_key_that_goes_is_not_assumed_any_more(scale):
    opened = scale("suzuki2018", 128)[1]
    assert opened.recipe.learning_rate.warmup is None
    assert "learning_rate.warmup.start" not in opened.recipe.assumed


@pytest.mark.parametrize("name", ["goyal2017/256", "mlperf/lars_3264", "akiba2017"])
def test_what_was_scaled_is_clean(name, scale):
    made, _ = scale(name, 8192)
    assert lint_recipe(made.file, vocabulary=vocabulary()) == []


def test_nothing_is_overwritten(scale, tmp_path):
    (tmp_path / "goyal2017-256.yaml").write_text("mine")
    with pytest.raises(RecipeError, match="goyal2017-256.yaml:1:1: exists, and nothing is overwritten"):
        scale("goyal2017", 256)
    assert (tmp_path / "goyal2017-256.yaml").read_text() == "mine"
    with pytest.raises(RecipeError, match="No such file or directory"):
        scale("goyal2017", 256, out=tmp_path / "no" / "folder.yaml")


def test_a_recipe_of_ones_own_is_extended_by_its_path(scale, tmp_path):
    (tmp_path / "own").mkdir()
    text = "kilobatch: 1\nextends: digits/baseline\n"
    made, _ = scale("own/mine.yaml", 64, text=text)
    assert "extends: own/mine.yaml\n" in made.file.read_text()
    made, _ = scale("own/mine.yaml", 64, out=tmp_path / "own" / "large.yaml")
    assert "extends: mine.yaml\n" in made.file.read_text()


def test_a_file_that_could_not_extend_the_recipe_is_refused(scale, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    with pytest.raises(RecipeError, match="cannot extend own/mine.yaml.*-o own/x.yaml"):
        scale("own/mine.yaml", 64, out=tmp_path / "other" / "x.yaml")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_recipe_whose_folder_is_no_utf_8_is_refused(scale, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")
    with pytest.raises(InputRefused, match="not valid, .* extends: holds the control character .*udce9.; remove"):
        scale(str(folder / "mine.yaml"), 64, out=tmp_path / "x.yaml")
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("x.txt", "x.txt:1:1: the path of a recipe ends in .yaml; call it x.yaml"),
        ("my large.yaml", "'my large' is the new recipe's name too, .*; give a -o of the letters a to z"),
    ],
)
def test_a_file_whose_name_is_no_recipes_is_refused_with_what_helps(name, refusal, scale, tmp_path):
    with pytest.raises(RecipeError, match=refusal):
        scale("digits/baseline", 64, out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("base", "change", "batch", "refusal"),
    [
        ("goyal2017", "", 8192, "has a batch of 8,192 already"),
        ("digits/baseline", "", 2048, "2,048 samples an update, and there are 1,500"),
        ("digits/baseline", f"batch: {HALF_SAMPLES}", 33, "no whole number of samples"),
        (
            "digits/baseline",
            "optimizer: {kind: Shampoo}\nlacks: [Shampoo]",
            64,
            "how Shampoo follows .*; known: AdaScale",
        ),
        ("goyal2017", "open: [learning_rate.warmup]", 256, "learning_rate.warmup is left open by own: give it first"),
        ("goyal2017", "learning_rate: {warmup: {start: {rate: 0.5}}}", 512, "a rate of 0.5 does not lie between 0 and"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing_behind(base, change, batch, refusal, scale, tmp_path):
    with pytest.raises(InputRefused, match=refusal):
        scale("own.yaml", batch, text=f"kilobatch: 1\nextends: {base}\n{change}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


@pytest.mark.parametrize("kind", vocabulary().optimizers)
def test_every_optimizer_but_muon_has_a_rule(kind, scale):
    text = f"kilobatch: 1\nextends: digits/baseline\noptimizer: {{kind: {kind}}}\n"
    if kind == "Lars":
        with pytest.raises(InputRefused, match="not among the published"):
            scale("own.yaml", 64, text=text)
    elif kind == "Muon":
        with pytest.raises(InputRefused, match="no rule says how Muon follows .*; write batch.global"):
            scale("own.yaml", 64, text=text)
    else:
        assert scale("own.yaml", 64, text=text)[1].recipe.batch.global_.sizes == (64,)


def test_an_optimizer_of_ones_own_is_scaled_by_the_rule_that_its_class_names(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    plain = "momentum: float = 0.9\n\n    def build(self):\n        pass\n"
    (tmp_path / "signs.py").write_text(
        f"from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Plain:\n    {plain}\n"
        "class Linear(Plain):\n    rate_rule = 'linear'\n\nclass Root(Plain):\n    rate_rule = 'sqrt'\n"
    )
    own = {"allow_code": True, "vocabulary": vocabulary(allow_code=True)}
    for kind, factor in (("Plain", None), ("Linear", 4.0), ("Root", 2.0)):
        (tmp_path / f"{kind}.yaml").write_text(f"{DIGITS}optimizer: {{kind: signs.{kind}}}\n")
        if factor is None:
            with pytest.raises(InputRefused, match="signs.Plain .*; give its class a `rate_rule`"):
                scale_recipe(f"{kind}.yaml", batch=128, **own)
        else:
            before, after = scale_recipe(f"{kind}.yaml", batch=128, **own).rates
            assert after == pytest.approx(factor * before)


SUBJECTS = {
    "accuracy:": "accuracy",
    "that the rate is the best": "rate",
    "that linear scaling holds": "linear",
    "that the points hold": "points",
    "that the square root holds for LAMB": "root",
    "that the gradient's noise": "noise",
    "less time:": "time",
    "that the network is trained: the new file makes 59 updates in all; write a batch of at most 288": "updates",
    "that the file is ready to train: lint reports live-last-gamma: batch.global: ": "gamma",
}
DIGITS = "kilobatch: 1\nextends: digits/baseline\n"  # 1,500 samples, batch 32
LAMB = DIGITS + "optimizer: {kind: Lamb}\n"
RAMP = DIGITS + "batch: {global: [{from: 0, size: 32}, {from: 1, size: 128}]}\n"


@pytest.mark.parametrize(
    ("name", "text", "batch", "subjects"),
    [
        ("goyal2017/256", None, 8192, ["time"]),
        ("goyal2017", None, 256, []),
        ("goyal2017", None, 16384, ["linear", "time"]),
        ("mlperf/lars_8192", None, 16384, ["points", "time"]),
        ("own.yaml", DIGITS, 153, ["time"]),
        ("own.yaml", DIGITS, 154, ["noise", "time"]),
        ("own.yaml", DIGITS, 512, ["noise", "time", "updates", "gamma"]),
        ("own.yaml", LAMB, 64, ["root", "time"]),
        ("own.yaml", RAMP, 40, ["noise", "time"]),
        ("own.yaml", RAMP, 31, []),
    ],
)
def test_what_is_not_promised(name, text, batch, subjects, scale):
    made, _ = scale(name, batch, text=text, beyond=True)
    result = [subject for words, subject in SUBJECTS.items() for line in made.not_promised if line.startswith(words)]
    assert len(result) == len(made.not_promised)
    assert result == ["accuracy", "rate", *subjects]


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """The path of a pack whose recipe has a data set beside it, which is team/net@1 too."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    facts = Path(find("datasets", "digits")).read_bytes()
    recipe = b"kilobatch: 1\nextends: digits/baseline\ndataset: dataset.yaml\n"
    write_pack(tmp_path / "net.kilobatch", {"name": "net"}, {"recipe.yaml": recipe, "dataset.yaml": facts})
    add_registry("team", str(tmp_path / "team"), signers=None).push(tmp_path / "net.kilobatch", "net")
    return tmp_path / "net.kilobatch"


@pytest.mark.parametrize("derive", [scale_recipe, seesaw_recipe])
def test_a_recipe_of_a_registry_is_extended_by_its_version(packed, derive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = derive("team/net", batch=64, vocabulary=vocabulary(), out=Path("mine.yaml"))
    assert "extends: team/net@1\n" in made.file.read_text()
    assert max(open_recipe("mine.yaml", vocabulary=vocabulary()).recipe.batch.global_.sizes) == 64


def test_a_pack_cannot_be_extended_and_is_not_scaled(packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = find("recipes", str(packed))
    for name in (str(packed), str(inside)):
        with pytest.raises(RecipeError, match="the recipe of a pack lies .* push it into a registry"):
            scale_recipe(name, batch=64, vocabulary=vocabulary())
    assert not [*tmp_path.glob("*.yaml")]
    assert inside.is_file()
