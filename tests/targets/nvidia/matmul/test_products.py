"""Kernels of products, run by an emulator, beside NumPy; and their schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.emulation import run_kernel
from tests.targets.nvidia.planning import AMPERE, HOPPER, operands_of
from volta_fn.compiler.contractions import Operand, Walk, contraction_of
from volta_fn.compiler.ir.kernel import KernelCall, interpret
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.matmul import ProductOptions, contraction
from volta_fn.targets.nvidia.matmul.problem import AnySchedule, Schedule, WarpSchedule, copy_kernel

WARPS = WarpSchedule(64, 64, 32, 32, stages=3)
GROUPS = Schedule(64, 1, stages=2)
KERNELS = [pytest.param(AMPERE, WARPS, id="mma"), pytest.param(HOPPER, GROUPS, id="wgmma")]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of any size run on matrix units."""
    monkeypatch.setattr(matmul, "_FEWEST", 1)
    monkeypatch.setattr(matmul, "_FEWEST_OF_SHORT", 1)
    monkeypatch.setattr(matmul, "_FEWEST_PER_ELEMENT", 1)


def numbers(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    """Normal random numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def computed(
    f: Callable[..., Any], *arrays: np.ndarray, device: TargetCapabilities, schedule: AnySchedule, inside: bool = True
) -> np.ndarray:
    """Return what the kernel of a product stores first: results, or partial sums."""
    item, operands = operands_of(f, list(arrays), device)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, device, ProductOptions(schedule, inside))
    assert routine is not None
    results = [np.zeros(v.aval.shape, v.aval.dtype) for v in item.results]
    workspaces = [np.zeros(size // 4, np.float32) for size in routine.workspaces]
    run_kernel(routine, [*operands, *results, *workspaces])
    return (workspaces or results)[0]


def check(actual: np.ndarray, f: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Compare with the function in float32, up to the rounding of results."""
    expected = np.asarray(f(*[vnp.asarray(x.astype(np.float32)) for x in arrays]))
    tolerance = 2e-2 if actual.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_layouts_of_ragged_sizes(device: TargetCapabilities, schedule: AnySchedule, layout: str) -> None:
    def product(x: Any, y: Any) -> Any:
        return (x.T if layout[0] == "T" else x) @ (y.T if layout[1] == "T" else y)

    m, n, k = 72, 40, 136
    arrays = numbers(*((k, m) if layout[0] == "T" else (m, k))), numbers(*((n, k) if layout[1] == "T" else (k, n)))
    check(computed(product, *arrays, device=device, schedule=schedule), product, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_tiles_that_fit(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    arrays = numbers(64, 128), numbers(128, 64)
    check(computed(product, *arrays, device=device, schedule=schedule), product, *arrays)


@pytest.mark.parametrize("function", [lambda x, y: x @ y.T, lambda x, y: vnp.tanh(x @ y.T) + 1], ids=["rounded", "epilogue"])
def test_tiles_whose_last_columns_are_staged_by_themselves(function: Callable[..., Any]) -> None:
    arrays = numbers(72, 64), numbers(104, 64)
    for columns in (96, 48):
        check(computed(function, *arrays, device=HOPPER, schedule=Schedule(columns, 1, stages=2)), function, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_float16_and_results_in_float32(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return vnp.dot(x, y, preferred_element_type="float32")

    arrays = numbers(40, 72, dtype=np.float16), numbers(72, 48, dtype=np.float16)
    check(computed(product, *arrays, device=device, schedule=schedule), product, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_epilogues(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return r + vf.nn.gelu(x @ w + b)

    arrays = numbers(40, 72), numbers(72, 48), numbers(48), numbers(40, 48)
    check(computed(layer, *arrays, device=device, schedule=schedule), layer, *arrays)


def test_tanh_of_bfloat16_is_that_of_float64_rounded() -> None:
    """The product with ones on the diagonal has the numbers of the left operand."""
    rng = np.random.default_rng(0)
    x = (rng.choice([-1, 1], 4096) * 2.0 ** rng.uniform(-20, 7, 4096)).reshape(64, 64).astype(ml_dtypes.bfloat16)
    identity = np.eye(64).astype(ml_dtypes.bfloat16)
    x[0, :6] = 0, -0.0, 1e38, -1e38, 0.0625, 100
    actual = computed(lambda x, w: vnp.tanh(x @ w), x, identity, device=HOPPER, schedule=GROUPS)
    expected = np.tanh(x.astype(np.float64)).astype(ml_dtypes.bfloat16)
    distance = np.abs(actual.view(np.int16).astype(np.int32) - expected.view(np.int16))
    assert distance[expected != 0].max() <= 1
    assert (distance[expected != 0] == 0).mean() > 0.99


@pytest.mark.parametrize("schedule", [Schedule(64, 1, stages=2), Schedule(96, 2, blocks=2, stages=2)], ids=["one group", "four blocks"])
@pytest.mark.parametrize(("layout", "columns"), [("NT", 40), ("NT", 35), ("NN", 136)])
def test_pairs_of_products(schedule: Schedule, layout: str, columns: int) -> None:
    """A gate is computed with what it multiplies."""

    def gated(x: Any, gate: Any, up: Any, b: Any) -> Any:
        if layout == "NT":
            gate, up = gate.T, up.T
        return vf.nn.silu(x @ gate + b) * (x @ up)

    if layout == "NN":
        schedule = replace(schedule, columns=128)
    shape = (columns, 72) if layout == "NT" else (72, columns)
    arrays = numbers(72, 72), numbers(*shape), numbers(*shape)[::-1].copy(), numbers(columns)
    check(computed(gated, *arrays, device=HOPPER, schedule=schedule), gated, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_results_that_are_not_aligned(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return 2 * (x @ y.T)

    arrays = numbers(21, 72), numbers(35, 72)
    check(computed(product, *arrays, device=device, schedule=schedule), product, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_stacks_whose_axes_are_apart(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return vnp.einsum("bthd,bshd->bhts", x, y)

    arrays = numbers(2, 40, 2, 32), numbers(2, 24, 2, 32)
    check(computed(product, *arrays, device=device, schedule=schedule), product, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_partial_sums(device: TargetCapabilities, schedule: AnySchedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return vnp.dot(x, y, preferred_element_type="float32")

    arrays = numbers(40, 200), numbers(200, 48)
    partial = computed(product, *arrays, device=device, schedule=replace(schedule, splits=2), inside=False)
    check(partial.reshape(2, 40, 48).sum(0), product, *arrays)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule(128, 2, stages=3), id="two groups"),
        pytest.param(Schedule(64, 2, blocks=2, stages=3, turns=True), id="turns"),
    ],
)
def test_blocks_compute_several_tiles(schedule: Schedule) -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    arrays = numbers(200, 136), numbers(136, 136)
    check(computed(product, *arrays, device=HOPPER._replace(processors=1), schedule=schedule), product, *arrays)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
@pytest.mark.parametrize("grid", [0, 1])
def test_a_conditional_dispatch(device: TargetCapabilities, schedule: AnySchedule, grid: int) -> None:
    arrays = [numbers(40, 72), numbers(72, 48)]
    item, operands = operands_of(lambda x, y: x @ y, arrays, device)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, device, ProductOptions(schedule))
    assert routine is not None
    result = np.zeros((40, 48), arrays[0].dtype)
    run_kernel(routine, [*operands, result], np.full(3, grid, np.uint32))
    assert bool(result.any()) == bool(grid)


@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
def test_float32_that_may_be_rounded(layout: str) -> None:
    def product(x: Any, y: Any) -> Any:
        return vnp.matmul(x.T if layout[0] == "T" else x, y.T if layout[1] == "T" else y, precision="tensorfloat32")

    x, y = numbers(40, 72, dtype=np.float32), numbers(72, 48, dtype=np.float32)
    x, y = x.T.copy() if layout[0] == "T" else x, y.T.copy() if layout[1] == "T" else y
    item, operands = operands_of(product, [x, y], HOPPER)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, HOPPER, ProductOptions(GROUPS))
    assert routine is not None
    assert len(routine.dispatches) == 1, "operands are read in place"
    result = np.zeros((40, 48), np.float32)
    run_kernel(routine, [*operands, result])
    exact = (x.T if layout[0] == "T" else x).astype(np.float64) @ (y.T if layout[1] == "T" else y).astype(np.float64)
    error = np.linalg.norm(result - exact) / np.linalg.norm(exact)
    assert 1e-5 < error < 1e-3


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule(64, 2, stages=3), id="two groups"),
        pytest.param(Schedule(64, 2, blocks=2, stages=4, turns=True), id="turns"),
        pytest.param(Schedule(128, 2, blocks=2, stages=3), id="four blocks"),
        pytest.param(Schedule(64, 1, stages=4, splits=2), id="one group, split sums"),
    ],
)
def test_slices_that_are_transposed(schedule: Schedule) -> None:
    """Blocks compute several tiles, whose slices are more than there is room for."""

    def product(x: Any, y: Any) -> Any:
        return vnp.matmul(x.T, y, precision="tensorfloat32")

    rng = np.random.default_rng(1)
    arrays = [rng.integers(-8, 8, shape).astype(np.float32) for shape in ((204, 140), (204, 100))]
    device = HOPPER._replace(processors=1)
    actual = computed(product, *arrays, device=device, schedule=schedule, inside=schedule.splits == 1)
    np.testing.assert_array_equal(actual.reshape(schedule.splits, 140, 100).sum(0), arrays[0].T @ arrays[1])


def test_exchanged_operands_with_an_epilogue() -> None:
    """Four rows of a column of the results are contiguous, and biases those of rows."""

    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return r + vnp.tanh(vnp.matmul(x, w, precision="tensorfloat32") + b)

    arrays = [numbers(*shape, dtype=np.float32) for shape in ((40, 72), (72, 100), (100,), (40, 100))]
    actual = computed(layer, *arrays, device=HOPPER, schedule=GROUPS)
    np.testing.assert_allclose(actual, layer(*arrays), rtol=0, atol=2e-2)


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
@pytest.mark.parametrize("k", [72, 75])
def test_float32_as_sums_of_two_bfloat16_numbers(device: TargetCapabilities, schedule: AnySchedule, k: int) -> None:
    x, y = numbers(40, k, dtype=np.float32), numbers(k, 48, dtype=np.float32)
    item, operands = operands_of(lambda x, y: vnp.matmul(x, y, precision="bfloat16_3x"), [x, y], device)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, device, ProductOptions(schedule))
    assert routine is not None
    assert len(routine.dispatches) == 3
    product = contraction_of(item.node.kernel)
    assert product is not None
    problem = product.problem()
    sides = problem.lhs, problem.rhs
    copies = [interpret(copy_kernel(side, a.size, part), a.reshape(-1))[0] for side, a, part in zip(sides, (x, y), (2, 1), strict=True)]
    assert routine.workspaces == tuple([copy.nbytes for copy in copies])
    result = np.zeros((40, 48), np.float32)
    run_kernel(routine, [*operands, result, *copies])
    exact = x.astype(np.float64) @ y.astype(np.float64)
    assert np.linalg.norm(result - exact) / np.linalg.norm(exact) < 1e-5


def test_remainders_of_infinities_are_zero() -> None:
    operand = Operand(np.dtype(np.float32), Walk((), ()), Walk((2,), (8,)), Walk((8,), (1,)), 0)
    x = np.float32([1, 1 + 2**-9, -np.inf, np.nan, 3e38, 0, 1e-30, 7, 8, 9, 10, 11, 12, 13, 14, 15 + 2**-6])
    (copy,) = interpret(copy_kernel(operand, 16, 1), x)
    high, low, again = copy.reshape(2, 3, 8).swapaxes(0, 1).astype(np.float32)
    np.testing.assert_array_equal(high, again)
    np.testing.assert_array_equal(high, x.reshape(2, 8).astype(ml_dtypes.bfloat16).astype(np.float32))
    assert np.isfinite(low).all()
    sums = np.where(np.isfinite(high), high + low, high)
    np.testing.assert_allclose(sums, x.reshape(2, 8), rtol=2**-16)


def in_int32(x: Any, y: Any) -> Any:
    """Multiply integers of 8 bits."""
    return vnp.dot(x, y, preferred_element_type="int32")


def integers(*shape: int) -> np.ndarray:
    """Random integers of 8 bits."""
    return np.random.default_rng(sum(shape)).integers(-128, 128, shape, np.int8)


@pytest.mark.parametrize("schedule", [GROUPS, Schedule(32, 1, stages=2), Schedule(64, 2, blocks=2, stages=3, turns=True)], ids=str)
def test_integers_of_8_bits(schedule: AnySchedule) -> None:
    x, y = integers(72, 288), integers(40, 288)
    sums = computed(lambda x, y: in_int32(x, y.T), x, y, device=HOPPER, schedule=schedule)
    np.testing.assert_array_equal(sums, x.astype(np.int32) @ y.T.astype(np.int32))


def test_epilogues_of_integers() -> None:
    def scaled(x: Any, y: Any, scale: Any) -> Any:
        return in_int32(x, y.T).astype("float32") * scale

    x, y, scale = integers(40, 160), integers(48, 160), numbers(48, dtype=np.float32)
    actual = computed(scaled, x, y, scale, device=HOPPER, schedule=GROUPS)
    np.testing.assert_array_equal(actual, (x.astype(np.int32) @ y.T.astype(np.int32)).astype(np.float32) * scale)


def test_partial_sums_of_integers() -> None:
    x, y = integers(40, 512), integers(48, 512)
    partial = computed(lambda x, y: in_int32(x, y.T), x, y, device=HOPPER, schedule=replace(GROUPS, splits=2), inside=False)
    np.testing.assert_array_equal(partial.view(np.int32).reshape(2, 40, 48).sum(0), x.astype(np.int32) @ y.T.astype(np.int32))


def test_integers_that_are_not_contiguous_along_k_are_copied() -> None:
    x, y = integers(40, 160), integers(160, 48)
    item, operands = operands_of(in_int32, [x, y], HOPPER)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, HOPPER, ProductOptions(GROUPS))
    assert routine is not None
    assert len(routine.dispatches) == 2
    result = np.zeros((40, 48), np.int32)
    run_kernel(routine, [*operands, result, np.ascontiguousarray(y.T)])
    np.testing.assert_array_equal(result, x.astype(np.int32) @ y.astype(np.int32))


def test_narrow_tiles() -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y.T

    arrays = numbers(40, 200), numbers(72, 200)
    check(computed(product, *arrays, device=HOPPER, schedule=Schedule(32, 1, stages=3)), product, *arrays)
    check(
        computed(lambda x, y: 2 * (x @ y.T), *arrays, device=HOPPER, schedule=Schedule(32, 1, stages=3)),
        lambda x, y: 2 * (x @ y.T),
        *arrays,
    )


def test_copies_of_float32_are_contiguous_along_k() -> None:
    operand = Operand(np.dtype(np.float32), Walk((2, 3), (0, 4)), Walk((5,), (1,)), Walk((4, 6), (120, 20)), 0)
    (copy,) = interpret(copy_kernel(operand, 600), x := np.arange(600, dtype=np.float32))
    k, number, outer = np.arange(24), np.arange(3)[:, None, None], np.arange(5)[:, None]
    np.testing.assert_array_equal(copy.reshape(3, 5, 24), x[number * 4 + outer + k // 6 * 120 + k % 6 * 20])


@pytest.mark.parametrize(("device", "schedule"), KERNELS)
def test_copies_of_16_bit_numbers_are_padded(device: TargetCapabilities, schedule: AnySchedule) -> None:
    x, y = numbers(40, 72), numbers(72, 43)
    item, operands = operands_of(lambda x, y: x @ y, [x, y], device)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, device, ProductOptions(schedule))
    assert routine is not None
    product = contraction_of(item.node.kernel)
    assert product is not None
    (copy,) = interpret(copy_kernel(product.problem().rhs, y.size), y.reshape(-1))
    np.testing.assert_array_equal(copy.reshape(72, 48), np.pad(y, ((0, 0), (0, 5))))
    assert routine.workspaces == (copy.nbytes,)
    result = np.zeros((40, 43), x.dtype)
    run_kernel(routine, [*operands, result, copy])
    check(result, lambda x, y: x @ y, x, y)
