"""`BCOO`, an array as a list of elements and their indices; other formats.

Matrices may also have the formats `COO`, `CSR`, `CSC` and `BCSR`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError

# `BCOO`: an array as a list of elements and their indices.
#
# Elements at the same indices add up, and those at indices out of range count for nothing: they fill up an array of fewer elements, so
# that shapes are known while tracing. The last `n_dense` dimensions are dense: an element is an array of their shape.


class JAXSparse:
    """The base of sparse arrays."""

    shape: tuple[int, ...]
    data: Array
    #: NumPy's arrays leave mixed expressions to this class.
    __array_ufunc__ = None

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements, with those that are zero."""
        return math.prod(self.shape)

    @property
    def nse(self) -> int:
        """The number of elements that are stored."""
        return self.data.shape[0]

    def todense(self) -> Array:
        """Return the array with its zeros."""
        raise NotImplementedError

    def block_until_ready(self) -> JAXSparse:
        """Wait until the elements are computed, and return self."""
        self.data.block_until_ready()
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype.name}{list(self.shape)}, nse={self.nse})"


class BCOO(JAXSparse):
    """A sparse array of elements `data` at `indices`.

    Args:
        args: ``(data, indices)``: the elements, of shape (nse, …), and their indices, of shape (nse, number of sparse dimensions).
        shape: the shape of the array.
        indices_sorted, unique_indices: promises about the indices.

    Raises:
        ShapeError: the shapes do not belong together.

    >>> import volta_fn as vf
    >>> m = BCOO((vf.numpy.array([1.0, 2.0]), vf.numpy.array([[0, 1], [1, 0]])), shape=(2, 2))
    >>> m.todense()
    Array([[0., 1.],
           [2., 0.]], dtype=float32)
    """

    def __init__(self, args: Any, *, shape: Sequence[int], indices_sorted: bool = False, unique_indices: bool = False) -> None:
        self.data, self.indices = (x if _is_placeholder(x) else vnp.asarray(x) for x in args)
        self.shape = tuple(shape)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        if not _is_placeholder(self.data) and not _is_placeholder(self.indices):
            self._check()

    def _check(self) -> None:
        if self.indices.ndim != 2 or not self.data.ndim or self.data.shape[0] != self.indices.shape[0]:
            raise ShapeError(
                f"BCOO: data of shape {self.data.shape} and indices of shape {self.indices.shape} must share their first size, and indices "
                "have two dimensions. Batch dimensions (n_batch) are those of vmap"
            )
        if self.shape[self.n_sparse :] != self.data.shape[1:]:
            raise ShapeError(
                f"BCOO: elements of shape {self.data.shape[1:]} at {self.n_sparse} indices do not make an array of {self.shape}"
            )

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions: 0."""
        return 0

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions."""
        return self.indices.shape[-1]

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return self.ndim - self.n_sparse

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32) -> BCOO:
        """Make a sparse array of the elements that are not zero.

        `nse` is how many to store, needed while tracing; with fewer, the rest is padding.

        Raises `ArgumentError` if `n_batch` is not 0.
        """
        if n_batch:
            raise ArgumentError(f"BCOO.fromdense: n_batch={n_batch} is not supported; map the function of one example with vmap")
        array = vnp.asarray(mat)
        n_sparse = array.ndim - n_dense
        sparse_shape = array.shape[:n_sparse]
        stored = (array != 0).any(tuple(range(n_sparse, array.ndim)))
        count = int(stored.sum()) if nse is None else nse
        positions = vnp.nonzero(stored, size=count, fill_value=sparse_shape) if n_sparse else ()
        indices = vnp.stack([f.astype(index_dtype) for f in positions], -1) if positions else vnp.zeros((count, 0), index_dtype)
        data = array.at[tuple(positions)].get(mode="fill", fill_value=0) if positions else vnp.broadcast_to(array, (count, *array.shape))
        return cls((data, indices), shape=array.shape, indices_sorted=True, unique_indices=True)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCOO:
        """Convert a SciPy sparse matrix."""
        if n_dense or n_batch:
            raise ArgumentError("BCOO.from_scipy_sparse: a matrix has neither dense nor batch dimensions")
        coo = mat.tocoo()
        indices = np.stack([coo.row, coo.col], -1).astype(dtypes.as_dtype(index_dtype or np.int32))
        return cls((coo.data, indices), shape=mat.shape)

    def valid(self) -> Array:
        """Return which stored elements have indices in range."""
        bounds = np.array(self.shape[: self.n_sparse], self.indices.dtype)
        return ((self.indices >= 0) & (self.indices < bounds)).all(-1)

    def todense(self) -> Array:
        """Return the array with its zeros."""
        zeros = vnp.zeros(self.shape, self.dtype)
        return zeros.at[self.columns()].add(self.data, mode="drop") if self.n_sparse else self.data.sum(0)

    def columns(self) -> tuple[Array, ...]:
        """Return the indices along each sparse dimension."""
        return tuple([self.indices[:, i] for i in range(self.n_sparse)])

    def replace_data(self, data: Any) -> BCOO:
        """Return an array of other elements at the same indices."""
        shape = (*self.shape[: self.n_sparse], *data.shape[1:])
        return BCOO((data, self.indices), shape=shape, indices_sorted=self.indices_sorted, unique_indices=self.unique_indices)

    def astype(self, dtype: Any) -> BCOO:
        """Convert the elements."""
        return self.replace_data(self.data.astype(dtype))

    def sort_indices(self) -> BCOO:
        """Return the array with its elements in the order of their indices."""
        order = vnp.lexsort(self.columns()[::-1])
        return BCOO((self.data[order], self.indices[order]), shape=self.shape, indices_sorted=True, unique_indices=self.unique_indices)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """Return the array with every index stored once.

        `nse` is how many elements to store, needed while tracing.
        """
        if self.n_dense:
            raise ArgumentError("sum_duplicates: arrays with dense dimensions are not supported")
        if nse is None and not remove_zeros:
            nse = int(vnp.unique(self.indices, axis=0).shape[0])
        return BCOO.fromdense(self.todense(), nse=nse, index_dtype=self.indices.dtype)


def _is_placeholder(x: Any) -> bool:
    """Return True for what transforms put in pytrees instead of arrays."""
    return not (hasattr(x, "shape") or isinstance(x, (list, tuple, int, float, complex)))


def _rebuild(cls: type[Any], static: Any, children: Any) -> Any:
    result = object.__new__(cls)
    result.data, result.indices = children
    result.shape, result.indices_sorted, result.unique_indices = static
    return result


tree.register_pytree_node(
    BCOO,
    lambda m: ((m.data, m.indices), (m.shape, m.indices_sorted, m.unique_indices)),
    lambda static, children: _rebuild(BCOO, static, children),
)


def empty(shape: Sequence[int], dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo", **kwds: Any) -> BCOO:
    """Return a sparse array of zeros."""
    _check_format(sparse_format)
    data, indices = vnp.zeros(0, dtype), vnp.zeros((0, len(shape)), index_dtype)
    return BCOO((data, indices), shape=shape, indices_sorted=True, unique_indices=True)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo") -> BCOO:
    """Return a sparse matrix of shape (N, M) with ones on the diagonal `k`."""
    _check_format(sparse_format)
    columns = N if M is None else M
    rows = np.arange(max(0, min(N + min(k, 0), columns - max(k, 0)))) + max(-k, 0)
    indices = np.stack([rows, rows + k], -1).astype(dtypes.as_dtype(index_dtype))
    return BCOO((vnp.ones(len(rows), dtype), indices), shape=(N, columns), indices_sorted=True, unique_indices=True)


def _check_format(sparse_format: str) -> None:
    if sparse_format != "bcoo":
        raise ArgumentError(f"sparse_format must be 'bcoo', got {sparse_format!r}; convert the result")


# Matrices in the formats `COO`, `CSR`, `CSC` and `BCSR`.


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
