"""Arrow: arrays as columns of pyarrow, polars and other libraries of tables.

A column of Arrow has one axis. Arrays of more are lists of a fixed size, as polars has them for NumPy's arrays. The elements are shared
where Arrow lays them out in the same way: for all dtypes but bool, whose elements are bits there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.errors import DTypeError, ShapeError
from volta_fn.lazy_imports import load


def arrow_array(values: np.ndarray, type: Any = None) -> Any:
    """Return elements on the host as an array of pyarrow.

    Args:
        values: at least one axis, the first of which numbers the elements of the column.
        type: pyarrow's type of the result (default: that of the dtype).

    Raises:
        ShapeError: there is no axis, or one of the lists has no elements. DTypeError: Arrow has no such dtype.
    """
    if values.ndim == 0:
        raise ShapeError("a column of Arrow needs an axis, got an array of shape (); use x.item() or x.reshape(1)")
    if 0 in values.shape[1:]:
        raise ShapeError(f"lists of Arrow's fixed size have at least one element, got an array of shape {values.shape}")
    if values.dtype.kind not in "biuf":
        raise DTypeError(f"Arrow has no elements of {values.dtype}: convert them, as by x.astype('float32') or x.real and x.imag")
    pyarrow = load("pyarrow")
    column = pyarrow.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        column = pyarrow.FixedSizeListArray.from_arrays(column, values.shape[axis])
    return column if type is None else column.cast(type)
