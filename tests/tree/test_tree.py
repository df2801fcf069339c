"""Pytrees as in JAX: structure, order, None, paths, prefixes, registration."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import pickle
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import tree, tree_util
from volta_fn.errors import TreeError
from volta_fn.settings import current as settings

Point = collections.namedtuple("Point", "x y")

TREES = [
    1,
    None,
    (),
    [],
    {},
    (1, [2, {"b": 3, "a": 4}], None),
    {"z": [1, 2], "a": (3, None), "m": {}},
    Point(1, Point([2], None)),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(int, {"b": 1, "a": 2}),
    [Point(1, {"k": (2, 3)}), [[[4]]]],
]

nested = st.recursive(
    st.integers() | st.none(),
    lambda children: (
        st.lists(children, max_size=3) | st.tuples(children, children) | st.dictionaries(st.text("abc", max_size=2), children, max_size=3)
    ),
)


def is_none(x):
    return x is None


@pytest.mark.parametrize("t", TREES, ids=str)
def test_leaves_and_paths_are_jaxs(t):
    jax = pytest.importorskip("jax")
    assert tree.leaves(t) == jax.tree.leaves(t)
    ours = [(tree.keystr(path), leaf) for path, leaf in tree.leaves_with_path(t)]
    assert ours == [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(t)]
    assert tree.leaves(t, is_leaf=is_none) == jax.tree.leaves(t, is_leaf=is_none)


@pytest.mark.parametrize("t", TREES, ids=str)
def test_unflatten_inverts_flatten(t):
    leaves, treedef = tree.flatten(t)
    again = tree.unflatten(treedef, iter(leaves))
    assert again == t
    assert type(again) is type(t)
    assert treedef == tree.structure(t)
    assert hash(treedef) == hash(tree.structure(t))
    assert treedef.num_leaves == len(leaves)


@given(nested)
def test_laws(t):
    leaves, treedef = tree.flatten(t)
    assert tree.unflatten(treedef, leaves) == t
    assert tree.map(lambda x: x, t) == t
    assert tree.broadcast_prefix(t, t) == leaves
    assert tree.broadcast_prefix(0, t) == [0] * len(leaves)
    assert tree.reduce(operator.add, t, 0) == sum(leaves)
    assert tree.all(t) == all(leaves)
    assert [leaf for _, leaf in tree.leaves_with_path(t)] == leaves
    assert tree.first_difference(treedef, t) is None


def test_structures_differ():
    different = [[1], (1,), {"a": 1}, {"b": 1}, [1, 2], None, 1, Point(1, 2), [None], {"a": [1]}]
    structures = {tree.structure(t) for t in different}
    assert len(structures) == len(different)


def test_dict_order_is_of_keys_not_of_insertion():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.structure({"b": 1, "a": 2}) == tree.structure({"a": 1, "b": 2})
    assert tree.leaves(collections.OrderedDict([("b", 1), ("a", 2)])) == [1, 2]


def test_map_over_several_trees():
    assert tree.map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"b": [20], "a": 10}) == {"a": 11, "b": [22]}
    assert tree.map(lambda x, sub: (x, sub), [1, 2], [{"k": 3}, (4, 5)]) == [(1, {"k": 3}), (2, (4, 5))]
    assert tree.map(lambda x: x is None, [None, 1], is_leaf=is_none) == [True, False]
    assert tree.map_with_path(lambda path, x, y: (tree.keystr(path), x + y), {"a": [1]}, {"a": [2]}) == {"a": [("['a'][0]", 3)]}


@pytest.mark.parametrize(
    ("other", "where", "expected", "got"),
    [
        ({"b": [1, Point(2, {"z": 3})], "a": (4, 5)}, "at ['a'][1]", "None", "a leaf of type int"),
        ({"b": [1, Point(2, {"q": 3})], "a": (4, None)}, "at ['b'][1].y", "a dict with keys ['z']", "a dict with keys ['q']"),
        ({"b": (1, 2), "a": (4, None)}, "at ['b']", "a list of 2", "a tuple of 2"),
        ({"b": [1], "a": (4, None)}, "at ['b']", "a list of 2", "a list of 1"),
        ({"b": 7, "a": (4, None)}, "at ['b']", "a list of 2", "a leaf of type int"),
        ({"b": 7}, "at the root", "a dict with keys ['a', 'b']", "a dict with keys ['b']"),
        (None, "at the root", "a dict with keys ['a', 'b']", "None"),
        ("x", "at the root", "a dict with keys ['a', 'b']", "a leaf of type str"),
    ],
)
def test_mismatch_names_path_and_both_structures(other, where, expected, got):
    full = {"b": [1, Point(2, {"z": 3})], "a": (4, None)}
    for call in (tree.map, tree.map_with_path):
        with pytest.raises(TreeError) as info:
            call(lambda *args: args, full, full, other)
        assert f"argument 3: structures differ {where}: expected {expected}, got {got}" in str(info.value)
        assert tree.describe(tree.structure(full)) in str(info.value)
        assert info.value.location.function == "test_mismatch_names_path_and_both_structures"


def test_reduce():
    assert tree.reduce(lambda a, b: f"({a}{b})", ["x", ("y", {"k": "z"})]) == "((xy)z)"
    assert tree.reduce(operator.add, None, 5) == 5
    assert tree.reduce(lambda a, b: (a, b), [1], None) == (None, 1)
    with pytest.raises(TreeError, match="initializer"):
        tree.reduce(operator.add, [None, ()])


def test_reduce_associative():
    letters = [*"abcdefg"]
    for count in range(8):
        assert tree.reduce_associative(operator.add, letters[:count], identity="") == "".join(letters[:count])
    depth = tree.reduce_associative(lambda a, b: max(a, b) + 1, {"x": [0] * 5, "y": (0, 0, 0)})
    assert depth == 3
    assert tree.reduce_associative(operator.add, [(1, 2), (3,)], is_leaf=lambda node: isinstance(node, tuple)) == (1, 2, 3)
    with pytest.raises(TreeError, match="needs an identity"):
        tree.reduce_associative(operator.add, [None])


@pytest.mark.parametrize("t", TREES, ids=str)
def test_children_of_structures(t):
    jax = pytest.importorskip("jax")
    ours, theirs = tree.structure(t), jax.tree.structure(t)
    assert tree_util.treedef_is_leaf(ours) == jax.tree_util.treedef_is_leaf(theirs)
    children = tree_util.treedef_children(ours)
    assert [c.num_leaves for c in children] == [c.num_leaves for c in jax.tree_util.treedef_children(theirs)]
    if isinstance(t, tuple) and not hasattr(t, "_fields"):
        assert tree_util.treedef_tuple(children) == ours
    assert tree_util.all_leaves([t]) == jax.tree_util.all_leaves([t])
    assert tree_util.all_leaves(tree.leaves(t))
    assert tree_util.all_leaves([t], is_leaf=lambda node: node is t)


def test_unflatten_counts_leaves():
    for wrong in ([1], [1, 2, 3]):
        with pytest.raises(TreeError, match=f"has 2 leaves, got {len(wrong)}"):
            tree.unflatten(tree.structure([0, 0]), wrong)


def test_transpose():
    jax = pytest.importorskip("jax")
    t = [{"a": 1, "b": (2, 3)}, {"a": 4, "b": (5, 6)}]
    got = tree.transpose(tree.structure([0, 0]), tree.structure(t[0]), t)
    assert got == jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure(t[0]), t) == {"a": [1, 4], "b": ([2, 5], [3, 6])}
    assert tree.transpose(tree.structure([0, 0]), None, t) == got
    with pytest.raises(TreeError, match="inner tree"):
        tree.transpose(tree.structure([0, 0]), None, [{"a": 1}, {"b": 1}])
    with pytest.raises(TreeError, match="inner_treedef"):
        tree.transpose(tree.structure([]), None, [])


def test_broadcast_prefix():
    full = ({"a": 1, "b": 2}, [3, 4], None)
    assert tree.broadcast_prefix(({"a": 5, "b": 6}, 7, None), full) == [5, 6, 7, 7]
    assert tree.broadcast_prefix((None, 7, None), full, is_leaf=is_none) == [None, None, 7, 7]
    assert tree.broadcast((1, 2, 3), full) == ({"a": 1, "b": 1}, [2, 2], None)
    with pytest.raises(TreeError, match=r"at \[0\]: expected None, got a dict with keys"):
        tree.broadcast_prefix((None, 7, None), full)
    with pytest.raises(TreeError, match="expected a tuple of 2, got a tuple of 3"):
        tree.broadcast_prefix((0, 1), full)


def test_keys():
    path = (tree.DictKey("a"), tree.SequenceKey(0), tree.GetAttrKey("weight"), tree.FlattenedIndexKey(2))
    assert tree.keystr(path) == "['a'][0].weight[<flat index 2>]"
    assert tree.keystr(path, simple=True, separator="/") == "a/0/weight/2"
    assert pickle.loads(pickle.dumps(path)) == path
    assert len({*path, tree.DictKey("a")}) == 4


class Plain:
    """A node that names no keys."""

    def __init__(self, *children):
        self.children = children


tree.register_node(Plain, lambda p: (p.children, len(p.children)), lambda aux, children: Plain(*children))


def test_register_node():
    t = Plain(1, [2, 3])
    assert tree.leaves(t) == [1, 2, 3]
    assert isinstance(tree.map(operator.neg, t), Plain)
    assert [tree.keystr(path) for path, _ in tree.leaves_with_path(t)] == ["[<flat index 0>]", "[<flat index 1>][0]", "[<flat index 1>][1]"]
    with pytest.raises(TreeError, match="one already"):
        tree.register_pytree_node(Plain, lambda p: ((), None), lambda aux, children: Plain())
    with pytest.raises(TreeError, match="one already"):
        tree.register_node(list, lambda p: (p, None), lambda aux, children: list(children))
    with pytest.raises(TreeError, match="class"):
        tree.register_node("Plain", lambda p: ((), None), lambda aux, children: None)


def test_static_data_belongs_to_the_structure():
    assert tree.structure(Plain(1, 2)) != tree.structure(Plain(1))

    @tree.register_static
    @dataclasses.dataclass(frozen=True)
    class Mode:
        name: str

    assert tree.leaves([Mode("a"), 1]) == [1]
    assert tree.structure(Mode("a")) == tree.structure(Mode("a")) != tree.structure(Mode("b"))
    with pytest.raises(TreeError, match=r"Mode.*'a'.*Mode.*'b'"):
        tree.map(lambda x, y: x, [Mode("a")], [Mode("b")])


def test_trees_of_equal_structures_keep_their_own_static_data(monkeypatch):
    """JAX's mode orders dictionaries by their keys, and looks up the ordered structure by equality."""

    class Label:
        def __init__(self, text):
            self.text = text

        def __eq__(self, other):
            return isinstance(other, Label)

        def __hash__(self):
            return 0

    class Labelled:
        def __init__(self, value, label):
            self.value, self.label = value, label

    tree.register_node(Labelled, lambda node: ((node.value,), (Label(node.label),)), lambda aux, kids: Labelled(*kids, aux[0].text))
    monkeypatch.setattr(settings, "sorted_dicts", True)
    for text in ("a", "b"):
        value = Labelled({"y": 1, "x": 2}, text)
        for copy in (
            tree.map(lambda x: x, value),
            tree.structure(value).unflatten([1, 2]),
            tree.map(lambda x: x, {"v": value, "a": 0})["v"],
            tree_util.tree_map_with_path(lambda _, x: x, value),
        ):
            assert copy.label == text
            assert [*copy.value] == ["x", "y"]


def test_register_with_keys_and_class():
    class Keyed:
        def __init__(self, a, b):
            self.a, self.b = a, b

    keys = tree.GetAttrKey("a"), tree.GetAttrKey("b")
    tree.register_pytree_with_keys(Keyed, lambda n: (zip(keys, (n.a, n.b), strict=True), None), lambda aux, kids: Keyed(*kids))
    assert [tree.keystr(path) for path, _ in tree.leaves_with_path({"k": Keyed(1, (2,))})] == ["['k'].a", "['k'].b[0]"]

    class Either(Keyed):
        pass

    tree.register_pytree_node(
        nodetype=Either,
        flatten_func=lambda n: ((n.a, n.b), None),
        unflatten_func=lambda aux, kids: Either(*kids),
        flatten_with_keys_func=lambda n: (zip(keys, (n.a, n.b), strict=True), None),
    )
    assert [tree.keystr(path) for path, _ in tree.leaves_with_path(Either(1, (2,)))] == [".a", ".b[0]"]

    class Broken:
        def tree_flatten(self):
            return [1]

    tree.register_node(Broken, Broken.tree_flatten, lambda aux, kids: Broken())
    with pytest.raises(TreeError, match="flatten function of Broken must return a pair"):
        tree.leaves(Broken())


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    weight: object
    bias: object
    name: str = dataclasses.field(default="layer", metadata={"static": True})


def test_register_dataclass():
    layer = Layer([1, 2], None, "first")
    leaves, treedef = tree.flatten(layer)
    assert leaves == [1, 2]
    assert tree.unflatten(treedef, [3, 4]) == Layer([3, 4], None, "first")
    assert tree.structure(Layer([0, 0], None, "second")) != treedef
    assert [tree.keystr(path) for path, _ in tree.leaves_with_path({"l": layer})] == ["['l'].weight[0]", "['l'].weight[1]"]


def test_register_dataclass_fields():
    @functools.partial(tree.register_dataclass, data_fields=["a"], meta_fields=["b"], drop_fields=["c"])
    @dataclasses.dataclass
    class Explicit:
        a: int
        b: int
        c: int = 9

    assert tree.map(operator.neg, Explicit(1, 2, 3)) == Explicit(-1, 2, 9)

    class Bare:
        def __init__(self, x, y):
            self.x, self.y = x, y

    tree.register_dataclass(Bare, ["x"], ["y"])
    assert tree.leaves(Bare(1, 2)) == [1]


@pytest.mark.parametrize(
    ("data", "meta", "message"),
    [(["a"], [], "exactly once"), (["a", "b"], ["b"], "exactly once"), (["a", "b", "z"], [], "exactly once"), (["a"], None, "neither")],
)
def test_register_dataclass_refuses(data, meta, message):
    @dataclasses.dataclass
    class Two:
        a: int
        b: int

    with pytest.raises(TreeError, match=message):
        tree.register_dataclass(Two, data, meta)


def test_register_dataclass_needs_fields_of_other_classes():
    with pytest.raises(TreeError, match="not a dataclass"):
        tree.register_dataclass(type("Other", (), {}))


def test_partial():
    add = tree.Partial(operator.add, 1)
    assert tree.leaves(add) == [1]
    assert tree.map(lambda x: x * 10, add)(2) == 12
    assert tree.structure(add) == tree.structure(tree.Partial(operator.add, 5)) != tree.structure(tree.Partial(operator.mul, 5))
    assert tree.Partial(tree.Partial(operator.sub, 10), 3)() == 7


def test_partial_of_a_plain_partial_keeps_it_static():
    inner = functools.partial(operator.sub, 10)
    p = tree.Partial(inner, 3)
    assert (p(), tree.leaves(p)) == (7, [3])
    assert tree.structure(p) == tree.structure(tree.Partial(inner, 4))
    assert p.func == inner == p.func == tree.Partial(inner, 4).func != functools.partial(inner.func)
    assert tree.map(lambda x: x + 1, p)() == 6


def test_jaxs_longer_names():
    jax = pytest.importorskip("jax")
    for name in (n for n in vars(tree_util) if n.startswith("tree_")):
        assert callable(getattr(jax.tree_util, name))
    assert tree_util.tree_map(operator.neg, {"a": [1]}) == {"a": [-1]}
    assert tree_util.tree_leaves((1, 2)) == tree.leaves((1, 2))


@pytest.mark.parametrize("t", TREES, ids=str)
@pytest.mark.parametrize("depth", [0, 1, 2, 9])
def test_paths_decide_what_is_a_leaf(t, depth):
    jax = pytest.importorskip("jax")

    def is_leaf(path, node):
        return len(path) == depth or node == {"b": 3, "a": 4}

    ours, treedef = tree.flatten_with_path(t, is_leaf, is_leaf_takes_path=True)
    theirs = jax.tree.leaves_with_path(t, is_leaf, is_leaf_takes_path=True)
    assert [(tree.keystr(path), leaf) for path, leaf in ours] == [(jax.tree_util.keystr(path), leaf) for path, leaf in theirs]
    assert tree.leaves_with_path(t, is_leaf, is_leaf_takes_path=True) == ours
    assert tree.unflatten(treedef, [leaf for _, leaf in ours]) == t
    assert tree.map_with_path(lambda path, x: x, t, is_leaf=is_leaf, is_leaf_takes_path=True) == t


def nested(levels: int) -> Any:
    result: Any = 1.0
    for number in range(levels):
        result = [result] if number % 2 else {"a": result}
    return result


def cyclic(kind: str) -> Any:
    container: Any = {"a": 1.0} if kind == "dict" else [1.0]
    if kind == "dict":
        container["b"] = container
    else:
        container.append((container,))
    return container


ENDLESS = {
    "5,000 levels": lambda: nested(5000),
    "100,000 levels": lambda: nested(100_000),
    "list": lambda: cyclic("list"),
    "dict": lambda: cyclic("dict"),
}
USERS: dict[str, Callable[[Any], Any]] = {
    "leaves": tree.leaves,
    "structure": tree.structure,
    "flatten": tree.flatten,
    "map": lambda t: tree.map(lambda x: x, t),
    "with a path": tree.leaves_with_path,
    "with a leaf": lambda t: tree.leaves(t, is_leaf=lambda x: x is None),
    "argument": lambda t: vf.jit(lambda x: 1.0)(t),
    "result": lambda t: vf.jit(lambda: t)(),
    "gradient": lambda t: vf.grad(lambda x: 1.0)(t),
    "carry": lambda t: vf.lax.scan(lambda c, x: (c, x), t, None, 2),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("endless", ENDLESS)
def test_trees_without_end_are_typed_errors(endless: str, user: str) -> None:
    with pytest.raises(TreeError, match="a tree contains itself, or has more levels"):
        USERS[user](ENDLESS[endless]())


def test_an_endless_recursion_of_a_users_function_is_its_own() -> None:
    def is_leaf(node: Any) -> bool:
        return is_leaf(node)

    with pytest.raises(RecursionError):
        tree.leaves([1], is_leaf=is_leaf)


def test_a_namedtuple_is_registered_without_a_warning() -> None:
    class Moments(NamedTuple):
        mean: float
        name: str

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree.register_pytree_node(Moments, lambda node: ([node.mean], node.name), lambda name, children: Moments(children[0], name))
    assert tree.map(lambda x: 2 * x, Moments(1.5, "a")) == Moments(3.0, "a")
