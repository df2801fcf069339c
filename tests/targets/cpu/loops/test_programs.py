"""Machine code of fused programs against the interpreter: rows, columns, transposes, long rows in chunks, masks, random programs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import adam, layer_norm
from tests.compiler.ir.cases import ROWS, inputs_of, kernels_of, shaped
from tests.compiler.ir.oracle import SimpleTarget, fuse_function
from tests.targets.cpu.loops.kernels import agrees, run_kernel
from tests.test_random_programs import drawn, programs
from tests.test_random_programs import run as run_program
from volta_fn import lax, nn
from volta_fn.codegen import loops
from volta_fn.codegen.loops import RowPass
from volta_fn.compiler.ir.axes import KernelAnalysis, overwritable, simplified
from volta_fn.compiler.ir.index import along
from volta_fn.compiler.ir.kernel import Buffer, Constant, Kernel, Load, Store
from volta_fn.errors import JaxprError
from volta_fn.targets.cpu.loops import routine
from volta_fn.targets.cpu.loops.schedule import schedule_of, written_out

#: Lengths around those of vectors, of unrolled loops, and of blocks of sums.
LENGTHS = [2, 3, 15, 16, 17, 31, 33, 64, 65, 127, 129, 300, 5000]


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("function", "args"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_rows(function: Callable[..., Any], args: Callable[[int], tuple[Any, ...]], size: int) -> None:
    for kernel in kernels_of(function, *args(size)):
        agrees(kernel, inputs_of(kernel), f"rows of {size}", 4.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int8", "uint8", "int64", "uint64", "bool", "complex64"])
def test_dtypes(dtype: str) -> None:
    where = lambda x, y: (jnp.where(x == y, x, y), x[::-1], x.T, lax.pad(x, np.zeros((), x.dtype), [(1, 1, 0), (2, 0, 0)]))
    for kernel in fuse_function(where, shaped(20, 37, dtype=dtype), shaped(20, 37, dtype=dtype)).kernels:
        assert agrees(kernel, inputs_of(kernel), dtype)
    if dtype not in ("bool", "complex64"):
        reductions = lambda x: (x.sum(1), x.sum(0), x.max(1), x.min(0), lax.argmax(x, 1), lax.argmin(x, 0))
        for kernel in fuse_function(reductions, shaped(37, 40, dtype=dtype)).kernels:
            assert agrees(kernel, inputs_of(kernel), dtype)


def test_copies_go_along_all_axes() -> None:
    """A row's axis that is not reduced is outside of the copied range."""
    index = (along(0), along(2), along(1))
    load = Load(np.dtype(np.float32), 0, (3, 2, 2000), index, (), Constant.of(0, np.dtype(np.float32)))
    kernel = Kernel((3, 2000, 2), 2, (Buffer(12_000, load.dtype),), (load,), (Store(load.shape, index, 0),))
    assert agrees(kernel, inputs_of(kernel), "a copy")


def test_whole_arrays_are_reduced_in_chunks() -> None:
    f = lambda x, y: ((x * y).sum() / 7.0, x.max())
    (kernel,) = kernels_of(f, shaped(700_001), shaped(700_001))
    compiled = routine(kernel)
    assert compiled is not None
    assert [phase.tasks > 1 for phase in compiled.launches] == [True, False]
    assert agrees(kernel, inputs_of(kernel), "a sum", 4.0)


@pytest.mark.parametrize("columns", [3, 24, 64, 100])
def test_few_columns_are_reduced_in_chunks(columns: int) -> None:
    (kernel,) = kernels_of(lambda x, b: (x.sum(0) * b, x.min(0)), shaped(120_001, columns), shaped(columns))
    compiled = routine(kernel)
    assert compiled is not None
    assert len(compiled.launches) == 2
    assert agrees(kernel, inputs_of(kernel), "sums of columns", 4.0)


@pytest.mark.parametrize("shape", [(5, 4, 9), (300, 40, 33), (2, 30_000, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rows_may_reduce_the_same_numbers(shape: tuple[int, int, int], dtype: str) -> None:
    def f(x: Any) -> Any:
        copies = jnp.broadcast_to(x[:, :, None], shape).transpose(0, 2, 1)
        most = copies.max((0, 2), keepdims=True)
        return most, copies - most, copies.sum((0, 2), dtype=x.dtype)

    for kernel in kernels_of(f, shaped(*shape[:2], dtype=dtype)):
        assert agrees(kernel, inputs_of(kernel), "copies", 4.0)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_are_as_exact_as_those_of_pairs(axis: int | None) -> None:
    (kernel,) = kernels_of(lambda x: x.sum(axis), shaped(1000, 3000))
    rng = np.random.default_rng(0)
    x = rng.random((1000, 3000)).astype(np.float32)
    result = run_kernel(kernel, [x])
    assert result is not None
    exact = x.astype(np.float64).sum(axis)
    worst = lambda y: np.max(np.abs(y.reshape(exact.shape) - exact) / exact)
    assert worst(result[0]) <= worst(x.sum(axis)) + 1e-7


def test_nan_wins_and_the_first_of_equals() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (50, 40)).astype(np.float32)
    x[5, 7] = x[5, 30] = x[6, 0] = x[7, 39] = x[20, 3] = np.nan
    x[8] = -np.inf
    x[9] = np.inf
    for axis in (0, 1):
        f = lambda x, axis=axis: (x.max(axis), x.min(axis), lax.argmax(x, axis), lax.argmin(x, axis))
        for kernel in kernels_of(f, shaped(50, 40)):
            assert agrees(kernel, [x], "extremes")


@pytest.mark.parametrize("size", [7, 64, 100])
def test_results_in_the_memory_of_another_ones_operand(size: int) -> None:
    interleaved: Callable[..., Any] = lambda x, y, b: (x * 2, x + y + b, x - y)
    for n in (2, 3, 4):
        (kernel,) = kernels_of(interleaved, shaped(size, n), shaped(size, n), shaped(n))
        assert overwritable(kernel, 0)
        assert agrees(kernel, inputs_of(kernel), f"{size} rows of {n}")


SHORT_ROWS: dict[str, Callable[[Any], Any]] = {
    "normalised": lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1),
    "without the mean": lambda x: (x - x.mean(-1, keepdims=True), x * 2),
    "in two passes": lambda x: (x - x.max(-1, keepdims=True)) * (x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
    "sums alone": lambda x: (x.sum(-1), x.min(-1) * 2),
    "sums and rows": lambda x: (x.sum(-1), x * x.sum(-1, keepdims=True)),
    "rows of columns": lambda x: x - x.swapaxes(-1, -2).max(-2).sum(-1)[..., None, None],
    "over the first axis": lambda x: x - (x * jnp.arange(x.shape[1], dtype=x.dtype)[:, None]).mean(0),
    "masked": lambda x: x + jnp.pad(x, ((0, 0), (0, 0), (1, 0)))[..., :-1].sum(-1, keepdims=True),
}


@pytest.mark.parametrize("name", SHORT_ROWS)
@pytest.mark.parametrize("shape", [(65, 1, 3), (7, 2, 2), (40, 3, 4), (33, 4, 5), (1, 1, 2), (3, 8, 2), (4, 33, 3)], ids=str)
def test_short_rows(shape: tuple[int, int, int], name: str) -> None:
    """Results of whole rows may lie in the memory of an operand that each of their elements depends on."""
    for kernel in kernels_of(SHORT_ROWS[name], shaped(*shape)):
        assert agrees(kernel, inputs_of(kernel), f"rows of {shape}, {name}", 4.0)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_short_rows_are_read_before_they_are_stored(n: int) -> None:
    (kernel,) = kernels_of(SHORT_ROWS["without the mean"], shaped(65, n))
    assert overwritable(kernel, 0) == (0,)
    assert written_out(simplified(kernel)) is not None
    assert agrees(kernel, inputs_of(kernel), f"rows of {n}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "bool", "complex64"])
def test_columns_of_rows_of_a_few_elements(dtype: str) -> None:
    for n in (2, 3, 4, 5):
        rotated = lambda x, y, n=n: jnp.stack([x[:, k] * y[:, (k + 1) % n] for k in range(n)], axis=1)
        ends = lambda x, y, n=n: x[:, 0] * y[:, n - 1] + x[1, n // 2]
        for function in (rotated, ends):
            for size in (7, 64, 133):
                for kernel in kernels_of(function, shaped(size, n, dtype=dtype), shaped(size, n, dtype=dtype)):
                    assert agrees(kernel, inputs_of(kernel), f"{size} rows of {n}")


def test_transposes_in_the_memory_of_another_ones_operand() -> None:
    def function(x: Any, y: Any) -> Any:
        twice = x.T * 2
        return x.T + y, twice

    x, y = np.random.default_rng(0).normal(size=(2, 80, 80)).astype(np.float32)
    actual = vf.jit(function, donate_argnums=1)(*vf.device_put((x, y.copy()), vf.devices("cpu")[0]))
    for result, wanted in zip(actual, function(x, y), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("shape", [(128, 64), (70, 33), (16, 200), (1, 40), (5, 3, 47), (300, 130)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "complex64", "int64"])
def test_transposes_of_what_is_put_together(shape: tuple[int, ...], dtype: str) -> None:
    """Conditions on both axes of the tiles, which divide them in areas."""
    rolls = lambda x, y: (jnp.roll(x, 7, 0).T, jnp.roll(x, (5, 9), (-2, -1)).T)
    joins = lambda x, y: (jnp.concatenate([x, y, x[3:]], 0).T, jnp.concatenate([x.T, y.T], 0), jnp.concatenate([x, y[..., 1:]], -1).T)
    pads = lambda x, y: (jnp.pad(x, [(2, 35)] * x.ndim).T, lax.pad(x, np.zeros((), x.dtype), [(-1, 20, 0)] * x.ndim).T)
    for function in (rolls, joins, pads):
        for kernel in kernels_of(function, shaped(*shape, dtype=dtype), shaped(*shape, dtype=dtype)):
            assert agrees(kernel, inputs_of(kernel), f"{shape} {dtype}")


@pytest.mark.parametrize("size", [40, 100])
def test_noise_for_short_rows_of_any_number_of_vectors(size: int) -> None:
    noisy = lambda key, x: x - x.sum(1, keepdims=True) + vf.random.uniform(key, x.shape)
    key, x = vf.random.key(0), jnp.asarray(np.random.default_rng(0).normal(size=(5, size)).astype(np.float32))
    np.testing.assert_allclose(vf.jit(noisy)(key, x), noisy(key, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "uint16", "bool"])
@pytest.mark.parametrize("size", [1, 17, 60, 256, 316])
def test_indices_of_extremes_in_rows(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(0, 2, (7, size)).astype(np.float32)
    if dtype not in ("int8", "uint16", "bool"):
        x[1:3] = np.inf
        x[2, rng.integers(size)] = -np.inf
        x[3, -1] = x[4, rng.integers(size, size=2)] = np.nan
    x = np.asarray(jnp.asarray(x).astype(dtype))
    wide = x.astype(np.float64)
    narrow = "uint8" if size <= 256 else "int64"
    for turned in (x, x.T):
        axis = 1 if turned is x else 0
        f = lambda x, axis=axis: (lax.argmax(x, axis, narrow), lax.argmin(x, axis, narrow))
        result = vf.jit(f)(jnp.asarray(turned))
        assert np.array_equal(result[0], wide.argmax(1))
        assert np.array_equal(result[1], wide.argmin(1))


def test_an_optimizer_step() -> None:
    (kernel,) = kernels_of(adam, *[shaped(40, 33)] * 4, shaped())
    assert agrees(kernel, [np.abs(x) for x in inputs_of(kernel)], "adam", 4.0)


def test_texts_are_the_same_every_time() -> None:
    (kernel,) = kernels_of(layer_norm, shaped(50, 400), shaped(400), shaped(400))
    first, second = routine(kernel), routine(kernel)
    assert first == second


@given(steps=programs)
@settings(max_examples=25, deadline=None)
def test_random_programs(steps: Any) -> None:
    inputs = drawn(1, 2, np.float64)
    f = lambda x, y: run_program(steps, (x, y), True)
    for kernel in fuse_function(f, *inputs).kernels:
        agrees(kernel, inputs_of(kernel), f"{steps}", 100.0)


def test_parts_of_long_rows() -> None:
    """Tasks begin and end in the middle of the parts of a concatenation."""
    (kernel,) = kernels_of(lambda x, y: jnp.concatenate([x, y, x]), shaped(50_001), shaped(100_003))
    compiled = routine(kernel)
    assert compiled is not None
    assert compiled.launches[0].tasks > 1
    assert agrees(kernel, inputs_of(kernel), "a concatenation")


def test_many_columns_are_read_by_rows() -> None:
    f = lambda x, w, c: ((x * w[:, None]).sum(0) + c, x.max(0))
    (kernel,) = kernels_of(f, shaped(3001, 203), shaped(3001), shaped(203))
    compiled = routine(kernel)
    assert compiled is not None
    assert [phase.symbol for phase in compiled.launches] == ["chunks", "rows"]
    assert agrees(kernel, inputs_of(kernel), "sums of columns", 4.0)


@pytest.mark.parametrize("columns", [16, 20, 37])
def test_columns_whose_later_pass_reads_what_is_the_same_in_all(columns: int) -> None:
    """No loop over columns uses what another one has loaded."""
    f = lambda x, w, c: jnp.transpose(x - (x * w[None, :, None]).sum(1, keepdims=True) / c, (1, 0, 2))
    for kernel in kernels_of(f, shaped(8, 16, columns), shaped(16), shaped()):
        assert agrees(kernel, inputs_of(kernel), f"{columns} columns", 4.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("stride", [2, 3, 4, 5, -1, -2])
def test_numbers_a_few_apart(dtype: str, stride: int) -> None:
    for size in (5, 64, 333):
        taken = lambda x: jnp.equal(x[::stride], x[: x.shape[0] // 2 : stride][0]) | jnp.not_equal(x[1::stride][0], x[::stride])
        for kernel in fuse_function(taken, shaped(size * abs(stride) + 1, dtype=dtype)).kernels:
            assert agrees(kernel, inputs_of(kernel), f"{dtype}, stride {stride}, {size}")


def outputs_of(kernel: Kernel, *inputs: np.ndarray) -> list[np.ndarray]:
    result = run_kernel(kernel, inputs)
    assert result is not None
    return result


def test_vectors_go_along_long_rows_whatever_is_stored_of_each() -> None:
    def update(x: Any, largest: Any, total: Any) -> Any:
        new = jnp.maximum(largest, x.max(1))
        return new, total * jnp.exp(largest - new) + jnp.exp(x - new[:, None]).sum(1)

    (kernel,) = kernels_of(update, shaped(40, 1000), shaped(40), shaped(40))
    assert schedule_of(KernelAnalysis(kernel)).axis in kernel.reduction_axes
    assert agrees(kernel, inputs_of(kernel), "a running logsumexp", 8.0)


@pytest.mark.parametrize("size", [3, 1000, 70_003])
def test_searches_end_early(size: int) -> None:
    (kernel,) = kernels_of(lambda x: (x.any(), x.all()), shaped(size, dtype="bool"))
    for number in {0, 1, size // 2, size - 2, size - 1}:
        for rest in (False, True):
            x = np.full(size, rest)
            x[number] = not rest
            some, every = outputs_of(kernel, x)
            assert (bool(some), bool(every)) == (True, False)
    for value in (False, True):
        some, every = outputs_of(kernel, np.full(size, value))
        assert bool(some) == bool(every) == value


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(40, 70), (12, 200), (10, 333)])
def test_the_first_of_equals_where_rows_are_transposed(shape: tuple[int, int], dtype: str) -> None:
    """The first comes after others in memory, some of them in the same lane."""
    x = np.zeros(shape)
    x[9, 0] = x[5, 1:] = 1
    x = np.asarray(jnp.asarray(x).astype(dtype))
    extremes = lambda x: (jnp.argmax(x.T), jnp.argmin(1 - x.T))
    assert [int(i) for i in vf.jit(extremes)(x)] == [9, 9]
    for kernel in kernels_of(extremes, shaped(*shape, dtype=dtype)):
        assert agrees(kernel, [x.reshape(-1)], dtype)


@pytest.mark.parametrize("shape", [(200, 300), (3000, 40)])
def test_the_first_of_equals_beside_a_sum_in_blocks(shape: tuple[int, int]) -> None:
    """Sums of long rows are blocked, and blocks of a transposed row do not come in order."""
    x = np.zeros(shape, np.float32)
    x[np.arange(40) * 3, 39 - np.arange(40)] = 1
    both = lambda x: (lambda y: (jnp.argmax(y), jnp.sum(y)))(jnp.exp(x.T))
    (kernel,) = kernels_of(both, shaped(*shape))
    assert agrees(kernel, [x.reshape(-1)], "argmax and sum")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((60, 16, 60, 60), (0, 2, 3)), ((1500, 16, 1500), (0, 2)), ((128, 32, 128), (0, 2)), ((17, 32, 32), (0, 2)), ((2_000_000, 8), (0,))],
)
def test_sums_along_several_axes_are_blocked(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Roundings of equal terms have one sign while a partial sum grows, so that one of a million terms is off by thousands of units."""
    term = np.float32(1 / 3)
    summed = np.float64(term) * np.prod([shape[axis] for axis in axes])
    with vf.default_device("cpu"):
        for result in (
            vf.jit(lambda x: x.sum(axes))(np.full(shape, term)),
            vf.jit(lambda x: jnp.broadcast_to(x, shape).sum(axes))(term),
        ):
            np.testing.assert_allclose(np.asarray(result, np.float64), summed, rtol=1e-6)


def test_rows_are_searched_each() -> None:
    (kernel,) = kernels_of(lambda x: x.any(1), shaped(40, 5000, dtype="bool"))
    x = np.zeros((40, 5000), bool)
    x[np.arange(0, 40, 3), np.arange(0, 40, 3) * 120] = True
    (result,) = outputs_of(kernel, x)
    np.testing.assert_array_equal(result, x.any(1))


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "bfloat16"])
def test_long_ranges_are_copied(dtype: str) -> None:
    args = [shaped(3, 5000, dtype=dtype), shaped(3, 7000, dtype=dtype)]
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, y: jnp.concatenate([x, y, x], 1),
        lambda x, y: jnp.concatenate([x[0], y[1, 3:], y[2]]),
        lambda x, y: jnp.roll(y, 17, 1),
        lambda x, y: jnp.tile(x[0], 3),
        lambda x, y: jnp.pad(y, ((0, 0), (3, 9))),  # whose ends are no copies
    ]
    for function in functions:
        for kernel in fuse_function(function, *args).kernels:
            assert agrees(kernel, inputs_of(kernel), dtype)


def _slices(x: Any, count: int) -> Any:
    return jnp.concatenate([x[:, i : i + 20] for i in range(count)], 1) * 2 + 1


@pytest.mark.parametrize("count", [9, 14, 47, 60])
def test_concatenations_of_many_arrays_have_vectors_in_every_part(count: int) -> None:
    join = lambda *xs: jnp.concatenate(xs, 1)
    overlap = lambda *xs: sum(lax.pad(x, 0.0, [(0, 0, 0), (8 * i, 8 * (count - i), 0)]) for i, x in enumerate(xs))
    programs: list[tuple[Callable[..., Any], Any, int]] = [(lambda x: _slices(x, count), [shaped(30, 128)], count)]
    if count < 48:  # as many as a kernel can bind
        parts = [shaped(30, 5 + 16 * (i % 3)) for i in range(count)]
        programs += [
            (lambda *xs: jnp.tanh(join(*xs) * 2 + 1), parts, count),
            (lambda *xs: nn.softmax(join(*xs)), parts, count),
            (lambda *xs: join(*xs).sum(0), parts, count),
            (lambda *xs: jnp.stack(xs, -1) * 2, [shaped(300)] * count, count),  # cheap with narrow vectors, too
            (overlap, [shaped(30, 20)] * count, 2 * count),
        ]
    for function, args, segments in programs:
        (kernel,) = fuse_function(function, *args, target=SimpleTarget(kernel_buffers=48)).kernels
        schedule = schedule_of(KernelAnalysis(kernel))
        assert schedule.vectors.lanes > 1
        assert len(schedule.vectors.segments) == segments
        assert agrees(kernel, inputs_of(kernel), f"{count} parts", 4.0)


def test_vectors_of_expensive_numbers_are_full() -> None:
    """Where segments are single elements, vectors of what is expensive go along another axis."""
    (kernel,) = fuse_function(lambda *xs: jnp.tanh(jnp.stack(xs, -1)), *[shaped(300)] * 20, target=SimpleTarget(kernel_buffers=48)).kernels
    schedule = schedule_of(KernelAnalysis(kernel))
    assert len(schedule.vectors.segments) == 1
    assert agrees(kernel, inputs_of(kernel), "stacked")


def test_tasks_do_not_become_smaller_by_what_they_do_not_select() -> None:
    grids = [schedule_of(KernelAnalysis(*kernels_of(lambda x, n=n: _slices(x, n), shaped(60, 4000)))).grid for n in (20, 80)]
    assert [grid.chunks for grid in grids] == [1, 1]


def test_a_store_that_a_schedule_forgets_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loops.row_passes

    def forgetful(analysis: KernelAnalysis) -> list[RowPass]:
        return [replace(one, stores=[]) for one in whole(analysis)]

    monkeypatch.setattr(loops, "row_passes", forgetful)
    for shape in ((4, 300), (2, 400_000)):
        (kernel,) = kernels_of(lambda x: (x * 2, (x * 2).sum(1)), shaped(*shape))
        with pytest.raises(JaxprError, match="no code was generated"):
            routine(kernel)


def test_a_generated_routine_leaves_nothing_to_the_garbage_collector() -> None:
    kernels = [
        kernel
        for shape in ((64, 300), (2, 400_000))
        for kernel in kernels_of(lambda x: jnp.tanh(x - x.max(1)[:, None]).sum(1), shaped(*shape))
    ]
    for kernel in kernels:  # before counting, as this fills caches
        routine(kernel)
    gc.collect()
    gc.disable()
    try:
        for kernel in kernels:
            routine(kernel)
        assert not [one for one in gc.get_objects() if isinstance(one, loops.Scope)]
    finally:
        gc.enable()


def test_rows_are_normalised_in_the_memory_of_a_product() -> None:
    def loss(hidden: vf.Array, head: vf.Array, labels: vf.Array) -> vf.Array:
        return -jnp.take_along_axis(nn.log_softmax(hidden @ head), labels[:, None], 1).mean()

    arguments = vf.ShapeDtypeStruct((256, 16), "float32"), vf.ShapeDtypeStruct((16, 1000), "float32"), vf.ShapeDtypeStruct((256,), "int32")
    logits = 256 * 1000 * 4
    assert logits <= vf.jit(loss).lower(*arguments).memory().temporaries <= 1.2 * logits
