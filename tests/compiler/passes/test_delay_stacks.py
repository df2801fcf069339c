"""What scans stack of the carry that each step gets is what each leaves, moved on by a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.passes.common import names, passed, untouched
from volta_fn import lax
from volta_fn.compiler.passes.loops import drop_delay_stacks

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_stacks_of_carries_are_moved_on(reverse: bool, length: int) -> None:
    """One of them is stacked as it is left, too; another one twice as it is got."""

    def step(carry: Any, row: Any) -> Any:
        one, other = carry
        new = one + row, other * row
        return new, (one, new[0], other, row * one, other)

    after = passed(drop_delay_stacks, lambda x, a: lax.scan(step, (a, a), x, reverse=reverse), X[:length], X[1])
    assert names(after) == ["scan", *["reshape", "slice", "concatenate"] * 3]
    assert len(after.eqns[0].outvars) == 2 + 3


def test_others_stay() -> None:
    """Carries that no step makes, and a scan of no steps."""
    swapped = lambda carry, row: (carry[::-1], carry[0] + row)
    untouched(drop_delay_stacks, lambda x, a, b: lax.scan(swapped, (a, b), x), X, X[0], X[1])
    untouched(drop_delay_stacks, lambda x, a: lax.scan(lambda c, r: ((c[1], c[0]), c[0]), (a, a + 1), x), X, X[0])
    untouched(drop_delay_stacks, lambda x, a: lax.scan(lambda c, r: (c + r, c), a, x), X[:0], X[0])
