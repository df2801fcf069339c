"""Sorts by NumPy's functions: stable, with NaN last, along any axis, and with operands that follow."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.lazy_imports import load
from volta_fn.runtime.llvm import machine

#: A module whose package has a function of its name.
sort = load("volta_fn.targets.cpu.library.sort")

DTYPES = ["float32", "float64", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "int8", "bool"]
SHAPES = [((1000,), 0), ((1,), 0), ((2,), 0), ((31, 33), 0), ((31, 33), 1), ((3, 300, 7), 1), ((3, 40), 0), ((2, 0, 3), 1)]


def drawn(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw numbers with many equals, zeros of both signs and NaN."""
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, shape).astype(np.float64)
    if not dtype.startswith("float"):
        return (abs(x) if dtype[0] == "u" else x).astype(dtype)
    for value in (-0.0, np.nan, np.inf, -np.inf):
        x = np.where(rng.random(shape) < 0.08, value, x)
    return x.astype(dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if arrays are equal, with the signs of zeros; every NaN is equal to every other."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and (a.dtype.kind != "f" or same_signs(a, b))


def same_signs(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if numbers but NaN have the same signs."""
    return bool((np.signbit(a) == np.signbit(b))[~np.isnan(a)].all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_sort_stably(dtype: str) -> None:
    for shape, axis in SHAPES:
        x = drawn(dtype, shape)
        order = np.argsort(x, axis=axis, kind="stable")
        values, numbers, last = vf.jit(
            lambda x, axis=axis: (lax.sort(x, axis), *lax.sort((x, lax.broadcasted_iota("int32", x.shape, axis)), axis))
        )(x)
        expected = np.take_along_axis(x, order, axis)
        assert same(np.asarray(values), expected) and same(np.asarray(numbers), expected), (shape, axis)
        np.testing.assert_array_equal(last, order)


def test_long_rows_and_the_greatest_first() -> None:
    x = drawn("float32", (70000,))
    np.testing.assert_array_equal(jnp.sort(jnp.asarray(x), descending=True), np.sort(x)[::-1])
    np.testing.assert_array_equal(vf.jit(jnp.argsort)(x), np.argsort(x, kind="stable"))


def test_where_numpy_has_no_such_functions_others_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "sort_address", lambda dtype: None)
    x = drawn("float32", (5, 4000))
    np.testing.assert_array_equal(vf.jit(lambda x: lax.sort(x))(x), np.sort(x))


def test_functions_are_known_by_their_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = np.dtype("float32")
    assert machine.sort_symbol(dtype) == "volta_numpy_sort_f4"
    assert machine.sort_address(dtype) not in (None, machine.sort_address(np.dtype("int32")))

    def unknown(number: int) -> int:
        raise LookupError

    monkeypatch.setattr(machine, "numpy_function", unknown)
    assert machine.sort_address.__wrapped__(dtype) is None
