"""What a program's results are: by itself, so that programs that are kept on disk run without the compiler's modules."""

from __future__ import annotations

from typing import Any, NamedTuple


class Output(NamedTuple):
    """A result: an array that the program makes (by number), an argument, or a constant, in a shape."""

    made: int | None
    argument: int | None
    constant: Any
    shape: tuple[int, ...]
