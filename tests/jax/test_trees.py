"""Trees in JAX's mode are JAX's, down to the order of dictionaries."""

from __future__ import annotations

import pytest

from tests.jax.programs import output_of, output_of_jax

PROGRAM = """
import collections
import jax, jax.numpy as jnp

class Sized:
    def __init__(self, tree, name):
        self.tree, self.name = tree, name

class Unhashable:
    def __init__(self, value):
        self.value = value
    __hash__ = None
    def __eq__(self, other):
        raise ValueError("is not compared")

jax.tree_util.register_pytree_node(Sized, lambda s: ((s.tree,), s.name), lambda name, children: Sized(*children, name))
ordered = collections.OrderedDict(z=4.0, y=5.0), collections.defaultdict(list, {"e": 6.0, "d": 7.0})
tree = {"b": 1.0, "a": {3: 2.0, 1: [3.0, None]}, "c": ordered}

def keys(tree):
    if isinstance(tree, Sized):
        return keys(tree.tree)
    if isinstance(tree, dict):
        return [(key, keys(value)) for key, value in tree.items()]
    return [keys(value) for value in tree] if isinstance(tree, (list, tuple)) else "*"

leaves, treedef = jax.tree.flatten(tree)
print(keys(jax.tree.unflatten(treedef, leaves)))
print(keys(jax.tree.map(lambda x: x + 1, tree)))
print(keys(jax.tree.map(lambda x, y: x + y, tree, tree)))
print(keys(jax.tree_util.tree_map_with_path(lambda path, x: x, tree)))
print(keys(jax.tree.unflatten(jax.tree.structure(tree), leaves)))
print(keys(jax.tree.map(lambda x: x, Sized(tree, "name"))))
print(keys(jax.tree.map(lambda x: x, Sized(tree, Unhashable(1)))))
print(keys(jax.jit(lambda t: {"y": t, "x": t})(tree)))
print(keys(jax.grad(lambda t: sum(jax.tree.leaves(t)))(tree)))
print(keys(jax.vmap(lambda t: t)(jax.tree.map(lambda x: jnp.ones(2), tree))))
print(keys(jax.eval_shape(lambda t: {"y": t, "x": t}, tree)))
order = []
jax.jit(lambda t: order.append(keys(t)))(tree)
print(order)
print(keys(jax.lax.scan(lambda c, x: (c, {"y": x, "x": c}), tree, jnp.arange(2))))
print(keys(jax.tree.transpose(treedef, jax.tree.structure({"y": 0, "x": 0}), jax.tree.map(lambda x: {"y": x, "x": x}, tree))))
print(keys({"b": 1, "a": 2} | jax.tree.map(lambda x: x, {"b": 1, "a": 2})))
"""


def test_the_order_of_dictionaries() -> None:
    pytest.importorskip("jax")
    assert output_of(PROGRAM) == output_of_jax(PROGRAM)
