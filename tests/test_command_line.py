"""The commands on recipes, as a user types them."""

import json
import math
import os
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.main import get_command
from typer.testing import CliRunner

import kilobatch
from recipes.errors import RecipeError
from recipes.extras import install
from trainers.commands import command_line
from trainers.commands.options import print_json
from trainers.runs import mpi_ranks
from trainers.runs.errors import exit_on_error

ROOT = Path(__file__).parent.parent
MINE = """\
kilobatch: 1
extends: digits/large_batch
title: mine
"""
LAUGHS = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
LAUGHS = f"a: &a [ha, ha]\n{LAUGHS}\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in an empty folder: (exit code, stdout, problems)."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        result = CliRunner().invoke(kilobatch.app, arguments)
        if isinstance(result.exception, RecipeError):
            return 2, result.stdout, str(result.exception).splitlines()
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr.splitlines()

    return run_command


def command(*arguments, cwd, python=(), **more):
    """The real thing, in a process of its own, with these options of Python."""
    line = [sys.executable, *python, str(ROOT / "kilobatch.py"), *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.run(line, text=True, cwd=cwd, check=False, **streams)


@pytest.mark.parametrize("group", [(), ("recipes",), ("data",), ("registry",)])
def test_help_of_a_group_shows_the_whole_line_of_every_command(run, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = run(*group, "--help")
    assert code == 0
    assert "..." not in shown.partition("Commands:")[2]


def test_the_command_that_is_typed_is_the_same_alone():
    whole = get_command(kilobatch.app)
    for name, command in whole.commands.items():
        alone = get_command(command_line.app_of(name.split()[0])).commands
        assert len(alone) < 3
        assert [(it.name, it.opts) for it in alone[name].params] == [(it.name, it.opts) for it in command.params]
    for word in ("", "--help", "trian"):
        assert command_line.app_of(word) is kilobatch.app


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("matplotlib", ["recipes", "curve", "goyal2017", "-o", "a.svg"], "plots"),
        ("optuna", ["search", "digits"], "search"),
    ],
)
def test_a_command_whose_extra_is_not_installed_names_it(tmp_path, missing, words, extra):
    code = f"import sys; sys.modules['{missing}'] = None; sys.argv[1:] = {words!r}; import kilobatch; kilobatch.main()"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"kilobatch: this needs {missing}, which is not installed; {install(extra)}"]


def test_a_terminal_without_unicode_gets_question_marks_for_a_picture_and_the_program_its_name(tmp_path):
    line = [sys.executable, "-P", "-m", "kilobatch", "recipes", "curve", "digits/baseline"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "learning rate" in done.stdout
    done = subprocess.run([*line, "--help"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.startswith("Usage: kilobatch recipes curve ")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command_and_no_file_takes_their_place(tmp_path, closed):
    line = f"{sys.executable} -P -m kilobatch recipes copy digits/baseline mine.yaml {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    _, copied = (tmp_path / "mine.yaml").read_text().split("\n", 1)
    assert copied == (ROOT / "recipes/papers/digits/baseline.yaml").read_text()


def test_a_ctrl_c_while_the_commands_are_imported_has_no_traceback(monkeypatch):
    def import_module(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(kilobatch, "import_module", import_module)
    with pytest.raises(SystemExit, match="130"):
        kilobatch.main()


def test_an_unknown_recipe_is_not_answered_with_all_of_the_library(run):
    _, _, (problem,) = run("recipes", "show", "nothing-like-it")
    assert problem.endswith("; `kilobatch recipes list` has the names; a path ends in .yaml")
    _, _, (problem,) = run("recipes", "show", "goyal2018")
    assert "did you mean goyal2017?" in problem or "goyal2017 or" in problem


def test_the_version_is_that_of_the_package(run):
    code, shown, _ = run("--version")
    assert (code, shown) == (0, f"kilobatch {version('kilobatch')}\n")


def test_list_has_the_keys_programs_read(run):
    code, out, problems = run("recipes", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, problems) == (0, [])
    assert {"goyal2017", "akiba2017", "suzuki2018", "digits/baseline", "digits/large_batch"} <= set(rows)
    assert set(rows["goyal2017"]) == {"name", "title", "dataset", "model", "epochs", "global_batch_size", "source"}
    values = {"dataset": "imagenet", "model": "ResNet50", "epochs": 90.0, "global_batch_size": 2048}
    assert rows["suzuki2018"].items() >= values.items()
    assert rows["goyal2017"]["source"]["year"] == 2017


def test_list_goes_on_after_a_recipe_that_is_wrong(run, tmp_path):
    (tmp_path / "configs" / "recipes").mkdir(parents=True)
    (tmp_path / "configs" / "recipes" / "mine.yaml").write_text(MINE + "epocs: 3\n")
    code, out, problems = run("recipes", "list")
    assert (code, len(problems)) == (0, 1)
    assert problems[0].startswith("configs/recipes/mine.yaml:4:1: epocs: ")
    assert "goyal2017" in out


def test_every_listed_name_validates(run):
    rows = json.loads(run("recipes", "list", "--json")[1])
    code, out, _ = run("recipes", "validate", *(row["name"] for row in rows))
    assert (code, len(out.splitlines())) == (0, len(rows))
    assert "digits/baseline: valid\n" in out


def test_a_valid_recipe_names_what_is_not_built(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE + "lacks: [DecoupledShampoo]\noptimizer: {kind: DecoupledShampoo}\n")
    out = run("recipes", "validate", "mine.yaml")[1]
    assert out == "mine.yaml: valid; cannot be trained yet, not built: DecoupledShampoo\n"


def test_validate_shows_the_problems_of_all_files(run, tmp_path):
    (tmp_path / "a.yaml").write_text(MINE + "epocs: 3\n")
    (tmp_path / "b.yaml").write_text(MINE + "seed: x\n")
    code, out, problems = run("recipes", "validate", "a.yaml", "goyal2017", "b.yaml")
    assert code == 2
    assert out.startswith("goyal2017: valid")
    assert [problem.split(": ")[0] for problem in problems] == ["a.yaml:4:1", "b.yaml:4:7"]


def test_validate_looks_whether_initial_weights_and_patterns_fit_the_model(run, tmp_path):
    (tmp_path / "w.onnx").write_bytes(b"of another format")
    save_file({"/fc/b": np.zeros(3, np.float32)}, tmp_path / "w.safetensors")
    patterns = "learning_rate: {factors: [{parameters: [/fc/*, /head/*], factor: 0}]}\n"
    (tmp_path / "a.yaml").write_text(MINE + "init: {weights: w.onnx}\n" + patterns)
    (tmp_path / "b.yaml").write_text(MINE + "init: {weights: w.safetensors, except: [head]}\n")
    code, out, problems = run("recipes", "validate", "a.yaml", "b.yaml")
    assert (code, out) == (2, "")
    assert [" ".join(problem.split()[:2]) for problem in problems] == [
        "a.yaml:4:17: init.weights:",
        "a.yaml:5:40: learning_rate.factors.0.parameters:",
        "b.yaml:4:40: init.except:",
    ]
    (tmp_path / "b.yaml").write_text(MINE + "init: {weights: w.safetensors}\n")
    assert "w.safetensors lacks /blocks/0/bn1/avg_mean, " in run("recipes", "validate", "b.yaml")[2][0]


SHARED = """\
import chainer
import chainer.links as L


class Shared(chainer.Chain):
    def __init__(self, num_classes):
        super().__init__()
        with self.init_scope():
            self.a = self.b = L.Linear(64, num_classes)

    def forward(self, x):
        return self.a(x)
"""


def test_validate_tries_a_model_of_ones_own_where_code_is_allowed_and_data_are_at_hand(run, tmp_path):
    (tmp_path / "mine_shared.py").write_text(SHARED)
    (tmp_path / "mine.yaml").write_text(MINE + "model: {kind: mine_shared.Shared}\n")
    code, _, problems = run("recipes", "validate", "mine.yaml", "--allow-code")
    assert (code, len(problems)) == (2, 1)
    assert problems[0].startswith(
        "mine.yaml:1:1: the model, Shared, cannot be trained: /b/W is also /a/W, and would be"
    )


@pytest.mark.parametrize(("page", "count"), [("README.md", 1), ("docs/write-a-recipe.md", 3)])
def test_the_recipes_of_the_first_pages_are_valid_and_clean_as_printed(run, tmp_path, page, count):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    blocks = [block for block in blocks if "kilobatch: 1" in block]
    assert len(blocks) == count
    for block in blocks:
        (tmp_path / "mine.yaml").write_text(block)
        assert run("recipes", "validate", "mine.yaml") == (0, "mine.yaml: valid\n", [])
        assert run("recipes", "lint", "mine.yaml") == (0, "mine.yaml: clean\n", [])


def test_validate_notes_what_another_kind_leaves_behind(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "kilobatch: 1\nextends: goyal2017\noptimizer: {kind: MomentumSGD, momentum: 0.8}\n"
    )
    note = "optimizer: another kind replaces the whole mapping; not taken over: weight_decay, no_decay"
    assert run("recipes", "validate", "mine.yaml")[1] == f"mine.yaml: valid\n  note: {note}\n"


def test_every_command_warns_of_what_another_kind_on_the_command_line_leaves_behind(run):
    note = "optimizer: another kind replaces the whole mapping; not taken over: weight_decay, no_decay"
    kind = ("--set", "optimizer.kind=NesterovAG", "--set", "optimizer.momentum=0.9")
    kind += ("--set", "learning_rate.schedule=null")  # leaves nothing behind
    code, out, lines = run("recipes", "validate", "digits/baseline", *kind)
    assert (code, out) == (0, "digits/baseline: valid\n")
    assert [line for line in lines if note in line] == lines
    assert len(lines) == 1
    whole = (*kind, "--set", "optimizer.weight_decay=1e-4", "--set", "optimizer.no_decay=[norm]")
    assert run("recipes", "show", "digits/baseline", *whole)[2] == []


def test_show_prints_every_value_with_its_origin(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    out = run("recipes", "show", "mine.yaml", "--set", "seed=7")[1]
    line_of = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert line_of["title"].endswith("# mine.yaml:3")
    assert line_of["seed"].split() == ["seed:", "7", "#", "command", "line"]
    assert line_of["name"].endswith("# rule: the name of the file")
    assert line_of["updater"].endswith("# default")
    assert "recipes/papers/digits/baseline.yaml:" in line_of["dataset"]


def test_what_show_prints_is_a_recipe(run, tmp_path):
    before = json.loads(run("recipes", "show", "digits/ramp", "--json")[1])
    (tmp_path / "again.yaml").write_text(run("recipes", "show", "digits/ramp")[1])
    after = json.loads(run("recipes", "show", "again.yaml", "--json")[1])
    assert after["recipe"] == before["recipe"]
    assert set(after["origins"]) == set(before["origins"])


def test_the_next_command_quotes_a_path_with_spaces(run, tmp_path):
    copied = run("recipes", "copy", "digits/baseline", "my own.yaml")[1]
    assert "kilobatch recipes validate 'my own.yaml'" in copied
    (tmp_path / "a b").mkdir()
    scaled = run("recipes", "scale", "digits/baseline", "--batch", "64", "-o", "a b/large.yaml")[1]
    assert "kilobatch recipes lint 'a b/large.yaml'" in scaled


def test_an_option_that_would_change_nothing_is_refused(run):
    code, _, said = run("recipes", "scale", "digits/baseline", "--batch", "64", "--seesaw", "--beyond")
    assert code == 2
    words = " ".join(" ".join(said).replace("│", " ").split())
    assert "--seesaw lets no rate grow, so it has no limit: leave --beyond out" in words


def test_a_copy_names_its_original_and_keeps_its_source_and_never_overwrites(run, tmp_path):
    assert run("recipes", "copy", "goyal2017")[0] == 0
    first, rest = (tmp_path / "goyal2017.yaml").read_bytes().split(b"\n", 1)
    assert first.startswith(b"# A copy of goyal2017, kilobatch ")
    assert rest == (ROOT / "recipes/papers/goyal2017.yaml").read_bytes()
    assert run("recipes", "validate", "goyal2017.yaml")[0] == 0
    assert run("recipes", "copy", "goyal2017/1024", "inherits.yaml")[0] == 0
    shows = (run("recipes", "show", name, "--json")[1] for name in ("goyal2017/1024", "inherits.yaml"))
    original, copy = (json.loads(shown)["recipe"]["source"] for shown in shows)
    assert copy == original
    assert copy["year"] == 2017
    (tmp_path / "goyal2017.yaml").write_text(MINE)
    code, _, problems = run("recipes", "copy", "goyal2017")
    assert (code, len(problems)) == (2, 1)
    assert problems[0].startswith("goyal2017.yaml:1:1: exists")
    assert (tmp_path / "goyal2017.yaml").read_text() == MINE
    assert run("recipes", "copy", "digits/ramp", "steps.yaml")[0] == 0
    assert run("recipes", "copy", "digits/ramp", "no/such/folder.yaml")[0] == 2
    code, _, problems = run("recipes", "copy", "digits/ramp", "steps.txt")
    assert (code, problems) == (2, ["steps.txt:1:1: the path of a recipe ends in .yaml; call it steps.yaml"])
    assert not (tmp_path / "steps.txt").exists()


def test_json_has_no_number_that_json_does_not_know(capsys):
    print_json({"losses": (math.inf, math.nan, 1.5), "runs": [{"seed": 2}]})
    tree = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert tree == {"losses": [None, None, 1.5], "runs": [{"seed": 2}]}


def test_curve_at_epochs(run):
    points = json.loads(run("recipes", "curve", "suzuki2018", "--at", "0,2.5,5,30,90", "--json")[1])
    assert [set(point) for point in points] == [
        {"epoch", "update", "samples", "global_batch_size", "learning_rate", "momentum"}
    ] * 5
    at_2_5 = 0.1 + 0.7 * 1564 * 2048 / 5 / 1_281_167  # where update 1564 starts, just after
    assert [point["learning_rate"] for point in points] == pytest.approx([0.1, at_2_5, 0.8, 0.16, 0.0016])
    assert [point["global_batch_size"] for point in points] == [2048, 2048, 2048, 4096, 4096]
    assert {point["momentum"] for point in points} == {0.9}
    # 30 * 1,281,167 / 2048 = 18,767.1: the first update that starts at or after epoch 30 is 18,768.
    assert [point["update"] for point in points] == [0, 1564, 3128, 18768, None]
    assert [point["samples"] for point in points[:4]] == [update * 2048 for update in (0, 1564, 3128, 18768)]


def test_curve_takes_positions_with_units(run):
    points = json.loads(run("recipes", "curve", "goyal2017", "--at", "500up, 0.5run, 1.281167Msp", "--json")[1])
    assert [point["update"] for point in points][0] == 500
    assert [point["epoch"] for point in points][1:] == [45.0, 1.0]


def test_curve_without_epochs_is_a_picture_or_every_epoch(run):
    _, out, _ = run("recipes", "curve", "goyal2017")
    assert "learning rate" in out
    assert any("\u2801" <= character <= "\u28ff" for character in out)
    points = json.loads(run("recipes", "curve", "goyal2017", "--json")[1])
    assert [point["epoch"] for point in points] == [float(epoch) for epoch in range(91)]


@pytest.mark.parametrize(("name", "magic"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_curve_draws_into_a_file(run, tmp_path, name, magic):
    assert run("recipes", "curve", "goyal2017", "-o", name)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.parametrize("arguments", [("-o", "c.gif"), ("-o", "no/folder/c.png")])
def test_curve_refuses_a_file_it_cannot_write(run, arguments):
    assert run("recipes", "curve", "goyal2017", *arguments)[0] == 2


@pytest.mark.parametrize(
    ("at", "column"), [("0,x", 3), ("91", 1), ("-1", 1), ("nan", 1), ("0,,1", 3), ("1,5parsec", 3)]
)
def test_curve_refuses_what_is_no_position_of_the_run(run, at, column):
    code, _, problems = run("recipes", "curve", "goyal2017", f"--at={at}")
    assert (code, len(problems)) == (2, 1)
    assert problems[0].startswith(f"command line:1:{column}: --at: ")
    assert ("lies before the start" in problems[0]) == (at == "-1")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (MINE + "epocs: 3\n", "4:1: epocs: "),
        (MINE + "batch: {global: 0}\n", "4:17: batch.global: "),
        (MINE + "\tseed: 1\n", "4:1: "),
        (MINE + "loss: !!python/object/apply:os.system [touch pwned]\n", "4:7: "),
        (MINE.replace("digits/large_batch", "./mine.yaml"), "2:10: extends: "),
    ],
    ids=["key", "batch", "tab", "tag", "circle"],
)
def test_wrong_recipe_is_refused_in_one_line(tmp_path, run, text, place):
    (tmp_path / "mine.yaml").write_text(text)
    code, shown, (problem,) = run("recipes", "validate", "mine.yaml")
    assert (code, shown) == (2, "")
    assert problem.startswith(f"mine.yaml:{place}")
    assert "; " in problem
    assert not (tmp_path / "pwned").exists()


def test_a_file_that_grows_without_end_ends_with_2_and_one_line(tmp_path):
    (tmp_path / "mine.yaml").write_text(LAUGHS)

    def limited():
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # seconds, for what would take years

    done = command("recipes", "validate", "mine.yaml", cwd=tmp_path, preexec_fn=limited)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mine.yaml:")


def test_wrong_recipe_starts_no_rank(tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE + "batch: {global: 0}\n")
    done = command("train", "mine.yaml", "-n", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("mine.yaml:4:17: batch.global: is 0; ")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml"]


@pytest.mark.parametrize(
    ("words", "option"),  # without a buffer and with one
    [("recipes list", "-u"), ("recipes list", "-B"), ("plan digits/baseline", "-B"), ("--version", "-u")],
)
def test_output_that_has_no_room_ends_with_3_and_one_line(tmp_path, words, option):
    with open("/dev/full", "w") as full:
        done = command(*words.split(), cwd=tmp_path, python=[option], stdout=full)
    (message,) = done.stderr.splitlines()
    assert message.startswith("kilobatch: what this command prints cannot be written: No space left on device; ")
    assert done.returncode == 3


def test_a_working_directory_that_was_removed_ends_with_2_and_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        os.getcwd()
    with pytest.raises(SystemExit, match="^2$"):
        exit_on_error(raised.value)
    assert capsys.readouterr().err == (
        "kilobatch: the working directory was removed; change into another one with cd\n"
    )


def test_a_reader_who_leaves_gets_no_message(tmp_path):
    line = [sys.executable, str(ROOT / "kilobatch.py"), "recipes", "list"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("validate", "`kilobatch recipes validate`"),
        ("list", "`kilobatch recipes list` or `kilobatch registry list` or `kilobatch runs list`"),
    ],
)
def test_a_command_that_is_typed_without_its_group_is_named_with_it(run, word, meant):
    code, _, errors = run(word, "digits/ramp")
    assert (code, errors[-1]) == (2, f"Error: No such command '{word}'. Did you mean {meant}?")


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("train", "digits/ramp", "--epochs", "5"), "`--set epochs=5`"),
        (("plan", "--batch-size=64", "digits/ramp"), "`--set batch.global=64`"),
        (("recipes", "lint", "digits/ramp", "--wd"), "`--set optimizer.weight_decay=...`"),
        (("frontier", "digits", "--epochs", "5"), ""),  # whose --set is for its own file
    ],
)
def test_an_option_that_is_a_value_of_the_recipe_is_answered_with_its_set(run, words, setting):
    code, _, errors = run(*words)
    assert (code, errors[-1].partition("It is a value of the recipe: ")[2]) == (2, setting)


def test_unknown_command_and_missing_argument_end_with_2(tmp_path):
    assert command("recipes", "curv", cwd=tmp_path).returncode == 2
    assert command("recipes", "show", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("index", ["-1", "x", "3", "\u00b2"])
def test_what_is_no_index_of_a_list_is_refused(run, index):
    code, _, problems = run("recipes", "show", "digits/baseline", "--set", f"model.blocks.{index}=2")
    assert (code, len(problems)) == (2, 1)
    assert f"{index} is no place in a list of 3" in problems[0]


@pytest.mark.mpi
def test_rank_0_of_a_launcher_is_no_rank_where_the_others_have_no_work(tmp_path, kilobatch):
    """In MPI it would wait for them."""
    words = ("train", "digits/baseline", "--stop-after", "1up", "--no-report", "--out", tmp_path / "run")
    assert kilobatch(*words, ranks=1).returncode == 0
    command = [mpi_ranks.find_mpiexec(), "-n", "2", sys.executable, "-P", "-m", "kilobatch", "evaluate"]
    done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1


@pytest.mark.parametrize("words", [["recipes", "path"], ["verify", "digits/ramp"], ["report", "nowhere"], []])
def test_of_the_ranks_of_a_launcher_only_rank_0_does_the_work_of_one_process(monkeypatch, capfd, words):
    monkeypatch.setattr(sys, "argv", ["kilobatch", *words])
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    command_line.main()
    assert capfd.readouterr() == ("", "")
    assert command_line._has_work("train")
