"""Parts of references and views of them, beside NumPy's arrays and views."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, RefError, ShapeError, UnsupportedError
from volta_fn.primitives.array_operations.ref_views import RefView, Slice, dslice

SHAPE = (4, 6, 5)


def array() -> np.ndarray:
    return np.arange(120, dtype=np.float32).reshape(SHAPE)


#: An index with `dslice`, and NumPy's.
INDICES = [
    (dslice(1, 2), np.s_[1:3]),
    (dslice(2), np.s_[:2]),
    (dslice(None), np.s_[:]),
    ((..., dslice(1, 3)), np.s_[..., 1:4]),
    ((2, dslice(0, 3, 2)), np.s_[2, 0:5:2]),
    ((dslice(1, 2), 3, dslice(2, 2)), np.s_[1:3, 3, 2:4]),
    ((dslice(0, 2), slice(None), 4), np.s_[0:2, :, 4]),
    ((slice(1, 3), dslice(0, 3), np.array([0, 4])), np.s_[1:3, 0:3, [0, 4]]),
    ((1, ...), np.s_[1]),
]


def traced(index: object, start: vf.Array) -> object:
    """Return an index with the starts of its slices, and its integers, as traced numbers."""
    if isinstance(index, tuple):
        return tuple(traced(item, start) for item in index)
    if isinstance(index, Slice):
        return Slice(start + index.start, index.size, index.stride)
    return start + index if isinstance(index, int) else index


@pytest.mark.parametrize(("index", "plain"), INDICES, ids=str)
@pytest.mark.parametrize("is_traced", [False, True])
def test_parts_are_read_and_written(index, plain, is_traced) -> None:
    expected = array()

    def change(x: vf.Array, zero: vf.Array) -> tuple[vf.Array, vf.Array]:
        ref = vf.new_ref(x)
        at = traced(index, zero) if is_traced else index
        part = ref[at]
        ref[at] = -part
        return part, ref[...]

    part, whole = vf.jit(change)(expected, 0)
    np.testing.assert_array_equal(part, expected[plain])
    expected[plain] *= -1
    np.testing.assert_array_equal(whole, expected)


def test_a_block_at_a_traced_position_is_moved_inside() -> None:
    def last(i: vf.Array) -> tuple[vf.Array, vf.Array]:
        ref = vf.new_ref(vnp.arange(5))
        part = ref[dslice(i, 3)]
        ref[dslice(i, 3)] = 0
        return part, ref[...]

    part, whole = vf.jit(last)(4)
    assert part.tolist() == [2, 3, 4] and whole.tolist() == [0, 1, 0, 0, 0]


def test_views_read_and_write_through_the_reference() -> None:
    ref = vf.new_ref(array())
    expected = array()
    view, other = ref.at[1:3].reshape(2, 10, -1).at[:, 2].T, expected[1:3].reshape(2, 10, -1)[:, 2].T
    assert isinstance(view, RefView) and view.shape == other.shape and view.dtype == np.float32 and view.size == other.size
    np.testing.assert_array_equal(view[...], other)
    view[0] = 7.0
    other[0] = 7.0
    np.testing.assert_array_equal(ref[...], expected)
    np.testing.assert_array_equal(view.swap(1.0, 1), np.full(2, expected[1:3].reshape(2, 10, -1)[:, 2].T[1]))
    other[1] = 1.0
    view.addupdate(2.0)
    other += 2.0
    view.set(0.0, (2, 0))
    other[2, 0] = 0.0
    np.testing.assert_array_equal(ref[...], expected)
    np.testing.assert_array_equal(view.get(), other)
    np.testing.assert_array_equal(ref.transpose(2, 0, 1).at[0].at[dslice(1, 2)][...], expected.transpose(2, 0, 1)[0][1:3])
    assert len(view) == 3 and [row.shape for row in view] == [(2,)] * 3


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint16"])
def test_bits_are_seen_as_another_dtype(dtype) -> None:
    rows = np.arange(-12, 12, dtype=np.int32).reshape(4, 6)
    ref = vf.new_ref(rows)
    view = ref.bitcast(dtype)
    ratio = 4 // np.dtype(dtype).itemsize
    expected = rows[..., None].view(dtype).reshape(4, 6, ratio).swapaxes(1, 2).reshape(4 * ratio, 6)
    np.testing.assert_array_equal(view[...], expected)
    view[...] = view[...]
    np.testing.assert_array_equal(ref[...], rows)
    np.testing.assert_array_equal(vf.new_ref(expected).bitcast("int32")[...], rows)


def test_gradients_and_vmap_pass_through_views() -> None:
    def f(x: vf.Array, i: vf.Array) -> vf.Array:
        ref = vf.new_ref(vnp.zeros(6))
        ref.at[dslice(i, 3)][...] = x * x
        return (ref.reshape(2, 3)[...] * vnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum()

    x = np.array([1.0, 2.0, 3.0], np.float32)
    weights = np.arange(1.0, 7.0)
    gradients = vf.vmap(vf.grad(f), in_axes=(None, 0))(x, vnp.array([0, 2]))
    np.testing.assert_allclose(gradients, [2 * x * weights[:3], 2 * x * weights[2:5]])


def test_references_are_indices() -> None:
    assert vf.new_ref(vnp.arange(5))[vf.new_ref(vnp.array([3, 1]))].tolist() == [3, 1]


def test_slices_of_python() -> None:
    assert Slice.from_slice(slice(1, None, 2), 6) == Slice(1, 3, 2)


def test_errors() -> None:
    ref = vf.new_ref(array())
    with pytest.raises(OutOfBoundsError, match="Out of bound slice"):
        ref[dslice(3, 2)]
    with pytest.raises(OutOfBoundsError, match="too many indices"):
        ref[0, 0, 0, dslice(0, 1)]
    with pytest.raises(OutOfBoundsError, match="one Ellipsis"):
        ref[..., dslice(0, 1), ...]
    with pytest.raises(ArgumentError, match="None or bools"):
        ref[None, dslice(0, 1)]
    with pytest.raises(UnsupportedError, match="size must be known"):
        vf.jit(lambda n: vf.new_ref(vnp.arange(4))[dslice(0, n)])(2)
    with pytest.raises(ArgumentError, match="negative"):
        Slice(0, 1, -1)
    with pytest.raises(ArgumentError, match="step >= 1"):
        Slice.from_slice(slice(None, None, -1), 3)
    with pytest.raises(ArgumentError, match="size must be a Python integer"):
        dslice(vnp.int32(3))
    with pytest.raises(ShapeError, match="cannot reshape"):
        ref.reshape(7, -1)
    with pytest.raises(ShapeError, match="no permutation"):
        ref.transpose(0, 0, 1)
    with pytest.raises(ShapeError, match="bitcast"):
        vf.new_ref(vnp.arange(3)).bitcast("int16")
    with pytest.raises(RefError, match="Cannot store a Ref"):
        ref[...] = ref
    with pytest.raises(DTypeError, match="cannot hold"):
        vf.new_ref(vnp.arange(3))[0] = 1.5
    with pytest.raises(RefError, match="is no array"):
        np.asarray(ref.at[0])
