"""Every sample of a primitive that has a routine: the routine gives what the primitive means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.meaning import sample_calls
from tests.backends.wgsl.library.checking import check
from volta_fn.backends.wgsl.library import ROUTINES

#: What has results that are right with other signs, too.
_UP_TO_SIGNS = ("eigh", "svd")
#: There is no arithmetic of complex numbers, nor are there exponentials, in shaders yet.
_CALLS = {
    name: calls
    for name, calls in sample_calls([name for name in ROUTINES if name not in _UP_TO_SIGNS])
    if not (name.startswith("cumlogsumexp") or ("complex" in name and name.startswith(("scatter_", "reduce_window", "cum"))))
}
#: What may sum or multiply in another order than NumPy, or has functions of its own.
_ROUNDS = {
    *("cumsum", "cumlogsumexp", "reduce_window_sum", "select_and_scatter_add"),
    *("cholesky", "triangular_solve", "lu", "qr"),
}


@pytest.mark.parametrize("calls", _CALLS.values(), ids=list(_CALLS))
def test_sample(calls: Any) -> None:
    for name, inputs, params in calls():
        check(name, inputs, params, exact=name not in _ROUNDS)
