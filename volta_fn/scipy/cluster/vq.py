"""Vector quantisation.

>>> obs, codes = vf.numpy.array([[1.0, 1.0], [9.0, 8.0]]), vf.numpy.array([[0.0, 0.0], [9.0, 9.0]])
>>> vf.scipy.cluster.vq.vq(obs, codes)
(Array([0, 1], dtype=int32), Array([1.4142135, 1.       ], dtype=float32))
"""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ShapeError
from volta_fn.primitives.declare import promote_args


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Array, Array]:
    """Return the nearest code of each observation, and its Euclidean distance.

    Args:
        obs: observations, of shape (m, n), or (m,) for numbers.
        code_book: codes, of shape (k, n) or (k,), at least one.
        check_finite: ignored, as programs cannot check; NaN have the distance NaN.

    Returns the indices of the codes, int32 of shape (m,), the first of several as near, and the distances, floats of shape (m,). These are
    differentiable, with derivative 0 where they are 0. Raises `ShapeError` if the shapes do not fit.

    >>> vf.scipy.cluster.vq.vq(vf.numpy.array([0.0, 4.0]), vf.numpy.array([1.0, 3.5]))
    (Array([0, 1], dtype=int32), Array([1. , 0.5], dtype=float32))
    """
    observations, codes = promote_args("vq", (obs, code_book), dtypes.FLOATS)
    shapes = f"{observations.shape} and {codes.shape}"
    if observations.ndim != codes.ndim or observations.ndim not in (1, 2):
        raise ShapeError(f"vq: obs and code_book must both be vectors, or both matrices, got shapes {shapes}")
    dtype = observations.dtype
    x, y = (lax.convert_element_type(v[:, None] if v.ndim == 1 else v, dtypes.accumulator(dtype)) for v in (observations, codes))
    if x.shape[1] != y.shape[1] or not y.shape[0]:
        raise ShapeError(f"vq: obs and code_book must have shapes (m, n) and (k, n) with k >= 1, got {shapes}")
    code = vnp.argmin(vnp.sum((x[:, None] - y[None]) ** 2, -1), -1)
    square = vnp.sum((x - y[code]) ** 2, -1)
    distance = vnp.where(square == 0, 0.0, vnp.sqrt(vnp.where(square == 0, 1.0, square)))
    return code, lax.convert_element_type(distance, dtype)
