"""`kilobatch plan` as it is typed: time, targets, advice, trials, a run's own rates, and pictures."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from kilobatch import app
from recipes.errors import InputRefused, RecipeError
from recipes.planning.timing import NoForecast
from recipes.reports.record import open_run
from recipes.scale import Change
from trainers.commands.plan import _advice_text, _fewest_text
from trainers.tasks.planning import Advice
from trainers.tasks.targets import Target, parse_targets

LIBRARY = Path(__file__).parents[3] / "configs" / "clusters"


def planned(*words: object) -> str:
    done = CliRunner().invoke(app, ["plan", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def tree_of(*words: object) -> dict:
    return json.loads(planned(*words, "--json"))


def error_of(*words: object) -> Exception:
    return CliRunner().invoke(app, ["plan", *map(str, words)]).exception


def test_a_plan_says_its_time_its_range_and_what_it_rests_on() -> None:
    text = planned("goyal2017", "--cluster", "big-basin")
    assert "256 workers of big-basin (all of the cluster; -n N for fewer): " in text
    assert "time: 5" in text
    assert "expected between" in text
    assert "bound by: compute" in text
    assert "a published rate: 1,092 samples/s of ResNet50 on 8 devices" in text


def test_a_plan_takes_only_kernels_that_there_are_and_has_no_range_with_chainers_own(monkeypatch):
    monkeypatch.setenv("KILOBATCH_KERNELS", "chainer")
    memory = tree_of("digits/large_batch", "-n", 2)["memory"]
    assert memory["range_bytes"] is None
    assert memory["rests_on"].endswith("Chainer's need much more, which is not counted")
    assert "; Chainer's need much more" in planned("digits/large_batch", "-n", 2)
    monkeypatch.setenv("KILOBATCH_KERNELS", "numpi")
    with pytest.raises(RecipeError, match="KILOBATCH_KERNELS: no kernels are called numpi; there are numpy, torch"):
        raise error_of("digits/large_batch", "-n", 2)


def test_a_cluster_without_hardware_still_divides() -> None:
    tree = tree_of("digits/large_batch", "-n", 2)
    assert tree["forecast"] is None
    assert tree["segments"][0]["samples_per_worker"] == [256, 256]
    assert "kilobatch probe" in planned("digits/large_batch", "-n", 2)


def test_a_price_gives_a_cost() -> None:
    time = tree_of("goyal2017", "--cluster", "aws-p3.16xlarge", "-n", 128)["forecast"]
    assert time["dollars"] == pytest.approx(3.06 * 128 * time["seconds"] / 3600)
    assert time["device_hours"] == pytest.approx(128 * time["seconds"] / 3600)
    part = tree_of("goyal2017", "--cluster", "aws-p3.16xlarge", "-n", 26, "--price", 0.003)["forecast"]
    assert part["billed_devices"] == 32
    assert part["dollars"] == pytest.approx(0.003 * 32 * part["seconds"] / 3600)
    other = planned("akiba2017", "--cluster", "mn1", "--price", 2.5, "--target", "15min")
    assert re.search(r"device-hours \(188 to 285\), 57[0-9] dollars", other)
    assert re.search(r"the cheapest first, then those unpriced:\n.* cost\nmn1 .* 57[0-9] dollars .*\n", other)


def test_a_time_is_answered_with_the_fewest_devices_and_the_cheapest_cluster() -> None:
    answer = tree_of("akiba2017", "--cluster", "mn1", "--target", "15min")["target"]
    assert 900 <= answer["fewest"]["devices"] <= 1100
    assert answer["fewest"]["seconds"] <= 900
    assert not answer["fewest"]["beyond"]
    hours = [each["device_hours"] for each in answer["clusters"] if each["dollars"] is None]
    assert hours == sorted(hours)
    assert {row["micro_batch_size"] for row in answer["micro_batches"]} >= {32, 64}
    assert "fewest device-hours first:" in (text := planned("akiba2017", "--cluster", "mn1", "--target", "15min"))
    assert "price" not in text
    beyond = tree_of("goyal2017", "--cluster", "aws-p3.16xlarge", "--target", "55min")["target"]["fewest"]
    assert beyond["beyond"]
    assert beyond["devices"] > 128


def test_the_named_cluster_of_the_plan_is_planned_as_asked() -> None:
    words = ("akiba2017", "--cluster", "mn1", "--micro-batch-size", 8)
    answer = tree_of(*words, "--target", "30min")["target"]
    (own,) = [each for each in answer["clusters"] if each["cluster"] == "mn1"]
    assert own == answer["fewest"]
    alone = tree_of("goyal2017", "--cluster", "big-basin", "-n", 64, "--micro-batch-size", 8, "--advise")
    assert alone["advice"]["micro_batch_size"] == 8
    assert alone["advice"]["seconds"][0] == pytest.approx(alone["forecast"]["seconds"], rel=1e-6)


def test_a_cluster_of_ones_own_stands_beside_the_named_ones_with_its_cost(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"  # of the name of another
    file.write_text((LIBRARY / "mn1.yaml").read_text().replace("nodes: 128", "nodes: 64"))
    text = planned("akiba2017", "--cluster", file, "--price", 3, "--target", "8h")
    assert re.search(r"at least 25 devices .* then, 58[0-9] dollars \(", text)
    own, other = re.findall(r"\nmn1 +25 .*", text)
    assert "58" in own.split("dollars")[0]
    assert own.endswith("<- this plan's")
    assert "dollars" not in other


def test_where_a_part_of_a_named_cluster_does_not_suffice_the_whole_is_named() -> None:
    words = ("akiba2017", "--cluster", "mn1", "--set", "cluster.nodes=2", "--target")
    for time, devices, heading in (("3h", 69, "the named clusters"), ("20h", 10, "this cluster and the named ones")):
        text = planned(*words, time)
        assert f"\non {heading}, " in text
        assert re.findall(r"\nmn1 +([0-9]+)", text) == [f"{devices}"]


def test_all_answers_take_the_micro_batch_of_the_plan() -> None:
    words = ("goyal2017", "--cluster", "dgx-a100", "-n", 8, "--set", "cluster.micro_batch_size=auto")
    words += ("--set", "precision.compute=mixed16", "--target", "86min", "--trials", 1, "--devices", 8, "--advise")
    tree = tree_of(*words)
    fewest, advice, trials = tree["target"]["fewest"], tree["advice"], tree["trials"]
    assert fewest["devices"] == 8
    assert tree["segments"][0]["micro_batch_size"] == advice["micro_batch_size"] == 512
    for seconds in (fewest["seconds"], advice["seconds"][0], trials[-1]["trial_seconds"]):
        assert seconds == pytest.approx(tree["forecast"]["seconds"], rel=1e-9)


def test_a_time_that_nothing_reaches_names_the_fastest() -> None:
    text = planned("goyal2017", "--cluster", "mn1-10gbe", "--target", "1s")
    assert "no number of devices up to 100,000" in text
    assert "the fastest is" in text


def test_an_accuracy_is_answered_by_batch_with_published_epochs() -> None:
    words = ("mlperf/lars_4096", "--cluster", "dgx-1", "-n", 256, "--target", "top1=0.759")
    found = {each["batch"]: each for each in tree_of(*words)["target"]["choices"]}
    assert found[32768]["epochs"] == [56.0, 55.0, 57.0]
    assert all(each["devices"] <= 256 for each in found.values())
    assert "<- fastest" in planned(*words)
    both = tree_of(*words, "--target", "20min")["target"]["choices"]
    assert all(each["seconds"][0] <= 1200 for each in both)


def test_another_accuracy_is_answered_with_recipes_that_claim_it() -> None:
    words = ("ffcv2022", "--cluster", "dgx-a100", "-n", 8, "--target", "top1=0.772")  # as ffcv2022/40 claims
    found = tree_of(*words)["target"]["recipes"]
    assert {each["recipe"] for each in found} == {"ffcv2022/40", "ffcv2022/56", "ffcv2022"}
    assert all(each["top1"] >= 0.772 for each in found)
    assert [each["seconds"] for each in found] == sorted(each["seconds"] for each in found)
    within = tree_of(*words, "--target", "1h")["target"]["recipes"]
    assert [each["recipe"] for each in within] == ["ffcv2022/40", "ffcv2022/56"]
    assert all(each["seconds"] <= 3600 for each in within)
    assert "recipes of the library that claim it" in planned(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("goyal2017", "--cluster", "mn1", "--target", "soon"), "write a time, 90s, 15min, 2h or 1d, or an accuracy"),
        (("goyal2017", "--cluster", "mn1", "--target", "top1=0.9"), "the most is top1=0.80858, of torchvision2021"),
        (("ffcv2022", "--cluster", "dgx-a100", "--target", "top1=0.8"), "no rate of ResNet50 in float32"),
        (("goyal2017", "--cluster", "mn1", "--target", "0min"), "neither a time nor an accuracy"),
        (("goyal2017", "--cluster", "mn1", "--trials", "4", "--devices", "2000"), "cluster mn1 has 1024"),
        (("digits/ramp", "-n", "2", "--set", "updater.local_steps={every: 2, replicas: 3}"), "write -n 3"),
    ],
)
def test_wrong_questions_are_refused_with_a_way_out(words: tuple, said: str) -> None:
    error = error_of(*words)
    assert isinstance(error, InputRefused)
    assert said in str(error)


def test_a_question_about_time_needs_hardware() -> None:
    assert isinstance(error_of("digits/large_batch", "--target", "1min"), NoForecast)


def test_targets_are_parsed_into_seconds_and_a_fraction() -> None:
    assert parse_targets(["1.5h", "top1=.75"]) == Target(seconds=5400.0, top1=0.75)
    assert parse_targets(["top1=1.0"]) == parse_targets(["top1=1"]) == Target(top1=1.0)
    assert parse_targets([]) is None


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["15min", "99min"], "99min: a second time; give one of each at most"),
        (["top1=.7", "1h", "top1=.8"], "top1=.8: a second accuracy"),
        ([f"{'9' * 400}s"], "neither a time nor an accuracy"),
        ([f"{'9' * 305}d"], "neither a time nor an accuracy"),
        (["top1=1.01"], "neither a time nor an accuracy"),
    ],
)
def test_targets_that_cannot_be_meant_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(InputRefused, match=re.escape(said)):
        parse_targets(texts)


@pytest.mark.parametrize("price", ["inf", "nan", "0", "-1"])
def test_a_price_that_no_file_may_have_is_refused(price: str) -> None:
    done = CliRunner().invoke(app, ["plan", "akiba2017", "--cluster", "mn1", "--price", price])
    assert done.exit_code == 2
    assert "write dollars, such as 2.5" in done.output


def test_wrong_hardware_is_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "name: wrong\nnodes: 1\nworkers_per_node: 2\ndevice: gpu\ndevice_memory_bytes: 1000000000\n"
        "hardware:\n  source: here\n  device: v100\n"
        "  node_link: {kind: pcie, gb_per_second: 0, source: here}\n"
        "  rates:\n"
        "    - {model: ResNet50, image_size: 224, micro_batch_size: 32, samples_per_second: 0, source: here}\n"
    )
    error = error_of("goyal2017", "--cluster", file)
    assert isinstance(error, RecipeError)
    assert "wrong.yaml:9:" in str(error)
    assert "hardware.node_link.gb_per_second: is 0.0; must be above 0" in str(error)
    assert "wrong.yaml:11:" in str(error)
    assert "hardware.rates.0.samples_per_second: is 0.0; must be above 0" in str(error)


def test_a_missing_rate_is_said_with_the_line_of_the_rates(tmp_path: Path) -> None:
    text = planned("goyal2017", "--cluster", "h200", "-n", 8)
    assert "h200.yaml:" in text
    assert "no rate of ResNet50 in float32" in text
    assert "add `--set precision.compute=mixed16` to plan with that rate" in text
    assert "time: 2" in planned("goyal2017", "--cluster", "h200", "-n", 8, "--set", "precision.compute=mixed16")
    error = error_of("goyal2017", "--cluster", "h200", "-n", 8, "--target", "1h")
    assert isinstance(error, NoForecast)
    assert "h200.yaml:" in str(error)


def test_smaller_micro_batches_have_their_time() -> None:
    times = tree_of("goyal2017", "--cluster", "big-basin", "--set", "batch.norm_span=8")["forecast"]
    times = {int(size): seconds for size, seconds in times["seconds_by_micro_batch"].items()}
    assert set(times) >= {8, 16, 32}
    assert times[8] > times[16] > times[32]


def test_trials_are_compared_side_by_side_and_one_after_another() -> None:
    words = ("goyal2017/256", "--cluster", "dgx-1", "--trials", 64, "--devices", 32)
    rows = tree_of(*words)["trials"]
    assert [(row["devices_each"], row["at_once"], row["rounds"]) for row in rows][0] == (1, 32, 2)
    assert rows[-1]["devices_each"] == 32
    text = planned(*words)
    assert "random search: 1 device a trial" in text
    assert "a sampler that learns from ended trials: 8 devices a trial" in text
    assert "so that it learns in 1 round (" in planned(*words[:3], "--trials", 1, "--devices", 1)


def test_advice_follows_the_published_rules() -> None:
    words = ("goyal2017/256", "--cluster", "aws-p3.16xlarge", "-n", 64, "--advise")
    advice = tree_of(*words)["advice"]
    assert advice["batch"] == 4096  # 64 samples a worker; 8,192 would be faster by less than 5 %
    assert advice["seconds"][1] < advice["seconds"][0]
    assert any("linear scaling is published up to a batch of 8,192" in reason for reason in advice["reasons"])
    assert any(change["key"] == "batch.global" for change in advice["changes"])
    text = planned(*words)
    assert "batch.global: 256 ->" in text
    assert 'learning_rate.warmup: null -> {"kind": "GradualWarmup", ' in text  # as a recipe takes it
    assert text.endswith("kilobatch recipes scale goyal2017/256 --batch 4096 -o goyal2017-256_4096.yaml\n")


def test_advice_looks_at_batches_of_less_than_a_norm_group_a_worker() -> None:
    advice = tree_of("goyal2017/2048", "--cluster", "dgx-1", "-n", 512, "--advise")["advice"]
    assert advice["batch"] == 8192
    assert advice["seconds"][1] < 0.7 * advice["seconds"][0]


def test_advice_without_a_time_is_the_largest_batch_of_the_rules(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("kilobatch: 1\nname: team\nextends: goyal2017/256\n")
    words = (tmp_path / "team.yaml", "--cluster", "dgx-a100", "-n", 64, "--advise")
    tree = tree_of(*words)
    assert tree["forecast"] is None
    assert tree["advice"]["batch"] == 8192
    assert tree["advice"]["seconds"] == [None, None]
    text = planned(*words, "--set", "cluster.exchange.wire=float16")
    assert "batch.global 8,192, micro-batch 128; no time is known" in text
    assert text.endswith(f"--batch 8192 -o {tmp_path}/team_8192.yaml\n")
    text = planned(*words, "--set", "precision.compute=mixed16")
    assert "put the values of --set into a recipe that extends this one, then kilobatch recipes scale FILE" in text


def test_advice_on_a_pack_does_not_scale_its_file() -> None:
    advice = Advice(
        workers=2,
        batch=64,
        micro_batch_size=32,
        steps=1,
        seconds=(None, None),
        range_seconds=None,
        reasons=(),
        changes=(Change(key="batch.global", before=32, after=64, reason=""),),
    )
    text = _advice_text(advice, "net.kilobatch", "net", is_changed=False)
    assert text.endswith("push the pack into a registry, then kilobatch recipes scale REGISTRY/NAME@VERSION --batch 64")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, kilobatch) -> Path:
    folder = tmp_path_factory.mktemp("learned") / "run"
    done = kilobatch("train", "digits/large_batch", "-n", 1, "--out", folder, "--stop-after", "12up", "-q")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_teaches_its_rate(run: Path) -> None:
    made = tree_of("digits/large_batch", "--from", run, "-n", 1)["forecast"]
    seconds = open_run(run).updates.update_seconds[1:]
    middle = sorted(seconds)[len(seconds) // 2]
    assert made["segments"][0]["seconds_per_update"] == pytest.approx(middle, rel=0.2)
    assert any(str(run) in line for line in made["rests_on"])


def test_a_time_on_more_ranks_than_this_machine_has_cores_comes_with_a_warning(run: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert not any("share" in line for line in tree_of("digits/large_batch", "--from", run, "-n", 1)["warnings"])
    crowded = tree_of("digits/large_batch", "--from", run, "-n", cores + 1)["warnings"][-1]
    assert crowded.startswith(f"{cores + 1} ranks would share the {cores} cores of this machine")


@pytest.mark.parametrize(("seconds", "text"), [(0.0001, "within 0.0001 s:"), (1e300, "within 1.16e+295 d:")])
def test_a_target_of_any_length_is_named_as_it_was_asked_for(seconds: float, text: str) -> None:
    answer = {"fastest_seconds": 9.0, "fastest_devices": 1, "micro_batches": []}
    made = SimpleNamespace(cluster=SimpleNamespace(name="mn1"))
    assert _fewest_text(made, Target(seconds=seconds), answer, None, None, []).startswith(text)


def test_a_plan_on_rates_that_exclude_each_other_comes_with_a_warning(tmp_path: Path) -> None:
    rate = {"model": "SmallResNet", "image_size": 8, "micro_batch_size": 256, "source": "here"}
    rates = [rate | {"samples_per_second": 1000.0}, rate | {"devices": 2, "samples_per_second": 7400.0}]
    hardware = {"source": "here", "device": "cpu", "algorithm": "ring", "rates": rates}
    hardware["node_link"] = {"kind": "shared_memory", "gb_per_second": 5.0, "latency_us": 5.0, "source": "here"}
    tree = {"name": "busy", "title": "busy", "source": "here", "nodes": 1, "workers_per_node": 2, "device": "cpu"}
    (tmp_path / "busy.yaml").write_text(yaml.safe_dump(tree | {"device_memory_bytes": 10**10, "hardware": hardware}))
    (warning,) = tree_of("digits/large_batch", "--cluster", tmp_path / "busy.yaml", "-n", 2)["warnings"]
    assert re.match("each device would reach 3[0-9]{2} % of what it reaches alone, so the measured rates", warning)
    assert tree_of("digits/large_batch", "--cluster", tmp_path / "busy.yaml", "-n", 1)["warnings"] == []


def test_a_run_of_an_own_model_teaches_its_rate(run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    (own / "net_to_plan.py").write_text("from trainers.models import SmallResNet\n")
    for file in (own / "recipe.yaml", own / "run.yaml"):
        file.write_text(file.read_text().replace("SmallResNet", "net_to_plan.SmallResNet"))
    assert tree_of(own, "--from", own, "-n", 1, "--allow-code")["forecast"]


def test_a_run_of_another_model_teaches_nothing(run: Path) -> None:
    error = error_of("goyal2017", "--cluster", "mn1", "--from", run)
    assert isinstance(error, InputRefused)
    assert "a run of SmallResNet, and the recipe's model is ResNet50" in str(error)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    planned("goyal2017", "--cluster", "big-basin", "--plot", tmp_path / "scaling.svg")
    text = (tmp_path / "scaling.svg").read_text()
    assert "time to train (minutes)" in text
    assert "akiba2017, 15 min 00 s" in text


def test_a_run_on_a_described_cluster_reports_prediction_and_outcome(run: Path, tmp_path: Path, kilobatch) -> None:
    words = ("digits/large_batch", "--from", run, "-n", 1)
    rate = tree_of(*words)["forecast"]["samples_per_second"]
    cluster = {
        "name": "here",
        "nodes": 1,
        "workers_per_node": 1,
        "device": "cpu",
        "device_memory_bytes": 10**9,
        "hardware": {
            "device": "cpu",
            "source": "a test",
            "rates": [
                {
                    "model": "SmallResNet",
                    "image_size": 8,
                    "micro_batch_size": 64,
                    "accumulation_steps": 8,
                    "samples_per_second": rate,
                    "basis": "probe",
                    "source": "a test",
                }
            ],
        },
    }
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(cluster))
    out = tmp_path / "run"
    options = ("-n", 1, "--cluster", tmp_path / "here.yaml", "--out", out, "--stop-after", "3up", "-q")
    done = kilobatch("train", "digits/large_batch", *options)
    assert done.returncode == 0, done.stderr
    page = (out / "report.html").read_text()
    assert "Prediction and outcome" in page
    assert "computing, with input" in page
    forecast = open_run(out).plan["forecast"]
    assert forecast["segments"][0]["compute"] == pytest.approx(512 / rate, rel=1e-3)
    assert "Prediction and outcome" not in (run / "report.html").read_text()
