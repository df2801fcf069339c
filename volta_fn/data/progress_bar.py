"""Progress bars around loops: of Rich, of text, or as lines of a log.

A terminal gets a bar of Rich, or without Rich a line that is written anew. So does a notebook: Rich needs ipywidgets there, without which
the line serves. An output that is neither, such as a file, gets a line every ten seconds and one at the end.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from volta_fn.lazy_imports import is_installed
from volta_fn.source import in_notebook

T = TypeVar("T")


class ProgressBar(Generic[T]):
    """An iterable that shows the progress of its loop; made by `progress`."""

    def __init__(self, iterable: Iterable[T], description: str, total: int | None) -> None:
        self._iterable, self._total = iterable, total
        self._display = _display()
        self._task = self._display.add_task(description, total=total, report="")

    def __iter__(self) -> Iterator[T]:
        with self._display:
            for item in self._iterable:
                yield item
                self._display.advance(self._task)

    def __len__(self) -> int:
        return operator.length_hint(self._iterable) if self._total is None else self._total

    def report(self, text: str) -> None:
        """Show a text, such as the latest loss, after the bar."""
        self._display.update(self._task, report=text)

    def describe(self, text: str) -> None:
        """Show a text, such as the latest accuracy, before the bar."""
        self._display.update(self._task, description=text)


def progress(iterable: Iterable[T], description: str = "", total: int | None = None) -> ProgressBar[T]:
    """Wrap `iterable` with a progress bar, which is drawn while a loop runs over it.

    Args:
        iterable: what to loop over.
        description: the text before the bar.
        total: the number of items, by default `len(iterable)`; without a length the bar only shows activity.

    Without the package rich it is a line of text. Where there is neither a terminal nor a notebook, a line is written every ten seconds.

    >>> from volta_fn import data
    >>> bar = data.progress(range(3), "counting")
    >>> for number in bar:
    ...     bar.report(f"at {number}")
    counting 3/3 at 2
    """
    hint = operator.length_hint(iterable, 0) or None
    return ProgressBar(iterable, description, hint if total is None else total)


class _TextBar:
    """The progress as a line of text, written anew at most ten times a second."""

    pause = 0.1

    def __init__(self) -> None:
        self._description, self._report = "", ""
        self._done = 0
        self._total: int | None = None
        self._width, self._written = 0, 0.0

    def add_task(self, description: str, total: int | None, report: str) -> None:
        """Set the description and the total of the line."""
        self._description, self._total, self._report = description, total, report

    def update(self, task: None, description: str | None = None, report: str | None = None) -> None:
        """Change the text before or after the count."""
        self._description = self._description if description is None else description
        self._report = self._report if report is None else report

    def advance(self, task: None) -> None:
        """Count an item."""
        self._done += 1
        if time.monotonic() - self._written >= self.pause:
            self.write()

    def text(self) -> str:
        """Return description, count and report."""
        count = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        return " ".join(filter(None, [self._description, count, self._report]))

    def write(self, end: str = "") -> None:
        """Write the line over the one before."""
        text, self._written = self.text(), time.monotonic()
        sys.stdout.write(f"\r{text.ljust(self._width)}{end}")
        sys.stdout.flush()
        self._width = len(text)

    def __enter__(self) -> None:
        self.write()

    def __exit__(self, *exception: object) -> None:
        self.write("\n")


class _LogLines(_TextBar):
    """The progress as lines of a log, every ten seconds and at the end."""

    pause = 10.0

    def write(self, end: str = "\n") -> None:
        """Write a line."""
        self._written = time.monotonic()
        sys.stdout.write(f"{self.text()}{end}")
        sys.stdout.flush()

    def __enter__(self) -> None:
        self._written = time.monotonic()


def _display() -> Any:
    notebook = in_notebook()
    if not notebook and not sys.stdout.isatty():
        return _LogLines()
    if notebook and not is_installed("ipywidgets"):
        return _TextBar()
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # optional
    except ImportError:
        return _TextBar()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[report]}"))
