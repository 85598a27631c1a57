"""What TensorBoard, MLflow and tables as CSV get of a run."""

import csv
import json
import math
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers.launch.preflight import require_startable
from trainers.launch.vocabulary import vocabulary
from trainers.training.extensions import CSV, MLflow, TensorBoard, loggers
from trainers.training.extensions.figure_sinks import EventFiles, Logger, MLflowRun, Table, figures
from trainers.training.extensions.loggers import mlflow_client

RECIPE = "kilobatch: 1\nextends: digits/large_batch\nepochs: 6\nextensions: [{kind: %s}]\n"


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def of(run, key):
    return {line["update"]: line["value"] for line in metrics(run) if line["key"] == key}


def train_in_two_sessions(kilobatch, folder, kind):
    (folder / "mine.yaml").write_text(RECIPE % kind)
    words = ("train", "mine.yaml", "--no-report", "--out", "run")
    for more in (("--stop-after", "8up", "--checkpoint-every", "7up"), ("--resume",)):
        done = kilobatch(*words, *more, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.mpi
def test_a_table_has_each_update_and_evaluation_once(kilobatch, tmp_path):
    run = train_in_two_sessions(kilobatch, tmp_path, "CSV")
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    losses = {int(row["update"]): float(row["loss"]) for row in rows if row["loss"]}
    assert losses == of(run, "train_loss")
    assert [row["update"] for row in rows if row["loss"]] == [str(update) for update in range(18)]
    scores = {int(row["update"]): float(row["eval_accuracy"]) for row in rows if row["eval_accuracy"]}
    assert scores == of(run, "eval_accuracy")
    assert len(rows) == 18 + 2 * len(scores)


def test_a_row_of_a_table_is_there_at_once_and_a_resumed_session_keeps_those_before_its_checkpoint(tmp_path):
    """What was done before a checkpoint is not done again, so that a kill must lose nothing of it."""

    def losses():
        with open(tmp_path / "a.csv", newline="") as file:
            return {int(row["update"]): row["loss"] for row in csv.DictReader(file)}

    first = Table(tmp_path / "a.csv", 0)
    for update in range(5):
        first.add({"update": update, "epoch": 0.1 * update, "samples": 32 * update}, {"loss": 1.5})
    assert losses() == dict.fromkeys(range(5), "1.5")
    second = Table(tmp_path / "a.csv", 3)
    assert losses() == dict.fromkeys(range(3), "1.5")
    second.close()
    with open(tmp_path / "a.csv", "a") as file:
        file.write("2\n\0\0\0\0\n")  # as a full disk or a power cut leaves it
    Table(tmp_path / "a.csv", 3).close()
    assert losses() == dict.fromkeys(range(3), "1.5")
    first.close()


def test_metrics_of_the_recipe_have_columns(tmp_path):
    reached = {"update": 1, "epoch": 0.5, "samples": 32}
    for value in (0.25, 0.5):
        with closing(Table(tmp_path / "a.csv", 1 if value > 0.25 else 0, metrics=["macro_f1"])) as table:
            line = {"key": "eval_macro_f1", "value": value, **reached}
            table.add(line, figures(line))
    with open(tmp_path / "a.csv", newline="") as file:
        assert [row["eval_macro_f1"] for row in csv.DictReader(file)] == ["0.25", "0.5"]


def test_numbers_of_extensions_get_columns_that_a_resumed_session_keeps(tmp_path):
    def add(table, key, update, value, **more):
        line = {"key": key, "value": value, "update": update, "epoch": 0.1 * update, **more}
        table.add(line, figures(line))

    def rows():
        with open(tmp_path / "a.csv", newline="") as file:
            return [{key: text for key, text in row.items() if text} for row in csv.DictReader(file)]

    with closing(Table(tmp_path / "a.csv", 0)) as table:
        add(table, "eval_loss", 1, 0.5, samples=32)
        add(table, "sharpness", 1, 0.25)
        add(table, "norm", 2, float("nan"))
        add(table, "sharpness", 3, 0.75)
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert header.endswith("eval_accuracy,eval_loss,sharpness,norm")
    expected = [{"update": "1", "epoch": "0.1", "samples": "32", "eval_loss": "0.5"}]
    expected += [{"update": "1", "epoch": "0.1", "sharpness": "0.25"}, {"update": "2", "epoch": "0.2", "norm": "nan"}]
    assert rows()[:3] == expected
    with closing(Table(tmp_path / "a.csv", 2)) as table:
        assert rows() == expected
        add(table, "sharpness", 4, 1)
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == header
    assert rows()[3:] == [{"update": "4", "epoch": "0.4", "sharpness": "1"}]


def test_a_checkpoint_sends_what_has_gathered():
    calls = []
    logger = Logger("CSV", lambda trainer: None)
    logger._sink = SimpleNamespace(add=lambda line, found: calls.append(found), flush=lambda: calls.append("flushed"))
    for line in ({"key": "eval_loss", "value": 0.5}, {"key": "checkpoint", "value": "update-000007"}):
        logger._take(line)
    assert calls == [{"eval_loss": 0.5}, "flushed"]


def test_numbers_that_are_left_out_for_their_key_are_warned_of_once(tmp_path, caplog):
    def table(trainer):
        return Table(tmp_path / "a.csv", 0)

    metrics = SimpleNamespace(writes=True, observers=[], restart_clock=lambda: None)
    logger = Logger("CSV", table)
    logger.initialize(SimpleNamespace(get_extension=lambda name: metrics))
    for update in range(2):
        for key in ("gradient_norm", "sharpness"):
            metrics.observers[0]({"key": key, "value": 0.5, "update": update, "epoch": 1.0})
    logger.finalize()
    assert [message.split(" that")[0] for message in caplog.messages] == ["warning: CSV lacks the numbers"]
    assert "as gradient_norm, a name of kilobatch's own there; metrics.jsonl has them" in caplog.text


def shown_by_tensorboard(folder):
    """Tag and step -> value: a session hides the steps from its own first one on of those before."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found, sessions = {}, sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    for file in sessions:
        data = file.read_bytes()
        while data:  # a record: length, its checksum, the event, its checksum
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            if event.session_log.status == SessionLog.START:
                found = {(tag, step): value for (tag, step), value in found.items() if step < event.step}
            found |= {(each.tag, event.step): each.simple_value for each in event.summary.value}
    return found, len(sessions)


@pytest.mark.mpi
@pytest.mark.slow
def test_event_files_have_the_figures_of_a_run(kilobatch, tmp_path):
    pytest.importorskip("tensorboardX")
    run = train_in_two_sessions(kilobatch, tmp_path, "TensorBoard")
    found, sessions = shown_by_tensorboard(run / "tensorboard")
    assert sessions == 2
    for tag, key in (("loss", "train_loss"), ("eval_accuracy", "eval_accuracy")):
        expected = of(run, key)
        assert {step: value for (name, step), value in found.items() if name == tag} == pytest.approx(expected)


def test_event_files_of_a_resumed_session_keep_the_evaluation_of_its_checkpoint_and_nothing_after_it(tmp_path):
    pytest.importorskip("tensorboardX")
    each = {"value": 0.5, "time_ms": 1, "epoch": 1.0}
    lines = [{"key": key, "update": update, **each} for update in (2, 4) for key in ("eval_accuracy", "own")]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    begun, shown = [0, 2, 0], []
    for number, update in enumerate(begun):
        with closing(EventFiles(tmp_path / "events" / str(number), update, tmp_path / "metrics.jsonl")) as sink:
            for step in range(update, 4) if number == 0 else ():
                sink.add({"update": step, **each}, {"loss": 0.5})
            for line in lines if number == 0 else ():
                sink.add(line, figures(line))
        (file,) = (tmp_path / "events" / str(number)).iterdir()
        file.rename(tmp_path / "events" / f"{number}.events")
        (tmp_path / "events" / str(number)).rmdir()
        shown.append({*shown_by_tensorboard(tmp_path / "events")[0]})
    losses = {("loss", step) for step in range(4)}
    assert shown[0] == losses | {(key, update) for key in ("eval_accuracy", "own") for update in (2, 4)}
    assert shown[1] == {("loss", 0), ("loss", 1), ("eval_accuracy", 2), ("own", 2)}
    assert not shown[2], "a run that a kill ended before its first checkpoint begins anew"


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow with a store in the test's folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return pytest.importorskip("mlflow")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own
def test_mlflow_takes_what_is_not_finite_and_any_key_of_an_extension(tmp_path, mlflow, caplog):
    (tmp_path / "run.yaml").write_text("recipe: {epochs: 3}\n")
    keys = {"norm/conv1": "norm/conv1", "../up": "___up", "a//b": "a__b", "gain [dB]": "gain _dB_", "": "_"}
    with closing(MLflowRun(tmp_path, "here", 0, mlflow_client)) as sink:
        for key, value in zip(keys, (0.5, math.nan, math.inf, -math.inf, 2**60), strict=True):
            line = {"key": key, "value": value, "update": 3, "epoch": 1.0, "time_ms": 1}
            sink.add(line, figures(line))
    assert "warning" not in caplog.text
    client, note = mlflow.MlflowClient(), json.loads((tmp_path / "mlflow.json").read_text())
    there = [client.get_metric_history(note["run_id"], name) for name in keys.values()]
    assert [[each.step for each in found] for found in there] == [[3]] * len(keys)
    assert math.isnan(there[1][0].value)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own
def test_mlflow_has_one_run_of_both_sessions(kilobatch, tmp_path, mlflow):
    run = train_in_two_sessions(kilobatch, tmp_path, "MLflow")
    number = json.loads((run / "mlflow.json").read_text())["run_id"]
    client = mlflow.MlflowClient()
    there = client.get_run(number)
    assert there.info.status == "FINISHED"
    assert there.data.params["batch.global"] == "512"
    losses = {each.step: each.value for each in client.get_metric_history(number, "loss")}
    assert losses == pytest.approx(of(run, "train_loss"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own
def test_mlflow_has_the_end_of_a_failed_run_and_ends_none_where_it_fails_itself(tmp_path, mlflow, caplog):
    (tmp_path / "run.yaml").write_text("recipe: {epochs: 3}\n")
    sink, client = MLflowRun(tmp_path, "here", 0, mlflow_client), mlflow.MlflowClient()
    with suppress(ZeroDivisionError), closing(sink):
        raise ZeroDivisionError
    number = json.loads((tmp_path / "mlflow.json").read_text())["run_id"]
    assert client.get_run(number).info.status == "FAILED"
    client.delete_run(number)
    sink.close()
    assert "warning: MLflow: The run" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own
def test_a_lost_run_of_mlflow_is_begun_anew_and_a_deleted_experiment_refused(tmp_path, mlflow, caplog):
    (tmp_path / "run.yaml").write_text("recipe: {epochs: 3}\n")
    client, note, numbers = mlflow.MlflowClient(), tmp_path / "mlflow.json", []
    losses = (
        lambda: None,
        lambda: note.write_text(""),
        lambda: note.write_text(json.dumps({"run_id": 32 * "0"})),
        lambda: client.delete_run(numbers[-1]),
    )
    for lose in losses:
        lose()
        with closing(MLflowRun(tmp_path, "here", 0, mlflow_client)) as sink:
            sink.add({"update": 3, "time_ms": 1}, {"loss": 0.5})
        numbers.append(json.loads(note.read_text())["run_id"])
        assert [each.step for each in client.get_metric_history(numbers[-1], "loss")] == [3]
    assert len({*numbers}) == len(losses)
    assert caplog.text.count("a new run of MLflow begins") == len(losses) - 1
    MLflow(experiment="here").require()
    client.delete_experiment(client.get_experiment_by_name("here").experiment_id)
    with pytest.raises(InputRefused, match="experiment: here is deleted on the server; restore it there, or name"):
        MLflow(experiment="here").require()


@pytest.mark.slow
def test_a_server_of_mlflow_that_does_not_answer_is_refused_before_a_run_and_ends_none(tmp_path, monkeypatch, caplog):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:9")
    with pytest.raises(InputRefused, match=r"^MLflow cannot be used: .*localhost:9.*; set MLFLOW_TRACKING_URI to .*$"):
        MLflow().require()
    with closing(MLflowRun(tmp_path, "here", 0, mlflow_client)) as sink:
        sink.add({"update": 3, "time_ms": 1}, {"loss": 0.5})
    assert caplog.text.count("warning: MLflow: API request to http://localhost:9") == 2
    assert "; 1 figures wait" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own
def test_what_the_server_of_mlflow_missed_it_gets_from_the_record_when_the_run_is_resumed(tmp_path, mlflow):
    each = {"value": 0.5, "time_ms": 1, "global_batch_size": 8, "update_seconds": 0.1}
    lines = [{"key": "train_loss", "update": update, **each} for update in range(8)]
    lines += [{"key": "eval_accuracy", "update": update, **each} for update in (2, 4, 6)]
    lines.sort(key=lambda line: line["update"])
    (tmp_path / "run.yaml").write_text("recipe: {epochs: 3}\n")
    for begin, end, away in ((0, 2, False), (2, 4, True), (4, 6, True), (6, 8, False)):

        def client(away=away):
            if away:
                raise OSError("no server there")
            return mlflow_client()

        session = [line for line in lines if begin + (line["key"] != "train_loss") <= line["update"] < end]
        session += [line for line in lines if line["update"] == end and line["key"] != "train_loss"]
        with closing(MLflowRun(tmp_path, "here", begin, client)) as sink:
            with open(tmp_path / "metrics.jsonl", "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in session)
            for line in session:
                sink.add(line, figures(line))
    note = json.loads((tmp_path / "mlflow.json").read_text())
    assert note.keys() == {"run_id", "tracking_uri"}
    there = {name: mlflow.MlflowClient().get_metric_history(note["run_id"], name) for name in ("loss", "eval_accuracy")}
    assert {name: sorted(each.step for each in found) for name, found in there.items()} == {
        "loss": [*range(8)],
        "eval_accuracy": [2, 4, 6],
    }


def test_a_resumed_run_goes_on_without_the_server_of_mlflow(tmp_path, monkeypatch, capsys, caplog):
    def away():
        raise OSError("no disk there")

    monkeypatch.setattr(loggers, "mlflow_client", away)
    monkeypatch.setattr(loggers, "_require_package", lambda *names: None)
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=["extensions=[{kind: MLflow}]"])
    with pytest.raises(InputRefused, match="no disk there; set MLFLOW_TRACKING_URI to a server that runs"):
        require_startable(opened, ranks=1, is_new=True)
    require_startable(opened, ranks=1, is_new=False)
    assert "warning: MLflow cannot be used: no disk there; the run goes on without it" in capsys.readouterr().err
    run = MLflowRun(tmp_path, "here", 0, away)
    run._waiting.append(SimpleNamespace(step=3))
    run.close()
    assert caplog.text.count("warning: MLflow: no disk there; ") == 2
    assert "1 figures are not in it; metrics.jsonl has them" in caplog.text


def test_other_lines_have_no_figures():
    assert figures({"key": "rank_seconds", "value": 3}) == {}
    place = {"update": 3, "epoch": 1.0}
    own = {"norms": {"/conv": 1.0}, "words": "none", "is_done": True, "huge": 10**400, "learning_rate": 0.5}
    assert [figures({"key": key, "value": value, **place}) for key, value in own.items()] == [{}] * len(own)
    line = {"key": "train_loss", "value": 0.5, "learning_rate": 0.1, "momentum": None, "global_batch_size": 8}
    assert figures({**line, "update_seconds": 2.0}) == {
        "loss": 0.5, "learning_rate": 0.1, "global_batch_size": 8, "samples_per_second": 4.0
    }  # fmt: skip


def test_two_tables_in_one_file_are_refused_in_a_new_run():
    def opened(second, *, third="CSV, file", **options):
        overrides = [f"extensions=[{{kind: CSV}}, {{kind: WeightNorms}}, {{kind: {third}: {second}}}]"]
        return open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides, **options)

    what = r"extensions\.2: writes metrics\.csv, and so does `extensions\.0`; give it another name, or remove it"
    with pytest.raises(InputRefused, match=what):
        opened("metrics.csv")
    with pytest.raises(InputRefused, match=what):
        opened("metrics.csv/events", third="TensorBoard, folder")
    assert len(opened("metrics.csv", of_run=True).warnings) == 1
    assert len(opened("b.csv").recipe.extensions) == 3


@pytest.mark.parametrize("path", ["/etc/x.csv", "../x.csv", ""])
def test_files_outside_the_run_are_refused(path):
    with pytest.raises(ValueError, match=r"CSV\.file must be a name such as metrics\.csv, in the run's folder"):
        CSV(file=path)
    with pytest.raises(ValueError, match=r"TensorBoard\.folder must be a path below"):
        TensorBoard(folder=path)


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.jsonl", "log.txt", "checkpoints", "ranks", "code", "stop"])
def test_a_recipe_cannot_write_over_the_files_of_its_run(name):
    with pytest.raises(ValueError, match=r"CSV\.file must be a name such as metrics\.csv"):
        CSV(file=name)
    for folder in (name, f"./{name}/x"):
        with pytest.raises(ValueError, match=r"may be the run's own; write a name such as tensorboard"):
            TensorBoard(folder=folder)
    assert CSV(file="a.csv").file == "a.csv"


@pytest.mark.parametrize("folder", ["logs/board.1", "tb-0.1", "v1.2", ".tb"])
def test_a_folder_of_tensorboard_may_have_a_dot(folder):
    assert TensorBoard(folder=folder).folder == folder


def test_a_missing_package_is_named_before_a_run(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    for kind, package in ((MLflow, "mlflow"), (TensorBoard, "tensorboardX")):
        monkeypatch.delitem(__import__("sys").modules, package, raising=False)
        with pytest.raises(InputRefused, match=f"needs {package}; in the checkout, pip install "):
            kind().require()
