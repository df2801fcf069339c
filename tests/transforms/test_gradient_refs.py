"""`VJP.with_refs`: gradients by references, and into them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.ad import DidntWant, DontWant, GradRef, GradValue
from volta_fn.errors import ArgumentError, RefError


def test_gradient_by_a_reference_that_is_read_and_written() -> None:
    def f(ref: Any, scale: Any) -> Any:
        ref[...] = scale * vnp.sin(ref[...])
        return ref[...] ** 2

    ref, gradient = vf.new_ref(2.0), vf.new_ref(100.0)
    value, pull_back = vf.vjp(f, ref, 3.0)
    assert pull_back.with_refs(gradient, GradValue())(1.0)[0] == GradRef()
    pure = lambda x, scale: (scale * jnp.sin(x)) ** 2
    np.testing.assert_allclose(value, pure(2.0, 3.0), rtol=1e-6)
    np.testing.assert_allclose(ref[...], 3.0 * np.sin(2.0), rtol=1e-6)
    # The last value's cotangent is what the gradient reference held.
    wanted, by_scale = jax.grad(lambda x, s: pure(x, s) + 100.0 * s * jnp.sin(x), argnums=(0, 1))(2.0, 3.0)
    np.testing.assert_allclose(gradient[...], wanted, rtol=1e-5)
    gradient[...] = 100.0
    np.testing.assert_allclose(pull_back.with_refs(gradient, GradValue())(1.0)[1], by_scale, rtol=1e-5)


def test_cotangents_accumulate() -> None:
    take = vf.jit(lambda x, i: x[i])
    total = vf.new_ref(vnp.zeros(6))
    for i in (3, 5, 3):
        _, pull_back, aux = vf.vjp(lambda x, i: (take(x, i), x.sum()), vnp.arange(6.0), i, has_aux=True)
        placed, by_index = pull_back.with_refs(total, GradValue())(1.0)
        assert placed == GradRef()
        assert by_index.dtype == vf.dtypes.float0
        assert aux == 15.0
    assert total[...].tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 1.0]


def test_unwanted_cotangents_and_trees() -> None:
    _, pull_back = vf.vjp(lambda tree, x: tree["w"] * tree["b"] * x, {"w": 2.0, "b": 3.0}, 5.0)
    weight = vf.new_ref(0.0)
    result, by_x = pull_back.with_refs({"w": weight, "b": DontWant()}, GradValue())(1.0)
    assert result == {"w": GradRef(), "b": DidntWant()}
    assert (float(weight[...]), float(by_x)) == (15.0, 6.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_microbatches_in_a_scan(compiled: bool) -> None:
    def loss(w: Any, rows: Any) -> Any:
        return vnp.mean(vf.lax.scan(lambda x, m: (vnp.tanh(x @ m), None), rows, w)[0])

    def accumulate(w: Any, batches: Any) -> Any:
        total = vf.new_ref(vnp.zeros_like(w))

        def step(_: None, rows: Any) -> Any:
            value, pull_back = vf.vjp(lambda w: loss(w, rows), w)
            pull_back.with_refs(total)(vnp.ones_like(value))
            return None, value

        losses = vf.lax.scan(step, None, batches)[1]
        return vf.freeze(total), losses

    w = vnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 3)).astype("float32"))
    batches = vnp.arange(24.0).reshape(4, 2, 3) / 24.0
    actual, losses = (vf.jit(accumulate) if compiled else accumulate)(w, batches)
    wanted = vf.grad(lambda w: sum(loss(w, rows) for rows in batches))(w)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-7)
    assert losses.shape == (4,)


def test_unfit_entries_raise() -> None:
    _, pull_back = vf.vjp(lambda ref: ref[...], vf.new_ref(1.0))
    with pytest.raises(RefError, match="with_refs"):
        pull_back(1.0)
    with pytest.raises(RefError, match="accumulated into a reference"):
        pull_back.with_refs(GradValue())(1.0)
    _, pull_back = vf.vjp(lambda x, i: x * i, 1.0, 2)
    with pytest.raises(ArgumentError, match="one entry per argument"):
        pull_back.with_refs(GradValue())(1.0)
    with pytest.raises(ArgumentError, match="got 3"):
        pull_back.with_refs(3, GradValue())(1.0)
    with pytest.raises(RefError, match="integer"):
        pull_back.with_refs(GradValue(), vf.new_ref(1))(1.0)
