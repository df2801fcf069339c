"""Gathers and scatters whose negative indices count from the end.

Only the pass for them uses these primitives.

``wrapped_gather`` and ``wrapped_scatter_add`` are `gather` and `scatter_add` of one position per window, with the same parameters. A
negative position stands for itself plus the size of the operand's dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.primitive import Primitive
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.scatter import scatter_add_p


def _counted_from_the_start(operand: np.ndarray, indices: np.ndarray, dim: int) -> np.ndarray:
    return np.where(indices < 0, indices + operand.shape[dim], indices).astype(indices.dtype)


def _gather(operand: np.ndarray, indices: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].start_index_map
    assert gather_p.evaluate is not None
    return gather_p.evaluate(operand, _counted_from_the_start(operand, indices, dim), **params)


def _scatter_add(operand: np.ndarray, indices: np.ndarray, updates: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].scatter_dims_to_operand_dims
    assert scatter_add_p.evaluate is not None
    return scatter_add_p.evaluate(operand, _counted_from_the_start(operand, indices, dim), updates, **params)


wrapped_gather_p = Primitive("wrapped_gather", gather_p.abstract, evaluate=_gather, listed=False)
wrapped_scatter_add_p = Primitive("wrapped_scatter_add", scatter_add_p.abstract, evaluate=_scatter_add, listed=False)
