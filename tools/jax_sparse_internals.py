"""Stand-ins for private functions of `jax.experimental.sparse`.

JAX's tests call them. They take and return the arrays that a sparse array consists of; here they are written with its public class.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np


class SparseInfo(NamedTuple):
    """What is static of a sparse array, by the names of JAX's private functions."""

    shape: tuple[int, ...]
    indices_sorted: bool = False
    unique_indices: bool = False


class COOInfo(NamedTuple):
    """What is static of a matrix in the format `COO`."""

    shape: tuple[int, ...]
    rows_sorted: bool = False
    cols_sorted: bool = False


def install() -> None:
    """Give the modules of `jax.experimental.sparse` the private names."""
    sparse = importlib.import_module("jax.experimental.sparse")
    jnp = importlib.import_module("jax.numpy")
    for name, names in (("bcoo", _bcoo), ("bcsr", _bcsr), ("coo", _coo), ("csr", _csr)):
        _add(sparse, name, names(sparse, jnp))
    counts = lambda mat, n_batch=0, n_dense=0: (  # noqa: E731
        (jnp.asarray(mat) != 0).any(tuple(-1 - i for i in range(n_dense))).sum(tuple(range(n_batch, np.ndim(mat) - n_dense)))
    )
    names = {
        "SparseInfo": SparseInfo,
        "_csr_to_coo": lambda indices, indptr: sparse.CSR((indices, indices, indptr), shape=(len(indptr) - 1, 2**30)).to_bcoo().indices.T,
        "_count_stored_elements_per_batch": counts,
        "_count_stored_elements": lambda *args, **options: counts(*args, **options).max(initial=0),
    }
    _add(sparse, "util", names)
    for name, info in (("BCOO", SparseInfo), ("BCSR", SparseInfo)):
        getattr(sparse, name)._info = property(lambda self, info=info: info(self.shape, self.indices_sorted, self.unique_indices))
    sparse.todense_p = SimpleNamespace(bind=lambda *arrays, tree: sparse.todense(tree.unflatten(arrays)))
    sparse._lowerings = SimpleNamespace(SUPPORTED_DATA_DTYPES=[np.float32, np.float64, np.complex64, np.complex128])


def _add(sparse: Any, name: str, names: dict[str, Any]) -> None:
    module = importlib.import_module(f"jax.experimental.sparse.{name}")
    for key, value in names.items():
        setattr(module, key, value)


def _bcoo(sparse: Any, jnp: Any) -> dict[str, Any]:
    def of(data: Any, indices: Any, spinfo: SparseInfo) -> Any:
        return sparse.BCOO((data, indices), **spinfo._asdict())

    def extract(indices: Any, arr: Any, *, assume_unique: bool = True) -> Any:
        indices, arr = jnp.asarray(indices), jnp.asarray(arr)
        n, k = indices.ndim - 2, indices.shape[-1]
        like = sparse.BCOO((jnp.zeros((*arr.shape[:n], indices.shape[n], *arr.shape[n + k :]), arr.dtype), indices), shape=arr.shape)
        return sparse.bcoo_extract(like, arr, assume_unique=assume_unique).data

    def fromdense(mat: Any, **options: Any) -> Any:
        result = sparse.BCOO.fromdense(mat, **options)
        return result.data, result.indices

    def dot_general(data: Any, indices: Any, rhs: Any, *, lhs_spinfo: SparseInfo, **options: Any) -> Any:
        return sparse.bcoo_dot_general(of(data, indices, lhs_spinfo), rhs, **options)

    todense = lambda data, indices, *, spinfo: of(data, indices, spinfo).todense()  # noqa: E731
    return {"_bcoo_extract": extract, "_bcoo_fromdense": fromdense, "_bcoo_dot_general": dot_general, "_bcoo_todense": todense}


def _bcsr(sparse: Any, jnp: Any) -> dict[str, Any]:
    def fromdense(mat: Any, **options: Any) -> Any:
        result = sparse.BCSR.fromdense(mat, **options)
        return result.data, result.indices, result.indptr

    def to_bcoo(indices: Any, indptr: Any, *, shape: Any) -> Any:
        n = jnp.ndim(indptr) - 1
        data = jnp.zeros((*jnp.shape(indices), *shape[n + 2 :]))
        return sparse.BCSR((data, indices, indptr), shape=shape).to_bcoo().indices

    def from_bcoo(indices: Any, *, shape: Any, index_dtype: Any = None) -> Any:
        n = jnp.ndim(indices) - 2
        data = jnp.zeros((*jnp.shape(indices)[:-1], *shape[n + 2 :]))
        result = sparse.BCSR.from_bcoo(sparse.BCOO((data, indices), shape=shape))
        return result.indices, result.indptr

    return {"_bcsr_fromdense": fromdense, "_bcsr_to_bcoo": to_bcoo, "_bcoo_to_bcsr": from_bcoo}


def _coo(sparse: Any, jnp: Any) -> dict[str, Any]:
    def of(data: Any, row: Any, col: Any, spinfo: COOInfo) -> Any:
        return sparse.COO((data, row, col), shape=spinfo.shape)

    def fromdense(mat: Any, **options: Any) -> Any:
        result = sparse.COO.fromdense(mat, **options)
        return result.data, result.row, result.col

    return {
        "COOInfo": COOInfo,
        "_coo_fromdense": fromdense,
        "_coo_todense": lambda data, row, col, *, spinfo: of(data, row, col, spinfo).todense(),
        "_coo_matvec": lambda data, row, col, v, *, spinfo, transpose=False: sparse.coo_matvec(of(data, row, col, spinfo), v, transpose),
        "_coo_matmat": lambda data, row, col, B, *, spinfo, transpose=False: sparse.coo_matmat(
            of(data, row, col, spinfo), B, transpose=transpose
        ),
    }


def _csr(sparse: Any, jnp: Any) -> dict[str, Any]:
    def of(data: Any, indices: Any, indptr: Any, shape: Any) -> Any:
        return sparse.CSR((data, indices, indptr), shape=shape)

    def fromdense(mat: Any, **options: Any) -> Any:
        result = sparse.CSR.fromdense(mat, **options)
        return result.data, result.indices, result.indptr

    return {
        "_csr_fromdense": fromdense,
        "_csr_todense": lambda data, indices, indptr, *, shape: of(data, indices, indptr, shape).todense(),
        "_csr_matvec": lambda data, indices, indptr, v, *, shape, transpose=False: sparse.csr_matvec(
            of(data, indices, indptr, shape), v, transpose
        ),
        "_csr_matmat": lambda data, indices, indptr, B, *, shape, transpose=False: sparse.csr_matmat(
            of(data, indices, indptr, shape), B, transpose=transpose
        ),
    }
