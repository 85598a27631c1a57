"""The planner against published runs: the bar of the project, and that each part of the model is needed."""

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "validate_planner.py"
SPEC = importlib.util.spec_from_file_location("validate_planner", SCRIPT)
validate = importlib.util.module_from_spec(SPEC)
sys.modules["validate_planner"] = validate
SPEC.loader.exec_module(validate)


@pytest.fixture(scope="module")
def rows() -> list:
    return validate.read_rows(validate.ROWS)


@pytest.fixture(scope="module")
def whole(rows: list) -> dict:
    return validate.summary(validate.predictions(rows, validate.FITTED))


def test_published_runs_are_predicted_within_their_bars(whole: dict) -> None:
    assert whole["rows"] == 27
    assert whole["within"] >= 24
    assert whole["median_error_percent"] <= 4.0


def slow(part):
    return pytest.param(part, marks=pytest.mark.slow)


@pytest.mark.parametrize("part", ["latency", "hierarchy", slow("t0"), slow("stragglers"), slow("overlap")])
def test_the_model_without_a_part_is_worse(rows: list, whole: dict, part: str) -> None:
    without = validate.summary(validate.predictions(rows, validate.FITTED, part))
    assert without["mean_error_percent"] > 1.1 * whole["mean_error_percent"]
    assert without["within"] < whole["within"]


def test_constants_before_any_fit_are_nearly_as_good(rows: list) -> None:
    before = validate.summary(validate.predictions(rows, validate.UNFITTED))
    assert before["within"] >= 24
    assert before["median_error_percent"] <= 4.0


def test_a_probe_of_the_network_brings_its_row_within_ten_percent(rows: list) -> None:
    lines = {line["id"]: line for line in validate.predictions(rows, validate.FITTED)}
    slow = lines["MN1 10GbE fp32 32"]
    assert slow["error_percent"] > 50  # an unprobed TCP network
    assert abs(slow["probed_error_percent"]) < 10


def test_json_has_an_id_and_a_prediction_for_each_row(tmp_path: Path) -> None:
    with validate.ROWS.open(newline="") as file:
        text = file.read().splitlines()
    some = tmp_path / "some.csv"
    some.write_text("\n".join([text[0], text[1], text[8]]) + "\n")
    words = [sys.executable, str(SCRIPT), "--rows", str(some), "--json"]
    lines = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert [line["id"] for line in lines] == ["MN1 IB-FDR fp32 32", "MLPerf0.6 DGX-1 1040 V100 b52"]
    assert all(line["predicted_images_per_s"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("model", "resnet7", "model 'resnet7' is not known; known are alexnet"),
        ("transport", "pigeon", "transport is 'pigeon', and must be one of rdma, rdma_nogdr, tcp"),
        ("nic_gbit_per_s", "0", "nic_gbit_per_s is '0', out of range"),
        ("devices", "many", "devices is 'many', and must be a number"),
        ("calibrate_images_per_s", "1e7", "10,000,000 samples/s leave no time to compute"),
    ],
)
def test_a_wrong_row_is_refused_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, column: str, value: str, said: str
) -> None:
    with validate.ROWS.open(newline="") as file:
        cells = next(csv.DictReader(file))
    wrong = tmp_path / "wrong.csv"
    with wrong.open("w", newline="") as file:
        writer = csv.DictWriter(file, cells)
        writer.writeheader()
        writer.writerow({**cells, column: value})
        writer.writerow(cells)
    monkeypatch.setattr(sys, "argv", ["validate_planner.py", "--rows", str(wrong), "--json"])
    assert validate.main() == 2
    out = capsys.readouterr()
    assert f"{wrong}:2: {said}" in out.err
    assert len(json.loads(out.out)) == 1, "the other row is predicted all the same"
