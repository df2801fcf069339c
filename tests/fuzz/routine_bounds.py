"""What a routine must give: exactly where numbers are moved, compared, or integers; else within a bound by dtype and size.

The values are those of the primitive's NumPy function, or of NumPy itself, in 64-bit numbers. Sums of small integers are exact in any
order, so that a result that lacks one term differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tests.fuzz.routine_problems import Problem
from tests.targets.products import expected as product_of
from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES, evaluation_of
from volta_fn.primitives.call import Form
from volta_fn.primitives.quantized import decode
from volta_fn.targets.numpy.convolution import conv_general_dilated

_MOVED = frozenset({"gather", "scatter", "dynamic_slice", "dynamic_update_slice", "pad"})
_LINEAR = frozenset({"cumsum", "reduce_window_sum", "select_and_gather_add", "select_and_scatter_add", "scatter_add"})


class Want(NamedTuple):
    """A result: the value, and how far from it a number may be (None: not at all; `bits`: not in a single bit)."""

    value: np.ndarray
    bound: np.ndarray | None = None
    bits: bool = False


class Residual(NamedTuple):
    """What must hold of all results together: it gives the errors, each beside its bound."""

    errors: Callable[[list[np.ndarray]], list[tuple[str, float, float]]]


def epsilon(dtype: Any, *, summed: bool = False) -> float:
    """Return the distance of 1 from the next number, in a dtype or in that of its sums."""
    dtype = np.dtype(dtype)
    dtype = dtypes.real_dtype(dtype) if dtype in dtypes.COMPLEX else dtype
    return float(ml_dtypes.finfo(dtypes.accumulator(dtype) if summed else dtype).eps)


def wanted(problem: Problem, inputs: list[np.ndarray]) -> list[Want] | Residual:
    """Return what a problem's results must be."""
    name = problem.name.removeprefix("wrapped_")
    if name != problem.name:
        numbers = problem.params["dimension_numbers"]
        (dim,) = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
        wide = inputs[1].astype(np.int64)
        inputs = [inputs[0], np.where(wide < 0, wide + inputs[0].shape[dim], wide), *inputs[2:]]
    if name in _MOVED:
        return [Want(x, bits=True) for x in _evaluated(name, inputs, problem.params)]
    with np.errstate(all="ignore"):
        if name == "dot_general":
            return [_product(problem, inputs)]
        if name == "quantized_dot":
            return [_quantized_product(problem, inputs)]
        if name == "conv_general_dilated":
            return [_convolution(problem, inputs)]
        if name.startswith("attention"):
            return _attention(problem, inputs)
        if name == "fft":
            return [_transform(problem, inputs)]
        if name in _RESIDUALS:
            return Residual(lambda results: _RESIDUALS[name](problem, inputs, results))
        if inputs[0].dtype in dtypes.INEXACT and name in (*_LINEAR, "cumprod", "scatter_mul", "cumlogsumexp"):
            return [_summed(name, problem, inputs)]
        return [Want(x) for x in _evaluated(name, inputs, problem.params)]


def _evaluated(name: str, inputs: list[np.ndarray], params: dict[str, Any]) -> list[np.ndarray]:
    """Return the results of the primitive's NumPy function."""
    evaluate = evaluation_of(PRIMITIVES[name])
    assert evaluate is not None
    with np.errstate(all="ignore"):
        result = evaluate(*inputs, **params)
    return [np.asarray(x) for x in (result if isinstance(result, tuple | list) else (result,))]


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype in dtypes.COMPLEX else np.float64)


def _sizes(x: np.ndarray) -> np.ndarray:
    """Return the absolute values; 0 for those that are not finite, which make no rounding error."""
    size = np.abs(_wide(x))
    return np.where(np.isfinite(size), size, 0.0)


def _are_small(problem: Problem) -> bool:
    return all(o.kind in ("small", "signs", "indices", "few") for o in problem.operands)


def _bounded(value: np.ndarray, scale: np.ndarray, terms: int, dtype: np.dtype, exact: bool) -> Want:
    """Return the bound of sums of so many terms, whose absolute values add up to `scale`.

    Errors of terms add up as a random walk does, at most; small integers are exact up to the bits of a sum.
    """
    summed = epsilon(dtype, summed=True)
    if exact and scale.max(initial=0) * summed <= 0.5:
        return Want(value.astype(dtype))
    tiny = float(ml_dtypes.finfo(dtypes.real_dtype(dtype) if dtype in dtypes.COMPLEX else dtype).tiny)
    return Want(value, (8 + 4 * math.sqrt(terms)) * summed * scale + epsilon(dtype) * np.where(np.isfinite(value), np.abs(value), 0) + tiny)


def _summed(name: str, problem: Problem, inputs: list[np.ndarray]) -> Want:
    """Sums and products in 64-bit numbers."""
    params, dtype = problem.params, inputs[0].dtype
    moved = [0, 2] if name.startswith("scatter") else [0]  # what is added; the others decide where
    (value,) = _evaluated(name, [_wide(x) if k in moved else x for k, x in enumerate(inputs)], params)
    terms = inputs[0].size if name.startswith("cum") else math.prod(params.get("window_dimensions", ())) + inputs[-1].size
    if name == "cumlogsumexp":
        finite = np.where(np.isfinite(value), np.abs(value), 0)
        terms = inputs[0].shape[params["axis"]]
        return Want(value, (8 + 4 * math.sqrt(terms)) * epsilon(dtype, summed=True) * (1 + finite) + epsilon(dtype) * finite)
    if name in ("cumprod", "scatter_mul"):
        terms = inputs[0].shape[params["axis"]] if name == "cumprod" else inputs[2].size
        return Want(value, 4 * (terms + 4) * epsilon(dtype, summed=True) * _sizes(value) + epsilon(dtype) * _sizes(value) + 1e-40)
    (scale,) = _evaluated(name, [_sizes(x) if k in moved else x for k, x in enumerate(inputs)], params)
    return _bounded(value, scale, terms, dtype, _are_small(problem))


def _product(problem: Problem, inputs: list[np.ndarray]) -> Want:
    lhs, rhs = inputs
    dims, ((_, dtype),) = problem.params["dimension_numbers"], problem.outputs
    if dtype not in dtypes.INEXACT:
        wide = dtype if dtype == np.bool_ else np.dtype(f"{dtype.kind}8")
        return Want(product_of(lhs, rhs, dims, wide).astype(dtype))
    terms = math.prod(lhs.shape[d] for d in dims[0][0])
    scale = product_of(_sizes(lhs), _sizes(rhs), dims, np.float64)
    value = product_of(_wide(lhs), _wide(rhs), dims, np.complex128 if dtype in dtypes.COMPLEX else np.float64)
    return _bounded(value, scale, terms, dtype, _are_small(problem))


def _quantized_product(problem: Problem, inputs: list[np.ndarray]) -> Want:
    x, data, *by_group = inputs
    layout, ((_, dtype),) = problem.params["layout"], problem.outputs
    values = decode(data, layout).astype(np.float64)
    scales, *offsets = [np.repeat(a.astype(np.float64), layout.group_size, -1)[..., : layout.size] for a in by_group]
    terms = [values * scales, *offsets]
    scale = _sizes(x) @ sum(map(_sizes, terms)).swapaxes(-1, -2)
    return _bounded(_wide(x) @ sum(terms).swapaxes(-1, -2), scale, layout.size, dtype, exact=False)


def _convolution(problem: Problem, inputs: list[np.ndarray]) -> Want:
    ((_, dtype),) = problem.outputs
    if dtype not in dtypes.INEXACT:
        return Want(_evaluated(problem.name, inputs, problem.params)[0])
    params = {k: v for k, v in problem.params.items() if k != "algorithm"}
    value = conv_general_dilated(*map(_wide, inputs), **params)
    scale = conv_general_dilated(*map(_sizes, inputs), **params)
    terms = math.prod(inputs[1].shape)
    if problem.params.get("algorithm", "auto") == "igemm":
        return _bounded(value, scale, terms, dtype, _are_small(problem))
    # Winograd's points and the transforms between them round as much as the largest sum does, of elements that padding crops, too: they
    # are in tiles with others.
    uncropped = params | {"padding": tuple([(max(low, 0), max(high, 0)) for low, high in params["padding"]])}
    largest = conv_general_dilated(*map(_sizes, inputs), **uncropped).max(initial=scale.max(initial=0))
    bound = 2000 * epsilon(dtype, summed=True) * largest + epsilon(dtype) * np.abs(value)
    return Want(value, bound)


def _transform(problem: Problem, inputs: list[np.ndarray]) -> Want:
    (x,), params = inputs, problem.params
    function = {"FFT": np.fft.fft, "IFFT": np.fft.ifft, "RFFT": np.fft.rfft, "IRFFT": np.fft.irfft}[params["kind"]]
    value = function(x.astype(np.longdouble if x.dtype.kind == "f" else np.clongdouble), params["length"], params["axis"])
    norm = np.sqrt(np.square(np.abs(value)).sum(params["axis"], keepdims=True).astype(np.float64))
    length = params["length"]
    return Want(value, np.broadcast_to((4 + 2 * math.log2(length)) * epsilon(x.dtype) * norm, value.shape))


def _attention(problem: Problem, inputs: list[np.ndarray]) -> list[Want]:
    """Attention by its definition, relative to the largest number of each result: weights are divided by their sums."""
    form: Form = problem.params["form"]
    q, k, v = (_wide(x).transpose(axes.order) for x, axes in zip(inputs, (form.q, form.k, form.v), strict=False))
    each, (t, s) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    keys, items = np.repeat(k, each, 1), np.repeat(v, each, 1)
    before, after = (t + s if n is None else n for n in form.window)
    ahead = np.arange(s) - np.arange(t)[:, None]
    seen = (-before <= ahead) & (ahead <= after)
    for mask in inputs[3 + form.biased : form.operands]:
        seen = seen & mask
    logits = q @ keys.swapaxes(2, 3) * form.scale
    bounded = np.tanh(logits / form.softcap) if form.softcap else np.zeros(())
    logits = bounded * form.softcap if form.softcap else logits
    logits = np.where(seen, logits + (_wide(inputs[3]) if form.biased else 0), form.unseen)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    out = weights @ items
    if form.cotangent is None:
        statistics = np.concatenate([top, total], -1).reshape(-1, t, 2)
        results = [(out.transpose(form.q.inverse), None), (statistics, np.abs(statistics))]
    else:
        d = _wide(inputs[-1]).transpose(form.cotangent.order)
        slopes = np.where(seen, weights * (d @ items.swapaxes(2, 3) - (d * out).sum(-1, keepdims=True)), 0)
        shared = tuple([a for a, size in enumerate(inputs[3].shape) if size == 1])
        # What is summed may cancel: its errors add up as a random walk does.
        walk = np.sqrt(np.square(slopes).sum(shared, keepdims=True))
        to_bias = [(slopes.sum(shared, keepdims=True), walk)] if form.to_bias else []
        slopes = slopes * (1 - bounded * bounded) * form.scale
        to_k, to_v = slopes.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ d
        to_k, to_v = (x.reshape(*k.shape[:2], each, *x.shape[2:]).sum(2) for x in (to_k, to_v))
        results = [(x.transpose(axes.inverse), None) for x, axes in ((slopes @ keys, form.q), (to_k, form.k), (to_v, form.v))]
        results += to_bias
    rounding = 100 * epsilon(np.float32) + 8 * epsilon(inputs[0].dtype)
    return [Want(x, rounding * (np.full(x.shape, max(1.0, _norm(x))) if size is None else 1 + size)) for x, size in results]


# factorisations


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


def _norm(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))


_Errors = list[tuple[str, float, float]]


def _unit(problem: Problem) -> float:
    """Return an eps for each row."""
    shape = problem.operands[0].shape
    return 40 * epsilon(problem.avals[0].dtype) * max(1, *shape[-2:])


def _cholesky(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, lower = _wide(inputs[0]), _wide(results[0])
    width = lower.shape[-1]  # of a panel
    return [
        ("L Lᴴ - A", _norm(lower @ _adjoint(lower[..., :width, :]) - a[..., :width]), _unit(problem) * _norm(a)),
        ("above the diagonal", _norm(np.triu(lower, 1)), 0.0),
    ]


def _solve(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    p, (a, b), x = problem.params, map(_wide, inputs), _wide(results[0])
    t = np.tril(a) if p["lower"] else np.triu(a)
    if p["unit_diagonal"]:
        n = a.shape[-1]
        t[..., range(n), range(n)] = 1
    t = t.conj() if p["conjugate_a"] else t
    t = t.swapaxes(-1, -2) if p["transpose_a"] else t
    if not x.size:
        return []
    sizes = (np.abs(t) @ np.abs(x) if p["left_side"] else np.abs(x) @ np.abs(t)) + np.abs(b)
    errors = np.abs((t @ x if p["left_side"] else x @ t) - b) / np.maximum(sizes, 1e-300)
    return [("T X - B", float(errors.max()), _unit(problem))]


def _lu(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, packed, (_, pivots, order) = _wide(inputs[0]), _wide(results[0]), results
    m, n = a.shape[-2:]
    k = min(m, n)
    lower, upper = np.tril(packed[..., :, :k], -1) + np.eye(m, k), np.triu(packed[..., :k, :])
    moved = np.take_along_axis(a, order[..., None].astype(np.int64), -2) if a.size else a
    swapped = np.broadcast_to(np.arange(m), (*a.shape[:-2], m)).copy()
    for index in np.ndindex(*a.shape[:-2]):
        for i, j in enumerate(pivots[index]):
            swapped[index][[i, j]] = swapped[index][[j, i]]
    return [
        ("L U - P A", _norm(lower @ upper - moved), _unit(problem) * max(1.0, _norm(a)) * 8),
        ("the permutation of the pivots", float((swapped != order).sum()), 0.0),
        ("a multiplier beyond 1", _norm(np.tril(packed, -1)), 1 + _unit(problem) if a.dtype.kind != "c" else 1.5),
    ]


def _qr(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, r = _wide(inputs[0]), _wide(results[-1])
    below = ("below the diagonal", _norm(np.tril(r, -1)), 0.0)
    if not problem.params["compute_q"]:
        return [below, ("Rᴴ R - Aᴴ A", _norm(_adjoint(r) @ r - _adjoint(a) @ a), _unit(problem) * max(1.0, _norm(a) ** 2) * 8)]
    q = _wide(results[0])
    return [below, ("Q R - A", _norm(q @ r - a), _unit(problem) * max(1.0, _norm(a))), _orthonormal("Q", q, problem)]


def _orthonormal(name: str, q: np.ndarray, problem: Problem) -> tuple[str, float, float]:
    return f"{name}ᴴ {name} - 1", _norm(_adjoint(q) @ q - np.eye(q.shape[-1])), _unit(problem)


def _eigh(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, v, w = _wide(inputs[0]), _wide(results[0]), results[1].astype(np.float64)
    rising = float(np.maximum(w[..., :-1] - w[..., 1:], 0).max(initial=0))
    return [
        ("A V - V w", _norm(a @ v - v * w[..., None, :]), _unit(problem) * max(1.0, _norm(w))),
        _orthonormal("V", v, problem), ("falling eigenvalues", rising, _unit(problem)),
    ]  # fmt: skip


def _svd(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a = _wide(inputs[0])
    (s,) = [x for x in results if x.ndim == a.ndim - 1]
    right = np.linalg.svd(a, compute_uv=False) if a.size else s
    values = [("singular values", _norm(s - right), _unit(problem) * max(1.0, _norm(right)))]
    if problem.params["compute_uv"]:
        s, u, vh = results if results[0].ndim == a.ndim - 1 else (results[1], results[0], results[2])
        k = s.shape[-1]
        u, vh = _wide(u), _wide(vh)
        values.append(("U S Vᴴ - A", _norm(u[..., :k] * s[..., None, :] @ vh[..., :k, :] - a), _unit(problem) * max(1.0, _norm(s))))
        values += [_orthonormal("U", u, problem), _orthonormal("V", _adjoint(vh), problem)]
    return values


def _schur(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, t = _wide(inputs[0]), _wide(results[0])
    below = np.tril(t, -1 if a.dtype.kind == "c" else -2)
    values = [("below the diagonal", _norm(below), 0.0)]
    if problem.params["compute_vectors"]:
        z = _wide(results[1])
        values += [("Z T Zᴴ - A", _norm(z @ t @ _adjoint(z) - a), _unit(problem) * max(1.0, _norm(a))), _orthonormal("Z", z, problem)]
    return values


def _eig(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    a, w = _wide(inputs[0]).astype(np.complex128), results[0].astype(np.complex128)
    traces = np.trace(a, axis1=-2, axis2=-1) - w.sum(-1)
    values = [("the sum of the eigenvalues", _norm(traces), _unit(problem) * max(1.0, _norm(a)) * 4)]
    if problem.params["compute_vectors"]:
        v = results[1].astype(np.complex128)
        values.append(("A V - V w", _norm(a @ v - v * w[..., None, :]), _unit(problem) * max(1.0, _norm(a)) * 4))
        values.append(("the lengths of vectors", _norm(np.linalg.norm(v, axis=-2) - 1), _unit(problem)))
    return values


def _like_reference(problem: Problem, inputs: list[np.ndarray], results: list[np.ndarray]) -> _Errors:
    """Relative to the largest number, the distances from what LAPACK gives in 64-bit numbers."""
    entries = []
    for number, (x, y) in enumerate(zip(results, _evaluated(problem.name, [_wide(x) for x in inputs], problem.params), strict=True)):
        entries.append((f"result {number}", _norm(_wide(x) - y), 50 * _unit(problem) * max(1.0, _norm(y))))
    return entries


_RESIDUALS: dict[str, Callable[[Problem, list[np.ndarray], list[np.ndarray]], _Errors]] = {
    "cholesky": _cholesky, "cholesky_panel": _cholesky, "triangular_solve": _solve,
    "lu": _lu, "qr": _qr, "eigh": _eigh, "svd": _svd, "schur": _schur, "eig": _eig,
    **dict.fromkeys(("hessenberg", "tridiagonal", "householder_product", "tridiagonal_solve"), _like_reference),
}  # fmt: skip


# comparison


def difference(problem: Problem, want: list[Want] | Residual, results: list[np.ndarray]) -> str | None:
    """Say what is wrong with results; return None if nothing is."""
    for number, (x, (shape, dtype)) in enumerate(zip(results, problem.outputs, strict=True)):
        if x.dtype == np.bool_ and (x.view(np.uint8) > 1).any():
            return f"result {number}: a byte of a bool that is neither 0 nor 1"
        assert (x.shape, x.dtype) == (shape, dtype)
    if isinstance(want, Residual):
        with np.errstate(all="ignore"):
            wrong = [(what, error, bound) for what, error, bound in want.errors(results) if not error <= bound]
        return f"{wrong[0][0]}: {wrong[0][1]:.3g}, at most {wrong[0][2]:.3g}" if wrong else None
    for number, (x, w) in enumerate(zip(results, want, strict=True)):
        bad = _wrong(x, w, signs=problem.name == "sort" and (problem.params["is_stable"] or len(results) > 1))
        if bad.any():
            at = tuple(np.argwhere(bad)[0].tolist())
            bound = "" if w.bound is None else f" ± {w.bound[at]:.3g}"
            return f"result {number}: {int(bad.sum())} of {bad.size} are wrong, at {at} {x[at]!r} instead of {w.value[at]!r}{bound}"
    return None


def _wrong(x: np.ndarray, want: Want, *, signs: bool) -> np.ndarray:
    if want.bits:
        raw = x.dtype.itemsize
        same = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8) == np.frombuffer(
            np.ascontiguousarray(want.value).tobytes(), np.uint8
        )
        return ~same.reshape(*x.shape, raw).all(-1)
    if x.dtype.kind == "V" or x.dtype.name in ("bfloat16", "float16"):
        x, value = x.astype(np.float32), want.value.astype(np.float64 if want.bound is not None else np.float32)
    else:
        value = want.value
    if x.dtype.kind == "c":
        parts = [_wrong(part, Want(v, want.bound), signs=signs) for part, v in ((x.real, value.real), (x.imag, value.imag))]
        return parts[0] | parts[1] if want.bound is None else _wrong_complex(x, value, want.bound)
    if x.dtype.kind not in "f":
        return x != value
    with np.errstate(all="ignore"):
        nan = np.isnan(x) & np.isnan(value)
        if want.bound is None:
            bad = ~((x == value) | nan)
            return bad | ((x == 0) & (np.signbit(x) != np.signbit(value))) if signs else bad
        wide = x.astype(np.longdouble)
        narrowed = value.astype(x.dtype)
        return ~(nan | (np.isinf(x) & (x == narrowed)) | (np.abs(wide - value) <= want.bound))


def _wrong_complex(x: np.ndarray, value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Complex numbers differ by their distance; where one is not finite, NumPy's own products differ in which part is NaN."""
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(x) & ~np.isfinite(value)
        return ~(odd | (np.abs(x.astype(np.clongdouble) - value) <= bound))
