"""Packs of real runs: what they hold, what is refused, and training from one, to the same bits."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from kilobatch import app as kilobatch_app
from recipes.cards.card import claim_text
from recipes.errors import InputRefused
from recipes.packs.contents import HeadRefused, open_packed
from recipes.reading.identity import identity_ids, recipe_id
from recipes.reading.library import copy_recipe
from recipes.reading.open import open_recipe
from recipes.reports.record import open_run
from recipes.sharing.canonical import sha256_of
from recipes.sharing.pack_file import claims_of_runs, files_of, open_pack, write_pack
from recipes.sharing.registries import add_registry
from trainers.launch.identity import ids_of
from trainers.launch.preflight import require_own_code
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.packing import pack

pytestmark = pytest.mark.mpi
ROOT = Path(__file__).parents[3]
SHORT = ["--set", "epochs=1", "--set", "learning_rate.warmup=null", "--no-report"]
WEIGHTS = "checkpoints/update-000003/weights.safetensors"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, kilobatch):
    """Runs of three updates: `0` and `1` of one recipe, `other` with averaged weights, `cut` not at its end."""
    folder = tmp_path_factory.mktemp("runs")
    for name, *options in (
        ("0", "--trace"),
        ("1", "--set", "seed=1"),
        ("other", "--set", "weight_average={keep: 0.9, per: 512}"),
        ("cut", "--stop-after", "1up"),
    ):
        done = kilobatch("train", "digits/large_batch", *SHORT, "--out", folder / name, *options, ranks=1)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def packed(path, *names, **how):
    how = {"weights": False, "data": None, "allow_code": False} | how
    return pack([str(name) for name in names], out=path, **how)


def test_a_recipe_in_another_folder_is_the_same_pack(tmp_path, cache, monkeypatch):
    digests = set()
    for folder, here in (("one", tmp_path), ("two", tmp_path / "two"), ("three", tmp_path / "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "base.yaml").write_text("kilobatch: 1\nextends: digits/baseline\nepochs: 3\n")
        (tmp_path / folder / "mine.yaml").write_text("kilobatch: 1\nextends: base.yaml\nseed: 7\n")
        monkeypatch.chdir(here)
        path, digest, _ = packed(tmp_path / f"{folder}.kilobatch", tmp_path / folder / "mine.yaml")
        digests.add(digest)
    (digest,) = digests
    origins = json.loads((open_pack(path).folder / "origins.json").read_text())
    assert (origins["epochs"], origins["seed"]) == ("sources/1-base.yaml:3", "sources/0-mine.yaml:3")
    assert origins["batch.global"].startswith("sources/2-baseline.yaml:")


def test_a_pack_of_runs_holds_their_record_and_claims_what_they_reached(runs, tmp_path, cache):
    path, digest, head = packed(tmp_path / "a.kilobatch", runs / "1", runs / "0", weights=True)
    assert packed(tmp_path / "b.kilobatch", runs / "0", runs / "1", weights=True)[1] == digest
    assert path.read_bytes() == (tmp_path / "b.kilobatch").read_bytes()
    assert packed(path, runs / "0", runs / "1", weights=True)[1] == digest, "the same bytes once more"
    with pytest.raises(InputRefused, match=r"a.kilobatch: exists and holds something else; remove it, or give another"):
        packed(path, runs / "0")
    assert sorted(file.name for file in tmp_path.glob("*kilobatch*")) == ["a.kilobatch", "b.kilobatch"]
    opened = open_pack(path)
    accuracies = [open_run(runs / str(seed)).final_accuracy for seed in (0, 1)]
    assert [run["accuracy"] for run in opened.head["runs"]] == accuracies
    (claim,) = opened.head["claims"]
    assert claim["value"] == pytest.approx(sum(accuracies) / 2)
    assert (claim["runs"], claim["status"]) == (2, "reproduced")
    shown = f"top-1 {100 * claim['value']:.2f} % ± {100 * claim['deviation']:.2f} (2 runs)"
    assert f"| {shown} | {claim['on']} | by its runs |" in (opened.folder / "card.md").read_text()
    assert claim_text(*claims_of_runs(opened.folder / "recipe.yaml")) == shown
    assert claims_of_runs(runs / "0" / "recipe.yaml") == []
    assert opened.head["facts"]["batch"] == 512
    assert (opened.folder / "weights.safetensors").read_bytes() == (runs / "0" / WEIGHTS).read_bytes()
    sources = sorted(file.name for file in (opened.folder / "sources").iterdir())
    assert sources == ["0-large_batch.yaml", "1-baseline.yaml"]
    assert json.loads((opened.folder / "diff.json").read_text())["parent"] == "digits/baseline"
    assert "kilobatch==" in (opened.folder / "lock.txt").read_text()
    ids = json.loads((runs / "0" / "environment.json").read_text())["ids"]
    state = json.loads((runs / "0" / WEIGHTS).with_name("state.json").read_text())
    assert opened.head["ids"] == ids == state["ids"]
    text = b"".join(file.read_bytes() for file in opened.folder.rglob("*.yaml") if file.parent == opened.folder)
    assert str(tmp_path).encode() not in text


def test_a_head_whose_claim_or_accuracies_are_not_those_of_its_runs_is_refused(runs, tmp_path, cache):
    opened = open_pack(packed(tmp_path / "a.kilobatch", runs / "0", runs / "1")[0])
    assert len(open_packed(opened, vocabulary())[1]) == 2
    (claim,), ran = opened.head["claims"], opened.head["runs"]
    for forged, what in (
        ({"claims": [{**claim, "value": 0.9999}]}, "the value of a claim: 0.9999, and its recipe and runs have 0."),
        ({"claims": [claim, {**claim, "runs": 50}]}, "the runs of a claim: 50, and its recipe and runs have 2;"),
        ({"claims": [{**claim, "deviation": 1e-4}]}, "the deviation of a claim: 0.0001"),
        ({"claims": [{**claim, "kind": "time_to_train"}]}, 'the kind of a claim: "time_to_train"'),
        ({"runs": [ran[0], {**ran[1], "accuracy": 0.9999}]}, "the accuracy of seed 1: 0.9999"),
        ({"runs": [ran[0], ran[1], ran[1]]}, 'runs of seeds: ["0", "1", "1"]'),
    ):
        write_pack(tmp_path / "b.kilobatch", {**opened.head, **forged}, files_of(opened))
        with pytest.raises(HeadRefused, match=f"pack [0-9a-f]{{12}} says {re.escape(what)}"):
            open_packed(open_pack(tmp_path / "b.kilobatch"), vocabulary())


def test_a_claim_names_the_hardware_of_every_run(runs, tmp_path, cache):
    shutil.copytree(runs / "1", tmp_path / "1")
    file = tmp_path / "1" / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ranks": [{"gpu": "H100"}, {"gpu": "H100"}]}))
    _, _, head = packed(tmp_path / "a.kilobatch", runs / "0", tmp_path / "1")
    assert re.fullmatch("1 x .* and 2 x H100", head["claims"][0]["on"])


def test_the_weights_of_a_pack_are_those_that_evaluation_scores(runs, tmp_path, cache):
    path, *_ = packed(tmp_path / "a.kilobatch", runs / "other", weights=True)
    actual = load_file(open_pack(path).folder / "weights.safetensors")
    averages = load_file((runs / "other" / WEIGHTS).with_name("averages.safetensors"))
    trained = load_file(runs / "other" / WEIGHTS)
    assert actual.keys() == trained.keys()
    assert all((actual[path] == array).all() for path, array in averages.items())
    assert any((trained[path] != array).any() for path, array in averages.items())


def test_runs_that_do_not_belong_together_or_have_not_ended_are_refused(runs, tmp_path, cache):
    with pytest.raises(InputRefused, match="another training .* not only another seed"):
        packed(tmp_path / "a.kilobatch", runs / "0", runs / "other")
    with pytest.raises(InputRefused, match="same seed"):
        packed(tmp_path / "a.kilobatch", runs / "0", runs / "0")
    with pytest.raises(InputRefused, match="has not reached its end"):
        packed(tmp_path / "a.kilobatch", runs / "cut")
    with pytest.raises(InputRefused, match="no folder of a run"):
        packed(tmp_path / "a.kilobatch", runs / "0", "digits/baseline")
    with pytest.raises(InputRefused, match=r"ends in \.kilobatch"):
        packed(tmp_path / "a.zip", runs / "0")
    shutil.copytree(runs / "0", tmp_path / "changed")
    text = (tmp_path / "changed" / "recipe.yaml").read_text()
    (tmp_path / "changed" / "recipe.yaml").write_text(text.replace("momentum: 0.9", "momentum: 0.8"))
    with pytest.raises(InputRefused, match="not those that it was trained with"):
        packed(tmp_path / "a.kilobatch", tmp_path / "changed")
    assert list(tmp_path.glob("*.kilobatch")) == []


def test_a_pack_trains_elsewhere_to_the_same_bits_and_other_commands_take_it(runs, tmp_path, cache, kilobatch):
    path, *_ = packed(tmp_path / "a.kilobatch", runs / "0", runs / "1")
    (tmp_path / "elsewhere").mkdir()
    pack_there = shutil.copy(path, tmp_path / "elsewhere" / "got.kilobatch")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "other cache")}

    def typed(*words, ranks=None):
        done = kilobatch(*words, ranks=ranks, environment=environment, cwd=str(tmp_path / "elsewhere"))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    typed("train", "got.kilobatch", "--no-report", "--out", "run", ranks=2)
    trained = tmp_path / "elsewhere" / "run"
    assert (trained / WEIGHTS).read_bytes() == (runs / "0" / WEIGHTS).read_bytes()
    assert "The same training" in typed("recipes", "diff", "got.kilobatch", str(runs / "0"))
    typed("recipes", "show", "got.kilobatch")
    typed("recipes", "card", "got.kilobatch")
    typed("recipes", "curve", "got.kilobatch", "--at", "0")
    typed("plan", "got.kilobatch", "-n", "2")
    typed("report", "got.kilobatch", "-o", "r.html")
    assert "seed" in (tmp_path / "elsewhere" / "r.html").read_text()
    assert pack_there.stat().st_size == path.stat().st_size


def test_a_recipe_extends_a_pack_by_its_name_in_a_registry(runs, tmp_path, cache, monkeypatch, kilobatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    path, *_ = packed(tmp_path / "a.kilobatch", runs / "0")
    assert kilobatch("registry", "search", "batch=512").stdout.startswith("nothing; kilobatch registry add and push")
    add_registry("team", str(tmp_path / "team"), signers=None).push(path, "net")
    assert kilobatch("registry", "search", "batch=513").stdout == "no name meets all conditions\n"
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: team/net@1\nseed: 7\n")
    opened = open_recipe("mine.yaml", vocabulary=vocabulary())
    of_run = open_recipe(runs / "0" / "recipe.yaml", vocabulary=vocabulary(), overrides=["seed=7"])
    assert recipe_id(opened) == recipe_id(of_run)
    mine.write_text("kilobatch: 1\nextends: a.kilobatch\n")
    with pytest.raises(InputRefused, match="push it into a registry"):
        open_recipe("mine.yaml", vocabulary=vocabulary())
    with pytest.raises(InputRefused, match="extends: REGISTRY/NAME"):
        copy_recipe("team/net@1")


def test_a_pack_of_a_recipe_has_its_own_claims_and_no_runs(tmp_path, cache, kilobatch):
    path, _, head = packed(tmp_path / "a.kilobatch", "goyal2017")
    assert head["runs"] == []
    assert head["claims"][0]["value"] == head["facts"]["accuracy"] == 0.7626
    assert head["ids"]["data"] is None
    done = kilobatch("report", str(path), environment={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 2
    assert "has no runs" in done.stderr
    with pytest.raises(InputRefused, match=r"a\.kilobatch: is a pack already, and its runs and weights would be left"):
        packed(tmp_path / "b.kilobatch", str(path))


OWN = """\
from dataclasses import dataclass
import chainer
class Net(chainer.Chain):
    def __init__(self, num_in, num_classes):
        super().__init__()
        with self.init_scope():
            self.fc = chainer.links.Linear(num_in, num_classes)
    def forward(self, x):
        return self.fc(x)
@dataclass(frozen=True, kw_only=True)
class MyNet:
    def build(self, *, num_classes, channels, image_size):
        return Net(64 * channels, num_classes)
"""


def test_own_code_is_found_beside_a_recipe_in_a_run_and_in_a_pack_also_one_that_is_extended(
    tmp_path, cache, monkeypatch
):
    def typed(*words):
        return CliRunner().invoke(kilobatch_app, [*map(str, words)], catch_exceptions=False)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    places = (("own_a", "a.yaml", "."), ("own_b", "run/recipe.yaml", "run/code"), ("own_c", "c.yaml", "."))
    for name, file, code in places:
        (tmp_path / code).mkdir(parents=True, exist_ok=True)
        (tmp_path / code / f"{name}.py").write_text(OWN)
        (tmp_path / file).write_text(f"kilobatch: 1\nextends: digits/large_batch\nmodel: {{kind: {name}.MyNet}}\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = typed("recipes", "pack", tmp_path / "c.yaml", "-o", tmp_path / "c.kilobatch").stdout
    assert said.endswith("c.kilobatch --allow-code\n")
    add_registry("team", str(tmp_path / "registry"), signers=None).push(tmp_path / "c.kilobatch", "c")
    (tmp_path / "own_c.py").unlink()
    Path("d.yaml").write_text("kilobatch: 1\nextends: team/c\nseed: 3\n")
    for recipe in (tmp_path / "a.yaml", tmp_path / "run", "d.yaml"):
        assert typed("recipes", "diff", recipe, "team/c@1", "--allow-code").exit_code == 1
    assert typed("plan", "team/c", "--allow-code").exit_code == 0
    assert typed("recipes", "pack", "d.yaml", "-o", "d.kilobatch").exit_code == 0
    Path("own_c.py").write_text(OWN)  # as its author has it
    assert packed(Path("e.kilobatch"), "d.yaml")[1] == open_pack(Path("d.kilobatch")).digest
    Path("e.kilobatch").unlink()
    Path("own_c.py").write_text("TOKEN = 1\n")  # not what the pack's author has, and not to be given away
    named = r"pack \w+/recipe.yaml:\d+.*: names code of the pack, and your .*own_c.py would take its place"
    with pytest.raises(InputRefused, match=named):
        packed(Path("e.kilobatch"), "d.yaml")
    with pytest.raises(InputRefused, match=named):  # before a run has it, which could be packed
        require_own_code(open_recipe("d.yaml", vocabulary=vocabulary(), allow_code=None))
    assert not Path("e.kilobatch").exists()


def test_a_pack_computes_with_its_own_code_beside_a_file_of_the_same_name(tmp_path, cache, monkeypatch):
    code = (
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Same:\n"
        "    def __call__(self, epoch):\n        return %s\n"
    )
    before = [*sys.path]
    for folder, factor in (("a", 0.5), ("b", 0.25)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pack_factor.py").write_text(code % factor)
    mine = tmp_path / "a" / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/large_batch\nlearning_rate: {schedule: {kind: pack_factor.Same}}\n")
    monkeypatch.setattr(sys, "path", [*before])
    path, *_ = packed(tmp_path / "a.kilobatch", mine, allow_code=True)
    del sys.modules["pack_factor"]
    monkeypatch.chdir(tmp_path / "b")
    monkeypatch.setattr(sys, "path", [*before, str(tmp_path / "b")])
    opened = open_recipe(path, vocabulary=vocabulary(allow_code=True), allow_code=True)
    del sys.modules["pack_factor"]
    assert opened.recipe.learning_rate.schedule(1) == 0.5
    assert ids_of(opened)["code"] == open_pack(path).head["ids"]["code"]


def test_a_recipe_whose_code_is_not_here_is_not_packed_and_its_digest_is_unknown(tmp_path, cache):
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/large_batch\nloss: {kind: no_such_module.Loss}\n")
    with pytest.raises(InputRefused, match="mine.yaml: names code that is not here: no_such_module; put the files"):
        packed(tmp_path / "a.kilobatch", mine)
    said = CliRunner().invoke(kilobatch_app, ["recipes", "id", str(mine)]).stdout
    assert "code    unknown: not found here: no_such_module\n" in said
    mine.write_text(mine.read_text().replace("no_such_module", "safetensors"))  # code of a package is not own code
    packed(tmp_path / "a.kilobatch", mine)


def test_a_pack_with_a_schedule_of_its_own_is_written_named_with_its_option_and_left_out_of_a_site(
    tmp_path, cache, monkeypatch
):
    def typed(*words):
        return CliRunner().invoke(kilobatch_app, [*map(str, words)])

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("halves.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Halving:\n    every: float\n\n"
        "    def __call__(self, epoch):\n        return 0.5 ** (epoch // self.every)\n"
    )
    schedule = "learning_rate: {schedule: {kind: halves.Halving, every: 1}}"
    Path("own.yaml").write_text(f"kilobatch: 1\nextends: digits/large_batch\n{schedule}\n")
    done = typed("recipes", "pack", "own.yaml", "-o", "own.kilobatch", "--allow-code")
    assert done.exit_code == 0, done.exception
    words = "kilobatch recipes show own.kilobatch --allow-code; kilobatch train own.kilobatch --allow-code\n"
    assert done.stdout.endswith(words)
    team = add_registry("team", str(tmp_path / "registry"), signers=None)
    team.push(Path("own.kilobatch"), "own")
    assert typed("registry", "pull", "team/own").stdout.endswith("kilobatch train team/own@1 --allow-code\n")
    team.push(packed(tmp_path / "plain.kilobatch", "digits/large_batch")[0], "plain")
    done = typed("registry", "site", "-o", "site", "--no-library")
    assert done.exit_code == 0, done.exception
    assert [file.name for file in Path("site").glob("recipe-*")] == ["recipe-team~plain@1.html"]
    assert done.stderr.startswith("team/own@1 is left out: ")


def test_a_pack_has_the_code_that_its_runs_were_trained_with(runs, tmp_path, cache, monkeypatch):
    def run_of(seed, code):
        """A run of own code, made of one of the library's."""
        folder = tmp_path / str(seed)
        shutil.copytree(runs / str(seed), folder)
        (folder / "code").mkdir()
        (folder / "code" / "kept.py").write_text(code)
        text = (folder / "recipe.yaml").read_text()
        changed = re.sub("model:.*?\n(?=\\S)", "model: {kind: kept.MyNet}\n", text, flags=re.DOTALL)
        (folder / "recipe.yaml").write_text(changed)
        made_of = {**json.loads((folder / "identity.json").read_text()), "code": {"kept.py": sha256_of(code.encode())}}
        (folder / "identity.json").write_text(json.dumps(made_of))
        opened = open_recipe(folder / "recipe.yaml", vocabulary=vocabulary(), allow_code=None)
        environment = json.loads((folder / "environment.json").read_text()) | {"ids": identity_ids(opened, made_of)}
        (folder / "environment.json").write_text(json.dumps(environment))
        return folder

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("kept.py").write_text("import chainer\n")
    run, other = run_of(0, OWN), run_of(1, f"{OWN}# other\n")
    opened = open_pack(packed(tmp_path / "a.kilobatch", run)[0])
    assert (opened.folder / "code" / "kept.py").read_text() == OWN
    with pytest.raises(InputRefused, match=r"1 was trained with other code than .*0/code has"):
        packed(tmp_path / "b.kilobatch", run, other)
    (run / "code" / "kept.py").write_text("import chainer\n")
    with pytest.raises(InputRefused, match=r"0/code: own code is not that which the run was trained with"):
        packed(tmp_path / "b.kilobatch", run)


@pytest.mark.slow
def test_a_pack_brings_own_code_which_runs_only_if_it_is_allowed(tmp_path, cache, monkeypatch):
    def typed(*words):
        command = [sys.executable, "-P", "-m", "kilobatch", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    Path("netting.py").write_text(OWN)
    Path("mine.yaml").write_text("kilobatch: 1\nextends: digits/large_batch\nmodel: {kind: netting.MyNet}\n")
    assert typed("train", "mine.yaml", *SHORT, "-n", 1, "--allow-code", "--out", "run").returncode == 0
    path, _, head = packed(tmp_path / "a.kilobatch", "run")
    assert head["ids"]["code"]
    assert (open_pack(path).folder / "code" / "netting.py").read_text() == OWN
    assert packed(tmp_path / "b.kilobatch", "mine.yaml")[2]["ids"]["code"] == head["ids"]["code"]
    monkeypatch.chdir(tmp_path / "b")
    refused = typed("train", path, *SHORT[-1:], "-n", 1)
    assert refused.returncode == 2
    assert "pass --allow-code" in refused.stderr
    assert typed("train", path, *SHORT[-1:], "-n", 1, "--allow-code", "--out", "run").returncode == 0
    assert Path("run", WEIGHTS).read_bytes() == (tmp_path / "a" / "run" / WEIGHTS).read_bytes()


def test_a_pack_carries_the_weights_that_its_recipe_begins_with(runs, tmp_path, cache):
    weights = shutil.copy(runs / "0" / WEIGHTS, tmp_path / "w.safetensors")
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/large_batch\ninit: {weights: w.safetensors, except: [fc]}\n")
    path, _, head = packed(tmp_path / "a.kilobatch", mine)
    begun = mine.read_text().replace("w.safetensors", f"w.safetensors, sha256: {'0' * 64}")
    Path(weights).unlink()
    opened = open_recipe(path, vocabulary=vocabulary())
    assert Path(opened.recipe.init.weights).read_bytes() == (runs / "0" / WEIGHTS).read_bytes()
    assert recipe_id(opened) == head["ids"]["recipe"]
    mine.write_text(begun)
    with pytest.raises(InputRefused, match=r"no file .*w.safetensors, and a pack carries these weights; put the file"):
        packed(tmp_path / "b.kilobatch", mine)


@pytest.mark.parametrize("content", [b"", b"a letter", bytes(8) + b"{}"])
def test_a_file_that_holds_no_weights_goes_into_no_pack(tmp_path, cache, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/large_batch\ninit: {weights: w.safetensors}\n")
    with pytest.raises(InputRefused, match=r"w.safetensors is no file of safetensors \(.*\), and goes into no pack"):
        packed(tmp_path / "a.kilobatch", mine)
    assert not [*tmp_path.glob("*.kilobatch")]


@pytest.mark.slow
def test_a_pack_trains_in_a_fresh_environment_without_the_checkout_to_the_same_bits(tmp_path, cache, installation):
    """Both runs are processes of their own, as a user starts them."""
    here = tmp_path / "here"
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/large_batch", *SHORT, "-n", "1", "--out", here]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    path, *_ = packed(tmp_path / "a.kilobatch", here)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "other")} | {"PYTHONPATH": ""}
    command = [installation / "kilobatch", "train", path, "-n", "2", "--no-report", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(ROOT) not in (tmp_path / "run" / "run.yaml").read_text()
    environments = [json.loads((run / "environment.json").read_text()) for run in (tmp_path / "run", here)]
    for key in ("cpu_model", "versions", "libc", "kernels", "decoder", "dtype", "exact", "ids"):
        assert environments[0][key] == environments[1][key]
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (here / WEIGHTS).read_bytes()
