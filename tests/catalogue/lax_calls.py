"""Calls of `volta_fn.lax` and its `linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from tests.catalogue.call import Call, Calls, at, each, numbers
from tests.catalogue.numpy_calls import COUNTS, INDEX, OTHERS, SPD, SQUARE, B, P, U, W, X, Y, Z

STACK = numbers((2, 3, 3))
LOWER = np.tril(SPD)
IMAGE, KERNEL = numbers((1, 2, 5, 5)), numbers((3, 2, 3, 3))
WINDOW: dict[str, Any] = {"window_dimensions": (2, 2), "window_strides": (1, 1), "padding": "VALID"}


def slope_by_shape(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the derivative of the incomplete gamma function by its parameter, from differences."""
    a, x, step = a.astype(float), x.astype(float), 1e-5
    return (scipy.special.gammainc(a + step, x) - scipy.special.gammainc(a - step, x)) / (2 * step)


def sample_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the derivative of a gamma number by its parameter: at a constant probability, implicitly."""
    return -slope_by_shape(a, x) / scipy.stats.gamma.pdf(x, a)


ELEMENTWISE: Calls = (
    each(
        "abs asin acos asinh atan atanh cbrt cos cosh erf erfc exp exp2 expm1 logistic neg sin sinh square tan tanh bessel_i0e bessel_i1e",
        U,
    )
    | each("acosh digamma lgamma log log1p reciprocal rsqrt sqrt", P + 1)
    | {
        "erf_inv": Call((U,)),
        "integer_pow": Call((P, 3)),
        "polygamma": Call((np.ones_like(P), P), grad=False, note="differentiable in x"),
        "zeta": Call((P + 1, P)),
    }
    | each("ceil floor round sign", X, grad=False)
    | each("is_finite", X, grad=False)
    | each("bitwise_not clz population_count", COUNTS, grad=False)
    | each("add sub mul div max min pow rem atan2", P, Y)
    | {"pow": Call((P, Y)), "rem": Call((P, numbers((3, 4), 0.6, 1.1))), "complex": Call((X, Y)), "clamp": Call((-1.0, X, 1.0))}
    | each("real imag conj", Z)
    | each("eq ne ge gt le lt nextafter", X, Y, grad=False)
    | each("bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical mulhi", COUNTS, OTHERS, grad=False)
    | {"betainc": Call((P, P[::-1], np.abs(U)), theirs=scipy.special.betainc)}
    | {"igamma": Call((P, P[::-1]), theirs=scipy.special.gammainc), "igammac": Call((P, P[::-1]), theirs=scipy.special.gammaincc)}
    | {
        "igamma_grad_a": Call((P, P[::-1]), grad=False, theirs=slope_by_shape, tolerance=1e-4),
        "random_gamma_grad": Call((P, P[::-1]), grad=False, theirs=sample_slope, tolerance=1e-4),
    }
    | {"reduce_precision": Call((X, 8, 3), grad=False), "select": Call((B, X, Y)), "select_n": Call((B, X, Y))}
    | {"convert_element_type": Call((X, "float16"), grad=False), "bitcast_convert_type": Call((X, "int32"), grad=False)}
)

MOVEMENT: Calls = (
    {"broadcast": Call((W, (3,))), "broadcast_in_dim": Call((W, (3, 4), (1,))), "broadcast_to_rank": Call((W, 3))}
    | {"broadcast_like": Call((W, X)), "collapse": Call((X, 0)), "concatenate": Call(([X, Y], 0)), "expand_dims": Call((X, (1,)))}
    | {
        "pad": Call((X, 0.0, [(1, 1, 0), (0, 2, 1)])),
        "reshape": Call((X, (4, 3))),
        "rev": Call((X, (0,))),
        "squeeze": Call((X[None], (0,))),
    }
    | {
        "transpose": Call((X, (1, 0))),
        "tile": Call((X, (2, 1))),
        "stack": Call(([X, Y],)),
        "unstack": Call((X,)),
        "split": Call((X, (1, 2))),
    }
    | {"slice": Call((X, (0, 1), (2, 4))), "slice_in_dim": Call((X, 1, 3)), "index_in_dim": Call((X, 1))}
    | {"dynamic_slice": Call((X, (1, np.int32(1)), (2, 2))), "dynamic_slice_in_dim": Call((X, 1, 2)), "dynamic_index_in_dim": Call((X, 1))}
    | {"dynamic_update_slice": Call((X, X[:2, :2], (1, 1))), "dynamic_update_slice_in_dim": Call((X, X[:2], 1, 0))}
    | {"dynamic_update_index_in_dim": Call((X, X[0], 1, 0)), "index_take": Call((X, (INDEX,), (0,)), alike=True)}
    | each("stop_gradient optimization_barrier", X, grad=False)
    | {"full": Call(((2, 3), 2.0), jit=False), "full_like": Call((X, 2.0), grad=False), "iota": Call(("int32", 4), jit=False)}
    | {"broadcasted_iota": Call(("int32", (2, 3), 1), jit=False), "empty": Call(((2,), "float32"), jit=False)}
    | {"optimization_barrier": Call((X,))}
)

REDUCTIONS: Calls = (
    each("reduce_max reduce_min reduce_prod reduce_sum", X, (0,))
    | each("reduce_and reduce_or reduce_xor", B, (0,), grad=False)
    | each("argmax argmin", X, 1, "int32", grad=False)
    | each("cumsum cumprod cummax cummin cumlogsumexp", X)
    | each("sort", X)
    | {"sort_key_val": Call((W, X[0])), "top_k": Call((X, 2)), "approx_max_k": Call((X, 2)), "approx_min_k": Call((X, 2))}
    | {"reduce_window": Call((X, 0.0, np.add), WINDOW, theirs=None, jit=False)}
)

PRODUCTS: Calls = (
    each("dot", X, Y.T)
    | {"dot_general": Call((X, Y, (((1,), (1,)), ((), ())))), "batch_matmul": Call((STACK, STACK)), "fft": Call((Z, "fft", (4,)))}
    | {"conv": Call((IMAGE, KERNEL, (1, 1), "SAME")), "conv_general_dilated": Call((IMAGE, KERNEL, (1, 1), "VALID"))}
    | {"conv_with_general_padding": Call((IMAGE, KERNEL, (1, 1), "SAME", (1, 1), (1, 1)))}
    | {
        "conv_transpose": Call(
            (IMAGE, KERNEL.transpose(2, 3, 1, 0)), {"strides": (2, 2), "padding": "SAME", "dimension_numbers": ("NCHW", "HWIO", "NCHW")}
        )
    }
    | {"conv_general_dilated_patches": Call((IMAGE, (2, 2), (1, 1), "VALID"))}
    | {"conv_general_dilated_local": Call((IMAGE, numbers((3, 8, 4, 4)), (1, 1), "VALID", (2, 2)))}
    | {"ragged_dot": Call((X, numbers((2, 4, 3)), np.array([2, 1], np.int32)), alike=True)}
)

CONTROL: Calls = (
    {"cond": Call((True, lambda x: 2 * x, lambda x: x, X)), "switch": Call((1, [lambda x: 2 * x, lambda x: -x], X))}
    | {
        "scan": Call((lambda c, x: (c + x, c * x), W, X)),
        "map": Call((lambda x: x.sum(), X)),
        "associative_scan": Call((lambda a, b: a * b, X)),
    }
    | {
        "fori_loop": Call((0, 3, lambda i, x: x * x, U)),
        "while_loop": Call((lambda x: x.sum() < 100.0, lambda x: 2 * x, P), grad=False, alike=True),
    }
    | {"platform_dependent": Call((X,), {"default": lambda x: 3 * x})}
)

CALLS: Calls = at("lax", ELEMENTWISE, MOVEMENT, REDUCTIONS, PRODUCTS, CONTROL) | at(
    "lax.linalg",
    {
        "cholesky": Call((SPD,), alike=True, tolerance=1e-4),
        "triangular_solve": Call((LOWER, SQUARE), {"left_side": True, "lower": True}, alike=True),
    }
    | each("schur hessenberg qdwh", SPD, alike=True, theirs=None, grad=False)
    | {"cholesky_update": Call((np.triu(SPD), SPD[0]), alike=True, grad=False, theirs=None)}
    | {"householder_product": Call((SQUARE, SQUARE[0] / 9), grad=False), "symmetric_product": Call((SQUARE, SPD), alike=True)}
    | {"tridiagonal_solve": Call((0.1 * SQUARE[0], SPD[0] + 9, 0.1 * SQUARE[1], SQUARE), alike=True)}
    | {"lu_pivots_to_permutation": Call((np.int32([1, 2, 2]), 3), alike=True, grad=False)}
    | {"tridiagonal": Call((SPD,), alike=True, grad=False, theirs=None)}
    | each("eigh lu qr svd", SPD, alike=True, theirs=None)
    | each("eig", SPD, alike=True, theirs=None, grad=False),
)
