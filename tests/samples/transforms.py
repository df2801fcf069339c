"""Samples of the primitives of transforms: callbacks, collectives, custom rules.

Collectives are sampled inside a `vmap` that binds their axis, the function of whose stacked arguments has a NumPy oracle. Custom rules
are the true derivatives here, since the laws compare them with finite differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.samples.sample import ALL, FLOATS, INEXACT, NUMBERS, REALS, Arg, Sample, distinct, uniform
from volta_fn import lax
from volta_fn.core.trace import bind
from volta_fn.custom_batching import custom_vmap
from volta_fn.custom_derivatives import linear_call
from volta_fn.lax import custom_linear_solve
from volta_fn.primitives.collectives import pcast_p

# Custom rules.


@vf.custom_jvp
def _softened(x: Any, y: Any) -> Any:
    return lax.sin(x) * y, x + y


@_softened.defjvp
def _softened_rule(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _softened(x, y), (lax.cos(x) * dx * y + lax.sin(x) * dy, dx + dy)


@vf.custom_vjp
def _product(x: Any, y: Any) -> Any:
    return lax.sin(x) * y, y * y


def _product_forward(x: Any, y: Any) -> Any:
    return (lax.sin(x) * y, y * y), (x, y)


def _product_backward(saved: Any, cotangents: Any) -> Any:
    (x, y), (c, d) = saved, cotangents
    return lax.cos(x) * y * c, lax.sin(x) * c + 2 * y * d


_product.defvjp(_product_forward, _product_backward)


@custom_vmap
def _scaled(x: Any, y: Any) -> Any:
    return lax.sin(x) * y


@_scaled.def_vmap
def _scaled_rule(axis_size: int, in_batched: Any, x: Any, y: Any) -> Any:
    return lax.sin(x) * y, True


def _weighted(weight: Any, x: Any) -> Any:
    """Multiply by a weight, of which the transpose is told."""
    return linear_call(lambda w, x: w * x, lambda w, ct: w * ct, weight, x)


def _quotient(a: Any, b: Any) -> Any:
    """Solve a x = b for each element, and tell the steps that it took."""
    solve = lambda matvec, b: (b / matvec(lax.full_like(b, 1)), 1)
    return custom_linear_solve(lambda x: a * x, b, solve, transpose_solve=solve, has_aux=True)[0]


def _transposed_tangents(x: Any, cotangents: Any) -> Any:
    """Map the rule of `_product` over stacked tangents, and transpose it."""
    _, push = vf.linearize(lambda value: _product(value, value)[0], x)
    return vf.linear_transpose(vf.vmap(push), cotangents)(cotangents)[0]


def _seen(x: Any) -> Any:
    vf.debug.callback(lambda value: None, x)
    return x + x


def _collective(function: Any, in_axes: Any = 0, out_axes: Any = 0) -> Any:
    return vf.vmap(function, in_axes, out_axes, axis_name="i")


def _rows(reduction: Any) -> Any:
    """Return what a reduction over the examples gives each of them."""
    return lambda x: np.broadcast_to(reduction(x, 0), x.shape)


_RING = [(0, 1), (1, 2), (2, 0)]

SAMPLES = [
    Sample(
        "stop_gradient", lambda x: lax.stop_gradient(lax.sin(x)), (Arg((2, 3)),), np.sin, dtypes=FLOATS, differentiable=(), label="float"
    ),
    Sample("stop_gradient", lax.stop_gradient, (Arg((3, 0)),), lambda x: x, dtypes=ALL, exact=True, differentiable=(), label="empty"),
    Sample(
        "optimization_barrier",
        lambda x, y: lax.optimization_barrier((x, y)),
        (Arg((2, 3)), Arg()),
        lambda x, y: (x, y),
        dtypes=ALL,
        exact=True,
    ),
    Sample("custom_linear_solve", _quotient, (Arg((3,), uniform(1, 3)), Arg((3,))), lambda a, b: b / a, dtypes=INEXACT, linear=(1,)),
    Sample(
        "custom_linear_solve",
        lambda b: custom_linear_solve(lambda x: lax.rev(x, (0,)), b, lambda matvec, b: matvec(b), symmetric=True),
        (Arg((2, 0)),),
        lambda b: b[::-1],
        linear=(0,),
        label="empty",
    ),
    Sample("name", lambda x: vf.checkpoint_name(lax.neg(x), "negated"), (Arg((2, 3)),), np.negative, dtypes=INEXACT),
    Sample("name", lambda x: vf.checkpoint_name(x, "given"), (Arg(()),), lambda x: x, dtypes=ALL, exact=True, label="0d"),
    Sample(
        "checkpoint",
        vf.checkpoint(lambda x, y: (lax.sin(lax.sin(x)) * y, x + y)),
        (Arg((2, 3)), Arg((3,))),
        lambda x, y: (np.sin(np.sin(x)) * y, x + y),
        dtypes=INEXACT,
    ),
    Sample(
        "checkpoint",
        vf.checkpoint(lambda x: vf.checkpoint_name(lax.exp(x), "e") * lax.sin(x), policy=vf.checkpoint_policies.save_only_these_names("e")),
        (Arg((3,)),),
        lambda x: np.exp(x) * np.sin(x),
        label="policy",
    ),
    Sample(
        "pure_callback",
        lambda x, y: vf.pure_callback(lambda a, b: np.asarray(a) + np.asarray(b), x, x, y, vmap_method="sequential"),
        (Arg((2, 3)), Arg()),
        lambda x, y: (x + y).astype(x.dtype),
        dtypes=REALS,
        exact=True,
        differentiable=(),
        label="sequential",
    ),
    Sample(
        "pure_callback",
        lambda x, y: vf.pure_callback(lambda a, b: (np.add(a, b), np.negative(a)), (x, x), x, y, vmap_method="broadcast_all"),
        (Arg((3,)), Arg((3,))),
        lambda x, y: (x + y, -x),
        differentiable=(),
        label="broadcast",
    ),
    Sample(
        "io_callback",
        lambda x: vf.experimental.io_callback(lambda a: np.asarray(a) * 2, x, x),
        (Arg((2, 3)),),
        lambda x: x * 2,
        dtypes=REALS,
        exact=True,
        differentiable=(),
    ),
    Sample("debug_callback", _seen, (Arg((2, 3)),), lambda x: x + x, dtypes=INEXACT),
    Sample("psum", _collective(lambda x: x - lax.psum(x, "i")), (Arg((3, 2)),), lambda x: x - x.sum(0), dtypes=INEXACT, linear=(0,)),
    Sample("psum", _collective(lambda x: lax.psum(x, "i"), out_axes=None), (Arg((4,)),), lambda x: x.sum(), dtypes=FLOATS, label="shared"),
    Sample(
        "reduce_scatter",
        _collective(lambda x: lax.psum_scatter(x, "i")),
        (Arg((3, 3)),),
        lambda x: x.sum(0),
        dtypes=INEXACT,
        linear=(0,),
    ),
    # Over no axis: over one of processes, its transpose is no law of `vmap`; tests/distributed has those.
    Sample("pcast", lambda x: bind(pcast_p, x, axis_names=(), to="replicated"), (Arg((3, 2)),), lambda x: x, dtypes=INEXACT, linear=(0,)),
    Sample("pmax", _collective(lambda x: lax.pmax(x, "i")), (Arg((3, 2), distinct()),), _rows(np.max), dtypes=REALS, differentiable=()),
    Sample("pmin", _collective(lambda x: lax.pmin(x, "i")), (Arg((3, 2), distinct()),), _rows(np.min), dtypes=REALS, differentiable=()),
    Sample(
        "axis_index",
        _collective(lambda x: x * lax.axis_index("i").astype(x.dtype)),
        (Arg((3, 2)),),
        lambda x: x * np.arange(3).astype(x.dtype)[:, None],
        dtypes=NUMBERS,
        linear=(0,),
    ),
    Sample(
        "all_gather",
        _collective(lambda x: lax.all_gather(x, "i", axis=1) * x[0]),
        (Arg((3, 2)),),
        lambda x: x.T[None] * x[:, :1, None],
        dtypes=INEXACT,
    ),
    Sample(
        "all_gather",
        _collective(lambda x: lax.all_gather(x, "i", tiled=True)),
        (Arg((2, 2)),),
        lambda x: np.stack([x.ravel()] * 2),
        dtypes=NUMBERS,
        linear=(0,),
        label="tiled",
    ),
    Sample(
        "ppermute",
        _collective(lambda x: lax.ppermute(x, "i", _RING)),
        (Arg((3, 2)),),
        lambda x: np.roll(x, 1, 0),
        dtypes=NUMBERS,
        linear=(0,),
    ),
    Sample(
        "ppermute",
        _collective(lambda x: lax.ppermute(x * x, "i", [(0, 2)])),
        (Arg((3, 2)),),
        lambda x: np.stack([0 * x[0], 0 * x[0], x[0] * x[0]]),
        label="partial",
    ),
    Sample(
        "all_to_all",
        _collective(lambda x: lax.all_to_all(x, "i", 1, 0)),
        (Arg((3, 2, 3)),),
        lambda x: x.transpose(2, 0, 1),
        dtypes=NUMBERS,
        linear=(0,),
    ),
    Sample("custom_jvp_call", _softened, (Arg((2, 3)), Arg((2, 3))), lambda x, y: (np.sin(x) * y, x + y), dtypes=INEXACT),
    Sample("custom_vjp_call", _product, (Arg((2, 3)), Arg((2, 3))), lambda x, y: (np.sin(x) * y, y * y), dtypes=INEXACT, differentiable=()),
    Sample("custom_vmap_call", _scaled, (Arg((2, 3)), Arg((2, 3))), lambda x, y: np.sin(x) * y, dtypes=INEXACT, differentiable=()),
    Sample("linear_call", _weighted, (Arg((2, 3)), Arg((2, 3))), lambda w, x: w * x, dtypes=FLOATS, differentiable=(1,), linear=(1,)),
    Sample(
        "custom_tangent", _transposed_tangents, (Arg((2,)), Arg((3, 2))), lambda x, ct: (np.cos(x) * x + np.sin(x)) * ct, label="transposed"
    ),
]
