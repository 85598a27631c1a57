"""Extensions that give the figures of a run to other programs: TensorBoard, MLflow, and tables as CSV."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import InputRefused
from recipes.extras import install
from recipes.reading.open import CODE
from trainers.runs.errors import ServiceAway
from trainers.runs.identity import IDENTITY
from trainers.runs.run_folder import (
    CHECKPOINTS,
    DATASET,
    ENVIRONMENT,
    EVALUATION,
    INIT,
    LOG,
    METRICS,
    MLFLOW_NOTE,
    PROFILE,
    RANKS,
    RECIPE,
    REPORT,
    RUN,
    SOURCES,
    TRACE,
    refuse_links,
)
from trainers.runs.stop_request import STOP_FILE

if TYPE_CHECKING:
    from chainer.training import Extension, Trainer

_OF_THE_RUN = (CHECKPOINTS, CODE, EVALUATION, RANKS, SOURCES, STOP_FILE, RUN, RECIPE, DATASET, INIT, METRICS, TRACE)
_OF_THE_RUN += (PROFILE, LOG, ENVIRONMENT, REPORT, IDENTITY, MLFLOW_NOTE)


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Writes loss, rate, batch, scores and numbers of extensions as event files.

    They are written by tensorboardX, which needs no TensorFlow.
    `tensorboard --logdir runs` shows the runs in a folder. A resumed run replaces the steps after its checkpoint.

    Args:
        folder: in the folder of the run; its first name is none of the run's own files.
    Raises:
        ValueError: `folder` leads out of the run's folder, or to the run's own files.
    """

    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        parts = Path(self.folder).parts
        if Path(self.folder).is_absolute() or not parts or ".." in parts:
            raise ValueError(f"TensorBoard.folder must be a path below the run's folder, got {self.folder!r}")
        if parts[0] in _OF_THE_RUN:
            raise ValueError(
                f"TensorBoard.folder {self.folder!r} may be the run's own; write a name such as tensorboard"
            )

    @property
    def table(self) -> str:
        """The file or folder of the run that no other extension of the recipe may write."""
        return Path(self.folder).parts[0]

    def require(self) -> None:
        """Refuse to begin where tensorboardX is missing."""
        _require_package("TensorBoard", "tensorboardX", "tensorboard")

    def build(self) -> Extension:
        """The extension; it communicates nothing."""
        from trainers.training.extensions.figure_sinks import EventFiles, Logger

        def opened(trainer: Trainer) -> EventFiles:
            out = Path(trainer.out)
            refuse_links(out, self.table)
            return EventFiles(out / self.folder, trainer.updater.iteration, out / METRICS)

        return Logger("TensorBoard", opened)


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """Sends loss, rate, batch, scores and numbers of extensions to MLflow, once an epoch, and the recipe's values.

    The server is the one of MLFLOW_TRACKING_URI, or MLflow's default; a new run does not begin if it does not answer. A
    resumed run continues the run in MLflow, and sends the steps after its checkpoint again; if that run is lost there,
    a new one begins. If the server fails later on, or does not answer a resumed run, that goes on and warns; a later
    session sends what the server lacks.

    Args:
        experiment: the name that MLflow groups runs by.
    """

    experiment: str = "kilobatch"

    def require(self) -> None:
        """Refuse to begin where MLflow is missing, or its server does not take the experiment (`ServiceAway`)."""
        _require_package("MLflow", "mlflow", "mlflow")
        try:
            found = mlflow_client().get_experiment_by_name(self.experiment)
        except Exception as error:  # of MLflow, its data base or the system
            why = " ".join(str(error).split())
            way_out = "set MLFLOW_TRACKING_URI to a server that runs, or leave MLflow out of the extensions"
            raise ServiceAway(f"MLflow cannot be used: {why}", way_out) from error
        if found is not None and found.lifecycle_stage != "active":
            what = f"MLflow.experiment: {self.experiment} is {found.lifecycle_stage} on the server"
            raise ServiceAway(what, "restore it there, or name another")

    def build(self) -> Extension:
        """The extension; it communicates nothing between ranks."""
        from trainers.training.extensions.figure_sinks import Logger, MLflowRun

        def opened(trainer: Trainer) -> MLflowRun:
            return MLflowRun(Path(trainer.out), self.experiment, trainer.updater.iteration, mlflow_client)

        return Logger("MLflow", opened)


@dataclass(frozen=True, kw_only=True)
class CSV:
    """Writes loss, rate, batch, scores and numbers of extensions as a table, a line for each time they were written.

    The columns are update, epoch and samples, then the figures; those that a line has not are empty. The first number
    under a key of an extension adds its column at the end. A resumed run keeps the columns, and cuts the lines after
    its checkpoint.

    Args:
        file: a name that ends in .csv, as none of the run's own files; in the folder of the run.
    Raises:
        ValueError: it is no such name.
    """

    file: str = "metrics.csv"

    def __post_init__(self) -> None:
        if Path(self.file).parts != (self.file,) or not self.file.endswith(".csv"):
            raise ValueError(f"CSV.file must be a name such as metrics.csv, in the run's folder, got {self.file!r}")

    @property
    def table(self) -> str:
        """The file of the run that no other extension of the recipe may write."""
        return self.file

    def build(self) -> Extension:
        """The extension; it communicates nothing."""
        from recipes.schema.vocabulary import metric_name
        from trainers.training.extensions.figure_sinks import Logger, Table

        def table(trainer: Any) -> Table:
            names = [metric_name(metric) for metric in trainer.updater.plan.recipe.evaluation.metrics]
            return Table(Path(trainer.out) / self.file, trainer.updater.iteration, metrics=names)

        return Logger("CSV", table)


def mlflow_client() -> Any:
    """The client of MLflow's server, which gives up soon where that does not answer."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its default waits for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    return MlflowClient()


def _require_package(kind: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise InputRefused(f"{kind} needs {package}; {install(extra)}")
