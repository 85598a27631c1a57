"""What house style asks of names, files and docstrings, as far as a program can see it."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lr_schedules", "recipes", "trainers")
NAMELESS = {"base", "common", "factory", "helpers", "manager", "misc", "utils"}
LONGER_THAN_300_LINES: set[str] = set()

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")) + [ROOT / "kilobatch.py"]
FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "scripts").iterdir())


def name_of(path):
    return str(path.relative_to(ROOT))


def test_sources_were_found():
    assert len(SOURCES) > 40
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {*PACKAGES, "kilobatch.py"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_says_in_its_name_what_lives_there(path):
    assert not NAMELESS & set(path.stem.removeprefix("test_").split("_"))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_has_at_most_300_lines(path):
    if path.is_file():
        num_lines = len(path.read_text().splitlines())
        assert (num_lines > 300) == (name_of(path) in LONGER_THAN_300_LINES), f"{num_lines} lines: look for a seam"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_functions_and_classes_have_a_docstring(path):
    tree = ast.parse(path.read_text())
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_public_name_is_the_name_of_its_module(path):
    names = {getattr(node, "name", None) for node in ast.parse(path.read_text()).body}
    assert path.stem not in names


def test_tests_are_no_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_committed_file_names_a_package_index():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lock = (ROOT / "requirements.lock").read_text()
    assert "requirements.lock" in tracked
    assert "://" not in lock
    assert lock.count("--hash=sha256:") > 500
