"""Programs that must be linear and are not: each is refused by an error that names the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import GradientError, MissingRuleError

jnp = vf.numpy
X = np.float32([1.0, 2.0, 3.0])
TABLE = np.eye(3, dtype=np.float32)

#: Values as conditions, as indices, and multiplied with each other.
NONLINEAR: dict[str, Callable[[Any], Any]] = {
    "where": lambda x: jnp.where(x > 0, x, 0),
    "where between constants": lambda x: jnp.where(x > 0, 0.0, 1.0),
    "isnan": lambda x: jnp.where(jnp.isnan(x), x, 0),
    "any": lambda x: jnp.where(jnp.any(x > 0), x, 0),
    "comparison as a number": lambda x: (x > 0).astype("float32"),
    "select_n": lambda x: lax.select_n(x > 0, x, 2 * x),
    "nan_to_num": lambda x: jnp.nan_to_num(x),
    "mod": lambda x: x % 2,
    "norm": lambda x: jnp.linalg.norm(x),
    "interp": lambda x: jnp.interp(x, jnp.arange(3.0), x),
    "logsumexp": lambda x: vf.nn.logsumexp(x),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 2),
    "jit": vf.jit(lambda x: jnp.where(x > 0, x, 0)),
    "checkpoint": vf.checkpoint(lambda x: jnp.where(x > 0, x, 0)),
    "vmap": vf.vmap(lambda x: jnp.where(x > 0, x, 0)),
    "scan": lambda x: lax.scan(lambda c, y: (jnp.where(c > 0, c, y), c), 0.0, x)[1],
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: y, lambda y: 2 * y, x),
    "switch": lambda x: lax.switch(x[0].astype(int), [lambda y: y, lambda y: 2 * y], x),
    "while_loop": lambda x: lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2, x),
    "argsort": lambda x: x[jnp.argsort(x)],
    "argmax": lambda x: x[jnp.argmax(x)],
    "take": lambda x: jnp.take(x, x.astype(int), mode="clip"),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (x[0].astype(int),), (2,)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:1], (x[0].astype(int),)),
    "scatter": lambda x: jnp.zeros(3).at[x.astype(int)].set(x),
    "scatter_add": lambda x: jnp.zeros(3).at[x.astype(int)].add(x),
    "scatter_mul": lambda x: jnp.ones(3).at[jnp.arange(3)].mul(x),
    "segment_sum": lambda x: vf.ops.segment_sum(x, x.astype(int), 3),
    "mul": lambda x: x * x,
    "div": lambda x: 1 / x,
    "dot_general": lambda x: x @ x,
    "softmax": lambda x: vf.nn.softmax(x),
    "convolve": lambda x: jnp.convolve(x, x),
    "product in a scan": lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x)[1],
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "triangular_solve": lambda x: lax.linalg.triangular_solve(jnp.diag(x), x[:, None], left_side=True),
    "inv": lambda x: jnp.linalg.inv(jnp.diag(x)),
    "sin": jnp.sin,
    "max": lambda x: jnp.maximum(x, 0),
    "reduce_max": lambda x: x.max(),
}


def _transposed(function: Callable[[Any], Any]) -> Callable[[], Any]:
    out = vf.eval_shape(function, X)
    return lambda: vf.linear_transpose(function, X)(jnp.ones(out.shape, out.dtype))


def _jitted(function: Callable[[Any], Any]) -> Callable[[], Any]:
    return vf.jit(_transposed(function))


def _in_a_rule(function: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a gradient whose tangent goes through `function`."""

    @vf.custom_jvp
    def total(x: Any) -> Any:
        return jnp.sum(x)

    total.defjvp(lambda primals, tangents: (jnp.sum(primals[0]), jnp.sum(function(tangents[0]))))
    return lambda: vf.grad(total)(X)


@pytest.mark.parametrize("transform", [_transposed, _jitted, _in_a_rule])
@pytest.mark.parametrize("name", NONLINEAR)
def test_an_error_explains_what_is_not_linear(name: str, transform: Callable[..., Any]) -> None:
    with pytest.raises((GradientError, MissingRuleError), match="linear|transpose|reverse-mode"):
        transform(NONLINEAR[name])()


def test_the_error_names_operation_line_and_remedy() -> None:
    with pytest.raises(GradientError, match=r"select_n \(from .*test_linearity\.py:\d+.*bool\[3\].*from the primals"):
        _transposed(NONLINEAR["where"])()


def test_what_is_linear_is_not_refused() -> None:
    constant = jnp.asarray(X)
    linear = lambda x: jnp.where(constant > 1, x, 0)[jnp.argsort(-constant)] + lax.pad(x, x[0], [(0, 0, 0)]) * constant
    np.testing.assert_array_equal(vf.linear_transpose(linear, X)(jnp.ones(3))[0], [1.0, 3.0, 4.0])
