"""Generated matchers return the leaves of trees of their structure only."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
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


class Leaf:
    """A leaf that weak references can refer to."""


@tree.register_dataclass
@dataclasses.dataclass
class Mutable:
    weights: Any


def test_leaves_of_immutable_nodes_are_read_once() -> None:
    """They stay those of their node, and end with it."""
    first, second = (Layer(tuple(Leaf() for _ in range(20)), Layer(Leaf(), None)) for _ in range(2))
    match = generate_match(tree.structure((first, 1)), (first, 1))
    assert match is not None
    for node, number in [(first, 1), (second, 2), (first, 3), (second, 4)]:
        assert match((node, number)) == [*tree.leaves(node), number]
    assert match((Layer(1, 2), 1)) is None and match((first.weight, 1)) is None and match((None, 1)) is None
    leaf = weakref.ref(first.weight[0])
    del first, node
    gc.collect()
    assert leaf() is None
    assert match((second, 5)) == [*tree.leaves(second), 5]


@pytest.mark.parametrize("container", [list, lambda leaves: Mutable(tuple(leaves)), lambda leaves: dict(enumerate(leaves))])
def test_leaves_of_mutable_nodes_are_read_each_time(container: Any) -> None:
    tree_ = Layer(container(range(20)), None)
    match = generate_match(tree.structure((tree_,)), (tree_,))
    assert match is not None and match((tree_,)) == [*range(20)]
    if isinstance(tree_.weight, Mutable):
        tree_.weight.weights = tuple(range(1, 21))
    else:
        tree_.weight[0] = 20
    assert match((tree_,)) == tree.leaves(tree_) != [*range(20)]


@pytest.mark.parametrize(
    "example", [collections.OrderedDict(a=1), collections.defaultdict(int, a=1), tree.Partial(len, 1), [0] * 1001], ids=type
)
def test_other_nodes_and_large_trees_are_left_to_flatten(example: Any) -> None:
    assert generate_match(tree.structure(example), example) is None
