"""Helpers of JAX's private module for lists, tuples and functions, beside JAX's own."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from volta_fn.compat import internals

CALLS = [
    ("unzip2", ([(1, 2), (3, 4)],)),
    ("unzip2", ([],)),
    ("unzip3", ([(1, 2, 3), (4, 5, 6)],)),
    ("subvals", ((1, 2, 3), [(0, 7), (2, 8)])),
    ("split_list", ([1, 2, 3, 4], [1, 2])),
    ("split_list_checked", ([1, 2, 3], [1, 2])),
    ("partition_list", ([True, False, True], [1, 2, 3])),
    ("merge_lists", ([True, False, True], [2], [1, 3])),
    ("subs_list", ([None, 0, None, 1], [7, 8], [1, 2])),
    ("concatenate", ([[1], (2, 3), []],)),
    ("flatten", ([[1], [2, 3]],)),
    ("unflatten", ([1, 2, 3], [2, 1])),
    ("tuple_insert", ((1, 2), 1, 5)),
    ("tuple_delete", ((1, 2, 3), 1)),
    ("tuple_update", ((1, 2, 3), 1, 5)),
    ("canonicalize_axis_tuple", (-1, 3)),
    ("canonicalize_axis_tuple", ((0, -1), 3)),
    ("canonicalize_axis_tuple", (None, 3)),
    ("ceil_of_ratio", (7, 3)),
    ("ceil_of_ratio", (6, 3)),
    ("wrap_name", ("jit", "f")),
    ("fun_name", (functools.partial(functools.partial(len)),)),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=itertools.count())
def test_results_are_those_of_jax(name: str, arguments: tuple) -> None:
    util = pytest.importorskip("jax._src.util")
    ours, theirs = getattr(internals, name)(*arguments), getattr(util, name)(*arguments)
    assert list(ours) == list(theirs) if isinstance(theirs, (list, tuple)) else ours == theirs


def test_arrays_and_functions() -> None:
    x = np.zeros((2, 3, 4))
    assert internals.moveaxis(x, 0, -1).shape == np.moveaxis(x, 0, -1).shape and internals.moveaxis(x, 1, 1) is x
    assert list(internals.stable_unique([3, 1, 3, 2, 1])) == [3, 1, 2]
    assert internals.curry(max)(1)(2) == 2
    calls: list[int] = []
    square = internals.cache(max_size=None)(lambda v: calls.append(v) or v * v)
    assert [square(3), square(3), internals.memoize(abs)(-2)] == [9, 9, 2] and calls == [3]
    assert internals.set_module("m")(lambda: 0).__module__ == "m"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("split_list_checked", ([1, 2], [1])),
        ("merge_lists", ([True], [1], [2])),
        ("tuple_insert", ((1,), 5, 0)),
        ("tuple_delete", ((1,), 1)),
        ("tuple_update", ((1,), -1, 0)),
        ("canonicalize_axis_tuple", (3, 2)),
        ("canonicalize_axis_tuple", ((0, -2), 2)),
    ],
)
def test_bad_input_is_refused(name: str, arguments: tuple) -> None:
    with pytest.raises(ValueError, match=r"elements|lengths|axis"):
        getattr(internals, name)(*arguments)
