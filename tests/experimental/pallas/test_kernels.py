"""What kernels are written with, outside of `pallas_call` where that is possible."""

from __future__ import annotations

import math
from typing import Any

import jax.experimental.pallas.tpu
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, CheckError, ShapeError
from volta_fn.experimental import checkify
from volta_fn.experimental import pallas as pl
from volta_fn.experimental.pallas import kernels, tpu, triton


def test_indices_have_a_meaning_in_kernels_alone() -> None:
    for function in (pl.program_id, pl.num_programs):
        with pytest.raises(ArgumentError, match="in a kernel alone"):
            function(0)
        with pytest.raises(ArgumentError, match="none of the 1 axes"):
            pl.pallas_call(lambda o, function=function: function(1), vf.ShapeDtypeStruct((), "int32"), grid=2)()


def test_an_index_in_a_jitted_function_is_that_of_the_step() -> None:
    place = vf.jit(lambda x: x + pl.program_id(0) * 10 + pl.num_programs(0))

    def kernel(o):
        o[pl.program_id(0)] = place(1)

    assert pl.pallas_call(kernel, vf.ShapeDtypeStruct((3,), "int32"), grid=3)().tolist() == [4, 14, 24]
    assert pl.pallas_call(kernel, vf.ShapeDtypeStruct((2,), "int32"), grid=2)().tolist() == [3, 13]


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 7, 1), (2, 8, 3), (5, 2, 1), (1, 2, 5)])
@pytest.mark.parametrize("is_traced", [False, True])
def test_loops(start, stop, step, is_traced) -> None:
    def total(a, b, c):
        return pl.loop(a, b, step=c, init_carry=vnp.int32(0))(lambda i, total: total + i)

    function = vf.jit(total) if is_traced else total
    assert function(np.int32(start), np.int32(stop), np.int32(step)) == sum(range(start, stop, step))


def test_conditions() -> None:
    seen = []
    pl.when(True)(lambda: seen.append(1))
    pl.when(False)(lambda: seen.append(2))
    assert seen == [1]


def test_memory() -> None:
    @pl.with_scoped(tpu.VMEM((2,), "float32"), count=tpu.SemaphoreType.REGULAR)
    def f(x, ref, count):
        assert np.isnan(ref[...]).all() and count[...] == 0
        ref[...] = x
        pl.semaphore_signal(count, 3)
        pl.semaphore_wait(count, 1)
        return ref[...] + pl.semaphore_read(count)

    assert f(vnp.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentTypeError, match="type of memory"):
        pl.run_scoped(lambda ref: None, 3)
    with pytest.raises(ArgumentError, match="one device"):
        pl.semaphore_signal(vf.new_ref(0), device_id=1)
    assert pl.empty_ref_like(vf.ShapeDtypeStruct((2,), "int8")).dtype == np.int8
    assert pl.empty_like({"a": vnp.ones(3)})["a"].shape == (3,)
    assert (tpu.VMEM.like(vnp.ones(3)).shape, tpu.SMEM((1,), "int32").dtype, str(pl.ANY)) == ((3,), np.int32, "any")
    assert tpu.SemaphoreType.DMA((2,)).get_array_aval().shape == (2,)


def test_run_state_returns_the_last_values() -> None:
    def f(refs):
        a, b = refs
        a[...] = a[...] + b[0]

    a, b = pl.run_state(f)((vnp.ones(2), vnp.arange(3.0) + 5))
    assert a.tolist() == [6.0, 6.0] and b.tolist() == [5.0, 6.0, 7.0]


def test_checks_in_kernels() -> None:
    def kernel(x, o):
        pl.debug_check(x[0] > 0, "not positive")
        o[...] = x[...]

    def run(x):
        return checkify.checkify(pl.pallas_call(kernel, vf.ShapeDtypeStruct((2,), "float32")))(x)[0]

    run(vnp.array([-1.0, 1.0])).throw()
    with pl.enable_debug_checks():
        assert pl.debug_checks_enabled()
        with pytest.raises(CheckError, match="not positive"):
            run(vnp.array([-2.0, 1.0])).throw()
    assert not pl.enable_debug_checks.value


def test_sizes() -> None:
    assert [pl.cdiv(7, 2), pl.cdiv(8, 2), pl.align_to(9, 8), pl.next_power_of_2(0), pl.next_power_of_2(9)] == [4, 4, 16, 1, 16]
    assert pl.cdiv(vnp.int32(7), 2) == 4 and pl.strides_from_shape((2, 3, 4)) == (12, 4, 1)
    assert pl.multiple_of(8, 4) == 8 and pl.reciprocal(4.0, approx=True) == 0.25 and pl.broadcast_to(1, (2,)).tolist() == [1, 1]
    with pytest.raises(ArgumentError, match="non-negative"):
        pl.next_power_of_2(-1)


@pytest.mark.parametrize("start", [0, 2, 4])
def test_masked_reads_and_writes_beyond_the_array(start: int) -> None:
    def kernel(i, x, o, old):
        block = pl.ds(i[0], 4)
        mask = vnp.arange(4) + i[0] < 5
        value = triton.load(x.at[block], mask=mask, other=-1.0)
        triton.store(o.at[block], value * 2, mask=mask)
        old[...] = value

    types = vf.ShapeDtypeStruct((5,), "float32"), vf.ShapeDtypeStruct((4,), "float32")
    x = np.arange(5, dtype=np.float32) + 1
    o, value = pl.pallas_call(kernel, types, input_output_aliases={1: 0})(np.int32([start]), x)
    expected = x.copy()
    expected[start : start + 4] *= 2
    np.testing.assert_array_equal(o, expected)
    np.testing.assert_array_equal(value, np.concatenate([x[start : start + 4], -np.ones(max(start - 1, 0))]))


def test_memory_beyond_the_array_is_not_a_number() -> None:
    f = pl.pallas_call(lambda i, x, o: o.__setitem__(..., tpu.load(x.at[pl.ds(i[0], 3)])), vf.ShapeDtypeStruct((3,), "float32"))
    np.testing.assert_array_equal(f(np.int32([2]), np.float32([1, 2, 3])), [3, np.nan, np.nan])


def test_atomic_operations_return_the_old_elements() -> None:
    ref = vf.new_ref(vnp.array([6, 3, 5]))
    assert triton.atomic_add(ref, 0, 4) == 6 and triton.atomic_max(ref, 1, 7) == 3 and triton.atomic_min(ref, 2, 1) == 5
    assert ref[...].tolist() == [10, 7, 1]
    assert triton.atomic_and(ref, 0, 3) == 10 and triton.atomic_or(ref, 1, 8) == 7 and triton.atomic_xor(ref, 2, 3) == 1
    assert ref[...].tolist() == [2, 15, 2]
    assert triton.atomic_xchg(ref, (), 1, mask=vnp.array([True, False, False])).tolist() == [2, 15, 2]
    assert triton.atomic_cas(ref.at[1], 15, 4) == 15 and triton.atomic_cas(ref.at[2], 15, 4) == 2
    assert ref[...].tolist() == [1, 4, 2]


def test_products_of_triton() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(triton.dot(a, b, trans_b=True), a @ b.T)
    assert triton.dot(np.int8([[100, 100]]), np.int8([[100], [100]])).tolist() == [[20000]]


def test_copies_and_rolls_of_tpus() -> None:
    source, target = vf.new_ref(vnp.arange(4.0)), vf.new_ref(vnp.zeros(4))
    tpu.sync_copy(source.at[1:3], target.at[0:2])
    tpu.async_copy(source, target, None, add=True).wait()
    assert target[...].tolist() == [1.0, 3.0, 2.0, 3.0]
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(tpu.roll(x, 1, 1), np.roll(x, 1, 1))
    np.testing.assert_array_equal(tpu.roll(x, 1, 1, stride=1, stride_axis=0), [np.roll(row, 1 + i) for i, row in enumerate(x)])
    with pytest.raises(ArgumentError, match="both specified"):
        tpu.roll(x, 1, 1, stride=1)
    with pytest.raises(ArgumentError, match="non-negative"):
        tpu.roll(x, -1, 1)
    assert tpu.bitcast(vnp.zeros((4, 2), "int16"), "int32").shape == (2, 2)


def test_a_pipeline_in_a_kernel() -> None:
    x = np.arange(48, dtype=np.float32).reshape(8, 6)

    def kernel(x_ref, o_ref, total):
        total[0] = 0.0

        def body(x_block, o_block):
            total[0] += x_block[0, 0]
            o_block[...] = x_block[...] + total[0]

        spec = pl.BlockSpec((2, 6), lambda i: (i, 0))
        tpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    whole = pl.BlockSpec(memory_space=pl.ANY)
    out, scratch = vf.ShapeDtypeStruct((8, 6), "float32"), [tpu.SMEM((1,), "float32")]
    f = pl.pallas_call(kernel, out, in_specs=[whole], out_specs=whole, scratch_shapes=scratch)
    np.testing.assert_array_equal(f(x), x + np.repeat(np.cumsum(x[::2, 0]), 2)[:, None])


def test_parameters_of_compilers_are_accepted() -> None:
    assert tpu.CompilerParams(dimension_semantics=("parallel",)) == tpu.CompilerParams(dimension_semantics=("parallel",))
    with pytest.raises(TypeError, match="warps"):
        tpu.CompilerParams(warps=1)
    f = pl.pallas_call(
        lambda o: o.__setitem__(..., vnp.ones(2)),
        vf.ShapeDtypeStruct((2,), "float32"),
        interpret=tpu.InterpretParams(),
        compiler_params=triton.CompilerParams(num_warps=2),
        cost_estimate=pl.CostEstimate(flops=1, transcendentals=0, bytes_accessed=8),
    )
    with tpu.force_tpu_interpret_mode():
        assert f().tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentTypeError, match="flops is not an int"):
        pl.CostEstimate(1.5, 0, 0)
    assert pl.CostEstimate(1, 2, 3).to_json() == b'{"flops": 1, "transcendentals": 2, "bytes_accessed": 3, "remote_bytes_transferred": 0}'


def test_costs() -> None:
    x = vf.ShapeDtypeStruct((4, 4), "float32")
    assert pl.estimate_cost(lambda x, y: vnp.exp(x @ y) + 1, x, x) == pl.CostEstimate(2 * 64 + 16, 16, 3 * 64)
    assert pl.estimate_cost(lambda x: vf.lax.fori_loop(0, 5, lambda i, y: y * 2.0, x), x).flops >= 80
    assert pl.estimate_cost(lambda x: vf.lax.integer_pow(x, 7), x).flops == 16 * 5
    assert pl.estimate_cost(lambda p, x: vf.lax.cond(p, vnp.sin, lambda x: x * 2, x), True, x).flops == 16


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_quotients_are_rounded_up_in_every_dtype(dtype) -> None:
    """Neither a + b - 1 nor -a is a number of each dtype."""
    numbers = [0, 1, 10, 99, 100, 120, 127] + ([-1, -8, -127] if dtype[0] == "i" else [2**31 + 5] if dtype == "uint32" else [250])
    for a in numbers:
        for b in (1, 4, 100):
            for compute in (pl.cdiv, vf.jit(pl.cdiv)):
                out = compute(vnp.asarray(a, dtype), vnp.asarray(b, dtype))
                assert out.dtype == dtype and int(out) == -(-a // b)
            assert int(pl.cdiv(np.array(a, dtype)[()], np.array(b, dtype)[()])) == pl.cdiv(a, b) == -(-a // b)


def test_products_of_integers_and_floats_are_floats() -> None:
    out = triton.dot(vnp.array([[1, 2]], "int8"), vnp.array([[0.5], [0.25]], "float32"))
    assert out.dtype == "float32" and out.tolist() == [[1.0]]
    assert triton.dot(vnp.array([[1, 2]], "int8"), vnp.array([[3], [4]], "int8")).dtype == "int32"


@pytest.mark.parametrize("is_masked", [False, True])
def test_atomic_operations_count_elements_that_an_index_has_several_times(is_masked) -> None:
    """As on a GPU, where a histogram is such a sum."""
    numbers, mask = np.array([3, 0, 3, 3, 1, 0]), np.array([True, True, False, True, True, True])
    values = np.array([5, 1, 9, 2, 7, 4], np.int32)
    chosen = mask if is_masked else np.ones(6, bool)
    for name, ufunc in (("atomic_add", np.add), ("atomic_max", np.maximum), ("atomic_min", np.minimum)):

        def kernel(i_ref, v_ref, m_ref, o_ref, name=name):
            o_ref[...] = vnp.full((4, 2), 3, "int32")
            getattr(triton, name)(o_ref, (i_ref[...], 1), v_ref[...], mask=m_ref[...] if is_masked else None)

        expected = np.full((4, 2), 3, np.int32)
        ufunc.at(expected, (numbers[chosen], 1), values[chosen])
        out = pl.pallas_call(kernel, vf.ShapeDtypeStruct((4, 2), "int32"))(vnp.asarray(numbers, "int32"), values, mask)
        np.testing.assert_array_equal(out, expected, err_msg=name)


# Kernels that are fused with what surrounds them.


def test_a_kernel_with_what_is_before_and_after_it() -> None:
    @kernels.fusible(output_fusion_prefix=(True, True))
    def total(x: Any, rows: Any, outs: Any) -> Any:
        assert outs == (None, None) and x.shape == (4, 8) and x.dtype == "float32" and rows.in_type == ((), {})

        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] + 1

        values = pl.pallas_call(kernel, vf.ShapeDtypeStruct(x.shape, x.dtype))(x())
        return values, rows() * 2

    @vf.jit
    @kernels.fuse
    def around(x: Any, y: Any) -> Any:
        values, rows = total(x * 3, y)
        return values - 1, rows

    x, y = vnp.arange(32.0).reshape(4, 8), vnp.ones(8)
    values, rows = around(x, y)
    np.testing.assert_array_equal(values, np.asarray(x) * 3)
    np.testing.assert_array_equal(rows, np.full(8, 2.0))
    np.testing.assert_array_equal(vf.grad(lambda x: around(x, y)[0].sum())(x), np.full((4, 8), 3.0))


def test_types_of_a_fusion() -> None:
    struct = vf.ShapeDtypeStruct((2,), "int8")
    fusion = kernels.Fusion(lambda x: (x, x), ((struct,), {}), (struct, struct))
    assert fusion(3) == (3, 3) and fusion.type == (struct, struct)
    assert fusion.shape == ((2,), (2,)) and fusion.in_shape == (((2,),), {})
    assert fusion.dtype == (struct.dtype,) * 2 and fusion.in_dtype == ((struct.dtype,), {})


def test_functions_with_rules() -> None:
    @kernels.custom_fusion
    def add(x: Any, y: Any) -> Any:
        return x + y

    for define in (add.def_pull_block_spec, add.def_push_block_spec, add.def_eval_rule, add.def_pallas_impl):
        assert define(len) is len
    assert vf.jit(kernels.fuse()(add))(1, 2) == 3
    with pytest.raises(ArgumentTypeError, match="fusible"):
        kernels.fusible(3)


@pytest.mark.parametrize(
    ("equation", "shape", "sizes"),
    [
        ("ab->ba", (3, 4), {}),
        ("nhwc -> nchw", (2, 3, 4, 5), {}),
        ("(ab)c->abc", (6, 5), {"a": 2}),
        ("a(bc)->(ba)c", (4, 15), {"c": 5}),
        ("(abc)(de)->(ed)b(ca)", (24, 6), {"a": 2, "c": 4, "d": 3, "e": 2}),
        ("a(bc)->cba", (0, 6), {"b": 2}),
        ("->", (), {}),
    ],
)
def test_equations_of_axes_give_what_those_of_jax_give(equation, shape, sizes) -> None:
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    expected = np.asarray(jax.experimental.pallas.tpu.einshape(equation, x, **sizes))
    for function in (tpu.einshape, vf.jit(tpu.einshape, static_argnums=0, static_argnames=tuple(sizes))):
        result = function(equation, vnp.array(x), **sizes)
        assert result.shape == expected.shape and np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("equation", "sizes", "error", "message"),
    [
        ("a(bc)->abc", {}, ShapeError, "Ambiguous split"),
        ("a(bc)->abc", {"b": 5}, ShapeError, "Cannot split size 12 into .bc. with"),
        ("a(bc)->abc", {"b": 0}, ShapeError, "Cannot split"),
        ("a(bc)->abc", {"b": 2, "c": 5}, ShapeError, "Cannot split"),
        ("abc->cba", {}, ShapeError, "3 axes"),
        ("ab", {}, ArgumentError, "once on each side"),
        ("ab->a", {}, ArgumentError, "once on each side"),
        ("aa->a", {}, ArgumentError, "once on each side"),
        ("a(b->ab", {}, ArgumentError, "once on each side"),
        ("ab->a1b", {}, ArgumentError, "once on each side"),
        ("a-b>", {}, ArgumentError, "once on each side"),
    ],
)
def test_wrong_equations_of_axes(equation, sizes, error, message) -> None:
    with pytest.raises(error, match=message):
        tpu.einshape(equation, vnp.zeros((10, 12)), **sizes)
