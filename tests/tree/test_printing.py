"""`tree.pformat`: containers, types and sizes of every kind of tree."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, tree
from volta_fn.errors import ArgumentError


class Pair(NamedTuple):
    """A namedtuple of two."""

    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(3), "f32[]"),
        (np.zeros((2, 0), np.complex64), "c64[2,0]"),
        (vf.ShapeDtypeStruct((3,), "bfloat16"), "bf16[3]"),
        ((np.zeros(3, np.int8),), "(i8[3],)"),
        ((), "()"),
        ({}, "{}"),
        (None, "None"),
        ([None, True, "a"], "[None, True, 'a']"),
        (Pair(np.zeros(1, bool), {"b": 1.5, "a": 2}), "Pair(left=bool[1], right={'a': 2, 'b': 1.5})"),
    ],
)
def test_small_trees_take_one_row(value: Any, text: str) -> None:
    assert tree.pformat(value) == text


def test_containers_that_do_not_fit_tell_their_sizes() -> None:
    value = {"w": [np.zeros((3, 4), np.float32), np.zeros(5, np.float64)], "n": None}
    assert tree.pformat(value, width=10, indent=1).splitlines() == [
        "{  # 2 arrays, 17 elements, 88 bytes",
        " 'n': None,",
        " 'w': [  # 2 arrays, 17 elements, 88 bytes",
        "  f32[3,4],",
        "  f64[5],",
        " ],",
        "}",
    ]
    assert tree.pformat([np.zeros((), np.int32)], width=0).splitlines()[0] == "[  # 1 array, 1 elements, 4 bytes"


def test_of_modules_keys_and_traced_arrays() -> None:
    layer = nn.Linear.init(vf.random.key(0), 2, 3)
    shape = ",".join(map(str, layer.weight.shape))
    assert tree.pformat(layer) == f"Linear(weight=f32[{shape}], bias=f32[3])"
    seen: list[str] = []
    vf.jit(lambda x: (seen.append(tree.pformat({"x": x})), x)[1])(np.ones((2, 2), np.float32))
    assert seen == ["{'x': f32[2,2]}"]
    assert "u32[2]" in tree.pformat(vf.random.key(0))


def test_long_leaves_are_cut_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tree.pprint("x" * 100, width=10)
    assert capsys.readouterr().out == "'xxxxxxxx…\n"
    for options in ({"width": -1}, {"indent": -1}):
        with pytest.raises(ArgumentError, match="must not be negative"):
            tree.pformat(1, **options)
