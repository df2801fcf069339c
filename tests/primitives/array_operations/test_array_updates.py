"""x.at[…] against NumPy's updates in place: values, gradients, modes, stages, errors."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.primitives.index_strategies import advanced, basic, shapes
from volta_fn import errors
from volta_fn.compiler import pipeline
from volta_fn.core.arrays.array import aval_of
from volta_fn.core.staging import trace_to_jaxpr

cases = shapes.flatmap(lambda shape: st.tuples(st.just(shape), basic(shape) | advanced(shape)))


def array(shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))) % 5 + 1).astype(dtype).reshape(shape)


def in_place(method, x, index, values):
    """Return what NumPy's update of a copy gives, element by element."""
    out = x.copy()
    if method == "set":
        out[index] = values
    else:
        ufunc = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "min": np.minimum, "max": np.maximum, "divide": np.divide}
        ufunc[method].at(out, index, values)
    return out


def selected(x, index):
    items = index if isinstance(index, tuple) else (index,)
    masks = [i for i in items if isinstance(i, np.ndarray) and i.dtype == bool]
    # NumPy takes a mask without elements whatever it covers; ours must have the shape of that, as those do that are not behind an ellipsis.
    assume(all(mask.size for mask in masks) or not any(i is Ellipsis for i in items))
    try:
        return x[index].shape
    except IndexError:  # masks and arrays that do not broadcast together
        assume(False)


METHODS = ["set", "add", "subtract", "multiply", "min", "max", "divide"]


@settings(max_examples=60)
@given(cases, st.sampled_from(METHODS), st.booleans())
def test_updates_as_numpy_does(case, method, scalar):
    shape, index = case
    x = array(shape)
    target = selected(x, index)
    values = np.float32(3) if scalar else np.asarray(np.random.default_rng(0).integers(1, 9, target)).astype("float32")
    got = getattr(vf.device_put(x).at[index], method)(values)
    assert got.shape == x.shape and got.dtype == x.dtype
    # Divisors of one element are multiplied first, so quotients may differ in the last bits.
    np.testing.assert_allclose(np.asarray(got), in_place(method, x, index, values), rtol=1e-6 if method == "divide" else 0)


@settings(max_examples=40)
@given(cases)
def test_values_broadcast_and_jit_agrees(case):
    shape, index = case
    x = array(shape)
    target = selected(x, index)
    values = array(target[1:]) if target else array(())
    update = lambda v, w: v.at[index].set(w)
    expected = in_place("set", x, index, values)
    np.testing.assert_array_equal(np.asarray(update(vf.device_put(x), values)), expected)
    np.testing.assert_array_equal(np.asarray(vf.jit(update)(x, values)), expected)


@settings(max_examples=40)
@given(cases)
def test_gradients_of_set_follow_what_stays(case):
    shape, index = case
    x = array(shape)
    target = selected(x, index)
    weight = np.random.default_rng(0).standard_normal(shape).astype("float32")
    loss = lambda v, w: vf.lax.reduce_sum(v.at[index].set(w) * weight, range(len(shape)))
    values = array(target)
    by_x, by_values = vf.grad(loss, (0, 1))(x, values)
    untouched = in_place("set", np.ones(shape), index, 0)
    np.testing.assert_array_equal(np.asarray(by_x), weight * untouched)
    # Give each value a number; the numbers left in place say whose weight counts.
    numbers = np.arange(1, values.size + 1).reshape(target)
    left = in_place("set", np.zeros(shape, int), index, numbers)
    expected = np.zeros(values.size + 1, "float32")
    expected[left.ravel()] = weight.ravel()
    np.testing.assert_array_equal(np.asarray(by_values), expected[1:].reshape(target))


@pytest.mark.wide
@pytest.mark.parametrize("method", ["add", "subtract", "multiply", "min", "max", "divide", "power"])
def test_gradients_against_differences(method):
    x, index = np.array([1.5, 2.5, 0.5, 3.5]), np.array([3, 0, 1])
    values, weight = np.array([0.7, 2.2, 1.9]), np.array([1.0, -2.0, 3.0, 0.5])
    loss = lambda v, w: vf.lax.reduce_sum(getattr(v.at[index], method)(w) * weight, (0,))
    got = vf.grad(loss, (0, 1))(x, values)
    for position, gradient in enumerate(got):
        for i in range(gradient.size):
            shifted = [[a.copy() for a in (x, values)] for _ in range(2)]
            shifted[0][position][i] += 1e-6
            shifted[1][position][i] -= 1e-6
            slope = (float(loss(*map(vf.device_put, shifted[0]))) - float(loss(*map(vf.device_put, shifted[1])))) / 2e-6
            assert abs(slope - float(gradient[i])) < 1e-6


@pytest.mark.wide
def test_repeated_indices_accumulate_in_every_dtype():
    for dtype in ("int8", "uint32", "float16", vf.dtypes.bfloat16, "float64", "complex64"):
        got = vf.device_put(np.zeros(3, dtype)).at[np.array([1, 1, 2])].add(np.array([2, 3, 4]).astype(dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), np.array([0, 5, 4]).astype(dtype))


@pytest.mark.wide
@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_an_array_without_elements_stays_as_it_is(method):
    index = vf.numpy.array([0, 3])
    for transform in (lambda f: f, vf.jit):
        flat = transform(lambda x, v: getattr(x.at[index], method)(v, mode="drop"))
        assert flat(vf.numpy.zeros(0, "int32"), 1).shape == (0,)
        rows = transform(lambda x, v: getattr(x.at[:, index], method)(v, mode="drop"))
        assert rows(vf.numpy.zeros((2, 0)), vf.numpy.ones((2, 2))).shape == (2, 0)
    with pytest.raises(errors.BroadcastError):
        vf.numpy.zeros(0).at[index].set(vf.numpy.ones(3), mode="drop")


def test_the_last_of_several_values_stays():
    index, values = np.array([0, 2, 0, 0]), np.array([1.0, 2.0, 3.0, 4.0], "float32")
    for update in (lambda i: vf.device_put(np.zeros(3, "float32")).at[i].set(values),):
        np.testing.assert_array_equal(np.asarray(update(index)), [4, 0, 2])
        np.testing.assert_array_equal(np.asarray(vf.jit(update)(index)), [4, 0, 2])


def test_multiplying_one_element_twice_has_no_derivative_by_the_values():
    update = lambda i: vf.grad(lambda w: vf.lax.reduce_sum(vf.device_put(np.ones(3, "float32")).at[i].multiply(w), (0,)))
    with pytest.raises(errors.GradientError, match="unique_indices"):
        update(np.array([1, 1]))(np.ones(2, "float32"))


# Modes.


@pytest.mark.wide
def test_modes_of_traced_indices():
    x = array((4,))
    index, values = np.array([-1, 4, 9, -9]), np.array([10.0, 20.0, 30.0, 40.0], "float32")

    def both(mode):
        set_ = vf.jit(lambda i: vf.device_put(x).at[i].set(values, mode=mode))(index)
        get = vf.jit(lambda i: vf.device_put(x).at[i].get(mode=mode))(index)
        return np.asarray(set_), np.asarray(get)

    for mode, (set_, get) in {
        None: ([1, 2, 3, 10], [4, 4, 4, 1]),
        "drop": ([1, 2, 3, 10], [4, np.nan, np.nan, np.nan]),
        "fill": ([1, 2, 3, 10], [4, np.nan, np.nan, np.nan]),
        "clip": ([40, 2, 3, 30], [4, 4, 4, 1]),
    }.items():
        got = both(mode)
        np.testing.assert_array_equal(got[0], set_)
        np.testing.assert_array_equal(got[1], get)


def test_a_mode_makes_known_indices_outside_legal():
    x = vf.device_put(array((3, 2)))
    np.testing.assert_array_equal(np.asarray(x.at[7].get(mode="fill", fill_value=-1)), [-1, -1])
    np.testing.assert_array_equal(np.asarray(x.at[7].get(mode="clip")), np.asarray(x[2]))
    np.testing.assert_array_equal(np.asarray(x.at[-4].get(mode="clip")), np.asarray(x[0]))
    np.testing.assert_array_equal(np.asarray(x.at[[0, 7], 1].set(9, mode="drop")), np.asarray(x.at[0, 1].set(9)))
    np.testing.assert_array_equal(np.asarray(x.at[7].set(9, mode="drop")), np.asarray(x))
    np.testing.assert_array_equal(np.asarray(x.at[7].set(9, mode="clip")), np.asarray(x.at[2].set(9)))


def test_negative_indices_may_lie_outside():
    x = vf.device_put(array((3,)))
    np.testing.assert_array_equal(np.asarray(x.at[[-1, 1]].add(5, mode="drop", wrap_negative_indices=False)), [1, 7, 3])
    assert float(x.at[-1].get(mode="fill", fill_value=0, wrap_negative_indices=False)) == 0
    with pytest.raises(errors.OutOfBoundsError):
        x.at[-1].set(0, wrap_negative_indices=False)


def test_agrees_with_jax_on_modes():
    jnp = pytest.importorskip("jax.numpy")
    x, index = array((5, 2)), np.array([7, -1, -7, 2])
    for mode in ("clip", "fill", "drop"):
        for method in ("add", "max", "multiply", "power", "divide"):
            got = getattr(vf.device_put(x).at[index], method)(2.0, mode=mode)
            np.testing.assert_allclose(np.asarray(got), getattr(jnp.asarray(x).at[index], method)(2.0, mode=mode), rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(vf.device_put(x).at[index].get(mode=mode)), jnp.asarray(x).at[index].get(mode=mode))


# Masks, apply, vmap.


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_traced_masks_take_values_that_are_the_same_for_every_element(method):
    x, mask = array((3, 4)), array((3, 4)) % 2 == 0
    for values in (2.0, np.float32(3)):
        got = vf.jit(lambda v, m, w=values: getattr(v.at[m], method)(w))(x, mask)
        np.testing.assert_array_equal(np.asarray(got), in_place(method, x, mask, values))
    rows = vf.jit(lambda v, m: getattr(v.at[m], method)(np.arange(4, dtype="float32")))(x, mask[:, 1])
    np.testing.assert_array_equal(np.asarray(rows), in_place(method, x, mask[:, 1], np.arange(4, dtype="float32")))


@pytest.mark.wide
def test_traced_masks_cannot_take_a_list_of_values():
    with pytest.raises(errors.ConcretizationError, match="mask"):
        vf.jit(lambda v: v.at[v > 2].set(np.ones(3)))(array((4,)))


@pytest.mark.wide
def test_known_masks_take_one_value_per_element():
    x = array((3, 2))
    mask = np.array([[True, False], [True, True], [False, False]])
    np.testing.assert_array_equal(np.asarray(vf.device_put(x).at[mask].set([7, 8, 9])), in_place("set", x, mask, [7, 8, 9]))


def test_apply():
    x = vf.device_put(array((4,)))
    np.testing.assert_array_equal(np.asarray(x.at[::2].apply(lambda v: v * 10)), [10, 2, 30, 4])
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda v: v.at[v > 2].apply(vf.lax.neg))(x)), [1, 2, -3, -4])


@pytest.mark.wide
def test_vmap_over_array_index_and_values():
    x, i, v = array((4, 3)), np.array([0, 2, -1, 9]), np.array([9.0, 8.0, 7.0, 6.0], "float32")
    expected = x.copy()
    for row, k, value in zip(expected, i, v, strict=True):
        if k < 3:
            row[k] = value
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda a, k, w: a.at[k].set(w))(x, i, v)), expected)
    shared = np.stack([in_place("add", x[0], k, w) if k < 3 else x[0] for k, w in zip(i, v, strict=True)])
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda k, w: vf.device_put(x[0]).at[k].add(w))(i, v)), shared)
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda w: vf.device_put(x[0]).at[1:].set(w))(v))[:, 1:], np.stack([v, v], 1))


def primitives(function, *args):
    program = trace_to_jaxpr(lambda *values: [function(*values)], [aval_of(arg) for arg in args])
    return [eqn.primitive.name for eqn in program.eqns]


def test_known_blocks_are_updated_without_a_scatter():
    """What a compiler can do in place without looking at indices."""
    x = array((4, 3))
    assert primitives(lambda v: v.at[1:3].set(0.0), x)[-1] == "dynamic_update_slice"
    assert primitives(lambda v: v.at[0, ::-1].set(np.ones(3, "float32")), x)[-1] == "dynamic_update_slice"
    assert primitives(lambda v: v.at[::2].set(0.0), x)[-1] == "scatter"
    assert primitives(lambda v: v.at[1:3].add(1.0), x)[-1] == "scatter_add"


def test_compiled_programs_update_dead_arrays_themselves():
    def function(x):
        y = x * 2
        retained = y[0]
        for i in range(3):
            y = y.at[i].set(0.0).at[i:].add(1.0)
        return y, retained

    program = trace_to_jaxpr(lambda x: list(function(x)), [aval_of(array((4,)))])
    into = [step.into for step in pipeline.plan(program).steps if step.eqn.primitive.overwrites is not None]
    assert into == [None, 0, 0, 0, 0, 0]  # the first one is still looked at by `kept`
    got, retained = vf.jit(function)(array((4,)))
    np.testing.assert_array_equal(np.asarray(got), [1, 1, 1, 11])
    assert float(retained) == 2


# Errors.


@pytest.mark.wide
@pytest.mark.parametrize(
    ("update", "error", "words"),
    [
        (lambda x: x.at[0].set(np.ones(3)), errors.BroadcastError, r"values of shape \(3,\).*shape \(2,\)"),
        (lambda x: x.at[0].set(1j), errors.DTypeError, "float32 cannot hold values of dtype complex64"),
        (lambda x: vf.lax.convert_element_type(x, "int32").at[0].add(0.5), errors.DTypeError, "convert the array first"),
        (lambda x: vf.lax.convert_element_type(x, "uint8").at[0].set(300), errors.ArgumentError, "300 does not fit the dtype uint8"),
        (lambda x: x.at[5].set(0.0), errors.OutOfBoundsError, "index 5 is out of bounds"),
        (lambda x: x.at[0].set(0.0, mode="wrap"), errors.ArgumentError, "got 'wrap'"),
        (lambda x: x.at[0].set(0.0, axis=1), errors.ArgumentTypeError, "unexpected axis"),
    ],
)
def test_mistakes_raise(update, error, words):
    with pytest.raises(error, match=words):
        update(vf.device_put(array((3, 2))))


def test_assignment_names_the_remedy():
    with pytest.raises(errors.ImmutableError, match=r"\.at\[i\]\.set"):
        vf.device_put(array((3,)))[0] = 1.0


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "min", "max"])
def test_masks_of_dtypes_that_store_numbers(method, dtype):
    x, mask = np.array([1, 2, 3, 5]).astype(dtype), np.array([True, False, True, True])
    wide = np.float32 if "float" in dtype else np.int8
    wanted = in_place(method, x.astype(wide), mask, wide(2)).astype(dtype)
    for index in (mask, np.flatnonzero(mask)):
        result = getattr(vf.device_put(x).at[index], method)(2)
        assert result.dtype == dtype
        np.testing.assert_array_equal(np.asarray(result).astype(wide), wanted.astype(wide))
