"""Calls of `volta_fn.numpy`, its `linalg` and `fft`."""

from __future__ import annotations

import numpy as np

from tests.catalogue.call import Call, Calls, at, each, numbers

X, Y, P, U = numbers((3, 4)), numbers((3, 4)), numbers((3, 4), 0.5, 2.5), numbers((3, 4), -0.9, 0.9)
V, W, CUBE, SQUARE = numbers((5,)), numbers((4,)), numbers((2, 3, 4)), numbers((3, 3))
RISING = np.sort(numbers((5,)))
COUNTS, OTHERS = numbers((3, 4), 1, 9, "int32"), numbers((3, 4), 1, 5, "int32")
B, C = X > 0, Y > 0
Z = (X + 1j * Y).astype(np.complex64)
NAN = np.where(X > 2, np.float32(np.nan), X)
INDEX = np.array([2, 0, 1], np.int32)
BYTES = np.array([[7, 200], [0, 255]], np.uint8)
SPD = (SQUARE @ SQUARE.T + 3 * np.eye(3)).astype(np.float32)
POINTS = np.array([[0.0, 1.0, 2.0, 3.0], [1.0, 0.5, 2.0, 2.5]], np.float32)

ELEMENTWISE: Calls = (
    each(
        "abs absolute fabs arctan atan arcsinh asinh cbrt cos deg2rad degrees exp exp2 expm1 negative positive rad2deg radians sin sinc", X
    )
    | each("sinh square tan tanh cosh nan_to_num real conj conjugate i0 angle", X)
    | {"angle": Call((Z,)), "imag": Call((Z,))}
    | each("log log10 log1p log2 sqrt reciprocal", P)
    | each("arccos acos arcsin asin arctanh atanh", U)
    | each("arccosh acosh", P + 1)
    | each("ceil floor rint round around trunc sign", X, grad=False)
    | each("isfinite isinf isnan isneginf isposinf signbit iscomplex isreal iscomplexobj isrealobj", NAN, grad=False)
    | each("bitwise_count bitwise_invert bitwise_not invert", COUNTS, grad=False)
    | each("logical_not", B, grad=False)
    | each("add subtract multiply divide true_divide arctan2 atan2 hypot fmax fmin maximum minimum copysign logaddexp logaddexp2", X, P)
    | each("fmod mod remainder", P, numbers((3, 4), 0.6, 1.1))
    | each("power pow float_power", P, Y)
    | each("floor_divide heaviside nextafter", X, P, grad=False)
    | each("divmod", P, numbers((3, 4), 0.6, 1.1), grad=False)
    | each("equal not_equal greater greater_equal less less_equal isclose", X, Y, grad=False)
    | each("array_equal array_equiv allclose", X, Y, grad=False)
    | each(
        "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift left_shift right_shift gcd lcm",
        COUNTS,
        OTHERS,
        grad=False,
    )
    | each("logical_and logical_or logical_xor", B, C, grad=False)
    | {"ldexp": Call((X, OTHERS)), "frexp": Call((X,)), "modf": Call((X,), grad=False), "spacing": Call((X,), grad=False)}
    | {
        "clip": Call((X, -1.0, 1.0)),
        "where": Call((B, X, Y)),
        "select": Call(([B, C], [X, Y], 0.0)),
        "choose": Call((OTHERS % 2, [X, Y]), {"mode": "clip"}),
    }
    | {"piecewise": Call((X, [B, ~B], [0.0, 1.0]), grad=False), "unwrap": Call((3 * RISING,)), "astype": Call((X, "float16"), grad=False)}
    | {"interp": Call((0.7 * V, RISING, numbers((5,))), alike=True)}
)

REDUCTIONS: Calls = (
    each("amax amin max min mean median prod ptp std sum var average cumsum cumprod cumulative_sum cumulative_prod", V)
    | each("nanmax nanmin nanmean nanmedian nanprod nanstd nansum nanvar nancumsum nancumprod trapezoid diff ediff1d gradient", V)
    | each("argmax argmin nanargmax nanargmin argsort count_nonzero flatnonzero", V, grad=False)
    | each("all any", B, grad=False)
    | each("percentile nanpercentile", V, 30.0)
    | each("quantile nanquantile", V, 0.3)
    | {"argwhere": Call((B,), {"size": 12, "fill_value": 0}, grad=False), "nonzero": Call((B,), {"size": 12, "fill_value": 0}, grad=False)}
    | {"flatnonzero": Call((V,), {"size": 5}, grad=False), "cov": Call((X,)), "corrcoef": Call((X,))}
    | {"histogram": Call((V,), {"bins": 4, "range": (-3, 3)}, grad=False), "bincount": Call((COUNTS.ravel(),), {"length": 10}, grad=False)}
    | {"histogram2d": Call((V, RISING), {"bins": 3, "range": ((-3, 3), (-3, 3))}, grad=False)}
    | {"histogramdd": Call((X,), {"bins": 2, "range": ((-3, 3),) * 4}, grad=False)}
    | {"histogram_bin_edges": Call((V,), {"bins": 4, "range": (-3, 3)}, grad=False), "digitize": Call((V, RISING), grad=False, alike=True)}
)

SORTING: Calls = (
    each("sort", X)
    | {
        "sort_complex": Call((V,), grad=False),
        "partition": Call((V, 2), theirs=None),
        "argpartition": Call((V, 2), grad=False, theirs=None),
    }
    | {"lexsort": Call(((COUNTS[0], OTHERS[0]),), grad=False), "searchsorted": Call((RISING, V), grad=False, alike=True)}
    | {"unique": Call((COUNTS,), {"size": 12}, grad=False), "unique_values": Call((COUNTS,), {"size": 12}, grad=False)}
    | each("unique_all unique_counts unique_inverse", COUNTS, kwargs={"size": 12}, grad=False)
    | each("union1d", COUNTS[0], OTHERS[0], kwargs={"size": 8}, grad=False)
    | each("intersect1d setdiff1d setxor1d", COUNTS[0], OTHERS[0], kwargs={"size": 4, "fill_value": 0}, grad=False)
    | {"intersect1d": Call((COUNTS[0], OTHERS[0]), {"size": 4, "fill_value": 0}, grad=False), "isin": Call((COUNTS, OTHERS[0]), grad=False)}
)

SHAPES: Calls = (
    each("atleast_1d atleast_2d atleast_3d copy flip fliplr flipud ravel squeeze transpose rot90 diag diagonal trace tril triu", X)
    | each("array asarray", V)
    | {"trim_zeros": Call((np.float32([0, 1, 2, 0]),), jit=False), "permute_dims": Call((X, (1, 0)))}
    | {"matrix_transpose": Call((X,)), "diagflat": Call((V,)), "argwhere": Call((B,), {"size": 12, "fill_value": 0}, grad=False)}
    | {"reshape": Call((X, (2, 6))), "resize": Call((X, (2, 3))), "expand_dims": Call((X, 1)), "moveaxis": Call((X, 0, 1))}
    | {"swapaxes": Call((X, 0, 1)), "rollaxis": Call((X, 1)), "roll": Call((X, 2)), "repeat": Call((X, 2)), "tile": Call((X, (2, 1)))}
    | {
        "broadcast_to": Call((W, (3, 4))),
        "broadcast_arrays": Call((X, W)),
        "pad": Call((X, 1)),
        "delete": Call((V, 1)),
        "insert": Call((V, 1, 9.0)),
    }
    | {"append": Call((V, W)), "compress": Call((np.array([True, False, True]), X, 0), {"size": 2}), "extract": Call((B, X), {"size": 12})}
    | each("concatenate concat stack vstack hstack dstack column_stack", (X, Y))
    | each("array_split split", W, 2)
    | {"hsplit": Call((X, 2)), "vsplit": Call((numbers((4, 3)), 2)), "dsplit": Call((CUBE, 2)), "unstack": Call((X,))}
    | {"block": Call(([X, Y],)), "meshgrid": Call((V, W)), "ix_": Call((INDEX, INDEX), grad=False), "size": Call((X,), grad=False)}
    | each("ndim shape", X, grad=False)
    | {"take": Call((V, INDEX), alike=True), "take_along_axis": Call((X, INDEX[None, [0, 1, 2, 0]], 0), alike=True)}
    | {"put": Call((V, INDEX, 1.0), {"inplace": False}, alike=True), "place": Call((V, V > 0, W), {"inplace": False})}
    | {"put_along_axis": Call((X, INDEX[None, [0, 1, 2, 0]], 5.0, 0), {"inplace": False}, alike=True)}
    | {"fill_diagonal": Call((X, 1.0), {"inplace": False}), "packbits": Call((B,), grad=False), "unpackbits": Call((BYTES,), grad=False)}
    | {"apply_along_axis": Call((lambda v: v.sum(), 0, X))}
    | {"apply_over_axes": Call((lambda x, axis: x.sum(axis), X, [0]))}
)

CREATION: Calls = (
    each("zeros_like ones_like", X, grad=False)
    | each("zeros ones", (2, 3), grad=False, jit=False)
    | {"empty": Call(((2, 3),), grad=False, jit=False, theirs="jax"), "empty_like": Call((X,), grad=False, theirs="jax")}
    | each("eye identity tri bartlett blackman hamming hanning", 4, grad=False, jit=False)
    | {
        "full": Call(((2, 3), 2.0), jit=False),
        "full_like": Call((X, 2.0), grad=False),
        "arange": Call((2, 8, 2), jit=False),
        "kaiser": Call((5, 2.0), jit=False),
    }
    | each("linspace logspace geomspace", 1.0, 2.0, 5, jit=False)
    | {"vander": Call((V,)), "diag_indices": Call((3,), jit=False), "diag_indices_from": Call((SQUARE,), grad=False)}
    | each("tril_indices triu_indices", 3, jit=False)
    | each("tril_indices_from triu_indices_from", SQUARE, grad=False)
    | {
        "indices": Call(((2, 3),), jit=False),
        "mask_indices": Call((3, np.triu), jit=False),
        "fromfunction": Call((lambda i, j: i + j, (2, 3)), jit=False),
    }
    | {"fromiter": Call(([1.0, 2.0], "float32"), jit=False, theirs=np.fromiter), "frombuffer": Call((b"\x01\x02", "uint8"), jit=False)}
    | {
        "fromstring": Call(("1 2",), {"dtype": "float32", "sep": " "}, jit=False),
        "unravel_index": Call((INDEX, (2, 3)), grad=False, alike=True),
    }
    | {"ravel_multi_index": Call(((INDEX, INDEX), (3, 4)), {"mode": "clip"}, grad=False, alike=True)}
)

PRODUCTS: Calls = (
    each("dot matmul", X, Y.T)
    | each("inner vdot vecdot kron outer tensordot", X, Y)
    | {"tensordot": Call((X, Y.T, 1)), "matvec": Call((X, W)), "vecmat": Call((W, Y.T)), "cross": Call((X[:, :3], Y[:, :3]))}
    | {"einsum": Call(("ij,kj->ik", X, Y)), "convolve": Call((V, W)), "correlate": Call((V, W))}
)

POLYNOMIALS: Calls = (
    each("polyadd polysub polymul", V, W)
    | {
        "polydiv": Call((numbers((5,), 0.5, 2.5), numbers((3,), 0.5, 2.5)), tolerance=2e-4, theirs="jax"),
        "polyder": Call((V,)),
        "polyint": Call((V,)),
        "polyval": Call((V, X)),
    }
    | {"poly": Call((V,), tolerance=1e-4), "polyfit": Call((RISING, V, 2), alike=True, tolerance=1e-3)}
    | {"roots": Call((np.float32([1, -6, 11, -6]),), {"strip_zeros": False}, grad=False, alike=True, theirs=None)}
)

SPD4 = np.stack([SPD, SPD + np.eye(3, dtype=np.float32)])
LINALG: Calls = (
    each("cholesky inv det pinv matrix_norm norm svdvals eigvalsh", SPD, alike=True, tolerance=1e-4)
    | each("slogdet cond", SPD, alike=True, tolerance=1e-4)
    | {
        "eigh": Call((SPD,), alike=True, theirs=None),
        "qr": Call((SPD,), alike=True, theirs=None),
        "svd": Call((SPD,), alike=True, theirs=None),
    }
    | {"eig": Call((SPD,), alike=True, theirs=None, grad=False), "eigvals": Call((SPD,), alike=True, theirs=None)}
    | {"solve": Call((SPD, SQUARE), alike=True, tolerance=1e-4), "lstsq": Call((numbers((5, 3)), V), alike=True, tolerance=1e-4)}
    | {"matrix_power": Call((SPD, 3), alike=True, tolerance=1e-4), "matrix_rank": Call((SPD,), alike=True, grad=False)}
    | {"multi_dot": Call(([X, Y.T, SQUARE],)), "tensorinv": Call((numbers((4, 2, 2)),), {"ind": 1}, tolerance=1e-3)}
    | {"tensorsolve": Call((numbers((4, 2, 2)), W), tolerance=1e-3), "vector_norm": Call((X,)), "cross": Call((X[:, :3], Y[:, :3]))}
    | each("diagonal matrix_transpose trace", X)
    | each("matmul", X, Y.T)
    | each("outer", V, W)
    | each("vecdot", X, Y)
    | {"tensordot": Call((X, Y.T), {"axes": 1})}
)

FFT: Calls = (
    each("fft ifft fft2 ifft2 fftn ifftn", Z)
    | each("rfft rfft2 rfftn ihfft", X)
    | each("irfft irfft2 irfftn hfft", Z)
    | each("fftshift ifftshift", X)
    | each("fftfreq rfftfreq", 6, jit=False)
)

CALLS: Calls = (
    at("numpy", ELEMENTWISE, REDUCTIONS, SORTING, SHAPES, CREATION, PRODUCTS, POLYNOMIALS)
    | at("numpy.linalg", LINALG)
    | at("numpy.fft", FFT)
)
