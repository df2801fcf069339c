"""Softmaxes of large products in chunks of rows: losses of all forms, beside the program as it was and float64; and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, nn
from volta_fn.compiler.passes import wide_rows
from volta_fn.compiler.passes.wide_rows import chunk_wide_rows
from volta_fn.compiler.pipeline import lower, optimize
from volta_fn.core.arrays.array import from_host
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import eval_jaxpr
from volta_fn.scipy.special import logsumexp

ROWS, CLASSES, WIDTH = 64, 300, 12
CPU = vf.devices("cpu")[0]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four rows or more."""
    monkeypatch.setattr(wide_rows, "_LARGE", ROWS * CLASSES)
    monkeypatch.setattr(wide_rows, "_FEWEST_ROWS", 4)


def _labels(logits: Any, y: Any) -> Any:
    return jnp.take_along_axis(logits, y[..., None], -1)[..., 0]


def log_softmax_loss(h: Any, w: Any, y: Any) -> Any:
    return -jnp.mean(_labels(nn.log_softmax(h @ w.T), y))


def logsumexp_loss(h: Any, w: Any, y: Any) -> Any:
    logits = h @ w.T
    return jnp.mean(logsumexp(logits, -1) - _labels(logits, y))


def one_hot_loss(h: Any, w: Any, y: Any) -> Any:
    smoothed = 0.9 * nn.one_hot(y, CLASSES) + 0.1 / CLASSES
    return -jnp.sum(smoothed * nn.log_softmax(h @ w.T + jnp.sin(jnp.arange(CLASSES)), -1)) / 7


def masked_loss(h: Any, w: Any, y: Any) -> Any:
    counted = y % 3 != 0
    losses = -_labels(nn.log_softmax(h @ w.T), y)
    return jnp.sum(jnp.where(counted, losses, 0)) / jnp.sum(counted)


def bounded_loss(h: Any, w: Any, y: Any) -> Any:
    logits = 3 * jnp.tanh(h @ w.T / 3)
    top = logits.max(-1, keepdims=True)
    total = top[..., 0] + jnp.log(jnp.exp(logits - lax.stop_gradient(top)).sum(-1))
    return jnp.mean(total - _labels(logits, y) + 1e-2 * total**2)


def library_loss(h: Any, w: Any, y: Any) -> Any:
    return nn.cross_entropy(h @ w.T, y, axis=-1)


LOSSES = [log_softmax_loss, logsumexp_loss, one_hot_loss, masked_loss, bounded_loss, library_loss]


def _arguments(*rows: int, dtype: str = "float32") -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    h, w = rng.standard_normal((*rows, WIDTH)), rng.standard_normal((CLASSES, WIDTH))
    return vf.numpy.asarray(h, dtype), vf.numpy.asarray(w, dtype), vf.numpy.asarray(rng.integers(0, CLASSES, rows), "int32")


def _optimized(function: Callable[..., Any], *arguments: Any) -> ClosedJaxpr:
    return optimize(vf.jit(function).lower(*arguments).jaxpr)


def _largest(closed: ClosedJaxpr) -> int:
    return max(v.aval.size for eqn in closed.eqns for v in eqn.outvars)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("rows", [(ROWS,), (2, 40), (32, 4)], ids=str)
def test_losses_and_gradients(loss: Callable[..., Any], rows: tuple[int, ...]) -> None:
    with vf.default_device(CPU):
        arguments = _arguments(*rows)
        for function in (loss, vf.value_and_grad(loss, (0, 1))):
            before = _optimized(function, *arguments)
            after = chunk_wide_rows(before)
            assert after is not before
            assert _largest(after) <= max(arguments[1].size, _largest(before) // 10)
            for x, y in zip(eval_jaxpr(after, *arguments), eval_jaxpr(before, *arguments), strict=True):
                assert x.aval == y.aval
                np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=1e-6)


def test_losses_of_the_next_token() -> None:
    """All logits but the last of each text count, so that chunks are whole texts."""
    loss = lambda h, w, y: jnp.mean(-_labels(nn.log_softmax((h @ w.T)[:, :-1]), y[:, 1:]))
    with vf.default_device(CPU):
        arguments = _arguments(32, 5)
        before = _optimized(vf.value_and_grad(loss, (0, 1)), *arguments)
        after = chunk_wide_rows(before)
        assert after is not before
        for x, y in zip(eval_jaxpr(after, *arguments), eval_jaxpr(before, *arguments), strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=1e-6)
    odd = _optimized(loss, *_arguments(1, ROWS))
    assert chunk_wide_rows(odd) is odd  # positions are no rows then


def test_gradients_by_their_formula() -> None:
    with vf.default_device(CPU):
        h, w, y = _arguments(ROWS)
        program = chunk_wide_rows(_optimized(vf.value_and_grad(log_softmax_loss, (0, 1)), h, w, y))
        value, to_h, to_w = (np.asarray(x) for x in eval_jaxpr(program, h, w, y))
    wide, weight, labels = np.asarray(h, np.float64), np.asarray(w, np.float64), np.asarray(y)
    logits = wide @ weight.T
    logsumexps = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    slopes = (np.exp(logits - logsumexps[:, None]) - np.eye(CLASSES)[labels]) / ROWS
    assert abs(value - (logsumexps - logits[np.arange(ROWS), labels]).mean()) < 1e-6
    np.testing.assert_allclose(to_h, slopes @ weight, atol=1e-6)
    np.testing.assert_allclose(to_w, slopes.T @ wide, atol=1e-6)


def test_sums_of_halves_over_chunks_are_not_rounded_each() -> None:
    with vf.default_device(CPU):
        arguments = _arguments(ROWS, dtype="bfloat16")
        gradient = vf.grad(log_softmax_loss, 1)
        before = _optimized(gradient, *arguments)
        after = chunk_wide_rows(before)
        (x,), (y,) = eval_jaxpr(after, *arguments), eval_jaxpr(before, *arguments)
    x, y = np.asarray(x.astype("float32")), np.asarray(y.astype("float32"))
    assert np.abs(x - y).max() <= 2**-8 * np.abs(y).max()


def test_labels_that_are_no_class_and_rows_that_are_not_finite() -> None:
    with vf.default_device(CPU):
        h, w, y = _arguments(ROWS)
        h = h.at[5].set(np.inf).at[9].set(np.nan)
        y = y.at[3].set(-1).at[4].set(CLASSES + 5)
        function = lambda h, w, y: _labels(nn.log_softmax(h @ w.T), y)
        before = _optimized(function, h, w, y)
        after = chunk_wide_rows(before)
        assert after is not before
        (x,), (z,) = eval_jaxpr(after, h, w, y), eval_jaxpr(before, h, w, y)
        np.testing.assert_allclose(np.asarray(x), np.asarray(z), rtol=2e-5, atol=1e-6)


def _also_logits(h: Any, w: Any, y: Any) -> Any:
    logits = h @ w.T
    return logsumexp_loss(h, w, y), logits


def _over_rows(h: Any, w: Any, y: Any) -> Any:
    return logsumexp(h @ w.T, 0)


def _sorted(h: Any, w: Any, y: Any) -> Any:
    return nn.softmax(jnp.sort(h @ w.T, 0), -1).max(-1)


def _behind_a_barrier(h: Any, w: Any, y: Any) -> Any:
    return jnp.mean(logsumexp(lax.optimization_barrier(h @ w.T), -1))


def _without_softmax(h: Any, w: Any, y: Any) -> Any:
    return jnp.maximum(h @ w.T, 0) @ w


def _of_all_rows(h: Any, w: Any, y: Any) -> Any:
    return vf.grad(lambda h: log_softmax_loss(h, w, y) ** 2)(h)


def _normalised(h: Any, w: Any, y: Any) -> Any:
    logits = h @ w.T
    return jnp.mean(logsumexp(logits - logits.mean(0), -1))


NEAR_MISSES = [_also_logits, _over_rows, _sorted, _behind_a_barrier, _without_softmax, _of_all_rows, _normalised]


@pytest.mark.parametrize("function", NEAR_MISSES, ids=lambda function: function.__name__)
def test_other_programs_stay(function: Callable[..., Any]) -> None:
    """Logits needed elsewhere, along or across all rows, or before all losses are known; and what only resembles a loss."""
    program = _optimized(function, *_arguments(ROWS))
    assert chunk_wide_rows(program) is program


def test_numbers_of_rows_without_divisors_stay() -> None:
    program = _optimized(log_softmax_loss, *_arguments(67))
    assert chunk_wide_rows(program) is program


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_programs_have_no_array_of_all_logits(device: str) -> None:
    with vf.default_device(CPU):
        arguments = _arguments(ROWS)
        closed = vf.jit(vf.value_and_grad(log_softmax_loss, (0, 1))).lower(*arguments).jaxpr
        expected = eval_jaxpr(optimize(closed), *arguments)
    target = vf.devices(device)[0].backend
    if device == "gpu":
        items = lower(closed, target.gpu.target).items  # type: ignore[attr-defined]  # a GPU's
        assert max(v.aval.size for item in items for v in item.results) < ROWS * CLASSES
    with vf.default_device(vf.devices(device)[0]):
        result = vf.jit(vf.value_and_grad(log_softmax_loss, (0, 1)))(*[from_host(np.asarray(x)) for x in arguments])
    for x, y in zip(vf.tree.leaves(result), expected, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=1e-6)
