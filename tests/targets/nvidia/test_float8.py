"""Conversions of floats of 8 bits on an emulated GPU, against those of ml_dtypes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.targets.nvidia.emulation import Emulator
from tests.targets.nvidia.matmul.test_compiling import ptx
from tests.targets.nvidia.planning import AMPERE, HOPPER, shaped
from volta_fn import nn
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.pipeline import lower
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.nvidia.float8 import convert_element_type
from volta_fn.targets.nvidia.matmul import computes_product
from volta_fn.targets.nvidia.target import NvidiaTarget

NARROW = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu]
WIDE = [np.float32, np.float16, ml_dtypes.bfloat16]


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers of another dtype, by the routine; what it does not write is 99."""
    routine = convert_element_type((ShapedArray(x.shape, x.dtype),), {"new_dtype": dtype}, HOPPER)
    assert routine is not None
    ((dispatch,), count) = routine.dispatches, -(-x.nbytes // 4) * 4
    source, result = np.full(count, 99, np.uint8), np.full(-(-x.size * dtype.itemsize // 4) * 4 + 16, 99, np.uint8)
    source[: x.nbytes] = x.view(np.uint8)
    Emulator(dispatch.source).run([source, result], dispatch.workgroups[0])
    end = -(-x.size * dtype.itemsize // 4) * 4
    assert (result[end:] == 99).all(), "numbers beyond the end"
    return result[: x.size * dtype.itemsize].view(dtype)


def assert_same(actual: np.ndarray, expected: np.ndarray, x: np.ndarray) -> None:
    """Equal bits, any NaN for any other."""
    bits = f"u{actual.itemsize}"
    same = (actual.view(bits) == expected.view(bits)) | (np.isnan(actual.astype(np.float32)) & np.isnan(expected.astype(np.float32)))
    assert same.all(), [(x[k], actual[k], expected[k]) for k in np.flatnonzero(~same)[:5]]


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_all_numbers_of_8_bits(narrow: type, wide: type) -> None:
    is_subnormal = narrow is ml_dtypes.float8_e8m0fnu and wide is ml_dtypes.bfloat16  # 2^-127: the host's instruction gives 0
    x: np.ndarray = np.arange(int(is_subnormal), 256, dtype=np.uint8).view(narrow)
    with np.errstate(all="ignore"):
        assert_same(converted(x, np.dtype(wide)), x.astype(np.float32).astype(wide), x)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_rounding_to_8_bits(narrow: type, wide: type) -> None:
    """Every number of 8 bits, what lies in the middle between two of them, and next to that; infinities, NaN, and too large numbers."""
    exact = np.arange(256, dtype=np.uint8).view(narrow).astype(np.float32)
    exact = np.unique(exact[np.isfinite(exact)])
    middles = (exact[1:] + exact[:-1]) / 2
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=64).astype(np.float32) * np.exp2(rng.uniform(-20, 20, 64)).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 464, 464.5, 480, 61439, 61440, -65536, 3e38, -1.0, 2.0**-127, 2.0**-149])
    with np.errstate(all="ignore"):
        x: np.ndarray = np.concatenate([exact, middles, np.nextafter(middles, 9e9), np.nextafter(middles, -9e9), drawn, special]).astype(
            wide
        )
        assert_same(converted(x, np.dtype(narrow)), x.astype(np.float32).astype(narrow), x)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 1023, 1025])
def test_the_last_thread_has_fewer_numbers(count: int) -> None:
    x = np.linspace(-3, 3, count).astype(np.float32)
    narrow = x.astype(ml_dtypes.float8_e4m3fn)
    assert_same(converted(x, narrow.dtype), narrow, x)
    assert_same(converted(narrow, np.dtype(ml_dtypes.bfloat16)), narrow.astype(ml_dtypes.bfloat16), narrow)


def test_other_conversions_have_no_routine() -> None:
    x = ShapedArray((8,), np.dtype(np.float32))
    e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
    assert convert_element_type((x,), {"new_dtype": e4m3}, AMPERE) is None
    assert convert_element_type((x,), {"new_dtype": np.dtype(np.float16)}, HOPPER) is None
    assert convert_element_type((x,), {"new_dtype": np.dtype(ml_dtypes.float8_e4m3b11fnuz)}, HOPPER) is None
    assert convert_element_type((ShapedArray((8,), np.dtype(np.int32)),), {"new_dtype": e4m3}, HOPPER) is None
    assert convert_element_type((ShapedArray((0,), e4m3),), {"new_dtype": x.dtype}, HOPPER) is None


def test_scaled_products_run_on_matrix_units() -> None:
    numbers, scales = shaped(1, 512, 512, dtype="float8_e4m3fn"), shaped(1, 512, 16, dtype="float8_e8m0fnu")
    target = NvidiaTarget(HOPPER)
    program = lower(vf.jit(nn.scaled_matmul).lower(numbers, numbers, scales, scales).jaxpr, target)
    assert [target.host_reason(item) for item in program.items] == [None] * len(program.items)
    assert [n for n, item in enumerate(program.items) if isinstance(item.node, KernelCall) and computes_product(item.node.kernel, HOPPER)]


@pytest.mark.parametrize(("narrow", "count"), [(ml_dtypes.float8_e4m3fn, 8), (ml_dtypes.float8_e5m2, 9)])
def test_kernels_use_the_instructions(narrow: type, count: int, tmp_path: Path) -> None:
    for source, target in ((np.float32, narrow), (narrow, ml_dtypes.bfloat16)):
        routine = convert_element_type((ShapedArray((count,), np.dtype(source)),), {"new_dtype": np.dtype(target)}, HOPPER)
        assert routine is not None
        code = ptx(routine.dispatches[0].source, tmp_path, "sm_90a")
        assert code.count("cvt.rn.satfinite.e" if source is np.float32 else "cvt.rn.f16x2.e") == 2
