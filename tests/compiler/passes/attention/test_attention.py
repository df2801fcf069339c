"""Attention recognised in programs: one equation and one for its gradient, no array of all weights, and the values of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax, nn
from volta_fn import numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.compiler.passes.attention import keep_attention, replace_attention
from volta_fn.compiler.pipeline import simplify
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.primitives.call import Window
from volta_fn.targets.numpy.backend import NumpyBackend

T, S = 6, 9
RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((2, n, 4, 8), np.float32) for n in (T, S, S))
MASK = RNG.random((2, 1, T, S)) < 0.5
MASK[0, 0, 2] = False  # a query that sees nothing
BOTH = {"attention_routine": 1, "attention_gradient_routine": 1}


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradients of the sum of the cubes of a function."""
    return vf.grad(lambda *arrays: (function(*arrays).astype(np.float32) ** 3).sum(), argnums=(0, 1, 2))


def dot_product(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: nn.dot_product_attention(q, k, v, **options)


def heads_first(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: function(*[x.swapaxes(1, 2) for x in arrays])


def by_einsum(q: Any, k: Any, v: Any, fill: float = -np.inf, mask: Any = None) -> Any:
    """Attention as one writes it down."""
    logits = jnp.einsum("bthd,bshd->bhts", q, k) / 2.8
    logits = jnp.where(jnp.tril(jnp.ones((T, S), bool)) if mask is None else mask, logits, fill)
    return jnp.einsum("bhts,bshd->bthd", nn.softmax(logits), v)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    logits = jnp.einsum("bthd,bshd->bhts", q, k)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return jnp.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdims=True), v)


def programs(function: Callable[..., Any], *arrays: Any) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Return a function's program, and that with attention."""
    closed = vf.jit(function).lower(*arrays).jaxpr
    retained = keep_attention(closed, lambda avals, form: True)
    return simplify(closed), simplify(replace_attention(simplify(retained), lambda avals, form: True))


def check(function: Callable[..., Any], result: dict[str, int], *arrays: Any, tolerance: float = 2e-6) -> None:
    """Compare the values, and how many instructions of each kind there are; with both, no array is as large as weights."""
    compare(*programs(function, *arrays), result, *arrays, tolerance=tolerance)


def compare(old: ClosedJaxpr, new: ClosedJaxpr, actual: dict[str, int], *arrays: Any, tolerance: float = 2e-6) -> None:
    """Do the same for two programs."""
    counts = Counter(eqn.primitive.name for eqn in new.eqns)
    assert {name: counts[name] for name in BOTH if counts[name]} == actual
    large = [v.aval for eqn in new.eqns for v in eqn.outvars if v.aval.size > T * S and v.aval.shape[-2:] == (T, S)]
    assert not large or actual != BOTH
    wanted, arguments = (NumpyBackend().compile(closed, (), pipeline).run(False, *arrays) for closed in (old, new))
    for x, y in zip(arguments, wanted, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        difference = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
        assert difference <= tolerance * max(np.abs(y.astype(np.float64)).max(), 1)


@pytest.mark.parametrize(
    "function",
    [
        dot_product(),
        dot_product(is_causal=True),
        dot_product(mask=MASK, scale=0.3),
        dot_product(mask=MASK, is_causal=True),
        dot_product(key_value_seq_lengths=np.array([3, 9])),
        heads_first(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=True)),
        heads_first(vf.vmap(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v))),
    ],
)
def test_gradients(function: Callable[..., Any]) -> None:
    check(function, {"attention_routine": 1}, Q, K, V)
    check(gradient(function), BOTH, Q, K, V)


def test_heads_that_share_keys_and_values() -> None:
    arrays = Q, K[:, :, :2], V[:, :, :2]
    check(gradient(dot_product(mask=MASK, is_causal=True)), BOTH, *arrays)
    check(gradient(dot_product()), BOTH, *arrays)


def test_narrow_floats_round_less_often() -> None:
    arrays = [x.astype(np.float16) for x in (Q, K, V)]
    check(gradient(dot_product(is_causal=True)), BOTH, *arrays, tolerance=4e-3)


def test_recomputed_attention() -> None:
    check(gradient(vf.checkpoint(dot_product(is_causal=True))), {"attention_routine": 2, "attention_gradient_routine": 1}, Q, K, V)


@pytest.mark.parametrize(
    "function",
    [
        dot_product(),
        dot_product(mask=MASK, is_causal=True, scale=0.3),
        heads_first(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=True)),
        heads_first(vf.vmap(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v))),
    ],
)
def test_calls_are_kept(function: Callable[..., Any]) -> None:
    """Replace calls by routines, which read operands before they are transposed."""
    for run, result in ((function, {"attention_routine": 1}), (gradient(function), BOTH)):
        closed = vf.jit(run).lower(Q, K, V).jaxpr
        retained = simplify(keep_attention(closed, lambda avals, form: True))
        compare(simplify(closed), retained, result, Q, K, V)
        transposed = {v for e in retained.eqns if e.primitive.name == "transpose" for v in e.outvars}
        assert not [v for e in retained.eqns if e.primitive.name in BOTH for v in e.invars if v in transposed]


def test_calls_that_are_not_worthwhile_are_expanded() -> None:
    closed = vf.jit(gradient(dot_product())).lower(Q, K, V).jaxpr
    retained = simplify(keep_attention(closed, lambda avals, form: False))
    assert [e.primitive for e in retained.eqns] == [e.primitive for e in simplify(closed).eqns]


def test_some_of_the_gradients() -> None:
    check(lambda *arrays: gradient(dot_product())(*arrays)[1], BOTH, Q, K, V)
    check(lambda q, k, v: vf.grad(lambda q: (nn.dot_product_attention(q, k, v) ** 2).sum())(q), BOTH, Q, K, V)


def test_layers() -> None:
    layer = nn.MultiHeadAttention.init(vf.random.key(0), 32, 4)
    _, new = programs(vf.grad(lambda layer, x: layer(x, is_causal=True).sum()), layer, np.ones((2, T, 32), np.float32))
    counts = Counter(eqn.primitive.name for eqn in new.eqns)
    assert (counts["attention_routine"], counts["attention_gradient_routine"]) == (1, 1)


def test_what_is_left_as_it_is() -> None:
    key = vf.random.key(0)
    check(gradient(heads_first(lambda *a: nn.scaled_dot_product_attention(*a, dropout_p=0.5, key=key))), {}, Q, K, V)
    check(gradient(lambda *a: by_einsum(*a, mask=MASK | (np.arange(S) == 0))), {}, Q, K, V)  # minus infinity, by a mask of any kind
    check(lambda q, k, v: vf.jvp(lambda q: nn.dot_product_attention(q, k, v), (q,), (q,)), {"attention_routine": 1}, Q, K, V)
    check(by_hand, {"attention_routine": 1}, Q, K, V)
    check(gradient(by_hand), {}, Q, K, V)


BIAS = RNG.standard_normal((4, 1, S), np.float32)
#: As padding on the left has it: some queries see no other key.
LEAST_BIAS = np.where(np.arange(S) < 3, np.finfo(np.float32).min, 0).astype(np.float32)


@pytest.mark.parametrize(
    "function",
    [
        dot_product(bias=BIAS),
        dot_product(bias=BIAS[0], mask=MASK, is_causal=True),
        dot_product(local_window_size=(2, 1)),
        dot_product(local_window_size=2, is_causal=True, key_value_seq_lengths=np.array([3, 9])),
        dot_product(logits_soft_cap=1.5, query_seq_lengths=np.array([6, 2])),
    ],
)
def test_options(function: Callable[..., Any]) -> None:
    check(gradient(function), BOTH, Q, K, V, tolerance=1e-5)


def test_gradient_of_a_bias() -> None:
    for bias in (BIAS, RNG.standard_normal((T, S), np.float32), np.float32(0.5)):
        run = vf.grad(lambda b, *arrays: (nn.dot_product_attention(*arrays, b) ** 3).sum())
        check(run, BOTH, bias, Q, K, V, tolerance=1e-5)
    several = vf.vmap(run, (0, None, None, None))
    check(several, BOTH, np.stack([BIAS, BIAS + 1]), Q, K, V, tolerance=1e-5)


def test_masks_that_examples_share_are_not_repeated() -> None:
    mask = RNG.random((T, S)) < 0.5
    closed = vf.jit(vf.vmap(lambda q, k, v: nn.dot_product_attention(q, k, v, mask=mask))).lower(Q, K, V).jaxpr
    retained = simplify(keep_attention(closed, lambda avals, form: True))
    (eqn,) = (e for e in retained.eqns if e.primitive.name == "attention_routine")
    assert eqn.invars[3].aval.size == T * S


def written_out(q: Any, k: Any, v: Any, change: Callable[[Any], Any]) -> Any:
    """Attention of as many queries as keys, whose logits are changed."""
    logits = change(jnp.einsum("bthd,bshd->bhts", q, k) * 0.35)
    return jnp.einsum("bhts,bshd->bthd", nn.softmax(logits), v)


@pytest.mark.parametrize(
    ("change", "expected"),
    {
        "a bias": (lambda x: x + jnp.asarray(BIAS), {"biased": True}),
        "a bound": (lambda x: 2.0 * jnp.tanh(x / 2.0), {"softcap": 2.0}),
        "a bound and a bias": (lambda x: jnp.tanh(x / 2.0) * 2.0 + jnp.asarray(BIAS), {"softcap": 2.0, "biased": True}),
        "a window": (lambda x: jnp.where((_columns() > _rows() - 3) & (_columns() <= _rows()), x, -1e38), {"window": Window(2, 0)}),
        "both sides": (lambda x: jnp.where((_columns() >= _rows() - 3) & (_columns() < _rows() + 2), x, -np.inf), {"window": Window(3, 1)}),
        "a window and a bias that is less than any logit": (
            lambda x: jnp.where(_columns() <= _rows(), x + jnp.asarray(LEAST_BIAS), -np.inf),
            {"window": Window(None, 0), "unseen": -np.inf},
        ),
        "a window and a mask": (
            lambda x: jnp.where((_columns() <= _rows()) & jnp.asarray(MASK[:, :, :1]), x, -1e38),
            {"window": Window(None, 0), "masks": 1},
        ),
    }.values(),
)
def test_what_is_written_out(change: Callable[[Any], Any], expected: dict[str, Any]) -> None:
    arrays = K, K + 1, V
    old, new = programs(lambda *a: written_out(*a, change), *arrays)
    (eqn,) = (e for e in new.eqns if e.primitive.name == "attention_routine")
    assert {name: getattr(eqn.params["form"], name) for name in expected} == expected
    compare(old, new, {"attention_routine": 1}, *arrays)


def _rows() -> Any:
    return jnp.arange(S)[:, None]


def _columns() -> Any:
    return jnp.arange(S)[None, :]


def test_masks_of_other_numbers() -> None:
    retained = MASK | (np.arange(S) == 0)
    check(by_einsum, {"attention_routine": 1}, Q, K, V)
    check(lambda *arrays: by_einsum(*arrays, fill=-3.0, mask=retained), {"attention_routine": 1}, Q, K, V)
    check(lambda *arrays: by_einsum(*arrays, fill=-3.0), {"attention_routine": 1}, Q, K, V)  # causal, and yet all keys count
    check(gradient(by_einsum), {}, Q, K, V)  # the gradient needs the weights


def almost(weights: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Something that is written as attention is, of as many queries as keys, with weights as a function of logits and of itself."""

    def function(q: Any, k: Any, v: Any) -> Any:
        return weights(jnp.einsum("bthd,bshd->bhts", q / 2.8, k), lambda w: jnp.einsum("bhts,bshd->bthd", w, v))

    return function


def exponentials(logits: Any) -> Any:
    return jnp.exp(logits - logits.max(-1, keepdims=True))


def normalised(powers: Any) -> Any:
    return powers / powers.sum(-1, keepdims=True)


def first_key(logits: Any) -> Any:
    """Return a mask that compares numbers of rows of one row alone."""
    seen = lax.broadcasted_iota(np.int32, (1, T), 1) <= lax.broadcasted_iota(np.int32, (1, T), 0)
    return jnp.where(seen, logits, -1e38)


def wrapped_mask(logits: Any) -> Any:
    """Return a comparison of unsigned numbers, of which the first ones are the largest."""
    row, column = (lax.broadcasted_iota(np.uint8, (T, T), axis) - np.uint8(2) for axis in (0, 1))
    return jnp.where(column <= row, logits, -1e38)


@pytest.mark.parametrize(
    "weights",
    {
        "sums of other rows": lambda logits, product: (lambda w: product(w / w.sum(-1)[..., None, :]))(exponentials(logits)),
        "the largest of other rows": lambda logits, product: product(normalised(jnp.exp(logits - logits.max(-1)[..., None, :]))),
        "whole logits": lambda logits, product: product(nn.softmax(logits.astype(np.int32).astype(np.float32))),
        "whole weights": lambda logits, product: product(nn.softmax(logits).astype(np.int8).astype(np.float32)),
        "weights of eight bits": lambda logits, product: product(nn.softmax(logits).astype(jnp.float8_e4m3fn).astype(np.float32)),
        "divided by zero": lambda logits, product: product(nn.softmax(logits / 0.0)),
        "the first key": lambda logits, product: product(nn.softmax(first_key(logits))),
        "a wrapped mask": lambda logits, product: product(nn.softmax(wrapped_mask(logits))),
    }.items(),
    ids=lambda case: case[0],
)
def test_what_is_almost_attention(weights: tuple[str, Callable[..., Any]]) -> None:
    old, new = programs(almost(weights[1]), Q, Q + 1, V[:, :T])
    wanted, arguments = (
        np.asarray(NumpyBackend().compile(closed, (), pipeline).run(False, Q, Q + 1, V[:, :T])[0]) for closed in (old, new)
    )
    np.testing.assert_allclose(arguments, wanted, rtol=1e-5, atol=1e-5)


def test_logits_of_another_order_are_left_as_they_are() -> None:
    """A transpose between two reshapes that are no others' inverses."""

    def function(q: Any, k: Any, v: Any) -> Any:
        product = lax.dot_general(k, q, (((2,), (2,)), ((0,), (0,))))
        logits = product.reshape(8, 2, 3).swapaxes(1, 2).reshape(4, 3, 4)
        return jnp.einsum("hts,hsd->htd", nn.softmax(logits), v)

    arrays = [RNG.standard_normal(shape, np.float32) for shape in ((4, 3, 5), (4, 4, 5), (4, 4, 5))]
    compare(*programs(function, *arrays), {}, *arrays)
