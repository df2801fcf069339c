"""What the namespace says of itself, and of dtypes."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import dtypes
from volta_fn.errors import ArgumentError, DeviceError, DTypeError

INFO = vnp.__array_namespace_info__()


def test_versions() -> None:
    assert vnp.__array_api_version__ == "2025.12"
    x = vnp.ones(2)
    for version in (None, "2022.12", "2025.12"):
        assert x.__array_namespace__(api_version=version) is vnp
    with pytest.raises(ArgumentError, match=r"api_version must be one of.*got '2020.1'"):
        x.__array_namespace__(api_version="2020.1")


@pytest.mark.parametrize("width", [None, 32, 64])
def test_every_default_is_what_new_arrays_have(width: Literal[32, 64] | None, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: dtypes.set_width(None))
    dtypes.set_width(width)
    defaults = INFO.default_dtypes()
    assert defaults == INFO.default_dtypes(device="cpu")
    with pytest.raises(DeviceError, match="Unknown backend 'cuda'"):
        INFO.default_dtypes(device="cuda")
    assert defaults["real floating"] == vnp.asarray(1.5).dtype == vnp.zeros(2).dtype
    assert defaults["integral"] == vnp.asarray(1).dtype == vnp.arange(3).dtype
    assert defaults["complex floating"] == vnp.asarray(1j).dtype
    assert defaults["indexing"] == vnp.argsort(vnp.ones(2)).dtype == vnp.argmax(vnp.ones(2)).dtype == vnp.nonzero(vnp.ones(2))[0].dtype


def test_devices() -> None:
    assert isinstance(INFO.devices(), tuple)
    assert INFO.default_device() in INFO.devices()
    assert vf.devices("cpu")[0] in INFO.devices()
    assert vnp.ones(2).device == INFO.default_device()


def test_every_dtype_listed_for_a_device_is_one_that_it_has() -> None:
    for device in INFO.devices():
        for name, dtype in INFO.dtypes(device=device).items():
            assert vnp.zeros(1, dtype, device=device).dtype == getattr(vnp, name)


@pytest.mark.parametrize("kind", ["bool", "signed integer", "integral", "real floating", "numeric", ("bool", "complex floating"), ()])
def test_dtypes_of_a_kind_are_numpys(kind: Any) -> None:
    assert INFO.dtypes(device="cpu", kind=kind) == (np.__array_namespace_info__().dtypes(kind=kind) if kind else {})


def test_unknown_kinds_and_devices() -> None:
    with pytest.raises(ArgumentError, match="'float' is no kind"):
        INFO.dtypes(kind="float")
    with pytest.raises(DeviceError, match="backend"):
        INFO.dtypes(device="abacus")


@pytest.mark.parametrize("rank", [32, 64])
def test_arrays_of_the_most_dimensions(rank: int) -> None:
    assert rank <= INFO.capabilities()["max dimensions"]
    assert (vnp.ones((1,) * rank) + 1).ndim == rank


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_finfo_has_python_numbers(dtype: str) -> None:
    info, wanted = vnp.finfo(dtype), np.finfo(dtype)
    for name in ("eps", "max", "min", "smallest_normal", "tiny", "epsneg"):
        assert type(getattr(info, name)) is float
        assert getattr(info, name) == getattr(wanted, name)
    assert (info.bits, info.dtype) == (wanted.bits, wanted.dtype)
    assert repr(info) == repr(wanted)
    assert pickle.loads(pickle.dumps(info)).max == info.max


def test_limits_of_the_dtypes_of_arrays() -> None:
    assert vnp.finfo(vnp.ones(2, "bfloat16")).eps == 2.0**-7
    assert vnp.iinfo(vnp.ones(2, "int8")).max == 127
    assert vnp.iinfo(np.ones(2, "uint16")).max == 65535
    for limits, dtype in ((vnp.finfo, "int32"), (vnp.iinfo, "float32"), (vnp.finfo, vnp.ones(1, int)), (vnp.iinfo, "text")):
        with pytest.raises(DTypeError):
            limits(dtype)
