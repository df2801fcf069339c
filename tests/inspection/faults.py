"""Forty planted faults: functions that give NaN, infinity or an index out of range, each in a line marked FAULT.

A fault is a function of one array, whose rows are the examples of a batch; the second of four examples is the bad one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax, nn


class Fault(NamedTuple):
    """A fault: the function of one example, and the bad and the good example."""

    function: Callable[[Any], Any]
    bad: Any
    good: Any = 1.0
    dtype: str = "float32"

    def examples(self) -> np.ndarray:
        """Return four examples, of which the second is the bad one."""
        good, bad = np.asarray(self.good, self.dtype), np.asarray(self.bad, self.dtype)
        return np.stack([good, bad, good, good])

    def line(self) -> int:
        """Return the number of the marked line."""
        lines, first = inspect.getsourcelines(self.function)
        return first + next(number for number, text in enumerate(lines) if "FAULT" in text)


FAULTS: dict[str, Fault] = {}


def fault(bad: Any, good: Any = 1.0, dtype: str = "float32") -> Callable[[Any], Any]:
    """Register a function as a fault."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        FAULTS[function.__name__] = Fault(function, bad, good, dtype)
        return function

    return register


@fault(-1.0)
def log_of_negative(x: Any) -> Any:
    y = x * 1.0
    return vnp.log(y)  # FAULT


@fault(-3.0)
def log1p_below(x: Any) -> Any:
    return vnp.log1p(x) * 2  # FAULT


@fault(0.0)
def zero_by_zero(x: Any) -> Any:
    total = x - 0.0
    return x / total  # FAULT


@fault(-2.0)
def sqrt_of_negative(x: Any) -> Any:
    return vnp.sqrt(x) + 1  # FAULT


@fault(-2.0)
def rsqrt_of_negative(x: Any) -> Any:
    return lax.rsqrt(x)  # FAULT


@fault(-2.0)
def fraction_power_of_negative(x: Any) -> Any:
    return x**0.5  # FAULT


@fault(2.0, 0.5)
def arccos_outside(x: Any) -> Any:
    return vnp.arccos(x)  # FAULT


@fault(2.0, 0.5)
def arcsin_outside(x: Any) -> Any:
    return vnp.arcsin(x)  # FAULT


@fault(3.0, 0.5)
def arctanh_outside(x: Any) -> Any:
    return vnp.arctanh(x)  # FAULT


@fault(0.0, 2.0)
def arccosh_below(x: Any) -> Any:
    return vnp.arccosh(x)  # FAULT


@fault(2.0, 0.5)
def erfinv_outside(x: Any) -> Any:
    return vf.scipy.special.erfinv(x)  # FAULT


@fault(0.0)
def remainder_by_zero(x: Any) -> Any:
    return vnp.fmod(vnp.ones_like(x), x)  # FAULT


@fault(np.inf)
def infinity_minus_infinity(x: Any) -> Any:
    y = x + 1
    return y - x  # FAULT


@fault(np.inf)
def zero_times_infinity(x: Any) -> Any:
    return 0 * x  # FAULT


@fault(np.inf)
def sine_of_infinity(x: Any) -> Any:
    return vnp.sin(x)  # FAULT


@fault(np.inf)
def cosine_of_infinity(x: Any) -> Any:
    return vnp.cos(x)  # FAULT


@fault(300.0, dtype="float16")
def float16_overflow(x: Any) -> Any:
    y = x * x
    return y - y  # FAULT


@fault(200.0)
def exp_overflow(x: Any) -> Any:
    e = vnp.exp(x)
    return e / e  # FAULT


@fault([-np.inf, -np.inf], [1.0, 2.0])
def softmax_of_masked_row(x: Any) -> Any:
    shifted = x - x.max()  # FAULT
    return vnp.exp(shifted)


@fault([-np.inf, -np.inf], [1.0, 2.0])
def hand_written_logsumexp(x: Any) -> Any:
    top = x.max()
    return top + vnp.log(vnp.sum(vnp.exp(x - top)))  # FAULT


@fault([0.0, 0.0], [3.0, 4.0])
def norm_division(x: Any) -> Any:
    length = vnp.sqrt((x * x).sum())
    return x / length  # FAULT


@fault([2.0, 2.0], [1.0, 2.0])
def layer_norm_without_epsilon(x: Any) -> Any:
    centered = x - x.mean()
    return centered / vnp.sqrt((centered * centered).mean())  # FAULT


@fault([0.0, 0.0], [1.0, 2.0])
def cross_entropy_of_zero(x: Any) -> Any:
    return (vnp.zeros_like(x) * vnp.log(x)).sum()  # FAULT


@fault([1e30, 1.0], [1.0, 2.0])
def dot_overflow(x: Any) -> Any:
    energy = vnp.dot(x * 1e10, x * 1e10)
    return energy - energy  # FAULT


@fault([0.0, 0.0], [1.0, 2.0])
def mean_of_nothing(x: Any) -> Any:
    mask = x > 0
    return vnp.where(mask, x, 0).sum() / mask.sum()  # FAULT


@fault([1.0, 1.0], [1.0, 3.0])
def correlation_of_constants(x: Any) -> Any:
    centered = x - x.mean()
    return centered[0] * centered[1] / (centered * centered).sum()  # FAULT


@fault([np.inf, -np.inf], [1.0, 2.0])
def sum_of_infinities(x: Any) -> Any:
    return x.sum()  # FAULT


@fault([np.inf, -np.inf], [1.0, 2.0])
def cumulative_sum_of_infinities(x: Any) -> Any:
    return vnp.cumsum(x)  # FAULT


@fault(0.0)
def sqrt_at_zero_backward(x: Any) -> Any:
    def length(x: Any) -> Any:
        y = x * x  # FAULT
        return vnp.sqrt(y)

    return vf.grad(length)(x)


@fault(0.0)
def where_after_the_fact_backward(x: Any) -> Any:
    def safe(x: Any) -> Any:
        y = x * x
        return vnp.where(y > 0, vnp.sqrt(y), 0.0)  # FAULT

    return vf.grad(safe)(x)


@fault(0.0)
def power_backward(x: Any) -> Any:
    def power(x: Any) -> Any:
        y = x * x  # FAULT
        return y**0.5

    return vf.grad(power)(x)


@fault([0.0, 0.0], [3.0, 4.0])
def norm_backward(x: Any) -> Any:
    def norm(x: Any) -> Any:
        squares = x * x  # FAULT
        return vnp.sqrt(squares.sum())

    return vf.grad(norm)(x)


@fault(0.0, 0.5)
def arccos_backward(x: Any) -> Any:
    def angle(x: Any) -> Any:
        y = 1.0 - x * x  # FAULT
        return vnp.arccos(y)

    return vf.grad(angle)(x)


@fault(3.0, 9.0)
def division_in_a_loop(x: Any) -> Any:
    def step(carry: Any, i: Any) -> Any:
        return carry * (x - i) / (x - i), carry  # FAULT

    return lax.scan(step, vnp.ones(()), vnp.arange(5.0))[0]


@fault(-1.5, 9.0)
def log_in_a_while_loop(x: Any) -> Any:
    def body(state: Any) -> Any:
        i, total = state
        return i + 1, total + vnp.log(x)  # FAULT

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x * 0.0))[1]


@fault(-1.0)
def log_in_a_branch(x: Any) -> Any:
    return lax.cond(x < 5, lambda x: vnp.log(x), lambda x: x, x)  # FAULT


@fault(-1.0)
def log_in_a_jitted_function(x: Any) -> Any:
    return vf.jit(lambda x: vnp.log(x) + 1)(x)  # FAULT


@fault(-1.0)
def log_in_a_checkpoint(x: Any) -> Any:
    return vf.checkpoint(lambda x: vnp.log(x) + 1)(x)  # FAULT


@fault([-1.0, 1.0], [1.0, 2.0])
def log_in_a_layer(x: Any) -> Any:
    layer = nn.Lambda(lambda x: vnp.log(x))  # FAULT
    return layer(x).sum()


@fault(np.inf, dtype="float32")
def softplus_by_hand(x: Any) -> Any:
    return vnp.log(vnp.exp(x)) - x  # FAULT
