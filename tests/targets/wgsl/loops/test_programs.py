"""Shaders of fused programs against the interpreter: rows, columns, transposes, long rows, masks, random programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import layer_norm, rms_norm
from tests.compiler.ir.cases import ROWS, inputs_of, kernels_of, shaped
from tests.compiler.ir.oracle import fuse_function
from tests.targets.wgsl.loops.kernels import DEVICES, agrees, run_kernel
from tests.targets.wgsl.running import run_routine
from volta_fn import lax
from volta_fn.codegen.loops import RowPass
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.kernel import interpret
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import JaxprError
from volta_fn.lazy_imports import load
from volta_fn.targets.wgsl.loops import routine, rows, schedule

#: Lengths of less than a vector, of vectors, of some more, and of rows that are not kept in registers.
LENGTHS = [3, 16, 65, 300, 5000]


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("function", "args"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_rows(function: Callable[..., Any], args: Callable[[int], tuple[Any, ...]], size: int) -> None:
    for kernel in kernels_of(function, *args(size)):
        agrees(kernel, inputs_of(kernel), f"rows of {size}", 8.0)


@pytest.mark.parametrize("columns", [20, 36, 64])
def test_short_rows_that_are_very_many(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BUSY", 300)

    def function(x: Any) -> Any:
        powers = jnp.exp(x - x.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True), lax.argmax(x, 1)

    for kernel in kernels_of(function, shaped(301, columns)):
        agrees(kernel, inputs_of(kernel), f"rows of {columns}", 8.0)


def test_packed_results_come_first_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("volta_fn.targets.wgsl.loops.routine"), "BUSY", 300)
    for kernel in kernels_of(lambda x, y: (x * y, x > y, x - y), shaped(30, 20), shaped(30, 20)):
        (dispatch,) = routine(kernel, DEVICES[0]).dispatches
        assert len(dispatch.written_buffers) == len(kernel.outputs)
        agrees(kernel, inputs_of(kernel), "packed results")


#: Columns that fill words (36) or not (37): of dtypes that are several in a word both, of others one.
DTYPES = [*itertools.product(["float16", "bfloat16", "int8", "uint8", "uint16", "bool"], [36, 37])]
DTYPES += [("float64", 36), ("int32", 37), ("int64", 37), ("uint64", 36)]


@pytest.mark.parametrize(("dtype", "columns"), DTYPES)
def test_dtypes(dtype: str, columns: int) -> None:
    where = lambda x, y: (jnp.where(x == y, x, y), x[::-1], x.T, lax.pad(x, np.zeros((), x.dtype), [(1, 1, 0), (2, 0, 0)]))
    for kernel in fuse_function(where, shaped(20, columns, dtype=dtype), shaped(20, columns, dtype=dtype)).kernels:
        agrees(kernel, inputs_of(kernel), dtype)
    if dtype != "bool":
        reductions = lambda x: (x.sum(1), x.sum(0), x.max(1), x.min(0), lax.argmax(x, 1), lax.argmin(x, 0))
        for kernel in fuse_function(reductions, shaped(columns, 40, dtype=dtype)).kernels:
            agrees(kernel, inputs_of(kernel), dtype)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16", "bool"])
def test_last_words_that_are_not_full(dtype: str) -> None:
    """What is behind an array's end in its last word is no element, wherever elements go one by one."""
    elsewhere = lambda x, y: (jnp.maximum(x, y)[::-1], lax.pad(jnp.maximum(x, y), np.ones((), dtype), [(1, 0, 2)]), x[::-1] == y)
    for size in (5, 6, 7, 259):
        for kernel in fuse_function(elsewhere, shaped(size, dtype=dtype), shaped(size, dtype=dtype)).kernels:
            agrees(kernel, inputs_of(kernel), f"{size} of {dtype}")


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "bfloat16"])
def test_ends_of_rows_that_others_follow(dtype: str) -> None:
    """What follows a row in memory is no element of it, wherever elements go one by one."""
    elsewhere = lambda x: (x[0] + x[0], (x[0] + x[0])[::-1], x[2][::-1])
    for size in (5, 6, 7, 17, 259):
        for kernel in fuse_function(elsewhere, shaped(4, size, dtype=dtype)).kernels:
            agrees(kernel, inputs_of(kernel), f"{size} of {dtype}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_sums_and_products(dtype: str) -> None:
    cases = [(lambda x: (x.sum(1), x.prod(0), (x * x).sum()), (20, 70)), (lambda x: x.sum(), (100_001,))]
    for function, shape in cases:
        for kernel in kernels_of(function, shaped(*shape, dtype=dtype)):
            agrees(kernel, inputs_of(kernel), dtype, 8.0)


def test_nan_wins_and_the_first_of_equals() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (50, 40)).astype(np.float32)
    x[5, 7] = x[5, 30] = x[6, 0] = x[7, 39] = x[20, 3] = np.nan
    x[8] = -np.inf
    x[9] = np.inf
    for axis in (0, 1):
        f = lambda x, axis=axis: (x.max(axis), x.min(axis), lax.argmax(x, axis), lax.argmin(x, axis))
        for kernel in kernels_of(f, shaped(50, 40)):
            agrees(kernel, [x], "extremes")
    (kernel,) = kernels_of(lambda x: (x.max(), x.min(), lax.argmax(x, 0), lax.argmin(x, 0)), shaped(120_003))
    long = rng.integers(-3, 4, 120_003).astype(np.float32)
    agrees(kernel, [long], "extremes of a long row")
    long[[70_001, 70_002, 110_000]] = np.nan
    agrees(kernel, [long], "extremes of a long row with NaN")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_divisions_by_constant_zeros(dtype: str) -> None:
    x = np.array([-2.0, 3.0, 0.0, np.inf]).astype(kernels_of(jnp.negative, shaped(4, dtype=dtype))[0].inputs[0].dtype)
    for zero in (0.0, -0.0):
        for kernel in kernels_of(
            lambda x, zero=zero: (x / jnp.full(4, zero, x.dtype), jnp.full(4, zero, x.dtype) / x), shaped(4, dtype=dtype)
        ):
            agrees(kernel, [x], "divisions by zero")


def test_reductions_of_nothing() -> None:
    f = lambda x: (x.sum(1), x.prod(1), lax.reduce_max(x, (1,)), (x + 1.0).sum(0))
    for kernel in kernels_of(f, shaped(3, 0)):
        agrees(kernel, inputs_of(kernel), "reductions of nothing")


LONG: list[tuple[str, Callable[..., Any], tuple[Any, ...], int]] = [
    ("sum", lambda x, y: ((x * y).sum() / 7.0, x.max()), (shaped(200_001), shaped(200_001)), 2),
    ("sum-of-bytes", lambda x: (x.sum(), lax.argmin(x, 0)), (shaped(200_000, dtype="int8"),), 2),
    ("columns", lambda x, b: (x.sum(0) * b, lax.argmin(x, 0)), (shaped(20_001, 24), shaped(24)), 2),
    ("channels", lambda x: (x.mean((0, 2)), x.max((0, 2))), (shaped(8, 3, 40_000),), 2),
    ("rms-norm", rms_norm, (shaped(3, 60_000), shaped(60_000)), 3),
    ("stages", lambda x: (x.max(1), (x - x.max(1, keepdims=True)).sum(1), x * 2.0), (shaped(3, 60_001),), 4),
]


@pytest.mark.parametrize(("function", "args", "dispatches"), [c[1:] for c in LONG], ids=[c[0] for c in LONG])
def test_few_long_rows_are_reduced_in_chunks(function: Callable[..., Any], args: tuple[Any, ...], dispatches: int) -> None:
    (kernel,) = kernels_of(function, *args)
    assert len(routine(kernel, TargetCapabilities()).dispatches) == dispatches
    agrees(kernel, inputs_of(kernel), "chunks", 8.0)


@pytest.mark.parametrize("size", [100_003, 123_457])
def test_long_rows_of_counters_are_reduced_in_chunks(size: int) -> None:
    """Chunks are neighbours in memory, and the last one is shorter."""
    for kernel in kernels_of(lambda x: (jnp.arange(size, dtype="uint32") ^ x).max(), shaped(dtype="uint32")):
        assert len(routine(kernel, DEVICES[0]).dispatches) == 2
        agrees(kernel, [np.array([5], np.uint32)], "counters")


def test_a_split_kernel_binds_no_more_buffers_than_there_are() -> None:
    f = lambda a, b, c, d, e, g: a * b + c * d + e * g - (a * b).max(1, keepdims=True)
    (kernel,) = kernels_of(f, *[shaped(2, 50_000)] * 6)
    for buffers in (7, 8, 16):
        compiled = routine(kernel, TargetCapabilities(buffers=buffers))
        assert max(len(d.buffers) for d in compiled.dispatches) <= buffers
        inputs = inputs_of(kernel)
        (result,) = run_routine(compiled, inputs, [((2, 50_000), np.float32)])
        np.testing.assert_allclose(result, interpret(kernel, *inputs)[0].reshape(2, 50_000), rtol=1e-4, atol=1e-5)


TRANSPOSES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("whole-squares", lambda x: x.T * 2.0, (shaped(160, 128),)),
    ("parts-of-squares", lambda x: x.T * 2.0, (shaped(161, 130),)),
    ("with-another", lambda x, y: x[::-1].T + y, (shaped(164, 130), shaped(130, 164))),
    ("bytes", lambda x: (x.T, x + 1), (shaped(160, 132, dtype="uint8"),)),
    ("halves", lambda x: x.T * 2, (shaped(162, 128, dtype="bfloat16"),)),
    ("halves-across", lambda x: x.T * 2, (shaped(160, 130, dtype="bfloat16"),)),
    ("other-halves", lambda x: (x.T * 2, x + 1), (shaped(144, 130, dtype="float16"),)),
    ("complex", lambda x: (x.T * 2, x + 1), (shaped(144, 130, dtype="complex64"),)),
    ("narrow", lambda x: x.transpose(0, 2, 1) + 1.0, (shaped(60, 16, 20),)),
    ("batched", lambda x: x.transpose(0, 2, 1) + 1.0, (shaped(8, 36, 100),)),
    ("rotated", lambda x: x.transpose(2, 0, 1) + 1.0, (shaped(8, 36, 100),)),
    ("padded", lambda x: lax.pad(x, np.float32(3), [(1, 2, 0), (3, 1, 0)]).T * 2.0, (shaped(200, 100),)),
]


@pytest.mark.parametrize("large", [False, True], ids=["small-squares", "large-squares"])
@pytest.mark.parametrize(("function", "args"), [c[1:] for c in TRANSPOSES], ids=[c[0] for c in TRANSPOSES])
def test_transposes(function: Callable[..., Any], args: tuple[Any, ...], large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_MANY_ITERATIONS", 0 if large else 1 << 30)
    for kernel in fuse_function(function, *args).kernels:
        agrees(kernel, inputs_of(kernel), "a transpose")


def test_transposes_go_through_workgroup_memory() -> None:
    (kernel,) = kernels_of(lambda x: x.T * 2.0, shaped(160, 128))
    (dispatch,) = routine(kernel, TargetCapabilities()).dispatches
    assert "workgroupBarrier" in dispatch.source


@pytest.mark.parametrize(("size", "dtype"), [(1_100_001, "float32"), (4_400_002, "int8"), (4_400_016, "int8"), (4_194_312, "bfloat16")])
def test_large_arrays(size: int, dtype: str) -> None:
    (kernel,) = kernels_of(lambda x, y: x + y, shaped(size, dtype=dtype), shaped(size, dtype=dtype))
    inputs = inputs_of(kernel)
    (actual,) = run_kernel(kernel, inputs)
    (wanted,) = interpret(kernel, *inputs)
    assert actual.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_are_as_exact_as_those_of_pairs(axis: int | None) -> None:
    (kernel,) = kernels_of(lambda x: x.sum(axis), shaped(1000, 3000))
    x = np.random.default_rng(0).random((1000, 3000)).astype(np.float32)
    exact = x.astype(np.float64).sum(axis)
    worst = lambda y: np.max(np.abs(y.reshape(exact.shape) - exact) / exact)
    for device in DEVICES:
        assert worst(run_kernel(kernel, [x], device)[0]) <= worst(x.sum(axis)) + 1e-7


def test_a_row_that_fits_into_registers_is_read_once() -> None:
    (kernel,) = kernels_of(layer_norm, shaped(64, 1024), shaped(1024), shaped(1024))
    for device in DEVICES:
        (dispatch,) = routine(kernel, device).dispatches
        assert "for (" not in dispatch.source.split("num_subgroups")[0]
        invocations = dispatch.workgroups[0] * int(dispatch.source.split("@workgroup_size(")[1].split(")")[0])
        assert dispatch.source.count("= b0[") * invocations == 64 * 1024 // 4


def test_results_in_the_memory_of_an_operand() -> None:
    for dtype in ("float32", "bfloat16"):
        (kernel,) = kernels_of(lambda x, y: x * y + x, shaped(7, 33, dtype=dtype), shaped(7, 33, dtype=dtype))
        place = next(i for i in range(2) if kernel.inputs[i].size == 231)
        (dispatch,) = routine(kernel, TargetCapabilities(), {0: place}).dispatches
        assert sorted(dispatch.buffers) == [1 - place, 2]
        assert dispatch.written_buffers == {2}


def test_a_result_in_the_memory_of_another_ones_operand() -> None:
    def function(x: Any, y: Any) -> Any:
        twice = x.T * 2
        return x.T + y, twice

    x, y = np.random.default_rng(0).normal(size=(2, 256, 256)).astype(np.float32)
    actual = vf.jit(function, donate_argnums=1)(*vf.device_put((x, y.copy()), vf.devices("gpu")[0]))
    for result, wanted in zip(actual, function(x, y), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_texts_are_the_same_every_time() -> None:
    (kernel,) = kernels_of(layer_norm, shaped(50, 400), shaped(400), shaped(400))
    assert routine(kernel, TargetCapabilities()) == routine(kernel, TargetCapabilities())


PROGRAMS: list[Callable[..., Any]] = [
    lambda x: (x - x.mean(-1, keepdims=True)) * x.max(-1, keepdims=True),
    lambda x: (x.sum(0), lax.argmax(x, 0)),
    lambda x: (x.sum(), x.T * 2.0, x.astype("int8")),
    lambda x: (x.sum((0, 2)), x > 0.5) if x.ndim == 3 else (x.min(-1), x[:, 1:] > 0.5),
    lambda x: jnp.concatenate([x, x * 2.0], -1).astype("bfloat16"),
]


@given(shape=st.lists(st.integers(2, 40), min_size=2, max_size=3), program=st.sampled_from(PROGRAMS), device=st.sampled_from(DEVICES))
@settings(max_examples=20, deadline=None)
def test_shapes(shape: list[int], program: Callable[..., Any], device: TargetCapabilities) -> None:
    for kernel in fuse_function(program, vf.ShapeDtypeStruct(tuple(shape), "float32")).kernels:
        inputs = inputs_of(kernel)
        for actual, wanted in zip(run_kernel(kernel, inputs, device), interpret(kernel, *inputs), strict=True):
            np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_a_store_that_a_schedule_forgets_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows.row_passes

    def forgetful(analysis: KernelAnalysis) -> list[RowPass]:
        return [replace(one, stores=[]) for one in whole(analysis)]

    monkeypatch.setattr(rows, "row_passes", forgetful)
    (kernel,) = kernels_of(lambda x: (x * 2, (x * 2).sum(1)), shaped(4, 300))
    with pytest.raises(JaxprError, match="no code was generated"):
        routine(kernel, DEVICES[0])


_X = np.array([1.0, np.nan, np.inf, -np.inf, 1e30, 3e38, 1e-30, 1 / 3, 1e8], np.float32)
_Y = np.array([np.inf, 1.0, 2.0, 3.0, 1e30, -2.5, 7.0, -2.5, np.nan], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * 1e-30 * 1e-30,
        lambda x, y: x * 1e30 * 1e-30,
        lambda x, y: x * 0.1 * y * 0.1,
        lambda x, y: -(x * 1e-30) * 1e-30,
        lambda x, y: 1e-30 * x * x,
        lambda x, y: 0.5 * x * x * y,
        lambda x, y: x + 1 - x,
        lambda x, y: x - y + y,
        lambda x, y: -x + (x + 1),
        lambda x, y: x + 1e8 - 1e8,
        lambda x, y: (x + y) - (1 + y),
        lambda x, y: jnp.sqrt(x) * jnp.sqrt(x),
        lambda x, y: jnp.where(jnp.arange(9) == 2, x, 0) * y,
        lambda x, y: (jnp.arange(9) == 2) * x,
        lambda x, y: jnp.arange(9).astype(jnp.float32) * x,
        lambda x, y: jnp.pad(x[:3], (2, 4)) * y,
    ],
)
def test_compilers_do_not_rearrange(function: Callable[..., Any]) -> None:
    """Constant factors stay apart, common terms do not cancel, NaN times a zero that is chosen is NaN."""
    with np.errstate(all="ignore"):
        expected = np.asarray(vf.jit(function)(_X, _Y))
    actual = np.asarray(vf.jit(function)(*vf.device_put((_X, _Y), vf.devices("gpu")[0])))
    np.testing.assert_allclose(actual, expected, rtol=3e-7, atol=1e-37)


def test_zeros_out_of_bounds_are_unknown() -> None:
    """Where a compiler knows that an element is out of bounds, it would take a literal zero's product with NaN for zero."""
    programs = [
        lambda x, y: jnp.pad(x, (2, 0))[:6] * y,
        lambda x, y: jnp.where(jnp.arange(6) == 2, x, 0.0) * y,
        lambda x, y: (jnp.arange(6) == 2) * x,
    ]
    for program in programs:
        for kernel in kernels_of(program, shaped(6), shaped(6)):
            for device in DEVICES:
                texts = [d.source for d in routine(kernel, device).dispatches if " * v" in d.source]
                literals = ("select(0.0f", ", 0.0f,", "f32 = 0.0f;\n  if", "f32(v")
                assert not [(text, part) for text in texts for part in literals if part in text]


def test_products_with_a_factor_in_common_are_unknown() -> None:
    """NVIDIA's compiler computes x * x first in y * x * x, and takes the square of a root for its argument."""
    (kernel,) = kernels_of(lambda x, y: y * x * x, shaped(6), shaped(6))
    for device in DEVICES:
        (text,) = [d.source for d in routine(kernel, device).dispatches]
        assert text.count("bitcast<f32>(bitcast<u32>(") >= text.count(" * v") // 2 > 0
    (kernel,) = kernels_of(lambda x: jnp.sqrt(x) * jnp.sqrt(x), shaped(6))
    for device in DEVICES:
        assert "(sqrt(x))" in (text := routine(kernel, device).dispatches[0].source) or "bitcast<u32>(v" in text


def test_rows_with_many_results_are_loops() -> None:
    """A workgroup has registers for one value of each of 32,768 elements: NVIDIA's compiler mistook indices where it kept many more."""

    def function(x: Any) -> Any:
        values = [x * k for k in range(2, 8)]
        return [*values, x.sum()]

    (kernel,) = kernels_of(function, shaped(18432))
    analysis = KernelAnalysis(kernel)
    large = TargetCapabilities(subgroups=True, subgroup_least=32, subgroup_most=32, invocations=1024, buffers=16, workgroup_memory=1 << 15)
    assert not schedule.rows_or_columns(analysis, large).resident
    (kernel,) = kernels_of(lambda x: (x * 2.0, x.sum()), shaped(18432))
    assert schedule.rows_or_columns(KernelAnalysis(kernel), large).resident
