"""The operators of `BCOO`, and methods; importing this file attaches them."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse
from volta_fn.experimental.sparse.products import bcoo_add, bcoo_multiply_dense, bcoo_multiply_sparse, matmul
from volta_fn.experimental.sparse.shapes import bcoo_reduce_sum, bcoo_reshape, bcoo_slice, bcoo_squeeze, bcoo_transpose, bcoo_update_layout
from volta_fn.experimental.sparse.transform import sparsify


def _getitem(self: BCOO, index: Any) -> BCOO:
    entries = list(index) if isinstance(index, tuple) else [index]
    if ellipses := [i for i, e in enumerate(entries) if e is Ellipsis]:
        at = ellipses[0]
        entries[at : at + 1] = [slice(None)] * (self.ndim - len(entries) + 1)
    entries += [slice(None)] * (self.ndim - len(entries))
    if len(entries) != self.ndim or not all(isinstance(e, (slice, int, np.integer)) and not isinstance(e, bool) for e in entries):
        result: BCOO = sparsify(lambda array: array[index])(self)
        return result
    for e, s in zip(entries, self.shape, strict=True):
        if not isinstance(e, slice) and not -s <= e < s:
            raise IndexError(f"index {e} is out of range for a dimension of size {s}")
    spans = [range(s)[e] if isinstance(e, slice) else range(int(e) % s, int(e) % s + 1) for e, s in zip(entries, self.shape, strict=True)]
    if any(r.step < 0 for r in spans):
        raise ArgumentError("sparse arrays take slices of positive steps")
    stops = [max(r.start, r.stop) for r in spans]
    block = bcoo_slice(self, start_indices=[r.start for r in spans], limit_indices=stops, strides=[r.step for r in spans])
    return bcoo_squeeze(block, dimensions=[i for i, e in enumerate(entries) if not isinstance(e, slice)])


def _multiply(self: BCOO, other: Any) -> Any:
    if isinstance(other, JAXSparse):
        return bcoo_multiply_sparse(self, other.to_bcoo())
    return self.replace_data(bcoo_multiply_dense(self, other))


def _divide(self: BCOO, other: Any) -> BCOO:
    if not vnp.ndim(other):
        return self.replace_data(self.data / other)
    # Padding is divided by 0, and stays 0.
    divisor = bcoo_multiply_dense(self.replace_data(vnp.ones_like(self.data)), other)
    divisor = vnp.where(self.valid().reshape(*self.valid().shape, *[1] * self.n_dense), divisor, vnp.ones((), divisor.dtype))
    return self.replace_data(self.data / divisor)


def _add(self: BCOO, other: Any) -> Any:
    return bcoo_add(self, other.to_bcoo()) if isinstance(other, JAXSparse) else self.todense() + other


def _sum(self: BCOO, axis: Any = None) -> Any:
    axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    summed = bcoo_reduce_sum(self, axes=tuple(axes))
    return summed if summed.ndim else summed.todense()


def _transpose(self: BCOO, axes: Any = None) -> BCOO:
    ndim = self.ndim
    order = range(ndim)[::-1] if axes is None else [a % ndim if -ndim <= a < ndim else a for a in axes]
    return bcoo_transpose(self, permutation=order)


def _unique(self: BCOO) -> BCOO:
    return self if self.unique_indices else self.sum_duplicates(self.nse)


def _power(self: BCOO, exponent: Any) -> BCOO:
    if not isinstance(exponent, (int, np.integer)) or exponent < 1:
        raise ArgumentError(f"sparse arrays take positive integers as exponents, got {exponent!r}: others make numbers of their zeros")
    mat = _unique(self)
    return mat.replace_data(mat.data**exponent)


_OPERATORS: dict[str, Any] = {
    "__matmul__": matmul,
    "__rmatmul__": lambda self, other: matmul(other, self),
    "__mul__": _multiply,
    "__rmul__": _multiply,
    "__truediv__": _divide,
    "__add__": _add,
    "__radd__": _add,
    "__sub__": lambda self, other: _add(self, -other),
    "__rsub__": lambda self, other: _add(-self, other),
    "__abs__": lambda self: _unique(self).replace_data(abs(_unique(self).data)),
    "__pow__": _power,
    "__neg__": lambda self: self.replace_data(-self.data),
    "__pos__": lambda self: self,
    "__getitem__": _getitem,
    "sum": _sum,
    "reshape": lambda self, *sizes: bcoo_reshape(self, new_sizes=sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes),
    "transpose": lambda self, axes=None: _transpose(self, axes),
    "update_layout": bcoo_update_layout,
}
for _name, _function in _OPERATORS.items():
    setattr(BCOO, _name, _function)
