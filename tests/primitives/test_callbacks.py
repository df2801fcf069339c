"""`pure_callback`: when and how often Python is called, with what, and what becomes of its results and mistakes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import dtypes, lax
from volta_fn import numpy as jnp
from volta_fn.errors import ArgumentError, CallbackError, GradientError

F32 = np.dtype(np.float32)
SCALAR = vf.ShapeDtypeStruct((), F32)
ROWS = np.arange(12, dtype=F32).reshape(3, 4)
WEIGHTS = np.arange(4, dtype=F32)


class Dot:
    """A NumPy function that remembers the shapes that it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[tuple[int, ...], ...]] = []

    def __call__(self, x: Any, y: Any) -> np.ndarray:
        self.shapes.append((x.shape, y.shape))
        return (np.asarray(x) * np.asarray(y)).sum(-1)


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit])
@pytest.mark.parametrize(
    ("method", "shapes"),
    [
        ("sequential", [((4,), (4,))] * 3),
        ("sequential_unrolled", [((4,), (4,))] * 3),
        ("expand_dims", [((3, 4), (1, 4))]),
        ("broadcast_all", [((3, 4), (3, 4))]),
        ("legacy_vectorized", [((3, 4), (4,))]),
    ],
)
def test_how_vmap_calls(wrap: Any, method: str, shapes: Any) -> None:
    dot = Dot()
    f = wrap(vf.vmap(lambda x, y: vf.pure_callback(dot, SCALAR, x, y, vmap_method=method), (0, None)))
    np.testing.assert_array_equal(f(ROWS, WEIGHTS), ROWS @ WEIGHTS)
    assert dot.shapes == shapes


def test_two_mapped_axes() -> None:
    dot = Dot()
    outer = vf.vmap(lambda x: vf.vmap(lambda y: vf.pure_callback(dot, SCALAR, x, y, vmap_method="broadcast_all"))(ROWS))
    np.testing.assert_array_equal(outer(ROWS), ROWS @ ROWS.T)
    assert dot.shapes == [((3, 3, 4), (3, 3, 4))]


def test_trees_keywords_and_loops() -> None:
    def host(inputs: Any, *, factor: Any) -> Any:
        return {"double": np.asarray(inputs["x"]) * np.asarray(factor), "pair": (np.asarray(factor),)}

    shapes = {"double": vf.ShapeDtypeStruct((4,), F32), "pair": (SCALAR,)}
    result = vf.jit(lambda x: vf.pure_callback(host, shapes, {"x": x}, factor=np.float32(2)))(WEIGHTS)
    np.testing.assert_array_equal(result["double"], 2 * WEIGHTS)
    assert result["pair"][0] == 2
    total, _ = lax.scan(
        lambda c, x: (vf.pure_callback(lambda a, b: np.asarray(a) + np.asarray(b), SCALAR, c, x), None), np.float32(0), WEIGHTS
    )
    assert total == WEIGHTS.sum()


def test_it_is_not_called_if_nobody_uses_the_result() -> None:
    dot = Dot()
    assert vf.jit(lambda x: (vf.pure_callback(dot, SCALAR, x, x), x.sum())[1])(WEIGHTS) == 6
    assert dot.shapes == []


@pytest.mark.parametrize("result", [3, 3.0, np.float32(3), jnp.float32(3)])
def test_numbers_take_the_promised_dtype(result: Any) -> None:
    output = vf.jit(lambda: vf.pure_callback(lambda: result, SCALAR))()
    assert output == 3 and output.dtype == F32 and not output.weak_type


def test_a_result_that_python_changes_later_stays() -> None:
    retained = np.ones(4, F32)
    result = vf.pure_callback(lambda: retained, vf.ShapeDtypeStruct((4,), F32))
    retained[:] = 7
    np.testing.assert_array_equal(result, np.ones(4))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(3, F32), r"shape \(\) and dtype float32, but returned shape \(3,\) and dtype float32"),
        (np.float64(1), "returned shape .* dtype float64"),
        (np.int32(1), "returned shape .* dtype int32"),
        (1j, "dtype complex"),
        ((np.float32(1), np.float32(1)), "structure"),
    ],
)
def test_results_that_break_the_promise(result: Any, message: str) -> None:
    for call in (lambda x: vf.pure_callback(lambda _: result, SCALAR, x), vf.jit(lambda x: vf.pure_callback(lambda _: result, SCALAR, x))):
        with pytest.raises(CallbackError, match=message):
            call(1.0)


def test_exceptions_are_chained() -> None:
    def failing(_: Any) -> Any:
        raise LookupError("no such key")

    with pytest.raises(CallbackError, match="failing raised LookupError: no such key") as caught:
        vf.jit(lambda x: vf.pure_callback(failing, SCALAR, x))(1.0)
    assert isinstance(caught.value.__cause__, LookupError)


def test_derivatives_are_refused_or_given_by_a_rule() -> None:
    def sine(x: Any) -> Any:
        return vf.pure_callback(np.sin, SCALAR, x, vmap_method="expand_dims")

    with pytest.raises(GradientError, match="custom_jvp or custom_vjp"):
        vf.grad(sine)(1.0)
    assert vf.grad(lambda x: x * sine(lax.stop_gradient(x)))(1.0) == np.sin(np.float32(1))
    ruled = vf.custom_jvp(sine)
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0] * jnp.cos(primals[0])))
    np.testing.assert_allclose(vf.jit(vf.vmap(vf.grad(ruled)))(WEIGHTS), np.cos(WEIGHTS), rtol=1e-6)


def test_vmap_needs_a_method() -> None:
    with pytest.raises(ArgumentError, match="vmap_method"):
        vf.vmap(lambda x: vf.pure_callback(np.sin, SCALAR, x))(WEIGHTS)
    with pytest.raises(ArgumentError, match="'sequential', 'sequential_unrolled', 'expand_dims'"):
        vf.pure_callback(np.sin, SCALAR, 1.0, vmap_method="somehow")


@pytest.mark.parametrize("kind", ["pure", "io", "debug"])
def test_an_eager_call_keeps_neither_the_function_nor_what_it_refers_to(kind: str) -> None:
    class Function:
        def __call__(self, x: Any) -> np.ndarray:
            return np.asarray(x) * 2

    def call() -> weakref.ref[Function]:
        function, x = Function(), jnp.ones(2)
        if kind == "debug":
            vf.debug.callback(function, x)
        else:
            callback = vf.pure_callback if kind == "pure" else vf.experimental.io_callback
            np.testing.assert_array_equal(callback(function, vf.ShapeDtypeStruct((2,), "float32"), x), [2, 2])
        return weakref.ref(function)

    functions = [call() for _ in range(3)]
    gc.collect()
    assert [function() for function in functions] == [None] * 3


def test_shards_call_one_by_one() -> None:
    mesh = vf.sharding.Mesh(np.full(2, vf.devices("cpu")[0]), "x")
    seen: list[list[float]] = []

    def shard(x: Any) -> Any:
        vf.experimental.io_callback(lambda v: seen.append(v.tolist()), None, x, ordered=True)
        return vf.pure_callback(lambda v: v * v.sum(), vf.ShapeDtypeStruct(x.shape, x.dtype), x)

    out = vf.shard_map(shard, mesh=mesh, in_specs=vf.P("x"), out_specs=vf.P("x"))(vf.numpy.arange(4.0))
    np.testing.assert_array_equal(out, [0.0, 1.0, 10.0, 15.0])
    assert seen == [[0.0, 1.0], [2.0, 3.0]]


def test_results_of_64_bits_are_rounded_where_these_are_not_allowed() -> None:
    f = lambda x: vf.pure_callback(lambda v: np.float64(v) / 3, vf.ShapeDtypeStruct((), "float32"), x)
    with pytest.raises(CallbackError, match="float64"):
        f(1.0)
    dtypes.set_width(32)
    try:
        assert f(1.0) == np.float32(1 / 3)
    finally:
        dtypes.set_width(None)
