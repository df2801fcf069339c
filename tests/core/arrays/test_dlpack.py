"""Memory shared with NumPy, PyTorch and JAX in both directions, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, from_host
from volta_fn.core.devices.device import Device
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, DTypeError, ExportError

pytestmark = pytest.mark.usefixtures("on_cpu")

DTYPES = sorted(dtypes.ALL, key=lambda dtype: dtype.name)
#: Enough elements that each library aligns them as JAX requires of memory that it shares.
COUNT = 1 << 16


def address(x: Any) -> int:
    """Return the address of an array's elements."""
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    return x.unsafe_buffer_pointer() if isinstance(x, jax.Array) else np.asarray(x).__array_interface__["data"][0]


def numbers(dtype: Any) -> Array:
    return (vnp.arange(COUNT) % 100).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_shares_memory_in_both_directions(dtype: np.dtype) -> None:
    x = numbers(dtype).reshape(2, -1).T
    tensor = torch.from_dlpack(x)
    assert address(tensor) == address(x)
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert tensor.shape == x.shape
    back = vnp.from_dlpack(tensor)
    assert address(back) == address(tensor)
    assert back.aval == x.aval
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != ml_dtypes.bfloat16], ids=str)
def test_numpy_shares_memory_in_both_directions(dtype: np.dtype) -> None:
    x = numbers(dtype)
    view = np.from_dlpack(x)
    assert address(view) == address(x)
    assert not view.flags.writeable
    source = np.array(view)[::-3]
    back = vnp.from_dlpack(source)
    assert address(back) == address(source)
    np.testing.assert_array_equal(back, source)
    np.testing.assert_array_equal(vf.jit(lambda a: a)(back), source)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_jax_shares_memory_in_both_directions(dtype: np.dtype) -> None:
    with jax.enable_x64(True):
        x = numbers(dtype)
        theirs = jax.dlpack.from_dlpack(x)
        assert theirs.dtype == dtype
        np.testing.assert_array_equal(theirs, x)
        if address(x) % 64 == 0:  # else JAX copies
            assert address(theirs) == address(x)
        back = vnp.from_dlpack(theirs)
        assert address(back) == address(theirs)
        np.testing.assert_array_equal(back, x)
        again = jax.dlpack.from_dlpack(back)
        assert address(again) == address(theirs)


@pytest.mark.parametrize(
    "make", [lambda: vnp.float32(3), lambda: vnp.zeros((0, 3)), lambda: vnp.broadcast_to(1.5, (3, 4)), lambda: vnp.arange(9.0)[::2]]
)
def test_any_layout_is_read(make: Callable[[], Array]) -> None:
    """JAX reads memory without gaps and repetitions only, and is given copies of others."""
    x = make()
    for read in (np.from_dlpack, torch.from_dlpack, jax.dlpack.from_dlpack):
        np.testing.assert_array_equal(np.asarray(read(x)), x)


def test_copies_can_be_written_to() -> None:
    x = vnp.arange(3.0)
    copy = np.from_dlpack(x, copy=True)
    copy[0] = 7
    assert x[0] == 0
    source = np.arange(3.0)
    y = vnp.from_dlpack(source, copy=True)
    shared = vnp.from_dlpack(source, copy=False)
    source[0] = 7
    assert (float(y[0]), float(shared[0])) == (0.0, 7.0)


def test_memory_outlives_its_first_owner_and_is_not_donated() -> None:
    overwrite = vf.jit(lambda x: x * 0, donate_argnums=0)
    x = vnp.ones(COUNT)
    tensor = torch.from_dlpack(x)
    overwrite(x)
    assert tensor.min() == 1
    tensor = torch.ones(COUNT)
    overwrite(vnp.from_dlpack(tensor))
    assert tensor.min() == 1
    x = vnp.from_dlpack(torch.full((COUNT,), 3.0))
    gc.collect()
    assert vnp.sum(x) == 3 * COUNT


class Elsewhere:
    """A library of the protocol's first version, whose arrays are on some device."""

    def __init__(self, values: np.ndarray, device: tuple[int, int]) -> None:
        self.values, self.device = values, device

    def __dlpack__(self) -> Any:
        if self.device != (1, 0):
            raise BufferError("it is not in host memory")
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_the_first_version_of_the_protocol() -> None:
    values = np.arange(3.0)
    assert address(vnp.from_dlpack(Elsewhere(values, (1, 0)))) == address(values)


@pytest.mark.parametrize(
    ("share", "error", "message"),
    [
        (lambda x: vnp.from_dlpack([1.0]), ArgumentTypeError, "must have the method __dlpack__"),
        (lambda x: vnp.from_dlpack(Elsewhere(np.ones(2), (2, 0))), ExportError, "not in host memory"),
        (lambda x: vnp.from_dlpack(torch.ones(2, requires_grad=True)), ExportError, "detach"),
        (lambda x: vnp.from_dlpack(np.ones(2, np.longdouble)), ExportError, "cannot be shared"),
        (lambda x: vnp.from_dlpack(torch.ones(2, dtype=torch.float8_e5m2)), (ExportError, DTypeError), "float8|cannot be shared"),
        (lambda x: x.__dlpack__(stream=1), ArgumentError, "stream"),
        (lambda x: x.__dlpack__(dl_device=(2, 0)), ExportError, r"cannot be shared with DLPack device \(2, 0\)"),
        (lambda x: vf.jit(torch.from_dlpack)(x), ConcretizationError, "DLPack"),
    ],
)
def test_what_cannot_be_shared(share: Callable[[Array], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        share(vnp.arange(3.0))


def test_arrays_on_gpus_are_copied_to_the_host_if_the_consumer_asks_for_it() -> None:
    gpu = Device("gpu", 1, "a GPU", vf.devices("cpu")[0].backend)
    x = from_host(np.arange(3.0), device=gpu)
    assert x.__dlpack_device__() == (15, 1)
    with pytest.raises(ExportError, match=r"x\.to_device\('cpu'\)"):
        np.from_dlpack(x)
    with pytest.raises(ExportError, match="copy=False"):
        np.from_dlpack(x, device="cpu", copy=False)
    copy = np.from_dlpack(x, device="cpu")
    assert copy.tolist() == [0.0, 1.0, 2.0]
    assert address(copy) != address(x)
    assert str(vnp.from_dlpack(x, device="cpu").device) == "cpu:0"
    for source in (x, np.ones(2)):
        target = "cpu" if source is x else gpu
        with pytest.raises(ExportError, match="copy=False"):
            vnp.from_dlpack(source, device=target, copy=False)
    assert vnp.from_dlpack(np.ones(2), device=gpu).device is gpu
    with pytest.raises(ArgumentError, match="copy=False"):
        np.asarray(x, copy=False)
