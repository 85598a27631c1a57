"""What a run was made of: own code found by reading it, data by part, and what is said where they have changed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kilobatch as kb
from recipes.errors import InputRefused
from trainers.datasets import ImageFolder
from trainers.launch.preflight import require_startable
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.vocabulary import vocabulary
from trainers.runs.identity import (
    IdentityChanged,
    changes,
    installed_code,
    own_code,
    read_identity,
    require_same_identity,
    sha256_of_files,
    write_identity,
)
from trainers.tasks.export_run import export_run

KILOBATCH = [sys.executable, "-P", "-m", "kilobatch"]
NET = """\
from dataclasses import dataclass

import chainer
import chainer.functions as F
import chainer.links as L


class Net(chainer.Chain):
    def __init__(self, num_in, num_classes):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(num_in, num_classes)

    def forward(self, x):
        from parts import pooled

        return self.fc(pooled(x))


@dataclass(frozen=True, kw_only=True)
class MyNet:
    def build(self, *, num_classes, channels, image_size):
        return Net(channels, num_classes)
"""
PARTS = "import chainer.functions as F\n\n\ndef pooled(x):\n    return F.average(x, axis=(2, 3))\n"
RECIPE = """\
kilobatch: 1
name: mine
extends: digits/baseline
dataset: photos.yaml
model: {kind: netting.MyNet}
epochs: 2
batch: {global: 8, norm_span: 8}
augmentation: {train: [], eval: []}
evaluation: {every: 1ep}
"""
PHOTOS = "name: photos\nreader: {kind: ImageFolder}\nroot: photos\nchannels: 3\nmean: [1, 1, 1]\nstd: [1, 1, 1]\n"


def written(folder, **files):
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_own_code_is_what_a_kind_names_and_what_that_imports_from_beside_it(tmp_path):
    written(
        tmp_path,
        net="import numpy\nimport pack.deep\n\ndef f():\n    from other import g\n",
        other="import net  # and round again\n",
        pack__deep="from . import near\nfrom .inner.most import x\n",
        pack__near="",
        pack__inner__most="x = 1\n",
        unused="",
        broken="this is no Python",
    )
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "inner" / "__init__.py").write_text("import broken\n")
    tree = {"model": {"kind": "net.Net"}, "extensions": [{"kind": "SmallCNN"}]}
    assert list(own_code([tree, {}], [tmp_path])) == [
        "broken.py",
        "net.py",
        "other.py",
        "pack/__init__.py",
        "pack/deep.py",
        "pack/inner/__init__.py",
        "pack/inner/most.py",
        "pack/near.py",
    ]
    assert own_code([{"model": {"kind": "SmallCNN"}}], [tmp_path]) == {}


def test_the_first_folder_that_has_a_module_gives_it(tmp_path):
    written(tmp_path / "one", net="import parts\n")
    written(tmp_path / "other", net="", parts="")
    found = own_code([{"kind": "net.Net"}], [tmp_path / "one", tmp_path / "other"])
    assert found == {"net.py": tmp_path / "one/net.py", "parts.py": tmp_path / "other/parts.py"}


def test_code_of_an_installed_package_is_what_gives_a_kind_and_what_that_imports_from_its_package(
    tmp_path, monkeypatch
):
    written(
        tmp_path, plugged__net="import numpy\nfrom plugged import near\nimport beside\n", plugged__near="", beside=""
    )
    (tmp_path / "plugged" / "__init__.py").write_text("")
    (tmp_path / "plugged-1.2.dist-info").mkdir()
    (tmp_path / "plugged-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.2\n")
    points = "[kilobatch.models]\nPlugged = plugged.net:Net\nOther = beside:Net\n"
    (tmp_path / "plugged-1.2.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    before = {"code": {}, "installed": installed_code([{"model": {"kind": "Plugged"}}], vocabulary())}
    assert [*before["installed"]] == [f"plugged/{name}.py of plugged" for name in ("__init__", "near", "net")]
    assert all(re.fullmatch("1.2 [0-9a-f]{64}", each) for each in before["installed"].values())
    (tmp_path / "plugged" / "near.py").write_text("x = 1\n")
    now = {"code": {}, "installed": installed_code([{"model": {"kind": "Plugged"}}], vocabulary())}
    assert changes(before, now) == {"code": "code: plugged/near.py of plugged has changed"}
    assert changes({"code": {}}, now) == {}  # a run of an older version, which recorded none
    assert installed_code([{"model": {"kind": "SmallCNN"}}], vocabulary()) == {}
    (tmp_path / "run").mkdir()
    write_identity(tmp_path / "run", before, {}, update=0)
    with pytest.raises(IdentityChanged, match="put back what it had, go on all the same with --accept-changed code"):
        require_same_identity(tmp_path / "run", lambda: now, accepted=[])


def test_an_installed_package_counts_only_where_a_kind_is_its_own(tmp_path, monkeypatch):
    """Not the same name of another group, nor one that kilobatch has too; a package may lack `__init__.py`."""
    written(tmp_path, spread__inner__net="")
    (tmp_path / "spread-1.0.dist-info").mkdir()
    (tmp_path / "spread-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: spread\nVersion: 1.0\n")
    of_models = "[kilobatch.models]\nSpread = spread.inner.net:Net\nSmallCNN = spread.inner.net:Net\n"
    points = f"{of_models}Zipped = spread.zipped:Net\n[kilobatch.losses]\nSpread = json:Loss\n"
    points += "[kilobatch.schedules]\nHalf = spread.inner.net:Half\n"
    (tmp_path / "spread-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    assert [*installed_code([{"model": {"kind": "Spread"}}], vocabulary())] == ["spread/inner/net.py of spread"]
    assert installed_code([{"optimizer": {"kind": "Spread"}}, {"model": {"kind": "SmallCNN"}}], vocabulary()) == {}
    assert installed_code([{"model": {"kind": "Zipped"}}], vocabulary()) == {"spread": "1.0"}
    momentum = {"schedules": {"momentum": {"kind": "Half"}}}
    assert [*installed_code([momentum], vocabulary())] == ["spread/inner/net.py of spread"]


def test_what_a_run_was_made_of_survives_a_full_disk(tmp_path, largest_file):
    made_of = {"code": {"a.py": "1"}, "data": {}}
    write_identity(tmp_path, made_of, {}, update=0)
    with largest_file(20), pytest.raises(OSError, match="File too large"):
        write_identity(tmp_path, made_of, {}, update=7)
    assert read_identity(tmp_path) == {**made_of, "accepted": []}
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]


def test_changes_are_said_in_words_and_recorded_with_their_update(tmp_path):
    before = {"code": {"a.py": "1", "b.py": "2"}, "data": {"photos": "3"}}
    now = {"code": {"a.py": "9", "c.py": "2"}, "data": {"photos": "3"}}
    assert changes(before, before) == {}
    assert changes(before, now) == {"code": "code: b.py is gone, c.py is new, a.py has changed"}
    many = {"data": {str(number): "1" for number in range(9)}}
    assert changes({"data": {}}, many)["data"].endswith("4 is new and 4 more")
    assert write_identity(tmp_path, before, {}, update=0) == []
    (warning,) = write_identity(tmp_path, now, {}, update=7)
    assert warning.endswith("from update 7 with changed code: b.py is gone, c.py is new, a.py has changed")
    assert write_identity(tmp_path, now, {}, update=9) == []
    (accepted,) = read_identity(tmp_path)["accepted"]
    assert accepted["from_update"] == 7
    for damaged in ("", "[]", "{", "[" * 100_000):
        (tmp_path / "identity.json").write_text(damaged)
        assert read_identity(tmp_path) is None


@pytest.fixture
def edited(tmp_path):
    """A run's folder with its own code, and what the run would be made of now: the file was edited, the data not."""
    written(tmp_path, mine="x = 1\n")
    files = {"mine.py": tmp_path / "mine.py"}
    (tmp_path / "run").mkdir()
    write_identity(tmp_path / "run", {"code": sha256_of_files(files), "data": {"photos": "3"}}, files, update=0)
    written(tmp_path, mine="x = 2\n")
    return tmp_path / "run", {"code": sha256_of_files(files), "data": {"photos": "3"}}, files


def test_a_damaged_record_of_what_a_run_was_made_of_is_refused_and_the_acceptance_recorded(edited):
    run, now, files = edited
    (run / "identity.json").write_text('{"code"')
    with pytest.raises(IdentityChanged, match=r"identity\.json is damaged, .*put back .*--accept-changed code,data"):
        require_same_identity(run, lambda: now, accepted=["code"])
    changed = require_same_identity(run, lambda: now, accepted=["code", "data"])
    assert changed == {"code": "code: mine.py has changed"}
    assert len(write_identity(run, now, files, update=8)) == 2
    (accepted,) = read_identity(run)["accepted"]
    assert accepted["from_update"] == 8
    assert [text.rpartition("/")[2] for text in accepted["changed"]] == [
        "code: mine.py has changed",
        "identity.json is damaged: it is not known whether data have changed",
    ]


def test_without_its_record_a_run_knows_its_code_by_its_copies(edited):
    run, now, files = edited
    (run / "identity.json").unlink()
    with pytest.raises(IdentityChanged, match=r"mine\.py has changed; put back .*run/code has .*--accept-changed code"):
        require_same_identity(run, lambda: now, accepted=[])
    shutil.rmtree(run / "code")
    assert require_same_identity(run, lambda: now, accepted=[]) == {}  # a run of an older version
    (warning,) = write_identity(run, now, files, update=8)
    assert warning.endswith("identity.json is missing: it is not known whether code or data have changed")


def photos(root):
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 4)):
        for label, name in enumerate(("cat", "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(100 * label, 100 * label + 100, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:02}.png")


def test_the_fingerprint_of_a_folder_names_the_class_that_changed(tmp_path):
    photos(tmp_path)
    before = ImageFolder().fingerprints(tmp_path)
    assert list(before) == ["train/cat", "train/dog", "val/cat", "val/dog"]
    file = tmp_path / "train/dog/00.png"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?")  # of the same size
    assert changes({"data": before}, {"data": ImageFolder().fingerprints(tmp_path)}) == {
        "data": "data: train/dog has changed"
    }
    file.write_bytes(content)
    assert ImageFolder().fingerprints(tmp_path) == before
    file.rename(file.with_name("99.png"))  # another order
    assert ImageFolder().fingerprint(tmp_path) != before
    assert ImageFolder().fingerprints(tmp_path)["train/dog"] != before["train/dog"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of an own model on own images, half done, and the folder that it was typed in."""
    folder = tmp_path_factory.mktemp("checkout")
    photos(folder / "photos")
    written(folder, netting=NET, parts=PARTS)
    (folder / "mine.yaml").write_text(RECIPE)
    (folder / "photos.yaml").write_text(PHOTOS)
    done = typed(folder, "train mine.yaml --allow-code --out runs/a -n 1 --no-report --stop-after 1ep")
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "a"


def typed(folder, words):
    return subprocess.run([*KILOBATCH, *words.split()], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def moved(run, tmp_path):
    """The run alone, on another path, and the data on a third."""
    shutil.copytree(run, tmp_path / "b")
    shutil.copytree(run.parents[1] / "photos", tmp_path / "data")
    return tmp_path


def test_a_run_keeps_its_code(run):
    assert (run / "code/netting.py").read_text() == NET
    assert (run / "code/parts.py").read_text() == PARTS
    assert read_identity(run)["accepted"] == []


@pytest.mark.mpi
@pytest.mark.slow
def test_a_moved_run_goes_on_with_its_own_copies(moved):
    done = typed(moved, "train b/recipe.yaml --out b --resume --allow-code --data data --no-report -n 2")
    assert done.returncode == 0, done.stderr
    assert "own code from the copy of a run: netting.py, parts.py" in done.stdout
    assert "finished: 10 of 10 updates" in done.stdout
    done = typed(moved, "evaluate b --allow-code --data data")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", ["recipes show b/recipe.yaml", "recipes card b/recipe.yaml", "recipes curve b/recipe.yaml", "report b"]
)
def test_a_moved_run_can_be_looked_at_without_running_its_code(moved, words):
    shutil.rmtree(moved / "b" / "code")
    done = typed(moved, words)
    assert done.returncode == 0, done.stderr


def test_edited_code_is_refused_then_accepted_and_recorded(moved):
    resume = "train b/recipe.yaml --out b --resume --allow-code --data data --no-report -n 1"
    written(moved, netting=NET, parts=PARTS.replace("average", "max"))
    done = typed(moved, resume)
    assert done.returncode == 2
    assert "b was trained with other code; code: parts.py has changed; put back what it had (b/code" in done.stderr
    assert "--accept-changed code" in done.stderr
    scored = typed(moved, "evaluate b --allow-code --data data")
    assert scored.returncode == 0
    assert "warning: b was trained with other code: parts.py has changed; this score is not the run's" in scored.stderr
    assert typed(moved, f"{resume} --accept-changed data").returncode == 2
    done = typed(moved, f"{resume} --accept-changed code")
    assert done.returncode == 0, done.stderr
    assert "warning: goes on from update 5 with changed code: parts.py has changed" in done.stdout
    assert read_identity(moved / "b")["accepted"][0]["from_update"] == 5


def test_a_new_run_of_a_runs_recipe_with_edited_code_is_warned_of(moved, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("netting", "parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(moved)
    written(moved, netting=NET)
    kb.open("b", data="data", allow_code=True)
    assert capsys.readouterr().err == ""
    written(moved, parts=f"{PARTS}\n# edited\n")
    said = "parts.py is not that of b, whose copy is b/code/parts.py; to use the run's own, move yours away"
    kb.open("b", data="data", allow_code=True)
    assert capsys.readouterr().err == f"kilobatch: warning: {said}\n"
    (moved / "seed.yaml").write_text("kilobatch: 1\nextends: b/recipe.yaml\nseed: 3\n")
    how = {"allow_code": True, "data": Path("data")}
    opened = prepare(TrainRequest(recipe="seed.yaml", **how), workers=1).opened
    assert require_startable(opened, ranks=1, is_new=True) == [said]


def test_edited_code_is_refused_for_onnx_and_named_for_weights(moved, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(moved)
    written(moved, netting=NET, parts=f"{PARTS}\n# edited\n")
    with pytest.raises(
        InputRefused, match=r"^b was trained with other code: parts\.py has changed; b/code has the run"
    ):
        export_run(Path("b"), form="onnx", allow_code=True)
    (note,) = export_run(Path("b"), form="safetensors", allow_code=True)[1]
    assert note.endswith(
        "code: parts.py has changed; b/code has the run's code; the weights are the run's all the same"
    )
    monkeypatch.chdir(moved / "b/code")
    assert export_run(Path(".."), form="onnx", allow_code=True) == (Path("../model.onnx"), [], True)


def test_swapped_classes_are_refused_by_name(moved):
    for split in ("train", "val"):
        folder = moved / "data" / split
        for name, new in (("cat", "x"), ("dog", "cat"), ("x", "dog")):
            (folder / name).rename(folder / new)
    done = typed(moved, "train b/recipe.yaml --out b --resume --allow-code --data data --no-report -n 1")
    assert done.returncode == 2
    assert "was trained with other data; data: train/cat has changed, train/dog has changed, val/cat has" in done.stderr
    scored = typed(moved, "evaluate b --allow-code --data data")
    assert "was trained with other data: val/cat has changed, val/dog has changed; this score" in scored.stderr


def test_diff_of_runs_names_code_and_data_that_differ(run, moved):
    same = typed(moved, f"recipes diff b {run}")
    assert same.returncode == 0, same.stdout + same.stderr
    identity = json.loads((moved / "b/identity.json").read_text())
    identity["code"]["parts.py"] = 64 * "0"
    identity["data"]["val/cat"] = 64 * "1"
    (moved / "b/identity.json").write_text(json.dumps(identity))
    done = typed(moved, f"recipes diff b {run} --json")
    assert done.returncode == 1
    assert [one["path"] for one in json.loads(done.stdout)["differences"]] == ["code.parts.py", "data.val/cat"]


@pytest.mark.parametrize(
    ("words", "said"),
    [("--accept-changed code", "is for a run that is resumed"), ("--resume --accept-changed x", "'x' is neither code")],
)
def test_a_wrong_acceptance_is_refused(tmp_path, words, said):
    done = typed(tmp_path, f"train digits/baseline --out {Path('a')} {words}")
    assert done.returncode == 2
    assert f"command line:1:1: --accept-changed: {said}" in done.stderr


def test_a_kind_of_an_installed_package_counts_also_in_the_lists_of_a_recipe(tmp_path, monkeypatch):
    """Augmentations, mixes of images, extensions and the factors of a product are lists."""
    written(tmp_path, listed__net="")
    (tmp_path / "listed-1.0.dist-info").mkdir()
    (tmp_path / "listed-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: listed\nVersion: 1.0\n")
    groups = ("augmentations", "mixes", "extensions", "schedules")
    points = "".join(f"[kilobatch.{group}]\nOwn{number} = listed.net:Own\n" for number, group in enumerate(groups))
    (tmp_path / "listed-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    for tree in (
        {"augmentation": {"train": [{"kind": "Own0"}]}},
        {"augmentation": {"mix": [{"kind": "Own1"}]}},
        {"extensions": [{"kind": "Own2"}]},
        {"learning_rate": {"schedule": {"kind": "Product", "factors": [{"kind": "Own3"}]}}},
    ):
        assert [*installed_code([tree], vocabulary())] == ["listed/net.py of listed"], tree
