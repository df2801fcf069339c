"""PyTorch's operators of arrays as calls of volta_fn.

The arguments are PyTorch's, the functions those of the same meaning. `CALLS` has them by the names of PyTorch's database of operators
(torch_operators.py); a name with a variant is `name@variant`. dtypes are names. torch_network_calls.py adds those of neural networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.scipy import linalg, special

#: The operators, by name.
CALLS: dict[str, Callable[..., Any]] = {}


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the call of the operators of those names."""

    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        CALLS.update(dict.fromkeys(names, call))
        return call

    return register


def axes(dim: Any) -> Any:
    """Return NumPy's axes: none at all mean all."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


class Unsupported(Exception):
    """A sample that volta_fn has no call for."""


def _none(option: Any) -> None:
    """Refuse a sample that has an option."""
    if option is not None:
        raise Unsupported("an option")


def several(value: Any) -> Any:
    """Return a tuple of one integer, and tuples and None as they are."""
    return (value,) if isinstance(value, int) else value


def ints(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes that are one argument, or several."""
    return tuple(int(s) for s in (sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes))


# Elementwise functions.

_SAME_NAMES = """
    abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh deg2rad exp exp2 expm1 floor fmax fmin fmod frexp gcd heaviside hypot
    isfinite isinf isnan isneginf isposinf isreal lcm ldexp log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor nextafter positive rad2deg reciprocal remainder signbit sin sinc sinh sqrt square tan tanh trunc conj real imag
    maximum minimum angle corrcoef trace argwhere bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
    float_power floor_divide dot vdot inner outer kron matmul ravel fliplr flipud tile hstack vstack dstack column_stack hsplit
    vsplit dsplit
"""
CALLS |= {name: getattr(jnp, name) for name in _SAME_NAMES.split()}
CALLS |= {
    "conj_physical": jnp.conj,
    "div@no_rounding_mode": jnp.divide,
    "true_divide": jnp.true_divide,
    "mul": jnp.multiply,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "neg": jnp.negative,
    "pow": jnp.power,
    "sgn": jnp.sign,
    "sign": jnp.sign,
    "rsqrt": lax.rsqrt,
    "max@binary": jnp.maximum,
    "min@binary": jnp.minimum,
    "frac": lambda x: x - jnp.trunc(x),
    "round": jnp.round,
    "round@decimals_0": jnp.round,
    "round@decimals_3": jnp.round,
    "round@decimals_neg_3": jnp.round,
    "__radd__": lambda x, y: y + x,
    "__rand__": lambda x, y: y & x,
    "__rdiv__": lambda x, y: y / x,
    "__rmatmul__": lambda x, y: y @ x,
    "__rmod__": lambda x, y: y % x,
    "__rmul__": lambda x, y: y * x,
    "__ror__": lambda x, y: y | x,
    "__rpow__": lambda x, y: y**x,
    "__rsub__": lambda x, y: y - x,
    "__rxor__": lambda x, y: y ^ x,
    "complex": lax.complex,
    "polar": lambda r, angle: lax.complex(r * jnp.cos(angle), r * jnp.sin(angle)),
    "equal": jnp.array_equal,
    "clamp_max": jnp.minimum,
    "clamp_min": jnp.maximum,
    "clamp": lambda x, min=None, max=None: jnp.clip(x, min, max),
    "isclose": lambda x, y, rtol=1e-5, atol=1e-8, equal_nan=False: jnp.isclose(x, y, rtol, atol, equal_nan),
    "allclose": lambda x, y, rtol=1e-5, atol=1e-8, equal_nan=False: jnp.allclose(x, y, rtol, atol, equal_nan),
    "add": lambda x, y, alpha=1: x + alpha * y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "rsub": lambda x, y, alpha=1: y - alpha * x,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: jnp.nan_to_num(
        x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf
    ),
    "div@trunc_rounding": lambda x, y, rounding_mode: jnp.trunc(x / y),
    "div@floor_rounding": lambda x, y, rounding_mode: jnp.floor_divide(x, y),
    "fill": lambda x, value: jnp.full_like(x, value),
    "where": lambda x, condition, y: jnp.where(condition, x, y),
    "isin": lambda x, y, assume_unique=False, invert=False: jnp.isin(x, y, invert=invert),
}

#: Special functions.
CALLS |= {
    "digamma": special.digamma,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "lgamma": special.gammaln,
    "i0": special.i0,
    "igamma": special.gammainc,
    "igammac": special.gammaincc,
    "logit": lambda x, eps=None: special.logit(x if eps is None else jnp.clip(x, eps, 1 - eps)),
    "sigmoid": special.expit,
    "xlogy": special.xlogy,
    "special.i0e": special.i0e,
    "special.i1": special.i1,
    "special.i1e": special.i1e,
    "special.modified_bessel_i0": special.i0,
    "special.modified_bessel_i1": special.i1,
    "special.bessel_j0": lambda x: special.bessel_jn(x, v=0, n_iter=100)[0],
    "special.bessel_j1": lambda x: special.bessel_jn(x, v=1, n_iter=100)[1],
    "special.ndtr": special.ndtr,
    "special.ndtri": special.ndtri,
    "special.log_ndtr": special.log_ndtr,
    "special.entr": special.entr,
    "special.erfcx": special.erfcx,
    "special.xlog1py": special.xlog1py,
    "special.zeta": special.zeta,
    **{f"mvlgamma@mvlgamma_p_{p}": lambda x, p: special.multigammaln(x, p) for p in (1, 3, 5)},
    **{f"polygamma@polygamma_n_{n}": lambda x, n: special.polygamma(n, x) for n in range(5)},
    "special.polygamma@special_polygamma_n_0": lambda x, n: special.polygamma(n, x),
}

# Reductions and cumulative functions.


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's form of a reduction."""

    def call(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        options = {} if dtype is None else {"dtype": dtype}
        return function(x, axis=axes(dim), keepdims=keepdim, **options)

    return call


CALLS |= {
    name: reduction(getattr(jnp, name)) for name in "all any amax amin sum mean prod nansum nanmean count_nonzero argmax argmin".split()
}
CALLS |= {"max@reduction_no_dim": jnp.max, "min@reduction_no_dim": jnp.min}


@operator("max@reduction_with_dim")
def max_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    return jnp.max(x, axis=dim, keepdims=keepdim), jnp.argmax(x, axis=dim, keepdims=keepdim)


@operator("min@reduction_with_dim")
def min_of(x: Any, dim: int, keepdim: bool = False) -> Any:
    return jnp.min(x, axis=dim, keepdims=keepdim), jnp.argmin(x, axis=dim, keepdims=keepdim)


@operator("aminmax")
def aminmax(x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.min(x, axis=dim, keepdims=keepdim), jnp.max(x, axis=dim, keepdims=keepdim)


def _moment(function: Callable[..., Any], with_mean: bool) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = None) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = int(bool(unbiased)) if correction is None else correction
        out = function(x, axis=axes(dim), ddof=ddof, keepdims=keepdim)
        return (out, jnp.mean(x, axis=axes(dim), keepdims=keepdim)) if with_mean else out

    return call


for _name, _function in (("std", jnp.std), ("var", jnp.var)):
    for _variant in ("", "@unbiased"):
        CALLS[f"{_name}{_variant}"] = _moment(_function, False)
        CALLS[f"{_name}_mean{_variant}"] = _moment(_function, True)


@operator("quantile")
def quantile(x: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    return jnp.quantile(x, q, axis=dim, keepdims=keepdim, method=interpolation)


CALLS["nanquantile"] = lambda x, q, dim=None, keepdim=False, *, interpolation="linear": jnp.nanquantile(
    x, q, axis=dim, keepdims=keepdim, method=interpolation
)
CALLS |= {
    "logsumexp": lambda x, dim, keepdim=False: special.logsumexp(x, axis=axes(dim), keepdims=keepdim),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(jnp.atleast_1d(x), axis=dim, dtype=dtype).reshape(x.shape),
    "cumprod": lambda x, dim, dtype=None: jnp.cumprod(jnp.atleast_1d(x), axis=dim, dtype=dtype).reshape(x.shape),
    "logcumsumexp": lambda x, dim: lax.cumlogsumexp(jnp.atleast_1d(x), axis=dim % max(x.ndim, 1)).reshape(x.shape),
    "cummax": lambda x, dim: lax.cummax(jnp.atleast_1d(x), axis=dim % max(x.ndim, 1)).reshape(x.shape),
    "cummin": lambda x, dim: lax.cummin(jnp.atleast_1d(x), axis=dim % max(x.ndim, 1)).reshape(x.shape),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: jnp.diff(x, n, dim, prepend, append),
    "trapezoid": lambda y, x=None, *, dx=1.0, dim=-1: jnp.trapezoid(y, x, dx, dim),
    "trapz": lambda y, x=None, *, dx=1.0, dim=-1: jnp.trapezoid(y, x, dx, dim),
    "cov": lambda x, *, correction=1, fweights=None, aweights=None: jnp.cov(x, ddof=correction, fweights=fweights, aweights=aweights),
}


def _masked(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, mask: Any = None) -> Any:
        keywords = options if dtype is None else options | {"dtype": dtype}
        where = None if mask is None else jnp.broadcast_to(mask, x.shape)
        return function(x, axis=axes(dim), keepdims=keepdim, where=where, **keywords)

    return call


def _extreme(function: Callable[..., Any], sign: float) -> Callable[..., Any]:
    """Return a maximum or minimum whose initial value is the worst one."""

    def call(x: Any, *arguments: Any, **keywords: Any) -> Any:
        dtype = np.dtype(x.dtype)
        worst = (np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max) if dtype.kind in "iu" else sign * np.inf
        return _masked(function, initial=worst)(x, *arguments, **keywords)

    return call


CALLS |= {
    "masked.sum": _masked(jnp.sum),
    "masked.prod": _masked(jnp.prod),
    "masked.mean": _masked(jnp.mean),
    "masked.amax": _extreme(jnp.max, -1),
    "masked.amin": _extreme(jnp.min, 1),
    "masked.logsumexp": _masked(special.logsumexp),
}


def _masked_moment(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        x: Any,
        dim: Any = None,
        unbiased: Any = True,
        keepdim: bool = False,
        *,
        correction: Any = None,
        dtype: Any = None,
        mask: Any = None,
    ) -> Any:
        where = None if mask is None else jnp.broadcast_to(mask, x.shape)
        ddof = int(bool(unbiased)) if correction is None else correction
        return function(x, axis=axes(dim), ddof=ddof, keepdims=keepdim, where=where)

    return call


CALLS |= {"masked.var": _masked_moment(jnp.var), "masked.std": _masked_moment(jnp.std)}

# Shapes and indices.


def _expand(x: Any, *sizes: Any) -> Any:
    shape = ints(sizes)
    lengths = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(n if s == -1 else s for s, n in zip(shape, lengths, strict=True)))


CALLS |= {
    "T": lambda x: x.T,
    "H": lambda x: jnp.conj(x.T),
    "mT": jnp.matrix_transpose,
    "mH": lambda x: jnp.conj(jnp.matrix_transpose(x)),
    "t": lambda x: x.T,
    "t_copy": lambda x: x.T,
    **dict.fromkeys(("clone", "contiguous", "alias_copy", "resolve_conj", "resolve_neg"), lambda x, **_: jnp.copy(x)),
    "broadcast_to": lambda x, shape: jnp.broadcast_to(x, shape),
    "broadcast_tensors": lambda *xs: jnp.broadcast_arrays(*xs),
    **dict.fromkeys(("expand", "expand_copy"), _expand),
    "expand_as": lambda x, y: jnp.broadcast_to(x, y.shape),
    **dict.fromkeys(("reshape", "view", "view_copy"), lambda x, *shape: jnp.reshape(x, ints(shape))),
    **dict.fromkeys(("reshape_as", "view_as"), lambda x, y: jnp.reshape(x, y.shape)),
    "flatten": lambda x, start_dim=0, end_dim=-1: jnp.reshape(
        x, (*x.shape[: start_dim % max(x.ndim, 1)], -1, *x.shape[end_dim % max(x.ndim, 1) + 1 :])
    ),
    **dict.fromkeys(("permute", "permute_copy"), lambda x, *dims: jnp.transpose(x, ints(dims))),
    **dict.fromkeys(("transpose", "transpose_copy"), lambda x, a, b: jnp.swapaxes(x, a, b) if x.ndim else x),
    "movedim": jnp.moveaxis,
    **dict.fromkeys(("unsqueeze", "unsqueeze_copy"), lambda x, dim: jnp.expand_dims(x, dim)),
    "flip": lambda x, dims: jnp.flip(x, tuple(dims)) if len(dims) else x,
    "roll": lambda x, shifts, dims=None: jnp.roll(x, shifts, None if dims is None or dims == () else dims),
    "rot90": lambda x, k=1, dims=(0, 1): jnp.rot90(x, k, dims),
    "cat": lambda xs, dim=0: jnp.concatenate(xs, dim),
    "stack": lambda xs, dim=0: jnp.stack(xs, dim),
    **{
        f"atleast_{n}d": lambda x, n=n: (lambda f: f(*x) if isinstance(x, (list, tuple)) else f(x))(getattr(jnp, f"atleast_{n}d"))
        for n in (1, 2, 3)
    },
    "block_diag": lambda *xs: linalg.block_diag(*xs),
    **dict.fromkeys(("unbind", "unbind_copy"), lambda x, dim=0: jnp.unstack(x, axis=dim)),
    "tensor_split": lambda x, at, dim=0: jnp.array_split(x, at, dim),
    "diag": lambda x, diagonal=0: jnp.diag(x, diagonal),
    "diagflat": lambda x, offset=0: jnp.diagflat(x, offset),
    **dict.fromkeys(("diagonal", "diagonal_copy"), lambda x, offset=0, dim1=0, dim2=1: jnp.diagonal(x, offset, dim1, dim2)),
    "linalg.diagonal": lambda x, *, offset=0, dim1=-2, dim2=-1: jnp.diagonal(x, offset, dim1, dim2),
    "tril": lambda x, diagonal=0: jnp.tril(x, diagonal),
    "triu": lambda x, diagonal=0: jnp.triu(x, diagonal),
    "tril_indices": lambda rows, columns, offset=0, **_: jnp.stack(jnp.tril_indices(rows, offset, columns)),
    "triu_indices": lambda rows, columns, offset=0, **_: jnp.stack(jnp.triu_indices(rows, offset, columns)),
    "meshgrid@variadic_tensors": lambda *xs, indexing="ij": jnp.meshgrid(*xs, indexing=indexing),
    "meshgrid@list_of_tensors": lambda xs, indexing="ij": jnp.meshgrid(*xs, indexing=indexing),
    "take": lambda x, index: jnp.take(x, index),
    "take_along_dim": lambda x, index, dim=None: jnp.take_along_axis(x, index, dim),
    "index_select": lambda x, dim, index: (
        jnp.take(jnp.atleast_1d(x), index, axis=dim).reshape(
            x.shape if not x.ndim else (*x.shape[: dim % x.ndim], -1, *x.shape[dim % x.ndim + 1 :])
        )
        if x.size
        else jnp.take(x, index, axis=dim)
    ),
    "masked_fill": lambda x, mask, value: jnp.where(mask, value, x),
    "nonzero": lambda x, as_tuple=False: jnp.nonzero(jnp.atleast_1d(x)) if as_tuple else jnp.argwhere(x),
    "masked_select": lambda x, mask: jnp.broadcast_arrays(x, mask)[0][jnp.broadcast_arrays(x, mask)[1]],
    "sort": lambda x, dim=-1, descending=False, stable=False: (
        jnp.sort(jnp.atleast_1d(x), axis=dim, descending=descending).reshape(x.shape),
        jnp.argsort(jnp.atleast_1d(x), axis=dim, descending=descending).reshape(x.shape),
    ),
    "argsort": lambda x, dim=-1, descending=False, stable=False: jnp.argsort(jnp.atleast_1d(x), axis=dim, descending=descending).reshape(
        x.shape
    ),
    "msort": lambda x: jnp.sort(x, axis=0) if x.ndim else x,
    "bincount": lambda x, weights=None, minlength=0: jnp.bincount(x, weights, minlength),
    "bucketize": lambda x, edges, *, out_int32=False, right=False: jnp.searchsorted(edges, x, side="right" if right else "left"),
    "unravel_index": lambda x, shape: jnp.unravel_index(x, shape),
    "view_as_real": lambda x: jnp.stack([x.real, x.imag], -1),
    "view_as_complex": lambda x: lax.complex(x[..., 0], x[..., 1]),
    "repeat": lambda x, *repeats: jnp.tile(x, ints(repeats)),
    "__getitem__": lambda x, *index: x[index[0]] if len(index) == 1 else x[index],
    "tensordot": lambda x, y, dims=2: jnp.tensordot(x, y, dims),
    "einsum": lambda xs, equation: jnp.einsum(equation, *xs),
    "full_like": lambda x, value, *, dtype=None, **_: jnp.full_like(x, value, dtype=dtype),
    "full": lambda shape, value, *, dtype=None, **_: jnp.full(shape, value, dtype),
    "arange": lambda *bounds, end=None, step=None, dtype=None, **_: jnp.arange(
        *bounds, *(() if end is None else (end,)), *(() if step is None else (step,)), dtype=dtype
    ),
    "linspace": lambda start, end, steps, *, dtype=None, **_: jnp.linspace(start, end, steps, dtype=dtype),
    "linspace@tensor_overload": lambda start, end, steps, *, dtype=None, **_: jnp.linspace(start, end, steps, dtype=dtype),
    "logspace": lambda start, end, steps, base=10.0, *, dtype=None, **_: jnp.logspace(start, end, steps, base=base, dtype=dtype),
    "eye": lambda n, m=None, *, dtype=None, **_: jnp.eye(n, m, dtype=dtype),
    "constant_pad_nd": lambda x, pad, value=0: lax.pad(x, x.dtype.type(value), _torch_pads(x.ndim, pad)),
}


def _torch_pads(ndim: int, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return lax.pad's widths of PyTorch's, which begin with the last axis."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    return [(0, 0, 0)] * (ndim - len(pairs)) + pairs[::-1]


@operator("squeeze", "squeeze@multiple", "squeeze_copy")
def squeeze(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return jnp.squeeze(x)
    dims = [d % max(x.ndim, 1) for d in ((dim,) if isinstance(dim, int) else dim)]
    return jnp.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


@operator("split", "split@list_args", "split_with_sizes", "split_with_sizes_copy", "unsafe_split")
def split(x: Any, sizes: Any, dim: int = 0) -> Any:
    length = x.shape[dim]
    chunks = list(range(sizes, length, sizes)) if isinstance(sizes, int) else list(np.cumsum(sizes)[:-1])
    return jnp.split(x, [int(c) for c in chunks], dim)


@operator("chunk", "unsafe_chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return split(x, -(-x.shape[dim] // chunks), dim)


@operator("narrow", "narrow_copy")
def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    return lax.dynamic_slice_in_dim(x, jnp.where(start < 0, start + x.shape[dim], start), length, dim % x.ndim)


@operator("select")
def select(x: Any, dim: int, index: int) -> Any:
    return lax.index_in_dim(x, index, dim, keepdims=False)


def _index(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Return the index of one axis."""
    return (*(slice(None),) * (dim % x.ndim), index)


def _grid(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Return an index that runs along one axis and counts along the others."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[dim % x.ndim] = index
    return tuple(grid)


@operator("gather")
def gather(x: Any, dim: int, index: Any, **_: Any) -> Any:
    if not x.ndim or not index.ndim:
        return jnp.broadcast_to(x.reshape(()), index.shape)
    return x[_grid(x, dim, index)]


@operator("scatter", "scatter_add")
def scatter(x: Any, dim: int, index: Any, source: Any, *, reduce: str = "", add: bool = False) -> Any:
    if not x.ndim:
        shape = x.shape
        return scatter(
            x.reshape(1), 0, index.reshape(-1), source.reshape(-1) if hasattr(source, "shape") else source, reduce=reduce
        ).reshape(shape)
    grid = _grid(x, dim, index)
    values = source[tuple(map(slice, index.shape))] if hasattr(source, "ndim") and source.ndim else source
    target = x.at[grid]
    return {"": target.set, "add": target.add, "multiply": target.multiply}[reduce](values)


CALLS["scatter_add"] = lambda x, dim, index, source: scatter(x, dim, index, source, reduce="add")


@operator(*(f"scatter_reduce@{r}" for r in "amax amin sum prod".split()))
def scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if not x.ndim:
        return scatter_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self).reshape(())
    grid, values = _grid(x, dim, index), source[tuple(map(slice, index.shape))]
    if not include_self:
        dtype = np.dtype(x.dtype)
        limits = (-np.inf, np.inf) if dtype.kind not in "iu" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        x = x.at[grid].set({"amax": limits[0], "amin": limits[1], "sum": 0, "prod": 1}[reduce])
    target = x.at[grid]
    return {"amax": target.max, "amin": target.min, "sum": target.add, "prod": target.multiply}[reduce](values)


@operator("index_add")
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    if not x.ndim:
        return x.reshape(1).at[index.reshape(-1)].add(alpha * source.reshape(-1)).reshape(())
    return x.at[_index(x, dim, index)].add(alpha * source)


@operator("index_copy")
def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    if not x.ndim:
        return x.reshape(1).at[index.reshape(-1)].set(source.reshape(-1)).reshape(())
    return x.at[_index(x, dim, index)].set(source)


@operator("index_fill")
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    if not x.ndim:
        return x.reshape(1).at[index.reshape(-1)].set(value).reshape(())
    return x.at[_index(x, dim, index)].set(value)


@operator("index_put")
def index_put(x: Any, index: Any, values: Any, accumulate: bool = False) -> Any:
    return x.at[tuple(index)].add(values) if accumulate else x.at[tuple(index)].set(values)


@operator("select_scatter")
def select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    return x.at[_index(x, dim, index)].set(source)


@operator("slice_scatter")
def slice_scatter(x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x.at[_index(x, dim, slice(start, end, step))].set(source)


@operator("slice")
def slice_of(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[_index(x, dim, slice(start, end, step))]


@operator("topk")
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    y = jnp.atleast_1d(x)
    if largest:
        values, indices = lax.top_k(y, k, axis=dim)
    else:
        order = jnp.argsort(y, axis=dim)
        indices = lax.slice_in_dim(order, 0, k, axis=dim % y.ndim)
        values = jnp.take_along_axis(y, indices, dim)
    return (values, indices) if x.ndim else (values.reshape(()), indices.reshape(()))


@operator("searchsorted")
def searchsorted(edges: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None) -> Any:
    return jnp.searchsorted(edges, x, side=side or ("right" if right else "left"), sorter=sorter)


@operator("histogram")
def histogram(x: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    return jnp.histogram(x, bins, range, weight, density)


@operator("repeat_interleave")
def repeat_interleave(x: Any, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    return jnp.repeat(x, repeats, axis=dim)


@operator("unique")
def unique(x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    return jnp.unique(x, return_inverse=return_inverse, return_counts=return_counts, axis=dim)


@operator("diag_embed")
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    n = x.shape[-1] + abs(offset)
    rows, columns = np.arange(x.shape[-1]) + max(-offset, 0), np.arange(x.shape[-1]) + max(offset, 0)
    return jnp.moveaxis(jnp.zeros((*x.shape[:-1], n, n), x.dtype).at[..., rows, columns].set(x), (-2, -1), (dim1, dim2))


@operator("diagonal_scatter")
def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    y = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    rows, columns = np.arange(source.shape[-1]) + max(-offset, 0), np.arange(source.shape[-1]) + max(offset, 0)
    return jnp.moveaxis(y.at[..., rows, columns].set(source), (-2, -1), (dim1, dim2))


@operator("sum_to_size")
def sum_to_size(x: Any, *sizes: Any) -> Any:
    shape = ints(sizes)
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, axis=tuple(i for i, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m), keepdims=True)


for _name, _dtype in {
    "bfloat16": "bfloat16", "bool": "bool", "byte": "uint8", "char": "int8", "double": "float64", "float": "float32", "half": "float16",
    "int": "int32", "long": "int64", "short": "int16", "cdouble": "complex128", "cfloat": "complex64",
}.items():  # fmt: skip
    CALLS[_name] = lambda x, *, memory_format=None, dtype=_dtype: x.astype(dtype)

# Products, Fourier transforms.


def _times(factor: Any, x: Any) -> Any:
    """Return a multiple of what is added to a product: 0 times NaN is 0."""
    return factor * x if factor else jnp.zeros_like(x)


CALLS |= {
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "mv": jnp.matmul,
    "addmm": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * (a @ b),
    "addmm@decomposed": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * (a @ b),
    "addmv": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * (a @ b),
    "baddbmm": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * (a @ b),
    "addbmm": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * jnp.einsum("bij,bjk->ik", a, b),
    "addr": lambda x, a, b, *, beta=1, alpha=1: _times(beta, x) + alpha * jnp.outer(a, b),
    "cross": lambda x, y, dim=None: jnp.cross(x, y, axis=-1 if dim is None else dim),
    "linalg.cross": lambda x, y, *, dim=-1: jnp.linalg.cross(x, y, axis=dim),
    "linalg.vecdot": lambda x, y, *, dim=-1: jnp.linalg.vecdot(x, y, axis=dim),
    "linalg.multi_dot": jnp.linalg.multi_dot,
    "linalg.matrix_power": jnp.linalg.matrix_power,
}
for _name in "fft ifft rfft irfft hfft ihfft".split():
    _call = getattr(jnp.fft, _name)
    CALLS[f"fft.{_name}"] = lambda x, n=None, dim=-1, norm=None, call=_call: call(x, n, dim, norm)
_CALLS_OF_ALL_AXES = {getattr(jnp.fft, f"{n}2"): getattr(jnp.fft, f"{n}n") for n in ("fft", "ifft", "rfft", "irfft")}
for _name in "fft2 ifft2 rfft2 irfft2".split():
    _call = getattr(jnp.fft, _name)
    CALLS[f"fft.{_name}"] = lambda x, s=None, dim=(-2, -1), norm=None, call=_call: (
        call(x, s, dim, norm) if np.size(dim) == 2 else _CALLS_OF_ALL_AXES[call](x, s, several(dim), norm)
    )
for _name in "fftn ifftn rfftn irfftn".split():
    _call = getattr(jnp.fft, _name)
    CALLS[f"fft.{_name}"] = lambda x, s=None, dim=None, norm=None, call=_call: call(
        x, several(s), tuple(range(-np.size(s), 0)) if dim is None and s is not None else several(dim), norm
    )
CALLS |= {
    "fft.fftshift": lambda x, dim=None: jnp.fft.fftshift(x, dim),
    "fft.ifftshift": lambda x, dim=None: jnp.fft.ifftshift(x, dim),
}

# Linear algebra.


@operator("linalg.norm")
def norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if ord is None and dim is None:
        out = jnp.linalg.norm(x.reshape(-1))
        return out.reshape((1,) * x.ndim) if keepdim else out
    return jnp.linalg.norm(x, ord, axes(dim), keepdim)


def _svd_of(x: Any, full_matrices: bool = True, **_: Any) -> Any:
    return jnp.linalg.svd(x, full_matrices=full_matrices)


CALLS |= {
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False, *, dtype=None: jnp.linalg.vector_norm(
        x, axis=axes(dim), keepdims=keepdim, ord=ord
    ),
    "linalg.matrix_norm": lambda x, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None: jnp.linalg.norm(x, ord, dim, keepdim),
    "linalg.cholesky": lambda x, *, upper=False: jnp.linalg.cholesky(x, upper=upper),
    "linalg.cond": lambda x, p=None: jnp.linalg.cond(x, p),
    "linalg.det": jnp.linalg.det,
    "linalg.slogdet": jnp.linalg.slogdet,
    "logdet": lambda x: (lambda sign, log: jnp.where(sign < 0, jnp.nan, log) if sign.dtype.kind == "f" else log)(*jnp.linalg.slogdet(x)),
    "linalg.inv": jnp.linalg.inv,
    "linalg.eigvalsh": lambda x, UPLO="L": jnp.linalg.eigvalsh(x, UPLO),
    "linalg.eigh": lambda x, UPLO="L": jnp.linalg.eigh(x, UPLO),
    "linalg.svdvals": jnp.linalg.svdvals,
    "linalg.svd": _svd_of,
    "linalg.pinv@hermitian": lambda x, hermitian=True, **_: jnp.linalg.pinv(x, hermitian=True),
    "linalg.pinv": lambda x, *, rtol=None, **_: jnp.linalg.pinv(x, rtol),
    "pinverse": lambda x, rcond=1e-15: jnp.linalg.pinv(x, rcond),
    "linalg.qr": lambda x, mode="reduced": jnp.linalg.qr(x, mode) if mode != "r" else (None, jnp.linalg.qr(x, "r")),
    "linalg.solve": lambda a, b, *, left=True: (
        jnp.linalg.solve(a, b[..., None])[..., 0]
        if b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
        else jnp.linalg.solve(a, b)
    ),
    "linalg.solve_triangular": lambda a, b, *, upper, left=True, unitriangular=False: lax.linalg.triangular_solve(
        *_broadcast_matrices(a, b), left_side=left, lower=not upper, unit_diagonal=unitriangular
    ),
    "linalg.matrix_rank": lambda x, *, atol=None, rtol=None, **_: jnp.linalg.matrix_rank(x, _none(atol) or rtol),
    "linalg.tensorinv": lambda x, ind=2: jnp.linalg.tensorinv(x, ind),
    "linalg.tensorsolve": lambda a, b, dims=None: jnp.linalg.tensorsolve(a, b, dims),
    "linalg.householder_product": lax.linalg.householder_product,
    "linalg.eigvals": jnp.linalg.eigvals,
    "ormqr": lambda a, tau, c, left=True, transpose=False: lax.linalg.ormqr(a, tau, c, left=left, transpose=transpose),
    "matrix_exp": linalg.expm,
    "cholesky": lambda x, upper=False: jnp.linalg.cholesky(x, upper=upper),
    "cholesky_solve": lambda b, factor, upper=False: linalg.cho_solve((factor, not upper), b),
}


def _broadcast_matrices(a: Any, b: Any) -> tuple[Any, Any]:
    """Broadcast the batches of two stacks of matrices."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
