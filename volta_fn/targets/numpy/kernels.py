"""NumPy functions that evaluate primitives, where the declaration has none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives import contraction as _contraction  # noqa: F401  # these declare what the kernels are attached to
from volta_fn.primitives import convolution as _convolution  # noqa: F401
from volta_fn.primitives import cumulative as _cumulative  # noqa: F401
from volta_fn.primitives import fourier as _fourier  # noqa: F401
from volta_fn.primitives import linalg as _linalg  # noqa: F401
from volta_fn.primitives import random as _random  # noqa: F401
from volta_fn.primitives import sorting as _sorting  # noqa: F401
from volta_fn.primitives import window as _window  # noqa: F401
from volta_fn.primitives.data_movement import dynamic_slicing as _dynamic_slicing  # noqa: F401
from volta_fn.primitives.data_movement import scatter as _scatter  # noqa: F401
from volta_fn.primitives.formulas import threefry
from volta_fn.targets.numpy import (
    contraction,
    convolution,
    fourier,
    indexing,
    lapack,
    linalg,
    random_bits,
    reductions,
    sorting,
    windows,
)
from volta_fn.targets.numpy import control_flow as _control_flow  # noqa: F401  # registers its kernels
from volta_fn.targets.numpy.backend import TYPED

KERNELS: dict[str, Callable[..., Any]] = {
    # contraction
    "dot_general": contraction.dot_general,
    # convolution
    "conv_general_dilated": convolution.conv_general_dilated,
    # cumulative
    **{name: partial(reductions.cumulative, name=name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    # Fourier transforms
    "fft": fourier.fft,
    # indexing
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "scatter_add": indexing.scatter_add,
    "scatter_mul": indexing.scatter_mul,
    "scatter_min": indexing.scatter_min,
    "scatter_max": indexing.scatter_max,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
    # linear algebra
    "cholesky": linalg.cholesky,
    "triangular_solve": linalg.triangular_solve,
    "lu": linalg.lu,
    "qr": linalg.qr,
    "eigh": linalg.eigh,
    "svd": linalg.svd,
    "eig": linalg.eig,
    "hessenberg": lapack.hessenberg,
    "schur": lapack.schur,
    "tridiagonal": lapack.tridiagonal,
    "householder_product": lapack.householder_product,
    "tridiagonal_solve": lapack.tridiagonal_solve,
    # sorting
    "sort": sorting.sort,
    "top_k": sorting.top_k,
    "argmax": sorting.argmax,
    "argmin": sorting.argmin,
    # random bits
    "random_bits": random_bits.random_bits,
    "threefry2x32": threefry.threefry2x32,
    # windows
    "reduce_window_sum": partial(windows.reduce_window, op="sum"),
    "reduce_window_max": partial(windows.reduce_window, op="max"),
    "reduce_window_min": partial(windows.reduce_window, op="min"),
    "select_and_gather_add": windows.select_and_gather_add,
    "select_and_scatter_add": windows.select_and_scatter_add,
}

TYPED["dot_general"] = contraction.typed_dot_general
TYPED |= reductions.typed_reductions()

for _name, _function in KERNELS.items():
    PRIMITIVES[_name].evaluate = _function
