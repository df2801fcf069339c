"""`BCOO`, an array as a list of elements and their indices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.dimension import is_symbolic
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.transforms.vmap import vmap


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

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return 0

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return 0

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions."""
        return self.ndim - self.n_batch - self.n_dense

    @property
    def T(self) -> Any:
        """The array with its dimensions reversed."""
        return self.transpose()

    def todense(self) -> Array:
        """Return the array with its zeros."""
        raise NotImplementedError

    def to_bcoo(self) -> BCOO:
        """Return the array in the format `BCOO`."""
        raise NotImplementedError

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        """Permute the dimensions; without `axes`, reverse them."""
        raise NotImplementedError

    def sum(self, axis: Any = None) -> Any:
        """Add up along dimensions."""
        raise NotImplementedError

    def tree_flatten(self) -> tuple[Any, dict[str, Any]]:
        """Return the arrays, and what does not change under transforms."""
        raise NotImplementedError

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> Any:
        """Return the array of what `tree_flatten` returns."""
        raise NotImplementedError

    def with_data(self, data: Any) -> Any:
        """Return an array of other elements at the same indices.

        Further leading dimensions of `data` are batch dimensions.
        """
        (elements, *others), static = self.tree_flatten()
        count = max(vnp.ndim(data) - vnp.ndim(elements), 0)
        return self.tree_unflatten(static, [data, *[x.reshape(*[1] * count, *x.shape) for x in others]])

    def block_until_ready(self) -> JAXSparse:
        """Wait until the elements are computed, and return self."""
        self.data.block_until_ready()
        return self

    #: Sparse arrays have no hash, as their elements compare no equality.
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            counts = "".join(f", {count}={n}" for count in ("n_batch", "n_dense") if (n := getattr(self, count)))
            text = f"{name}({self.dtype.name}{list(self.shape)}, nse={self.nse}{counts})"
        except (AttributeError, IndexError, TypeError, ValueError):  # of arrays that do not belong together, or placeholders
            text = f"{name}(<invalid>)"
        return f"{type(self.data).__name__}[{text}]" if isinstance(self.data, Tracer) else text


class BCOO(JAXSparse):
    """A sparse array of elements `data` at `indices`.

    The first `n_batch` dimensions are batch dimensions: each position has `nse` elements of its own. The last `n_dense` dimensions are
    dense: an element is an array of their shape. Where all positions along a batch dimension share data or indices, these may have the size
    1 in it. Elements at the same indices add up; those at indices out of range count for nothing.

    Args:
        args: ``(data, indices)``: the elements, of shape (batch dimensions…, nse, dense dimensions…), and their indices, of shape
            (batch dimensions…, nse, number of sparse dimensions).
        shape: the shape of the array.
        indices_sorted, unique_indices: promises about the indices.

    Raises:
        ShapeError: the shapes do not belong together.

    Under `vmap` the batch dimensions are those of data and indices: a function mapped over an array of `n_batch` 1 gets one of `n_batch` 0.

    >>> m = BCOO((vf.numpy.array([1.0, 2.0]), vf.numpy.array([[0, 1], [1, 0]])), shape=(2, 2))
    >>> m.todense()
    Array([[0., 1.],
           [2., 0.]], dtype=float32)
    """

    def __init__(self, args: Any, *, shape: Sequence[int], indices_sorted: bool = False, unique_indices: bool = False) -> None:
        self.data, self.indices = (x if _is_placeholder(x) else vnp.asarray(x) for x in args)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        shape = tuple(shape)
        if _is_placeholder(self.data) or _is_placeholder(self.indices):
            self._element_shape = shape
            return
        self._check(shape)
        n = self.n_batch
        self._element_shape = shape[n:]
        if self.shape != shape:  # a size that neither data nor indices have
            self.data = vnp.broadcast_to(self.data, (*shape[:n], *self.data.shape[n:]))
            self.indices = vnp.broadcast_to(self.indices, (*shape[:n], *self.indices.shape[n:]))

    def _check(self, shape: tuple[int, ...]) -> None:
        n = self.indices.ndim - 2
        if n < 0 or self.data.ndim <= n or self.data.shape[n] != self.indices.shape[n]:
            raise ShapeError(
                f"BCOO: data of shape {self.data.shape} and indices of shape {self.indices.shape} must have one number of elements: data "
                "have the shape (batch dimensions…, nse, dense dimensions…), indices (batch dimensions…, nse, sparse dimensions)"
            )
        for array in (self.data, self.indices):
            if len(shape) < n or any(size not in (1, whole) for size, whole in zip(array.shape[:n], shape[:n], strict=True)):
                raise ShapeError(f"BCOO: {n} batch dimensions of sizes {array.shape[:n]} do not make an array of {shape}")
        if shape[n + self.n_sparse :] != self.data.shape[n + 1 :] or len(shape) < n + self.n_sparse:
            raise ShapeError(
                f"BCOO: elements of shape {self.data.shape[n + 1 :]} at {self.n_sparse} indices do not make an array of {shape[n:]}"
            )

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]  # batch dimensions are those of the arrays, so that `vmap` takes them away
        """The sizes of all dimensions."""
        n = self.n_batch
        return (*broadcast_shapes(self.data.shape[:n], self.indices.shape[:n]), *self._element_shape)

    @property
    def nse(self) -> int:
        """The number of elements stored for each position of the batch."""
        return self.indices.shape[-2]

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return self.indices.ndim - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions."""
        return self.indices.shape[-1]

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return self.data.ndim - 1 - self.n_batch

    @property
    def sparse_shape(self) -> tuple[int, ...]:
        """The sizes of the sparse dimensions."""
        return self._element_shape[: self.n_sparse]

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0, n_batch: int = 0) -> BCOO:
        """Make a sparse array of the elements that are not zero.

        `nse` is how many to store for each position of the batch dimensions, needed while tracing; with fewer, the rest is padding.

        Raises `ArgumentError` for numbers of dimensions that the array does not have.

        >>> BCOO.fromdense(np.array([[0, 2, 0], [3, 0, 4]], "int32"), n_batch=1).data
        Array([[2, 0],
               [3, 4]], dtype=int32)
        """
        array = vnp.asarray(mat)
        n_sparse = array.ndim - n_dense - n_batch
        if min(n_batch, n_dense, n_sparse) < 0:
            raise ArgumentError(f"BCOO.fromdense: n_batch={n_batch} and n_dense={n_dense} do not fit an array of {array.ndim} dimensions")
        stored = (array != 0).any(tuple(range(n_batch + n_sparse, array.ndim)))
        count = int(stored.sum(tuple(range(n_batch, stored.ndim))).max(initial=0)) if nse is None else nse
        sparse_shape = stored.shape[n_batch:]

        def convert(array: Array, stored: Array) -> BCOO:
            if not n_sparse:
                data = vnp.broadcast_to(array, (count, *array.shape))
                first = vnp.arange(count).reshape(-1, *[1] * array.ndim) == 0
                indices = vnp.zeros((count, 0), index_dtype)
                promises = {"indices_sorted": True, "unique_indices": count <= 1}
                return cls((vnp.where(first, data, 0).astype(data.dtype), indices), shape=array.shape, **promises)
            positions = vnp.nonzero(stored, size=count, fill_value=sparse_shape)
            indices = vnp.stack([f.astype(index_dtype) for f in positions], -1)
            data = read_at(array, positions)
            return cls((data, indices), shape=array.shape, indices_sorted=True, unique_indices=True)

        return over_batches(convert, n_batch)(array, stored)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCOO:
        """Convert a SciPy sparse matrix."""
        if n_dense or n_batch:
            raise ArgumentError("BCOO.from_scipy_sparse: a matrix has neither dense nor batch dimensions")
        coo = mat.tocoo()
        indices = np.stack([coo.row, coo.col], -1).astype(dtypes.as_dtype(index_dtype or np.int32))
        return cls((coo.data, indices), shape=mat.shape)

    def to_bcoo(self) -> BCOO:
        """Return the array itself."""
        return self

    def valid(self) -> Array:
        """Return which stored elements have indices in range.

        The shape is that of the indices without the last dimension.
        """
        bounds = outside(self)
        return ((self.indices >= 0) & (self.indices < bounds)).all(-1)

    def masked_data(self) -> Array:
        """Return the elements, 0 where their indices are out of range."""
        valid = self.valid()
        return vnp.where(valid.reshape(*valid.shape, *[1] * self.n_dense), self.data, vnp.zeros((), self.dtype))

    def todense(self) -> Array:
        """Return the array with its zeros."""
        flat = self.folded()
        zeros = vnp.zeros(flat.shape, self.dtype)
        return add_at(zeros, flat.columns(), flat.data)

    def columns(self) -> tuple[Array, ...]:
        """Return the indices along each sparse dimension."""
        return tuple([self.indices[..., i] for i in range(self.n_sparse)])

    def broadcast_batches(self) -> BCOO:
        """Return the array with data and indices of all sizes of the batch dimensions."""
        n, shape = self.n_batch, self.shape
        data = vnp.broadcast_to(self.data, (*shape[:n], *self.data.shape[n:]))
        return self.replace(data, vnp.broadcast_to(self.indices, (*shape[:n], *self.indices.shape[n:])))

    def folded(self) -> BCOO:
        """Return the array with its batch dimensions as sparse dimensions."""
        if not self.n_batch:
            return self
        n, shape, wide = self.n_batch, self.shape, self.broadcast_batches()
        count = math.prod(shape[:n]) * self.nse
        positions = np.moveaxis(np.indices(shape[:n]), 0, -1)[..., None, :].astype(dtype_of_indices(self.indices.dtype, shape[:n]))
        indices = vnp.concatenate([vnp.broadcast_to(positions, (*shape[:n], self.nse, n)), wide.indices], -1)
        arrays = wide.data.reshape(count, *self.data.shape[n + 1 :]), indices.reshape(count, n + self.n_sparse)
        return BCOO(arrays, shape=shape, indices_sorted=self.indices_sorted, unique_indices=self.unique_indices)

    def replace(self, data: Any, indices: Any, **promises: bool) -> BCOO:
        """Return an array of other elements at other indices.

        It has as many batch dimensions as this one, and the same sparse dimensions.
        """
        n = self.n_batch
        batch = np.broadcast_shapes(data.shape[:n], indices.shape[:n])
        promises = {"indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices, **promises}
        return BCOO((data, indices), shape=(*batch, *self.sparse_shape, *data.shape[n + 1 :]), **promises)

    def replace_data(self, data: Any) -> BCOO:
        """Return an array of other elements at the same indices."""
        return self.replace(data, self.indices)

    def astype(self, dtype: Any) -> BCOO:
        """Convert the elements, the sums of those at one index if they are rounded."""
        mat = self if self.unique_indices or not rounds(self.dtype, dtypes.as_dtype(dtype)) else self.sum_duplicates(self.nse)
        return mat.replace_data(mat.data.astype(dtype))

    def sort_indices(self) -> BCOO:
        """Return the array with its elements in the order of their indices.

        Indices that positions of the batch share remain shared.
        """
        n = self.n_batch
        if not self.n_sparse:
            return self.replace(self.data, self.indices, indices_sorted=True)
        order = over_batches(lambda indices: vnp.lexsort(tuple(indices[:, i] for i in reversed(range(self.n_sparse)))), n)(self.indices)
        take = over_batches(lambda array, order: array[order], n)
        batch = broadcast_shapes(self.data.shape[:n], order.shape[:n])
        data, positions = vnp.broadcast_to(self.data, (*batch, *self.data.shape[n:])), vnp.broadcast_to(order, (*batch, self.nse))
        return self.replace(take(data, positions), take(self.indices, order), indices_sorted=True)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """Return the array with every index stored once, in order.

        `nse` is how many elements to store for each position of the batch dimensions, needed while tracing. With `remove_zeros`, stored
        elements that are zero do not count; sums that are zero do.

        >>> m = BCOO((np.array([1.0, 2.0, 4.0], "float32"), np.array([[1], [0], [1]])), shape=(3,))
        >>> m.sum_duplicates().data
        Array([2., 5.], dtype=float32)
        """
        mat = self.broadcast_batches()
        if remove_zeros:
            stored = (mat.data != 0).any(tuple(range(mat.n_batch + 1, mat.data.ndim)))
            if mat.n_sparse:
                mat = mat.replace(mat.data, vnp.where(stored[..., None], mat.indices, outside(mat)))
        if nse is None:
            counts = over_batches(lambda m: _runs(m)[3], mat.n_batch)(mat)
            nse = int(counts.max(initial=0))
        return over_batches(functools.partial(_join_runs, nse=nse), mat.n_batch)(mat)

    def tree_flatten(self) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """Return data and indices, and what does not change under transforms.

        That is the shape without batch dimensions, and the promises.
        """
        static = {"shape": self._element_shape, "indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices}
        return (self.data, self.indices), static

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> BCOO:
        """Return the array of what `tree_flatten` returns."""
        result = object.__new__(cls)
        result.data, result.indices = children
        result._element_shape = aux_data["shape"]
        result.indices_sorted, result.unique_indices = aux_data["indices_sorted"], aux_data["unique_indices"]
        return result


def rounds(source: np.dtype, target: np.dtype) -> bool:
    """Return whether a conversion, such as to booleans, is not linear."""
    return target == np.bool_ or (target in dtypes.INTEGERS and source in dtypes.INEXACT)


def outside(mat: BCOO) -> Any:
    """Return the index of padding: the sizes of the sparse dimensions."""
    make = vnp.array if is_symbolic(mat.sparse_shape) else np.array
    return make(mat.sparse_shape, dtype_of_indices(mat.indices.dtype, mat.sparse_shape))


def dtype_of_indices(dtype: np.dtype, sizes: Sequence[int]) -> np.dtype:
    """Return a dtype of indices, or a wider one if sizes do not fit it."""
    if is_symbolic(sizes) or max(sizes, default=0) <= dtypes.iinfo(dtype).max:
        return dtype
    return np.promote_types(dtype, np.int32 if max(sizes) <= np.iinfo(np.int32).max else np.int64)


def over_batches(function: Callable[..., Any], n_batch: int) -> Callable[..., Any]:
    """Map a function over that many batch dimensions of its arguments."""
    for _ in range(n_batch):
        function = vmap(function)
    return function


def read_at(array: Array, columns: Sequence[Array]) -> Array:
    """Return the elements at indices, 0 where these are out of range."""
    if not columns:
        return array[None]
    if not array.size:
        return vnp.zeros((*columns[0].shape, *array.shape[len(columns) :]), array.dtype)
    return array.at[tuple(columns)].get(mode="fill", fill_value=array.dtype.type(0), wrap_negative_indices=False)


def add_at(array: Array, columns: Sequence[Array], data: Array) -> Array:
    """Add elements at indices, but for those out of range."""
    if not columns:
        return array + data.sum(0).astype(array.dtype)
    return array.at[tuple(columns)].add(data, mode="drop", wrap_negative_indices=False) if array.size else array


def _runs(mat: BCOO) -> tuple[Array, Array, Array, Array]:
    """Return sorted elements and their runs of equal indices.

    That is: the elements in the order of their indices, the indices, the run of each, and the number of runs in range.
    """
    valid, bounds = mat.valid(), outside(mat)
    indices = vnp.where(valid[:, None], mat.indices, bounds)
    order = vnp.lexsort(tuple(indices[:, i] for i in reversed(range(mat.n_sparse)))) if mat.n_sparse else vnp.arange(mat.nse)
    indices, data = indices[order], mat.masked_data()[order]
    begins = vnp.concatenate([vnp.ones(min(mat.nse, 1), bool), (indices[1:] != indices[:-1]).any(-1)])
    return data, indices, vnp.cumsum(begins) - 1, (begins & valid[order]).sum()


def _join_runs(mat: BCOO, nse: int) -> BCOO:
    data, indices, runs, _ = _runs(mat)
    padding = vnp.broadcast_to(outside(mat), (nse, mat.n_sparse))
    sums = add_at(vnp.zeros((nse, *data.shape[1:]), data.dtype), (runs,), data)
    joined = padding.at[runs].set(indices, mode="drop") if padding.size else padding
    return mat.replace(sums, joined, indices_sorted=True, unique_indices=True)


def _is_placeholder(x: Any) -> bool:
    """Return True for what transforms put in pytrees instead of arrays."""
    return not (hasattr(x, "shape") or isinstance(x, (list, tuple, int, float, complex)))


def _flatten(mat: BCOO) -> tuple[Any, Any]:
    return (mat.data, mat.indices), (mat._element_shape, mat.indices_sorted, mat.unique_indices)


def _rebuild(static: Any, children: Any) -> BCOO:
    names = "shape", "indices_sorted", "unique_indices"
    return BCOO.tree_unflatten(dict(zip(names, static, strict=True)), children)


tree.register_pytree_node(BCOO, _flatten, _rebuild)


# Random arrays.


def random_bcoo(
    key: Any,
    shape: Sequence[int],
    *,
    dtype: Any = np.float32,
    indices_dtype: Any = None,
    nse: float = 0.2,
    n_batch: int = 0,
    n_dense: int = 0,
    unique_indices: bool = True,
    sorted_indices: bool = False,
    generator: Callable[..., Any] = random.uniform,
    **kwds: Any,
) -> BCOO:
    """Return a sparse array of random elements at random indices.

    Args:
        key: a random key.
        shape: the shape of the array.
        dtype, indices_dtype: the dtypes of data and indices (default of the latter: int32).
        nse: the number of elements for each position of the batch dimensions; below 1, their fraction of the sparse dimensions' size.
        n_batch, n_dense: the numbers of batch and dense dimensions.
        unique_indices: whether no index occurs twice; `nse` may then not exceed the size of the sparse dimensions.
        sorted_indices: whether indices are in order.
        generator: makes the data, ``generator(key, shape=…, dtype=…, **kwds)``.

    Raises:
        ArgumentError: the numbers of dimensions do not fit the shape, or `nse` is negative or too large.

    >>> random_bcoo(vf.random.key(0), (3, 4), nse=0.5)
    BCOO(float32[3, 4], nse=6)
    """
    shape = tuple(shape)
    n_sparse = len(shape) - n_batch - n_dense
    if min(n_batch, n_dense, n_sparse) < 0:
        raise ArgumentError(f"random_bcoo: n_batch={n_batch} and n_dense={n_dense} do not fit the shape {shape}")
    batch, sizes, dense = shape[:n_batch], shape[n_batch : n_batch + n_sparse], shape[n_batch + n_sparse :]
    size = math.prod(sizes)
    count = math.ceil(nse * size) if 0 < nse < 1 else int(nse)
    if count < 0 or (unique_indices and count > size) or (count and not size):
        raise ArgumentError(f"random_bcoo: nse={nse} must be between 0 and the size {size} of the sparse dimensions")
    key_of_data, key_of_indices = random.split(key)
    index_dtype = np.int32 if indices_dtype is None else indices_dtype

    def draw(key: Any) -> Array:
        if not count or not n_sparse:
            return vnp.zeros((count, n_sparse), index_dtype)
        positions = random.permutation(key, size)[:count] if unique_indices else random.randint(key, (count,), 0, size)
        if sorted_indices:
            positions = vnp.sort(positions)
        return vnp.stack(vnp.unravel_index(positions, sizes), -1).astype(index_dtype)

    keys = random.split(key_of_indices, math.prod(batch))
    keys = keys.reshape(*batch, *keys.shape[1:])
    data = generator(key_of_data, shape=(*batch, count, *dense), dtype=dtype, **kwds)
    indices = over_batches(draw, n_batch)(keys) if batch else draw(key_of_indices)
    return BCOO((data, indices), shape=shape, indices_sorted=sorted_indices, unique_indices=unique_indices)
