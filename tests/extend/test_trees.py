"""Functions on pytrees in which keys are leaves."""

from __future__ import annotations

import pytest

import volta_fn as vf
from volta_fn import errors
from volta_fn.extend import functions

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
    children, structure = functions.flatten_one_level({"x": [1, 2], "y": KEYED["a"]})
    assert children[0] == [1, 2] and children[1] is KEYED["a"] and structure.num_leaves == 2
    pairs, _ = functions.flatten_one_level_with_keys([1, {"a": 2}])
    assert [(str(key), child) for key, child in pairs] == [("[0]", 1), ("[1]", {"a": 2})]
    with pytest.raises(errors.TreeError, match="is a leaf"):
        functions.flatten_one_level(KEYED["a"])
    assert functions.is_tree_node(list) and not functions.is_tree_node(int)


def test_paths_may_decide_which_nodes_are_leaves() -> None:
    deep = lambda path, node: len(path) == 1
    pairs, structure = functions.flatten_with_path({"a": [1, 2], "k": KEYED}, deep, is_leaf_takes_path=True)
    assert [leaf for _, leaf in pairs] == [[1, 2], KEYED] and structure.num_leaves == 2
    mapped = functions.map_with_path(lambda path, x: str(path[0]), {"a": [1, 2], "b": 3}, is_leaf=deep, is_leaf_takes_path=True)
    assert mapped == {"a": "['a']", "b": "['b']"}
