"""`pallas_call` beside JAX's interpreter of kernels: grids, blocks, padding, memory, transforms; and its errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental.pallas
import jax.experimental.pallas.tpu
import jax.numpy
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TreeError, UnsupportedError
from volta_fn.experimental import pallas as pl
from volta_fn.experimental.pallas import tpu

OURS = SimpleNamespace(jax=vf, jnp=vnp, pl=pl, tpu=tpu, call=pl.pallas_call)
THEIRS = SimpleNamespace(
    jax=jax,
    jnp=jax.numpy,
    pl=jax.experimental.pallas,
    tpu=jax.experimental.pallas.tpu,
    call=functools.partial(jax.experimental.pallas.pallas_call, interpret=True),
)
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(24, 20).astype(np.float32)
Y = RANDOM.randn(20, 12).astype(np.float32)

CASES: dict[str, Callable[[Any], Any]] = {}


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[function.__name__] = function
    return function


def shape(m: Any, *sizes: int, dtype: str = "float32") -> Any:
    return m.jax.ShapeDtypeStruct(sizes, dtype)


@case
def whole_arrays(m):
    def kernel(x, y, total, difference):
        total[...] = x[...] + y[...]
        difference[...] = x[...] - y[...]

    return m.call(kernel, [shape(m, 24, 20), shape(m, 24, 20)])(X, X * 2)


@case
def matrix_product(m):
    def kernel(x, y, o):
        o[...] = m.jax.nn.relu(x[...] @ y[...])

    specs = [m.pl.BlockSpec((8, 20), lambda i, j: (i, 0)), m.pl.BlockSpec((20, 4), lambda i, j: (0, j))]
    return m.call(kernel, shape(m, 24, 12), grid=(3, 3), in_specs=specs, out_specs=m.pl.BlockSpec((8, 4), lambda i, j: (i, j)))(X, Y)


@case
def product_summed_over_an_axis_of_the_grid(m):
    def kernel(x, y, o, acc):
        @m.pl.when(m.pl.program_id(2) == 0)
        def _():
            acc[...] = m.jnp.zeros_like(acc)

        acc[...] += x[...] @ y[...]

        @m.pl.when(m.pl.program_id(2) == m.pl.num_programs(2) - 1)
        def _():
            o[...] = acc[...]

    grid = m.tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=0,
        grid=(3, 3, 4),
        in_specs=[m.pl.BlockSpec((8, 5), lambda i, j, k: (i, k)), m.pl.BlockSpec((5, 4), lambda i, j, k: (k, j))],
        out_specs=m.pl.BlockSpec((8, 4), lambda i, j, k: (i, j)),
        scratch_shapes=[m.tpu.VMEM((8, 4), m.jnp.float32)],
    )
    return m.call(kernel, shape(m, 24, 12), grid_spec=grid)(X, Y)


@case
def blocks_beyond_the_array(m):
    def kernel(x, o):
        o[...] = x[...] + m.pl.program_id(0)

    spec = m.pl.BlockSpec((7, 20), lambda i: (i, 0))
    padded = m.call(
        lambda x, o: o.__setitem__(..., x[...]), shape(m, 30, 20), grid=1, in_specs=[m.pl.BlockSpec((30, 20), lambda i: (0, 0))]
    )
    integers = m.call(lambda x, o: o.__setitem__(..., x[...]), shape(m, 6, dtype="int32"), in_specs=[m.pl.BlockSpec((6,), lambda: 0)])
    return m.call(kernel, shape(m, 24, 20), grid=4, in_specs=[spec], out_specs=spec)(X), padded(X), integers(np.arange(4, dtype=np.int32))


@case
def squeezed_and_element_dimensions(m):
    def kernel(x, window, o):
        o[...] = x[...] + window[0] + window[1]

    specs = [m.pl.BlockSpec((None, 20), lambda i: (i, 0)), m.pl.BlockSpec((m.pl.Element(2, (0, 1)), m.pl.Element(20)), lambda i: (i, 0))]
    row = m.pl.BlockSpec((m.pl.Squeezed(), 20), lambda i: (i, 0))
    return m.call(kernel, shape(m, 24, 20), grid=24, in_specs=specs, out_specs=row)(X, X)[:-1]


@case
def steps_that_write_one_block(m):
    def kernel(x, o):
        @m.pl.when(m.pl.program_id(0) == 0)
        def _():
            o[...] = m.jnp.zeros_like(o)

        o[...] += x[...]

    block = m.pl.BlockSpec((6, 20), lambda i: (i, 0))
    return m.call(kernel, shape(m, 6, 20), grid=4, in_specs=[block], out_specs=m.pl.BlockSpec((6, 20), lambda i: (0, 0)))(X)


@case
def scratch_memory_that_lasts(m):
    def kernel(x, o, total):
        @m.pl.when(m.pl.program_id(0) == 0)
        def _():
            total[0] = 0.0

        total[0] += x[0, 0]
        o[...] = x[...] + total[0]

    row = m.pl.BlockSpec((1, 20), lambda i: (i, 0))
    scratch = [m.tpu.SMEM((1,), m.jnp.float32)]
    return m.call(kernel, shape(m, 24, 20), grid=24, in_specs=[row], out_specs=row, scratch_shapes=scratch)(X)


@case
def transposed_blocks(m):
    def kernel(x, o):
        o[...] = x[...].T

    blocks = m.pl.BlockSpec((6, 5), lambda i, j: (j, i)), m.pl.BlockSpec((5, 6), lambda i, j: (i, j))
    return m.call(kernel, shape(m, 20, 24), grid=(4, 4), in_specs=[blocks[0]], out_specs=blocks[1])(X)


@case
def prefetched_scalars(m):
    def kernel(order, x, o):
        o[...] = x[...] * order[m.pl.program_id(0)]

    grid = m.tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[m.pl.BlockSpec((6, 20), lambda i, order: (order[i], 0))],
        out_specs=m.pl.BlockSpec((6, 20), lambda i, order: (i, 0)),
    )
    return m.call(kernel, shape(m, 24, 20), grid_spec=grid)(np.int32([2, 0, 3, 1]), X)


@case
def aliases(m):
    def kernel(x, _, o):
        o[0] = x[0] + o[1]

    return m.call(kernel, shape(m, 24, 20), input_output_aliases={1: 0})(X, 2 * X)


@case
def trees(m):
    def kernel(x, o):
        o["sum"][...] = x["a"][...] + x["b"][0][...]

    specs = [{"a": m.pl.BlockSpec((12, 20), lambda i: (i, 0)), "b": [m.pl.BlockSpec((12, 20), lambda i: (i, 0))]}]
    out = {"sum": m.pl.BlockSpec((12, 20), lambda i: (i, 0))}
    return m.call(kernel, {"sum": shape(m, 24, 20)}, grid=(2,), in_specs=specs, out_specs=out)({"a": X, "b": [X]})


@case
def loops_and_indices(m):
    def kernel(x, o):
        def body(i, total):
            return total + x[m.pl.ds(i * 4, 4), :]

        o[...] = m.jax.lax.fori_loop(0, 6, body, m.jnp.zeros((4, 20)))

        @m.pl.loop(0, 4, step=2)
        def _(i):
            o[i, 3] = m.jnp.float32(100.0)
            o.at[i][m.pl.ds(5, 2)] = m.jnp.zeros(2)

    return m.call(kernel, shape(m, 4, 20))(X)


@case
def memory_in_a_kernel(m):
    def kernel(x, o):
        def scoped(ref, counter):
            counter[0] = 0
            ref[...] = x[...] * 2

            @m.pl.loop(0, 3)
            def _(i):
                ref[i] = ref[i] + 1.0
                counter[0] += 1

            o[...] = ref[...] + counter[0].astype("float32")

        m.pl.run_scoped(scoped, m.tpu.VMEM((24, 20), m.jnp.float32), counter=m.tpu.SMEM((1,), m.jnp.int32))

    return m.call(kernel, shape(m, 24, 20))(X)


@case
def a_grid_that_is_traced(m):
    def kernel(x, o):
        o[...] = x[...] * m.pl.num_programs(0)

    def f(n):
        row = m.pl.BlockSpec((1, 20), lambda i: (i, 0))
        return m.call(kernel, shape(m, 24, 20), grid=(n,), in_specs=[row], out_specs=row, input_output_aliases={0: 0})(X)

    return m.jax.jit(f)(5)


@case
def index_maps_that_read_the_size_of_the_grid(m):
    def kernel(x, o):
        o[...] = x[...]

    def f(n, x):
        block = m.pl.BlockSpec((1, 20), lambda i: (m.pl.num_programs(0) - 1 - i, 0))
        return m.call(kernel, shape(m, 24, 20), grid=(n,), in_specs=[block], out_specs=m.pl.BlockSpec((1, 20), lambda i: (i, 0)))(x)

    return f(24, X), m.jax.jit(lambda n, x: f(2 * n, x))(12, X)


@case
def vmap(m):
    def kernel(x, y, o):
        o[...] = x[...] * y[...] + m.pl.program_id(0)

    row = m.pl.BlockSpec((5,), lambda i: (i,))
    f = m.call(kernel, shape(m, 20), grid=4, in_specs=[row, row], out_specs=row)
    return m.jax.vmap(f, in_axes=(0, None))(X, X[0]), m.jax.vmap(m.jax.vmap(f, (1, None), 1), (None, 0))(X.T[:20], X[:3])


@case
def forward_mode(m):
    def kernel(x, o):
        o[...] = m.jnp.sin(x[...]) * 2

    return m.jax.jvp(m.call(kernel, shape(m, 24, 20)), (X,), (X * 3,))


@case
def in_a_scan(m):
    def kernel(x, o):
        o[...] = m.jnp.tanh(x[...]) + 0.1

    f = m.call(
        kernel,
        shape(m, 24, 20),
        grid=3,
        in_specs=[m.pl.BlockSpec((8, 20), lambda i: (i, 0))],
        out_specs=m.pl.BlockSpec((8, 20), lambda i: (i, 0)),
    )
    return m.jax.lax.scan(lambda x, _: (f(x), x[0]), X, None, length=3)


@case
def empty_grid(m):
    return m.call(lambda o: o.__setitem__(..., m.jnp.ones(3)), shape(m, 3), grid=0)(), m.call(lambda x: None, ())(X)


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_what_those_of_jax_give(name: str) -> None:
    ours, theirs = (vf.tree.map(np.asarray, CASES[name](m)) for m in (OURS, THEIRS))
    assert vf.tree.structure(ours) == vf.tree.structure(theirs)
    for one, other in zip(vf.tree.leaves(ours), vf.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-5)


def test_gradients_pass_through_kernels() -> None:
    def kernel(x, y, o):
        o[...] = vnp.tanh(x[...] @ y[...])

    specs = [pl.BlockSpec((8, 20), lambda i: (i, 0)), pl.BlockSpec((20, 12), lambda i: (0, 0))]
    f = pl.pallas_call(
        kernel, vf.ShapeDtypeStruct((24, 12), "float32"), grid=3, in_specs=specs, out_specs=pl.BlockSpec((8, 12), lambda i: (i, 0))
    )
    ours = vf.grad(lambda x, y: f(x, y).sum(), (0, 1))(X, Y)
    theirs = jax.grad(lambda x, y: jax.numpy.tanh(x @ y).sum(), (0, 1))(X, Y)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_kernels_change_references_from_outside() -> None:
    total = vf.new_ref(vnp.zeros(20))

    def kernel(x, o):
        total[...] += x[0]
        o[...] = x[...] * 2

    row = pl.BlockSpec((1, 20), lambda i: (i, 0))
    f = pl.pallas_call(kernel, vf.ShapeDtypeStruct((24, 20), "float32"), grid=24, in_specs=[row], out_specs=row)
    np.testing.assert_allclose(f(X), X * 2)
    np.testing.assert_allclose(total[...], X.sum(0), rtol=1e-5, atol=1e-5)


def test_kernels_print_step_by_step(capfd) -> None:
    def kernel(x, o):
        pl.debug_print("step {}", x.at[0])
        o[...] = x[...]

    one = pl.BlockSpec((1,), lambda i: (i,))
    pl.pallas_call(kernel, vf.ShapeDtypeStruct((3,), "int32"), grid=3, in_specs=[one], out_specs=one)(
        np.int32([5, 7, 9])
    ).block_until_ready()
    vf.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["step 5", "step 7", "step 9"]


def test_the_program_of_a_kernel_is_printed(capfd) -> None:
    def kernel(x, o):
        o[...] = vnp.sin(x[...])

    pl.pallas_call(kernel, vf.ShapeDtypeStruct((3,), "float32"), debug=True)(vnp.ones(3))
    assert "sin" in capfd.readouterr().out


def test_a_kernel_is_traced_once_for_types() -> None:
    traces = []

    def kernel(x, o):
        traces.append(x.shape)
        o[...] = x[...] + 1

    f = pl.pallas_call(kernel, vf.ShapeDtypeStruct((3,), "float32"))
    assert vf.jit(lambda x: f(f(x)))(vnp.zeros(3)).tolist() == [2.0, 2.0, 2.0]
    f(vnp.zeros(3))
    assert traces == [(3,)]


def test_named_axes_of_a_grid() -> None:
    def kernel(x, o):
        o[...] = x[...] * vf.lax.axis_size("rows")

    row = pl.BlockSpec((1, 20), lambda i: (i, 0))
    f = pl.pallas_call(kernel, vf.ShapeDtypeStruct((24, 20), "float32"), grid=(("rows", 24),), in_specs=[row], out_specs=row)
    np.testing.assert_allclose(f(X), X * 24)


def test_slices_as_indices_of_blocks() -> None:
    def kernel(x, o):
        o[...] = x[...]

    start = pl.BlockSpec((pl.BoundedSlice(4), 20), lambda i: (pl.ds(5 * i, 4), 0))
    f = pl.pallas_call(
        kernel, vf.ShapeDtypeStruct((8, 20), "float32"), grid=2, in_specs=[start], out_specs=pl.BlockSpec((4, 20), lambda i: (i, 0))
    )
    np.testing.assert_array_equal(f(X), np.concatenate([X[:4], X[5:9]]))


def raising(kernel: Callable[..., Any] = lambda x, o: None, size: int = 4, **options: Any) -> Callable[[], Any]:
    return lambda: pl.pallas_call(kernel, vf.ShapeDtypeStruct((size,), "float32"), **options)(vnp.ones(4))


def with_constant() -> Any:
    constant = np.ones(4, np.float32)

    def kernel(x, o):
        o[...] = x[...] + constant

    return raising(kernel=kernel)()


ERRORS = {
    "returns": (raising(kernel=lambda x, o: 1), ArgumentError, "should return None"),
    "constant": (with_constant, ArgumentError, "captures constants"),
    "specification": (raising(in_specs=pl.BlockSpec((4,), lambda: 0)), ArgumentError, "`in_specs` must be a tuple or a list"),
    "structure": (raising(in_specs=[pl.BlockSpec(), pl.BlockSpec()]), TreeError, "Pytree for `in_specs` and `inputs` do not match"),
    "no specification": (raising(in_specs=[3]), TreeError, "must be a BlockSpec"),
    "rank": (raising(in_specs=[pl.BlockSpec((2, 2), lambda: (0, 0))]), ShapeError, "same number of dimensions"),
    "size": (raising(in_specs=[pl.BlockSpec((0,), lambda: 0)]), ShapeError, "must be positive"),
    "dimension": (raising(in_specs=[pl.BlockSpec(("a",), lambda: 0)]), ArgumentError, "Unsupported block dimension"),
    "indirect": (raising(in_specs=[pl.BlockSpec((pl.Indirect(2),), lambda: 0)]), UnsupportedError, "Indirect"),
    "results": (raising(in_specs=[pl.BlockSpec((2,), lambda: (0, 0))]), ShapeError, r"must return 1 values.*returning 2"),
    "type": (raising(in_specs=[pl.BlockSpec((2,), lambda: 0.5)]), DTypeError, r"must return integer scalars. Output\[0\]"),
    "slice": (raising(in_specs=[pl.BlockSpec((2,), lambda: pl.ds(0, 2))]), DTypeError, "expected a scalar"),
    "grid": (raising(grid=(2.5,)), ArgumentError, "Grid must be a tuple of integers"),
    "both": (raising(grid_spec=pl.GridSpec(grid=2), grid=3), ArgumentError, "If `grid_spec` is specified, then `grid`"),
    "both memories": (raising(grid_spec=pl.GridSpec(), scratch_shapes=[pl.ANY((1,), "int32")]), ArgumentError, "then `scratch_shapes`"),
    "memory": (raising(scratch_shapes=["vmem"]), ArgumentTypeError, "type of memory"),
    "alias of no input": (raising(input_output_aliases={2: 0}), ArgumentError, "'2:0' with input index 2 outside the range"),
    "alias of no output": (raising(input_output_aliases={0: 1}), ArgumentError, "'0:1' with output index 1 outside the range"),
    "alias": (
        raising(input_output_aliases={0: 0}, size=5),
        ArgumentError,
        r"input\[0\] with abstract value float32\[4\] and to output with a different abstract value float32\[5\]",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call()
