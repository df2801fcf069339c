"""x[i] = v: refused, unless it is allowed, and then as NumPy's, except that no two arrays share elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ImmutableError, ShapeError

INDICES: list[Any] = [
    1,
    -1,
    slice(1, None),
    (slice(None), 2),
    ...,
    (1, 2),
    None,
    np.array([2, 0]),
    np.eye(3, 4) > 0,
    (slice(None, None, -2), 0),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_elements_are_as_numpys(index: Any) -> None:
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)
    x, y = vnp.asarray(wanted), vnp.asarray(wanted)
    same, copy = x, x.copy()
    for value in (5, -2.5, np.float32(7)):
        wanted[index] = value
        with vnp.allow_assignment():
            x[index] = value
        np.testing.assert_array_equal(same, wanted)
    np.testing.assert_array_equal(copy, y)
    assert (x.dtype, x.weak_type) == (np.float32, False)


def test_masks_updates_and_broadcast_values() -> None:
    wanted = np.arange(-3, 3)
    x = vnp.asarray(wanted)
    with vnp.allow_assignment():
        x[x < 0] = 0
        x[::2] += 10
        x[:2] = vnp.asarray([8, 9])
    wanted[wanted < 0] = 0
    wanted[::2] += 10
    wanted[:2] = [8, 9]
    assert x.tolist() == wanted.tolist()
    with vnp.allow_assignment(), pytest.raises(ShapeError):
        x[:2] = vnp.ones(3, int)


def test_it_ends_with_the_block_and_does_not_hold_for_traced_functions() -> None:
    x = vnp.zeros(2)

    def assigns(y: Any) -> Any:
        y[0] = 1.0
        return y

    def assigns_to_what_it_closes_over(y: Any) -> Any:
        x[0] = 1.0
        return vnp.sum(y)

    with vnp.allow_assignment():
        for transform in (vf.jit, vf.vmap, lambda f: vf.grad(lambda y: vnp.sum(f(y)))):
            for function in (assigns, assigns_to_what_it_closes_over):
                with pytest.raises(ImmutableError, match="traced or differentiated"):
                    transform(function)(vnp.ones(2))
    with pytest.raises(ImmutableError, match=r"x\.at\[i\]\.set\(v\).*allow_assignment"):
        x[0] = 1.0
    assert x.tolist() == [0.0, 0.0]
