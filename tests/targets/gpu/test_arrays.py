"""Arrays on the GPU, and programs of all kinds there, against the same on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.common import assert_same_bits, host
from volta_fn import dtypes, lax
from volta_fn import numpy as jnp

GPU = vf.devices("gpu")[0]


def on_gpu(x: Any) -> Any:
    return vf.device_put(x, GPU)


@pytest.mark.parametrize("dtype", sorted(d.name for d in dtypes.ALL))
@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (0, 2), (31, 33)])
def test_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtypes.as_dtype(dtype))
    on_device = on_gpu(values)
    assert on_device.device is GPU
    assert on_device.dtype == values.dtype
    assert_same_bits(np.asarray(on_device), values, dtype)
    assert_same_bits(np.asarray(jnp.reshape(on_device, (-1,))), values.reshape(-1), dtype)


def both(function: Any, *args: Any) -> None:
    """Check that the function gives the same on both devices, jitted, twice."""
    expected = host(function(*args))
    run = vf.jit(function)
    with vf.default_device(GPU):
        operands = on_gpu(args)
        for _ in range(2):
            actual = vf.tree.leaves(run(*operands))
            assert all(x.device is GPU for x in actual)
            for one, other in zip(actual, expected, strict=True):
                np.testing.assert_allclose(np.asarray(one), other, rtol=1e-5, atol=1e-6)


def pair(x: Any, y: Any) -> Any:
    return jnp.tanh(x) * y, x.sum(), y.T, x.reshape(-1), x


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_scans(length: int, width: int) -> None:
    """Rows that begin where they can be bound and others, carries of all kinds, forwards and backwards."""

    def run(xs: Any, small: Any, reverse: bool) -> Any:
        def step(carry: Any, row: Any) -> Any:
            retained, moving, a, b = carry
            x, byte = row
            return (retained, moving * 0.5 + x + retained, b, a), (moving, byte, x.sum())

        start = (jnp.ones(width), jnp.zeros(width), jnp.arange(2.0), jnp.arange(2.0) + 5)
        return lax.scan(step, start, (xs, small), reverse=reverse)

    xs = jnp.arange(float(length * width)).reshape(length, width)
    small = jnp.asarray(np.arange(length * 3).reshape(length, 3).astype(np.int8))
    both(lambda x, s: (run(x, s, False), run(x, s, True)), xs, small)


def test_products_that_leave_a_scan() -> None:
    """The gradients of a recurrent network: products before the loop, behind it, and over all of its steps."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        _, y = lax.scan(lambda h, r: (lambda h: (h, h @ w.T))(jnp.tanh(h @ w + r @ u)), jnp.zeros((3, 8)), x, reverse=True)
        return (y * y).mean()

    w, u, x = (jnp.sin(jnp.arange(float(n)) * 7).reshape(*shape) for n, *shape in ((64, 8, 8), (40, 5, 8), (90, 6, 3, 5)))
    both(vf.value_and_grad(loss, (0, 1, 2)), w / 2, u / 2, x)


def test_a_scan_in_a_scan() -> None:
    def inner(c: Any, x: Any) -> Any:
        return c * 0.9 + x, c

    def outer(c: Any, rows: Any) -> Any:
        c, ys = lax.scan(inner, c, rows)
        return c, ys

    both(lambda x: lax.scan(outer, jnp.zeros(64), x), jnp.arange(5 * 6 * 64.0).reshape(5, 6, 64) / 100)
    both(lambda x: lax.scan(outer, jnp.zeros(3), x), jnp.arange(5 * 6 * 3.0).reshape(5, 6, 3) / 100)


def test_branches() -> None:
    def run(i: Any, x: Any) -> Any:
        inside = lambda x: lax.cond(x.sum() > 20, lambda x: x * 2, lambda x: x + 1, x)
        return lax.switch(i, [lambda x: x + 1, inside, lambda x: lax.fori_loop(0, i, lambda k, y: y + k, -x), lambda x: x], x)

    for i in range(4):
        both(run, jnp.int32(i), jnp.arange(8.0))
    both(lambda x: lax.scan(lambda c, v: (lax.cond(v > 2, lambda: c * v, lambda: c), c), jnp.float32(1), x), jnp.arange(6.0))


@pytest.mark.parametrize("most", [0, 1, 5, 100])
def test_while_loops(most: int) -> None:
    def run(n: Any, x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[2], c[1] * 0.99 + c[0]), (0, x, x + 1))

    both(run, jnp.int32(most), jnp.arange(5.0))
    both(lambda n, x: lax.fori_loop(0, 3, lambda i, x: run(n, x)[1] + i, x), jnp.int32(most), jnp.arange(5.0))


def test_what_a_row_shares_is_not_overwritten_while_it_is_read() -> None:
    both(
        lambda n, x: lax.while_loop(
            lambda s: (s[0] < n).any(), lambda s: (s[0] + 1, jnp.where((s[0] < n)[:, None], s[1] * x, s[1])), (n * 0, x)
        )[1],
        jnp.asarray([1, 5, 0]),
        jnp.arange(300.0).reshape(3, 100) / 200,
    )


def test_programs_of_every_shape() -> None:
    x = jnp.arange(12.0).reshape(3, 4)
    both(pair, x, x + 1)
    both(lambda x: (jnp.zeros(3), 1.0, x[:0], x), x)
    both(vf.grad(lambda x: jnp.sum(jnp.exp(-(x**2)) @ x.T)), x / 10)


def test_gradients_stay_where_the_arguments_are() -> None:
    """Whatever the default device is."""
    with vf.default_device(GPU):
        x = jnp.arange(3.0)
    gradient = vf.grad(lambda x: jnp.sum(x**2))(x)
    assert gradient.device is GPU
    np.testing.assert_array_equal(np.asarray(gradient), [0, 2, 4])
    y = vf.device_put(x, "cpu")
    with vf.default_device(GPU):
        for _ in range(3):  # the first is done step by step, the others by a program
            gradient = vf.grad(lambda y: jnp.sum(jnp.tanh(y) + y**2))(y)
            assert gradient.device is y.device
            np.testing.assert_allclose(np.asarray(gradient), 1 / np.cosh([0.0, 1.0, 2.0]) ** 2 + [0, 2, 4], rtol=1e-6)


def test_donated_arguments() -> None:
    with vf.default_device(GPU):
        step = vf.jit(lambda x, n: (jnp.exp(x) * n, n + 1), donate_argnums=(0, 1))
        x, n = jnp.zeros(1000), jnp.float32(2)
        memory = x.buffer().lease.block
        y, m = step(x, n)
        assert x.is_deleted() and n.is_deleted()
        assert y.buffer().lease.block is memory
        np.testing.assert_array_equal(np.asarray(y), np.full(1000, 2.0, np.float32))
        assert float(m) == 3.0


def test_donated_arguments_that_somebody_else_has() -> None:
    with vf.default_device(GPU):
        step = vf.jit(lambda x: x + 1, donate_argnums=0)
        x = jnp.zeros(1000)
        view = jnp.reshape(x, (10, 100))
        y = step(x)
        assert x.is_deleted()
        assert float(view.sum()) == 0.0 and float(y.sum()) == 1000.0


def test_memory_is_used_again() -> None:
    with vf.default_device(GPU):
        step = vf.jit(lambda x: jnp.exp(x) * 0.5)
        x = jnp.ones(5000)
        pool = GPU.backend.gpu.pool
        for _ in range(5):
            x = step(x)
        held = pool.held
        for _ in range(50):
            x = step(x)
        assert pool.held == held


def test_callbacks() -> None:
    seen = []
    with vf.default_device(GPU):

        @vf.jit
        def run(x: Any) -> Any:
            vf.debug.callback(lambda v: seen.append(float(v)), x.sum())
            return vf.pure_callback(lambda v: np.asarray(v) * 3, vf.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

        np.testing.assert_array_equal(np.asarray(run(jnp.arange(4.0))), np.arange(4.0) * 3 + 1)
    assert seen == [6.0]


def test_a_closed_over_array_stays_where_it_is() -> None:
    with vf.default_device(GPU):
        w = jnp.arange(100.0)
        before = GPU.backend.counters
        y = vf.jit(lambda x: x + w)(jnp.ones(100))
        assert GPU.backend.counters.reads == before.reads
        assert GPU.backend.counters.host_steps == before.host_steps
        assert float(y[3]) == 4.0


@pytest.mark.parametrize("native", [False, True])
def test_programs_on_the_cpu_have_constants_of_a_gpu(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU is the default device, numbers in a program are its arrays, whichever device the program is for."""
    cpu = vf.devices("cpu")[0]
    monkeypatch.setattr(cpu.backend, "native", native)
    values = np.arange(3, dtype=np.float32)
    with vf.default_device(GPU):
        row, computed = on_gpu(values), jnp.sin(on_gpu(values))

        def run(x: Any) -> Any:
            scanned = lax.scan(lambda carry, y: (carry + y * 2.0, row * y), 1.0, x)
            return x + 3, jnp.float32(4.0), computed, scanned

        actual = vf.tree.leaves(vf.jit(run)(vf.device_put(values, cpu)))
    assert all(x.device is cpu for x in actual)
    for one, expected in zip(actual, (values + 3, 4.0, np.sin(values), 7.0, np.outer(values, values)), strict=True):
        np.testing.assert_allclose(np.asarray(one), expected, rtol=1e-6)


def test_scalars_go_where_arrays_are() -> None:
    x = on_gpu(np.arange(3.0, dtype=np.float32))
    y = vf.device_put(np.arange(3.0, dtype=np.float32), vf.devices("cpu")[0])
    for result in (x * 2.0, 2.0 * x, vf.jit(lambda x, s: x * s)(x, 2.0), vf.jit(lambda x: x * 2.0)(x)):
        assert result.device is GPU
        np.testing.assert_array_equal(np.asarray(result), [0.0, 2.0, 4.0])
    for result in (x + y, y + x, vf.jit(jnp.add)(x, y)):  # as do arrays on the default device
        assert result.device is GPU
        np.testing.assert_array_equal(np.asarray(result), [0.0, 2.0, 4.0])


def test_more_arrays_put_together_than_a_shader_reads() -> None:
    rows = [jnp.arange(5.0) + i for i in range(70)]
    both(lambda rows: jnp.stack(rows), rows)
    both(lambda rows: jnp.concatenate(rows[:40]) * 2, rows)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_sums_over_nothing(dtype: str) -> None:
    """Arrays without elements are bound, too, as large as the shader says that an element is."""

    def convolved(image: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(image, kernel, (1,), [(3, 3)], dimension_numbers=("NCH", "OIH", "NCH"))

    image, kernel = np.zeros((1, 2, 0), dtype), np.ones((4, 2, 3), dtype)
    result = vf.jit(convolved)(on_gpu(image), on_gpu(kernel))
    assert_same_bits(np.asarray(result), np.zeros((1, 4, 4), dtype), dtype)


@pytest.mark.parametrize("divisor", [3.0, 20.0, 49.0])
def test_whole_quotients_are_exact_in_the_middle_of_sums(divisor: float) -> None:
    """A schedule's 1 - step/steps must not end below 0, where its powers are NaN."""
    whole = np.arange(1000, dtype=np.float32)
    rest = vf.jit(lambda x, y: y - x / divisor)(on_gpu(whole * np.float32(divisor)), on_gpu(whole))
    assert_same_bits(np.asarray(rest), np.zeros(1000, np.float32), "y - y")
