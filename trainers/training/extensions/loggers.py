"""Extensions that give the figures of a run to other programs: TensorBoard, MLflow, and tables as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.errors import InputRefused

if TYPE_CHECKING:
    from chainer.training import Extension


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

        return Logger(lambda trainer: EventFiles(Path(trainer.out) / self.folder, trainer.updater.iteration))


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """Sends loss, rate, batch and scores to MLflow, once an epoch, and the recipe's values as parameters.

    The server is the one of MLFLOW_TRACKING_URI, or MLflow's default. A resumed run continues the run in MLflow, and
    sends the steps after its checkpoint again. If the server fails later on, the run goes on and warns.

    Args:
        experiment: the name that MLflow groups runs by.
    """

    experiment: str = "kilobatch"

    def require(self) -> None:
        """Refuse to begin where MLflow is missing."""
        _require_package("MLflow", "mlflow", "mlflow")

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


def _require_inside(name: str, path: str) -> None:
    if Path(path).is_absolute() or not Path(path).parts or ".." in Path(path).parts:
        raise ValueError(f"{name} must be a path below the run's folder, got {path!r}")


def _require_package(kind: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise InputRefused(f"{kind} needs {package}; type in the checkout: pip install '.[{extra}]'")
