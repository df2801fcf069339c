"""`debug.print` and `debug.callback`: values of a traced program, when it runs."""

from __future__ import annotations

import builtins
import string
from collections.abc import Callable
from typing import Any

from volta_fn.errors import ArgumentError
from volta_fn.primitives.callbacks import debug_callback


def callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call ``callback(*args, **kwargs)`` with the arrays' values at run time.

    See `volta_fn.primitives.callbacks.debug_callback`.

    >>> import volta_fn as vf
    >>> seen = []
    >>> _ = vf.jit(lambda x: vf.debug.callback(seen.append, x) or x * 2)(1.0)
    >>> seen
    [Array(1., dtype=float32)]
    """
    debug_callback(callback, *args, ordered=ordered, **kwargs)


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print ``fmt.format(*args, **kwargs)`` with the arrays' values at run time.

    Raises `ArgumentError` if `fmt` names arguments that are not given, or not all that are.

    >>> import volta_fn as vf
    >>> _ = vf.jit(lambda x: vf.debug.print("x = {}", x) or x)(1.5)
    x = 1.5
    """
    checker = _Checker()
    try:
        checker.format(fmt, *args, **kwargs)
    except (IndexError, KeyError, AttributeError) as error:
        raise ArgumentError(f"debug.print: the format {fmt!r} names an argument that is not given: {error}") from None
    if checker.unused:
        raise ArgumentError(
            f"debug.print: the format {fmt!r} does not use the arguments {checker.unused}. Name each of them in braces; "
            "an f-string would format them before they have values."
        )
    debug_callback(lambda *values, **named: builtins.print(fmt.format(*values, **named)), *args, ordered=ordered, **kwargs)


class _Checker(string.Formatter):
    """Looks up the arguments that a format names; their values may be unknown yet."""

    def __init__(self) -> None:
        self.unused: list[Any] = []

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value

    def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
        self.unused = [name for name in (*range(len(args)), *kwargs) if name not in used_args]
