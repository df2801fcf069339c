"""A progress bar around a loop, drawn by Rich."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from volta_fn.errors import MissingDependencyError

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

    Raises `MissingDependencyError` if the package rich is not installed.

    >>> from volta_fn import data
    >>> bar = data.progress(range(3), "counting")
    >>> for number in bar:
    ...     bar.report(f"at {number}")
    counting ... 3/3 ... at 2
    """
    hint = operator.length_hint(iterable, 0) or None
    return ProgressBar(iterable, description, hint if total is None else total)


def _display() -> Any:
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingDependencyError("progress bars are drawn by the package rich; install it: pip install rich") from error
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[report]}"))
