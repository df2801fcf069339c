"""Samples of reductions, over one axis, several and all, of empty arrays too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.laws.integers import extremes
from tests.samples.sample import INEXACT, INTEGERS, REALS, Arg, Draw, Sample, constant, distinct, normal, uniform
from volta_fn import lax
from volta_fn.primitives.reduction import highest, lowest

_SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("", (2, 3, 4), (1,)),
    ("two-axes", (2, 3, 4), (0, 2)),
    ("all", (3, 2), (0, 1)),
    ("odd", (5,), (0,)),
    ("one", (1, 2), (0,)),
    ("empty-axis", (2, 0), (1,)),
    ("empty-rest", (0, 3), (1,)),
)


def _family(name: str, ufunc: Any, names: tuple[str, ...], draw: Draw, suffix: str = "", **options: Any) -> Iterator[Sample]:
    """Yield a reduction over every shape, the first in every dtype, the others in two."""
    reduce = getattr(lax, name)
    for label, shape, axes in _SHAPES:
        yield Sample(
            name,
            lambda x, axes=axes: reduce(x, axes),
            (Arg(shape, draw),),
            lambda x, axes=axes: _reduced(ufunc, x, axes),
            dtypes=names if not label else (names[0], names[-1]),
            label=label + suffix,
            **options,
        )


def _reduced(ufunc: Any, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Reduce by NumPy in the operand's dtype; extrema of no elements are the identity."""
    if ufunc in (np.maximum, np.minimum):
        start = (lowest if ufunc is np.maximum else highest)(x.dtype)
        return ufunc.reduce(x, axes, initial=start)
    return ufunc.reduce(x, axes, dtype=x.dtype)


_WITH_ZEROS = np.array([[0.0, 2.0, 0.0], [1.5, -1.0, 0.0], [0.5, 3.0, 0.7], [-2.0, 0.3, 1.1]])

_BITS = ("bool", *INTEGERS)
_REAL = ("bool", *REALS)

SAMPLES = [
    *_family("reduce_sum", np.add, INEXACT, normal(), linear=(0,)),
    *_family("reduce_sum", np.add, INTEGERS, extremes, "whole"),
    *_family("reduce_prod", np.multiply, INEXACT, uniform(0.5, 1.5)),
    *_family("reduce_prod", np.multiply, INTEGERS, extremes, "whole"),
    # The product of others is the derivative even where factors are zero.
    Sample(
        "reduce_prod",
        lambda x: lax.reduce_prod(x, (0,)),
        (Arg((4, 3), constant(_WITH_ZEROS)),),
        lambda x: np.prod(x, 0),
        dtypes=INEXACT,
        label="zeros",
    ),
    *_family("reduce_max", np.maximum, _REAL, distinct()),
    *_family("reduce_min", np.minimum, _REAL, distinct()),
    *_family("reduce_and", np.bitwise_and, _BITS, extremes),
    *_family("reduce_or", np.bitwise_or, _BITS, extremes),
    *_family("reduce_xor", np.bitwise_xor, _BITS, extremes),
]
