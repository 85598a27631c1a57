"""What `kilobatch recipes diff` prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MINE = "kilobatch: 1\nextends: goyal2017\n"


@pytest.mark.parametrize(
    "names",
    [
        ("goyal2017", "goyal2017/256"),
        ("akiba2017", "suzuki2018/10gbe_double_buffering"),
        ("digits/baseline", "digits/large_batch", "digits/ramp"),
        ("torchvision2021", "ffcv2022", "wightman2021", "you2019", "mlperf/lars_67840"),
    ],
)
def test_no_line_is_wider_than_80_columns_or_ends_in_blanks(diff, names):
    code, out = diff(*names, "--all")
    assert code == 1
    assert max(map(len, out.splitlines())) <= 80
    assert [line for line in out.splitlines() if line != line.rstrip()] == []


def test_an_origin_that_has_room_is_in_one_line_and_a_longer_one_ends_at_a_slash(diff):
    out = diff("goyal2017", "nvidia/resnet50_90ep")[1]
    assert "  nvidia/resnet50_90ep.yaml:12\n" in out
    Path("a-folder-of-ours").mkdir()
    Path("a-folder-of-ours/large_batch_2.yaml").write_text(MINE + "seed: 3\n")
    lines = diff("goyal2017", "a-folder-of-ours/large_batch_2.yaml")[1].splitlines()
    index = next(number for number, line in enumerate(lines) if line.endswith("a-folder-of-ours/"))
    assert lines[index].split() == ["B", "3", "a-folder-of-ours/"]
    assert lines[index + 1].split() == ["large_batch_2.yaml:3"]


def test_more_recipes_than_letters_are_numbered(diff):
    out = diff(*["digits/baseline"] * 26, "digits/large_batch")[1]
    assert "\n27  digits/large_batch: " in out
    assert "  27  512 " in out


def test_the_passage_in_the_docs_is_what_is_printed(diff, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = (ROOT / "docs" / "diff.md").read_text().split("```")[1].removeprefix("\n")
    command, _, expected = shown.partition("\n")
    assert command == "$ kilobatch recipes diff akiba2017 suzuki2018"
    assert expected == diff(*command.split()[4:])[1]


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ("seed: 3", "1 value differs; every update has the same rate and batch."),
        ("epochs: 80.5", "1 value differs, which changes the schedule of rate and batch."),
        ("seed: 3\nepochs: 80.5", "2 values differ, of which 1 changes the schedule of rate and batch."),
        (
            "learning_rate: {reference: 0.2, per: 512, warmup: {start: {rate: 0.1}}}",
            "3 values differ, all of which belong to the schedule of rate and batch; every update has the "
            "same rate and batch.",
        ),
        (
            "batch: {global: 32}\nepochs: 1000\nlearning_rate: {rule: none, warmup: null, every: 2}",
            "all of which change the schedule of rate and batch.",
        ),
        ("title: another", "The same training: every value that training reads is equal."),
    ],
)
def test_the_verdict(diff, changed, verdict):
    Path("mine.yaml").write_text(MINE + changed + "\n")
    code, out = diff("goyal2017", "mine.yaml")
    assert code == int(not verdict.startswith("The same"))
    assert verdict in " ".join(out.split())


def test_words_are_listed_by_name_and_with_all_in_full(diff):
    Path("mine.yaml").write_text(MINE + "title: another\n")
    out = diff("goyal2017", "mine.yaml")[1]
    assert "which no training reads: name, title, source, claims, card (--all shows them)." in " ".join(out.split())
    assert "\ntitle " not in out
    out = diff("goyal2017", "mine.yaml", "--all")[1]
    assert "\ntitle " in out
    assert "Names and words" not in out


def test_a_pipe_gets_plain_text_and_the_exit_code_is_that_of_diff(tmp_path):
    def printed(*names):
        line = [sys.executable, str(ROOT / "kilobatch.py"), "recipes", "diff", *names]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert printed("digits/baseline", "digits/baseline").returncode == 0
    done = printed("digits/baseline", "digits/large_batch")
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert "?" not in done.stdout
    assert printed("digits/baseline", "digits/bseline").returncode == 2
