"""Eager gradients by compiled programs have the bits of single steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.laws.common import on_gpu
from volta_fn import lax, nn, tree
from volta_fn.core.arrays.array import as_value
from volta_fn.core.staging import FlatFunction
from volta_fn.errors import DonatedBufferError, GradientError, LeakedTracerError
from volta_fn.primitives.data_movement.movement import instantiate
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.test_util import check_grads
from volta_fn.transforms import eager
from volta_fn.transforms.differentiation import linearize_flat, transpose_linear_program
from volta_fn.transforms.eager import _CACHE, Node

pytestmark = pytest.mark.usefixtures("fresh_programs")


@pytest.fixture
def fresh_programs() -> None:
    _CACHE.clear()


def compiled(nodes: dict[Any, Node] = _CACHE.table("recordings")) -> int:
    """Count the compiled programs in the trie."""
    return sum(sum(p is not None for p in node.programs.values()) + compiled(node.children) for node in nodes.values())


RNG = np.random.default_rng(0)
W = as_value(RNG.standard_normal((4, 3)).astype(np.float32))
B = as_value(RNG.standard_normal(3).astype(np.float32))
X = as_value(RNG.standard_normal((5, 4)).astype(np.float32))
LABELS = as_value(np.eye(3, dtype=np.float32)[[0, 2, 1, 1, 0]])


@vf.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1.0, 1.0)


@clipped.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return clipped(*primals), tangents[0] * 2.0


def by_steps(f: Callable[..., Any], *args: Any) -> Any:
    """Differentiate without recording."""
    (value,), program, depends = linearize_flat(FlatFunction(f, tree.structure((args, {}))), args)
    cotangents = transpose_linear_program(program, [jnp.ones_like(value)] if depends[0] else [])
    return value, tuple(instantiate(c) for c in cotangents)


def same(one: Any, other: Any) -> None:
    assert tree.structure(one) == tree.structure(other)
    for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        # On the CPU the same bits. On a GPU programs compute what single operations do, too, with sums of few numbers in another order.
        np.testing.assert_allclose(a, b, rtol=1e-5 if on_gpu() else 0, atol=1e-6 if on_gpu() else 0)


def branches(w: Any, b: Any) -> Any:
    """Use values before and after flushes: cotangents add up in a certain order."""
    total = jnp.sum(w * b) * 0.7
    for scale in (0.3, 1.7, -0.9):
        y = jnp.sin(w * b * scale) * jnp.exp(b * b) + w / 3.0
        total = total + jnp.sum(y * y * b) * 1.1
        total = total * (0.9 if total > 0 else 1.3) + jnp.sum(y / 7.0)
    return total


#: Functions of W and B, and whether a single recording holds all of them.
FUNCTIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "network": (lambda w, b: -jnp.mean(jnp.sum(LABELS * nn.log_softmax(jnp.tanh(X @ w + b)), axis=1)), True),
    "slices": (lambda w, b: jnp.sum(jnp.exp(w[1:, ::2]).T @ w[:3] * b) / b[0], True),
    "b is not used": (lambda w, b: jnp.sum(w * w), True),
    "scalars": (lambda w, b: 3.0 * w.sum() ** 2 - b.sum() / 7 + 1, True),
    "constants": (lambda w, b: jnp.sum(jnp.sqrt(jnp.arange(3.0)) * b + w) + jnp.sum(X @ jnp.ones((4, 2))), True),
    "the same twice": (lambda w, b: jnp.sum((b + b) * b) + jnp.sum(jnp.add(w, w)), True),
    "a tie": (lambda w, b: jnp.sum(jnp.maximum(w, w)), True),
    "activations": (lambda w, b: jnp.sum(nn.relu(w @ b) ** 2) + jnp.sum(nn.softplus(b) * nn.hard_tanh(b)), True),
    "branches": (branches, False),
    "no inputs": (lambda w, b: jnp.sum(X), False),
    "a comparison": (lambda w, b: jnp.sum(jnp.where(w > 0, w, 0.1 * w) + b), False),
    "a branch": (lambda w, b: jnp.sum(w * 2.0) if jnp.sum(b) > 0 else jnp.sum(w * b), False),
    "a number": (lambda w, b: jnp.sum(b) * int(b.sum() * 10), False),
    "a custom rule": (lambda w, b: jnp.sum(clipped(w * 3.0) @ b), False),
    "stopped": (lambda w, b: jnp.sum(lax.stop_gradient(w) * w + b), False),
    "a loop": (lambda w, b: jnp.sum(lax.fori_loop(0, 3, lambda i, c: c * b, w)), False),
    "whole numbers": (lambda w, b: jnp.sum(w * b.astype(int)), False),
    "a gradient": (lambda w, b: jnp.sum(vf.grad(lambda v: jnp.sum(jnp.sin(v) * b))(w)), True),
    "examples": (lambda w, b: jnp.sum(vf.vmap(lambda row: jnp.tanh(row) * b)(w)), True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_call_gives_the_bits_of_steps(name: str) -> None:
    f, recorded = FUNCTIONS[name]
    expected = by_steps(f, W, B)
    gradient = vf.value_and_grad(f, argnums=(0, 1))
    for _ in range(4):  # the first may meet jitted functions, the next one the shape
        same(gradient(W, B), expected)
    if recorded and not on_gpu():  # a GPU compiles what precedes the first meeting of a jitted function, too
        assert compiled() == 1
    for _ in range(3):
        value, pulled = vf.vjp(f, W, B)
        same((value, pulled(jnp.ones_like(value))), expected)


def test_a_program_takes_new_values_and_constants() -> None:
    for factor in (2.0, 2.0, 2.0, 5.0):
        shift = as_value(np.full(3, factor, np.float32))
        f = lambda w, b, factor=factor, shift=shift: jnp.sum(factor * w**2 + shift * b)
        same(vf.grad(f, (0, 1))(W * factor, B), by_steps(f, W * factor, B)[1])
    assert compiled() <= 1


@pytest.mark.wide
def test_parameters_types_and_devices_distinguish_recordings() -> None:
    for dtype in (np.float32, np.float64, np.float16):
        for axis in (0, 1):
            for _ in range(2):
                gradient = vf.grad(lambda w, axis=axis: jnp.max(jnp.ones(1)) * jnp.sum(jnp.sum(w, axis) ** 2))
                x = np.arange(6).reshape(2, 3).astype(dtype)
                expected = np.broadcast_to(2 * x.sum(axis, keepdims=True), x.shape)
                actual = gradient(as_value(x))
                assert actual.dtype == dtype
                np.testing.assert_allclose(actual, expected)


def test_auxiliary_results() -> None:
    @vf.jit
    def logits(w: Any, b: Any) -> Any:
        return X @ w + b

    def f(w: Any, b: Any) -> Any:
        out = logits(w, b)
        return jnp.mean(out * out), {"logits": out, "labels": LABELS, "w": w, "name": "f"}

    for _ in range(4):
        (value, aux), (dw, db) = vf.value_and_grad(f, (0, 1), has_aux=True)(W, B)
        out = np.asarray(X) @ np.asarray(W) + np.asarray(B)
        # Means of 15 numbers, and sums of 5 products that partly cancel, in float32 and another order than NumPy's.
        np.testing.assert_allclose(value, np.mean(out**2), rtol=1e-6)
        np.testing.assert_allclose(aux["logits"], out, rtol=1e-5)
        np.testing.assert_array_equal(aux["w"], W)
        assert aux["labels"] is LABELS
        assert aux["name"] == "f"
        np.testing.assert_allclose(dw, np.asarray(X).T @ out * 2 / out.size, rtol=1e-4)
        np.testing.assert_allclose(db, out.sum(0) * 2 / out.size, rtol=1e-4)
    assert compiled() == 1


def test_effects_happen_where_they_stand() -> None:
    seen: list[Any] = []

    @vf.jit
    def noisy(x: Any) -> Any:
        vf.debug.callback(lambda v: seen.append(float(v)), x[0])
        return x * 2.0

    def f(b: Any) -> Any:
        seen.append("before")
        y = noisy(b * 3.0)
        seen.append("after")
        return jnp.sum(y)

    for _ in range(4):
        seen.clear()
        np.testing.assert_allclose(vf.grad(f)(B), 6.0)
        vf.synchronize()
        assert seen == ["before", float(B[0] * 3.0), "after"]


def test_deleted_arrays_are_refused() -> None:
    constant = as_value(np.array([1.0, 2.0, 3.0], np.float32))
    gradient = vf.grad(lambda b: jnp.sum(b * constant))
    for _ in range(3):
        np.testing.assert_array_equal(gradient(B), [1.0, 2.0, 3.0])
    constant.delete()
    with pytest.raises(DonatedBufferError):
        gradient(B)


def test_values_and_threads() -> None:
    def f(w: Any) -> Any:
        y = jnp.exp(w)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(repr(y).startswith("Traced<f32[4,3]>")))
        thread.start()
        thread.join()
        assert results == [True]
        return jnp.sum(y * w)

    for _ in range(3):
        same(vf.value_and_grad(f)(W), (by_steps(f, W)[0], by_steps(f, W)[1][0]))


def test_values_have_a_primal_and_a_tangent() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = jnp.sin(x) * 2
        seen.extend([x.primal, y.primal, y.tangent.aval])
        return (y * y).sum()

    x = jnp.asarray(np.linspace(0, 1, 3, dtype=np.float32))
    gradient = vf.grad(f)(x)
    np.testing.assert_array_equal(np.asarray(seen[0]), np.asarray(x))
    np.testing.assert_allclose(np.asarray(seen[1]), 2 * np.sin(np.asarray(x)), rtol=1e-6)
    assert seen[2].shape == (3,)
    np.testing.assert_allclose(np.asarray(gradient), 4 * np.sin(2 * np.asarray(x)), rtol=1e-6)


def test_tracers_do_not_outlive_the_function() -> None:
    retained: list[Any] = []

    def f(b: Any) -> Any:
        retained.append(b * 2.0)
        return jnp.sum(b)

    for _ in range(3):
        vf.grad(f)(B)
        with pytest.raises(LeakedTracerError):
            retained[-1] + 1.0
        with pytest.raises(LeakedTracerError):
            vf.grad(lambda b: jnp.sum(b * retained[-1]))(B)


@pytest.mark.parametrize("transform", [vf.grad, vf.vmap, vf.jit, lambda f: lambda x: vf.jvp(f, (x,), (x,))])
def test_tracers_of_another_function_are_no_results(transform: Any) -> None:
    a, kept = jnp.arange(3.0), []

    def loss(x: vf.Array) -> vf.Array:
        kept.append((x * a).sum())
        return kept[-1]

    transform(loss)(jnp.ones((3, 3)) if transform is vf.vmap else jnp.ones(3))
    leaked = kept[0]
    vf.grad(loss)(jnp.ones(3))  # later recordings of its operations have a program
    for returned in (lambda x: (loss(x), leaked), lambda x: (leaked, loss(x))):
        for _ in range(3):
            with pytest.raises(LeakedTracerError, match="outside the traced call"):
                vf.grad(returned, has_aux=True)(jnp.ones(3))
            with pytest.raises(LeakedTracerError, match="outside the traced call"):
                vf.vjp(returned, jnp.ones(3))


def test_errors_are_raised_at_the_operation() -> None:
    reached: list[str] = []

    def f(w: Any) -> Any:
        y = jnp.tanh(w)
        reached.append("operation")
        y = y @ jnp.ones((7, 2))
        reached.append("beyond")
        return jnp.sum(y)

    for _ in range(3):
        with pytest.raises(vf.errors.ShapeError):
            vf.grad(f)(W)
    assert "beyond" not in reached
    for _ in range(3):
        with pytest.raises(GradientError, match=r"returned an array of shape \(4, 3\)"):
            vf.grad(lambda w: jnp.exp(w))(W)


def test_second_derivatives_and_jitted_gradients() -> None:
    for _ in range(3):
        third = vf.grad(vf.grad(vf.grad(lambda x: x**5 + lax.sin(x))))
        # float32, with terms of about 15 and 1 that are added up.
        np.testing.assert_allclose(third(0.5), 60 * 0.25 - np.cos(0.5), rtol=1e-5)
        np.testing.assert_allclose(vf.jit(vf.grad(lambda x: lax.sin(x) * x))(0.5), np.sin(0.5) + 0.5 * np.cos(0.5), rtol=1e-6)


def test_the_trie_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop all nodes when there are too many; a program counts as several."""
    square = vf.value_and_grad(lambda w: jnp.sum(w * w))
    with vf.default_device("cpu"):  # elsewhere programs are compiled at once
        vectors = [jnp.arange(1.0, size) for size in range(2, 7)]
    square(vectors[0])
    square(vectors[0])
    assert compiled() == 1
    monkeypatch.setattr(_CACHE, "_remaining", 10)
    for vector in vectors:
        square(vector)
    assert compiled() == 0
    square(vectors[-1])
    assert compiled() == 1
    _CACHE.reserve(_CACHE.room + 1)
    assert not _CACHE.table("recordings")
    value, gradient = square(vectors[-1])
    assert (float(value), gradient.tolist()) == (55.0, [2.0, 4.0, 6.0, 8.0, 10.0])


def test_a_recording_goes_on_after_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_SHORTEST", 1)

    def f(w: Any, b: Any) -> Any:
        y = jnp.tanh(w * 2.0) @ b
        if y[0] > 0:
            y = jnp.exp(y)
        z = clipped(jnp.sin(y) * 3.0) * y
        return jnp.sum(z * z) + jnp.sum(w), {"y": y, "kept": w * 1.0}

    expected = by_steps(lambda w, b: f(w, b)[0], W, B)
    for _ in range(4):
        (value, aux), gradient = vf.value_and_grad(f, (0, 1), has_aux=True)(W, B)
        same((value, gradient), expected)
        np.testing.assert_array_equal(aux["kept"], W)
        assert type(aux["y"]) is type(W)
    assert compiled() >= 2


def test_long_recordings_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_LONGEST", 5)

    def f(w: Any) -> Any:
        for _ in range(9):
            w = jnp.sin(w) * 1.5
        return jnp.sum(w)

    for _ in range(3):
        same(vf.value_and_grad(f)(W), (by_steps(f, W)[0], by_steps(f, W)[1][0]))


def test_scalars_constants_and_parameters_distinguish_recordings() -> None:
    x = as_value(np.array([0.3, -0.7, 1.1], np.float32))
    for power in (2, 3, 2):
        for factor in (2.0, 5.0):
            gradient = vf.grad(lambda x, power=power, factor=factor: jnp.sum(factor * x**power))(x)
            np.testing.assert_allclose(gradient, factor * power * np.asarray(x) ** (power - 1), rtol=1e-6)


@pytest.mark.wide
def test_other_dtypes_and_shapes_are_other_programs() -> None:
    gradient = vf.grad(lambda x: jnp.sum(x * x * 0.5))
    for dtype in (np.float32, np.float64, np.float16):
        for size in (0, 1, 4):
            x = as_value(np.arange(size).astype(dtype))
            for _ in range(2):
                assert gradient(x).dtype == dtype
                np.testing.assert_array_equal(gradient(x), np.arange(size))


def test_pulling_back_under_another_transform() -> None:
    x, y = B, as_value(np.array([2.0, 0.5, -1.5], np.float32))
    for _ in range(3):
        _, pulled = vf.vjp(lambda x: lax.sin(x) * x, x)
        slope = np.cos(x) * np.asarray(x) + np.sin(x)
        np.testing.assert_allclose(vf.jit(lambda ct, f=pulled: f(ct)[0])(y), slope * np.asarray(y), rtol=1e-6)
        np.testing.assert_allclose(vf.vmap(lambda ct, f=pulled: f(ct * y)[0])(x), slope * np.asarray(x)[:, None] * np.asarray(y), rtol=1e-6)
        _, tangent = vf.jvp(lambda ct, f=pulled: f(ct)[0], (y,), (x,))
        np.testing.assert_allclose(tangent, slope * np.asarray(x), rtol=1e-6)


def test_results_without_dimensions_are_arrays_for_the_next_kernel() -> None:
    x, i = as_value(np.float32(3.0)), as_value(np.int32(0))
    update = lambda x: lax.dynamic_update_slice(lax.reshape(x * 2.0, (1,)), lax.reshape(x + 1.0, (1,)), (i * 1,))
    np.testing.assert_array_equal(vf.jit(update)(x), [4.0])
    np.testing.assert_array_equal(vf.grad(lambda x: reduce_sum(update(x), (0,)))(x), 1.0)


def test_kept_numbers_pass_through_recordings() -> None:
    check_grads(nn.squareplus, (1e-8,), 4)  # whose second argument is a Python number
