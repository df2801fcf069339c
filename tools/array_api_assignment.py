"""A plugin of pytest that lets tests assign to elements.

tools/array_api_tests.py loads it. Arrays are immutable: ``x[i] = v`` raises `ImmutableError`, except in a block of
`volta_fn.numpy.allow_assignment`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

import volta_fn as vf

#: The tests of array-api-tests that assign to elements, and why.
ASSIGNING = {
    "array_api_tests/test_array_object.py::test_setitem": "it is what they test",
    "array_api_tests/test_array_object.py::test_setitem_masking": "it is what they test",
    "array_api_tests/test_creation_functions.py::test_asarray_arrays": "to see whether asarray(copy=) has copied",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Allow assignment while a test of `ASSIGNING` runs."""
    if item.nodeid.partition("[")[0] not in ASSIGNING:
        return (yield)
    with vf.numpy.allow_assignment():
        return (yield)
