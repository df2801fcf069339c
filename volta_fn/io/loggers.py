"""Loggers of numbers by step: CSV, TensorBoard, W&B, MLflow, and a plot.

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
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from volta_fn.core.arrays.html import escaped
from volta_fn.errors import ArgumentError, MissingDependencyError, ShapeError
from volta_fn.source import in_notebook


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


# A plot of numbers by step that grows while a program trains.
#
# It is shown in a notebook or in a page, as SVG with a panel for each name. It needs no other package, follows dark mode, and holds at most
# some hundred points of each line: of many steps it shows the least and the greatest number of each group.

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 368, 200, 64, 26
#: The most groups of steps that a line shows.
_GROUPS = 250
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{refresh}<link rel="icon" href="data:,"><style>
:root{{color-scheme:light dark}}body{{font:14px system-ui,sans-serif;margin:16px;color:CanvasText;background:Canvas}}
</style></head><body><h1 style="font-size:18px">{title}</h1>{plot}</body></html>
"""


class LivePlot(Logger):
    """A logger that draws its numbers, in a notebook's output or in a page.

    In a notebook the plot of the cell is replaced as it grows. With a path, a page is written that loads itself anew until the plot is
    closed; open it in a browser. Both are drawn at most once in `interval` seconds, and when the plot is closed.

    Args:
        path: the page to write; its folder is created. In a notebook it may be left out.
        title: the title of the page.
        interval: the least number of seconds between two drawings.
        log_scale: names whose vertical axis is logarithmic, as soon as all of their numbers are positive.

    Raises `ArgumentError` without a path outside of notebooks.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LivePlot(f"{folder}/losses.html") as log:
    ...         for step in range(100):
    ...             log(step, loss=1 / (step + 1))
    ...     print(pathlib.Path(f"{folder}/losses.html").read_text().count("<polyline"))
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        title: str = "Training",
        interval: float = 1.0,
        log_scale: Sequence[str] = (),
    ) -> None:
        self.path = None if path is None else Path(path)
        self._display: Any = None if self.path is not None else _notebook_display()
        if self.path is None and self._display is None:
            raise ArgumentError("LivePlot: there is no notebook to draw in; give the path of a page, LivePlot('losses.html')")
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.title, self.interval, self.log_scale = title, interval, frozenset(log_scale)
        self._lines: dict[str, list[tuple[int, float]]] = {}
        self._drawn = -math.inf
        self._handle: Any = None

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self._lines.setdefault(name, []).append((step, number))
        if time.monotonic() - self._drawn >= self.interval:
            self._draw(f"<meta http-equiv='refresh' content='{max(1, math.ceil(self.interval))}'>")

    def _draw(self, refresh: str = "") -> None:
        self._drawn = time.monotonic()
        if self.path is not None:
            page = _PAGE.format(title=escaped(self.title), refresh=refresh, plot=self._repr_html_())
            partial = self.path.with_name(f"{self.path.name}.part")  # a browser may read the page at any moment
            partial.write_text(page, encoding="utf-8")
            partial.replace(self.path)
        elif self._handle is None:
            self._handle = self._display(self, display_id=True)
        else:
            self._handle.update(self)

    def _repr_html_(self) -> str:
        return "".join(_panel(name, points, name in self.log_scale) for name, points in self._lines.items()) or "<p>No numbers yet.</p>"

    def close(self) -> None:
        """Draw all numbers; the page does not load itself anew any more."""
        self._draw()


def _notebook_display() -> Any:
    """Return IPython's function that shows an object, None outside of notebooks."""
    if not in_notebook():
        return None
    from IPython.display import display  # noqa: PLC0415  # there is one in a notebook alone

    return display


# A panel: the axes, the line, the latest number.


def _panel(name: str, points: Sequence[tuple[int, float]], log_scale: bool) -> str:
    steps, values = np.array([s for s, _ in points], np.float64), np.array([v for _, v in points], np.float64)
    finite = np.isfinite(values)
    logarithmic = log_scale and bool((values[finite] > 0).all())
    heights = np.log10(values, where=finite, out=np.full_like(values, np.nan)) if logarithmic else np.where(finite, values, np.nan)
    lost = f", {len(values) - int(finite.sum())} not finite" if not finite.all() else ""
    head = f"<text x='{_LEFT}' y='14'>{escaped(name)} {values[-1]:.4g} at step {int(steps[-1])}{lost}</text>"
    drawn = [head, *_drawn(steps, heights, logarithmic)] if finite.any() else [head]
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' height='{_HEIGHT}' role='img' "
        f"aria-label='{escaped(name)} by step' fill='currentColor' font-size='11' font-family='system-ui,sans-serif'>{''.join(drawn)}</svg>"
    )


def _drawn(steps: np.ndarray, heights: np.ndarray, logarithmic: bool) -> Iterator[str]:
    """Yield the grid and the line of a panel."""
    low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
    margin = 0.1 * abs(low) or 1.0
    low, high = (low - margin, high + margin) if low == high else (low, high)
    first, last = float(steps.min()), max(float(steps.max()), float(steps.min()) + 1)

    def at(step: float, height: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - 8) * (step - first) / (last - first)
        return x, 22 + (_HEIGHT - 22 - _BOTTOM) * (high - height) / (high - low)

    for height in (low, (low + high) / 2, high):
        y = at(first, height)[1]
        label = f"{10**height if logarithmic else height:.3g}"
        yield f"<path d='M{_LEFT} {y:.1f}H{_WIDTH - 8}' stroke='currentColor' stroke-opacity='.2'/>"
        yield f"<text x='{_LEFT - 5}' y='{y + 4:.1f}' text-anchor='end'>{label}</text>"
    for step, anchor in ((first, "start"), (last, "end")):
        yield f"<text x='{at(step, low)[0]:.1f}' y='{_HEIGHT - 8}' text-anchor='{anchor}'>{step:g}</text>"
    for piece in _pieces(steps, heights):
        corners = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in piece)
        yield f"<polyline points='{corners}' fill='none' stroke='#0969da' stroke-width='1.5' stroke-linejoin='round'/>"


def _pieces(steps: np.ndarray, heights: np.ndarray) -> Iterator[list[tuple[float, float]]]:
    """Yield the runs of finite numbers, thinned out."""
    size = max(1, math.ceil(len(steps) / _GROUPS))
    piece: list[tuple[float, float]] = []
    for start in range(0, len(steps), size):
        group = slice(start, start + size)
        values = heights[group]
        if np.isnan(values).all():
            if piece:
                yield piece
            piece = []
            continue
        for i in sorted({int(np.nanargmin(values)), int(np.nanargmax(values))}):
            piece.append((float(steps[group][i]), float(values[i])))
    if piece:
        yield [*piece, piece[0]] if len(piece) == 1 else piece
