"""Arrays: immutable, without a hash, copied, pickled, printed, exchanged."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, from_host
from volta_fn.errors import ArgumentError, ArgumentTypeError, DonatedBufferError, DTypeError, ImmutableError, VoltaError

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def test_arrays_are_called_array_and_their_class_can_be_pickled() -> None:
    assert type(vf.numpy.ones(2)).__name__ == "Array"
    assert pickle.loads(pickle.dumps(type(vf.numpy.ones(2)))) is type(vf.numpy.ones(2))
    with pytest.raises(AttributeError, match=r"x\.shape = … cannot change one: x\.reshape"):
        vf.numpy.ones(2).shape = (2, 1)


def test_arrays_cannot_be_changed() -> None:
    x = jnp.asarray(X)
    with pytest.raises(ImmutableError, match=r"x = x\.at\[i\]\.set\(v\)"):
        x[0] = 1.0
    with pytest.raises(ImmutableError, match="elements cannot be deleted"):
        del x[0]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x)[0, 0] = 5.0
    before = x
    x += 1
    assert x is not before
    np.testing.assert_array_equal(before, X)


def test_numpy_arrays_given_are_copied() -> None:
    for make in (jnp.array, jnp.asarray, from_host, vf.device_put):
        values = X.copy()
        x = make(values)
        values[:] = 0
        np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("make", [as_value, jnp.asarray, lambda x: jnp.array([x, x]), vf.device_put, jnp.sin, lambda x: x + jnp.ones(3)])
def test_masked_arrays_are_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentTypeError, match="arrays here have no masks"):
        make(np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]))


def _hash_and_add(x: Any) -> Any:
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(TypeError, match="unhashable"):
        _ = {x: 0}
    assert not isinstance(x, Hashable)
    return x * 2


def test_arrays_have_no_hash_and_compare_by_element() -> None:
    x, y = jnp.asarray(X), jnp.asarray(X)
    for apply in (_hash_and_add, vf.jit(_hash_and_add), vf.vmap(_hash_and_add), vf.grad(lambda x: _hash_and_add(x).sum())):
        apply(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(vf.random.key(0))
    assert isinstance(x == y, Array)
    np.testing.assert_array_equal(x == y, np.ones((2, 3), bool))


@pytest.mark.parametrize("name", sorted(d.name for d in dtypes.ALL))
def test_pickling_keeps_value_and_type(name: str) -> None:
    x = jnp.asarray(np.arange(3).astype(dtypes.as_dtype(name)))
    again = pickle.loads(pickle.dumps(x))
    assert again.aval is x.aval
    assert np.asarray(again).tobytes() == np.asarray(x).tobytes()
    assert copy.copy(x) is x
    assert copy.deepcopy({"x": x})["x"] is x


def test_pickling_of_scalars_views_and_weak_types() -> None:
    for value in (as_value(1.5), as_value(True), jnp.asarray(X).T, jnp.zeros((0, 3)), jnp.asarray(X)[0, 1]):
        again = pickle.loads(pickle.dumps(value))
        assert again.aval == value.aval
        np.testing.assert_array_equal(again, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.asarray(X), "Array([[0., 1., 2.],\n       [3., 4., 5.]], dtype=float32)"),
        (jnp.array([True, False]), "Array([ True, False], dtype=bool)"),
        (as_value(1.5), "Array(1.5, dtype=float32, weak_type=True)"),
        (jnp.zeros((0, 3), "int8"), "Array([], shape=(0, 3), dtype=int8)"),
        (jnp.array([np.nan, -np.inf, -0.0]), "Array([ nan, -inf,  -0.], dtype=float32)"),
    ],
)
def test_repr(value: Array, text: str) -> None:
    assert repr(value) == text


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8", "complex64"])
def test_long_arrays_are_printed_as_jax_prints_them(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    numbers = np.random.default_rng(0).normal(size=2002) * 100
    values = [numbers[:n].astype(dtype) for n in (*range(1, 45), 2002)]
    values += [numbers[:1080].reshape(shape).astype(dtype) for shape in ((40, 27), (12, 90), (3, 8, 45), (1080, 1))]
    for value in values:
        assert repr(jnp.asarray(value)) == repr(jax.numpy.asarray(value))
    with np.printoptions(linewidth=40):
        assert repr(jnp.asarray(values[20])) == repr(jax.numpy.asarray(values[20]))


def test_conversion_to_numpy() -> None:
    x = jnp.asarray(X)
    assert np.asarray(x, np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(x), np.asarray(x))
    fresh = np.array(x)
    fresh[:] = 0
    np.testing.assert_array_equal(x, X)
    for result in (X + x, x + X, X * x, np.float32(2) * x, X @ x.T, x < X):
        assert isinstance(result, ConcreteArray)
    with pytest.raises(ArgumentError, match=r"copy=False.*float64 cannot share"):
        np.asarray(x, np.float64, copy=False)


def test_conversion_to_python_numbers() -> None:
    assert (float(jnp.array([[2.5]])), int(jnp.float32(2.9)), complex(jnp.array(1j))) == (2.5, 2, 1j)
    assert [10, 20][jnp.array(1)] == 20
    assert jnp.asarray(X).item(4) == 4.0
    for convert in (float, int, complex):
        with pytest.raises(ArgumentTypeError, match=r"only an array with one element.*\(2, 3\)"):
            convert(jnp.asarray(X))
    with pytest.raises(ArgumentError, match=r"truth value of an array of shape \(2, 3\).*any\(\)"):
        bool(jnp.asarray(X))
    with pytest.raises(ArgumentTypeError, match=r"masks.*x\.filled"):
        vf.jit(lambda x: x)(np.ma.masked_array([1.0, 2.0], [False, True]))
    for bad in (jnp.float32(1), jnp.array([1]), jnp.array(True)):
        with pytest.raises(ArgumentTypeError, match="serve as an index"):
            range(bad)
    with pytest.raises(ArgumentTypeError, match="len"):
        len(jnp.float32(1))
    with pytest.raises(ArgumentTypeError, match="iteration"):
        iter(jnp.float32(1))


FUNCTIONS: list[Callable[..., Any]] = [jnp.sum, lambda x: x, lambda x: (x, x + 1)]
JITTED = [vf.jit(f) for f in FUNCTIONS]
USES: list[Callable[[Any], Any]] = [
    lambda x: x + 1,
    lambda x: x[0],
    lambda x: vf.lax.neg(x),
    np.asarray,
    pickle.dumps,
    lambda x: x.block_until_ready(),
    vf.lax.stop_gradient,
    vf.lax.optimization_barrier,
    lambda x: x.reshape(6),
    *JITTED,
    lambda x: vf.jit(lambda: x + 1)(),
    lambda x: vf.jit(FUNCTIONS[2]).lower(X).compile()(x),
    vf.grad(jnp.sum),
    vf.device_get,
    lambda x: vf.lax.scan(lambda c, r: (c, r), 0, x),
]


@pytest.mark.parametrize("use", USES)
def test_deleted_arrays_are_unusable_everywhere(use: Callable[[Any], Any]) -> None:
    for _ in range(2):
        use(jnp.asarray(X))  # what is compiled for the type is found again
    x = jnp.asarray(X)
    x.delete()
    for _ in range(2):
        with pytest.raises(DonatedBufferError, match=r"this array \(f32\[2,3\]\) was deleted by its method delete"):
            use(x)
    assert x.is_deleted()
    assert repr(x) == "Array(<deleted>, f32[2,3])"


def test_values_from_elsewhere() -> None:
    assert as_value(True).dtype == bool
    assert as_value(np.arange(3).astype(">i4")).dtype == np.int32
    for bad in (np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")])):
        with pytest.raises(DTypeError, match="are not supported"):
            as_value(bad)
    for bad in ("a", [1, 2], None, object()):
        with pytest.raises(ArgumentTypeError, match="expected an array"):
            as_value(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: vf.lax.expand_dims(x, (0.5,)),
        lambda x: vf.lax.top_k(x, 1.5),
        lambda x: vf.lax.scan(lambda c, _: (c, None), 0, None, length="3"),
        lambda x: vf.lax.reduce_window(x, 0.0, vf.lax.add, (1.5,)),
        lambda x: jnp.round(x, 1.5),
        lambda x: jnp.linspace(0, 1, 2.5),
        lambda x: jnp.nonzero(x, size=1.5),
        lambda x: jnp.vander(x, 2.0),
        lambda x: jnp.polyder(x, 0.5),
        lambda x: jnp.polyint(x, 0.5),
        lambda x: jnp.linalg.matrix_power(jnp.eye(2), 0.5),
        lambda x: vf.random.orthogonal(vf.random.key(0), 2.0),
        lambda x: vf.random.ball(vf.random.key(0), 2.0),
    ],
)
def test_integers_are_asked_for_in_words(call: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="must be an integer"):
        call(jnp.ones(3))


def test_an_item_is_the_only_one() -> None:
    assert jnp.ones((1, 1)).item() == jnp.arange(3.0).item(1) == 1.0
    with pytest.raises(ArgumentError, match=r"arrays of one element, got shape \(3,\).*x.item\(0\)"):
        jnp.arange(3.0).item()


def test_scalars_of_the_cpu_meet_arrays_of_a_gpu() -> None:
    try:
        device = vf.devices("gpu")[0]
    except (VoltaError, IndexError):
        pytest.skip("no GPU, not in software either")
    x = vf.device_put(np.float32([1.0, 2.0]), device)
    scalar = vf.device_put(jnp.asarray(2.0), vf.devices("cpu")[0])
    np.testing.assert_array_equal(x * scalar, [2.0, 4.0])
