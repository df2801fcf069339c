"""Products with quantised matrices as shaders, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.test_quantized import TOLERANCE, operands
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.quantized import QuantizedLayout, decode, scaled
from volta_fn.targets.wgsl import quantized


def check(layout: QuantizedLayout, arrays: list[np.ndarray]) -> None:
    x, data, scales, *offsets = arrays
    avals = tuple([ShapedArray(a.shape, a.dtype) for a in arrays])
    routine = quantized.quantized_dot(avals, {"layout": layout, "transposed": False}, capabilities())
    assert routine is not None
    weights = scaled(decode(data, layout).astype(np.float64), scales, offsets[0] if offsets else None, layout.group_size)
    expected = x.astype(np.float64) @ weights.swapaxes(-1, -2)
    bound = np.abs(x).astype(np.float64) @ np.abs(weights).swapaxes(-1, -2)
    (out,) = run_routine(routine, arrays, [(expected.shape, x.dtype)])
    assert (np.abs(out.astype(np.float64) - expected) <= 2 * TOLERANCE[x.dtype.name] * bound + 1e-30).all()


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4", "fp8"])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 7), (8, 3), (9, 33), (40, 70)])
@pytest.mark.parametrize(("size", "group"), [(32, 32), (96, 96), (160, 32)])
def test_schemes(scheme: str, rows: int, outputs: int, size: int, group: int) -> None:
    layout = QuantizedLayout(scheme, size, group)
    check(layout, operands(layout, rows, outputs))
    if scheme in ("int8", "int4"):
        check(layout, operands(layout, rows, outputs, offsets=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [2, 12])
def test_dtypes_and_stacks(dtype: str, rows: int) -> None:
    layout = QuantizedLayout("int4", 64, 32)
    check(layout, operands(layout, rows, 6, dtype, True, dtype))
    check(layout, operands(layout, rows, 5, lead=(3,)))
    layout = QuantizedLayout("int8", 12, 4)
    check(layout, operands(layout, rows, 6, dtype, scale="float32"))


@pytest.mark.parametrize(("scheme", "size", "group"), [("int4", 40, 32), ("int8", 6, 6), ("int8", 12, 6)])
def test_what_has_no_routine(scheme: str, size: int, group: int) -> None:
    layout = QuantizedLayout(scheme, size, group)
    avals: Any = [ShapedArray(a.shape, a.dtype) for a in operands(layout, 2, 3)]
    assert not quantized.suits(avals, layout, False)
