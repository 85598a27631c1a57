"""Extensions that give the figures of a run to other programs: TensorBoard, MLflow, and tables as CSV."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import InputRefused
from trainers.runs.run_folder import METRICS

if TYPE_CHECKING:
    from chainer.training import Extension, Trainer


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Writes loss, rate, batch and scores as event files, by tensorboardX, which needs no TensorFlow.

    `tensorboard --logdir runs` shows the runs in a folder. A resumed run replaces the steps after its checkpoint.

    Args:
        folder: in the folder of the run.
    Raises:
        ValueError: `folder` leads out of the run's folder.
    """

    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        _require_inside("TensorBoard.folder", self.folder)

    def require(self) -> None:
        """Refuse to begin where tensorboardX is missing."""
        _require_package("TensorBoard", "tensorboardX", "tensorboard")

    def build(self) -> Extension:
        """The extension; it communicates nothing."""
        from trainers.training.extensions.figure_sinks import EventFiles, Logger

        def opened(trainer: Trainer) -> EventFiles:
            out = Path(trainer.out)
            return EventFiles(out / self.folder, trainer.updater.iteration, out / METRICS)

        return Logger(opened)


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """Sends loss, rate, batch and scores to MLflow, once an epoch, and the recipe's values as parameters.

    The server is the one of MLFLOW_TRACKING_URI, or MLflow's default; a run does not begin if it does not answer. A
    resumed run continues the run in MLflow, and sends the steps after its checkpoint again; if that run is lost there,
    a new one begins. If the server fails later on, the run goes on and warns.

    Args:
        experiment: the name that MLflow groups runs by.
    """

    experiment: str = "kilobatch"

    def require(self) -> None:
        """Refuse to begin where MLflow is missing, or its server does not take the experiment."""
        _require_package("MLflow", "mlflow", "mlflow")
        try:
            found = mlflow_client().get_experiment_by_name(self.experiment)
        except Exception as error:  # of MLflow, its data base or the system
            why = " ".join(str(error).split())
            way_out = "set MLFLOW_TRACKING_URI to a server that runs, or leave MLflow out of the extensions"
            raise InputRefused(f"MLflow cannot be used: {why}; {way_out}") from error
        if found is not None and found.lifecycle_stage != "active":
            what = f"MLflow.experiment: {self.experiment} is {found.lifecycle_stage} on the server"
            raise InputRefused(f"{what}; restore it there, or name another")

    def build(self) -> Extension:
        """The extension; it communicates nothing between ranks."""
        from trainers.training.extensions.figure_sinks import Logger, MLflowRun

        return Logger(lambda trainer: MLflowRun(Path(trainer.out), self.experiment))


@dataclass(frozen=True, kw_only=True)
class CSV:
    """Writes loss, rate, batch and scores as a table, a line an update or an evaluation.

    The columns are update, epoch and samples, then the figures; those that a line has not are empty. A resumed run cuts
    the lines after its checkpoint.

    Args:
        file: in the folder of the run.
    Raises:
        ValueError: `file` leads out of the run's folder.
    """

    file: str = "metrics.csv"

    def __post_init__(self) -> None:
        _require_inside("CSV.file", self.file)

    def build(self) -> Extension:
        """The extension; it communicates nothing."""
        from trainers.training.extensions.figure_sinks import Logger, Table

        return Logger(lambda trainer: Table(Path(trainer.out) / self.file, trainer.updater.iteration))


def mlflow_client() -> Any:
    """The client of MLflow's server, which gives up soon where that does not answer."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its default waits for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    return MlflowClient()


def _require_inside(name: str, path: str) -> None:
    if Path(path).is_absolute() or not Path(path).parts or ".." in Path(path).parts:
        raise ValueError(f"{name} must be a path below the run's folder, got {path!r}")


def _require_package(kind: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise InputRefused(f"{kind} needs {package}; type in the checkout: pip install '.[{extra}]'")
