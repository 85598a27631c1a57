"""A small valid recipe that tests change, its opening, and `kilobatch recipes` as a user types it."""

import pytest
from typer.testing import CliRunner

import kilobatch
import trainers.compat  # noqa: F401
from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

# Each key on a line of its own, so that tests can say which line is wrong.
VALID = """\
kilobatch: 1
name: mine
dataset: digits
model: {kind: SmallResNet}
epochs: 20
batch: {global: 96}
learning_rate: {reference: 0.05, per: 32}
optimizer: {kind: MomentumSGD, momentum: 0.9}
loss: {kind: SoftmaxCrossEntropy}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into an empty working directory: `write(text)`, `write(text, name)` or `write(line_3="seed: 1")`."""
    monkeypatch.chdir(tmp_path)

    def written(text=None, name="mine.yaml", **lines):
        if text is None:
            rows = [*VALID.splitlines(), ""]
            for key, line in lines.items():
                rows[int(key.removeprefix("line_")) - 1] = line
            text = "\n".join(rows).rstrip("\n") + "\n"
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


@pytest.fixture
def opened(write):
    """Opens the valid recipe with some lines changed and with overrides."""

    def open_changed(*overrides, **lines):
        return open_recipe(write(**lines), vocabulary=vocabulary(), overrides=overrides)

    return open_changed


@pytest.fixture
def problem_of():
    """The one problem of a recipe, which is one line."""

    def only_problem(path, *overrides):
        with pytest.raises(RecipeError) as caught:
            open_recipe(path, vocabulary=vocabulary(), overrides=overrides)
        assert len(caught.value.problems) == 1, str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        return caught.value.problems[0]

    return only_problem


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `kilobatch recipes ...` in an empty folder: (exit code, what is printed, or the refusal)."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        result = CliRunner().invoke(kilobatch.app, ["recipes", *map(str, arguments)])
        if isinstance(result.exception, InputRefused):
            assert result.stdout == ""
            return 2, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return run_command
