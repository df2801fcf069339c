"""Whole programs on an emulated NVIDIA GPU: plans, shaders, graphs, copies and losses, against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.targets.gpu.test_recordings import check_history
from tests.targets.nvidia.emulated_gpu import device
from tests.targets.nvidia.fake_cuda import FakeCuda
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.core.devices.device import Device
from volta_fn.settings import current as settings
from volta_fn.targets.nvidia import compilation, library
from volta_fn.targets.wgsl.commands import Run


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield device(monkeypatch)
    library._functions.cache_clear()


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """Compute what is expected on the CPU, also where a real GPU is the default."""
    with vf.default_device("cpu"):
        yield


@pytest.fixture(autouse=True)
def fake(gpu: Device) -> Iterator[FakeCuda]:
    stand_in: Any = library.functions()._library
    yield stand_in
    broken = [*stand_in.broken]
    stand_in.broken.clear()
    assert not broken, [(error, error.__notes__) for error in broken]


X = np.random.default_rng(0).normal(size=(12, 9)).astype(np.float32)
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: jnp.tanh(x @ x.T) @ x,
    "gradient": vf.grad(lambda x: jnp.mean(jnp.exp(jnp.sin(x) @ x.T) * 0.1)),
    "scan": lambda x: lax.scan(lambda carry, row: (carry * 0.5 + row, carry @ x.T), x[0], x),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 0.5 + 1), (jnp.sum(x) * 0, x))[1],
    "cond": lambda x: lax.cond(jnp.sum(x) > 0, lambda y: jnp.sort(y, axis=1), lambda y: jnp.cumsum(y, axis=1), x),
    "sort": lambda x: (jnp.sort(x.reshape(-1)), jnp.argsort(x, axis=0)),
    "softmax": lambda x: vf.nn.softmax(x, axis=-1).sum(axis=0),
    "float64": lambda x: jnp.linalg.norm(x.astype("float64"), axis=0),
    "int64": lambda x: (x * 1e6).astype("int64").sum() * 1_000_003,
    "float16": lambda x: (x.astype("float16") * 3).max(axis=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, gpu: Device) -> None:
    expected = vf.tree.leaves(PROGRAMS[name](jnp.asarray(X)))
    program = vf.jit(PROGRAMS[name])
    with vf.default_device(gpu):
        x = vf.device_put(X, gpu)
        for _ in range(3):  # by launches, and twice by a recording
            actual = vf.tree.leaves(program(x))
    for result, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(wanted), rtol=2e-5, atol=1e-5)


def test_a_conditional_runs_for_its_effects_alone(gpu: Device) -> None:
    calls: list[float] = []
    note = lambda y: vf.debug.callback(lambda v: calls.append(float(v)), y)
    program = vf.jit(lambda y: (lax.cond(y > 1, note, lambda y: None, y), y * 3)[1])
    with vf.default_device(gpu):
        for y in (1.5, 0.5, 2.5):
            assert program(vf.device_put(np.float32(y), gpu)) == 3 * y
    assert calls == [1.5, 2.5]


def collatz(n: Any) -> Any:
    """Count steps to 1, and those of all smaller numbers: a loop in a loop."""

    def steps(n: Any) -> Any:
        return lax.while_loop(lambda c: c[0] > 1, lambda c: (jnp.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1), (n, n * 0))[1]

    return lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] + steps(c[0])), (n, n * 0))[1]


def newton(x: Any) -> Any:
    """Take square roots, a scan of loops, with a branch in each iteration."""

    def root(total: Any, a: Any) -> Any:
        def improve(c: Any) -> Any:
            y = lax.cond(c[1] % 2 == 0, lambda y: 0.5 * (y + a / y), lambda y: (y * y + a) / (2 * y), c[0])
            return y, c[1] + 1

        y, count = lax.while_loop(lambda c: jnp.abs(c[0] * c[0] - a) > 1e-5 * a, improve, (a, 0))
        return total + count, y

    return lax.scan(root, 0, x)


LOOPS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "no iteration": (collatz, np.int32(0), np.int32(0)),
    "one in another": (collatz, np.int32(7), np.int32(0 + 1 + 7 + 2 + 5 + 8 + 16)),
    "in a scan": (lambda x: newton(x)[1], np.arange(1, 6, dtype=np.float32), np.sqrt(np.arange(1, 6))),
    "around a scan": (
        lambda x: lax.while_loop(lambda x: x[-1] < 100, lambda x: lax.scan(lambda c, a: (c + a, c + a), x[0] * 0, x)[1], x),
        np.ones(4, np.float32),
        np.array([1, 8, 36, 120], np.float32),
    ),
}


@pytest.mark.parametrize("is_new", [True, False], ids=["in graphs", "by an older driver"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, is_new: bool, gpu: Device, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    function, x, expected = LOOPS[name]
    monkeypatch.setattr(gpu.backend.gpu.driver.functions, "version", 12040 if is_new else 12030)
    program, read = vf.jit(lambda x: function(x)), fake.count("cuMemcpyDtoHAsync_v2")
    loops = fake.count("cuGraphAddNode")
    with vf.default_device(gpu):
        on_device = vf.device_put(x, gpu)
        results = [program(on_device) for _ in range(3)]
        assert (fake.count("cuMemcpyDtoHAsync_v2") == read) == is_new
        for result in results:
            np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5)
    assert (fake.count("cuGraphAddNode") > loops) == is_new


def train(steps: int, *, keeps: bool = False) -> tuple[np.ndarray, list[float]]:
    """Return parameters and losses after some steps of training, whose parameters are updated in place.

    Losses are those of all steps if it `keeps` them, or else the last one.
    """

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ p[0]) @ p[1] - 1) ** 2)

    def update(p: Any, x: Any) -> Any:
        value, slopes = vf.value_and_grad(loss)(p, x)
        return vf.tree.map(lambda a, b: a - 0.1 * b, p, slopes), value

    step = vf.jit(update, donate_argnums=0)
    p, x = (jnp.ones((9, 5)) * 0.1, jnp.ones((5, 2)) * 0.2), jnp.asarray(X)
    losses: list[Any] = []
    for _ in range(steps):
        p, value = step(p, x)
        losses = [*losses, value] if keeps else [value]
    return np.asarray(p[0]), [float(value) for value in losses]


def test_training_is_launched_by_graphs(gpu: Device, fake: FakeCuda) -> None:
    weights, loss = train(8)
    launched, graphs = fake.count("cuLaunchKernel"), fake.count("cuGraphLaunch")
    with vf.default_device(gpu):
        actual = train(8)
    np.testing.assert_allclose(actual[0], weights, rtol=1e-5)
    np.testing.assert_allclose(actual[1], loss, rtol=1e-5)
    assert fake.count("cuGraphLaunch") > graphs
    assert fake.count("cuLaunchKernel") - launched < 60


def test_training_that_keeps_each_loss_is_launched_by_few_graphs(gpu: Device, fake: FakeCuda) -> None:
    """The loss is in another block each time, so that the dispatch that writes it is changed in a graph."""
    losses = train(12, keeps=True)
    launched, made = fake.count("cuLaunchKernel"), fake.count("cuGraphInstantiateWithFlags")
    with vf.default_device(gpu):
        actual = train(12, keeps=True)
    np.testing.assert_allclose(actual[0], losses[0], rtol=1e-5)
    np.testing.assert_allclose(actual[1], losses[1], rtol=1e-5)
    assert fake.count("cuGraphExecKernelNodeSetParams_v2")
    assert fake.count("cuGraphInstantiateWithFlags") - made <= 2
    assert fake.count("cuLaunchKernel") - launched < 60


def test_training_survives_losses(gpu: Device, fake: FakeCuda) -> None:
    weights, loss = train(8)
    with vf.default_device(gpu):
        vf.set_recovery("checkpoint", every=3)
        try:
            fake.failures = {"cuGraphLaunch": [0, 719], "cuEventRecord": [0] * 12 + [700]}
            actual = train(8)
            assert not any(fake.failures.values())
        finally:
            fake.failures = {}
            vf.set_recovery(None)
    np.testing.assert_allclose(actual[0], weights, rtol=1e-5)
    np.testing.assert_allclose(actual[1], loss, rtol=1e-5)


def test_a_kernel_gets_the_room_of_free_blocks(gpu: Device, fake: FakeCuda) -> None:
    with vf.default_device(gpu):
        vf.block_until_ready(vf.device_put(np.ones(1 << 16, np.float32), gpu))
        held = gpu.backend.gpu.pool.held
        fake.failures = {"cuLibraryLoadData": [2]}
        x = vf.device_put(X, gpu)
        np.testing.assert_allclose(np.asarray(vf.jit(lambda x: x * 3 + 0.125)(x)), X * 3 + 0.125, rtol=1e-6)
    assert not fake.failures["cuLibraryLoadData"]
    assert gpu.backend.gpu.pool.held < held


def test_kernels_are_checked_as_the_switch_says_when_programs_are_planned(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch may have changed since a shader was compiled, or before another thread compiles it."""
    requests: list[bytes] = []
    ask = compilation.pool().ask
    monkeypatch.setattr(type(compilation.pool()), "ask", lambda self, request: requests.append(request[2]) or ask(request))
    planned = Run.key.fget

    def key(run: Run) -> Any:
        result = planned(run)
        monkeypatch.setattr(settings, "verify", False)
        return result

    with vf.default_device(gpu):
        x = vf.device_put(X, gpu)
        for is_checked in (False, True, True):
            monkeypatch.setattr(settings, "verify", is_checked)
            monkeypatch.setattr(Run, "key", property(key))
            vf.block_until_ready(vf.jit(lambda x: x * 5 + 0.375)(x))
    assert requests == [b"unchecked", b"checked"]


def test_dispatches_are_timed(gpu: Device) -> None:
    with vf.default_device(gpu):
        closed = vf.jit(PROGRAMS["product"]).lower(vf.device_put(X, gpu)).jaxpr
        timed = gpu.backend.timed(closed, (False,), vf.compiler.pipeline)
        timed(False, gpu.backend.gpu.put(X))
        times = timed.times()
    assert times and all(begin < end for _, begin, end in times)


@pytest.mark.parametrize("donates", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_results_do_not_depend_on_blocks(seed: int, donates: bool, gpu: Device) -> None:
    check_history(gpu, seed, donates=donates)
