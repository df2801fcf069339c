"""The formats `COO`, `CSR`, `CSC` and `BCSR`; arrays of zeros and ones.

Operations convert to `BCOO` and, where their result is sparse, back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse, outside, over_batches
from volta_fn.experimental.sparse.products import bcoo_dot_general, bcoo_extract, matmul
from volta_fn.experimental.sparse.shapes import bcoo_broadcast_in_dim, bcoo_concatenate, bcoo_update_layout


class _Format(JAXSparse):
    """An array in another format than `BCOO`: arrays with `names`, and a shape."""

    names: tuple[str, ...]

    def __init__(self, args: Any, *, shape: Sequence[int], indices_sorted: bool = False, unique_indices: bool = False) -> None:
        for name, value in zip(self.names, args, strict=True):
            setattr(self, name, vnp.asarray(value) if hasattr(value, "shape") or isinstance(value, (list, tuple)) else value)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        self._set_shape(tuple(shape))

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        if len(shape) != 2:
            raise ShapeError(f"{type(self).__name__} holds a matrix, got shape {shape}")

    def to_bcoo(self) -> BCOO:
        """Return the array in the format `BCOO`."""
        raise NotImplementedError

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> Self:
        """Convert an array in the format `BCOO`."""
        raise NotImplementedError

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0, n_batch: int = 0) -> Self:
        """Make a sparse array of the elements that are not zero.

        `nse` is how many to store, needed while tracing. Only `BCSR` has batch and dense dimensions; others raise `ArgumentError`.
        """
        return cls.from_bcoo(BCOO.fromdense(mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch))

    def todense(self) -> Array:
        """Return the array with its zeros."""
        return self.to_bcoo().todense()

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        """Exchange rows and columns, or permute the dimensions of each kind."""
        return self.from_bcoo(self.to_bcoo().transpose(axes).sort_indices())

    def sum(self, axis: Any = None) -> Any:
        """Add up along dimensions; the result is a `BCOO` array, or a number."""
        return self.to_bcoo().sum(axis)

    def tree_flatten(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arrays, and what does not change under transforms.

        That is the shape without batch dimensions, and the promises.
        """
        promises = {"indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices}
        return tuple([getattr(self, name) for name in self.names]), {"shape": self._static_shape, **promises}

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> Self:
        """Return the array of what `tree_flatten` returns."""
        result = object.__new__(cls)
        result.__dict__.update(zip(cls.names, children, strict=True), **aux_data)
        return result

    @property
    def _static_shape(self) -> tuple[int, ...]:
        return self.shape

    def __getitem__(self, index: Any) -> Any:
        mat: Any = self.to_bcoo()
        return to_format(type(self), mat[index])

    def __matmul__(self, other: Any) -> Any:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self)

    def __neg__(self) -> Self:
        return self.with_data(-self.data)

    def __pos__(self) -> Self:
        return self

    def __mul__(self, other: Any) -> Self:
        return self.from_bcoo(self.to_bcoo() * other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        result: Any = self.to_bcoo() + other
        return self.from_bcoo(result) if isinstance(result, BCOO) else result

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other


def to_format(cls: type[_Format], arr: BCOO) -> Any:
    """Convert an array if the format can have its dimensions; else return it as it is."""
    fits = arr.n_sparse == 2 and (cls is BCSR or not (arr.n_batch or arr.n_dense))
    return cls.from_bcoo(arr) if fits else arr


def _as_matrix(mat: BCOO, name: str) -> BCOO:
    """Return an array if it is a matrix without batch and dense dimensions.

    Its padding has the indices (rows, columns).
    """
    if mat.n_batch or mat.n_dense or mat.n_sparse != 2:
        raise ArgumentError(f"{name} holds a matrix without batch and dense dimensions, got {mat}; BCSR may have them")
    return _with_padding(mat)


def _with_padding(mat: BCOO) -> BCOO:
    return mat.replace(mat.data, vnp.where(mat.valid()[..., None], mat.indices, outside(mat)), indices_sorted=False)


class COO(_Format):
    """A matrix by elements: ``COO((data, row, col), shape=…)``.

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
    def from_bcoo(cls, arr: BCOO) -> COO:
        """Convert a matrix in the format `BCOO`."""
        mat = _as_matrix(arr, "COO")
        return cls((mat.data, *mat.columns()), shape=mat.shape)


class BCSR(_Format):
    """An array by rows: ``BCSR((data, indices, indptr), shape=…)``.

    ``indices`` are the elements' columns; those of row i stand from ``indptr[i]`` to ``indptr[i + 1]``. There are two sparse dimensions,
    and any number of batch dimensions before and dense ones behind: data have the shape (batch dimensions…, nse, dense dimensions…),
    indices (batch dimensions…, nse), and indptr (batch dimensions…, rows + 1). Raises `ShapeError` for others.

    >>> BCSR.fromdense(vf.numpy.eye(2)).indptr
    Array([0, 1, 2], dtype=int32)
    """

    names = ("data", "indices", "indptr")
    indices: Array
    indptr: Array

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        arrays = self.data, self.indices, self.indptr
        self._element_shape = shape
        if not all(hasattr(x, "shape") for x in arrays):
            return
        n, shapes = self.n_batch, tuple(x.shape for x in arrays)
        self._element_shape = shape[n:]
        fits = (
            n >= 0
            and self.indices.ndim == n + 1
            and self.data.ndim > n
            and len(shape) == n + 2 + self.n_dense
            and self.data.shape[n] == self.indices.shape[n]
            and self.indptr.shape[n] == shape[n] + 1
            and self.data.shape[n + 1 :] == shape[n + 2 :]
            and all(size in (1, whole) for x in shapes for size, whole in zip(x[:n], shape[:n], strict=True))
        )
        if not fits:
            raise ShapeError(f"BCSR: data, indices and indptr of the shapes {shapes} do not make an array of {shape}")
        if self.shape != shape:
            self.indices = vnp.broadcast_to(self.indices, (*shape[:n], self.nse))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]  # batch dimensions are those of the arrays, as for `BCOO`
        """The sizes of all dimensions."""
        n = self.n_batch
        return (*np.broadcast_shapes(*[x.shape[:n] for x in (self.data, self.indices, self.indptr)]), *self._element_shape)

    @property
    def _static_shape(self) -> tuple[int, ...]:
        return self._element_shape

    @property
    def nse(self) -> int:
        """The number of elements stored for each position of the batch."""
        return self.indices.shape[-1]

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return self.indptr.ndim - 1

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions: 2."""
        return 2

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return self.data.ndim - 1 - self.n_batch

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> Self:
        """Return the array of what `tree_flatten` returns."""
        static = {"_element_shape" if name == "shape" else name: value for name, value in aux_data.items()}
        result = object.__new__(cls)
        result.__dict__.update(zip(cls.names, children, strict=True), **static)
        return result

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> Self:
        """Convert a SciPy sparse matrix."""
        return cls.from_bcoo(BCOO.from_scipy_sparse(mat, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch).sort_indices())

    def to_bcoo(self) -> BCOO:
        """Return the array in the format `BCOO`."""
        return BCOO((self.data, _by_rows(self.indices, self.indptr)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> Self:
        """Convert an array in the format `BCOO` with two sparse dimensions.

        Raises `ArgumentError` for other numbers of them.
        """
        if arr.n_sparse != 2:
            raise ArgumentError(f"BCSR has two sparse dimensions, got {arr} with {arr.n_sparse}")
        ordered = _with_padding(arr).sort_indices()
        rows, columns = ordered.columns()
        pointers = over_batches(lambda rows: _pointers(rows, arr.sparse_shape[0]), arr.n_batch)(rows)
        promises = {"indices_sorted": True, "unique_indices": arr.unique_indices}
        return cls((ordered.data, columns, pointers), shape=arr.shape, **promises)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> Self:
        """Return the array with every index stored once; see `BCOO.sum_duplicates`."""
        return self.from_bcoo(self.to_bcoo().sum_duplicates(nse, remove_zeros))


class CSR(_Format):
    """A matrix by rows: ``CSR((data, indices, indptr), shape=…)``, as `BCSR`."""

    names = ("data", "indices", "indptr")
    indices: Array
    indptr: Array

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        return BCOO((self.data, _by_rows(self.indices, self.indptr)), shape=self.shape)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> CSR:
        """Convert a matrix in the format `BCOO`."""
        mat = _as_matrix(arr, "CSR").sort_indices()
        rows, columns = mat.columns()
        return cls((mat.data, columns, _pointers(rows, mat.shape[0])), shape=mat.shape)


class CSC(_Format):
    """A matrix by columns: ``CSC((data, indices, indptr), shape=…)``.

    ``indices`` are the elements' rows; those of column j stand from ``indptr[j]`` to ``indptr[j + 1]``.
    """

    names = ("data", "indices", "indptr")
    indices: Array
    indptr: Array

    def to_bcoo(self) -> BCOO:
        """Return the matrix in the format `BCOO`."""
        return BCOO((self.data, _by_rows(self.indices, self.indptr)[:, ::-1]), shape=self.shape)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> CSC:
        """Convert a matrix in the format `BCOO`."""
        mat = _as_matrix(arr, "CSC")
        rows, columns = mat.columns()
        order = vnp.lexsort((rows, columns))
        return cls((mat.data[order], rows[order], _pointers(columns[order], mat.shape[1])), shape=mat.shape)


def _by_rows(indices: Array, indptr: Array) -> Array:
    """Return the indices (row, column) of elements by rows.

    Elements behind the last row get the number of rows.
    """

    def convert(indices: Array, indptr: Array) -> Array:
        major = vnp.searchsorted(indptr, vnp.arange(indices.shape[0], dtype=indptr.dtype), side="right") - 1
        return vnp.stack([major.astype(indices.dtype), indices], -1)

    n = indptr.ndim - 1
    batch = np.broadcast_shapes(indices.shape[:n], indptr.shape[:n])
    wide = vnp.broadcast_to(indices, (*batch, indices.shape[-1])), vnp.broadcast_to(indptr, (*batch, indptr.shape[-1]))
    return over_batches(convert, n)(*wide)


def _pointers(rows: Array, count: int) -> Array:
    """Return where each row begins in sorted row numbers, and the end of the last."""
    return vnp.searchsorted(rows, vnp.arange(count + 1, dtype=rows.dtype), side="left").astype(rows.dtype)


def _register(cls: type[_Format]) -> None:
    def flatten(array: Any) -> tuple[Any, Any]:
        children, static = array.tree_flatten()
        return children, tuple(static.items())

    tree.register_pytree_node(cls, flatten, lambda static, children: cls.tree_unflatten(dict(static), children))


for _cls in (COO, BCSR, CSR, CSC):
    _register(_cls)


# Functions of one format.


def coo_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> COO:
    """Do what `COO.fromdense` does."""
    return COO.fromdense(mat, nse=nse, index_dtype=index_dtype)


def coo_todense(mat: COO) -> Array:
    """Return the matrix with its zeros."""
    return mat.todense()


def coo_matvec(mat: COO, v: Any, transpose: bool = False) -> Array:
    """Multiply a matrix, or its transpose, with a vector."""
    return _multiply("coo_matvec", mat, v, 1, transpose)


def coo_matmat(mat: COO, B: Any, *, transpose: bool = False) -> Array:
    """Multiply a matrix, or its transpose, with a dense matrix."""
    return _multiply("coo_matmat", mat, B, 2, transpose)


def csr_fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> CSR:
    """Do what `CSR.fromdense` does."""
    return CSR.fromdense(mat, nse=nse, index_dtype=index_dtype)


def csr_todense(mat: CSR) -> Array:
    """Return the matrix with its zeros."""
    return mat.todense()


def csr_matvec(mat: CSR, v: Any, transpose: bool = False) -> Array:
    """Multiply a matrix, or its transpose, with a vector."""
    return _multiply("csr_matvec", mat, v, 1, transpose)


def csr_matmat(mat: CSR, B: Any, *, transpose: bool = False) -> Array:
    """Multiply a matrix, or its transpose, with a dense matrix."""
    return _multiply("csr_matmat", mat, B, 2, transpose)


def _multiply(name: str, mat: _Format, dense: Any, ndim: int, transpose: bool) -> Array:
    array = vnp.asarray(dense)
    if array.ndim != ndim:
        raise ShapeError(f"{name}: the dense operand must have {ndim} dimensions, got shape {array.shape}")
    return bcoo_dot_general(mat, array, dimension_numbers=(((0 if transpose else 1,), (0,)), ((), ())))


def bcsr_fromdense(mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32) -> BCSR:
    """Do what `BCSR.fromdense` does."""
    return BCSR.fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)


def bcsr_todense(mat: BCSR) -> Array:
    """Return the array with its zeros."""
    return mat.todense()


def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Array:
    """Return the elements of a dense array at the indices of a `BCSR` array.

    >>> bcsr_extract([1, 0], [0, 1, 2], vf.numpy.array([[5.0, 6.0], [7.0, 8.0]]))
    Array([6., 7.], dtype=float32)
    """
    array, columns, pointers = vnp.asarray(mat), vnp.asarray(indices), vnp.asarray(indptr)
    n = pointers.ndim - 1
    data = vnp.zeros((*array.shape[:n], columns.shape[-1], *array.shape[n + 2 :]), array.dtype)
    return bcoo_extract(BCSR((data, columns, pointers), shape=array.shape).to_bcoo(), array, assume_unique=True).data


def bcsr_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Array:
    """Contract a `BCSR` array with a dense one, as `lax.dot_general` does."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return bcoo_dot_general(lhs, rhs, dimension_numbers=dimension_numbers, **options)


def bcsr_broadcast_in_dim(mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None) -> BCSR:
    """Place the dimensions in a larger shape with two sparse dimensions.

    See `bcoo_broadcast_in_dim`.
    """
    return BCSR.from_bcoo(bcoo_broadcast_in_dim(mat.to_bcoo(), shape=shape, broadcast_dimensions=broadcast_dimensions))


def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """Join arrays of one layout along a dimension."""
    return BCSR.from_bcoo(bcoo_concatenate([mat.to_bcoo() for mat in operands], dimension=dimension))


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """Return the array with every index stored once, zeros included."""
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcsr_eliminate_zeros(mat: BCSR, nse: int | None = None) -> BCSR:
    """Return the array with every index stored once, without elements that are zero."""
    return mat.sum_duplicates(nse, remove_zeros=True)


# Arrays of zeros and ones.

_FORMATS: dict[str, Any] = {"bcoo": BCOO, "bcsr": BCSR, "coo": COO, "csr": CSR, "csc": CSC}


def _convert(mat: BCOO, sparse_format: str) -> Any:
    check_option(sparse_format, "sparse_format", _FORMATS)
    return mat if sparse_format == "bcoo" else _FORMATS[sparse_format].from_bcoo(mat)


def empty(shape: Sequence[int], dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo", **kwds: Any) -> Any:
    """Return a sparse array of zeros.

    `sparse_format` is "bcoo", "bcsr", "coo", "csr" or "csc"; further options are `nse`, the number of elements to make room for, `n_batch`
    and `n_dense`. Raises `ArgumentError` for others.
    """
    return _convert(_empty(tuple(shape), dtype, index_dtype, **_options("empty", kwds)), sparse_format)


def _options(name: str, options: dict[str, Any]) -> dict[str, int]:
    names = {"nse", "n_batch", "n_dense"} if name == "empty" else {"n_batch", "n_dense"}
    if extra := set(options) - names:
        raise ArgumentError(f"{name} has no option {', '.join(sorted(extra))}; its options are {', '.join(sorted(names))}")
    return options


def _empty(shape: tuple[int, ...], dtype: Any, index_dtype: Any, nse: int = 0, n_batch: int = 0, n_dense: int = 0) -> BCOO:
    n_sparse = len(shape) - n_batch - n_dense
    if min(n_batch, n_dense, n_sparse, nse) < 0:
        raise ArgumentError(f"empty: nse={nse}, n_batch={n_batch} and n_dense={n_dense} do not fit the shape {shape}")
    bounds = np.array(shape[n_batch : n_batch + n_sparse], dtypes.as_dtype(index_dtype))
    data = vnp.zeros((*shape[:n_batch], nse, *shape[n_batch + n_sparse :]), dtype)
    indices = vnp.broadcast_to(bounds, (*shape[:n_batch], nse, n_sparse))
    return BCOO((data, indices), shape=shape, indices_sorted=True, unique_indices=True)


def eye(
    N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo", **kwds: Any
) -> Any:
    """Return a sparse matrix of shape (N, M) with ones on the diagonal `k`.

    The options are those of `empty` but for `nse`.
    """
    options = _options("eye", kwds)
    columns = N if M is None else M
    rows = np.arange(max(0, min(N + min(k, 0), columns - max(k, 0)))) + max(-k, 0)
    indices = np.stack([rows, rows + k], -1).astype(dtypes.as_dtype(index_dtype))
    mat = BCOO((vnp.ones(len(rows), dtype), indices), shape=(N, columns), indices_sorted=True, unique_indices=True)
    if options:
        mat = bcoo_update_layout(mat, on_inefficient=None, **options)
        each = len(rows) if not mat.n_batch and mat.n_dense < 2 else min(len(rows), 1)  # at most one in each row and column
        mat = mat.sum_duplicates(each, remove_zeros=True) if mat.nse > each else mat
    return _convert(mat, sparse_format)
