"""What house style asks of names, files and docstrings, as far as a program can see it."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from recipes.schema import Recipe

ROOT = Path(__file__).parent.parent
PACKAGES = ("lr_schedules", "recipes", "trainers")
NAMELESS = {"base", "common", "factory", "helpers", "manager", "misc", "utils"}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")) + [ROOT / "kilobatch.py"]
FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "scripts").iterdir())


def name_of(path):
    return str(path.relative_to(ROOT))


def test_sources_were_found():
    assert len(SOURCES) > 40
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {*PACKAGES, "kilobatch.py"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_has_a_name_that_says_nothing(path):
    assert not NAMELESS & set(path.stem.removeprefix("test_").split("_"))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_functions_and_classes_have_a_docstring(path):
    tree = ast.parse(path.read_text())
    public = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    assert ast.get_docstring(tree) or not tree.body


def test_no_assertion_does_anything_but_look():
    """`python -O` leaves assertions out."""
    changing = re.compile(r"^ *assert .*\.(add|append|clear|extend|next|pop|remove|update)\(", re.MULTILINE)
    assert [name_of(path) for path in SOURCES if changing.search(path.read_text())] == []


def test_tests_are_no_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "DECISIONS.md"])
def test_files_named_in_the_documents_exist(document):
    quoted = re.findall(r"`([\w./]+/[\w./]+)`", (ROOT / document).read_text())
    assert len(quoted) > 4
    assert [path for path in quoted if not (ROOT / path).exists() and path != ".venv/installed"] == []


def test_each_word_of_a_recipe_leads_to_a_file():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ") and ".py`" in line]
    words, files = (set(re.findall(r"`([\w.]+(?:/[\w./]+)?)`", " ".join(column))) for column in zip(*rows, strict=True))
    assert [file for file in files if "/" in file and not (ROOT / file).is_file()] == []
    by_kind = {"model", "loss", "optimizer", "extensions"}
    assert {field.name for field in fields(Recipe)} - {word.partition(".")[0] for word in words} <= by_kind


def test_decisions_are_listed_in_their_section():
    index, text = {}, (ROOT / "DECISIONS.md").read_text()
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for title, numbers in re.findall(r"^\| \[(.*)\]\(.*\) \| ([\d, ]+) \|$", head, re.MULTILINE):
        index[title] = {*numbers.split(", ")}
    found = {own.partition("\n")[0]: {*re.findall(r"^(?:### |- )(\d+)\.", own, re.MULTILINE)} for own in sections}
    assert index == found


def test_lock_names_no_package_index():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert lock.count("--hash=sha256:") > 500


SENDING = {"allgather", "Allgather", "Iallgather", "allreduce", "Allreduce", "bcast", "Bcast", "gather", "Gather"}
SENDING |= {"Send", "Isend", "sendrecv", "shift", "allReduce"}


@pytest.mark.parametrize("path", [path for path in SOURCES if "trainers" in path.parts], ids=name_of)
def test_whoever_sends_by_mpi_says_how_much(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            parts = list(ast.walk(node))
            called = {part.func.attr for part in parts if isinstance(part, ast.Call) and hasattr(part.func, "attr")}
            docs = [ast.get_docstring(part) or "" for part in parts if isinstance(part, ast.FunctionDef | ast.ClassDef)]
            assert not called & SENDING or "wire" in " ".join(docs), f"{node.name}: bytes on the wire"
