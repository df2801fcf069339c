"""Powers known beforehand."""

from __future__ import annotations

from typing import Any


def integer_pow(x: Any, *, y: int) -> Any:
    """x (a value with operators) to a whole power known beforehand, multiplied in the order of repeated squaring.

    Only floats have the power 0 and negative ones.
    """
    result, square, exponent = None, x, abs(y)
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    if result is None:
        return x.like(1)
    return 1.0 / result if y < 0 else result
