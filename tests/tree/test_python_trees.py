"""Trees in pure Python are optree's: leaves, paths and structures."""

from __future__ import annotations

import collections
import subprocess
import sys
from typing import Any, NamedTuple

import optree
import pytest

from volta_fn.tree import python_trees


class Point(NamedTuple):
    x: Any
    y: Any


class Pair:
    def __init__(self, left: Any, right: Any, name: str) -> None:
        self.left, self.right, self.name = left, right, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # compared alone


for _library in (optree, python_trees):
    register: Any = _library.register_pytree_node  # type: ignore[attr-defined]
    register(Pair, lambda p: ((p.left, p.right), p.name, ("left", "right")), lambda name, c: Pair(*c, name), namespace="test of trees")

TREES = [
    1,
    None,
    (),
    [],
    {},
    (1,),
    [1, (2, [3, None]), {"b": 4, "a": [5]}],
    {1: 2, "a": 3},
    Point(1, [2, 3]),
    collections.OrderedDict(b=1, a=(2,)),
    collections.defaultdict(list, {"z": 1, "y": 2}),
    collections.deque([1, (2, 3)], maxlen=4),
    Pair([1, 2], {"k": 3}, "pair"),
    [Pair(None, Point(1, 2), "nested"), "text"],
]


@pytest.mark.parametrize("tree", TREES, ids=[f"tree {i}" for i in range(len(TREES))])
def test_leaves_structures_and_paths_are_the_same(tree: Any) -> None:
    theirs, spec = optree.tree_flatten(tree, namespace="test of trees")
    ours, python_spec = python_trees.tree_flatten(tree)
    assert ours == theirs
    assert (python_spec.num_leaves, python_spec.num_nodes, python_spec.num_children, python_spec.type) == (
        spec.num_leaves,
        spec.num_nodes,
        spec.num_children,
        spec.type,
    )
    assert python_spec.entries() == spec.entries()
    paths = [[step.entry for step in path] for path in spec.accessors()]
    assert [[step.entry for step in path] for path in python_spec.accessors()] == paths
    assert python_spec.unflatten(ours) == tree
    assert type(python_spec.unflatten(ours)) is type(tree)
    assert python_spec.flatten_up_to(tree) == ours
    assert python_spec == python_trees.tree_structure(tree)
    assert hash(python_spec) == hash(python_trees.tree_structure(tree))


def test_structures_differ_where_those_of_optree_do() -> None:
    for i, a in enumerate(TREES):
        for j, b in enumerate(TREES):
            same = optree.tree_structure(a, namespace="test of trees") == optree.tree_structure(b, namespace="test of trees")
            assert (python_trees.tree_structure(a) == python_trees.tree_structure(b)) == same, (i, j)


def test_wrong_numbers_of_leaves_and_other_trees_raise() -> None:
    spec = python_trees.tree_structure([1, {"a": 2}])
    with pytest.raises(ValueError, match="too many"):
        spec.unflatten([1, 2, 3])
    for other in ([1], [1, {"b": 2}], (1, {"a": 2}), [1, 2]):
        with pytest.raises(ValueError, match="does not fit"):
            spec.flatten_up_to(other)
    assert spec.flatten_up_to([[1, 2], {"a": None}]) == [[1, 2], None]
    with pytest.raises(ValueError, match="registered already"):
        python_trees.register_pytree_node(dict, lambda d: ((), None), lambda data, children: {})


@pytest.mark.parametrize("library", [optree, python_trees], ids=["optree", "python"])
def test_dictionaries_keep_their_order(library: Any) -> None:
    tree = [{"b": 1, "a": {3: 2, 1: 3}}, collections.OrderedDict(z=4, y=5), collections.defaultdict(list, {"d": 6, "c": 7})]
    leaves, spec = library.tree_flatten(tree)
    assert leaves == [3, 2, 1, 4, 5, 7, 6]
    first, second, third = spec.unflatten(leaves)
    assert ([*first], [*first["a"]], [*second], [*third]) == (["b", "a"], [3, 1], ["z", "y"], ["d", "c"])


@pytest.mark.parametrize("library", [optree, python_trees], ids=["optree", "python"])
def test_structures_of_dictionaries_and_their_transformation(library: Any) -> None:
    leaf = library.tree_structure(0)
    spec = library.treespec_dict({"b": leaf, "a": leaf})
    assert spec == library.tree_structure({"a": 0, "b": 0})
    assert [*spec.unflatten([1, 2]).items()] == [("b", 2), ("a", 1)]
    default = library.treespec_defaultdict(list, {"b": leaf})
    assert default == library.tree_structure(collections.defaultdict(list, b=0))
    levels: list[Any] = []
    nested = library.tree_structure([{"a": 1}, (2, 3)])
    assert library.treespec_transform(nested, lambda level: levels.append(level.type) or level) == nested
    assert {*levels} == {list, dict, tuple}


def test_registrations() -> None:
    theirs = optree.register_pytree_node.get(Pair, namespace="test of trees")
    ours = python_trees.register_pytree_node.get(Pair, namespace="test of trees")
    assert ours.unflatten_func("pair", [1, 2]) == theirs.unflatten_func("pair", [1, 2]) == Pair(1, 2, "pair")
    assert python_trees.register_pytree_node.get(Point) is None  # type: ignore[attr-defined]


def test_export_without_optree() -> None:
    program = "import sys; sys.modules['optree'] = None; import volta_fn as vf; "
    program += "print(float(vf.export.deserialize(vf.export.export(vf.jit(lambda x: x * 2))(1.0).serialize()).call(4.0)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout == "8.0\n", result.stderr
