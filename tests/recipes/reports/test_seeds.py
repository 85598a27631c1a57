import statistics

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.reports.charts import charts
from recipes.reports.page import labels_of, page_text
from recipes.reports.record import open_run
from recipes.reports.seeds import group_id, groups, means, seeds_text


@pytest.fixture
def seeded(write_run, metric_lines):
    """Writes a run of a seed that ends at an accuracy, and with a metric `figure`."""

    def write(name, seed, accuracy, *, figure=0.5, stop="success", batch=64, environment=None, more=()):
        lines = metric_lines(stop=stop)
        last = [line for line in lines if line["key"] == "eval_accuracy"][-1]
        last["value"] = accuracy
        lines[-1:-1] = [{**last, "key": "eval_macro_f1", "value": figure}, *({**last, **line} for line in more)]
        recipe = {"seed": seed, "batch": {"global": batch, "norm_span": 24}}
        return open_run(write_run(name, lines=lines, recipe=recipe, environment=environment))

    return write


def test_a_group_has_mean_deviation_and_interval_over_its_seeds(seeded):
    """t(0.975, 2) is 4.302653."""
    runs = [seeded(f"a{seed}", seed, value) for seed, value in enumerate((0.80, 0.82, 0.87))]
    runs.insert(1, seeded("b0", 0, 0.5, batch=128))
    found = groups(runs, labels_of(runs))
    assert [(group.name, len(group.runs)) for group in found] == [("batch.global 64", 3), ("batch.global 128", 1)]
    accuracy, alone = (mean for mean in means(found) if mean.figure == "accuracy")
    half = 4.302653 * statistics.stdev([0.80, 0.82, 0.87]) / 3**0.5
    assert accuracy.interval == pytest.approx((0.83 - half, 0.83 + half), rel=1e-5)
    assert (accuracy.cells["mean"], accuracy.cells["deviation"]) == ("83.00 %", "3.61 points")
    assert (alone.cells["mean"], alone.cells["deviation"], alone.interval) == ("50.00 %", "–", None)


def test_runs_that_have_not_ended_and_repeated_seeds_are_named_and_not_averaged(seeded):
    runs = [seeded("a", 0, 0.8), seeded("b", 1, 0.9), seeded("c", 2, 0.1, stop="failed")]
    runs += [seeded("d", 3, 0.2, stop=None), seeded("e", 1, 0.3)]
    (group,) = groups(runs, "abcde")
    assert group.left_out == ("c: failed, asked to", "d: unfinished", "e: seed 1 again")
    first = means([group])[0].cells
    assert (first["runs"], first["mean"], first["group"]) == ("2 of 5", "85.00 %", "digits/large")


def test_a_group_whose_runs_have_all_failed_stands_in_the_table(seeded):
    runs = [seeded("a", 0, 0.8, stop="failed"), seeded("b", 1, 0.9, stop="failed")]
    assert [(row["runs"], row["mean"]) for row in (mean.cells for mean in means(groups(runs, "ab")))] == [
        ("0 of 2", "–")
    ]
    assert "not averaged: b: failed" in seeds_text(runs, "ab")


def test_a_figure_counts_the_runs_in_which_it_is_finite(seeded):
    runs = [seeded("a", 0, 0.8, figure=float("nan")), seeded("b", 1, 0.8, figure=0.25)]
    figures = {mean.figure: mean for mean in means(groups(runs, "ab"))}
    assert figures["macro_f1"].values == (0.25,)
    assert figures["accuracy"].interval is None, "two runs that end alike show no spread"
    huge = [seeded(name, seed, 0.8, figure=1.7e308) for seed, name in enumerate("cd")]
    assert "macro_f1" not in {mean.figure for mean in means(groups(huge, "cd"))}


def test_numbers_of_extensions_stand_beside_metrics_of_their_name(seeded):
    own = [{"key": "macro_f1", "value": 7.0}, {"key": "loss", "value": -1.0}, {"key": "sharpness", "value": 2.0}]
    made = means(groups([seeded(name, seed, 0.8, more=own) for seed, name in enumerate("ab")], "ab"))
    found = {mean.figure: mean.values[0] for mean in made}
    assert {
        "macro_f1": 0.5,
        "extension macro_f1": 7.0,
        "extension loss": -1.0,
        "sharpness": 2.0,
    }.items() <= found.items()
    assert found["loss"] > 0


def test_the_interval_of_a_loss_does_not_go_below_zero(seeded):
    losses = [[{"key": "eval_loss", "value": value}] for value in (0.1, 3.0)]
    made = means(groups([seeded(f"{seed}", seed, 0.8, more=more) for seed, more in enumerate(losses)], "ab"))
    loss = next(mean for mean in made if mean.figure == "loss")
    assert loss.interval == (0.0, pytest.approx(1.55 + 12.7062 * 1.45, rel=1e-4))


def test_the_terminal_has_forty_figures_and_each_key_on_one_line(seeded):
    own = [{"key": key, "value": 1.0} for key in ("", "two\nlines", *(f"k{at}" for at in range(300)))]
    printed = seeds_text([seeded(name, seed, 0.8, more=own) for seed, name in enumerate("ab")], "ab").split("\n")
    assert len(printed) == 1 + 40 + 1, "heads, figures, and how many more"
    assert printed[-1] == "and 265 more in the page", "accuracy, loss and a metric come first"
    assert [line.split("  ")[0] for line in printed[4:6]] == ['""', "two\\nlines"]


def test_runs_of_one_seed_or_of_other_code_are_no_group(seeded):
    assert groups([seeded("a", 0, 0.8), seeded("b", 0, 0.8)], "ab") == []
    codes = [{"ids": {"recipe": code, "code": code, "data": "d"}} for code in ("one", "other")]
    runs = [seeded(code["ids"]["code"], seed, 0.8, environment=code) for seed, code in enumerate(codes)]
    assert groups(runs, "ab") == []
    assert seeds_text(runs, "ab") == ""


def test_what_moves_numbers_beside_the_recipe_parts_groups_and_names_them(seeded):
    sent = {wire: {"more": [{"key": "gradient_exchange", "wire": wire}]} for wire in ("float32", "float16")}
    gpus = {"environment": {"ranks": [{"rank": 0, "gpu": "H200 0000:01"}]}}
    runs = [seeded(f"{wire}-{seed}", seed, 0.8, **more) for wire, more in sent.items() for seed in range(2)]
    found = groups([*runs, seeded("one", 2, 0.8)], labels_of(runs) + ["one rank"])
    assert [(group.name, group.size) for group in found] == [
        ("digits/large", 3),
        ("digits/large, float16 on the wire", 2),
    ]
    found = groups([*runs[:2], seeded("gpu", 0, 0.8, **gpus)], "abc")
    assert [group.name for group in found] == ["digits/large, on CPUs", "digits/large, on GPUs"]


def test_the_name_of_a_group_says_that_its_code_or_data_are_others(seeded):
    made_of = [{"code": "x", "data": "d"}, {"code": "y", "data": "d"}, {"code": "y", "data": "e"}]
    environments = [{"ids": ids} for ids in made_of]
    runs = [seeded(f"r{at}", at, 0.8, environment=each) for at, each in enumerate([environments[0], *environments])]
    assert [group.name for group in groups(runs, labels_of(runs))] == [
        "digits/large (r0)",
        "digits/large, other code (r2)",
        "digits/large, other code, other data (r3)",
    ]


def test_recipes_of_another_shape_have_no_group():
    assert [group_id(recipe, {}, {}, ()) for recipe in ("text", {"epochs": {1, 2}}, {"init": [1]})] == [""] * 3


def test_mean_and_deviation_over_seeds_are_drawn_for_each_group(seeded):
    runs = [seeded("a", 0, 0.8), seeded("b", 1, 0.9), seeded("c", 0, 0.5, batch=128)]
    data = charts(runs, labels_of(runs))
    mean, below, above = next(each for each in data["charts"] if each["title"] == "Accuracy over seeds (%)")["curves"]
    assert [each["values"][-1] for each in (mean, below, above)] == pytest.approx([85, 85 - 50**0.5, 85 + 50**0.5])
    assert len(mean["values"]) == len(data["points"][mean["at"]]["epochs"])
    assert {each["group"] for each in (mean, below, above)} == {"batch.global 64"}


def test_page_and_command_show_the_means(seeded, tmp_path):
    runs = [seeded("a", 0, 0.8), seeded("b", 1, 0.9)]
    assert "Over seeds" in page_text(runs)
    assert "Over seeds" not in page_text(runs[:1])
    typed = ["report", str(runs[0].folder), str(runs[1].folder), "-o", str(tmp_path / "both.html")]
    printed = CliRunner().invoke(kilobatch.app, typed).output
    assert "85.00 %  7.07 points  21.47 % to 100.00 %" in printed
    assert printed.endswith("both.html\n")
