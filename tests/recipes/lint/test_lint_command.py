"""`kilobatch recipes lint`, as a user types it."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import RecipeError
from recipes.lint import entries, handbook

BEYOND = "kilobatch: 1\nextends: goyal2017\nbatch: {global: 16384}\n"


@pytest.fixture
def run(run, tmp_path):
    """Runs `recipes lint` in a folder with a recipe that breaks a rule: (exit code, what is printed)."""
    (tmp_path / "mine.yaml").write_text(BEYOND)
    return partial(run, "lint")


def test_clean_recipe_ends_with_0_and_a_finding_with_5(run):
    assert run("goyal2017") == (0, "goyal2017: clean\n")
    code, out = run("goyal2017", "mine.yaml")
    assert code == 5
    assert out.startswith("mine.yaml:3:9: linear-beyond-8k: batch.global: ")
    assert out.endswith("goyal2017: clean\nmine.yaml: 1 finding\n")


def test_reason_of_a_rule_is_printed_once(run, tmp_path):
    (tmp_path / "other.yaml").write_text(BEYOND)
    out = run("mine.yaml", "other.yaml")[1]
    assert out.count("linear-beyond-8k") == 2
    assert out.count("    source: ") == out.count("    why: ") == 1


def test_json_has_what_programs_read(run):
    code, out = run("mine.yaml", "goyal2017", "--json")
    findings = json.loads(out)
    assert (code, findings["goyal2017"]) == (5, [])
    (finding,) = findings["mine.yaml"]
    assert set(finding) == {"file", "line", "column", "rule", "path", "what", "way_out", "why", "source"}
    assert (finding["rule"], finding["line"], finding["column"]) == ("linear-beyond-8k", 3, 9)


def test_cluster_and_workers_ask_for_one_more_rule(run):
    wide = "--set=batch.norm_span=256"
    assert run("goyal2017", wide)[0] == 0
    assert "span-over-share" in run("goyal2017", wide, "--cluster", "mn1")[1]
    assert run("goyal2017", wide, "-n", "32")[0] == 0


def test_rules_are_listed(run):
    code, out = run("--rules")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(entries())
    assert [entry["rule"] for entry in json.loads(run("--rules", "--json")[1])] == list(entries())
    assert run("--rules", "--markdown")[1] == handbook()


def test_a_wrong_recipe_hides_no_finding_in_the_others(run, tmp_path):
    (tmp_path / "wrong.yaml").write_text(BEYOND + "epocs: 3\n")
    names = ["wrong.yaml", "goyal2017", "mine.yaml", "nobody2017"]
    result = CliRunner().invoke(kilobatch.app, ["recipes", "lint", *names])
    assert "linear-beyond-8k" in result.stdout
    assert result.stdout.endswith("goyal2017: clean\nmine.yaml: 1 finding\n")
    assert isinstance(result.exception, RecipeError)  # which ends with 2
    unknown, wrong = result.exception.problems  # by name
    assert str(wrong).startswith("wrong.yaml:4:1: epocs: is not a known key")
    assert "nobody2017" in str(unknown)


def test_wrong_input_ends_with_2(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(BEYOND + "epocs: 3\n")
    code, out = run("mine.yaml")
    assert code == 2
    assert out.startswith("mine.yaml:4:1: epocs: is not a known key")
    assert run("nobody2017")[0] == 2
    assert run()[0] == 2
