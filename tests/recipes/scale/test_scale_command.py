"""`kilobatch recipes scale`, as a user types it."""

import json
from pathlib import Path

import pytest


def test_every_key_has_a_reason_and_the_end_lists_what_is_not_promised(run):
    code, out = run("scale", "goyal2017/256", "--batch", "8k")
    assert code == 0
    assert out.startswith("goyal2017-256: batch 256 -> 8,192 (k = 32), full rate 0.1 -> 3.2\n")
    assert "batch.global                  256 -> 8192\n" in out
    assert "optimizer.momentum            0.9, unchanged\n" in out
    assert "k times the batch, k times the rate: the full rate moves from 0.1 to 3.2 [" in out
    assert "] Goyal et al. 2017, arXiv 1706.02677, linear scaling rule\n" in out
    assert out.index("Not promised:\n- accuracy") > out.index("optimizer.weight_decay")
    assert out.endswith("wrote goyal2017-256-8192.yaml; look at it: kilobatch recipes lint goyal2017-256-8192.yaml\n")
    assert run("validate", "goyal2017-256-8192.yaml")[0] == 0
    assert run("lint", "goyal2017-256-8192.yaml")[0] == 0


def test_json_has_what_programs_read(run):
    code, out = run("scale", "digits/baseline", "--batch", "0.5k", "-o", "mine.yaml", "--json")
    made = json.loads(out)
    assert code == 0
    assert set(made) == {"recipe", "global_batch_size", "full_rate", "file", "changes", "not_promised"}
    assert (made["file"], made["global_batch_size"]) == ("mine.yaml", [32, 512])
    assert made["full_rate"] == pytest.approx([0.05, 0.8])
    assert {"key", "before", "after", "reason", "source", "written", "moves"} == set(made["changes"][0])
    assert [change["key"] for change in made["changes"] if change["moves"]] == ["batch.global", "learning_rate.warmup"]


def test_beyond_is_asked_for(run):
    assert run("scale", "goyal2017", "--batch", "16k")[0] == 2
    code, out = run("scale", "goyal2017", "--batch", "16k", "--beyond")
    assert code == 0
    assert "24.79 % at 16,384" in " ".join(out.split())
    assert run("lint", "goyal2017-16384.yaml")[0] == 5


def test_wrong_input_ends_with_2(run):
    assert run("scale", "goyal2017", "--batch", "many") == (
        2,
        "--batch many is no batch; write 8192, or 8k for 8 * 1,024 samples",
    )
    assert run("scale", "nobody2017", "--batch", "8k")[0] == 2
    assert run("scale", "goyal2017")[0] == 2


def test_page_on_scaling_shows_what_is_printed(run):
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text()
    example = page.split("```")[1].strip().splitlines()
    out = run(*example[0].removeprefix("$ kilobatch recipes ").split())[1].splitlines()
    assert [line for line in example[1:] if line != "..." and line not in out] == []


def test_a_recipe_with_code_of_ones_own_is_scaled_where_that_is_allowed(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "net_to_scale.py").write_text("from trainers.models import SmallCNN as Net\n")
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\nmodel: {kind: net_to_scale.Net}\n")
    words = ("scale", "mine.yaml", "--batch", "64", "-o", "large.yaml")
    code, message = run(*words)
    assert (code, "pass --allow-code to run it" in message) == (2, True)
    code, out = run(*words, "--allow-code")
    assert code == 0
    assert out.endswith("kilobatch recipes lint large.yaml --allow-code\n")
    assert (tmp_path / "large.yaml").exists()
