#!/usr/bin/env python
"""Predicts published runs with the planner's model of time, and compares.

Each row gives one rate of fewer devices (`calibrate_*`), the cluster's links from its data sheet, and the rate that was
published. One table of constants serves all rows. The columns are those of `configs/published_runs.csv`.

    scripts/validate_planner.py                     # the table, and the model without each of its parts
    scripts/validate_planner.py --rows mine.csv --json
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that a checkout's own packages serve

from recipes.planning import all_reduce
from recipes.planning.all_reduce import Links
from recipes.planning.constants import FITTED, OTHER_FIXED_MS, UNFITTED, Constants
from recipes.planning.networks import known_network, network, network_names
from recipes.planning.update_time import Compute, ExchangeTime, calibrated, update_time

ROWS = Path(__file__).resolve().parent.parent / "configs" / "published_runs.csv"
_WITHOUT = ("latency", "t0", "stragglers", "overlap", "hierarchy")
_ALGORITHMS = all_reduce.ALGORITHMS | {"rhd": all_reduce.halving_doubling}


class RowError(ValueError):
    """A row that cannot be predicted; says where and what."""


@dataclass(frozen=True)
class Row:
    """A published run, checked."""

    cells: dict[str, str]
    where: str

    def text(self, name: str, among: list[str] | None = None) -> str:
        value = (self.cells.get(name) or "").strip()
        if among is not None and value not in among:
            raise RowError(f"{self.where}: {name} is {value!r}, and must be one of {', '.join(among)}")
        return value

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        text = self.text(name)
        try:
            value = float(text) if text or default is None else default
        except ValueError:
            raise RowError(f"{self.where}: {name} is {text!r}, and must be a number") from None
        if not least <= value < float("inf") or (not value and not least and default is None):
            raise RowError(f"{self.where}: {name} is {text!r}, out of range")
        return value

    @property
    def tolerance(self) -> float | None:
        """Percent; None where the row sets no bar."""
        try:
            return float(self.text("tolerance_percent").removesuffix("%"))
        except ValueError:
            return None

    @property
    def network_key(self) -> tuple[str, ...]:
        """What rows must share for one to be the other's probe of the network."""
        names = ("device", "gpus_per_node", "nics", "nic_gbit_per_s", "transport", "algorithm", "wire_bytes", "overlap")
        return tuple(self.text(name) for name in names)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of published runs."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        return [Row(cells, f"{path}:{lines.line_num}") for cells in lines]


def predicted(row: Row, constants: Constants, without: str = "", bytes_per_second: float | None = None) -> float:
    """Images a second of a row.

    Args:
        row: which run.
        constants: of the model.
        without: a part of the model that is left out, one of `latency, t0, stragglers, overlap, hierarchy`.
        bytes_per_second: between nodes, where a probe has measured it.
    """
    model = row.text("model")
    if not known_network(model):
        raise RowError(f"{row.where}: model {model!r} is not known; known are {', '.join(network_names())}")
    net = network(model, int(row.number("image")))
    device, overlap = row.text("device"), row.text("overlap", ["none", "bucket", "double_buffering"])
    overlap = "none" if without == "overlap" else overlap
    sigma = 0.0 if without == "stragglers" else constants.sigma
    fixed = 0.0 if without == "t0" else constants.fixed_ms.get(device, OTHER_FIXED_MS) / 1000
    links = _links(row, constants, without, bytes_per_second)
    per_node = int(row.number("gpus_per_node", least=1))

    def seconds(per_sample: float, devices: int, micro_batch: float) -> float:
        made = update_time(
            net,
            Compute(fixed_seconds=fixed, seconds_per_sample=per_sample, sigma=sigma),
            _exchange(row, devices, per_node, overlap, without, constants.contention),
            links,
            devices=devices,
            nodes=-(-devices // per_node),
            micro_batch_size=micro_batch,
        )
        return float(made.total)

    first, micro_batch = int(row.number("calibrate_devices", least=1)), row.number("calibrate_micro_batch", least=1)
    per_sample = calibrated(
        lambda s: seconds(s, first, micro_batch),
        samples_per_second=row.number("calibrate_images_per_s"),
        global_batch_size=int(first * micro_batch),
    )
    devices, micro_batch = int(row.number("devices", least=1)), row.number("micro_batch", least=1)
    return devices * micro_batch / seconds(per_sample, devices, micro_batch)


def _exchange(row: Row, devices: int, per_node: int, overlap: str, without: str, contention: float) -> ExchangeTime:
    algorithm = all_reduce.ring
    if devices > per_node and without != "hierarchy":
        algorithm = _ALGORITHMS[row.text("algorithm", [*_ALGORITHMS])]
        if (sides := row.text("torus")) and algorithm is all_reduce.nearest_torus:
            rows, _, columns = sides.partition("x")
            if not (rows.isdigit() and columns.isdigit() and int(rows) * int(columns) == devices):
                raise RowError(f"{row.where}: torus is {sides!r}, and must be XxY of {devices} devices")
            algorithm = all_reduce.torus(int(rows), int(columns))
    return ExchangeTime(
        all_reduce=algorithm,
        wire_bytes=int(row.number("wire_bytes", least=1)),
        overlap=overlap,
        bucket_bytes=row.number("bucket_mb", 25.0) * 1e6,
        cycle_seconds=row.number("fusion_cycle_ms", 0.0) / 1000,
        contention=contention,
    )


def _links(row: Row, constants: Constants, without: str, bytes_per_second: float | None) -> Links:
    between, hop_us = float("inf"), 0.0
    if max(row.number("devices"), row.number("calibrate_devices")) > row.number("gpus_per_node"):
        transport = row.text("transport", list(constants.efficiency))
        hop_us = constants.network_latency_us[transport]
        line = row.number("nics", least=1) * row.number("nic_gbit_per_s") * 1e9 / 8
        between = line * constants.efficiency[transport]
        if transport == "tcp":
            between = min(between, constants.tcp_ceiling_bytes_per_second)
    inside = "nvlink" if row.text("intra_node").startswith("nv") else "pcie"
    latency = without != "latency"
    return Links(
        node_bytes_per_second=row.number("intra_node_bus_gb_per_s") * 1e9,
        node_latency_seconds=latency * constants.node_latency_us[inside] * 1e-6,
        network_bytes_per_second=between if bytes_per_second is None else bytes_per_second,
        network_latency_seconds=latency * hop_us * 1e-6,
    )


def probed_bandwidth(row: Row, constants: Constants) -> float | None:
    """Bytes a second between nodes at which the model returns a row's published rate; None where none does."""
    wanted, low, high = row.number("images_per_s"), 1e6, 1e12
    if not predicted(row, constants, bytes_per_second=low) < wanted < predicted(row, constants, bytes_per_second=high):
        return None
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predicted(row, constants, bytes_per_second=middle) < wanted else (low, middle)
    return high


def sound(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """The rows that can be predicted, and what is wrong with the others."""
    found, wrong = [], []
    for row in rows:
        try:
            predicted(row, FITTED)
            row.number("images_per_s")
        except ValueError as error:
            wrong.append(str(error) if isinstance(error, RowError) else f"{row.where}: {error}")
        else:
            found.append(row)
    return found, wrong


def predictions(rows: list[Row], constants: Constants, without: str = "") -> list[dict]:
    """The rows with what is predicted for each; a row that is a probe gives the others of its network the bandwidth."""
    probes = {row.network_key: row for row in rows if row.text("tolerance_percent") == "probe"}
    made = []
    for row in rows:
        rate = predicted(row, constants, without)
        published = row.number("images_per_s")
        line = {
            "id": row.text("id"),
            "devices": int(row.number("devices")),
            "published_images_per_s": published,
            "predicted_images_per_s": rate,
            "error_percent": 100 * (rate / published - 1),
            "tolerance_percent": row.tolerance,
            "within": None if row.tolerance is None else abs(rate / published - 1) * 100 <= row.tolerance,
        }
        probe = probes.get(row.network_key)
        if probe is not None and probe is not row and (speed := probed_bandwidth(probe, constants)):
            probed = predicted(row, constants, without, bytes_per_second=speed)
            line |= {"probe": probe.text("id"), "probed_images_per_s": probed}
            line["probed_error_percent"] = 100 * (probed / published - 1)
        made.append(line)
    return made


def summary(lines: list[dict]) -> dict:
    """How many rows with a bar are within it, and the median and mean of their errors."""
    judged = [line for line in lines if line["within"] is not None]
    errors = [abs(line["error_percent"]) for line in judged] or [float("nan")]
    return {
        "rows": len(judged),
        "within": sum(line["within"] for line in judged),
        "median_error_percent": median(errors),
        "mean_error_percent": mean(errors),
    }


def _print(lines: list[dict], summaries: dict[str, dict]) -> None:
    print(f"{'run':<38}{'devices':>8}{'published':>12}{'predicted':>12}{'error':>9}{'bar':>7}")
    for line in lines:
        bar = "" if line["tolerance_percent"] is None else f"{line['tolerance_percent']:g} %"
        mark = " outside" if line["within"] is False else ""
        numbers = f"{line['published_images_per_s']:>12,.0f}{line['predicted_images_per_s']:>12,.0f}"
        print(f"{line['id']:<38}{line['devices']:>8,}{numbers}{line['error_percent']:>+8.1f}%{bar:>7}{mark}")
        if "probe" in line:
            print(f"{'  with the probe ' + line['probe']:<58}{line['probed_images_per_s']:>12,.0f}", end="")
            print(f"{line['probed_error_percent']:>+8.1f}%")
    print()
    for name, found in summaries.items():
        errors = f"median error {found['median_error_percent']:.1f} %, mean {found['mean_error_percent']:.1f} %"
        print(f"{name:<24}{found['within']} of {found['rows']} rows within their bar, {errors}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS, help="a CSV file of published runs")
    parser.add_argument("--json", action="store_true", help="print a list with id and predicted_images_per_s")
    asked = parser.parse_args()
    try:
        rows, wrong = sound(read_rows(asked.rows))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        rows, wrong = [], [str(error)]
    for what in wrong:
        print(f"validate_planner: left out: {what}", file=sys.stderr)
    lines = predictions(rows, FITTED)
    if asked.json:
        print(json.dumps(lines, indent=2))
    elif rows:
        summaries = {"the model": summary(lines), "constants before a fit": summary(predictions(rows, UNFITTED))}
        for part in _WITHOUT:
            name = "flat ring everywhere" if part == "hierarchy" else f"without {part}"
            summaries[name] = summary(predictions(rows, FITTED, part))
        _print(lines, summaries)
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
