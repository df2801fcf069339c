"""Trees of arrays and other objects: their selection, replacement and transforms."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, tree
from volta_fn.errors import ArgumentError, TreeError, UnhashableStaticError

MODEL = nn.MLP.init(vf.random.key(0), 3, 2, 4, 2)
MIXED = {"w": vf.numpy.ones(2), "n": vf.numpy.arange(2), "host": np.ones(3), "rate": 0.5, "name": "dense", "none": None}


def test_kinds_of_leaves():
    kinds = [vf.numpy.ones(1), vf.numpy.arange(1), np.ones(1), np.float32(1), np.arange(1), 1.0, 1, True, 1j, "text", None]
    tables = {
        nn.is_array: "11000000000",
        nn.is_inexact_array: "10000000000",
        nn.is_array_like: "11111111100",
        nn.is_inexact_array_like: "10110100100",
    }
    for predicate, expected in tables.items():
        assert "".join(str(int(predicate(x))) for x in kinds) == expected
    assert vf.jit(lambda x: x if nn.is_array(x) and nn.is_inexact_array(x) else None)(1.0) == 1.0


@pytest.mark.parametrize(
    "spec", [nn.is_array, True, False, {"w": True, "n": nn.is_inexact_array, "host": 0, "rate": callable, "name": 1, "none": None}]
)
def test_partition_and_combine_are_inverse(spec):
    chosen, others = nn.partition(MIXED, spec)
    assert nn.tree_equal(nn.combine(chosen, others), MIXED) and nn.tree_equal(nn.combine(others, chosen), MIXED)
    assert nn.tree_equal(nn.filter(MIXED, spec), chosen) and nn.tree_equal(nn.filter(MIXED, spec, inverse=True), others)
    assert len(tree.leaves(chosen)) + len(tree.leaves(others)) == 5


def test_prefixes_and_replacements():
    layers = nn.filter(MODEL, nn.tree_at(lambda m: m.layers, tree.map(lambda _: False, MODEL), (True, False, False)))
    assert layers.layers[0].weight is MODEL.layers[0].weight and layers.layers[1].weight is None
    assert nn.filter({"a": [1, 2], "b": 3}, {"a": True, "b": False}, replace="gone") == {"a": [1, 2], "b": "gone"}
    assert nn.filter([(1, 2), 3], lambda x: isinstance(x, tuple), is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), None]
    with pytest.raises(TreeError):
        nn.partition({"a": 1}, {"b": True})
    with pytest.raises(TreeError):
        nn.combine({"a": 1}, {"b": None})


def test_equal_trees():
    assert nn.tree_equal(MODEL, tree.map(lambda x: x + 0, MODEL), MODEL)
    for other in ({"a": 1}, [vf.numpy.ones(2)], [vf.numpy.ones(3, "float16")], [vf.numpy.zeros(3)], [1.0], ["a"]):
        assert not nn.tree_equal([vf.numpy.ones(3)], other)
    assert not nn.tree_equal([1], [1.0]) and nn.tree_equal([])


def test_nodes_are_replaced():
    weight = vf.numpy.zeros((3, 4))
    changed = nn.tree_at(lambda m: m.layers[0].weight, MODEL, weight)
    assert changed.layers[0].weight is weight and changed.layers[1].weight is MODEL.layers[1].weight
    assert MODEL.layers[0].weight is not weight
    layer = nn.Linear.init(vf.random.key(1), 4, 4)
    assert nn.tree_at(lambda m: m.layers[1], MODEL, layer).layers[1] is layer
    biases = nn.tree_at(lambda m: [layer.bias for layer in m.layers], MODEL, replace_fn=lambda b: b + 1)
    np.testing.assert_allclose(biases.layers[2].bias, MODEL.layers[2].bias + 1)
    assert nn.tree_at(lambda m: m, MODEL, 5) == 5
    whole = nn.tree_at(lambda t: t[0], [(1, 2), 3], replace_fn=lambda pair: pair[::-1])
    assert whole == [(2, 1), 3]
    shared = [layer, layer]
    assert nn.tree_at(lambda t: t[1].bias, shared, None)[0].bias is layer.bias


def test_none_is_replaced_if_it_is_a_leaf():
    layer = nn.Linear.init(vf.random.key(0), 2, 2, bias=False)
    bias = vf.numpy.ones(2)
    assert nn.tree_at(lambda m: m.bias, layer, bias, is_leaf=lambda x: x is None).bias is bias
    with pytest.raises(ArgumentError, match="None is a node"):
        nn.tree_at(lambda m: m.bias, layer, bias)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.tree_at(lambda t: t[0], [1, 2]),
        lambda: nn.tree_at(lambda t: t[0], [1, 2], 3, replace_fn=lambda x: x),
        lambda: nn.tree_at(lambda t: (t[0], t[1]), [1, 2], (3,)),
        lambda: nn.tree_at(lambda t: 7, [1, 2], 3),
        lambda: nn.tree_at(lambda t: (t[0], t[0][0]), [(1, 2), 3], (4, 5)),
        lambda: nn.tree_at(lambda t: (t[0], t[0]), [1, 2], (4, 5)),
    ],
)
def test_wrong_replacements_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


def test_compiled_functions_take_any_leaves():
    traced = []

    @nn.filter_jit
    def call(model, x, options, *, scale):
        traced.append(options["mode"])
        y = scale * model["net"](x)
        return (y if options["mode"] == "plain" else -y), {"mode": options["mode"], "host": np.ones(2)[0], "none": None}

    model = {"net": MODEL, "label": "small"}
    for mode in ("plain", "plain", "minus"):
        y, info = call(model, np.ones((2, 3), "float32"), {"mode": mode}, scale=2.0)
        np.testing.assert_allclose(y, (2 if mode == "plain" else -2) * MODEL(np.ones((2, 3), "float32")), rtol=1e-6)
        assert info == {"mode": mode, "host": 1.0, "none": None}
    assert traced == ["plain", "minus"]
    np.testing.assert_allclose(nn.filter_jit(MODEL)(vf.numpy.ones(3)), MODEL(vf.numpy.ones(3)), rtol=1e-6)
    with pytest.raises(UnhashableStaticError):
        call(model, np.ones((2, 3)), {"mode": bytearray(b"plain")}, scale=1.0)


def test_gradients_of_floating_arrays_only():
    def loss(values, x, power=2):
        total = vf.numpy.sum(values["w"] * x) ** power * values["rate"] + vf.numpy.sum(values["n"])
        return total, values["name"]

    value, grads = nn.filter_value_and_grad(loss, has_aux=True)(MIXED, vf.numpy.array([1.0, 2.0]), power=2)
    assert (float(value[0]), value[1]) == (5.5, "dense")
    assert {name for name, grad in grads.items() if grad is not None} == {"w"}
    np.testing.assert_allclose(grads["w"], [3.0, 6.0])
    again, aux = nn.filter_grad(loss, has_aux=True)(MIXED, vf.numpy.array([1.0, 2.0]))
    assert aux == "dense" and nn.tree_equal(again, grads)
    np.testing.assert_allclose(nn.filter_grad(lambda x: x**2)(vf.numpy.array(3.0)), 6.0)
    step = nn.filter_jit(nn.filter_grad(lambda m, x: vf.numpy.sum(m(x))))
    assert tree.structure(step(MODEL, vf.numpy.ones((1, 3)))) == tree.structure(MODEL)
