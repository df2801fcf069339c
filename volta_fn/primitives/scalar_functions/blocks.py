"""Running a formula of many steps over an array in blocks that stay in the cache.

Each step of a formula written in NumPy is a pass over memory. On blocks of a few thousand elements those passes run at the speed
of the cache, whatever the size of the array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Elements of a block: a handful of temporaries of this size fit the second-level cache of any CPU of this century.
BLOCK = 1 << 14

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

Kernel = Callable[..., np.ndarray]


def blockwise(*, wide: bool = False) -> Callable[[Kernel], Kernel]:
    """Decorate a formula over one-dimensional float32 or float64 arrays to become a function of any float arrays.

    float16 and bfloat16 go through float32; with `wide`, every dtype goes through float64, which spares a second set of
    coefficients. The result has the operands' dtype. A formula must not write into its arguments.
    """

    def decorate(kernel: Kernel) -> Kernel:
        @functools.wraps(kernel)
        def evaluate(*operands: np.ndarray) -> np.ndarray:
            dtype = operands[0].dtype
            work = _FLOAT64 if wide or dtype == _FLOAT64 else _FLOAT32
            shape = np.broadcast_shapes(*[x.shape for x in operands])
            flat = [(x if x.shape == shape else np.broadcast_to(x, shape)).reshape(-1) for x in operands]
            out = np.empty(shape, dtype)
            target = out.reshape(-1)
            for start in range(0, target.size, BLOCK):
                part = slice(start, start + BLOCK)
                target[part] = kernel(*[x[part].astype(work, copy=False) for x in flat])
            return out

        return evaluate

    return decorate


def polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """The polynomial with the given coefficients, highest power first, by Horner's rule."""
    result = x * coefficients[0]
    result += coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def replace(out: np.ndarray, where: np.ndarray, kernel: Kernel, *operands: Any) -> None:
    """Set ``out[where]`` to the kernel of the operands there, if there is any such place."""
    if where.any():
        out[where] = kernel(*[x[where] for x in operands])
