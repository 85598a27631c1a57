"""What a report says of the loss scale."""

import pytest

from recipes.reports.noise import loss_scale
from recipes.reports.page import page_text
from recipes.reports.record import open_run


@pytest.fixture
def mixed_run(write_run, metric_lines):
    """Makes a run in mixed precision; `overflows` are attempts that overflowed, by update."""

    def make(overflows):
        lines, scale = metric_lines(), 65536.0
        for line in lines:
            if line["key"] == "train_loss":
                again = overflows.get(line["update"], 0)
                scale /= 2.0**again
                line |= {"loss_scale": scale, "overflows": again}
        return open_run(write_run(lines=lines))

    return make


def test_updates_done_again_are_counted_and_named(mixed_run):
    run = mixed_run({3: 2, 40: 1})
    words = loss_scale(run)
    assert "began at 65,536 and ended at 8,192, the smallest being 8,192 and the largest 65,536" in words
    assert "2 of 54 updates overflowed in float16 and were done again at a smaller scale, 3 times in all" in words
    assert "the first was update 3, the last update 40" in words
    assert words in page_text([run])


def test_a_run_without_overflow_says_so_and_one_in_float32_nothing(mixed_run, write_run):
    assert "No update overflowed." in loss_scale(mixed_run({}))
    assert loss_scale(open_run(write_run("other"))) == ""
