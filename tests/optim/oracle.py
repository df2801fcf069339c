"""Optax as an oracle: the same optimizer, run on the same gradients, by both; and trees with what tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree

#: Few shapes, for JAX compiles every operation anew for each; and some that need care.
SHAPES = {"matrix": (4, 3), "deep": {"bias": (3,), "gap": None}}
MORE_SHAPES = {"scalar": (), "cube": (2, 3, 2), "row": (1, 5), "kernel": (2, 1, 2, 3)}
Pairs = list[tuple[list[np.ndarray], list[np.ndarray]]]


def random_tree(seed: int, dtype: Any = "float32", shapes: Any = SHAPES) -> Any:
    """Normal numbers in arrays of some shapes."""
    rng = np.random.default_rng(seed)
    dtype = vf.dtypes.as_dtype(dtype)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        x = rng.normal(size=shape)
        return np.asarray(x + 1j * rng.normal(size=shape) if dtype.kind == "c" else x, dtype)

    return tree.map(draw, shapes, is_leaf=lambda node: isinstance(node, tuple))


def gradients(dtype: Any, steps: int, shapes: Any = SHAPES) -> list[Any]:
    """Return a tree of gradients for each step."""
    return [random_tree(100 + step, dtype, shapes) for step in range(steps)]


def run(optimizer: Any, dtype: str, steps: int, shapes: Any = SHAPES, **extra: np.ndarray) -> tuple[Any, Any, Any]:
    """Return the last updates, the state and the parameters after some steps of an optimizer of ours.

    Extra arguments of `update` are given as arrays of one element per step.
    """
    params = tree.map(vf.numpy.asarray, random_tree(7, dtype, shapes))
    state, updates = optimizer.init(params), None
    for step, grads in enumerate(gradients(dtype, steps, shapes)):
        updates, state = optimizer.update(grads, state, params, **{name: values[step] for name, values in extra.items()})
        params = optim.apply_updates(params, updates)
    return updates, state, params


def run_optax(
    optimizer: Any, dtype: str, steps: int, shapes: Any = SHAPES, compiled: bool = False, **extra: np.ndarray
) -> tuple[Any, Any, Any]:
    """Return the same for an optimizer of Optax: step by step, so that operations are compiled once for all tests, unless `compiled`."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    update = jax.jit(optimizer.update) if compiled else optimizer.update
    params = jax.tree.map(jax.numpy.asarray, random_tree(7, dtype, shapes))
    state, updates = optimizer.init(params), None
    for step, grads in enumerate(gradients(dtype, steps, shapes)):
        grads = jax.tree.map(jax.numpy.asarray, grads)
        updates, state = update(grads, state, params, **{name: values[step] for name, values in extra.items()})
        params = optax.apply_updates(params, updates)
    return updates, state, params


def ours_and_theirs(
    make: Callable[[Any], Any], dtype: str, steps: int = 4, shapes: Any = SHAPES, compiled: bool = False, **extra: np.ndarray
) -> Pairs:
    """Updates, state and parameters of ``make(library)`` after some steps: ours and Optax's, as lists of leaves."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    with jax.enable_x64(dtype in ("float64", "complex128")):
        theirs = run_optax(make(optax), dtype, steps, shapes, compiled, **extra)
    ours = run(make(optim), dtype, steps, shapes, **extra)
    return [(list(map(np.asarray, tree.leaves(a))), list(map(np.asarray, jax.tree.leaves(b)))) for a, b in zip(ours, theirs, strict=True)]


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], rtol: float, atol: float | None = None) -> None:
    """Equal up to rounding: relative to each array's largest element, for sums in another order cancel differently."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        size = float(np.max(np.abs(b), initial=0)) if b.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * size if atol is None else atol)
