"""`kilobatch recipes diff` as a user types it."""

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import RecipeError


@pytest.fixture
def diff(tmp_path, monkeypatch):
    """Compares in an empty folder: (exit code, what is printed or the problems)."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        result = CliRunner().invoke(kilobatch.app, ["recipes", "diff", *map(str, arguments)])
        if isinstance(result.exception, RecipeError):
            assert result.stdout == ""
            return 2, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return run_command
