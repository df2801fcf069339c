"""Calls: one way to call each public function, from which its row in docs/api.md follows.

A *call* says with which arguments a function is tried. The arrays among them are what it is traced, batched and differentiated by; all
else is given to it as it is. The function of the same path in NumPy, SciPy or JAX, with the same arguments, is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)


def numbers(shape: tuple[int, ...], low: float = -3.0, high: float = 3.0, dtype: str = "float32") -> np.ndarray:
    """Return numbers between bounds, no two alike, in no order."""
    count = int(np.prod(shape))
    values = np.linspace(low, high, count + 2)[1:-1] + (high - low) / (count + 2) * 0.25
    return RNG.permutation(values).reshape(shape).astype(dtype)


@dataclass(frozen=True)
class Call:
    """A way to call a function.

    Attributes:
        args: the positional arguments; NumPy arrays are traced.
        kwargs: arguments by name, which are not traced.
        grad: whether it has derivatives by its floating arrays.
        jit: whether it can be traced, and thus jitted and batched.
        alike: whether the examples of a batch must be alike, as reordered numbers would not be valid.
        theirs: the oracle: "library" for the function of the namespace's own library (`laws.oracle`), "jax" for that of JAX, a function of
            the arguments, or None: another test compares its values.
        through: makes of the function the one that is called: for classes, and for functions that return functions.
        tolerance: the relative error allowed in float32.
        note: what users should know.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    grad: bool = True
    jit: bool = True
    alike: bool = False
    theirs: Callable[..., Any] | str | None = "library"
    through: Callable[[Any], Callable[..., Any]] = lambda function: function
    tolerance: float = 2e-5
    note: str = ""


Calls = dict[str, Call]


def each(names: str, *args: Any, **options: Any) -> Calls:
    """Return the same call for several names."""
    return {name: Call(args, **options) for name in names.split()}


def at(path: str, *groups: Calls) -> Calls:
    """Return calls by full path."""
    return {f"{path}.{name}": call for group in groups for name, call in group.items()}
