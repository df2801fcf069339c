"""Where in the user's code something happened.

A *user frame* is the innermost Python frame that belongs neither to this package nor to the machinery between it and the
user (optree, functools, contextlib, the start of a thread). Every traced equation and every error records one, so finding it must
cost about a microsecond: `user_code_position` returns the raw code object and line, from which a `SourceLocation` is built when asked
for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType, FrameType

_INTERNAL = frozenset({"volta_fn", "optree", "functools", "contextlib", "threading", "concurrent"})
#: Whether a module is one of those or in one, for modules that were met: tracing asks ten times for each equation.
_is_internal: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the user's program: the file's path, the line's number, the function's qualified name.

    >>> str(SourceLocation("train.py", 12, "loss"))
    'train.py:12 (loss)'
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"

    @classmethod
    def of(cls, position: tuple[CodeType, int]) -> SourceLocation:
        """The location that a raw position from `user_code_position` stands for."""
        code, line = position
        return cls(code.co_filename, line, code.co_qualname)


def user_code_position() -> tuple[CodeType, int] | None:
    """The innermost user frame's code object and line number; None if every frame is the package's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        internal = _is_internal.get(module)
        if internal is None:
            internal = _is_internal[module] = module.partition(".")[0] in _INTERNAL
        if not internal:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def user_location() -> SourceLocation | None:
    """The line of the user's program that runs now; None if there is none."""
    position = user_code_position()
    return None if position is None else SourceLocation.of(position)
