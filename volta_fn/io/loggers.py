"""Loggers of numbers by step: CSV, TensorBoard, Weights & Biases, MLflow.

>>> import pathlib, tempfile, volta_fn as vf
>>> with tempfile.TemporaryDirectory() as folder:
...     with CSVLogger(f"{folder}/log.csv") as log:
...         for step in range(2):
...             log(step, loss=vf.numpy.float32(0.5) / (step + 1))
...     print(pathlib.Path(f"{folder}/log.csv").read_text())
step,loss
0,0.5
1,0.25
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from volta_fn.errors import ArgumentError, MissingDependencyError, ShapeError


class Logger:
    """Base of loggers, which are called with a step and numbers by name."""

    def __call__(self, step: int, **values: Any) -> None:
        """Log numbers: Python's, NumPy's, or arrays of one element.

        Raises `ShapeError` for an array of more.
        """
        self._write(int(step), {name: _number(name, value) for name, value in values.items()})

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise ShapeError(f"a logger takes single numbers, but {name!r} has shape {array.shape}; log its mean, or each element by a name")
    number: float = array.item()
    return number


class CSVLogger(Logger):
    """Writes a row for each step to a CSV file, which spreadsheets and pandas read.

    The first row sets the columns. Rows are appended to an existing file, as after a resumed run. Every row is written at once.

    Args:
        path: the file; its folder is created.

    Raises `ArgumentError` for a name that is none of the columns.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+", newline="", encoding="utf-8")
        self._file.seek(0)
        self._columns = next(csv.reader(self._file), [])
        self._file.seek(0, os.SEEK_END)

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        writer = csv.writer(self._file, lineterminator="\n")
        if not self._columns:
            self._columns = ["step", *numbers]
            writer.writerow(self._columns)
        unknown = [name for name in numbers if name not in self._columns[1:]]
        if unknown:
            raise ArgumentError(f"CSVLogger: {self.path} has the columns {self._columns}, so {unknown} cannot be added; use another file")
        writer.writerow([step, *[numbers.get(name, "") for name in self._columns[1:]]])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLogger(Logger):
    """Writes numbers as TensorBoard's scalars, by the package tensorboardX.

    Args:
        folder: the folder of the run, which ``tensorboard --logdir`` shows.

    Raises `MissingDependencyError` if tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415  # optional
        except ImportError as error:
            raise MissingDependencyError("TensorBoardLogger needs the package tensorboardX: pip install 'volta-fn[tensorboard]'") from error
        self._writer = SummaryWriter(os.fspath(folder))

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger(Logger):
    """Sends numbers to a run of Weights & Biases, by the package wandb.

    Args:
        run: a run, as `wandb.init` returns it, or any object with its method ``log(numbers, step=step)``; by default a new one.
        options: the arguments of `wandb.init` for a new run, such as ``project`` and ``config``.

    Closing it finishes a new run, and leaves one that was passed. Raises `MissingDependencyError` if wandb is needed and not installed, and
    `ArgumentError` for options besides a run.

    >>> class Run:
    ...     def log(self, numbers, step):
    ...         print(step, numbers)
    >>> WandbLogger(Run())(3, loss=0.5)
    3 {'loss': 0.5}
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        if run is not None and options:
            raise ArgumentError(f"WandbLogger: the options {sorted(options)} are for a new run; leave the run or them out")
        self._is_new = run is None
        if run is None:
            try:
                import wandb  # noqa: PLC0415  # optional
            except ImportError as error:
                raise MissingDependencyError("WandbLogger needs the package wandb: pip install wandb") from error
            run = wandb.init(**options)
        self.run = run

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        """Finish a new run."""
        if self._is_new:
            self.run.finish()


class MLflowLogger(Logger):
    """Sends numbers to the active run of MLflow, by the package mlflow.

    Args:
        client: the module mlflow, or any object with its functions ``log_metrics(numbers, step=step)``, ``start_run`` and ``end_run``.
        options: the arguments of `mlflow.start_run`, such as ``run_name``, for a new run; without them, the active run is used, which
            MLflow starts if there is none.

    Closing it ends a run that it started. Raises `MissingDependencyError` if mlflow is needed and not installed.

    >>> class Client:
    ...     def log_metrics(self, numbers, step):
    ...         print(step, numbers)
    >>> MLflowLogger(Client())(3, loss=0.5)
    3 {'loss': 0.5}
    """

    def __init__(self, client: Any = None, **options: Any) -> None:
        if client is None:
            try:
                import mlflow  # noqa: PLC0415  # optional
            except ImportError as error:
                raise MissingDependencyError("MLflowLogger needs the package mlflow: pip install mlflow") from error
            client = mlflow
        self.client = client
        self._is_new = bool(options)
        if options:
            self.client.start_run(**options)

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        self.client.log_metrics(numbers, step=step)

    def close(self) -> None:
        """End a run that the logger started."""
        if self._is_new:
            self.client.end_run()
