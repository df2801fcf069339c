"""Calls of `volta_fn.scipy` but for its `special` and `stats`, and of `ops` and `image`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from tests.catalogue.call import Call, Calls, at, each, numbers
from tests.catalogue.numpy_calls import INDEX, RISING, SPD, SQUARE, V, W, X, Y

COLUMN, ROW = SQUARE[:, 0], SQUARE[0]
UPPER = np.triu(SPD)
FACTOR, PIVOTS = (array.astype(kind) for array, kind in zip(scipy.linalg.lu_factor(SPD), ("float32", "int32"), strict=True))
SIGNAL = numbers((32,))

MATRICES: Calls = (
    each("block_diag", X, SQUARE)
    | each("circulant fiedler companion fiedler_companion toeplitz hankel", V)
    | {"fiedler": Call((RISING,)), "convolution_matrix": Call((V, 3)), "leslie": Call((V, W))}
    | each("dft hadamard helmert hilbert invhilbert invpascal pascal", 4, jit=False)
)

FACTORIZATIONS: Calls = (
    each("cholesky expm inv det", SPD, alike=True, tolerance=1e-4)
    | {"cho_factor": Call((SPD,), alike=True, theirs=lambda a: (np.linalg.cholesky(a, upper=True), False))}
    | {"sqrtm": Call((SPD,), alike=True, grad=False, theirs="jax", tolerance=1e-4)}
    | each("eigh lu qr svd", SPD, alike=True, theirs=None, tolerance=1e-4)
    | each("hessenberg polar schur", SPD, alike=True, theirs=None, grad=False, tolerance=1e-4)
    | {"cho_solve": Call(((np.ascontiguousarray(UPPER), False), ROW), alike=True, tolerance=1e-4)}
    | {"lu_factor": Call((SPD,), alike=True, tolerance=1e-4), "lu_solve": Call(((FACTOR, PIVOTS), ROW), alike=True, tolerance=1e-4)}
    | {"solve": Call((SPD, ROW), alike=True, tolerance=1e-4), "solve_triangular": Call((UPPER, ROW), alike=True, tolerance=1e-4)}
    | {"solve_sylvester": Call((SPD, SPD + np.eye(3, dtype=np.float32), SQUARE), alike=True, tolerance=1e-4)}
    | {"eigh_tridiagonal": Call((V, W), {"eigvals_only": True}, tolerance=1e-4), "expm_frechet": Call((SPD / 4, SQUARE), tolerance=1e-4)}
    | {"funm": Call((SQUARE, np.exp), alike=True, tolerance=1e-4, grad=False, jit=False, theirs=lambda a, f: scipy.linalg.expm(a) + 0j)}
    | {"qr_multiply": Call((SPD, ROW), alike=True, theirs=None), "rsf2csf": Call((UPPER, SQUARE), alike=True, grad=False, theirs=None)}
)

SIGNALS: Calls = (
    each("convolve correlate fftconvolve", V, W, tolerance=1e-4)
    | each("convolve2d correlate2d", X, SQUARE)
    | {"detrend": Call((X,))}
    | each("stft welch", SIGNAL, kwargs={"nperseg": 8}, tolerance=1e-4)
    | {"csd": Call((SIGNAL, SIGNAL[::-1]), {"nperseg": 8}, tolerance=1e-4)}
    | {"istft": Call((numbers((5, 9)) + 1j * numbers((5, 9)),), {"nperseg": 8}, tolerance=1e-4)}
)

AXIS = np.array([0.0, 1.0, 2.5, 4.0], np.float32)
PLACES = numbers((6, 2), 0.1, 1.9)
QUATERNIONS, VECTORS = numbers((2, 4)), numbers((2, 3))


TRANSLATED = Call((X, (5, 5), (0, 1), np.float32([1.5, 0.7]), np.float32([0.3, -0.2]), "linear"), theirs=None)


def interpolated(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return interpolation as one function of the grid, the values and the points."""
    return lambda grid, values, points: make((grid[:3], grid), values)(points)


def rotated(rotation: Any) -> Callable[..., Any]:
    """Return rotation of vectors by quaternions."""
    return lambda quaternions, vectors: rotation.from_quat(quaternions).apply(vectors)


def interpolated_rotation(slerp: Any) -> Callable[..., Any]:
    """Return the quaternions between two others."""
    rotation = importlib.import_module(slerp.__module__.removesuffix(".slerp")).Rotation
    return lambda quaternions, times: getattr(slerp, "init", slerp)(AXIS[:2], rotation.from_quat(quaternions))(times).as_quat()


def nearest(minimize: Callable[..., Any]) -> Callable[..., Any]:
    """Return minimization of the squared distance from a point."""
    return lambda point: minimize(lambda x: ((x - point) ** 2).sum(), 0.0 * point, method="BFGS", tol=1e-6).x


def solution(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Return the solution of a system, to more digits than by default."""
    return lambda matrix, vector: solve(matrix, vector, tol=1e-12)[0]


CALLS: Calls = (
    at("scipy.linalg", MATRICES, FACTORIZATIONS)
    | at("scipy.signal", SIGNALS)
    | at("scipy.fft", each("dct idct", X), each("dctn idctn", X))
    | at("scipy.ndimage", {"map_coordinates": Call((X, list(PLACES[:4].T), 1), alike=True, theirs="jax")})
    | at("scipy.interpolate", {"RegularGridInterpolator": Call((AXIS, X, PLACES), through=interpolated, alike=True)})
    | at("scipy.integrate", {"trapezoid": Call((V, RISING))})
    | at("scipy.cluster.vq", {"vq": Call((X, Y), grad=False, note="the distances are differentiable")})
    | at("scipy.spatial.transform", {"Rotation": Call((QUATERNIONS, VECTORS), through=rotated)})
    | at("scipy.spatial.transform", {"Slerp": Call((QUATERNIONS, AXIS[:2] / 2 + 0.3), through=interpolated_rotation, alike=True)})
    | at("scipy.optimize", {"minimize": Call((W,), through=nearest, theirs=lambda point: point, grad=False, note="forward mode only")})
    | at("scipy.sparse.linalg", each("bicgstab cg gmres", SPD, ROW, through=solution, theirs=np.linalg.solve, alike=True))
    | at("ops", each("segment_max segment_min segment_prod segment_sum", X, INDEX, kwargs={"num_segments": 3}, alike=True))
    | at("image", {"resize": Call((X, (5, 2), "linear")), "scale_and_translate": TRANSLATED})
    | at(
        "image", {"scale_and_translate": Call((X, (5, 5), (0, 1), np.float32([1.5, 0.7]), np.float32([0.3, -0.2]), "linear"), theirs=None)}
    )
)
