"""Tracebacks of uncaught errors without this package's own frames.

They end at the user's line and the function of this package that it called, in notebooks at the user's line.
`VOLTA_TRACEBACK_FILTERING=off` shows all frames, as does whatever reads `error.__traceback__` itself. Errors that this package does not
raise on purpose keep every frame below the user's.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

from volta_fn.errors import VoltaError
from volta_fn.lazy_imports import deferred
from volta_fn.source import ipython, is_internal

_ADVICE = deferred("volta_fn.advice")
_HINT = "The frames inside volta_fn are not shown: set VOLTA_TRACEBACK_FILTERING=off to see them."


def shortened(error: BaseException, retained: int = 1) -> TracebackType | None:
    """Return an error's traceback with a single frame of this package, or so many.

    An error from elsewhere that the package did not expect keeps all frames after the user's last.
    """
    frames = _entries(error.__traceback__)
    user_frames = [i for i, frame in enumerate(frames) if not is_internal(frame.tb_frame.f_globals.get("__name__", ""))]
    if not user_frames:
        return error.__traceback__
    last = user_frames[-1] + 1
    end = last + retained if _is_expected(error) else None
    visible = [frames[i] for i in user_frames] + frames[last:end]
    short = None
    for frame in reversed(visible):
        short = TracebackType(short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return short


def _is_expected(error: BaseException) -> bool:
    """Return True for a mistake that the package found, or Python in its calls."""
    return isinstance(error, (VoltaError, _ADVICE.UnknownName)) or _note(error) is not None


def _note(error: BaseException) -> str | None:
    """Return a note on the right argument for Python's error of a call."""
    note: str | None = _ADVICE.note_of_call(str(error)) if type(error) is TypeError else None
    return note


def shorten(error: BaseException, retained: int = 1) -> bool:
    """Shorten the tracebacks of an error and its causes; return whether any was."""
    lost = False
    current: BaseException | None = error
    while current is not None:
        before, short = len(_entries(current.__traceback__)), shortened(current, retained)
        current.__traceback__ = short
        lost |= len(_entries(short)) < before
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return lost


def _entries(entry: TracebackType | None) -> list[TracebackType]:
    """Return the entries of a traceback, however many."""
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _is_on() -> bool:
    return os.environ.get("VOLTA_TRACEBACK_FILTERING") != "off"


def _show(kind: type[BaseException], error: BaseException, entry: TracebackType | None) -> None:
    """Print an uncaught error, in place of `sys.__excepthook__`."""
    lost = _is_on() and shorten(error)
    _explain(error)
    deferred("traceback").print_exception(error)
    if lost:
        print(_HINT, file=sys.stderr)


def _explain(error: BaseException) -> None:
    """Add a note on the right argument to Python's error of a call."""
    if (note := _note(error)) is not None:
        error.add_note(note)


def _show_in_notebook(shell: Any, kind: type[BaseException], error: BaseException, entry: Any, tb_offset: int | None = None) -> None:
    if _is_on():
        shorten(error, 0)  # IPython shows the code of a whole function
    _explain(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset, running_compiled_code=True)


def install() -> None:
    """Show uncaught errors in this way, unless another hook is installed."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    shell = ipython()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), _show_in_notebook)  # those of users' functions, too, which the package called
