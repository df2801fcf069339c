"""A weight whose inputs are multiplied in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ShapeError
from volta_fn.nn.quantization.quantized_array import QuantizedArray, WeightArray

__all__ = ["PermutedArray"]


@dataclasses.dataclass(frozen=True, eq=False)
class PermutedArray(WeightArray):
    """A quantised matrix whose groups hold numbers that are not neighbours.

    Its numbers along the axis that products sum over are those of `array` in the order `order`: number i of a row of `array` is number
    ``order[i]`` here. A product selects its input in that order, ``x[..., order] @ array``. GPTQ's checkpoints with "desc_act" are such.

    Attributes:
        array: a matrix, whose groups hold neighbours.
        order: a permutation, integers of shape (in,).

    Raises `ShapeError` if the order does not fit a matrix.

    >>> w = nn.quantize_array(vf.numpy.array([[1.0, 2.0, 30.0, 40.0]]), "int8", group_size=2)
    >>> nn.PermutedArray(w, vf.numpy.array([0, 2, 1, 3])).dequantize().round()
    Array([[ 1., 30.,  2., 40.]], dtype=float32)
    """

    array: QuantizedArray
    order: Any

    def __post_init__(self) -> None:
        if self.array.ndim != 2 or self.order.shape != self.array.inner or self.order.dtype not in dtypes.INTEGERS:
            raise ShapeError(f"PermutedArray: a matrix and the order of its {self.array.inner} inputs are needed, got {self!r}")

    @property
    def aval(self) -> ShapedArray:
        """The shape and dtype of the matrix."""
        return self.array.aval

    @property
    def T(self) -> Self:
        """The transpose, which shares the codes."""
        return dataclasses.replace(self, array=self.array.T)

    mT = T

    @property
    def nbytes(self) -> int:
        """The bytes of the matrix and of the order."""
        return self.array.nbytes + int(self.order.size) * self.order.dtype.itemsize

    def _places(self) -> Array:
        """Return for each number where it is in `array`."""
        return vnp.argsort(as_value(self.order))

    def dequantize(self, dtype: Any = None) -> Array:
        """Return the numbers as floats, of `self.dtype` unless another is given."""
        return vnp.take(self.array.dequantize(dtype), self._places(), axis=0 if self.array.rows_last else 1)

    def take(self, indices: Any) -> Array:
        """Return entries along the first axis as floats, see `QuantizedArray.take`."""
        return vnp.take(self.array.take(indices), self._places(), axis=-1)

    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``, in the dtype of `other`."""
        x = as_value(other)
        if not self.array.rows_last:
            product: Array = x @ self.array
            return vnp.take(product, self._places(), axis=-1)
        if x.ndim == 0 or x.shape[-1] != self.shape[0]:
            raise ShapeError(f"matmul: the last axis of the left operand has shape {x.shape}, but {self!r} needs {self.shape[0]}")
        ordered: Array = vnp.take(x, as_value(self.order), axis=-1) @ self.array
        return ordered

    def __repr__(self) -> str:
        return f"PermutedArray({self.array!r})"


_KEYS = (tree.GetAttrKey("array"), tree.GetAttrKey("order"))


def _flatten(value: PermutedArray) -> tuple[Any, tuple[()]]:
    return zip(_KEYS, (value.array, value.order), strict=True), ()


def _unflatten(_: Any, children: Sequence[Any]) -> PermutedArray:
    """Rebuild the array; children are unchecked, because leaves may be any objects."""
    value = object.__new__(PermutedArray)
    value.__dict__.update(zip(("array", "order"), children, strict=True))
    return value


tree.register_pytree_with_keys(PermutedArray, _flatten, _unflatten)
