"""x[…] against NumPy: values, gradients, stages, errors, and the primitives that each form becomes."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.primitives.index_strategies import advanced, basic, shapes
from volta_fn import errors
from volta_fn.core.arrays.array import aval_of
from volta_fn.core.staging import trace_to_jaxpr

cases = shapes.flatmap(lambda shape: st.tuples(st.just(shape), basic(shape) | advanced(shape)))


def array(shape, dtype="float32"):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def reference(x, index):
    try:
        return x[index]
    except IndexError:  # masks and arrays that do not broadcast together
        assume(False)


@settings(max_examples=60)
@given(cases)
def test_reads_what_numpy_reads(case):
    shape, index = case
    x = array(shape)
    expected = reference(x, index)
    got = vf.device_put(x)[index]
    assert got.shape == expected.shape and got.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(got), expected)


@settings(max_examples=40)
@given(cases)
def test_the_gradient_counts_how_often_each_element_is_read(case):
    shape, index = case
    x = array(shape)
    expected = np.zeros_like(x)
    np.add.at(expected, index, np.ones_like(reference(x, index)))
    total = vf.grad(lambda v: vf.lax.reduce_sum(v[index], range(v[index].ndim)))
    np.testing.assert_array_equal(np.asarray(total(x)), expected)
    np.testing.assert_array_equal(np.asarray(vf.jit(total)(x)), expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", vf.dtypes.bfloat16, "complex64"])
def test_every_dtype_keeps_its_elements(dtype):
    x = array((3, 4)).astype(dtype)
    for index in (1, np.s_[:, ::-2], np.array([2, 0]), np.s_[1, [0, 0]]):
        got = vf.device_put(x)[index]
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), x[index])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_traced_indices_of_every_dtype_reach_far(dtype):
    x = vf.device_put(array((300,)))
    index = np.array([0, 100, 3], dtype)
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda i: x[i])(index)), [0, 100, 3])
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda i: x[i])(index[1])), 100)


@pytest.mark.wide
def test_indices_that_int64_does_not_hold_are_outside():
    x, far = array((300,)).astype(np.float32), np.array([2**63 + 5, 2**64 - 1, 2**63, 3], np.uint64)
    last, v = np.array([299, 299, 299, 3]), vf.device_put(x)
    for read in (lambda i: v[i], lambda i: v.at[i].get(mode="clip"), vf.vmap(lambda i: v[i])):
        np.testing.assert_array_equal(np.asarray(vf.jit(read)(far)), x[last])
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda i: v[i])(far[0])), x[299])
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda i: v.at[i].get(mode="fill", fill_value=7))(far)), [7, 7, 7, x[3]])
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda i: v.at[i].set(-1))(far)), np.where(np.arange(300) == 3, -1, x))
    block = lambda i: vf.lax.dynamic_slice(v, (i,), (2,))
    update = lambda i: vf.lax.dynamic_update_slice(v, vf.numpy.zeros(2), (i,))
    for function in (block, update):
        np.testing.assert_array_equal(np.asarray(vf.vmap(function)(far)), [np.asarray(function(i)) for i in far])
    np.testing.assert_array_equal(np.asarray(block(far[0])), x[298:])
    for index in ((far,), (np.array([0, 1], np.uint64), far[:2])):
        with pytest.raises(errors.OutOfBoundsError):
            vf.device_put(array((4,) * len(index)))[index]


@pytest.mark.wide
def test_traced_indices_count_from_the_end_and_move_inside():
    x = array((4, 3))
    read = vf.jit(lambda v, i: v[i])
    np.testing.assert_array_equal(np.asarray(read(x, np.int32(-1))), x[3])
    np.testing.assert_array_equal(np.asarray(read(x, np.int32(9))), x[3])
    np.testing.assert_array_equal(np.asarray(read(x, np.array([-9, -1, 9]))), x[[0, 3, 3]])


@pytest.mark.wide
def test_traced_and_known_indices_mix():
    x = array((4, 3, 5))
    read = vf.jit(lambda v, i, j: (v[i, :, j], v[i, 1:, 2], v[[0, 1], :, j], v[None, i[0], ..., ::-2], v[i[:, None], 1, j]))
    i, j = np.array([3, 1]), np.array([0, 4])
    expected = x[i, :, j], x[i, 1:, 2], x[[0, 1], :, j], x[None, i[0], ..., ::-2], x[i[:, None], 1, j]
    for got, want in zip(read(x, i, j), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.wide
def test_vmap_over_array_and_index():
    x, i = array((4, 3, 5)), np.array([0, 2, -1, 1])
    each = np.stack([x[n, k] for n, k in enumerate(i)])
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda v, k: v[k])(x, i)), each)
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda k: vf.device_put(x)[k], out_axes=1)(i[:, None])), x[i[:, None]].swapaxes(0, 1))
    np.testing.assert_array_equal(np.asarray(vf.vmap(lambda v: v[[0, 0], 1], in_axes=1)(x)), x[[0, 0], :, 1].T)


def test_iteration_and_boolean_masks_of_the_array_itself():
    x = vf.device_put(array((3, 2)))
    np.testing.assert_array_equal([np.asarray(row) for row in x], np.asarray(x))
    np.testing.assert_array_equal(np.asarray(x[x > 2]), [3, 4, 5])


@pytest.mark.wide
def test_empty_arrays():
    x = vf.device_put(np.zeros((0, 3), np.float32))
    assert x[[], 1].shape == (0,) and x[np.zeros((0, 3), bool)].shape == (0,) and x[:, 1].shape == (0,)
    with pytest.raises(errors.OutOfBoundsError, match=r"shape \(0, 3\)"):
        vf.jit(lambda i: x[i])(np.array([0]))
    with pytest.raises(errors.OutOfBoundsError, match=r"shape \(0, 3\)"):
        vf.jit(lambda i: x[i])(0)


@pytest.mark.parametrize("index", [4, -5, (0, 3), [0, 9], np.array([-5]), (slice(None), [3])])
def test_a_known_index_outside_raises(index):
    x = vf.device_put(array((4, 3)))
    for read in (lambda v: v[index], vf.jit(lambda v: v[index])):
        with pytest.raises(errors.OutOfBoundsError, match=r"out of bounds for dimension \d of size \d \(shape \(4, 3\)\)") as caught:
            read(x)
        assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ((0, 0, 0), errors.OutOfBoundsError, "too many indices.*2 dimensions, but 3"),
        ((..., ...), errors.OutOfBoundsError, "one Ellipsis"),
        ("a", errors.ArgumentTypeError, "got 'a' of type str"),
        (1.0, errors.ArgumentTypeError, "of type float"),
        (slice(1.0, 2), errors.ArgumentTypeError, "slice must consist of integers"),
        (slice(None, None, 0), errors.ArgumentError, "step must not be 0"),
        (np.array([1.0]), errors.DTypeError, "integer or bool elements, got float64"),
        (np.ones((2, 3), bool), errors.OutOfBoundsError, r"mask has shape \(2, 3\)"),
        (([0, 1], [0, 1, 2]), errors.BroadcastError, "arrays of an index must broadcast"),
    ],
)
def test_what_is_no_index_raises(index, error, words):
    with pytest.raises(error, match=words):
        vf.device_put(array((4, 3)))[index]


@pytest.mark.parametrize("index", [0, [0], np.array([0]), np.zeros((0, 2), int), slice(None)])
def test_scalars_have_no_elements_to_index(index):
    scalar = vf.device_put(np.float32(5))
    places = [index] if isinstance(index, (int, list, slice)) else [index, vf.device_put(index.astype(np.int32))]
    for place in places:
        for read in (lambda v: v[place], vf.jit(lambda v: v[place]), lambda v: v.at[place].set(1.0)):
            with pytest.raises(errors.OutOfBoundsError, match="too many indices.*0 dimensions, but 1"):
                read(scalar)


def test_traced_masks_and_bounds_raise_with_a_remedy():
    with pytest.raises(errors.ConcretizationError, match="where"):
        vf.jit(lambda v: v[v > 0])(array((3,)))
    with pytest.raises(errors.TracerIndexError, match="dynamic_slice"):
        vf.jit(lambda v, n: v[:n])(array((3,)), 2)


def primitives(function, *args):
    program = trace_to_jaxpr(lambda *values: [function(*values)], [aval_of(arg) for arg in args])
    return [eqn.primitive.name for eqn in program.eqns]


def test_sequences_inside_of_an_index_are_arrays():
    x = np.arange(12).reshape(3, 4)
    for index in (((0, 2), (1, 3)), (((0, 1), (1, 2)), 0), (0, [1, 2]), (range(2), slice(1, 3))):
        np.testing.assert_array_equal(vf.numpy.asarray(x)[index], x[index])
    for index in (((0, 2), (1, 3)), (((0, 1), (1, 2)), 0), (0, [1, 2])):
        np.testing.assert_array_equal(vf.jit(lambda v, i: v[i])(x, index), x[index])
    assert vf.numpy.asarray(x)[(), :2].shape == x[(), :2].shape
    with pytest.raises(errors.ArgumentTypeError, match="one length"):
        vf.numpy.asarray(x)[((0, 1), (2,)), 0]


@pytest.mark.wide
def test_each_form_becomes_the_simplest_primitives():
    """Basic indexing must stay free of gathers. Compilers make reshapes of JAX's `squeeze`."""
    x, i = array((4, 3)), np.int32(1)
    assert primitives(lambda v: v[...], x) == []
    assert primitives(lambda v: v[1:3], x) == ["slice"]
    assert primitives(lambda v: v[0], x) == ["slice", "squeeze"]
    assert primitives(lambda v: v[:, ::-1], x) == ["rev"]
    assert primitives(lambda v: v[1, ::-2], x) == ["slice", "rev", "squeeze"]
    assert primitives(lambda v, k: v[k, 1:], x, i)[-2:] == ["dynamic_slice", "squeeze"]
    assert primitives(lambda v, k: v[k, ::2], x, i)[-3:] == ["slice", "dynamic_slice", "squeeze"]
    assert primitives(lambda v: v[[0, 2]], x) == ["gather"]
    assert primitives(lambda v: v[[0, 2], 1:], x) == ["slice", "gather"]
    assert primitives(lambda v, k: v[k], x, np.array([1, 2]))[-1] == "gather"
