"""Matrices in the formats `COO`, `CSR`, `CSC` and `BCSR`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse


class _Matrix(JAXSparse):
    """A matrix in another format than `BCOO`: arrays with `names`, and a shape."""

    names: tuple[str, ...]

    def __init__(self, args: Any, *, shape: Sequence[int], **promises: bool) -> None:
        for name, value in zip(self.names, args, strict=True):
            setattr(self, name, vnp.asarray(value) if hasattr(value, "shape") or isinstance(value, (list, tuple)) else value)
        self.shape = tuple(shape)
        if len(self.shape) != 2:
            raise ShapeError(f"{type(self).__name__} holds a matrix, got shape {self.shape}")

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        raise NotImplementedError

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> Any:
        """Convert a matrix in the format `BCOO`."""
        raise NotImplementedError

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_batch: int = 0, n_dense: int = 0) -> Any:
        """Make a sparse matrix of the elements that are not zero.

        `nse` is how many to store, needed while tracing.
        """
        if n_batch or n_dense:
            raise ArgumentError(f"{cls.__name__}.fromdense makes matrices without batch and dense dimensions")
        return cls.from_bcoo(BCOO.fromdense(mat, nse=nse, index_dtype=index_dtype))

    def todense(self) -> Array:
        """Return the matrix with its zeros."""
        return self.to_bcoo().todense()

    @property
    def T(self) -> Any:
        """The transposed matrix."""
        return self.transpose()

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        """Exchange rows and columns."""
        return self.from_bcoo(self.to_bcoo().T.sort_indices())  # type: ignore[attr-defined]  # attached by operations

    def __matmul__(self, other: Any) -> Any:
        return self.to_bcoo() @ other

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.to_bcoo()


class COO(_Matrix):
    """A matrix by elements: ``COO((data, row, col), shape=…)``.

    >>> import volta_fn as vf
    >>> COO((vf.numpy.ones(2), vf.numpy.array([0, 1]), vf.numpy.array([1, 0])), shape=(2, 2)) @ vf.numpy.arange(2.0)
    Array([1., 0.], dtype=float32)
    """

    names = ("data", "row", "col")
    row: Array
    col: Array

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        return BCOO((self.data, vnp.stack([self.row, self.col], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> COO:
        """Convert a matrix in the format `BCOO`."""
        return cls((mat.data, *mat.columns()), shape=mat.shape)


class BCSR(_Matrix):
    """A matrix by rows: ``BCSR((data, indices, indptr), shape=…)``.

    ``indices`` are the elements' columns; those of row i stand from ``indptr[i]`` to ``indptr[i + 1]``.

    >>> import volta_fn as vf
    >>> BCSR.fromdense(vf.numpy.eye(2)).indptr
    Array([0, 1, 2], dtype=int32)
    """

    names = ("data", "indices", "indptr")
    indices: Array
    indptr: Array

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> Any:
        """Convert a SciPy sparse matrix."""
        return cls.from_bcoo(BCOO.from_scipy_sparse(mat, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch).sort_indices())

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        major = _major(self.indptr, self.data.shape[0])
        return BCOO((self.data, vnp.stack([major.astype(self.indices.dtype), self.indices], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> Any:
        """Convert a matrix in the format `BCOO`."""
        ordered = mat.sort_indices()
        rows, columns = ordered.columns()
        return cls((ordered.data, columns, _pointers(rows, mat.shape[0])), shape=mat.shape)


class CSR(BCSR):
    """A matrix by rows: ``CSR((data, indices, indptr), shape=…)``, as `BCSR`."""


class CSC(_Matrix):
    """A matrix by columns: ``CSC((data, indices, indptr), shape=…)``.

    ``indices`` are the elements' rows; those of column j stand from ``indptr[j]`` to ``indptr[j + 1]``.
    """

    names = ("data", "indices", "indptr")
    indices: Array
    indptr: Array

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        major = _major(self.indptr, self.data.shape[0])
        return BCOO((self.data, vnp.stack([self.indices, major.astype(self.indices.dtype)], -1)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, mat: BCOO) -> CSC:
        """Convert a matrix in the format `BCOO`."""
        rows, columns = mat.columns()
        order = vnp.lexsort((rows, columns))
        return cls((mat.data[order], rows[order], _pointers(columns[order], mat.shape[1])), shape=mat.shape)


def _major(indptr: Array, count: int) -> Array:
    """Return the row of each element, given where rows begin."""
    return vnp.searchsorted(indptr, vnp.arange(count, dtype=indptr.dtype), side="right") - 1


def _pointers(rows: Array, count: int) -> Array:
    """Return where each row begins in sorted row numbers, and the end of the last."""
    return vnp.searchsorted(rows, vnp.arange(count + 1, dtype=rows.dtype), side="left").astype(rows.dtype)


def _register(cls: type[_Matrix]) -> None:
    def rebuild(shape: Any, children: Any) -> Any:
        result = object.__new__(cls)
        result.__dict__.update(zip(cls.names, children, strict=True), shape=shape)
        return result

    tree.register_pytree_node(cls, lambda matrix: (tuple([getattr(matrix, name) for name in matrix.names]), matrix.shape), rebuild)


for _cls in (COO, BCSR, CSR, CSC):
    _register(_cls)
