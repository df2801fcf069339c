"""Ordinary differential equations, solved by an adaptive Runge-Kutta method.

Steps are those of Dormand and Prince (1980), of order 5 with an error estimate of order 4; the first is chosen as by Hairer, Nørsett and
Wanner (1993, II.4), and values between steps lie on a polynomial of degree 4 (Shampine, 1986). Reverse mode solves the adjoint equation
backwards in time (Pontryagin; Chen et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.staging import check_callable
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import operand, promote_inexact
from volta_fn.numpy.joining import ravel_pytree
from volta_fn.transforms.custom_derivatives import closure_convert, custom_vjp
from volta_fn.transforms.grad import vjp
from volta_fn.transforms.vmap import vmap

#: ``derivative(y, t, *args)`` for a vector y.
Derivative = Callable[..., Array]

#: The times of the stages, as shares of a step, and the weights of earlier slopes in each; the last stage is the step's end.
_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
#: The weights of the slopes in the error estimate, and in the value at half of the step.
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
_MIDDLE = (
    6025192743 / 60171106304,
    0.0,
    51252292925 / 130801643196,
    -2691868925 / 90256659456,
    187940372067 / 3189068634112,
    -1776094331 / 39487288512,
    11237099 / 470086768,
)


class _Limits(NamedTuple):
    """Tolerances, the number of steps between two times, and the longest step."""

    rtol: Any
    atol: Any
    mxstep: Any
    hmax: Any


class _State(NamedTuple):
    """A time, value and slope; the next step; the last step's begin and polynomial."""

    y: Array
    slope: Array
    t: Array
    step: Array
    before: Array
    polynomial: Array


def odeint(
    func: Callable[..., Any], y0: Any, t: Any, *args: Any, rtol: Any = 1.4e-8, atol: Any = 1.4e-8, mxstep: Any = np.inf, hmax: Any = np.inf
) -> Any:
    """Solve the initial value problem dy/dt = func(y, t, *args).

    Args:
        func: the derivative, a pytree like `y0`.
        y0: the value at the first time, a pytree of arrays; integers become floats.
        t: increasing times, a vector of floats.
        args: further arguments of `func`, pytrees of arrays.
        rtol, atol: the relative and absolute error allowed in a step.
        mxstep: the largest number of steps from one time to the next; the solution beyond is wrong.
        hmax: the longest step.

    Returns:
        The values at all times, like `y0` with a leading axis of the length of `t`.

    Has derivatives in reverse mode, by `y0`, `t`, `args` and what `func` closes over. Raises `ShapeError` unless `t` is a vector with
    elements, `ArgumentTypeError` unless its dtype is floating.

    >>> oscillator = lambda y, t, w: {"x": y["v"], "v": -w**2 * y["x"]}
    >>> times = jnp.array([0.0, jnp.pi / 2])
    >>> vf.experimental.ode.odeint(oscillator, {"x": 1.0, "v": 0.0}, times, 2.0)["x"].round(3)
    Array([ 1., -1.], dtype=float32)
    """
    check_callable(func, "odeint")
    times = operand("odeint", "t", t)
    if times.dtype not in dtypes.FLOATS:
        raise ArgumentTypeError(f"odeint: t must be floating, got {times.dtype.name}")
    if times.ndim != 1 or not times.size:
        raise ShapeError(f"odeint: t must be a vector with elements, got shape {times.shape}")
    start, unravel = ravel_pytree(tree.map(lambda x: promote_inexact("odeint", _as_array(x, times.dtype))[0], y0))
    exact_args = tree.map(lambda x: _as_array(x, dtypes.real_dtype(start.dtype)), args)
    flat = lambda y, t, *args: ravel_pytree(func(unravel(y), t, *args))[0].astype(start.dtype)  # noqa: E731
    converted, captured = closure_convert(flat, start, times[0], *exact_args)
    values = _solution(converted, _Limits(rtol, atol, mxstep, hmax), start, times, (*exact_args, *captured))
    return vmap(unravel)(values)


def _as_array(x: Any, dtype: np.dtype) -> Array:
    """Return an array: of a Python float one of this dtype, so that no digit is lost."""
    return vnp.asarray(x, dtype=dtype if type(x) is float else None)


def _solution(derivative: Derivative, limits: _Limits, y0: Array, times: Array, args: Sequence[Any]) -> Array:
    """Return the values at the times, differentiable by the adjoint equation."""

    @custom_vjp
    def solution(y0: Array, times: Array, args: Any) -> Array:
        return _integrated(lambda y, t: derivative(y, t, *args), limits, y0, times)

    def forward(y0: Array, times: Array, args: Any) -> Any:
        values = solution(y0, times, args)
        return values, (values, times, args)

    def backward(saved: Any, cotangents: Array) -> Any:
        values, times, args = saved
        return _adjoint(derivative, limits, values, times, args, cotangents)

    solution.defvjp(forward, backward)
    return solution(y0, times, tuple(args))


def _adjoint(derivative: Derivative, limits: _Limits, values: Array, times: Array, args: Any, cotangents: Array) -> Any:
    """Return the cotangents of the first value, the times and the arguments."""
    # The state of the adjoint equation is the solution, and the cotangents of value, time and arguments, in negative time.
    leaves, structure = tree.flatten(args)
    is_inexact = [x.dtype in dtypes.INEXACT for x in leaves]
    inexact = [x for x, i in zip(leaves, is_inexact, strict=True) if i]

    def slope_at(y: Array, t: Array, chosen: Sequence[Array]) -> Array:
        rest = iter(chosen)
        return derivative(y, t, *tree.unflatten(structure, [next(rest) if i else x for x, i in zip(leaves, is_inexact, strict=True)]))

    def augmented(state: Any, t: Array, chosen: Any) -> Any:
        slope, pull_back = vjp(slope_at, state[0], -t, chosen)
        return (-slope, *pull_back(state[1]))

    def back(carry: Any, interval: Any) -> Any:
        y_ct, t_ct, args_ct = carry
        y, end, begin, ct_here, ct_before = interval
        end_ct = (slope_at(y, end, inexact) @ ct_here).real.astype(times.dtype)
        state = (y, y_ct, t_ct - end_ct, args_ct)
        solution = odeint(augmented, state, vnp.stack([-end, -begin]), inexact, **limits._asdict())
        _, y_ct, t_ct, args_ct = tree.map(lambda x: x[1], solution)
        return (y_ct + ct_before, t_ct, args_ct), end_ct

    start = (cotangents[-1], vnp.zeros((), times.dtype), tree.map(vnp.zeros_like, inexact))
    intervals = (values[1:], times[1:], times[:-1], cotangents[1:], cotangents[:-1])
    (y_ct, t_ct, args_ct), ends = lax.scan(back, start, intervals, reverse=True)
    rest = iter(args_ct)
    return y_ct, vnp.concatenate([t_ct[None], ends]), tree.unflatten(structure, [next(rest) if i else None for i in is_inexact])


def _integrated(derivative: Derivative, limits: _Limits, y0: Array, times: Array) -> Array:
    most = np.int32(min(limits.mxstep, np.iinfo(np.int32).max))

    def reach(state: _State, time: Array) -> tuple[_State, Array]:
        counted = (state, np.int32(0))
        state, _ = lax.while_loop(lambda s: (s[0].t < time) & (s[1] < most) & (s[0].step > 0), advance, counted)
        length = state.t - state.before
        share = (time - state.before) / vnp.where(length == 0, 1, length)
        return state, vnp.polyval(state.polynomial, share.astype(real))

    def advance(counted: Any) -> Any:
        state, count = counted
        return _attempted_step(derivative, limits, state), count + 1

    real = dtypes.real_dtype(y0.dtype)
    slope = derivative(y0, times[0])
    step = vnp.clip(_first_step(derivative, limits, y0, times[0], slope), 0, limits.hmax).astype(times.dtype)
    constant = vnp.zeros((5, y0.size), y0.dtype).at[4].set(y0)
    _, values = lax.scan(reach, _State(y0, slope, times[0], step, times[0], constant), times[1:])
    return vnp.concatenate([y0[None], values])


def _attempted_step(derivative: Derivative, limits: _Limits, state: _State) -> _State:
    """Try a step; return the state after it, or before it with a shorter step."""
    step = state.step.astype(dtypes.real_dtype(state.y.dtype))
    slopes, y = [state.slope], state.y
    for share, weights in zip(_TIMES, _STAGES, strict=True):
        y = state.y + step * _weighted(weights, slopes)
        slopes.append(derivative(y, state.t + share * state.step))
    error = step * _weighted(_ERROR, slopes)
    allowed = limits.atol + limits.rtol * vnp.maximum(abs(state.y), abs(y))
    ratio = vnp.sqrt(vnp.mean(vnp.square(abs(error) / allowed.astype(step.dtype)))) if y.size else vnp.zeros((), step.dtype)
    polynomial = _interpolation(state.y, y, state.y + step * _weighted(_MIDDLE, slopes), step * slopes[0], step * slopes[-1])
    length = vnp.clip(_next_step(state.step, ratio), 0, limits.hmax).astype(state.step.dtype)
    after = _State(y, slopes[-1], state.t + state.step, length, state.t, polynomial)
    return tree.map(lambda new, old: vnp.where(ratio <= 1, new, old), after, state._replace(step=length))


def _weighted(weights: Sequence[float], slopes: Sequence[Array]) -> Array:
    terms = [w * s for w, s in zip(weights, slopes, strict=True) if w]
    return sum(terms[1:], start=terms[0])


def _interpolation(y0: Array, y1: Array, middle: Array, slope0: Array, slope1: Array) -> Array:
    """Return the polynomial, in shares of a step, of three values and two slopes."""
    return vnp.stack([
        -2 * slope0 + 2 * slope1 - 8 * y0 - 8 * y1 + 16 * middle,
        5 * slope0 - 3 * slope1 + 18 * y0 + 14 * y1 - 32 * middle,
        -4 * slope0 + slope1 - 11 * y0 - 5 * y1 + 16 * middle,
        slope0,
        y0,
    ])  # fmt: skip


def _next_step(step: Array, ratio: Array) -> Array:
    """Return the length at which a step would just be exact enough, within bounds."""
    least = vnp.where(ratio < 1, 1.0, 0.2)
    factor = 0.9 * vnp.where(ratio == 0, 1, ratio) ** -0.2
    return step * vnp.where(ratio == 0, 10, vnp.clip(factor, least, 10)).astype(step.dtype)


def _first_step(derivative: Derivative, limits: _Limits, y0: Array, t0: Array, slope: Array) -> Array:
    scale = (limits.atol + abs(y0) * limits.rtol).astype(dtypes.real_dtype(y0.dtype))
    size, speed = vnp.linalg.norm(y0 / scale), vnp.linalg.norm(slope / scale)
    is_small = (size < 1e-5) | (speed < 1e-5)
    guess = vnp.where(is_small, 1e-6, 0.01 * size / vnp.where(is_small, 1, speed))
    after = derivative(y0 + guess * slope, t0 + guess.astype(t0.dtype))
    bend = vnp.linalg.norm((after - slope) / scale) / guess
    fastest = vnp.maximum(speed, bend)
    is_still = fastest <= 1e-15
    length = vnp.where(is_still, vnp.maximum(1e-6, guess * 1e-3), (0.01 / vnp.where(is_still, 1, fastest)) ** 0.2)
    return vnp.minimum(100 * guess, length)
