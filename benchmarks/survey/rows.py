"""A row of the survey: a function by its name, and arguments for some elements."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

#: Arrays for a function, from a generator of random numbers and a number of elements.
Maker = Callable[[np.random.Generator, int], tuple[Any, ...]]


class Row(NamedTuple):
    """A function of the survey.

    Attributes:
        name: the module of `MODULES`, a dot and the function's name; after a blank, which variant of the call it is.
        make: its arrays.
        call: calls the function with the arrays.
        largest: the most elements it is called with: its time may grow faster than they do.
        defined: whether its definition leaves no choice of the result, which can then be compared.
    """

    name: str
    make: Maker
    call: Callable[..., Any]
    largest: int = 10**6
    defined: bool = True

    def path(self) -> tuple[str, str]:
        """Return the module and the function's name."""
        module, function = self.name.split()[0].rsplit(".", 1)
        return module, function


def plain(function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function with its arrays and nothing else."""
    return function(*arrays)


def rows(
    module: str,
    names: str,
    make: Maker,
    call: Callable[..., Any] = plain,
    variant: str = "",
    *,
    largest: int = 10**6,
    defined: bool = True,
) -> list[Row]:
    """Make the rows of functions that are called alike."""
    return [Row(f"{module}.{name} {variant}".strip(), make, call, largest, defined) for name in names.split()]


# Makers


def normal(*dtypes: str) -> Maker:
    """Make flat arrays of normal numbers."""
    return lambda rng, n: tuple([rng.normal(size=n).astype(dtype) for dtype in dtypes])


def between(low: float, high: float, count: int = 1, dtype: str = "float32") -> Maker:
    """Make flat arrays of numbers between two others, of integers if the dtype is."""

    def make(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        draw: Callable[..., Any] = rng.integers if np.dtype(dtype).kind in "iu" else rng.uniform
        return tuple([draw(low, high, n).astype(dtype) for _ in range(count)])

    return make


def matrices(count: int = 1, dtype: str = "float32") -> Maker:
    """Make square matrices of normal numbers, with about the number of elements."""
    return lambda rng, n: tuple([rng.normal(size=(isqrt(n), isqrt(n))).astype(dtype) for _ in range(count)])


def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    """Make rows of 100 normal numbers."""
    return (rng.normal(size=(n // 100, 100)).astype(np.float32),)


def each(*makers: Maker) -> Maker:
    """Make the arrays of several makers."""
    return lambda rng, n: tuple([array for make in makers for array in make(rng, n)])


def with_options(*after: Any, **options: Any) -> Callable[..., Any]:
    """Call a function with more arguments after its arrays."""
    return lambda function, *arrays: function(*arrays, *after, **options)


def listed(*after: Any, **options: Any) -> Callable[..., Any]:
    """Call a function with a list of its arrays."""
    return lambda function, *arrays: function(list(arrays), *after, **options)
