"""`debug.print` and `debug.callback`: values of a traced program, when it runs."""

from __future__ import annotations

import builtins
import string
from collections.abc import Callable
from typing import Any

from volta_fn.errors import ArgumentError
from volta_fn.primitives.callbacks import debug_callback


def callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call ``callback(*args, **kwargs)`` with the arrays' values when the program runs; see `volta_fn.primitives.callbacks.debug_callback`.

    >>> import volta_fn as vf
    >>> seen = []
    >>> _ = vf.jit(lambda x: vf.debug.callback(seen.append, x) or x * 2)(1.0)
    >>> seen
    [Array(1., dtype=float32)]
    """
    debug_callback(callback, *args, ordered=ordered, **kwargs)


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print ``fmt.format(*args, **kwargs)`` with the arrays' values when the program runs.

    Raises `ArgumentError` if `fmt` names arguments that are not given.

    >>> import volta_fn as vf
    >>> _ = vf.jit(lambda x: vf.debug.print("x = {}", x) or x)(1.5)
    x = 1.5
    """
    try:
        string.Formatter().format(fmt, *[_Anything()] * len(args), **dict.fromkeys(kwargs, _Anything()))
    except (IndexError, KeyError) as error:
        raise ArgumentError(f"debug.print: the format {fmt!r} names an argument that is not given: {error}") from None
    debug_callback(lambda *values, **named: builtins.print(fmt.format(*values, **named)), *args, ordered=ordered, **kwargs)


class _Anything:
    """Formats under any specification: stands for values that are not known yet."""

    def __format__(self, spec: str) -> str:
        return ""
