"""`lax.map`: row by row, and in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

XS = {"a": np.arange(12, dtype=np.float32).reshape(6, 2), "b": np.arange(6, dtype=np.int32)}


def row(x: Any) -> Any:
    return {"sum": lax.reduce_sum(x["a"], (0,)) * x["b"], "pair": (x["a"], None)}


@pytest.mark.parametrize("batch_size", [None, 1, 2, 4, 6, 7])
def test_rows(batch_size: int | None) -> None:
    for run in (
        lax.map,
        vf.jit(lambda f, xs, batch_size: lax.map(f, xs, batch_size=batch_size), static_argnums=0, static_argnames="batch_size"),
    ):
        out = run(row, XS, batch_size=batch_size)
        assert np.asarray(out["sum"]).tolist() == (XS["a"].sum(1) * XS["b"]).tolist()
        assert np.asarray(out["pair"][0]).tolist() == XS["a"].tolist() and out["pair"][1] is None


@pytest.mark.parametrize("batch_size", [None, 3])
def test_no_rows(batch_size: int | None) -> None:
    assert lax.map(lambda x: lax.expand_dims(x, (0,)), np.zeros((0, 2), np.float32), batch_size=batch_size).shape == (0, 1, 2)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_gradient(batch_size: int | None) -> None:
    x = np.linspace(0.1, 1.0, 6, dtype=np.float32)
    slope = vf.grad(lambda v: lax.reduce_sum(lax.map(lambda e: lax.sin(e) * e, v, batch_size=batch_size), (0,)))(x)
    np.testing.assert_allclose(slope, np.cos(x) * x + np.sin(x), rtol=1e-6)  # seen: 1.1e-7, a rounding


def test_one_batch_at_a_time() -> None:
    """Check that the scan's body is the mapped function, or the function itself."""
    shapes = []

    def watched(x: Any) -> Any:
        shapes.append(x)
        return x * 2

    program = vf.jit(lambda xs: lax.map(watched, xs, batch_size=4)).lower(np.arange(10, dtype=np.float32)).jaxpr
    (scan,) = [e for e in program.eqns if e.primitive.name == "scan"]
    assert scan.params["length"] == 2 and scan.params["jaxpr"].in_avals[0].shape == (4,)


MESSAGES = [
    (lambda: lax.map(row, 3.0), ShapeError, "scalar"),
    (lambda: lax.map(row, ()), ArgumentError, "length"),
    (lambda: lax.map(row, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}), ShapeError, "one leading size"),
    (lambda: lax.map(row, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, batch_size=2), ShapeError, "one leading size"),
    (lambda: lax.map(row, XS, batch_size=-1), ArgumentError, "batch_size must not be negative"),
    (lambda: lax.map(3, XS), ArgumentTypeError, "map"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_batch_size_of_0_is_all_rows_at_once() -> None:
    assert lax.map(row, XS, batch_size=0)["sum"].tolist() == lax.map(row, XS)["sum"].tolist()
