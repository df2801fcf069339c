"""The gamma distribution and those derived from it: beta, Dirichlet, t, F, …."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.core.aval import Shape, as_integer, canonical_shape
from volta_fn.core.memory.transfer import constrained
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.random import random_split
from volta_fn.random.arguments import float_dtype, parameters, shape_with
from volta_fn.random.basic import rademacher, uniform
from volta_fn.random.continuous import exponential
from volta_fn.random.gaussian import normal
from volta_fn.random.keys import single_key
from volta_fn.scipy.special.exponential import softmax
from volta_fn.scipy.special.incomplete_gamma import random_gamma_grad
from volta_fn.transforms.custom.custom_jvp import custom_jvp
from volta_fn.transforms.vmap import vmap


def gamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the gamma distribution, of density proportional to x^(a - 1) exp(-x).

    Differentiable by `a` at a fixed quantile (Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018).

    >>> vf.random.gamma(vf.random.key(0), vf.numpy.array([0.5, 10.0])).shape
    (2,)
    """
    return constrained(_gamma("gamma", key, a, shape, dtype, log=False), out_sharding)


def loggamma(key: Any, a: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the log of gamma numbers, to full precision for small `a`.

    >>> vf.random.loggamma(vf.random.key(0), 0.5, (4,)).shape
    (4,)
    """
    return constrained(_gamma("loggamma", key, a, shape, dtype, log=True), out_sharding)


def _gamma(function: str, key: Any, a: Any, shape: Sequence[int] | None, dtype: Any, log: bool) -> Array:
    data = single_key(function, key)
    _, sizes, shapes = parameters(function, dtype, shape, a=a)
    return _samples(broadcast_to(shapes, sizes), data, log)


@functools.partial(custom_jvp, nondiff_argnums=(2,))
def _samples(a: Array, data: Array, log: bool) -> Array:
    keys = random_split(data, (a.size,))
    return lax.reshape(vmap(lambda k, x: _draw_one(k, x, log))(keys, lax.reshape(a, (a.size,))), a.shape)


@_samples.defjvp
def _(log: bool, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (a, data), (tangent, _) = primals, tangents
    out = _samples(a, data, log)
    if not log:
        return out, tangent * random_gamma_grad(a, out)
    sample = lax.max(lax.exp(out), a.dtype.type(dtypes.finfo(a.dtype).tiny))
    return out, tangent * random_gamma_grad(a, sample) / sample


def _draw_one(data: Array, a: Array, log: bool) -> Array:
    """Reject from a cubed normal number.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Below 1, a number for a + 1 is multiplied by a power of a
    uniform one.
    """
    dtype = a.dtype
    zero, one = dtype.type(0), dtype.type(1)
    boosted = lax.lt(a, one)
    d = lax.select(boosted, a + one, a) - dtype.type(1 / 3)
    c = dtype.type(1 / 3) / lax.sqrt(d)

    def cube_root(state: Any) -> Any:
        keys = random_split(state[0], (2,))
        x = normal(keys[1], (), dtype)
        return keys[0], x, one + x * c

    def rejected(state: Any) -> Array:
        _, square, cube, u = state
        slowly = lax.log(u) >= square * 0.5 + d * ((one - cube) + lax.log(cube))
        return lax.bitwise_and(u >= one - dtype.type(0.0331) * (square * square), slowly)

    def propose(state: Any) -> Any:
        keys = random_split(state[0], (3,))
        _, x, v = lax.while_loop(lambda s: s[2] <= zero, cube_root, (keys[1], zero, -one))
        return keys[0], x * x, (v * v) * v, uniform(keys[2], (), dtype)

    keys = random_split(data, (2,))
    _, _, cube, _ = lax.while_loop(rejected, propose, (keys[0], zero, one, dtype.type(2)))
    if log:
        log_power = -exponential(keys[1], (), dtype)
        boost = lax.select(lax.bitwise_and(boosted, lax.ne(log_power, zero)), log_power * (one / a), lax.full_like(a, 0))
        return (lax.log(d) + lax.log(cube)) + boost
    power = lax.pow(one - uniform(keys[1], (), dtype), one / a)
    return d * cube * lax.select(boosted, power, lax.full_like(a, 1))


# Distributions of several gamma numbers.


def beta(key: Any, a: Any, b: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the beta distribution, of density proportional to x^(a-1) (1-x)^(b-1).

    >>> x = vf.random.beta(vf.random.key(0), 2.0, 3.0, (1000,))
    >>> bool((x >= 0).all() and (x <= 1).all())
    True
    """
    wanted, sizes, first, second = parameters("beta", dtype, shape, a=a, b=b)
    keys = random_split(single_key("beta", key), (2,))
    logs = [loggamma(k, x, sizes, wanted) for k, x in zip((keys[0], keys[1]), (first, second), strict=True)]
    largest = lax.max(*logs)
    x, y = (lax.exp(log - largest) for log in logs)
    return constrained(x / (x + y), out_sharding)


def dirichlet(key: Any, alpha: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample Dirichlet vectors, which are positive and sum to 1.

    The last dimension of `alpha` holds a vector's parameters. The result has shape ``(*shape, n)``; the other dimensions of `alpha`
    broadcast to `shape`.

    >>> vf.random.dirichlet(vf.random.key(0), vf.numpy.ones(3)).sum().round(4)
    Array(1., dtype=float32)
    """
    wanted = float_dtype("dirichlet", dtype)
    concentration = to_dtype(alpha, wanted)
    sizes = shape_with("dirichlet", shape, alpha=concentration[..., 0])
    return constrained(softmax(loggamma(key, concentration, (*sizes, concentration.shape[-1]), wanted)), out_sharding)


def chisquare(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the chi-square distribution with `df` degrees of freedom.

    >>> bool((vf.random.chisquare(vf.random.key(0), 2.0, (5,)) >= 0).all())
    True
    """
    wanted, sizes, freedom = parameters("chisquare", dtype, shape, df=df)
    return constrained(lax.exp(loggamma(key, freedom / 2.0, sizes, wanted)) * 2.0, out_sharding)


def f(key: Any, dfnum: Any, dfden: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the F distribution: two chi-square numbers over their degrees, divided.

    >>> vf.random.f(vf.random.key(0), 2.0, 3.0, (4,)).shape
    (4,)
    """
    wanted, sizes, above, below = parameters("f", dtype, shape, dfnum=dfnum, dfden=dfden)
    keys = random_split(single_key("f", key), (2,))
    return constrained(
        (chisquare(keys[1], above, sizes, wanted) / above) / (chisquare(keys[0], below, sizes, wanted) / below), out_sharding
    )


def t(key: Any, df: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample Student's t distribution with `df` degrees of freedom.

    >>> vf.random.t(vf.random.key(0), 3.0, (4,)).shape
    (4,)
    """
    wanted, sizes, freedom = parameters("t", dtype, shape, df=df)
    keys = random_split(single_key("t", key), (2,))
    half = freedom / 2.0
    return constrained(normal(keys[0], sizes, wanted) * lax.sqrt(half / gamma(keys[1], half, sizes, wanted)), out_sharding)


def generalized_normal(key: Any, p: Any, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample the distribution with density proportional to exp(-|x|^p).

    >>> vf.random.generalized_normal(vf.random.key(0), 1.5, (4,)).shape
    (4,)
    """
    wanted = float_dtype("generalized_normal", dtype)
    sizes: Shape = canonical_shape(shape)
    power = to_dtype(p, wanted)
    keys = random_split(single_key("generalized_normal", key), (2,))
    size = gamma(keys[0], 1.0 / power, sizes, wanted) ** (1.0 / power)
    return constrained(rademacher(keys[1], sizes, wanted) * size, out_sharding)


def ball(key: Any, d: int, p: Any = 2, shape: Sequence[int] = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """Sample points (*shape, d) uniformly in the unit ball in the p-norm.

    >>> bool(vf.numpy.linalg.norm(vf.random.ball(vf.random.key(0), 3)) <= 1)
    True
    """
    wanted = float_dtype("ball", dtype)
    sizes = canonical_shape(shape)
    keys = random_split(single_key("ball", key), (2,))
    points = generalized_normal(keys[0], p, (*sizes, as_integer(d, "ball: d")), wanted)
    power = to_dtype(p, wanted)
    total = lax.reduce_sum(lax.abs(points) ** power, (-1,)) + exponential(keys[1], sizes, wanted)
    return constrained(points / (total ** (1.0 / power))[..., None], out_sharding)
