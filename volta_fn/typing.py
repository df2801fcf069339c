"""Types for annotations, by the names of `jax.typing`."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, Union

import numpy as np

from volta_fn.core.arrays.array import Array
from volta_fn.lax import Precision


class SupportsDType(Protocol):
    """An object with a dtype."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype."""


#: Values that functions accept as arrays: arrays, NumPy's arrays and scalars, Python's numbers.
ArrayLike: TypeAlias = Union[Array, np.ndarray, np.bool_, np.number, bool, int, float, complex]  # noqa: UP007  # read by isinstance, too

#: Specifications of a dtype: its name, a scalar type, a dtype, or an object that has one.
DTypeLike: TypeAlias = Union[str, type[Any], np.dtype, SupportsDType]  # noqa: UP007

#: Specifications of the precision of products.
PrecisionLike: TypeAlias = Union[str, Precision, tuple[str, str], tuple[Precision, Precision], None]  # noqa: UP007
