"""`import kilobatch`: recipes, plans and runs from Python, also beside packages of the same names."""

import importlib
import inspect
import json
import pickle
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import kilobatch as kb
from recipes.errors import InputRefused, RecipeError
from trainers.commands import python_api
from trainers.launch.own_modules import open_with_its_code
from trainers.runs.errors import RunFailed
from trainers.training.request import TrainRequest

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def test_every_public_name_is_there():
    assert {name for name in dir(kb) if callable(getattr(kb, name))} == {*kb.__all__, "main"}
    assert (kb.RecipeError, kb.InputRefused, kb.RunFailed) == (RecipeError, InputRefused, RunFailed)
    assert kb.__version__ == version("kilobatch")
    options = {*inspect.signature(kb.train).parameters}
    assert {"resume", "stop_after", "verbosity"} < options
    assert not {"checked_id", "warnings"} & {*options}  # of kilobatch itself
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        kb.trian  # noqa: B018


def test_a_recipe_opens_with_changed_values():
    recipe = kb.open("digits/large_batch", set={"batch.global": 256, "optimizer": {"kind": "Lars"}, "epochs": "40up"})
    assert repr(recipe) == "<recipe digits-large_batch: SmallResNet, 6.82667 epochs, batch 256>"
    assert recipe.values["optimizer"]["kind"] == "Lars"
    assert recipe.origins["batch.global"] == "kilobatch.open"
    with pytest.raises(RecipeError, match="did you mean epochs"):
        kb.open("digits/large_batch", set={"epoch": 3})
    assert "FutureNet, 20 epochs" in repr(
        kb.open("digits/baseline", set={"model": {"kind": "FutureNet"}, "lacks": ["FutureNet"]})
    )


def test_a_recipe_that_was_opened_can_be_sent_to_another_process():
    recipe = kb.open("digits/baseline", set={"epochs": 3}, allow_code=True)
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_a_recipe_that_was_opened_is_the_one_that_is_trained(tmp_path, monkeypatch):
    """Ranks open it anew: from another folder, where a file has the same name, and after its file has changed."""
    started = []
    monkeypatch.setattr(python_api, "start_or_join", lambda request, **how: started.append(request) or 3)
    for folder, epochs in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\nepochs: {epochs}\n")
    monkeypatch.chdir(tmp_path / "a")
    recipe = kb.open("mine.yaml", data=".")
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(RunFailed):
        kb.train(recipe, out="run")
    assert (started[0].recipe, started[0].data) == (str(tmp_path / "a" / "mine.yaml"), tmp_path / "a")
    (tmp_path / "a" / "mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\nepochs: 3\n")
    with pytest.raises(InputRefused, match=r"a/mine.yaml has changed since kilobatch.open, in epochs, .*; open it"):
        kb.train(recipe, out="run")
    assert kb.open("digits/baseline").request.recipe == "digits/baseline"


SCHEDULE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Same:
    def __call__(self, epoch):
        return %s
"""


@pytest.fixture
def with_own_schedule(tmp_path, monkeypatch):
    """In a folder with a recipe and the module of its schedule; two folders that have both."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "api_schedule.py").write_text(SCHEDULE % (0.5 if folder == "a" else 1))
        own = "learning_rate: {schedule: {kind: api_schedule.Same}}"
        (tmp_path / folder / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\n{own}\n")
    monkeypatch.chdir(tmp_path / "a")
    yield tmp_path
    sys.modules.pop("api_schedule", None)


def test_an_own_module_that_has_changed_since_it_was_imported_is_refused(with_own_schedule):
    """Ranks would train with the new one, and this process plan with the old one."""
    recipe = kb.open("mine.yaml", allow_code=True)
    kb.open("mine.yaml", allow_code=True)
    Path("api_schedule.py").write_text(SCHEDULE % 0.25)
    for again in (
        lambda: kb.open("mine.yaml", allow_code=True),
        lambda: kb.train(recipe, out="run"),
        lambda: kb.train("mine.yaml", out="run", allow_code=True),
    ):
        with pytest.raises(InputRefused, match="^api_schedule.py has changed since this program imported it; restart"):
            again()


def test_an_own_module_that_was_imported_from_another_folder_is_refused(with_own_schedule, monkeypatch):
    kb.open("mine.yaml", allow_code=True)
    monkeypatch.chdir(with_own_schedule / "b")
    with pytest.raises(InputRefused, match="has imported .*/a/api_schedule.py, and the recipe's code is api_sch"):
        kb.open("mine.yaml", allow_code=True)


def test_an_own_module_that_only_the_program_finds_is_refused(with_own_schedule, monkeypatch):
    """Ranks look in the working directory, beside the recipe and where each new process looks."""
    (with_own_schedule / "a" / "api_schedule.py").rename(with_own_schedule / "api_schedule.py")
    monkeypatch.syspath_prepend(with_own_schedule)
    with pytest.raises(InputRefused, match="api_schedule.py lies where ranks do not look; move it"):
        kb.open("mine.yaml", allow_code=True)
    monkeypatch.setenv("PYTHONPATH", str(with_own_schedule))
    kb.open("mine.yaml", allow_code=True)


def test_an_installed_package_hides_a_folder_of_its_name_from_own_modules(with_own_schedule):
    """The working directory comes last on Python's path, here and in ranks."""
    Path("api_schedule.py").write_text(f"import yaml\n{SCHEDULE % 1}")
    Path("yaml").mkdir()
    Path("yaml/__init__.py").touch()
    kb.open("mine.yaml", allow_code=True)


def test_an_own_module_that_was_reloaded_is_what_its_file_is(with_own_schedule):
    kb.open("mine.yaml", allow_code=True)
    Path("api_schedule.py").write_text(SCHEDULE % 0.125)
    importlib.reload(sys.modules["api_schedule"])
    assert kb.open("mine.yaml", allow_code=True).opened.recipe.learning_rate.schedule(0) == 0.125
    Path("api_schedule.py").write_text(SCHEDULE % 0.25)
    with pytest.raises(InputRefused, match="^api_schedule.py has changed since"):
        kb.open("mine.yaml", allow_code=True)


def test_a_rule_that_is_younger_than_a_run_does_not_stop_its_resume(with_own_schedule):
    Path("api_schedule.py").write_text((SCHEDULE % 1).replace("(frozen=True)", ""))
    Path("run").mkdir()
    again = TrainRequest(recipe="mine.yaml", out=Path("run"), resume=True, allow_code=True)
    with pytest.raises(RecipeError, match="add frozen=True to @dataclass"):
        open_with_its_code(again)
    Path("run/run.yaml").touch()
    assert "add frozen=True" in str(open_with_its_code(again).warnings)


def test_a_package_that_is_a_link_is_looked_at_where_it_was_imported(with_own_schedule):
    (with_own_schedule / "real.py").write_text(SCHEDULE % 1)
    Path("api_links/a/b/c/d/e/f/g/h/i").mkdir(parents=True)
    Path("api_links/a/b/c/d/e/f/g/h/i/deep.py").symlink_to(with_own_schedule / "real.py")
    kind = {"learning_rate.schedule": {"kind": "api_links.a.b.c.d.e.f.g.h.i.deep.Same"}}
    kb.open("digits/baseline", set=kind, allow_code=True)
    (with_own_schedule / "real.py").write_text(SCHEDULE % 0.5)
    with pytest.raises(InputRefused, match="has changed since this program imported it; restart"):
        kb.open("digits/baseline", set=kind, allow_code=True)


def test_values_of_a_recipe_are_a_copy():
    recipe = kb.open("digits/baseline")
    recipe.values["batch"]["global"] = 999
    assert recipe.values["batch"]["global"] != 999


def test_a_run_is_no_recipe_to_train(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(InputRefused, match="is no recipe; name its folder"):
        kb.train(kb.Run(tmp_path))


@pytest.mark.parametrize("wrong", [None, 3, "opened"])
def test_what_names_no_recipe_is_refused(wrong):
    wrong = kb.open("digits/baseline") if wrong == "opened" else wrong
    with pytest.raises(InputRefused, match=r"^recipe is .*; write a name, or the path of a file or a run"):
        kb.open(wrong)


def test_values_of_numpy_count_as_pythons():
    recipe = kb.open(
        "digits/large_batch",
        set={"batch.global": np.int64(512), "learning_rate.reference": np.float32(0.5), "lacks": np.array(["a"])},
    )
    assert recipe.values["batch"]["global"] == 512
    assert recipe.values["learning_rate"]["reference"] == 0.5
    with pytest.raises(InputRefused, match="set has <object .*, a object; write numbers, texts"):
        kb.open("digits/large_batch", set={"epochs": object()})


def test_a_recipe_by_name_is_opened_with_the_options_of_its_training_and_texts_count_as_paths(
    tmp_path, monkeypatch, capfd
):
    """Its model is own code, and its data set names no folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "api_net.py").write_text("from trainers.models import SmallCNN as Net\n")
    (tmp_path / "data").mkdir()
    for split, count in (("train", 64), ("val", 8)):
        labels = np.arange(count) % 4
        images = np.repeat(60 * labels.astype(np.uint8), 64).reshape(count, 8, 8)
        np.savez(tmp_path / "data" / f"{split}.npz", images=images, labels=labels)
    facts = "reader: {kind: Arrays}\nnum_train: 64\nnum_eval: 8\nnum_classes: 4\nchannels: 1\n"
    (tmp_path / "own.yaml").write_text(facts + "mean: [0.3]\nstd: [0.3]\n")
    lists = "train: [{kind: Normalize, with: own}], eval: [{kind: Normalize, with: own}]"
    own = f"model: {{kind: api_net.Net}}\naugmentation: {{{lists}}}\n"
    (tmp_path / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\ndataset: own.yaml\nepochs: 1\n{own}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    here = {"allow_code": True, "data": str(tmp_path / "data")}
    overrides = ("seed=3", "optimizer={kind: SGD}")
    run = kb.train("mine.yaml", ranks=1, out="run", report=False, verbosity=-2, overrides=overrides, **here)
    printed, warned = capfd.readouterr(), "warning: optimizer: another kind replaces the whole mapping"
    assert (printed.out, warned in printed.err) == ("", True)
    assert (run.folder / "log.txt").read_text().count(f"rank 0 {warned}") == 1
    assert sum(note.startswith(warned) for note in run.metrics[0]["notes"]) == 1  # of which the report warns too
    assert run.folder.name == "run"
    assert kb.open(run.folder / "recipe.yaml", allow_code=True).values["seed"] == 3
    with pytest.raises(RecipeError, match="'cod' is neither code nor data"):
        kb.train("mine.yaml", out="run", resume=True, accept_changed="data, cod", **here)
    assert run.evaluate(data=here["data"])["accuracy"] == run.accuracy  # it keeps what its training allowed
    with pytest.raises(RecipeError, match="model.kind: api_net.Net is code of your own; pass --allow-code"):
        kb.Run("run").export("safetensors")
    assert run.export("safetensors", out="x.safetensors") == Path("x.safetensors")
    assert Path("x.safetensors").stat().st_size > 1000


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own_and_a_refused_one_has_none(tmp_path, monkeypatch):
    def start(request, **how):
        (request.out / "recipe.yaml").touch()
        return 0

    def interrupted(request, **how):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_api, "default_folder", lambda name: Path("runs", name))
    with pytest.raises(InputRefused, match="stop_after|stop-after"):
        kb.train("digits/baseline", ranks=1, stop_after="no time")
    assert list(Path("runs").iterdir()) == []
    monkeypatch.setattr(python_api, "start_or_join", start)
    folders = [kb.train("digits/baseline").folder.name for _ in range(2)]
    assert folders == ["digits-baseline", "digits-baseline-2"]
    monkeypatch.setattr(python_api, "start_or_join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kb.train("digits/baseline")
    assert len(list(Path("runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("ranks", "options", "says"),
    [(2, {}, "need one folder for the run: write out"), (None, {"resume": True}, "resume=True needs the folder")],
)
def test_where_no_folder_of_its_own_is_right_out_must_be_given(tmp_path, monkeypatch, ranks, options, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_api, "launched_ranks", lambda: ranks)
    with pytest.raises(InputRefused, match=says):
        kb.train("digits/baseline", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_that_of_the_command(kilobatch):
    done = kilobatch("plan", "goyal2017", "--cluster", "dgx-1", "-n", "8", "--json")
    assert json.loads(json.dumps(kb.plan("goyal2017", cluster="dgx-1", ranks=8))) == json.loads(done.stdout)


def test_numbers_of_numpy_and_paths_are_options_too(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(python_api, "start_or_join", lambda request, **how: started.append(request.as_tree()) or 3)
    options = {"cluster": Path("laptop"), "micro_batch_size": np.int64(8), "report": np.bool_(False)}
    with pytest.raises(RunFailed):
        kb.train(
            kb.open("digits/baseline", set={"seed": 3}),
            ranks=np.int64(2),
            out=tmp_path,
            overrides="epochs=1",
            **options,
        )
    expected = {"workers": 2, "cluster": "laptop", "micro_batch_size": 8, "report": False}
    assert {name: json.loads(json.dumps(started[0]))[name] for name in expected} == expected
    assert started[0]["overrides"] == ("seed=3", "epochs=1")  # on top of those of `open`
    plans = [
        kb.plan("digits/baseline", ranks=two, cluster=where)
        for two, where in ((2, "laptop"), (np.int64(2), Path("laptop")))
    ]
    assert plans[0] == plans[1]
    with pytest.raises(InputRefused, match="^3 is no path; write one"):
        kb.open("digits/baseline", data=3)
    with pytest.raises(InputRefused, match=r"^set is \['epochs=4'\]; write values by dotted path"):
        kb.open("digits/baseline", set=["epochs=4"])


@pytest.mark.parametrize("code", [0, 4])
def test_an_interrupted_run_interrupts_the_program_too(tmp_path, monkeypatch, code):
    """Else a loop over runs begins the next one."""
    monkeypatch.setattr(python_api, "start_or_join", lambda request, on_signal: on_signal(signal.SIGINT) or code)
    with pytest.raises(KeyboardInterrupt, match=r"the run was stopped; kilobatch.Run\('.*run'\) is what"):
        kb.train("digits/baseline", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("2026-11-27 rank 0 training\nValueError: it\n\nAbort(3) on node 0\n", ": ValueError: it"),
        ("kilobatch: the loss is not finite\n", ": the loss is not finite"),
        ("ValueError: before\n2026-11-27 rank 0 training\n", ""),
    ],
)
def test_a_failed_run_names_the_last_error_of_its_log(tmp_path, monkeypatch, log, cause):
    monkeypatch.setattr(python_api, "start_or_join", lambda request, **how: 3)
    (tmp_path / "log.txt").write_text(log)
    with pytest.raises(RunFailed) as caught:
        kb.train("digits/baseline", out=tmp_path)
    assert str(caught.value) == f"the run failed with exit code 3; its log is {tmp_path / 'log.txt'}{cause}"


@pytest.mark.parametrize("option", ["ranks", "micro_batch_size"])
@pytest.mark.parametrize("value", ["2", 2.5, 0])
def test_a_plan_of_no_whole_number_is_refused(option, value):
    with pytest.raises(InputRefused, match=f"^{option} is {value!r}; write 1 or more as a whole number$"):
        kb.plan("digits/large_batch", **{option: value})


@pytest.fixture(scope="module")
def notebook(tmp_path_factory, installation):
    """The cells of the notebook, run as one program of an installation in a folder that has packages of our names."""
    folder = tmp_path_factory.mktemp("notebook")
    for name in ("recipes", "trainers"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('a package of the user')\n")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    program = "\n".join("".join(cell["source"]) for cell in cells)
    (folder / "program.py").write_text(program)
    how = {"capture_output": True, "text": True, "timeout": 300}
    return folder, subprocess.run([installation / "python", "program.py"], cwd=folder, **how)


def test_the_notebook_runs_beside_packages_of_our_names(notebook):
    folder, done = notebook
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    (run,) = kb.runs(folder / "runs")
    assert run.accuracy == run.curve("eval_accuracy")[-1][1] == run.evaluate()["accuracy"]
    assert [line["key"] for line in run.metrics][:: len(run.metrics) - 1] == ["run_start", "run_stop"]
    assert repr(run).startswith(f"<run {run.folder}: accuracy ")
    with pytest.raises(InputRefused, match="has no key train_los; it has train_loss, eval_accuracy, eval_loss, "):
        run.curve("train_los")
    with pytest.raises(InputRefused, match="'onxx' is no format of a model; write onnx or safetensors"):
        run.export("onxx")


def test_the_command_runs_beside_packages_of_our_names(notebook, installation):
    folder, _ = notebook
    command = [installation / "python", "-m", "kilobatch", "recipes", "validate", "goyal2017"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goyal2017: valid\n"), done.stderr


def test_a_run_that_cannot_start_raises(tmp_path):
    with pytest.raises(InputRefused, match="needs the folder of the data"):
        kb.train("wightman2021", out=tmp_path / "run")
    for option, words in (
        ("resme", "did you mean resume"),
        ("foo", "options: cluster, overrides, "),
        ("n", "write ranks=2"),
        ("fast", "write exact=False"),
        ("set", "write kilobatch.open.recipe, set="),
    ):
        with pytest.raises(InputRefused, match=f"kilobatch.train has no option {option}; {words}"):
            kb.train("digits/large_batch", **{option: True})
    for options, words in (
        ({"ranks": 0}, "ranks is 0; write 1"),
        ({"ranks": True}, "ranks is True; write 1"),
        ({"loader_workers": -1}, "is -1; write 0 or more"),
        ({"report": "no"}, "report is 'no'; write True or False"),
        ({"resume": np.array([1, 0])}, r"resume is array\(\[1, 0\]\); write True or False"),
        ({"verbosity": None}, "verbosity is None; write -2, -1, 0 or 1"),
        ({"watchdog_seconds": float("nan")}, "watchdog_seconds is nan; write 0 or more"),
    ):
        with pytest.raises(InputRefused, match=words):
            kb.train("digits/large_batch", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
