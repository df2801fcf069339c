"""Generated matchers return the leaves of trees of their structure only."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from volta_fn import tree
from volta_fn.jit.cache import generate_match

Point = collections.namedtuple("Point", "x y")


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any
    name: str = dataclasses.field(default="", metadata={"static": True})


TREES = [
    1,
    None,
    (),
    [],
    {},
    (1, 2),
    [1, 2],
    (1, 2, 3),
    (1, None),
    {"a": 1, "b": 2},
    {"b": 1, "a": 2},
    {"a": 1, "c": 2},
    {"a": {"b'\n": 2}},
    {3: 1, 2: (4,)},
    Point(1, 2),
    Point(1, Point([2], None)),
    Layer(1, 2),
    Layer(1, 2, "first"),
    Layer(1, None),
    ({"params": [Layer(1, 2, "x"), Layer(3, None)], "step": 4}, (Point(5, {}), 6)),
]


@pytest.mark.parametrize("example", TREES, ids=str)
def test_trees_of_the_structure_match_and_others_do_not(example: Any) -> None:
    match = generate_match(tree.structure(example), example)
    assert match is not None
    for other in TREES:
        result, leaves = match(other), tree.leaves(other)
        if tree.structure(other) == tree.structure(example):
            assert result == leaves
        else:  # leaves are not examined
            assert result is None or any(tree.structure(leaf) != tree.structure(0) for leaf in result)


@pytest.mark.parametrize(
    "example", [collections.OrderedDict(a=1), collections.defaultdict(int, a=1), tree.Partial(len, 1), [0] * 1001], ids=type
)
def test_other_nodes_and_large_trees_are_left_to_flatten(example: Any) -> None:
    assert generate_match(tree.structure(example), example) is None
