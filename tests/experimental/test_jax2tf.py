"""Functions of volta_fn called from TensorFlow, and the other way round; TensorFlow's gradients are the oracle."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.jax.programs import output_of
from volta_fn.errors import ArgumentError, ArgumentTypeError, CallbackError, GradientError, MissingDependencyError, ShapeError, TracerError
from volta_fn.experimental import jax2tf

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="tensorflow is not installed")


@pytest.fixture
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def test_shapes_for_symbolic_sizes() -> None:
    struct = vf.ShapeDtypeStruct((8, 3), "float32")
    shape = jax2tf.PolyShape("b", ...)
    for specs in (shape, [shape], ["b, _"], "b, ..."):
        (result, kept), text = jax2tf.eval_polymorphic_shape(lambda x: (x.sum(1), x[:1]), polymorphic_shapes=specs)(struct)
        assert (str(result.shape), kept.shape, text) == ("(b,)", (1, 3), ("(b,)", "(1, 3)"))
    assert jax2tf.eval_polymorphic_shape(lambda x: x.T)(struct)[1] == "(3, 8)"
    with pytest.raises(ArgumentError, match="a size is"):
        jax2tf.PolyShape(1.5)
    with pytest.raises(ArgumentError, match="a scope or constraints"):
        vf.export.symbolic_args_specs((struct,), "b, _", ["b >= 2"], scope=vf.export.SymbolicScope())


def test_the_module_of_the_same_name_leaves_the_function() -> None:
    program = """
import jax, jax.experimental.jax2tf.call_tf
from jax.experimental import jax2tf
from jax.experimental.jax2tf.call_tf import UnspecifiedOutputShapeDtype, call_tf
assert jax.experimental.jax2tf.call_tf is call_tf is jax2tf.call_tf and jax2tf.jax2tf.convert is jax2tf.convert
print(callable(jax2tf.call_tf), jax2tf.convert.__name__)
"""
    assert output_of(program) == "True convert"


@pytest.mark.skipif(HAS_TENSORFLOW, reason="tensorflow is installed")
def test_without_tensorflow() -> None:
    for call in (jax2tf.convert(vnp.sin), jax2tf.call_tf(vnp.sin), jax2tf.dtype_of_val):
        with pytest.raises(MissingDependencyError, match="pip install tensorflow-cpu"):
            call(1.0)


# convert


def test_values_in_trees(tf: Any) -> None:
    def function(x: Any, *, more: Any) -> Any:
        return {"sum": x["a"] + more, "rows": [x["b"].astype(int), x["a"] > 0]}

    converted = jax2tf.convert(function)
    a, b = np.array([1.0, -2.0], np.float32), np.array([3, 4], np.uint8)
    for call in (converted, tf.function(converted, autograph=False)):
        result = call({"a": tf.constant(a), "b": b}, more=2.0)
        np.testing.assert_array_equal(result["sum"], [3.0, 0.0])
        np.testing.assert_array_equal(result["rows"][0], [3, 4])
        assert [x.dtype.name for x in (result["sum"], *result["rows"])] == ["float32", "int32", "bool"]
    assert jax2tf.convert(lambda x: ())(1.0) == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint64", "complex64", "bool"])
def test_dtypes(tf: Any, dtype: str) -> None:
    x = vnp.array([1, 0, 1]).astype(dtype)
    result = jax2tf.convert(lambda x: (x, x.T))(tf.constant(np.asarray(x)))
    assert all(y.dtype.name == dtype for y in result)
    np.testing.assert_array_equal(np.asarray(result[0]), np.asarray(x))
    assert jax2tf.dtype_of_val(np.asarray(x)).name == dtype and jax2tf.dtype_of_val(1.5) == tf.float32


def test_gradients_of_first_and_second_order(tf: Any) -> None:
    def function(x: Any, n: Any, y: Any) -> Any:
        return vnp.sin(x) * y**2, n + 1

    converted = jax2tf.convert(vf.jit(function))
    x, y = tf.Variable([0.5, 1.0]), tf.constant(3.0)
    for wrap in (lambda f: f, lambda f: tf.function(f, autograph=False)):

        def derivatives() -> Any:
            with tf.GradientTape(persistent=True) as outer:
                outer.watch(y)
                with tf.GradientTape() as inner:
                    inner.watch(y)
                    value, count = converted(x, tf.constant(2), y)
                    loss = tf.reduce_sum(value) * tf.cast(count, tf.float32)
                first = inner.gradient(loss, [x, y])
            return first, outer.gradient(first[0], x), outer.gradient(first[0], y)

        first, by_x, by_y = wrap(derivatives)()
        sines, cosines = np.sin(x.numpy()), np.cos(x.numpy())
        np.testing.assert_allclose(first[0], 27 * cosines, rtol=1e-6)
        np.testing.assert_allclose(first[1], 18 * sines.sum(), rtol=1e-6)
        np.testing.assert_allclose(by_x, -27 * sines, rtol=1e-6)
        np.testing.assert_allclose(by_y, 18 * cosines.sum(), rtol=1e-6)


def test_gradients_of_complex_numbers_are_those_of_tensorflow(tf: Any) -> None:
    z = tf.constant([1 + 2j, 3 - 1j], tf.complex64)

    def gradient(function: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.math.real(tf.reduce_sum(function(z * (1 + 1j)) * (2 - 1j)))
        return tape.gradient(loss, z)

    np.testing.assert_allclose(gradient(jax2tf.convert(lambda z: z**3)), gradient(lambda z: z**3), rtol=1e-5)


def test_functions_without_gradient(tf: Any) -> None:
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = jax2tf.convert(lambda x: x * x, with_gradient=False)(x)
    assert float(y) == 4
    with pytest.raises(GradientError, match="with_gradient=False"):
        tape.gradient(y, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = jax2tf.convert(lambda x: (x > 1).astype(int))(x)
    assert tape.gradient(y, x) is None


def test_sizes_that_are_learnt_when_the_program_runs(tf: Any) -> None:
    converted = jax2tf.convert(lambda x, y: x @ y, polymorphic_shapes=["b, ...", None])
    step = tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([3, 2])])
    assert step.get_concrete_function().structured_outputs.shape.as_list() == [None, 2]
    for size in (1, 4):
        np.testing.assert_array_equal(step(tf.ones((size, 3)), tf.ones((3, 2))), np.full((size, 2), 3.0))
    unnamed = tf.function(jax2tf.convert(vnp.sin), autograph=False, input_signature=[tf.TensorSpec([None])])
    with pytest.raises(ArgumentError, match="takes the size of like"):
        unnamed.get_concrete_function()
    unranked = tf.function(jax2tf.convert(vnp.sin), autograph=False, input_signature=[tf.TensorSpec(None)])
    with pytest.raises(ShapeError, match="number of dimensions"):
        unranked.get_concrete_function()


def test_equal_types_are_not_traced_again(tf: Any) -> None:
    traces = []

    def function(x: Any) -> Any:
        traces.append(x.shape)
        return x + 1

    converted = jax2tf.convert(function)
    for _ in range(3):
        converted(tf.ones(3))
    assert traces == [(3,)]


def test_what_convert_refuses(tf: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="convert"):
        jax2tf.convert(3)  # type: ignore[arg-type]
    with pytest.raises(TracerError, match="being traced"):
        vf.jit(jax2tf.convert(vnp.sin))(1.0)
    with pytest.raises(TypeError):
        jax2tf.convert(vnp.sin)(tf.constant("text"))


# call_tf


def test_calls_of_tensorflow(tf: Any) -> None:
    calls = []

    def function(x: Any, y: Any) -> Any:
        calls.append(type(x).__name__)
        return {"z": tf.math.lgamma(x) + y["a"], "n": tf.shape(x)}

    call = jax2tf.call_tf(function)
    x = vnp.array([1.5, 2.5])
    for wrapped in (call, vf.jit(call)):
        result = wrapped(x, {"a": 2.0})
        np.testing.assert_allclose(result["z"], vf.lax.lgamma(x) + 2, rtol=1e-6)
        assert result["n"].tolist() == [2] and isinstance(result["z"], vf.Array)
    assert calls[0] == "EagerTensor" and calls[-1] == "EagerTensor"


def test_effects_happen_though_results_are_unused(tf: Any) -> None:
    counter = tf.Variable(0)

    def count(x: Any) -> Any:
        counter.assign_add(1)
        return x

    for effects, total in ((True, 1), (False, 1)):
        call = jax2tf.call_tf(count, has_side_effects=effects, output_shape_dtype=vf.ShapeDtypeStruct((), "float32"))
        vf.jit(lambda x, call=call: (call(x), x)[1])(3.0).block_until_ready()
        vf.effects_barrier()
        assert int(counter) == total


def test_gradients_are_tensorflows(tf: Any) -> None:
    def function(x: Any, n: Any) -> Any:
        return tf.gather(x, n) ** 3, n

    call = jax2tf.call_tf(function)

    def loss(x: Any, n: Any) -> Any:
        return (call(x, n)[0] * vnp.array([1.0, 10.0, 100.0])).sum()

    x, n = vnp.array([1.0, 2.0, 4.0]), vnp.array([0, 1, 1])
    slopes = [3.0, 110 * 3 * 4.0, 0.0]
    for gradient in (vf.grad(loss), vf.jit(vf.grad(loss))):
        np.testing.assert_allclose(gradient(x, n), slopes)
    second = vf.jit(vf.grad(lambda x: vf.grad(loss)(x, n).sum()))(x)
    np.testing.assert_allclose(second, [6.0, 110 * 6 * 2.0, 0.0])


def test_gradients_of_complex_calls(tf: Any) -> None:
    z = vnp.array([1 + 2j, 3 - 1j])

    def loss(function: Any) -> Any:
        return lambda z: ((function(z * (1 + 1j)) * (2 - 1j)).sum()).real

    np.testing.assert_allclose(vf.grad(loss(jax2tf.call_tf(lambda z: z**3)))(z), vf.grad(loss(lambda z: z**3))(z), rtol=1e-5)


def test_results_that_are_declared(tf: Any) -> None:
    struct = vf.ShapeDtypeStruct((2,), "float32")

    def masked(x: Any) -> Any:
        return tf.boolean_mask(x, x > 0)

    x = vnp.array([1.0, -1.0, 2.0])
    with pytest.raises(ShapeError, match="output_shape_dtype"):
        vf.jit(jax2tf.call_tf(masked))(x)
    call = jax2tf.call_tf(masked, output_shape_dtype=struct)
    np.testing.assert_array_equal(vf.jit(call)(x), [1.0, 2.0])
    np.testing.assert_array_equal(call(x), [1.0, 2.0])
    with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
        call(x * x)
    with pytest.raises(ArgumentError, match="has the tree"):
        jax2tf.call_tf(masked, output_shape_dtype=[struct])(x)
    with pytest.raises(CallbackError, match=r"shape \(3,\)"):
        vf.jit(call)(x * x).block_until_ready()
    with pytest.raises(ArgumentTypeError, match="no array"):
        jax2tf.call_tf(lambda x: tf.constant("text"))(x)


def test_functions_of_each_kind_in_each_other(tf: Any) -> None:
    round_trip = jax2tf.call_tf(lambda x: jax2tf.convert(vnp.sin)(x) * 2)
    np.testing.assert_allclose(vf.jit(vf.grad(round_trip))(0.5), 2 * np.cos(0.5), rtol=1e-6)
