"""The generator with a state, beside JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.random import stateful_rng as theirs

import volta_fn as vf
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.experimental.random import stateful_rng
from volta_fn.experimental.xla_metadata import set_xla_metadata


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.random((5,)),
        lambda rng: rng.uniform(-1.0, np.array([1.0, 2.0], np.float32)),
        lambda rng: rng.normal(2.0, 3.0, size=4),
        lambda rng: rng.integers(10, size=6),
        lambda rng: rng.integers(3, 10),
    ],
)
def test_draws_are_those_of_jax(draw: Callable[[Any], Any]) -> None:
    ours, real = stateful_rng(1701), theirs(1701)
    for _ in range(2):
        got, expected = draw(ours), draw(real)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        assert np.allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_keys_are_those_of_jax() -> None:
    ours, real = stateful_rng(7), theirs(7)
    for shape in ((), 3):
        assert np.array_equal(vf.random.key_data(ours.key(shape)), jax.random.key_data(real.key(shape)))


def test_the_state_advances_under_jit_and_splits_for_vmap() -> None:
    rng = stateful_rng(0)
    draw = vf.jit(lambda rng: rng.uniform())
    assert draw(rng) != draw(rng)
    mapped = vf.vmap(lambda rng, x: x + rng.uniform())(stateful_rng(123).split(3), vf.numpy.zeros(3))
    expected = jax.vmap(lambda rng, x: x + rng.uniform())(theirs(123).split(3), jax.numpy.zeros(3))
    assert np.allclose(mapped, expected, rtol=1e-6)
    with pytest.raises(ArgumentError, match="map over it"):
        stateful_rng(1).split(2).key()


def test_attributes_for_xla_are_accepted() -> None:
    @set_xla_metadata(label="function")
    def double(x: Any) -> Any:
        with set_xla_metadata(block=1):
            return set_xla_metadata(x * 2, value=True)

    assert vf.jit(double)(3.0) == 6.0
    with pytest.raises(vf.errors.ArgumentTypeError, match="label"):
        set_xla_metadata(label=[])


def test_generators_spawn_those_that_they_split_into() -> None:
    draws = [float(child.uniform()) for child in stateful_rng(5).spawn(3)]
    assert np.allclose(draws, [float(child.uniform()) for child in theirs(5).spawn(3)], rtol=1e-6)
    assert np.allclose(draws, vf.vmap(lambda rng: rng.uniform())(stateful_rng(5).split(3)), rtol=1e-6)


@pytest.mark.parametrize("transform", [vf.jit, vf.grad, vf.vmap], ids=["jit", "grad", "vmap"])
def test_a_traced_function_needs_a_seed(transform: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentTypeError, match="one seed for all calls"):
        transform(lambda x: x + stateful_rng().uniform())(vf.numpy.ones(3) if transform is vf.vmap else 1.0)
