"""Products of few rows with quantised matrices as machine code, beside the definition in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.running import run_routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.quantized import CODES, QuantizedLayout, decode, scaled
from volta_fn.runtime.llvm.host import host, vector_widths
from volta_fn.targets.cpu import quantized
from volta_fn.targets.cpu import routine as writers
from volta_fn.targets.cpu.matmul import micro_kernel

TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def operands(
    layout: QuantizedLayout, rows: int, outputs: int, dtype: str = "float32", offsets: bool = False, scale: str = "float32", lead: Any = ()
) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (*lead, outputs, layout.width)).astype(np.uint8)
    if layout.scheme == "fp8":
        codes[codes & 127 == 127] = 5
    by_group = [rng.normal(size=(*lead, outputs, layout.groups)).astype(scale) for _ in range(1 + offsets)]
    return [rng.normal(size=(*lead, rows, layout.size)).astype(dtype), codes.view(CODES[layout.scheme]), *by_group]


def check(layout: QuantizedLayout, arrays: list[np.ndarray]) -> None:
    """Check that the routine gives the products of the numbers, in one piece and in three, and stays within its arrays."""
    x, data, scales, *offsets = arrays
    avals = tuple([ShapedArray(a.shape, a.dtype) for a in arrays])
    routine = quantized.quantized_dot(avals, {"layout": layout, "transposed": False})
    assert routine is not None
    weights = scaled(decode(data, layout).astype(np.float64), scales, offsets[0] if offsets else None, layout.group_size)
    expected = x.astype(np.float64) @ weights.swapaxes(-1, -2)
    bound = np.abs(x).astype(np.float64) @ np.abs(weights).swapaxes(-1, -2)
    outputs = [(expected.shape, x.dtype)]
    (whole,), (cut,) = (run_routine(routine, arrays, outputs, chunks) for chunks in (1, 3))
    assert whole.tobytes() == cut.tobytes()
    assert (np.abs(whole.astype(np.float64) - expected) <= TOLERANCE[x.dtype.name] * bound + 1e-30).all()


@pytest.fixture(params=[16, 32, 64])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Vectors of each width that the compiler has, which VOLTA_VECTOR_BYTES bounds."""
    if request.param not in vector_widths() or request.param > host().vector_bytes:
        pytest.skip(f"there are no vectors of {request.param} bytes")
    narrow = host()._replace(vector_bytes=request.param, vector_registers=32 if request.param == 64 else 16)
    for module in (quantized, micro_kernel, writers):
        monkeypatch.setattr(module, "host", lambda: narrow)
    return int(request.param)


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4", "fp8"])
@pytest.mark.parametrize(
    ("size", "group"), [(1, 1), (5, 5), (31, 31), (64, 32), (70, 32), (96, 96), (256, 64), (256, 32), (100, 64), (512, 512), (160, 160)]
)
def test_groups(width: int, scheme: str, size: int, group: int) -> None:
    layout = QuantizedLayout(scheme, size, group)
    if scheme == "nf4" and (width == 16 or not host().triple.startswith("x86")):  # no instruction looks numbers up in a table
        assert not quantized.suits([ShapedArray(a.shape, a.dtype) for a in operands(layout, 1, 7)], layout, False)
        return
    check(layout, operands(layout, 1, 7))
    if scheme in ("int8", "int4"):
        check(layout, operands(layout, 1, 5, offsets=True))


@pytest.mark.parametrize("rows", [*range(1, 10), 17, quantized.MOST_ROWS])
@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_rows(scheme: str, rows: int) -> None:
    layout = QuantizedLayout(scheme, 200, 64)
    for outputs in (1, 9):
        check(layout, operands(layout, rows, outputs))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype: str, scale: str) -> None:
    for scheme in ("int8", "int4"):
        layout = QuantizedLayout(scheme, 130, 64)
        check(layout, operands(layout, 2, 6, dtype, True, scale))


def test_stacks_and_many_rows_of_weights() -> None:
    for layout in (QuantizedLayout("int8", 64, 64), QuantizedLayout("int4", 64, 32)):
        check(layout, operands(layout, 3, 5, lead=(4,)))
        check(layout, operands(layout, 1, 9000))


#: Groups that products by pairs take, and one that they leave.
_GROUPS = {"int8": (16, 32, 64, 96, 128), "int4": (32, 64, 96, 128, 256), "nf4": (32, 64, 128)}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("scheme", list(_GROUPS))
def test_rows_of_every_size(scheme: str, dtype: str) -> None:
    for size in range(1, 71):
        check(QuantizedLayout(scheme, size, size), operands(QuantizedLayout(scheme, size, size), 1 + size % 3, 1 + size % 5, dtype))
        layout = QuantizedLayout(scheme, 4 * size + 1, _GROUPS[scheme][size % len(_GROUPS[scheme])])
        scale = ("float16", "bfloat16", "float32")[size % 3]
        check(layout, operands(layout, 1 + size % 9, 3, dtype, scheme != "nf4" and size % 2 == 0, scale))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("scheme", list(_GROUPS))
def test_every_code_stands_for_its_number(scheme: str, dtype: str) -> None:
    """Rows of one code each, multiplied by ones, give its number without any rounding but that of the result."""
    layout = QuantizedLayout(scheme, 64, 32)
    data = np.repeat(np.arange(256, dtype=np.uint8)[:, None], layout.width, 1).view(CODES[scheme])
    x, scales = np.zeros((1, 64), np.float32).astype(dtype), np.ones((256, 2), np.float32)
    x[0, 5] = 1
    avals = tuple([ShapedArray(a.shape, a.dtype) for a in (x, data, scales)])
    routine = quantized.quantized_dot(avals, {"layout": layout, "transposed": False})
    assert routine is not None
    (out,) = run_routine(routine, [x, data, scales], [((1, 256), x.dtype)])
    expected = decode(data, layout)[:, 5].astype(dtype).astype(np.float64)
    np.testing.assert_allclose(out[0].astype(np.float64), expected, 1e-5 if scheme == "nf4" and dtype == "float16" else 0)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(("scheme", "step"), [("int4", 32), ("nf4", 32), ("int8", 16)])
def test_rows_that_share_lines(scheme: str, step: int, rows: int) -> None:
    """Two or four rows of weights are whole cache lines, or eight of them a tile, and a few rows are left."""
    for size in (step, 2 * step, 3 * step, 5 * step, 6 * step, 8 * step, 12 * step, 18 * step):
        for group in {step, 2 * step, size}:
            if size % group == 0:
                layout = QuantizedLayout(scheme, size, group)
                for outputs in (3, 4, 13, 24):
                    check(layout, operands(layout, rows, outputs, "bfloat16", scheme != "nf4" and size % 3 == 0, "bfloat16"))
    layout = QuantizedLayout(scheme, 3 * step, step)
    check(layout, operands(layout, rows, 11, "bfloat16", lead=(2,)))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_numbers_that_are_not_finite(dtype: str) -> None:
    """NaN stays NaN; infinity times numbers of 4 bits is infinite, and of 8 bits perhaps NaN; rows without them do not change."""
    for scheme, rows in itertools.product(("int8", "int4"), (4, 2)):
        layout = QuantizedLayout(scheme, 96, 32)
        arrays = operands(layout, rows, 5, dtype)
        routine = quantized.quantized_dot(tuple([ShapedArray(a.shape, a.dtype) for a in arrays]), {"layout": layout, "transposed": False})
        assert routine is not None
        outputs = [((rows, 5), arrays[0].dtype)]
        (clean,) = run_routine(routine, arrays, outputs)
        for number, at in ((np.nan, 40), (np.inf, 95), (-np.inf, 0)):
            before = arrays[0][-1, at]
            arrays[0][-1, at] = number
            (out,) = run_routine(routine, arrays, outputs)
            arrays[0][-1, at] = before
            np.testing.assert_array_equal(out[:-1].astype(np.float32), clean[:-1].astype(np.float32))
            assert not np.isfinite(out[-1].astype(np.float32)).any()
            if np.isnan(number):
                assert np.isnan(out[-1].astype(np.float32)).all()
            elif scheme == "int4":
                weights = scaled(decode(arrays[1], layout), arrays[2], None, 32)[:, at]
                expected = np.where(weights == 0, np.nan, np.copysign(np.inf, weights * np.sign(number)))
                np.testing.assert_array_equal(out[-1].astype(np.float32), expected.astype(np.float32))


def test_nan_of_float8_is_nan() -> None:
    layout = QuantizedLayout("fp8", 40, 40)
    arrays = operands(layout, 2, 3)
    arrays[1][1, 39] = 0xFF
    routine = quantized.quantized_dot(tuple([ShapedArray(a.shape, a.dtype) for a in arrays]), {"layout": layout, "transposed": False})
    assert routine is not None
    (out,) = run_routine(routine, arrays, [((2, 3), arrays[0].dtype)])
    np.testing.assert_array_equal(np.isnan(out), [[False, True, False]] * 2)


def test_what_has_no_routine() -> None:
    layout = QuantizedLayout("int4", 96, 48)
    assert not quantized.suits([ShapedArray(a.shape, a.dtype) for a in operands(layout, 1, 3)], layout, False)
    layout = QuantizedLayout("int8", 64, 64)
    avals = [ShapedArray(a.shape, a.dtype) for a in operands(layout, quantized.MOST_ROWS + 1, 3)]
    assert not quantized.suits(avals, layout, False)
    avals = [ShapedArray(a.shape, a.dtype) for a in operands(layout, 1, 64)]
    assert quantized.suits(avals, layout, False) and not quantized.suits(avals, layout, True)
