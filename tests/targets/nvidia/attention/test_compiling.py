"""Which attention runs on matrix units, and LLVM compiles its kernels: in other processes, which it would end if it could not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvidia.matmul.test_compiling import ptx
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window
from volta_fn.targets.nvidia.attention import SCHEDULES, attention, attention_gradient, worthwhile
from volta_fn.targets.nvidia.attention.tiles import AttentionSchedule
from volta_fn.targets.nvidia.kernel import header_of

ROWS_FIRST = Axes((0, 2), 1, 3)
FORM = Form(ROWS_FIRST, ROWS_FIRST, ROWS_FIRST, ROWS_FIRST, 0.125, -1e38, window=CAUSAL)


def rows(queries: int = 1000, width: int = 64, dtype: str = "bfloat16") -> ShapedArray:
    """Return the type of an operand."""
    return ShapedArray((4, queries, 12, width), np.dtype(getattr(ml_dtypes, dtype, dtype)))


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("queries", [4200, 1000, 64])
@pytest.mark.parametrize(("device", "dtype"), [(AMPERE, "float16"), (HOPPER, "bfloat16")], ids=["ampere", "hopper"])
def test_kernels(device: TargetCapabilities, dtype: str, queries: int, width: int, tmp_path: Path) -> None:
    x = rows(queries, width, dtype)
    forward = attention((x,) * 3, {"form": FORM._replace(cotangent=None)}, device)
    backward = attention_gradient((x,) * 4 + (ShapedArray((48, queries, 2), np.dtype(np.float32)), x), {"form": FORM}, device)
    assert (len(forward.dispatches), len(backward.dispatches)) == (1, 3)
    is_by_groups = device is HOPPER and queries > 64
    is_joint = device is HOPPER and queries == 4200
    simple = [backward.dispatches[0], *([backward.dispatches[2]] if is_joint else [])]  # statistics, and sums that are rounded
    assert ("cp.reduce.async.bulk" in backward.dispatches[1].source) == is_joint
    for dispatch in (*forward.dispatches, *backward.dispatches):
        header = header_of(dispatch.source)
        assert header is not None
        assert header.shared <= device.block_memory
        has_groups = is_by_groups or (device is HOPPER and dispatch in forward.dispatches)
        assert bool(header.maps) == (has_groups and dispatch not in simple)
        code = ptx(dispatch.source, tmp_path, "sm_90a" if device is HOPPER else "sm_80")
        assert ".local" not in code
        if header.maps:
            assert device is HOPPER
            assert all(name in code for name in ("wgmma.mma_async", "cp.async.bulk.tensor.4d", "ex2.approx.ftz.f32", "st.global.v4.b32"))
        elif dispatch not in simple:
            assert all(name in code for name in ("mma.sync", "ldmatrix", "cp.async.cg", "ex2.approx.ftz.f32", "st.global.v4.b32"))


def test_what_matrix_units_compute() -> None:
    x = rows()
    form = FORM._replace(cotangent=None)
    assert worthwhile((x,) * 3, form, AMPERE)
    assert not worthwhile((x,) * 3, form, NONE)
    assert not worthwhile((rows(dtype="float32"),) * 3, form, AMPERE)
    assert not worthwhile((rows(width=80),) * 3, form, AMPERE)
    assert not worthwhile((rows(queries=16),) * 3, form, AMPERE)
    assert not worthwhile((x,) * 3, form._replace(scale=-1.0), AMPERE)
    assert not worthwhile((x,) * 3, form._replace(scale=1e-39), AMPERE)
    assert not worthwhile((x, x, x, ShapedArray((1000,), np.dtype(np.float32))), form._replace(biased=True), AMPERE)
    assert not worthwhile((x, x, x, ShapedArray((1000, 1000), np.dtype(np.bool_))), form._replace(masks=1), AMPERE)
    assert not worthwhile((x,) * 3, form._replace(window=Window(100, 0)), AMPERE)
    assert not worthwhile((x,) * 3, form._replace(softcap=2.0), AMPERE)
    transposed = Axes((0, 2), 3, 1)
    assert not worthwhile((ShapedArray((4, 64, 12, 1000), x.dtype),) * 3, form._replace(q=transposed, k=transposed, v=transposed), AMPERE)


def test_other_attention_is_shaders() -> None:
    x = rows(width=80)
    for dispatch in attention((x,) * 3, {"form": FORM._replace(cotangent=None)}, HOPPER).dispatches:
        assert header_of(dispatch.source) is None


def test_shared_memory_of_schedules() -> None:
    for schedules in SCHEDULES.values():
        for options in schedules:
            by_warps = [s for s in options if isinstance(s, AttentionSchedule)]
            assert all(s.tile % s.step == 0 for s in by_warps)
            rows = [s.rows for s in by_warps]
            assert rows == sorted(rows, reverse=True)
