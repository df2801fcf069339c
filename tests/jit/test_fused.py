"""Marked functions give the same when they are repeated, whatever they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.config
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError, AxisError
from volta_fn.jit.fused import fused_by_results

X = jnp.asarray(np.linspace(-2, 3, 1200, dtype=np.float32))
M = X.reshape(30, 40)

CALLS: dict[str, Callable[..., Any]] = {
    "axis": lambda: jnp.sum(M, axis=0),
    "several axes": lambda: jnp.mean(M, axis=(0, 1), keepdims=True),
    "dtype": lambda: jnp.astype(X, np.int32),
    "scalar type": lambda: jnp.astype(X, jnp.int32),
    "list": lambda: jnp.concatenate([X, X], axis=0),
    "two lists": lambda: jnp.select([X > 0, X > 1], [X, -X], 2.0),
    "several results": lambda: jnp.frexp(X),
    "view": lambda: jnp.flip(M, axis=1),
    "small views": lambda: jnp.meshgrid(X[:30], X[:40]),
    "sorts": lambda: jnp.sort(M, axis=0),
    "kept by NumPy": lambda: jnp.power(jnp.abs(X), 0.3),
    "by NumPy with a number first": lambda: jnp.power(2.0, X),
    "on the host": lambda: jnp.fft.fft(X[:997]),
    "small arguments": lambda: jnp.outer(X[:40], X[:40]),
    "small results": lambda: jnp.outer(X[:4], X[:4]),
    "no arrays": lambda: jnp.linspace(0.0, 1.0, 700),
    "pairs": lambda: jnp.linspace(0.0, 1.0, 50, retstep=True),
    "integers": lambda: jnp.arange(1000, dtype="int16"),
    "large": lambda: jnp.arange(5000.0),
    "matrix": lambda: jnp.eye(30, k=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_repeated_calls_give_what_the_first_gave(call: str) -> None:
    results = [vf.tree.leaves(CALLS[call]()) for _ in range(6)]
    for later in results[1:]:
        for first, again in zip(results[0], later, strict=True):
            assert again.aval == first.aval
            np.testing.assert_allclose(again, first, rtol=2e-6, atol=1e-6)


def test_errors_of_arguments_come_whatever_was_called_before() -> None:
    for _ in range(5):
        jnp.sum(M, axis=0), jnp.arange(3)
    with pytest.raises(AxisError):
        jnp.sum(M, axis=2)
    with pytest.raises(ArgumentError):
        jnp.arange(0, 3, 0)


def test_results_without_arguments_share_no_memory() -> None:
    results: list[Any] = [jnp.linspace(0.0, 1.0, 600) for _ in range(5)]
    buffers = [result._buffer for result in results]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(buffers) for b in buffers[:i])
    increment = vf.jit(lambda x: x + 1, donate_argnums=0)
    for x in results:
        increment(x)
    np.testing.assert_array_equal(jnp.linspace(0.0, 1.0, 600), np.linspace(0, 1, 600, dtype=np.float32))


def test_defaults_follow_the_settings() -> None:
    for _ in range(5):
        narrow = jnp.linspace(0.0, 1.0, 7), jnp.arange(7), jnp.astype(X, float)
    assert {a.dtype.itemsize for a in narrow} == {4}
    vf.config.update("jax_enable_x64", True)
    try:
        for _ in range(5):
            wide = jnp.linspace(0.0, 1.0, 7), jnp.arange(7), jnp.astype(X, float)
        assert {a.dtype.itemsize for a in wide} == {8}
    finally:
        vf.config.update("jax_enable_x64", None)
        vf.config.update("jax_debug_nans", False)  # which forgets what was compiled
    assert jnp.linspace(0.0, 1.0, 7).dtype == np.float32


def test_a_device_of_a_block_is_where_arrays_are_made() -> None:
    for _ in range(5):
        array = jnp.arange(600)
        with vf.default_device("cpu"):
            assert jnp.arange(600).device is vf.devices("cpu")[0]
    assert array.device is vf.devices("cpu")[0]


def test_only_large_results_of_small_arguments_are_compiled() -> None:
    traced: list[int] = []

    @fused_by_results
    def grown(x: Any, count: int) -> Any:
        traced.append(count)
        return jnp.outer(x, jnp.ones(count, "float32"))

    for count in (3, 400):
        for _ in range(8):
            assert grown(X[:5], count).shape == (5, count)
    assert traced.count(3) == 8 and traced.count(400) == 3  # two calls, and the trace


def test_marked_functions_keep_their_names_and_parameters() -> None:
    import inspect

    power: Any = jnp.power
    assert str(inspect.signature(power)).startswith("(x: ") and power.__name__ == "power"
    with pytest.raises(TypeError):
        power(x=X, y=X)
    with pytest.raises(TypeError):
        power(X)


class Changing:
    """A sequence of arrays, and an array, whose elements change between calls while the object is the same."""

    def __init__(self) -> None:
        self.number = 0.0

    def __jax_array__(self) -> Any:
        return jnp.full(600, self.number)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([jnp.full(600, self.number), jnp.ones(600)])


@pytest.mark.parametrize(
    "call",
    [
        lambda o: jnp.hypot(jnp.zeros(600), o),
        lambda o: jnp.clip(jnp.zeros(600), o, None),
        lambda o: jnp.where(jnp.ones(600) > 0, o, jnp.zeros(600)),
        lambda o: jnp.choose(jnp.zeros(600, int), [o, jnp.ones(600)]),
        lambda o: jnp.stack([o, jnp.ones(600)]),
        jnp.concatenate,
        jnp.hstack,
    ],
)
def test_objects_that_hold_arrays_are_read_at_each_call(call: Any) -> None:
    changing = Changing()
    for number in range(8):
        changing.number = float(number)
        assert jnp.ravel(call(changing))[0] == number
