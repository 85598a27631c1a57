"""One training has one identity however it is spelled, and every change of the training changes it."""

import json
import random
from fractions import Fraction

import pytest
import yaml

from recipes.errors import RecipeError
from recipes.reading import load
from recipes.reading.identity import identity_tree, recipe_id
from recipes.reading.open import leaves, open_recipe
from recipes.reading.tree_diff import WORDS
from trainers.launch.vocabulary import vocabulary

NAMES = ("digits/large_batch", "digits/ramp", "goyal2017", "akiba2017", "suzuki2018", "you2019", "mikami2018")
NUMBER = [pytest.param(40, id="40"), pytest.param(1000, id="1000", marks=pytest.mark.slow)]
DURATIONS = ("epochs", "every", "from", "at", "until", "boundaries", "offset")


def opened(path, *overrides):
    return open_recipe(path, vocabulary=vocabulary(allow_code=True), allow_code=True, overrides=overrides)


@pytest.fixture(scope="module")
def originals():
    return {name: opened(name) for name in NAMES}


class Speller:
    """Writes a resolved recipe in another way."""

    def __init__(self, random, folder, num_train, run):
        self.random, self.folder, self.num_train, self.run = random, folder, num_train, run

    def write(self, tree):
        parts = self.split({key: value for key, value in tree.items() if key != "kilobatch"})
        base = None
        for number, part in enumerate(parts):
            text = {"kilobatch": 1} | ({} if base is None else {"extends": base}) | self.respelled(part)
            base = f"part-{number}.yaml"
            anchors = self.random.random() < 0.5
            flow = self.random.choice([None, True, False])
            text = self.shared(text) if anchors else text  # without anchors no two values are one object
            (self.folder / base).write_text(yaml.safe_dump(text, sort_keys=False, default_flow_style=flow))
        return self.folder / base

    def split(self, tree):
        """Up to three files that extend one another; the later ones come first to the eye."""
        number = self.random.randint(1, 3)
        parts = [{} for _ in range(number)]
        for key, value in tree.items():
            parts[-1 if key in ("name", "claims", "card") else self.random.randrange(number)][key] = value
        late = [key for key in parts[0] if key not in ("dataset", "epochs")]
        if number > 1 and late:  # another value below, which the upper file replaces
            key = self.random.choice(late)
            parts[-1][key], parts[0][key] = parts[0][key], {"seed": 7}.get(key, parts[0][key])
        return parts

    def respelled(self, value, key=""):
        if isinstance(value, dict):
            pairs = [(inner, self.respelled(item, inner)) for inner, item in value.items()]
            self.random.shuffle(pairs)
            return dict(pairs)
        if isinstance(value, list):
            return [self.respelled(item, key) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and key in DURATIONS and value:
            return self.random.choice([value, f"{value}ep", self.samples(value), self.share(key, value)])
        if isinstance(value, float) and self.random.random() < 0.5:
            return self.random.choice([float(f"{value:.17e}"), value])
        return value

    def samples(self, value):
        count = round(value * self.num_train)
        return f"{count}sp" if count / self.num_train == value else value

    def share(self, key, value):
        share = repr(value / self.run)
        exact = float(Fraction(share) * Fraction(repr(self.run))) == value and "e" not in share
        return f"{share}run" if exact and key != "epochs" else value

    def shared(self, tree):
        """Equal values as one object, which YAML writes as an anchor and its aliases."""
        known = {}

        def one(value):
            if isinstance(value, dict):
                value = {key: one(item) for key, item in value.items()}
            elif isinstance(value, list):
                value = [one(item) for item in value]
            return known.setdefault(json.dumps(value), value) if isinstance(value, dict | list) else value

        return one(tree)


@pytest.mark.parametrize("number", NUMBER)
def test_spellings_of_one_training_have_one_identity(originals, number, tmp_path):
    for draw in range(number):
        rng = random.Random(draw)
        original = originals[rng.choice(NAMES)]
        speller = Speller(rng, tmp_path, original.dataset.num_train, original.recipe.epochs)
        path = speller.write(original.tree)
        assert recipe_id(opened(path)) == recipe_id(original), (draw, original.path.name)


def changed(value, rng):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([1, 2, value or 3])
    if isinstance(value, float):
        return value * rng.choice([0.5, 0.999, 1.001, 2.0]) if value else 1e-3
    return rng.choice(["sqrt", "linear", "current", "initial", "update", "pooled", "tf32", "multiply", "before"])


@pytest.mark.parametrize("number", NUMBER)
def test_a_change_of_one_value_that_training_reads_changes_the_identity(originals, number):
    changes, draw = 0, 0
    while changes < number:
        rng = random.Random(draw)
        draw += 1
        original = originals[rng.choice(NAMES)]
        tree = original.tree
        paths = [leaf for leaf in leaves(tree) if leaf[0] not in (*WORDS, "kilobatch", "dataset", "lacks")]
        leaf = rng.choice(paths)
        before = leaf_of(tree, leaf)
        after = changed(before, rng)
        if after == before or without_effect(tree, leaf):
            continue
        try:
            found = opened(original.path, f"{'.'.join(map(str, leaf))}={json.dumps(after)}")
        except RecipeError:
            continue
        assert recipe_id(found) != recipe_id(original), (draw, leaf, before, after)
        changes += 1


def leaf_of(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def without_effect(tree, leaf):
    """What no update reads: the reference batch without a rule, and a start in other words."""
    return leaf == ("learning_rate", "per") and tree["learning_rate"]["rule"] == "none"


def test_texts_for_people_do_not_change_the_identity(originals, tmp_path):
    original = originals["digits/large_batch"]
    claim = {"metric": "top1", "kind": "accuracy", "value": 0.5, "status": "not run"}
    card = {"changed": "nothing", "hardware": "none", "evidence": {}}
    words = {"name": "other", "title": "Another", "source": {"year": 1999}, "claims": [claim], "card": card}
    words |= {"assumed": ["seed"], "open": []}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(original.tree | words))
    assert recipe_id(opened(path)) == recipe_id(original)


def test_facts_of_the_data_are_part_of_the_identity_and_their_place_is_not(write):
    facts = "name: digits\nreader: {kind: Digits}\nnum_train: 1500\nnum_eval: 297\nnum_classes: 10\nchannels: 1\n"
    write(facts, "a.yaml"), write(facts + "title: Other words\nobtain: by hand\n", "b.yaml")
    write(facts.replace("297", "296"), "c.yaml")
    ids = [recipe_id(opened(write(line_3=f"dataset: {name}.yaml", line_2="name: x"))) for name in "abc"]
    assert ids[0] == ids[1] != ids[2]


def test_a_ramp_of_one_step_is_a_number_and_a_start_is_a_factor(write):
    spelled = []
    for batch, start in (("96", "reference"), ("[{from: 0, size: 96}]", "{rate: 0.05}")):
        warmup = f"{{kind: GradualWarmup, epochs: 5, start: {start}}}"
        rate = f"learning_rate: {{reference: 0.05, per: 32, warmup: {warmup}}}"
        spelled.append(opened(write(line_6=f"batch: {{global: {batch}}}", line_7=rate)))
    assert spelled[0].tree != spelled[1].tree
    assert recipe_id(spelled[0]) == recipe_id(spelled[1])


def test_seeds_of_one_recipe_differ_in_the_seed_only(write):
    one, other = opened(write()), opened(write(), "seed=1")
    assert recipe_id(one) != recipe_id(other)
    assert identity_tree(one, without=("seed",)) == identity_tree(other, without=("seed",))


@pytest.fixture
def version_2(monkeypatch):
    """The program as it would be if version 1 had called the rate `rate` and the average `weight_averaging`."""
    monkeypatch.setattr(load, "VERSION", 2)
    monkeypatch.setitem(load.RENAMED, 2, {"weight_averaging": "weight_average", "rate": "learning_rate"})


def test_a_file_of_an_older_version_opens_with_its_keys_renamed_and_keeps_its_identity(write, version_2):
    new = write(line_1="kilobatch: 2")
    old = write(line_1="kilobatch: 1", line_7="rate: {reference: 0.05, per: 32}").rename("old.yaml")
    above = write(f"kilobatch: 2\nextends: {old.name}\nname: mine\nlearning_rate: {{per: 32}}\n", "above.yaml")
    write(line_1="kilobatch: 2")
    ids = [recipe_id(opened(path)) for path in (new, old, above)]
    assert len(set(ids)) == 1
    assert "rate" in identity_tree(opened(new))["recipe"], "the oldest version's names"


def test_a_key_of_an_older_version_is_refused_at_its_own_line(write, problem_of, version_2):
    problem = problem_of(write(line_1="kilobatch: 1", line_7="rate: {reference: 0.05, per: nothing}"))
    assert (problem.line, problem.path) == (7, "learning_rate.per")
    assert "3 is not a version" in problem_of(write(line_1="kilobatch: 3")).what


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("digits/large_batch", "24a9f421aaa45f4cb371bb952426dcb9296a550b147b3f07690a15ac0552d314"),
        ("goyal2017", "4651f7696766a2fe7126cf78d92148c78453590744665626729d8154b6154666"),
        ("suzuki2018", "6f90a7b4fd21ca507852026e69f419a7afc4d4e174d815c01a9ba118c411e598"),
    ],
)
def test_an_identity_stays_while_the_program_goes_on(originals, name, digest):
    """It is in runs and packs of others. A new key or fact that changes it is `younger`, or renamed by a version."""
    assert recipe_id(originals[name]) == digest


def test_the_command_prints_three_digests_and_says_what_is_not_there(run):
    code, printed = run("id", "digits/large_batch")
    lines = dict(line.split(None, 1) for line in printed.splitlines())
    assert code == 0
    assert lines["recipe"] == recipe_id(opened("digits/large_batch"))
    assert len(lines["data"]) == 64
    assert lines["code"].startswith("none")
    assert json.loads(run("id", "goyal2017", "--json")[1])["data"] is None


def test_the_reference_batch_without_a_rule_counts_for_adascale_alone_whose_gain_ends_there():
    for optimizer, count in (("MomentumSGD", 1), ("AdaScale", 2)):
        given = ("learning_rate.rule=none", f"optimizer.kind={optimizer}")
        ids = {recipe_id(opened("goyal2017", *given, f"learning_rate.per={per}")) for per in (256, 8192)}
        assert len(ids) == count
