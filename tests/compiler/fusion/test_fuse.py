"""Fusion: what becomes one kernel, what does not, and that values stay what they are, for fixed and for random programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.ir.oracle import SimpleTarget, equations_apart, fuse_function, run
from tests.laws.common import ROUNDING, arrays, assert_close, draw
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from tests.test_random_programs import drawn, programs
from tests.test_random_programs import run as run_program
from volta_fn import dtypes, lax, nn
from volta_fn.compiler.ir.kernel import Apply, KernelCall, Load, Reduce, check_kernel
from volta_fn.errors import JaxprError

X = vf.ShapeDtypeStruct((8, 16), "float32")
W = vf.ShapeDtypeStruct((16,), "float32")
X_COLUMN = vf.ShapeDtypeStruct((3, 1), "int32")


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * w + b


def rms_norm(x: Any, w: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def row_losses(x: Any, y: Any) -> Any:
    return -(nn.log_softmax(x) * y).sum(-1)


def pullback(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient by the first argument, given the cotangent last."""
    return lambda x, *rest: vf.vjp(lambda x: function(x, *rest[:-1]), x)[1](rest[-1])


ROWS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("softmax", nn.softmax, (X,)),
    ("log-softmax", nn.log_softmax, (X,)),
    ("layer-norm", layer_norm, (X, W, W)),
    ("rms-norm", rms_norm, (X, W)),
    ("cross-entropy", row_losses, (X, X)),
    ("logsumexp", lambda x: nn.logsumexp(x, -1), (X,)),
    ("argmax", lambda x: (lax.argmax(x * 2.0, 1), lax.reduce_max(x, (1,))), (X,)),
    ("softmax-gradient", pullback(nn.softmax), (X, X)),
    ("log-softmax-gradient", pullback(nn.log_softmax), (X, X)),
    ("layer-norm-gradient", pullback(layer_norm), (X, W, W, X)),
    ("rms-norm-gradient", pullback(rms_norm), (X, W, X)),
    ("cross-entropy-gradient", pullback(row_losses), (X, X, vf.ShapeDtypeStruct((8,), "float32"))),
    ("softmax-of-columns", lambda x: nn.softmax(x, 0), (X,)),
    ("softmax-of-a-view", lambda x: nn.softmax(x.reshape(2, 4, 16).transpose(1, 0, 2)).reshape(8, 16), (X,)),
]


def values_for(args: tuple[Any, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=a.shape).astype(a.dtype) for a in args]


def same_as_jit(function: Callable[..., Any], partition: Any, *inputs: Any) -> None:
    expected = [np.asarray(v) for v in vf.tree.leaves(vf.jit(function)(*inputs))]
    for actual, wanted in zip(run(partition, *vf.tree.leaves(inputs)), expected, strict=True):
        assert_close(actual, wanted, 1e-5, "a fused program")


@pytest.mark.parametrize(("name", "function", "args"), ROWS, ids=[r[0] for r in ROWS])
def test_rows_are_one_kernel(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    partition = fuse_function(function, *args)
    assert [type(item) for item in partition.nodes] == [KernelCall]
    same_as_jit(function, partition, *values_for(args))


def test_sums_over_columns_that_merge_with_two_others_are_one_kernel() -> None:
    """The third sum joins the first, which is longer and takes it in, and then, as that one, the second."""
    f = lambda x, y: (jnp.sin(jnp.cos(x) * x).sum(0), y.sum(0), (x * y).sum(0))
    partition = fuse_function(f, X, X)
    assert [len(k.stores) for k in partition.kernels] == [3]
    same_as_jit(f, partition, *values_for((X, X)))


def mixed_precision_block(p: dict[str, Any], x: Any) -> Any:
    """Return a residual block with layer norms, whose products and sums over columns are bfloat16."""

    def half(a: Any) -> Any:
        return a.astype(jnp.bfloat16)

    def norm(x: Any, g: Any, b: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = jnp.maximum((x * x).mean(-1, keepdims=True) - mean * mean, 0.0)
        return (x - mean) * (lax.rsqrt(variance + 1e-5) * g) + b

    h = half(norm(x, p["g"], p["b"])) @ half(p["w1"]) + half(p["b1"])
    x = x + nn.relu(h) @ half(p["w2"]) + half(p["b2"])
    return ((half(norm(x, p["g2"], p["b3"])) @ half(p["w3"])).astype(jnp.float32) ** 2).mean()


@pytest.mark.parametrize("products", [False, True])
def test_the_gradient_of_a_residual_block_in_mixed_precision(products: bool) -> None:
    vectors = dict.fromkeys(("g", "b", "g2", "b3", "b2"), (48,))
    shapes = {**vectors, "w1": (48, 64), "b1": (64,), "w2": (64, 48), "w3": (48, 62)}
    parameters = {name: vf.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    gradient, x = vf.grad(mixed_precision_block, argnums=(0, 1)), vf.ShapeDtypeStruct((8, 32, 48), "float32")
    partition = fuse_function(gradient, parameters, x, target=SimpleTarget(keeps_as_kernel=lambda kernel: products, kernel_buffers=48))
    inputs = dict(zip(shapes, values_for(tuple(parameters.values())), strict=True)), *values_for((x,))
    for actual, wanted in zip(run(partition, *vf.tree.leaves(inputs)), vf.tree.leaves(vf.jit(gradient)(*inputs)), strict=True):
        assert_close(actual, np.asarray(wanted), 0.05, "a gradient in bfloat16")


def test_a_chain_and_its_views_are_one_kernel() -> None:
    f = lambda x: jnp.tanh(lax.rev(x, (0,)).T * 2.0 + 1.0).reshape(4, 32)
    partition = fuse_function(f, X)
    assert len(partition.kernels) == 1
    assert equations_apart(partition) in ([], ["reshape"])
    same_as_jit(f, partition, *values_for((X,)))


def test_a_value_per_row_computed_before_the_rows_is_part_of_them() -> None:
    f = lambda x, c: (x * jnp.exp(-c)[:, None]).sum(1)
    partition = fuse_function(f, X, vf.ShapeDtypeStruct((8,), "float32"))
    assert len(partition.nodes) == 1
    same_as_jit(f, partition, *values_for((X, vf.ShapeDtypeStruct((8,), "float32"))))


def test_a_scalar_shared_by_many_is_computed_once() -> None:
    """It has a kernel of its own, and does not turn the arrays that use it into single rows."""
    f = lambda x, y, t: (lambda scale: (x * scale, y * scale))(jnp.exp(t))
    partition = fuse_function(f, X, W, vf.ShapeDtypeStruct((), "float32"))
    assert [(k.sizes, k.parallel) for k in partition.kernels] == [((), 0), ((8, 16), 2), ((16,), 1)]


def test_branches_that_meet_are_one_kernel() -> None:
    f = lambda x, y: jnp.exp(x) * jnp.sin(y) + jnp.cos(x * y)
    assert len(fuse_function(f, X, X).nodes) == 1


def test_nothing_is_computed_twice() -> None:
    """Shifted reads of something expensive read it from memory; shifted reads of an input are loads."""
    computed = fuse_function(lambda x: (lambda y: y[:, 1:] - y[:, :-1])(jnp.exp(x)), X)
    assert [sum(isinstance(n, Apply) and n.op == "exp" for n in k.nodes) for k in computed.kernels] == [1, 0]
    assert len(fuse_function(lambda x: x[:, 1:] - x[:, :-1], X).nodes) == 1


def test_several_reductions_share_a_loop() -> None:
    partition = fuse_function(lambda x: (x.sum(1), (x * x).sum(1), x.max(1)), X)
    assert len(partition.nodes) == 1
    assert sum(isinstance(n, Reduce) for n in partition.kernels[0].nodes) == 3


def test_gradients_of_weights_do_not_tear_rows_apart() -> None:
    """The sums over columns read the same arrays as the row kernel, but go another way through them."""
    args = (X, W, W, X)
    f = lambda x, w, b, g: vf.vjp(layer_norm, x, w, b)[1](g)
    partition = fuse_function(f, *args)
    assert sorted(k.sizes for k in partition.kernels) == [(8, 16), (16, 8), (16, 8)]
    same_as_jit(f, partition, *values_for(args))


def test_rows_that_are_too_long_are_read_again() -> None:
    assert len(fuse_function(nn.softmax, X, target=SimpleTarget(longest_row=8)).nodes) > 1


def adam(g: Any, m: Any, v: Any, p: Any, rate: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return m, v, p - rate * m / (jnp.sqrt(v) + 1e-8)


def test_an_optimizer_step_is_one_kernel_per_parameter() -> None:
    args = (X, X, X, X, vf.ShapeDtypeStruct((), "float32"))
    partition = fuse_function(adam, *args)
    assert len(partition.nodes) == 1
    assert len(partition.kernels[0].outputs) == 3
    values = [np.abs(v) for v in values_for(args)]
    same_as_jit(adam, partition, *values)


@pytest.mark.parametrize("buffers", [3, 4])
def test_kernels_keep_to_the_number_of_buffers(buffers: int) -> None:
    f = pullback(layer_norm)
    args = (X, W, W, X)
    partition = fuse_function(f, *args, target=SimpleTarget(kernel_buffers=buffers))
    assert (len(partition.nodes) == 1) == (buffers == 4)
    assert all(len(k.inputs) + len(k.outputs) <= buffers for k in partition.kernels)
    same_as_jit(f, partition, *values_for(args))


def block(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x + nn.gelu(layer_norm(x, a, b) @ w)


def test_equal_layers_share_kernels() -> None:
    def network(x: Any, layers: Any) -> Any:
        for w, a, b in layers:
            x = block(x, w, a, b)
        return (x * x).sum()

    layer = (vf.ShapeDtypeStruct((16, 16), "float32"), W, W)
    few, many = (fuse_function(vf.grad(network), X, [layer] * n) for n in (4, 12))
    assert len(many.kernels) > len(few.kernels)
    assert len(set(many.kernels)) == len(set(few.kernels))


def test_long_programs_are_no_deep_recursion() -> None:
    def long(x: Any) -> Any:
        for _ in range(1500):
            x = lax.sin(x) + x
        return x

    partition = fuse_function(long, W)
    assert len(partition.kernels) == len(partition.nodes) == 3000 // SimpleTarget().capabilities.kernel_equations
    assert len(set(partition.kernels)) == 1


def test_views_of_views_of_views() -> None:
    def turning(x: Any) -> Any:
        for n in range(50):
            x = lax.rev(x.T, (n % 2,))
        return x * 2.0

    partition = fuse_function(turning, X)
    assert len(partition.nodes) < 6
    same_as_jit(turning, partition, *values_for((X,)))


def test_an_index_that_turns_out_not_to_be_affine_leaves_equations() -> None:
    """Every second of six elements is affine in one axis of six, but not in two axes of two and three."""
    x = np.arange(1.0, 4.0, dtype=np.float32)
    f = lambda x, y: lax.pad(x, np.float32(0), [(0, 1, 1)]).reshape(2, 3) * y
    y = np.ones((2, 3), np.float32)
    partition = fuse_function(f, x, y)
    assert equations_apart(partition) == ["pad", "reshape", "mul"]
    same_as_jit(f, partition, x, y)


def test_a_reshape_that_no_index_says_reads_memory() -> None:
    f = lambda x: (x.T.reshape(8, 3) * 2.0, x.T.reshape(24)[5:] + 1.0)
    x = vf.ShapeDtypeStruct((6, 4), "float32")
    partition = fuse_function(f, x)
    assert all(n.op != "reshape" for k in partition.kernels for n in k.nodes if isinstance(n, Apply))
    same_as_jit(f, partition, *values_for((x,)))


def test_an_equation_of_too_many_operands_stays_one() -> None:
    f = lambda which, *cases: lax.select_n(which, *cases) + 1.0
    args = (vf.ShapeDtypeStruct((16,), "int32"), *[W] * 9)
    partition = fuse_function(f, *args)
    assert equations_apart(partition) == ["select_n"]
    assert len(partition.kernels) == 1


SAMPLES = list(samples_of_code())


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_samples(sample: Sample) -> None:
    """The fused program of every sample against its equations run one by one."""
    for name in sample.dtypes:
        inputs = draw(sample, dtypes.as_dtype(name))
        function = lambda *args: vf.tree.leaves(sample.function(*args))
        partition = fuse_function(function, *arrays(inputs))
        alone = partition._replace(nodes=tuple(partition.closed.eqns))
        for actual, expected in zip(run(partition, *inputs), run(alone, *inputs), strict=True):
            assert_close(actual, expected, ROUNDING.get(expected.dtype.name, 0.0), f"{sample} in {name}")


#: Sums in another order, of numbers around 1, may differ by this where they cancel.
ROUNDED = 1e-12


@given(steps=programs)
@settings(max_examples=60)
def test_random_programs(steps: Any) -> None:
    inputs = drawn(1, 2, np.float64)
    f = lambda x, y: run_program(steps, (x, y), True)
    for target in (None, SimpleTarget(kernel_buffers=4, longest_row=4)):
        partition = fuse_function(f, *inputs, target=target)
        alone = partition._replace(nodes=tuple(partition.closed.eqns))
        assert_close(run(partition, *inputs)[0], run(alone, *inputs)[0], 1e-12, f"{steps}", atol=ROUNDED)


@given(steps=programs)
@settings(max_examples=40)
def test_random_gradients(steps: Any) -> None:
    inputs = drawn(1, 2, np.float64)
    f = vf.grad(lambda x, y: run_program(steps, (x, y), True).sum(), argnums=(0, 1))
    partition = fuse_function(f, *inputs)
    alone = partition._replace(nodes=tuple(partition.closed.eqns))
    for actual, expected in zip(run(partition, *inputs), run(alone, *inputs), strict=True):
        assert_close(actual, expected, 1e-10, f"{steps}", atol=ROUNDED)


#: Arrays that a condition on their rows chooses the elements of, from one column.
JOINED: dict[str, Callable[[Any], Any]] = {
    "concatenate": lambda x: jnp.concatenate([x, x[2:]], 0),
    "pad": lambda x: jnp.pad(x, ((2, 1), (0, 0)), constant_values=5),
    "pad between": lambda x: lax.pad(x, x.dtype.type(7), [(1, 1, 1), (0, 0, 0)]),
    "roll": lambda x: jnp.roll(x, 1, 0),
    "reversed": lambda x: jnp.concatenate([x[::-1], x[1:]], 0),
}


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("rows", [3, 40])
def test_an_inner_axis_without_elements_leaves_the_conditions_of_the_rows(name: str, rows: int) -> None:
    x = (np.arange(rows, dtype=np.int32) * 7 % 11).reshape(rows, 1)

    def function(x: Any) -> Any:
        joined = JOINED[name](x)
        return joined * 1, (joined + joined) - joined[:, :0], jnp.sum(joined * joined[:, :0], 1)

    program = fuse_function(function, x)
    for actual, expected in zip(run(program, x), function(jnp.asarray(x)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_what_is_read_outside_of_an_axis_without_elements_is_checked() -> None:
    def function(x: Any) -> Any:
        joined = JOINED["concatenate"](x)
        return joined * 1, (joined + joined) - joined[:, :0]

    kernels = [node.kernel for node in fuse_function(function, X_COLUMN).nodes if isinstance(node, KernelCall)]
    (kernel,) = [kernel for kernel in kernels if 0 in kernel.sizes and len(kernel.stores) > 1]
    check_kernel(kernel)
    unguarded = tuple([replace(node, mask=()) if isinstance(node, Load) else node for node in kernel.nodes])
    with pytest.raises(JaxprError, match="may read outside of its buffer"):
        check_kernel(replace(kernel, nodes=unguarded))
