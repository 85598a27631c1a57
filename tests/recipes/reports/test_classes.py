import json
import os

import pytest
from PIL import Image

from recipes.reports.classes import classes, read_scored
from recipes.reports.record import open_run

COUNTS = [[0, 0, 8], [0, 1, 2], [1, 1, 5]]


@pytest.fixture
def scored_run(write_run):
    """Writes a run with an evaluation."""

    def write(**changes):
        folder = write_run()
        (folder / "evaluation").mkdir()
        worst = [{"sample": 3, "label": 0, "taken_for": 1, "loss": 2.5}]
        tree = {"update": 54, "epoch": 12, "split": "run", "classes": ["cat", "<b>dog"], "counts": COUNTS}
        (folder / "evaluation" / "classes.json").write_text(json.dumps({**tree, "worst": worst, **changes}))
        Image.new("L", (8, 8)).save(folder / "evaluation" / "worst-00.png")
        return open_run(folder)

    return write


def test_matrix_scores_and_pictures_are_shown(scored_run):
    page = classes(scored_run())
    assert "&lt;b&gt;dog" in page
    assert "<b>dog" not in page
    row = page[page.index('<th scope="row">cat') :]
    assert [cell.partition("<")[0] for cell in row.split('%, transparent)">')[1:3]] == ["8", "2"]
    table = page[page.index("<summary>Scores by class") :]
    assert table.index("80.00&nbsp;%") < table.index("100.00&nbsp;%") < table.index("71.43&nbsp;%")  # 5 of 7 named dog
    assert page.count('<img src="data:image/png;base64,iVBOR') == 1
    assert "loss 2.5" in page


def test_of_many_classes_the_most_frequent_mistakes_are_shown(scored_run):
    page = classes(scored_run(counts=[*COUNTS, [0, 99, 3]]))
    assert "confusion" not in page
    mistakes = page[page.index("Most frequent mistakes") :]
    assert mistakes.index("<td>99</td>") < mistakes.index("&lt;b&gt;dog")


@pytest.mark.parametrize(
    "changes",
    [{"counts": [[0, 10**9, 1]]}, {"counts": [["a", 0, 1]]}, {"counts": [[-1, 0, 1]]}, {"counts": []},
     {"worst": [{}]}, {"worst": 3}, {"update": 10**400}, {"classes": None}],
)  # fmt: skip
def test_what_another_program_wrote_is_left_out(scored_run, changes):
    assert classes(scored_run(**changes)) == ""


def test_numbers_that_no_class_has_are_shown_as_they_are(scored_run):
    wrong = {"sample": 3, "label": -9, "taken_for": 2**62, "loss": 1e308}
    assert f"-9, taken for {2**62}; loss 1e+308" in classes(scored_run(worst=[wrong]))


def test_a_run_without_an_evaluation_has_no_classes(write_run):
    assert read_scored(write_run()) is None


def test_a_named_pipe_in_the_place_of_the_evaluation_is_not_waited_for(scored_run):
    run = scored_run()
    (run.folder / "evaluation" / "classes.json").unlink()
    os.mkfifo(run.folder / "evaluation" / "classes.json")
    assert read_scored(run.folder) is None
