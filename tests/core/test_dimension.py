"""Symbolic sizes: arithmetic, order, and programs that are traced for them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax
from volta_fn.core.dimension import Dimension, bounds, max_dim, min_dim, span
from volta_fn.errors import ArgumentError, BroadcastError, ConcretizationError, InconclusiveDimensionOperation, ShapeError
from volta_fn.export import SymbolicScope, symbolic_args_specs, symbolic_shape

A, B = symbolic_shape("a, b", constraints=["a >= 2", "b >= 4"])
SIZES = [{"a": a, "b": b} for a, b in itertools.product((2, 3, 7, 16), (4, 5, 9))]


def struct(*shape: Any, dtype: str = "float32") -> vf.ShapeDtypeStruct:
    return vf.ShapeDtypeStruct(shape, dtype)


def value(size: Any, sizes: dict[str, int]) -> int:
    return int(size.evaluate(sizes)) if isinstance(size, Dimension) else size


EXPRESSIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: 2 * a + 3 * b - 1,
    lambda a, b: (a - b) * (a + b) + a**3,
    lambda a, b: (a + 1) // 2 + (3 * b) // 4,
    lambda a, b: a % 3 + (-b) % 4 - 7 % a,
    lambda a, b: (a * b) // b + (a * a - b * b) // (a - b + 100),
    lambda a, b: a // -2 + b % -3 + 20 // b,
    lambda a, b: divmod(a * b + 5, 4)[0] * 4 + divmod(a * b + 5, 4)[1],
    lambda a, b: max_dim(a, b) - min_dim(2 * a, b + 3),
    lambda a, b: max_dim(a % 5, 2) * min_dim(a, 10),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_arithmetic_is_that_of_numbers_at_all_sizes(expression: Callable[[Any, Any], Any]) -> None:
    symbolic = expression(A, B)
    for sizes in SIZES:
        expected = expression(sizes["a"], sizes["b"])
        assert value(symbolic, sizes) == expected
        lower, upper = bounds(symbolic)
        assert lower <= expected <= upper
    parsed = symbolic_shape(str(symbolic), scope=A.scope)
    assert parsed == (symbolic,)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2 * B * A, "2*a*b"),
        (-2 * A * A * B + B * B, "- 2*a^2*b + b^2"),
        (A - B, "- b + a"),
        (-A + 3, "- a + 3"),
        (3 * A * ((A + 2) % (B + 2)), "3*a*mod(a + 2, b + 2)"),
        ((4 * A) // 2 + (A // 4), "floordiv(a, 4) + 2*a"),
        (max_dim(A, B), "max(a, b)"),
        (A - A + 7, "7"),
    ],
)
def test_sizes_are_printed_as_jax_prints_them(size: Any, text: str) -> None:
    assert str(size) == text


def test_what_is_always_the_same_is_an_int() -> None:
    for size, expected in ((A - A, 0), (2 * A // A, 2), (A % 1, 0), ((2 * A + 1) % 2, 1), (0 * A, 0), (A**0, 1), (A // A, 1)):
        assert type(size) is int
        assert size == expected
    assert (2 * A + 1) // 2 == A
    assert (A * A * B) // A == A * B
    assert len({A, A + 0, B}) == 2


def test_comparisons_are_decided_or_refused() -> None:
    assert A >= 2
    assert B > 3
    assert not A < 2
    assert A + B >= 6
    assert A * B >= 8
    assert 2 * A >= A + 2
    assert A % 3 <= 2
    assert A // 2 <= A
    assert (A + 1) // 2 * 2 >= 2
    assert max_dim(A, B) >= B
    assert min_dim(A, B) <= A
    assert A - min_dim(A, 3) >= 0
    assert A != B
    assert symbolic_shape("a", scope=A.scope)[0] == A
    assert A != 2
    for comparison in (operator.ge, operator.gt, operator.le, operator.lt):
        for left, right in ((A, 3), (A, B), (3, A), (A - B, 0)):
            with pytest.raises(InconclusiveDimensionOperation, match="inconclusive"):
                comparison(left, right)


def test_constraints_between_sizes_decide() -> None:
    a, b, c = symbolic_shape("a, b, c", constraints=["a >= 2*b", "b >= c + 3", "mod(a, 8) == 0", "c <= 100"])
    assert a >= b + c
    assert a - 2 * c >= 6
    assert c < 101
    assert a % 8 == 0
    assert 8 * (a // 8) == a
    assert max_dim(a, c) == a
    (d, e) = symbolic_shape("d, e", constraints=["d == 2*e"])
    assert d == 2 * e
    assert d // 2 == e
    assert symbolic_shape("b", constraints=["b == 4"]) == (4,)


@pytest.mark.parametrize("constraints", [["a >= b", "b >= a + 1"], ["1 >= 2"], ["a == a + 1"], ["a <= 3", "mod(a, 8) >= 9"]])
def test_constraints_that_no_sizes_satisfy_are_refused(constraints: list[str]) -> None:
    with pytest.raises(ArgumentError, match="unsatisfiable"):
        SymbolicScope(constraints)


@pytest.mark.parametrize(
    "text", ["2.5", "a + a a", "a ^ a", "a; a", "_", "...", ")(", "2a", "mod(a)", "floordiv(a, b, c)", "..., 3", "a // 2"]
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="syntax error in symbolic shape"):
        symbolic_shape(text)


def test_bad_uses_are_refused() -> None:
    for use in (int, operator.index, range):
        with pytest.raises(InconclusiveDimensionOperation, match="symbolic"):
            use(A)
    with pytest.raises(ArgumentError, match="scopes"):
        A + symbolic_shape("a")[0]
    with pytest.raises(ArgumentError, match="divided by zero"):
        A // 0
    with pytest.raises(ArgumentError, match="powers"):
        A**-1
    with pytest.raises(ArgumentError, match="different size"):
        symbolic_shape("b, 3", like=(None, 4))


SLICES = [slice(None), slice(1, None), slice(-2, None), slice(None, -1), slice(None, None, 2), slice(3), slice(None, None, -1)]
SLICES += [slice(9, 1, -3), slice(50)]


@pytest.mark.parametrize("item", SLICES, ids=str)
def test_slices_are_those_of_python_at_all_sizes(item: slice) -> None:
    *_, length = span(item, B)
    for sizes in SIZES:
        assert value(length, sizes) == len(range(sizes["b"])[item])


def _normalised(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / vnp.sqrt(x.var(-1, keepdims=True) + 1e-6)


def _attention(q: Any) -> Any:
    return vf.nn.dot_product_attention(q, q, q)


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "dense": (lambda x: vnp.tanh(x @ vnp.ones((32, 4))).reshape(x.shape[0], 2, 2), [struct(A, 32)]),
    "mean": (lambda x: x.mean() + x.sum() / x.shape[0], [struct(A, B)]),
    "normalised": (_normalised, [struct(A, B)]),
    "reshape": (lambda x: x.reshape(x.shape[0], -1, 2), [struct(A, 4 * B)]),
    "flatten": (lambda x: x.reshape(-1), [struct(A, B, 3)]),
    "concatenate": (lambda x: vnp.concatenate([x, vnp.ones((x.shape[0], 2))], 1), [struct(A, B)]),
    "slices": (lambda x: (x[0], x[:, 1:3], x[:, :-1], x[::2], x[:, -2:], x[:10], x[:, ::-1]), [struct(A, B)]),
    "indices": (lambda x, i: (x[i], x[vnp.array([0, 1])], x.at[i].add(1.0), x[-1]), [struct(A, B), struct(B, dtype="int32")]),
    "arange": (lambda x: (vnp.arange(x.shape[0]), vnp.arange(1, 2 * x.shape[1], 2), vnp.eye(x.shape[0])), [struct(A, B)]),
    "convolution": (lambda x: lax.conv_general_dilated(x, vnp.ones((8, 3, 3, 3)), (2, 2), "SAME"), [struct(A, 3, B, B)]),
    "pooling": (lambda x: lax.reduce_window(x, -math.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), [struct(A, B, B, 3)]),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c * r), vnp.zeros(x.shape[0]), x.T), [struct(A, B)]),
    "map": (lambda x: lax.map(vnp.sum, x), [struct(A, B)]),
    "gradient": (lambda x: vf.grad(lambda y: vnp.mean(vnp.tanh(y) ** 2))(x), [struct(A, B)]),
    "vmap": (lambda x: vf.vmap(lambda row: row.sum())(x), [struct(A, B)]),
    "jit": (lambda x: vf.jit(lambda y: y * 2)(x), [struct(A, B)]),
    "random": (lambda x: vf.random.normal(vf.random.key(0), x.shape), [struct(A, B)]),
    "attention": (_attention, [struct(A, B, 4, 8)]),
    "sort": (lambda x: (vnp.argsort(x), vnp.median(x, axis=1), lax.top_k(x, 2)), [struct(A, B)]),
    "pad": (lambda x: (vnp.pad(x, ((1, 1), (0, 2))), vnp.pad(x, 1, mode="reflect"), vnp.roll(x, 1, 0)), [struct(A, B)]),
    "sizes": (lambda x: vnp.zeros((x.shape[0] // 2 + 1, x.shape[1] % 3 + 1, max_dim(x.shape[0], 3))), [struct(A, B)]),
    "resize": (lambda x: vf.image.resize(x, (x.shape[0], 2 * x.shape[1], 8, 3), "linear"), [struct(A, B, 16, 3)]),
    "split": (lambda x: vnp.split(x, 2, 0), [struct(2 * A, B)]),
    "decided": (lambda x: x if x.shape[1] >= 4 else x.sum(), [struct(A, B)]),
}


def _at(specification: Any, sizes: dict[str, int]) -> Any:
    return struct(*[value(d, sizes) for d in specification.shape], dtype=specification.dtype.name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_of_results_are_those_at_all_sizes(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    symbolic = vf.eval_shape(function, *arguments)
    assert vf.jit(function).eval_shape(*arguments) == symbolic
    for sizes in SIZES[::5]:
        expected = vf.eval_shape(function, *[_at(x, sizes) for x in arguments])
        assert vf.tree.map(lambda x, sizes=sizes: _at(x, sizes), symbolic) == expected


def test_programs_have_symbolic_types() -> None:
    closed = vf.make_jaxpr(lambda x: x.sum(0) * x.shape[0])(struct(A, B))
    assert "f32[a,b]" in str(closed)
    assert "dim_as_value[dim=a]" in str(closed)
    assert vf.jit(lambda x: x.T).trace(struct(A, B)).jaxpr.out_avals[0].shape == (B, A)
    assert str(vf.typeof(struct(A, 3))) == "f32[a,3]"
    (spec,) = symbolic_args_specs((vnp.ones((2, 3)),), "b, floordiv(n, 2)")
    assert str(spec.shape) == "(b, floordiv(n, 2))"


def test_programs_that_depend_on_sizes_are_refused() -> None:
    with pytest.raises(InconclusiveDimensionOperation, match="inconclusive"):
        vf.eval_shape(lambda x: x if x.shape[0] > 5 else -x, struct(A, B))
    with pytest.raises(BroadcastError, match="Incompatible shapes for broadcasting"):
        vf.eval_shape(operator.add, struct(A, B), struct(B, A))
    with pytest.raises(ShapeError):
        vf.eval_shape(lambda x: x.reshape(3, -1), struct(A, B))
    with pytest.raises(InconclusiveDimensionOperation):
        vf.eval_shape(lambda x: [x for _ in range(x.shape[0])], struct(A, B))
    with pytest.raises(ConcretizationError, match="symbolic"):
        vf.jit(vnp.sin).lower(struct(A, B))
    with pytest.raises(InconclusiveDimensionOperation):
        vnp.ones((A, 2))


def test_polynomials_with_fractions_are_compared_by_their_values() -> None:
    half = Fraction(1, 2)
    pairs = Dimension({(("b", 2),): half, (("b", 1),): half})  # b (b + 1) / 2
    assert pairs >= 1 and not pairs < 1
    with pytest.raises(InconclusiveDimensionOperation):
        Dimension({(("b", 1),): half}) >= 1  # noqa: B015
    with pytest.raises(InconclusiveDimensionOperation):
        pairs > 1  # noqa: B015
