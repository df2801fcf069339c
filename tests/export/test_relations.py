"""Constraints between the sizes of exported functions."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import export
from volta_fn.errors import ArgumentError, InconclusiveDimensionOperation, ShapeError
from volta_fn.export.symbolic import Relation, satisfying


def test_a_function_is_exported_for_sizes_that_satisfy_its_constraints() -> None:
    a, b = export.symbolic_shape("a, b", constraints=("a >= b", "b >= 16"))
    exported = export.export(vf.jit(lambda x: x[: x.shape[1], :16]))(vf.ShapeDtypeStruct((a, b), "float32"))
    loaded = export.deserialize(exported.serialize())
    x = np.arange(20.0 * 18, dtype="float32").reshape(20, 18)
    np.testing.assert_array_equal(loaded.call(x), x[:18, :16])
    with pytest.raises(ShapeError, match="a >= b"):
        loaded.call(np.ones((17, 18), "float32"))


def test_an_equation_between_sizes() -> None:
    a, b, c = export.symbolic_shape("a, b, c", constraints=("a * b == c + 2",))
    exported = export.export(vf.jit(lambda x, y: vnp.concatenate([y, y[:2]]).reshape(x.shape) + x))(
        vf.ShapeDtypeStruct((a, b), "float32"), vf.ShapeDtypeStruct((c,), "float32")
    )
    assert exported.call(vnp.ones((3, 4)), vnp.ones(10)).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"a \* b == c \+ 2"):
        exported.call(vnp.ones((3, 4)), vnp.ones(11))


@pytest.mark.parametrize(
    "constraints",
    [["t <= 16"], ["t <= 5"], ["t <= 16", "b <= 3", "b >= 1"], ["b <= t"], ["t <= 2*b", "t <= 16"], ["b*t <= 64"], ["mod(t, 2) == 0"]],
)
def test_sizes_for_tracing_are_at_least_two(constraints: list[str]) -> None:
    scope = export.SymbolicScope(constraints)
    for sizes in scope.assignments(["b", "t"], 9):
        assert min(sizes.values()) > 1 or (sizes["b"] == 1 and "b <= 3" in constraints)


def test_one_is_traced_where_few_sizes_are_allowed() -> None:
    assert {s["t"] for s in export.SymbolicScope(["t <= 2"]).assignments(["t"], 6)} == {1, 2}
    assert export.SymbolicScope(["t <= 1"]).assignments(["t"], 2) == [{"t": 1}] * 2
    few = export.SymbolicScope(["b + t <= 4"]).assignments(["b", "t"], 3)
    assert all(s["b"] + s["t"] <= 4 for s in few) and len({tuple(s.items()) for s in few}) == 3


@pytest.mark.parametrize(
    ("text", "sizes", "holds"),
    [
        ("b >= mod(b, 3)", {"b": 2}, True),
        ("a^2 - 1 <= floordiv(c, 2)", {"a": 3, "c": 15}, False),
        ("max(a, c) == min(a, 7)", {"a": 5, "c": 4}, True),
        ("mod(a, c) == 1", {"a": 5, "c": 4}, True),
        ("mod(a, c - 4) == 1", {"a": 5, "c": 4}, False),
    ],
)
def test_expressions(text: str, sizes: dict[str, int], holds: bool) -> None:
    assert Relation(text).holds(sizes) is holds


@pytest.mark.parametrize(
    "text",
    ["a", "a >= b >= c", "a >= f(b, 1)", "a >= b / 2", "a >= mod(b, 0)", "a ^ b >= 1", "a ^ 99 >= 1", "a >= 1.5",
     "a >= b.real", "a >= (lambda: 1)", "a >= " + "(" * 99, "a >= " + "1 + " * 99 + "1", "a >="],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="must compare"):
        Relation(text)


def test_constraints_that_nothing_satisfies() -> None:
    with pytest.raises(ArgumentError, match="only 0"):
        satisfying({"a": [7], "b": [9]}, [Relation("a >= b + 1")], 1)


def test_shardings_are_kept_by_the_names_of_axes() -> None:
    mesh = vf.sharding.AbstractMesh((4,), ("a",))
    x = vf.ShapeDtypeStruct((8, 2), "float32", sharding=vf.NamedSharding(mesh, vf.P("a")))
    loaded = export.deserialize(export.export(vf.jit(lambda x, y: x + y))(x, 1.0).serialize())
    assert loaded.nr_devices == 4
    first, second = loaded.in_shardings_jax(mesh)
    assert (first.spec, second) == (vf.P("a"), None)
    with pytest.raises(ArgumentError, match="exported for axes"):
        loaded.in_shardings_jax(vf.sharding.AbstractMesh((2,), ("a",)))
    assert export.export(vf.jit(lambda x: x))(1.0).nr_devices == 1


def test_bounds_of_sizes_are_public() -> None:
    b, c = vf.export.symbolic_shape("b, c", constraints=["b <= 8", "c >= 3"])
    assert vf.export.symbolic_dim_bounds(b * c) == (3, math.inf) and vf.export.symbolic_dim_bounds(c - b) == (-5, math.inf)
    assert vf.export.symbolic_dim_bounds(np.int64(7)) == (7, 7)
    with pytest.raises(TypeError, match="an integer or a symbolic size, got '3'"):
        vf.export.symbolic_dim_bounds("3")


@pytest.mark.parametrize(
    ("constraint", "decided"),
    [("4*a == b", 5), ("b == 4*a", 5), ("3*b == 2*a", 5), ("a*c == b", 0), ("a + c == b", 1), ("mod(b, 4) == a", 1)],
)
def test_equations_decide_comparisons(constraint: str, decided: int) -> None:
    a, b = vf.export.symbolic_shape("a, b", constraints=[constraint])
    relation = Relation(constraint)
    some = [dict(zip("abc", sizes, strict=True)) for sizes in itertools.product(range(1, 17), repeat=3)]
    allowed = [sizes for sizes in some if relation.holds(sizes)]
    answers = []
    for left, right in [(b, a), (b, 3 * a), (b, 4 * a), (5 * a, b), (9 * a, 2 * b)]:
        try:
            answer = left >= right
        except InconclusiveDimensionOperation:
            continue
        answers.append(answer)
        assert {left.evaluate(sizes) >= right.evaluate(sizes) for sizes in allowed} == {answer}
    assert len(answers) >= decided


@pytest.mark.parametrize(
    ("constraints", "shapes"),
    [
        (["max(a, b) == 4", "a == b"], [(4, 4), (3, 3), (5, 5), (4, 3)]),
        (["a >= 4", "a == b"], [(4, 4), (7, 7), (3, 3)]),
        (["a == b", "a >= 4"], [(4, 4), (3, 3)]),
        (["a == 2*b", "a <= 8"], [(8, 4), (2, 1), (10, 5), (3, 1)]),
        (["mod(a, 3) == 0", "a == b"], [(9, 9), (4, 4)]),
        (["a == b", "mod(a, 3) == 0"], [(9, 9), (4, 4)]),
        (["a <= 8", "a == b + 1"], [(8, 7), (9, 8)]),
        (["a == 4", "b <= a"], [(4, 2), (4, 5), (3, 2)]),
        (["b >= 2*a", "a == 3"], [(3, 6), (3, 5)]),
        (["a == b - 5"], [(1, 6), (0, 5), (2, 6)]),
    ],
)
def test_variables_that_equations_replace_keep_their_constraints(constraints: list[str], shapes: list[tuple[int, int]]) -> None:
    jax = pytest.importorskip("jax")

    def accepted(library: Any) -> list[tuple[int, int]]:
        struct = library.ShapeDtypeStruct(library.export.symbolic_shape("a, b", constraints=constraints), "float32")
        function = library.export.export(library.jit(lambda x: x + 1))(struct).call
        results = []
        for shape in shapes:
            x = np.ones(shape, "float32")
            with contextlib.suppress(ValueError):
                np.testing.assert_array_equal(function(x), x + 1)
                results.append(shape)
        return results

    assert accepted(vf) == accepted(jax)


def test_functions_are_traced_for_sizes_that_satisfy_replaced_variables() -> None:
    a, b = export.symbolic_shape("a, b", constraints=["a >= 16", "a == b"])
    loaded = export.deserialize(export.export(vf.jit(lambda x: x[:16, :16]))(vf.ShapeDtypeStruct((a, b), "float32")).serialize())
    x = np.arange(20.0 * 20, dtype="float32").reshape(20, 20)
    np.testing.assert_array_equal(loaded.call(x), x[:16, :16])
    with pytest.raises(ShapeError, match=r"got \{'b': 15\}: a = 15"):
        loaded.call(x[:15, :15])
    scope = export.SymbolicScope(["a <= 8", "a == b + c"])
    assert all(sizes["a"] == sizes["b"] + sizes["c"] <= 8 for sizes in scope.assignments(["a", "b", "c"], 6))
    assert all(sizes["b"] + sizes["c"] <= 8 for sizes in scope.assignments(["b", "c"], 6))
