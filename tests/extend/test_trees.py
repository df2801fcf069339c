"""Functions on pytrees in which keys are leaves."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import jax
import pytest

import volta_fn as vf
from volta_fn import errors
from volta_fn.extend import functions
from volta_fn.tree import python_trees

KEYED = {"a": vf.random.key(1), "b": [vf.random.split(vf.random.key(2), 3), 5]}


def test_keys_are_leaves_in_every_function() -> None:
    leaves, structure = functions.flatten(KEYED)
    assert [type(x) for x in leaves] == [vf.random.keys.PRNGKeyArray] * 2 + [int] if hasattr(vf.random, "keys") else len(leaves) == 3
    assert structure == functions.structure({"a": 0, "b": [0, 0]}) and structure.num_leaves == 3
    assert functions.map(lambda x: getattr(x, "shape", None), KEYED) == {"a": (), "b": [(3,), None]}
    assert functions.unflatten(structure, leaves)["a"] is KEYED["a"]
    assert [vf.tree.keystr(path) for path, _ in functions.leaves_with_path(KEYED)] == ["['a']", "['b'][0]", "['b'][1]"]
    assert functions.reduce(lambda total, x: total + 1, KEYED, 0) == 3 and functions.all_leaves([KEYED["a"], 1])


def test_is_leaf_may_be_given_by_position_or_name() -> None:
    is_list = lambda node: isinstance(node, list)
    assert len(functions.leaves(KEYED, is_list)) == len(functions.leaves(KEYED, is_leaf=is_list)) == 2


def test_random_numbers_of_a_tree_of_keys() -> None:
    result = functions.map(lambda key, like: vf.random.normal(key, like.shape), {"w": vf.random.key(0)}, {"w": vf.numpy.ones(2)})
    assert result["w"].tolist() == vf.random.normal(vf.random.key(0), (2,)).tolist()


def test_one_level() -> None:
    children, data = functions.flatten_one_level({"x": [1, 2], "y": KEYED["a"]})
    assert children[0] == [1, 2] and children[1] is KEYED["a"] and data == ("x", "y")
    pairs, _ = functions.flatten_one_level_with_keys([1, {"a": 2}])
    assert [(str(key), child) for key, child in pairs] == [("[0]", 1), ("[1]", {"a": 2})]
    with pytest.raises(errors.TreeError, match="is a leaf"):
        functions.flatten_one_level(KEYED["a"])
    assert functions.is_tree_node(list) and not functions.is_tree_node(int)


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_pytree_node_class
@vf.tree.register_pytree_node_class
class Named:
    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> Any:
        return [self.value], "auxiliary"

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> Named:
        return cls(*children)


def test_containers_are_rebuilt_by_the_entries_of_the_registry() -> None:
    from jax._src.tree_util import _registry  # private: the libraries that use it are unmodified

    nodes = [{"b": 1, "a": 2}, [1, [2]], (1,), (), None, collections.OrderedDict(b=1, a=2), collections.defaultdict(int, b=1), Named(1)]
    for node in nodes:
        ours, theirs = functions.registry[type(node)], _registry[type(node)]
        children, data = ours.to_iter(node)
        expected, expected_data = theirs.to_iter(node)
        assert children == [*expected] and hash(data) == hash(ours.to_iter(node)[1])
        changed = [("new", child) for child in children]
        ours_rebuilt, theirs_rebuilt = ours.from_iter(data, changed), theirs.from_iter(expected_data, changed)
        if isinstance(node, Named):
            assert ours_rebuilt.value == theirs_rebuilt.value == ("new", 1)
        else:
            assert ours_rebuilt == theirs_rebuilt and type(ours_rebuilt) is type(node)
    assert list in functions.registry and int not in functions.registry and len(functions.registry) == len([*functions.registry])
    with pytest.raises(KeyError):
        functions.registry[int]


def test_the_registry_has_the_methods_of_jax() -> None:
    counts = collections.defaultdict(int, b=1, a=2)
    nodes = [{"b": [1], "a": 2}, [1, [2]], (1,), (), None, Point(1, [2]), collections.OrderedDict(b=1, a=2), counts, Named([1])]
    ours, theirs = functions.default_registry, jax.tree_util.default_registry
    for node in nodes:
        children, data = ours.flatten_one_level(node)
        expected, expected_data = theirs.flatten_one_level(node)
        assert (children, data) == ([*expected], expected_data)
        python_children, python_data = python_trees.tree_flatten_one_level(node) if type(node) is not Named else (children, data)
        assert (python_children, type(python_data)) == (children, type(data))
        assert [child for _, child in ours.flatten_one_level_with_keys(node)[0]] == children
        assert ours.is_node(type(node)) or type(node) is Point
    assert ours.flatten_one_level(1.0) is ours.flatten_one_level_with_keys(KEYED["a"]) is None
    with pytest.raises(ValueError, match="is a leaf"):
        python_trees.tree_flatten_one_level(1.0)

    @dataclasses.dataclass
    class Pair:
        x: Any
        name: str

    ours.register_dataclass_node(Pair, ["x"], ["name"])
    assert ours.flatten(Pair(5, "n"))[0] == [5]


def test_paths_may_decide_which_nodes_are_leaves() -> None:
    deep = lambda path, node: len(path) == 1
    pairs, structure = functions.flatten_with_path({"a": [1, 2], "k": KEYED}, deep, is_leaf_takes_path=True)
    assert [leaf for _, leaf in pairs] == [[1, 2], KEYED] and structure.num_leaves == 2
    mapped = functions.map_with_path(lambda path, x: str(path[0]), {"a": [1, 2], "b": 3}, is_leaf=deep, is_leaf_takes_path=True)
    assert mapped == {"a": "['a']", "b": "['b']"}


@pytest.mark.parametrize("prefix, full", [((1, (2, 3)), (1, 2)), ({"a": (1, 2)}, {"a": (1, 2, 3)}), ([1], (1,)), ((1, 2), (1, (2, 3)))])
def test_what_keeps_a_tree_from_being_a_prefix(prefix: Any, full: Any) -> None:
    ours, theirs = functions.prefix_errors(prefix, full), jax._src.tree_util.prefix_errors(prefix, full)
    assert len(ours) == len(theirs)
    for error in ours:
        with pytest.raises(ValueError, match="pytree structure error in in_axes: .* differ"):
            raise error("in_axes")
