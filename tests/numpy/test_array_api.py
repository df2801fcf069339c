"""What the Array API standard asks of functions beyond what NumPy's tests here cover; array-api-tests itself is run by tools/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, AxisError, ShapeError

X = vnp.ones((2, 3))


@pytest.mark.parametrize(
    "results", [vnp.meshgrid(vnp.ones(2), vnp.ones(3)), vnp.meshgrid(), vnp.broadcast_arrays(X, vnp.ones(3)), vnp.unstack(X)]
)
def test_several_arrays_are_a_tuple(results: Any) -> None:
    assert type(results) is tuple


#: Calls with an axis that no array of two dimensions has.
AXES: dict[str, Callable[[int], Any]] = {
    **{name: lambda axis, f=getattr(vnp, name): f(X, axis=axis) for name in (
        "sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "argmax", "argmin", "argsort", "sort", "cumulative_sum",
        "cumulative_prod", "flip", "squeeze", "count_nonzero", "diff", "unstack", "median", "expand_dims",
    )},
    "concat": lambda axis: vnp.concat([X, X], axis=axis), "take": lambda axis: vnp.take(X, vnp.array([0]), axis=axis),
    "stack": lambda axis: vnp.stack([X, X], axis=axis), "roll": lambda axis: vnp.roll(X, 1, axis=axis),
    "moveaxis": lambda axis: vnp.moveaxis(X, 0, axis), "permute_dims": lambda axis: vnp.permute_dims(X, (0, axis)),
    "take_along_axis": lambda axis: vnp.take_along_axis(X, vnp.zeros((2, 3), int), axis=axis),
    "vecdot": lambda axis: vnp.vecdot(X, X, axis=axis),
    "repeat": lambda axis: vnp.repeat(X, 2, axis=axis), "top_k": lambda axis: vnp.top_k(X, 1, axis=axis),
    "tensordot": lambda axis: vnp.tensordot(X, X, axes=((axis,), (0,))), "cross": lambda axis: vnp.linalg.cross(X, X, axis=axis),
    "vector_norm": lambda axis: vnp.linalg.vector_norm(X, axis=axis), "fft": lambda axis: vnp.fft.fft(X, axis=axis),
    "fftshift": lambda axis: vnp.fft.fftshift(X, axes=axis), "swapaxes": lambda axis: vnp.swapaxes(X, 0, axis),
}  # fmt: skip


@pytest.mark.parametrize("name", AXES)
def test_an_axis_out_of_range_is_an_index_error_and_a_value_error(name: str) -> None:
    for axis in (5, -6):
        with pytest.raises(AxisError) as caught:
            AXES[name](axis)
        assert isinstance(caught.value, IndexError)
        assert isinstance(caught.value, ShapeError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: vnp.clip(vnp.ones(2, complex), 0, 1),
        lambda: vnp.astype(X, "datetime64[s]"),
        lambda: vnp.zeros(2, object),
        lambda: vnp.floor(vnp.ones(2, complex)),
        lambda: vnp.partition(vnp.ones(2, complex), 0),
        lambda: vnp.bitwise_and(X, X),
        lambda: vnp.finfo("int8"),
        lambda: vnp.can_cast("text", "int8"),
        lambda: vnp.remainder(vnp.ones(2, complex), 1),
        lambda: vnp.atan2(vnp.ones(2, complex), 1),
    ],
)
def test_a_dtype_that_a_function_does_not_take_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def test_asarray_without_a_copy() -> None:
    x = vnp.ones(2)
    assert vnp.asarray(x, copy=False) is x
    assert vnp.asarray(x, dtype="float32", copy=False) is x
    assert vnp.asarray(x, copy=True) is not x
    for value, dtype in ((x, "int8"), (np.ones(2), None), ([1.0], None), (1.0, None)):
        with pytest.raises(ArgumentError, match=r"copy=False.*from_dlpack"):
            vnp.asarray(value, dtype=dtype, copy=False)


@pytest.mark.wide
def test_linspace_has_the_precision_of_its_dtype() -> None:
    for dtype in ("float64", "complex128"):
        assert vnp.linspace(0.1, 0.7, 5, dtype=dtype).tolist() == pytest.approx(np.linspace(0.1, 0.7, 5).tolist(), rel=4e-16)
    assert vnp.linspace(0, 2**40, 3, dtype="int64").tolist() == [0, 2**39, 2**40]
    assert vnp.linspace(0.1, 0.7, 5, dtype="float16").dtype == "float16"


def test_empty_masks_and_masks_of_other_shapes() -> None:
    assert vnp.zeros((0, 1))[vnp.zeros((0, 0), bool)].shape == (0,)
    assert vnp.zeros((2, 3))[vnp.zeros((2, 0), bool)].shape == (0,)
    for mask in ((0, 4), (3, 3), (2, 3, 1)):
        with pytest.raises(IndexError):
            vnp.zeros((2, 3))[vnp.zeros(mask, bool)]


def test_to_device() -> None:
    x = vnp.ones(2)
    assert x.to_device(x.device) is x
    assert x.to_device("cpu").device == vf.devices("cpu")[0]
    with pytest.raises(ArgumentError, match="streams"):
        x.to_device("cpu", stream=1)
    assert vf.jit(lambda y: y.to_device("cpu") + 1)(x).tolist() == [2.0, 2.0]
