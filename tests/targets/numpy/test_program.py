"""Plans as Python code: short ones in one function, long ones in several, with one result for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core.arrays.array import as_value
from volta_fn.targets.numpy import backend

X = np.arange(6.0).reshape(2, 3)


def model(x: Any, y: Any) -> Any:
    total = jnp.sin(x) * 2.0
    for i in range(5):
        total = total + jnp.cos(total) * y + float(i)
        left, right = jnp.split(total.reshape(-1), 2)
        total = total - jnp.sum(left) * right[0]
    return {"total": total, "same": x, "constant": jnp.asarray(X), "literal": as_value(3.0), "twice": (total, total)}


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("donate", [(), (0,), (0, 1)])
def test_parts_of_any_length_give_the_same(length: int, donate: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model(jnp.asarray(X), jnp.asarray(X + 1))
    monkeypatch.setattr(backend, "_STEPS_PER_FUNCTION", length)
    compiled = vf.jit(model, donate_argnums=donate)
    for _ in range(2):
        actual = compiled(jnp.asarray(X), jnp.asarray(X + 1))
        for ours, wanted in zip(vf.tree.leaves(actual), vf.tree.leaves(expected), strict=True):
            assert np.asarray(ours).tobytes() == np.asarray(wanted).tobytes()
            assert ours.aval == wanted.aval


def test_no_warnings_and_no_change_of_numpy_s_state() -> None:
    state = np.geterr()
    result = vf.jit(lambda x: (1.0 / x, jnp.log(x), jnp.exp(x * 1e9)))(np.array([0.0, -1.0, 1.0]))
    np.testing.assert_array_equal(result[0], [np.inf, -1.0, 1.0])
    assert np.geterr() == state
    assert np.isnan(np.asarray(result[1])[1])


def test_results_without_dimensions_are_arrays() -> None:
    total = vf.jit(lambda x: (jnp.sum(x), jnp.sum(x) + 1.0, x[0] * 2.0))(np.arange(3.0))
    for value in total:
        assert type(np.asarray(value)) is np.ndarray
        assert isinstance(value.buffer(), np.ndarray)
