"""Loops and choices whose bodies give nothing."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.text import Function, Value


def each(f: Function, start: Value, end: Value, body: Callable[[Value], None], step: int = 1) -> None:
    """``for index in range(start, end, step): body(index)``."""

    def turn(index: Value, _: list[Value]) -> list[Value]:
        body(index)
        return []

    f.loop(start, end, step, [], turn)


def when(f: Function, condition: Value, yes: Callable[[], None], no: Callable[[], None] | None = None) -> None:
    """``if condition: yes() else: no()``."""

    def first() -> list[Value]:
        yes()
        return []

    def second() -> list[Value]:
        if no is not None:
            no()
        return []

    f.branch(condition, first, second if no is not None else None)
