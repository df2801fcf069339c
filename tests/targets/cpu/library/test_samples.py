"""Every sample of a primitive that has a routine: the routine gives what the primitive means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.targets.cpu.library.checking import check
from tests.targets.reference import sample_calls
from volta_fn.targets.cpu.library import ROUTINES

_CALLS = dict(sample_calls(list(ROUTINES)))
#: What may sum or multiply in another order than NumPy, or has functions of its own.
_ROUNDS = {"cumsum", "cumlogsumexp", "reduce_window_sum", "select_and_scatter_add"}


@pytest.mark.parametrize("calls", _CALLS.values(), ids=list(_CALLS))
def test_sample(calls: Any) -> None:
    for name, inputs, params in calls():
        check(name, inputs, params, exact=name not in _ROUNDS)
