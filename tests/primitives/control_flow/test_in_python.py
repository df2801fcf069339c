"""Under `disable_jit` loops and branches call their functions with values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import DTypeError, ShapeError, TreeError

#: Functions of an array, and how often the noted function runs for [0, 1, 2].
PROGRAMS: dict[str, tuple[Callable[[Callable[..., Any], Any], Any], int]] = {
    "scan": (lambda note, x: lax.scan(lambda c, v: (note(c + v), {"y": c * v}), 1.0, x), 3),
    "scan from the end": (lambda note, x: lax.scan(lambda c, v: (note(2 * c + v), c), 1.0, x, reverse=True), 3),
    "scan without rows": (lambda note, x: lax.scan(lambda c, _: (note(c * 2), None), x, None, length=4), 4),
    "carry of another dtype": (lambda note, x: lax.scan(lambda c, v: (note(c + v), c), 0, x), 4),  # the first step decides on it
    "fori_loop": (lambda note, x: lax.fori_loop(0, 5, lambda i, c: note(c + i * x), x), 5),
    "while_loop": (lambda note, x: lax.while_loop(lambda c: c.sum() < 50, lambda c: note(c * 2), x), 5),
    "cond": (lambda note, x: lax.cond(x[1] > 0, lambda v: note(v + 1), lambda v: v, x), 1),
    "switch": (lambda note, x: lax.switch(7, [lambda v: v, lambda v: note(v * 3)], x), 1),
    "map": (lambda note, x: lax.map(lambda v: note(v * 2), x), 3),
}


@pytest.fixture
def not_jitted() -> Iterator[None]:
    with vf.disable_jit():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_see_values_and_results_are_those_of_programs(name: str) -> None:
    program, times = PROGRAMS[name]
    seen: list[np.ndarray] = []

    def note(value: Any) -> Any:
        seen.append(np.array(value))  # an error for a traced value
        return value

    x = jnp.arange(3.0)
    wanted = program(lambda value: value, x)
    with vf.disable_jit():
        actual = vf.jit(lambda x: program(note, x))(x)
    assert len(seen) == times
    assert vf.tree.structure(actual) == vf.tree.structure(wanted)
    for one, other in zip(vf.tree.leaves(actual), vf.tree.leaves(wanted), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def test_derivatives_and_maps(not_jitted: None) -> None:
    cube = lambda x: lax.scan(lambda c, _: (c * x, c), 1.0, None, length=3)[0]  # a function of one line
    assert float(vf.grad(cube)(2.0)) == 12
    np.testing.assert_array_equal(vf.vmap(cube)(jnp.arange(3.0)), [0, 1, 8])
    np.testing.assert_array_equal(vf.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 1, 0))(jnp.arange(3)), [0, 1, 2])
    np.testing.assert_array_equal(vf.vmap(lambda p: lax.cond(p, lambda: 1, lambda: 2))(jnp.array([True, False])), [1, 2])


def test_a_scan_of_no_steps_has_the_shapes_of_one(not_jitted: None) -> None:
    last, ys = lax.scan(lambda c, x: (c, jnp.stack([x, x])), 1.0, jnp.zeros((0, 3)))
    assert last == 1 and ys.shape == (0, 2, 3)


def test_references_are_written(not_jitted: None) -> None:
    total = vf.new_ref(0.0)

    def step(carry: Any, x: Any) -> Any:
        total[...] += x
        return carry, None

    lax.scan(step, None, jnp.arange(4.0))
    assert float(total[...]) == 6


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: lax.scan(lambda c, x: c, 0.0, jnp.ones(2)), TreeError),
        (lambda: lax.scan(lambda c, x: (x, None), 0.0, jnp.ones((2, 3))), ShapeError),
        (lambda: lax.scan(lambda c, x: ((c,), None), 0.0, jnp.ones(2)), TreeError),
        (lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0), DTypeError),
        (lambda: lax.fori_loop(0, 2, lambda i, c: c.astype("int32"), jnp.float32(1)), DTypeError),
    ],
)
def test_mistakes_are_those_of_programs(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as traced:
        call()
    with vf.disable_jit(), pytest.raises(error) as plain:
        call()
    assert str(plain.value) == str(traced.value)
