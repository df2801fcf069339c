"""Samples of the primitives that hold sub-programs: cond, scan, while."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import FLOATS, INEXACT, NUMBERS, Arg, Sample, integers, uniform
from volta_fn import lax


def _bilinear(x: Any, y: Any) -> Any:
    return x * y, x + y


def _swapped(x: Any, y: Any) -> Any:
    return y * y, x - y


def _constant(x: Any, y: Any) -> Any:
    return y, y


def _switch(index: Any, x: Any, y: Any) -> Any:
    return lax.switch(index, [_bilinear, _swapped, _constant], x, y)


def _cond(pred: Any, x: Any, y: Any) -> Any:
    return lax.cond(pred, lambda a: a * y, lambda a: a + y * y, x)


def _recurrence(carry: Any, row: Any) -> Any:
    return carry * row + 1, carry


def _scan(start: Any, rows: Any, factor: Any) -> Any:
    return lax.scan(lambda c, x: _recurrence(c, x * factor), start, rows)


def _scan_reference(start: Any, rows: Any, factor: Any, reverse: bool = False) -> Any:
    carry, ys = start, [np.zeros_like(start)] * len(rows)
    for i in range(len(rows) - 1, -1, -1) if reverse else range(len(rows)):
        carry, ys[i] = _recurrence(carry, rows[i] * factor)
    return carry, np.array(ys).reshape(rows.shape)


def _running_sum(rows: Any) -> Any:
    return lax.scan(lambda c, x: (c + x, c + x), lax.reduce_sum(rows, (0,)) * 0, rows, reverse=True)[1]


def _counted(x: Any, factor: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * factor + x), (0, x))[1]


def _counted_reference(x: Any, factor: Any) -> Any:
    value = x
    for _ in range(3):
        value = value * factor + x
    return value


def _doubled(x: Any) -> Any:
    return lax.while_loop(lambda value: value < 10, lambda value: value * 2, x)


def _doubled_reference(x: Any) -> Any:
    while x < 10:
        x = x * 2
    return x


SAMPLES = [
    Sample(
        "cond",
        _switch,
        (Arg((), integers(0, 3), dtype="int32"), Arg((2, 3)), Arg((2, 3))),
        reference=lambda i, x, y: [_bilinear, _swapped, _constant][i](x, y),
        dtypes=NUMBERS,
        label="switch",
    ),
    Sample(
        "cond",
        _cond,
        (Arg((), dtype="bool"), Arg((3,)), Arg()),
        reference=lambda p, x, y: x * y if p else x + y * y,
        dtypes=INEXACT,
        label="captured",
    ),
    Sample("scan", _scan, (Arg((2,)), Arg((4, 2)), Arg((2,))), reference=_scan_reference, dtypes=NUMBERS, label="recurrence"),
    Sample("scan", _scan, (Arg((2,)), Arg((0, 2)), Arg((2,))), reference=_scan_reference, label="no-steps"),
    Sample("scan", _scan, (Arg(), Arg((3,)), Arg()), reference=_scan_reference, dtypes=FLOATS, label="scalars"),
    Sample(
        "scan",
        _running_sum,
        (Arg((4, 2)),),
        reference=lambda rows: np.cumsum(rows[::-1], 0)[::-1],
        dtypes=INEXACT,
        linear=(0,),
        label="reverse-linear",
    ),
    Sample("while", _counted, (Arg((2,)), Arg((2,))), reference=_counted_reference, dtypes=NUMBERS, reverse=False, label="counted"),
    Sample(
        "while",
        _doubled,
        (Arg((), uniform(1.0, 1.9, avoid=(1.25,))),),
        reference=_doubled_reference,
        dtypes=FLOATS,
        reverse=False,
        label="data-dependent",
    ),
]
