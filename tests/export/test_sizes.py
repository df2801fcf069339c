"""Sizes that are no polynomials, in exported functions."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import export
from volta_fn import numpy as vnp
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import Dimension, max_dim, min_dim
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, ExportError, ShapeError
from volta_fn.export.values import dimension_of

draw = np.random.default_rng(7)


def exported(function: Callable[..., Any], *texts: str, order: int = 0, constraints: Any = ()) -> export.Exported:
    """Export a function of float32 arrays for these shapes, by way of a file."""
    scope = export.SymbolicScope(constraints)
    specs = [vf.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), "float32") for text in texts]
    return export.deserialize(export.export(vf.jit(function))(*specs).serialize(vjp_order=order))


CASES: list[tuple[Callable[..., Any], str, list[tuple[int, ...]]]] = [
    (lambda x: x[: x.shape[0] // 2] * x.shape[0], "b, 3", [(1, 3), (2, 3), (9, 3)]),
    (lambda x: x[::2].sum() / (x.shape[0] // 2 + 1), "b", [(1,), (6,), (7,)]),
    (lambda x: vf.lax.reduce_window(x, -np.inf, vf.lax.max, (3,), (2,), "SAME"), "b", [(1,), (5,), (8,)]),
    (lambda x: vf.lax.reduce_window(x, 0.0, vf.lax.add, (4,), (2,), "VALID"), "b", [(2,), (4,), (9,)]),
    (lambda x: vf.lax.conv_general_dilated(x, vnp.ones((1, 1, 3)), (2,), "SAME"), "1, 1, b", [(1, 1, 1), (1, 1, 8)]),
    (lambda x: vnp.ones(((x.shape[0] + 13) // x.shape[0], (x.shape[0] + 13) % x.shape[0])) * x.sum(), "b", [(1,), (5,), (14,)]),
    (lambda x: x[:4], "b", [(1,), (3,), (9,)]),
    (lambda x: vnp.repeat(x, x.shape[0]), "b", [(1,), (4,)]),
    (lambda x: vnp.linalg.inv(x + 3 * vnp.eye(x.shape[0])), "b, b", [(1, 1), (3, 3)]),
    (lambda x: vnp.linalg.svd(x, compute_uv=False), "m, n", [(2, 3), (3, 2)]),
    (lambda x: x[vnp.tril_indices(x.shape[0])], "b, b", [(1, 1), (4, 4)]),
    (lambda x: x[vnp.triu_indices(x.shape[0], 1)], "b, b", [(2, 2), (4, 4)]),
    (lambda x: x.sum() * vnp.arange(0, 10, x.shape[0]), "b", [(1,), (3,), (11,)]),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_are_those_of_the_function(number: int) -> None:
    function, text, shapes = CASES[number]
    loaded = exported(function, text)
    for shape in shapes:
        x = draw.random(shape).astype("float32")
        np.testing.assert_allclose(loaded.call(x), function(vnp.asarray(x)), rtol=1e-5)


def test_slices_of_symbolic_bounds_and_steps() -> None:
    for start, stop, step in itertools.product([None, -2, "b", 1], [None, -4, 4, "-b"], [2, -2, "b", "-b", -1]):

        def function(x: Any, bounds: Any = (start, stop, step)) -> Any:
            names = {"b": x.shape[0] - 3, "-b": 3 - x.shape[0]}
            return x[slice(*[names.get(bound, bound) for bound in bounds])]

        spec = vf.ShapeDtypeStruct(export.symbolic_shape("b + 3"), "float32")
        loaded = export.export(vf.jit(function))(spec)
        for size in (4, 6, 13):
            x = draw.random(size).astype("float32")
            np.testing.assert_array_equal(loaded.call(x), function(x))


def test_derivatives_of_sizes_that_are_quotients() -> None:
    loaded = exported(lambda x: (x[::2] ** 2).sum(), "b", order=1)
    x = np.arange(5, dtype="float32")
    np.testing.assert_array_equal(vf.grad(loaded.call)(x), [0, 0, 4, 0, 8])


def test_shapes_of_arguments_may_be_quotients() -> None:
    loaded = exported(lambda x: 2 * x, "b + 1, floordiv(b, 2)")
    assert [str(d) for d in loaded.out_avals[0].shape] == ["b + 1", "floordiv(b, 2)"]
    assert loaded.call(vnp.ones((6, 2))).shape == (6, 2)
    with pytest.raises(ShapeError):
        loaded.call(vnp.ones((6, 3)))


def test_programs_that_are_others_for_small_sizes_are_refused() -> None:
    with pytest.raises(ExportError, match="types"):
        exported(lambda x: x if x.shape[0] > 5 else x[:1], "b")
    assert exported(lambda x: x if x.shape[0] > 5 else x[:1], "b", constraints=["b >= 6"]).call(vnp.ones(7)).shape == (7,)


def test_relations_with_symbolic_divisors_and_small_sizes() -> None:
    loaded = exported(lambda x, y: x.sum() + y.sum(), "a", "b", constraints=["a*b <= 12", "mod(a, b) == 0"])
    assert float(loaded.call(np.ones(4, "float32"), np.ones(2, "float32"))) == 6
    with pytest.raises(ShapeError, match="mod"):
        loaded.call(np.ones(3, "float32"), np.ones(2, "float32"))
    with pytest.raises(ArgumentError, match="variable 'c'.*not appearing in the shapes"):
        exported(lambda x: x, "a", constraints=["a >= c"])
    assert exported(lambda x, y: x + y, "a", "b", constraints=["a == b"]).call(np.ones(3, "float32"), np.ones(3, "float32")).shape == (3,)


def test_damaged_operations_of_sizes_are_refused() -> None:
    assert str(dimension_of([["1", [[["floordiv", [["1", [["b", 1]]]], [["2", []]]], 1]]]])) == "floordiv(b, 2)"
    with pytest.raises(CorruptFileError, match="no operation"):
        dimension_of([["1", [[["system", [], []], 1]]]])
    nested: Any = [["1", [["b", 1]]]]
    for _ in range(40):
        nested = [["1", [[["mod", nested, [["7", []]]], 1]]]]
    with pytest.raises(CorruptFileError, match="levels"):
        dimension_of(nested)


def test_the_version_of_a_file_is_the_least_that_reads_it() -> None:
    spec = vf.ShapeDtypeStruct(export.symbolic_shape("b"), "float32")
    plain = export.export(vf.jit(lambda x: x + 1))(spec).serialize()
    strided = export.export(vf.jit(lambda x: x[::2]))(spec).serialize()
    assert b'"volta_fn.export":"1"' in bytes(plain)
    assert b'"volta_fn.export":"2"' in bytes(strided)


def test_keys_pass_through_files() -> None:
    for implementation in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = vf.random.key(42, impl=implementation)
        loaded = export.deserialize(export.export(vf.jit(lambda key: key))(key).serialize())
        result = loaded.call(key)
        assert result.dtype == key.dtype
        assert bool(result == key)


def test_ordered_dictionaries_keep_their_class_and_order() -> None:
    value = collections.OrderedDict([("b", 1.0), ("a", 2.0)])
    result = export.deserialize(export.export(vf.jit(lambda d: d))(value).serialize()).call(value)
    assert type(result) is collections.OrderedDict
    assert [*result] == ["b", "a"]


def test_nodes_without_a_function_for_children_use_that_of_the_pytree() -> None:
    @vf.tree_util.register_pytree_node_class
    class Named:
        def __init__(self, value: Any, name: str) -> None:
            self.value, self.name = value, name

        def tree_flatten(self) -> Any:
            return (self.value,), self.name

        @classmethod
        def tree_unflatten(cls, name: str, children: Any) -> Named:
            return cls(*children, name)

    options: dict[str, Any] = {"serialize_auxdata": lambda name: name.encode(), "deserialize_auxdata": lambda data: data.decode()}
    export.register_pytree_node_serialization(Named, serialized_name="test_sizes.Named", **options)
    loaded = export.deserialize(export.export(vf.jit(lambda n: n))(Named(1.0, "x")).serialize())
    result = loaded.call(Named(3.0, "x"))
    assert (type(result), result.name, float(result.value)) == (Named, "x", 3.0)
    with pytest.raises(ArgumentError, match="no pytree"):
        export.register_pytree_node_serialization(type("Other", (), {}), serialized_name="test_sizes.Other", **options)
    with pytest.raises(ArgumentError, match="namedtuple"):
        export.register_namedtuple_serialization(str, serialized_name="test_sizes.str")


def test_a_function_that_calls_an_exported_one_has_its_sizes() -> None:
    inner = exported(lambda x: vnp.ones((x.shape[0] // 2, (x.shape[0] + 13) % x.shape[0], max(x.shape))) * x.sum(), "b")
    outer = exported(inner.call, "2*a + 1")
    assert str(outer.out_avals[0].shape) == "(a, mod(2*a + 14, 2*a + 1), 2*a + 1)"
    for size in (1, 2, 5, 14):
        x = np.arange(2 * size + 1, dtype="float32")
        assert np.array_equal(outer.call(x), inner.call(x))
        assert outer.call(x).shape == (size, (2 * size + 14) % (2 * size + 1), 2 * size + 1)
    constrained = exported(lambda x: x[: x.shape[0] // 3], "b", constraints=["b >= 5"])
    assert exported(constrained.call, "a", constraints=["a >= 5"]).call(np.ones(7, "float32")).shape == (2,)
    with pytest.raises(ExportError, match="'a' >= '5' of symbolic sizes is inconclusive"):
        exported(constrained.call, "a")


def test_substitution_is_evaluation() -> None:
    b, c = export.symbolic_shape("b, c")
    for size in (3 * b * b + c // 2, (b + c) % 3, max_dim(b, c - 4) * 2, min_dim(7, b // (c + 1)), (b * (b - 1)) // 2):
        inner = size.substitute({"b": 2 * c + 1, "c": c})
        for number in range(1, 9):
            assert (inner if isinstance(inner, int) else inner.evaluate({"c": number})) == size.evaluate({"b": 2 * number + 1, "c": number})
            assert size.substitute({"b": 2 * number + 1, "c": number}) == size.evaluate({"b": 2 * number + 1, "c": number})


def test_constructors_of_nodes_may_look_at_their_children() -> None:
    @vf.tree_util.register_pytree_node_class
    class Described:
        def __init__(self, values: Any, names: tuple[str, ...]) -> None:
            assert values.shape == (len(names),)
            self.values, self.names = values, names

        def tree_flatten(self) -> Any:
            return (self.values,), self.names

        @classmethod
        def tree_unflatten(cls, names: tuple[str, ...], children: Any) -> Described:
            return cls(*children, names)

    export.register_pytree_node_serialization(
        Described,
        serialized_name="described",
        serialize_auxdata=lambda names: "/".join(names).encode(),
        deserialize_auxdata=lambda data: tuple(data.decode().split("/")),
    )
    value = [Described(np.arange(2.0, dtype="float32"), ("x", "y")), Described(np.arange(3.0, dtype="float32"), ("x", "y", "z"))]
    loaded = export.deserialize(export.export(vf.jit(lambda nodes: nodes[::-1]))(value).serialize())
    assert loaded.out_tree == vf.tree.structure(value[::-1])
    assert [node.names for node in loaded.call(value)] == [("x", "y", "z"), ("x", "y")]


def test_dictionaries_with_other_keys_are_exported_and_not_saved() -> None:
    value = {(0, 1): np.float32(1), (1, 2): np.float32(2)}
    function = export.export(vf.jit(lambda d: {"sum": d[0, 1] + d[1, 2]}))(value)
    assert float(function.call(value)["sum"]) == 3
    with pytest.raises(ArgumentTypeError, match=r"\(0, 1\).*string keys"):
        function.serialize()
    assert export.deserialize(export.export(vf.jit(lambda d: d[3]))({3: 1.0}).serialize()).call({3: 2.0}) == 2


def test_the_calling_convention_must_be_supported() -> None:
    for version, supported in ((8, False), (9, True), (10, True), (11, False)):
        with vf.config.jax_export_calling_convention_version(version):
            if supported:
                assert export.export(vf.jit(lambda x: x + 1))(1.0).call(1.0) == 2
            else:
                with pytest.raises(ArgumentError, match=f"version {version} is outside"):
                    export.export(vf.jit(lambda x: x + 1))


def test_symbolic_sizes_of_several_scopes_are_types_of_their_own() -> None:
    """A size without a scope is equal to that of every scope; its type, while it lives, must not stand for theirs."""
    without = ShapedArray((Dimension.variable("a"),), np.dtype("float32"))
    for constraint in ("a >= 5", "a >= 7"):
        scope = export.SymbolicScope([constraint])
        shape = export.symbolic_shape("a", scope=scope)
        aval = ShapedArray(shape, np.dtype("float32"))
        assert aval is not without and aval.shape[0].scope is scope and aval is ShapedArray(shape, np.dtype("float32"))
