"""Kernels of products of few rows, run by an emulator, beside float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.emulation import run_kernel
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE, shaped
from volta_fn import lax, nn
from volta_fn.compiler.ir.kernel import KernelCall, interpret
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import LoweredProgram, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import evaluation_of
from volta_fn.primitives.quantized import QuantizedLayout, decode, scaled
from volta_fn.targets.nvidia.rows import contract, kernel
from volta_fn.targets.nvidia.rows.kernel import RowSchedule, choose
from volta_fn.targets.nvidia.target import NvidiaTarget

BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)

#: The largest error of results relative to the largest: that of rounding once.
TOLERANCES = {BFLOAT16: 4e-3, FLOAT16: 5e-4, FLOAT32: 1e-6}


def numbers(*shape: int, dtype: np.dtype = BFLOAT16) -> np.ndarray:
    """Normal random numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def types_of(arrays: Sequence[np.ndarray]) -> tuple[ShapedArray, ...]:
    """Return the types of arrays."""
    return tuple([ShapedArray(x.shape, x.dtype) for x in arrays])


def check(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare with results in float64."""
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= TOLERANCES[actual.dtype] * np.abs(expected).max()


def quantized(
    values: np.ndarray, scheme: Any, group_size: int | None, symmetric: bool, scale_dtype: np.dtype
) -> tuple[QuantizedLayout, list[np.ndarray], np.ndarray]:
    """Return a layout, its arrays, and the numbers that they stand for in float64."""
    array = nn.quantize_array(values.astype(np.float32), scheme, group_size=group_size, symmetric=symmetric, scale_dtype=scale_dtype)
    arrays = [np.asarray(x) for x in (array.data, array.scales, array.offsets) if x is not None]
    offsets = arrays[2] if len(arrays) == 3 else None
    return array.layout, arrays, scaled(decode(arrays[0], array.layout).astype(np.float64), arrays[1], offsets, array.layout.group_size)


@pytest.mark.parametrize("device", [pytest.param(AMPERE, id="ampere"), pytest.param(HOPPER, id="hopper")])
@pytest.mark.parametrize(
    ("rows", "outputs", "terms", "dtype", "result"),
    [
        (1, 24, 64, BFLOAT16, BFLOAT16),
        (3, 17, 264, BFLOAT16, FLOAT32),  # ragged tiles and regions
        (11, 9, 100, FLOAT16, FLOAT16),  # two products for a fragment, units of 8 bytes
        (2, 9, 1800, BFLOAT16, FLOAT32),  # several turns
    ],
)
def test_floats(device: TargetCapabilities, rows: int, outputs: int, terms: int, dtype: np.dtype, result: np.dtype) -> None:
    x, w = numbers(rows, terms, dtype=dtype), numbers(outputs, terms, dtype=dtype)
    params = {"dimension_numbers": (((1,), (1,)), ((), ())), "preferred_element_type": result}
    routine = contract.routine_of("dot_general", types_of([x, w]), params, device)
    assert routine is not None
    actual = np.full((rows, outputs), np.nan, result)
    run_kernel(routine, [x, w, actual])
    check(actual, x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.parametrize(("scheme", "symmetric"), [("int4", True), ("int8", False)])
def test_large_tiles(monkeypatch: pytest.MonkeyPatch, scheme: str, symmetric: bool) -> None:
    monkeypatch.setattr(kernel, "_MANY", 0)
    monkeypatch.setattr(kernel, "_MUCH", 0)
    layout, arrays, floats = quantized(numbers(50, 192), scheme, 64, symmetric, BFLOAT16)
    x = numbers(9, 192)
    processors = HOPPER._replace(processors=1)
    routine = contract.routine_of("quantized_dot", types_of([x, *arrays]), {"layout": layout, "transposed": False}, processors)
    assert routine is not None
    assert routine.dispatches[0].workgroups[0] == 2
    actual = np.full((9, 50), np.nan, BFLOAT16)
    run_kernel(routine, [x, *arrays, actual])
    check(actual, x.astype(np.float64) @ floats.T)


def test_the_matrix_may_be_the_left_operand() -> None:
    x, w = numbers(72), numbers(40, 72)
    params = {"dimension_numbers": (((1,), (0,)), ((), ())), "preferred_element_type": None}
    routine = contract.routine_of("dot_general", types_of([w, x]), params, HOPPER)
    assert routine is not None
    actual = np.full(40, np.nan, BFLOAT16)
    run_kernel(routine, [w, x, actual])
    check(actual, w.astype(np.float64) @ x.astype(np.float64))


def test_infinities_stay_in_their_rows() -> None:
    """Units beyond the end of a row, which are other rows' or the last one again, count as zeros."""
    x, w = numbers(1, 100), numbers(10, 100)
    w[3, 99] = np.inf
    params = {"dimension_numbers": (((1,), (1,)), ((), ())), "preferred_element_type": None}
    routine = contract.routine_of("dot_general", types_of([x, w]), params, HOPPER)
    assert routine is not None
    actual = np.zeros((1, 10), BFLOAT16)
    run_kernel(routine, [x, w, actual])
    assert np.isinf(actual[0, 3].astype(np.float32))
    assert np.isfinite(np.delete(actual[0], 3).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("scheme", "group_size", "symmetric", "rows", "outputs", "terms", "dtype", "scale_dtype"),
    [
        ("int8", None, True, 1, 24, 64, BFLOAT16, BFLOAT16),
        ("int8", None, False, 9, 9, 76, FLOAT32, FLOAT32),
        ("int8", 64, False, 3, 10, 160, BFLOAT16, FLOAT32),
        ("int8", None, True, 1, 8, 1100, FLOAT16, BFLOAT16),
        ("int4", 64, True, 1, 24, 192, BFLOAT16, BFLOAT16),
        ("int4", 32, False, 2, 9, 352, FLOAT16, FLOAT16),
        ("int4", 128, False, 2, 9, 352, BFLOAT16, BFLOAT16),
        ("int4", 64, True, 3, 11, 100, FLOAT32, FLOAT16),
        ("int4", None, True, 1, 8, 100, BFLOAT16, BFLOAT16),
        ("fp8", None, True, 2, 12, 132, BFLOAT16, BFLOAT16),
        ("fp8", 64, True, 1, 8, 128, FLOAT16, FLOAT32),
    ],
)
def test_quantised_weights(
    scheme: str, group_size: int | None, symmetric: bool, rows: int, outputs: int, terms: int, dtype: np.dtype, scale_dtype: np.dtype
) -> None:
    layout, arrays, floats = quantized(numbers(outputs, terms), scheme, group_size, symmetric, scale_dtype)
    x = numbers(rows, terms, dtype=dtype)
    params = {"layout": layout, "transposed": False}
    routine = contract.routine_of("quantized_dot", types_of([x, *arrays]), params, HOPPER)
    assert routine is not None
    actual = np.full((rows, outputs), np.nan, dtype)
    run_kernel(routine, [x, *arrays, actual])
    check(actual, x.astype(np.float64) @ floats.T)


def test_every_code_is_exact() -> None:
    """Sums of one code times one are that code."""
    codes = np.arange(-128, 128, dtype=np.int8)
    data = np.zeros((256, 64), np.int8)
    data[:, 5] = codes
    layout, scales = QuantizedLayout("int8", 64, 64), np.ones((256, 1), np.float32)
    for dtype in (BFLOAT16, FLOAT16, FLOAT32):
        x = np.ones((1, 64), dtype)
        routine = contract.routine_of("quantized_dot", types_of([x, data, scales]), {"layout": layout, "transposed": False}, HOPPER)
        assert routine is not None
        actual = np.zeros((1, 256), dtype)
        run_kernel(routine, [x, data, scales, actual])
        np.testing.assert_array_equal(actual[0].astype(np.float32), codes)


def test_infinite_x_in_float32() -> None:
    data, scales = np.ones((8, 64), np.int8), np.ones((8, 1), np.float32)
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.inf
    layout = QuantizedLayout("int8", 64, 64)
    routine = contract.routine_of("quantized_dot", types_of([x, data, scales]), {"layout": layout, "transposed": False}, HOPPER)
    assert routine is not None
    actual = np.zeros((1, 8), np.float32)
    run_kernel(routine, [x, data, scales, actual])
    assert np.isposinf(actual).all()


def test_what_has_no_kernel() -> None:
    def routine(*types: Any, layout: QuantizedLayout, device: TargetCapabilities = HOPPER) -> Any:
        return contract.routine_of("quantized_dot", tuple(types), {"layout": layout, "transposed": False}, device)

    x, scales = ShapedArray((1, 64), BFLOAT16), ShapedArray((24, 1), BFLOAT16)
    codes, packed = ShapedArray((24, 64), np.dtype(np.int8)), ShapedArray((24, 32), np.dtype(np.uint8))
    int8 = QuantizedLayout("int8", 64, 64)
    assert routine(x, codes, scales, layout=int8) is not None
    assert routine(x, codes, scales, layout=int8, device=NONE) is None
    assert routine(ShapedArray((17, 64), BFLOAT16), codes, scales, layout=int8) is None
    assert routine(ShapedArray((1, 64), np.dtype(np.float64)), codes, scales, layout=int8) is None
    assert routine(x, packed, scales, layout=QuantizedLayout("nf4", 64, 64)) is None
    bytes_ = ShapedArray((24, 64), np.dtype(np.uint8))
    assert routine(x, bytes_, scales, layout=QuantizedLayout("fp8", 64, 64), device=AMPERE) is None
    odd = ShapedArray((24, 63), np.dtype(np.int8))
    assert routine(ShapedArray((1, 63), BFLOAT16), odd, scales, layout=QuantizedLayout("int8", 63, 63)) is None


def test_results_and_scales_are_numbered_by_32_bits() -> None:
    params = {"dimension_numbers": (((1,), (1,)), ((), ())), "preferred_element_type": None}
    for outputs, is_computed in ((1 << 20, True), (1 << 26, False)):
        avals = ShapedArray((16, 16), BFLOAT16), ShapedArray((outputs, 16), BFLOAT16)
        assert (contract.routine_of("dot_general", avals, params, HOPPER) is not None) == is_computed
    quantized = {"layout": QuantizedLayout("int8", 1 << 14, 64), "transposed": False}
    for outputs, is_computed in ((1 << 20, True), (1 << 21, False)):
        types = (
            ShapedArray((1, 1 << 14), BFLOAT16),
            ShapedArray((outputs, 1 << 14), np.dtype(np.int8)),
            ShapedArray((outputs, 256), FLOAT32),
        )
        assert (contract.routine_of("quantized_dot", types, quantized, HOPPER) is not None) == is_computed


@pytest.mark.parametrize("outputs", [8, 576, 4864, 151936])
@pytest.mark.parametrize("terms", [64, 576, 1536, 4864, 14336])
@pytest.mark.parametrize("columns", [1, 8])
def test_schedules_have_room_for_all_regions(outputs: int, terms: int, columns: int) -> None:
    layout = contract.WeightLayout(BFLOAT16, terms, 2 * terms, None)
    schedule = choose(layout, outputs, columns, HOPPER.processors)
    assert isinstance(schedule, RowSchedule)
    assert schedule.slots >= layout.regions
    assert (schedule.turns - 1) * schedule.held * schedule.warps < layout.regions


# Products with the same row, and the kernel before them.


def norm(x: Any, w: Any) -> Any:
    """Normalise a row by the mean of its squares."""
    wide = x.astype("float32")
    return (wide * lax.rsqrt(vnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * w


def lowered(f: Callable[..., Any], arrays: Sequence[Any]) -> LoweredProgram:
    """Return the program of a function for an NVIDIA GPU."""
    types = vf.tree.map(lambda x: vf.ShapeDtypeStruct(x.shape, x.dtype), tuple(arrays))
    return lower(vf.jit(f).lower(*types).jaxpr, NvidiaTarget(HOPPER))


def names(program: LoweredProgram) -> list[str]:
    """Return the primitives of a program's items."""
    return ["kernel" if isinstance(item.node, KernelCall) else item.node.primitive.name for item in program.items]


def run(program: LoweredProgram, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Return the results of a program whose equations the emulator runs, beside their evaluation."""
    values: dict[Any, np.ndarray] = dict(zip(program.closed.jaxpr.invars, map(np.asarray, vf.tree.leaves(tuple(arrays))), strict=True))
    for item in program.items:
        operands = [values[program.root(v)] for v in item.operands]  # type: ignore[arg-type]
        if isinstance(item.node, KernelCall):
            values.update(zip(item.results, interpret(item.node.kernel, *operands), strict=True))
            continue
        results = [np.full(v.aval.shape, np.nan, v.aval.dtype) for v in item.results]
        assert item.key is not None
        run_kernel(item.key.make(), [*operands, *results])
        evaluate = evaluation_of(item.node.primitive)
        assert evaluate is not None
        expected = evaluate(*operands, **item.node.params)
        for actual, other in zip(results, expected if isinstance(expected, (list, tuple)) else [expected], strict=True):
            check(actual, np.asarray(other).astype(np.float64))
        values.update(zip(item.results, results, strict=True))
    return [values[program.root(v)] for v in program.closed.jaxpr.outvars]  # type: ignore[arg-type]


def test_a_norm_and_three_products_are_one_dispatch() -> None:
    def f(x: Any, r: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
        x = x + r
        h = norm(x, w)
        return x, h @ a.T, h @ b.T, h @ c.T

    arrays = [numbers(1, 264), numbers(1, 264) * 2, numbers(264), numbers(24, 264), numbers(9, 264), numbers(17, 264)]
    program = lowered(f, arrays)
    assert names(program) == ["products_of_row"]
    for actual, expected in zip(run(program, arrays), f(*[vnp.asarray(x) for x in arrays]), strict=True):
        np.testing.assert_allclose(actual.astype(np.float32), np.asarray(expected).astype(np.float32), rtol=2e-2, atol=0.1)


def test_products_with_quantised_weights_in_float32() -> None:
    def f(x: Any, w: Any, a: Any) -> Any:
        return norm(x, w).astype("float32") @ a.T

    a = nn.quantize_array(vnp.asarray(numbers(24, 192)), "int8")
    arrays = [numbers(1, 192), numbers(192), a]
    program = lowered(f, arrays)
    assert names(program) == ["products_of_row"]
    run(program, arrays)


def test_a_gated_activation_is_computed_where_it_is_multiplied() -> None:
    def f(g: Any, u: Any, w: Any) -> Any:
        return (nn.silu(g) * u) @ w.T

    arrays = [numbers(1, 500), numbers(1, 500) * 2, numbers(24, 500)]
    program = lowered(f, arrays)
    assert names(program) == ["products_of_row"]
    run(program, arrays)
    assert names(lowered(f, [numbers(1, 1536), numbers(1, 1536), numbers(24, 1536)])) == ["kernel", "dot_general"]


def test_a_row_that_is_needed_elsewhere_has_a_kernel() -> None:
    def f(x: Any, w: Any, a: Any, b: Any) -> Any:
        h = norm(x, w)
        return h, h @ a.T, h @ b.T

    arrays = [numbers(1, 64), numbers(64), numbers(24, 64), numbers(16, 64)]
    program = lowered(f, arrays)
    assert names(program) == ["kernel", "products_of_row"]
    run(program, arrays)


def test_a_matrix_that_depends_on_an_earlier_product_waits_for_it() -> None:
    def f(x: Any, a: Any, b: Any) -> Any:
        y = x @ a.T
        return y, x @ (b * y[0, 0]).T

    arrays = [numbers(1, 64), numbers(24, 64), numbers(16, 64)]
    program = lowered(f, arrays)
    assert "products_of_row" not in names(program)


def test_a_step_of_a_decoder_has_ten_dispatches_a_layer() -> None:
    counts = []
    for layers in (2, 3):
        config = nn.CausalLMConfig(
            model_type="llama", vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, dtype="bfloat16",
        )  # fmt: skip

        def model(config: Any = config) -> Any:
            model = nn.CausalLM.init(vf.random.key(0), config)
            return model, model.init_cache(1, 128)

        weights, cache = vf.eval_shape(model)
        step = vf.jit(lambda m, t, c: m(t, cache=c))
        program = lower(step.lower(weights, shaped(1, 1, dtype="int32"), cache).jaxpr, NvidiaTarget(HOPPER))
        counts.append(names(program).count("products_of_row"))
    assert counts[1] - counts[0] == 3  # q, k and v; gate and up; down


# Products with many rows.


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4"])
def test_many_rows_are_multiplied_by_floats(scheme: Any, transposed: bool) -> None:
    w = nn.quantize_array(vnp.asarray(numbers(512, 512)), scheme)
    program = lowered(lambda x, w: x @ (w if transposed else w.T), [numbers(256, 512), w])
    assert names(program) == ["kernel", "kernel"]  # the matrix is converted at once
