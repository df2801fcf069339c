"""Programs on several emulated GPUs of one process, against one device that computes for all positions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import collectives as benchmark
from tests.distributed import law_cases
from tests.targets.nvidia.fake_cuda import INVALID_VALUE, OUT_OF_MEMORY, FakeCuda, Fault
from tests.targets.nvidia.peers.one_process import install
from volta_fn import P, lax, tree
from volta_fn.core.devices import device_world
from volta_fn.core.devices.device_world import on_all
from volta_fn.errors import ArgumentError, CallbackError, DeviceError, DistributedError, DonatedBufferError, ShapeError
from volta_fn.targets.gpu import program as gpu_program
from volta_fn.targets.nvidia import peers
from volta_fn.targets.nvidia.peers import Peers


class Machine(NamedTuple):
    """A machine with some GPUs."""

    fake: FakeCuda
    devices: list[Any]

    def mesh(self, shape: tuple[int, ...], names: Any) -> Any:
        return vf.sharding.Mesh(np.array(self.devices[: int(np.prod(shape))], object).reshape(shape), names)

    def by_rows(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function of shards that are rows, as its results are."""
        return vf.shard_map(function, mesh=self.mesh((len(self.devices),), "i"), in_specs=P("i"), out_specs=P("i"))

    def host_steps(self) -> list[dict[str, int]]:
        return [dict(device.backend.gpu.counters.host_steps) for device in self.devices]


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine with so many GPUs as the parameter says, else two; the first is the default device."""
    fake, devices = install(monkeypatch, getattr(request, "param", 2))
    with vf.default_device(devices[0]):
        yield Machine(fake, devices)
    fake.close()
    assert not fake.broken, fake.broken


def counts(*numbers: int) -> Any:
    return pytest.mark.parametrize("machine", numbers, indirect=True, ids=lambda n: f"{n} GPUs")


def same(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Compare pytrees: types exactly, values to a tolerance."""
    assert tree.structure(actual) == tree.structure(expected)
    for have, want in zip(map(np.asarray, tree.leaves(actual)), map(np.asarray, tree.leaves(expected)), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        scale = np.max(np.abs(want.astype(wide)), initial=1.0, where=np.isfinite(want.astype(wide)))
        np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance * scale)


def by_vmap(function: Callable[..., Any], values: np.ndarray) -> Any:
    """Return what one device computes for all positions."""
    with vf.default_device("cpu"):
        return vf.vmap(function, axis_name="i")(values)


# Collectives.


def collectives(n: int) -> dict[str, Callable[[Any], Any]]:
    """Return every collective, plain and in groups, as a function of a row of 2 n numbers."""
    half, apart = [list(range(n // 2)), list(range(n // 2, n))], [list(range(0, n, 2)), list(range(1, n, 2))]
    by_group = {"": None, " in groups": half, " in groups apart": apart}
    results: dict[str, Callable[[Any], Any]] = {
        "ppermute": lambda x: lax.ppermute(x, "i", [(i, (i + 1) % n) for i in range(n)]),
        "ppermute to one": lambda x: lax.ppermute(x, "i", [(0, n - 1)]),
        "axis_index": lambda x: x + lax.axis_index("i").astype(x.dtype),
        "pmean": lambda x: lax.pmean(x, "i"),
    }
    for name, groups in by_group.items():
        chosen: dict[str, Any] = {} if groups is None else {"axis_index_groups": groups}
        results |= {
            f"psum{name}": lambda x, chosen=chosen: lax.psum(x, "i", **chosen),
            f"pmax{name}": lambda x, chosen=chosen: lax.pmax(x, "i", **chosen),
            f"pmin{name}": lambda x, chosen=chosen: lax.pmin(x, "i", **chosen),
            f"all_gather{name}": lambda x, chosen=chosen: lax.all_gather(x, "i", **chosen),
            f"psum_scatter{name}": lambda x, chosen=chosen: lax.psum_scatter(x, "i", tiled=True, **chosen),
            f"all_to_all{name}": lambda x, chosen=chosen: lax.all_to_all(x, "i", 0, 0, tiled=True, **chosen),
        }
    return results


DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "complex64",
    "complex128", "bool",
)  # fmt: skip


def drawn(dtype: str, n: int) -> np.ndarray:
    """Return small numbers, whose sums every dtype has exactly."""
    numbers = np.random.default_rng(n).integers(-3, 4, (n, 2 * n))
    if dtype == "bool":
        return numbers > 0
    if dtype.startswith("complex"):
        return (numbers + 1j * numbers[::-1]).astype(dtype)
    return (np.abs(numbers) if dtype[0] == "u" else numbers).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@counts(2, 4, 8)
def test_every_collective_of_every_dtype_is_a_kernel(machine: Machine) -> None:
    n = len(machine.devices)
    dtypes = {2: DTYPES, 4: ("float32", "bfloat16"), 8: ("float32",)}[n]
    for dtype in dtypes:
        unordered = {"pmax", "pmin"} if dtype.startswith("complex") else set()
        few = {"psum", "pmax", "all_gather in groups", "all_to_all", "ppermute"}  # all of them with fewer GPUs
        chosen = {k: f for k, f in collectives(n).items() if k.split()[0] not in unordered and (n < 8 or k in few)}
        if dtype == "bool":
            chosen = {k: f for k, f in chosen.items() if not k.startswith(("pmean", "psum_scatter", "axis_index"))}
        values = drawn(dtype, n)
        program = machine.by_rows(lambda x: {k: f(x[0])[None] for k, f in chosen.items()})
        expected = by_vmap(lambda x: {k: f(x) for k, f in chosen.items()}, values)
        same(program(values), expected, 0)
        same(program(values), expected, 0)
    assert machine.host_steps() == [{}] * n


@counts(2, 4)
def test_a_sum_of_converted_numbers_is_that_of_float32(machine: Machine) -> None:
    n = len(machine.devices)
    values = np.random.default_rng(n).normal(size=(n, 300)).astype(ml_dtypes.bfloat16)
    program = machine.by_rows(lambda x: lax.psum((x * x).astype("float32"), "i"))
    squares = (values * values).astype(np.float32)
    total = squares[0]
    for row in squares[1:]:
        total = total + row
    np.testing.assert_array_equal(np.asarray(program(values)), np.tile(total, (n, 1)))


def test_kernels_that_a_sum_waits_for_have_priority(machine: Machine) -> None:
    """On each GPU the sums and the kernel of their operand, but neither what reads the sum nor what has nothing to do with it."""
    values = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    program = vf.jit(machine.by_rows(lambda x: (vnp.sort(lax.psum(vnp.cumsum(x, 1), "i"), 1), vnp.sort(x, 1))))
    for _ in range(3):  # a program is recorded when it is called again
        sums, others = program(values)
    np.testing.assert_allclose(sums, np.tile(np.sort(np.cumsum(values, 1).sum(0)), (2, 1)), rtol=1e-5)
    np.testing.assert_array_equal(others, np.sort(values, 1))
    assert [*machine.fake.priorities.values()] == [-1] * 4


#: Without large arrays, which take an emulated GPU a minute.
LAWS = [law for law in itertools.product(law_cases.contexts(), law_cases.collectives(2)) if "large" not in law[1]]


@counts(3)
def test_the_benchmark_finds_no_wrong_result(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.check(benchmark.Gpus(3, range(3)), ["bfloat16", "bool"], [37]) == 0
    assert "108 results, 0 wrong; steps on the host: {}" in capsys.readouterr().out


@counts(2, 4)
@pytest.mark.parametrize(("context", "name"), LAWS[::9], ids=lambda text: text)
def test_laws_of_collectives_hold(machine: Machine, context: str, name: str) -> None:
    n = len(machine.devices)
    function, shape = law_cases.collectives(n)[name]
    derived, values = law_cases.contexts()[context](function), np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)
    same(law_cases.on_processes(derived, machine.mesh((n,), "i"))(values), by_vmap(derived, values))


def test_kinds_of_numbers_without_kernels_go_through_the_host(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_PEER_MEMORY", "0")
    collective = collectives(2)
    for dtype in ("float32", "bfloat16", "int8", "bool"):
        names = [k for k in collective if dtype != "bool" or not k.startswith(("pmean", "psum_scatter", "axis_index"))]
        program = machine.by_rows(lambda x: {k: collective[k](x[0])[None] for k in names})
        same(program(drawn(dtype, 2)), by_vmap(lambda x: {k: collective[k](x) for k in names}, drawn(dtype, 2)), 0)
    assert all(steps for steps in machine.host_steps())


# Programs and arrays.


def loss(w: Any, x: Any) -> Any:
    return vnp.mean(vnp.tanh(x @ w) ** 2)


def test_a_training_step_by_data_parallelism_is_that_of_one_device(machine: Machine) -> None:
    mesh, draw = machine.mesh((2,), "data"), np.random.default_rng(0)
    w, x = draw.normal(size=(4, 3)).astype(np.float32), draw.normal(size=(8, 4)).astype(np.float32)

    def step(w: Any, x: Any) -> Any:
        value, gradient = vf.value_and_grad(loss)(w, x)
        value, gradient = lax.pmean((value, gradient), "data")
        return w - 0.1 * gradient, value

    program = vf.jit(vf.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()), donate_argnums=0)
    on_cpu = vf.jit(lambda w, x: (lambda pair: (w - 0.1 * pair[1], pair[0]))(vf.value_and_grad(loss)(w, x)))
    state, expected = vnp.asarray(w), w
    for _ in range(3):
        before = state
        state, value = program(state, x)
        with vf.default_device("cpu"):
            expected, wanted = on_cpu(expected, x)
        same((state, value), (expected, wanted))
        assert before.is_deleted()
    assert state.sharding.is_fully_replicated
    assert state.devices() == {*machine.devices}
    assert all(shard.data.shape == (4, 3) for shard in state.addressable_shards)
    with pytest.raises(DonatedBufferError):
        program(before, x)


def test_a_pipeline_of_stages_is_their_composition(machine: Machine) -> None:
    """The first stage reads nothing that arrives, and the second sends nothing on."""
    draw = np.random.default_rng(0)
    w, x = draw.normal(size=(2, 3, 3)).astype(np.float32), draw.normal(size=(2, 4, 3)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        position = lax.axis_index("i")

        def step(arriving: Any, x: Any) -> Any:
            out = vnp.tanh(vnp.where(position == 0, x, arriving) @ w)
            return lax.ppermute(out, "i", [(0, 1)]), out

        outs = lax.scan(step, vnp.zeros_like(x[0]), vnp.concatenate([x, vnp.zeros_like(x[:1])]))[1]
        return vnp.sum(vnp.where(position == 1, outs[1:], 0) ** 2)

    def step(w: Any, x: Any) -> Any:
        value, gradient = vf.value_and_grad(loss)(w[0], x)
        return lax.psum(value, "i"), gradient[None]

    mapped = vf.shard_map(step, mesh=machine.mesh((2,), "i"), in_specs=(P("i"), P()), out_specs=(P(), P("i")), check_vma=False)
    with vf.default_device("cpu"):
        expected = vf.value_and_grad(lambda w: vnp.sum(vnp.tanh(vnp.tanh(x @ w[0]) @ w[1]) ** 2))(w)
    same(vf.jit(mapped)(w, x), expected, 1e-4)
    assert machine.host_steps() == [{}, {}]


def test_donated_shards_give_their_memory(machine: Machine) -> None:
    sharding = vf.NamedSharding(machine.mesh((2,), "i"), P("i"))
    program = vf.jit(machine.by_rows(lambda x: x + lax.psum(1.0, "i") * lax.axis_index("i")), donate_argnums=0)
    x = program(vf.device_put(np.arange(4096.0, dtype=np.float32), sharding))
    blocks = [part.lease.block for part in x.buffer().parts.values()]
    x = program(x)
    assert [part.lease.block for part in x.buffer().parts.values()] == blocks
    shard, expected = x.addressable_shards[1].data, np.array(x)
    program(x)
    np.testing.assert_array_equal(shard, expected[2048:])  # what another array refers to is not overwritten


def test_gradients_of_a_mapped_function_are_those_of_the_whole(machine: Machine) -> None:
    mesh, draw = machine.mesh((2,), "data"), np.random.default_rng(0)
    w, x = draw.normal(size=(4, 3)).astype(np.float32), draw.normal(size=(8, 4)).astype(np.float32)
    mapped = vf.shard_map(lambda w, x: lax.pmean(loss(w, x), "data"), mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    rows = vf.shard_map(lambda w, x: vnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    weighted = lambda rows: lambda w, x: vnp.sum(rows(w, x) * vnp.arange(24.0).reshape(8, 3))
    with vf.default_device("cpu"):
        expected = vf.grad(loss, (0, 1))(w, x)
        of_rows = vf.grad(weighted(lambda w, x: vnp.tanh(x @ w)), (0, 1))(w, x)
    for derivative in (vf.grad(mapped, (0, 1)), vf.jit(vf.grad(mapped, (0, 1))), lambda w, x: vf.vjp(mapped, w, x)[1](1.0)):
        same(derivative(w, x), expected)
    for derivative in (vf.grad(weighted(rows), (0, 1)), vf.jit(vf.grad(weighted(rows), (0, 1)))):
        same(derivative(w, x), of_rows)


def test_a_program_mixes_whole_and_split_values(machine: Machine) -> None:
    mesh = machine.mesh((2,), "i")
    halves = vf.shard_map(lambda x: x - lax.pmean(x.mean(), "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    columns = vf.shard_map(lambda x: x * (1.0 + lax.axis_index("i")), mesh=mesh, in_specs=P(None, "i"), out_specs=P(None, "i"))

    def function(x: Any) -> Any:
        y = halves(2.0 * x + 1.0)
        z = lax.fori_loop(0, 3, lambda i, z: columns(halves(z)) + 1.0, y)
        return z[::-1], y @ y.T, halves(halves(x)), vnp.sum(z)

    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    as_one = lambda x: x - x.mean()
    scale = np.repeat(np.array([1, 2], np.float32), 3)
    y = z = as_one(2 * x + 1)
    for _ in range(3):
        z = as_one(z) * scale + 1
    expected = z[::-1], y @ y.T, as_one(as_one(x)), z.sum()
    for argument in (x, vf.device_put(x, vf.NamedSharding(mesh, P("i"))), vf.device_put(x, vf.NamedSharding(mesh, P(None, "i")))):
        same(vf.jit(function)(argument), expected)
    same(function(x), expected)


def test_examples_of_a_mapped_function(machine: Machine) -> None:
    mapped = machine.by_rows(lambda x: x - lax.pmean(x, "i"))
    x = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    expected = x - x.reshape(3, 2, 2, 2).mean(1)[:, None].repeat(2, 1).reshape(3, 4, 2)
    same(vf.jit(vf.vmap(mapped))(x), expected)
    same(vf.jvp(vf.vmap(mapped, 1, 1), (np.moveaxis(x, 0, 1),), (np.moveaxis(x, 0, 1),))[1], np.moveaxis(expected, 0, 1))


@counts(4)
def test_two_axes(machine: Machine) -> None:
    mesh = machine.mesh((2, 2), ("data", "model"))
    x, w = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    product = lambda x, w: lax.psum(x @ w, "model")
    mapped = vf.jit(vf.shard_map(product, mesh=mesh, in_specs=(P("data", "model"), P("model")), out_specs=P("data")))
    result = mapped(vf.device_put(x, vf.NamedSharding(mesh, P("data", "model"))), w)
    same(result, x @ w)
    assert result.sharding == vf.NamedSharding(mesh, P("data"))
    spec = P(("data", "model"))
    both = vf.shard_map(lambda x: x + lax.axis_index(("model", "data")), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(both(np.zeros(4, np.int32)), [0, 2, 1, 3])
    over_one = vf.shard_map(lambda x: lax.psum(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P(), axis_names={"model"})
    np.testing.assert_array_equal(over_one(np.arange(4.0, dtype=np.float32)), [2, 4])


def test_results_stay_where_the_next_call_reads_them(machine: Machine) -> None:
    mesh = machine.mesh((2,), "i")
    step = vf.jit(vf.shard_map(lambda x: x + lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    add = vf.jit(lambda x: vnp.tanh(x) * 2.0, out_shardings=vf.NamedSharding(mesh, P("i")))
    x = step(np.arange(4.0, dtype=np.float32))
    before = machine.fake.count("cuMemcpyDtoHAsync_v2")
    for _ in range(3):
        x = step(x)
    assert machine.fake.count("cuMemcpyDtoHAsync_v2") == before
    assert x.sharding == add(x).sharding == (x + 1).sharding == vf.NamedSharding(mesh, P("i"))
    same(add(x), np.tanh(np.asarray(x)) * 2)


def test_arrays_are_split_and_joined(machine: Machine) -> None:
    mesh = machine.mesh((2,), "i")
    values = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    for spec, shapes in ((P("i"), (2, 3)), (P(), (4, 3))):
        x = vf.device_put(values, vf.NamedSharding(mesh, spec))
        assert x.devices() == {*machine.devices}
        np.testing.assert_array_equal(x, values)
        for shard in x.addressable_shards:
            assert shard.data.device is shard.device
            assert shard.data.shape == shapes
            np.testing.assert_array_equal(shard.data, values[shard.index])
        for device in machine.devices:
            moved = vf.device_put(x, device)
            assert moved.device is device
            np.testing.assert_array_equal(moved, values)
        again = vf.device_put(x, vf.NamedSharding(mesh, P(None)))
        np.testing.assert_array_equal(again, values)
        np.testing.assert_array_equal(x.sum(0), values.sum(0))
        assert vf.block_until_ready(x) is x
    parts = [vf.device_put(values[2 * i : 2 * i + 2], device) for i, device in enumerate(machine.devices)]
    joined = vf.make_array_from_single_device_arrays((4, 3), vf.NamedSharding(mesh, P("i")), parts)
    np.testing.assert_array_equal(joined, values)
    with pytest.raises(ShapeError, match="does not divide"):
        vf.device_put(values, vf.NamedSharding(mesh, P(None, "i")))


def test_pmap(machine: Machine) -> None:
    x, shared = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32), np.arange(3, dtype=np.float32)
    function = lambda x, y, scale: (x - lax.pmean(x, "i"), {"total": lax.psum(vnp.sum(x * y), "i") * scale})
    expected = by_vmap(lambda x: function(x, shared, 2.0), x)
    for axis in (0, 1, -1):
        mapped = vf.pmap(function, axis_name="i", in_axes=(axis, None, None), out_axes=0, static_broadcasted_argnums=2)
        same(mapped(np.moveaxis(x, 0, axis), shared, 2.0), expected)
    columns = vf.pmap(lambda x: x * 2, out_axes=1)(x)
    same(columns, (x * 2).T)
    first = vf.pmap(lambda x: lax.psum(x, "i"), axis_name="i", devices=machine.devices[1:])(x[:1])
    same(first, x[:1])
    with pytest.raises(DeviceError, match="size 3 needs as many devices"):
        vf.pmap(lambda x: x)(np.ones((3, 2), np.float32))


def test_a_lowered_program_tells_of_the_first_device(machine: Machine) -> None:
    lowered = vf.jit(machine.by_rows(lambda x: lax.psum(vnp.sin(x) + lax.axis_index("i"), "i"))).lower(np.ones(8, np.float32))
    assert lowered.host_steps() == []
    assert "psum" in lowered.as_text()
    assert "sin" in lowered.as_text("kernels")
    assert lowered.memory().temporaries >= 0
    np.testing.assert_allclose(lowered.compile()(np.ones(8, np.float32)), 2 * np.sin(1.0) + 1, rtol=1e-6)


def test_without_jit_one_device_computes(machine: Machine) -> None:
    mapped = vf.shard_map(lambda x: lax.psum(x, "i"), mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P())
    with vf.disable_jit():
        np.testing.assert_array_equal(mapped(np.arange(4.0, dtype=np.float32)), [2, 4])


# Errors.


def test_an_error_of_one_gpu_ends_the_others_and_names_it(machine: Machine) -> None:
    mesh = machine.mesh((2,), "i")

    def fail(x: np.ndarray) -> np.ndarray:
        if x[0] == 2.0:
            raise ValueError("the second shard")
        return x

    def function(x: Any) -> Any:
        return lax.psum(vf.pure_callback(fail, vf.ShapeDtypeStruct(x.shape, x.dtype), x), "i")

    mapped = vf.jit(vf.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=P()))
    for _ in range(2):
        np.testing.assert_array_equal(mapped(np.array([3, 3, 1, 1], np.float32)), [4, 4])
        with pytest.raises(CallbackError, match="the second shard") as caught:
            mapped(np.array([1, 1, 2, 2], np.float32))
        assert any("gpu:1" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(mapped(np.array([3, 3, 1, 1], np.float32)), [4, 4])


def test_a_launch_that_fails_ends_kernels_that_wait_for_it(machine: Machine) -> None:
    mapped = vf.jit(vf.shard_map(lambda x: lax.psum(x, "i"), mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P()))
    x = vf.device_put(np.arange(4.0, dtype=np.float32), vf.NamedSharding(machine.mesh((2,), "i"), P("i")))
    for _ in range(4):
        np.testing.assert_array_equal(mapped(x), [2, 4])
    machine.fake.failures["cuLaunchKernelEx"] = [0, INVALID_VALUE]
    with pytest.raises(DeviceError) as caught:
        mapped(x)
    assert any("raised on gpu:1" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(mapped(x), [2, 4])


def test_results_of_a_call_survive_the_next_one_that_is_interrupted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_LONG", 10**6)  # nanoseconds until a kernel tells that it waits
    mapped = vf.jit(machine.by_rows(lambda x: lax.psum(x, "i")))
    x = vf.device_put(np.arange(4.0, dtype=np.float32), vf.NamedSharding(machine.mesh((2,), "i"), P("i")))
    other = vf.block_until_ready(x * 10.0)
    for _ in range(3):
        np.testing.assert_array_equal(mapped(x), [2, 4, 2, 4])
    (first, driver), is_late = (device.backend.gpu.queue.driver for device in machine.devices), threading.Event()
    machine.fake._start(lambda: is_late.wait() and None, driver.stream)
    earlier = mapped(other)  # the kernel of GPU 0 waits for that of GPU 1

    has_settled, interrupt = Peers.has_settled, Peers.interrupt

    def launched(ranks: Any) -> None:
        raise KeyboardInterrupt

    def awaited(peers: Peers, launches: Any) -> bool:
        is_late.set()
        return has_settled(peers, launches)

    def interrupted(peers: Peers) -> None:
        interrupt(peers)
        if peers is first.peers and not is_late.is_set():  # the kernels of GPU 0 end without GPU 1
            with machine.fake._changed:
                machine.fake._changed.wait_for(lambda: not machine.fake._pending[first.stream])
            is_late.set()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(driver.peers, "launched", launched)
        patch.setattr(Peers, "has_settled", awaited)
        patch.setattr(Peers, "interrupt", interrupted)
        mapped(x)
    np.testing.assert_array_equal(earlier, [20, 40, 20, 40])
    np.testing.assert_array_equal(mapped(x), [2, 4, 2, 4])


def test_no_memory_is_released_while_a_kernel_may_wait(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver would wait for the kernel of GPU 0, and this one for that of GPU 1, which the same thread is about to launch."""
    mapped = vf.jit(machine.by_rows(lambda x: lax.psum(x, "i")))
    x = vf.device_put(np.arange(4.0, dtype=np.float32), vf.NamedSharding(machine.mesh((2,), "i"), P("i")))
    for _ in range(3):
        np.testing.assert_array_equal(mapped(x), [2, 4, 2, 4])
    first, second = (device.backend.gpu.queue.driver for device in machine.devices)
    first._retired.append((0, first.functions.cuMemFree_v2, first.allocate(64)))
    count, launch = machine.fake.count("cuMemFree_v2"), second.peers.launched

    def launched(ranks: Any) -> None:
        with first.context:
            first._release_retired()
        launch(ranks)

    with monkeypatch.context() as patch:
        patch.setattr(second.peers, "launched", launched)
        np.testing.assert_array_equal(mapped(x), [2, 4, 2, 4])
    assert machine.fake.count("cuMemFree_v2") == count
    first.allocate(64)
    assert machine.fake.count("cuMemFree_v2") == count + 1


@pytest.mark.parametrize(("most", "calls"), [(512, 2), (1, 0)])
def test_programs_whose_launches_may_wait_are_called_by_a_thread_for_each_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, most: int, calls: int
) -> None:
    in_one_thread: list[Any] = []
    in_turn = device_world.in_turn
    monkeypatch.setattr(device_world, "in_turn", lambda *args: in_one_thread.append(args) or in_turn(*args))
    monkeypatch.setattr(gpu_program, "_MOST_PENDING", most)
    mapped = vf.jit(machine.by_rows(lambda x: lax.psum(vnp.cumsum(x, 1), "i")))
    for _ in range(3):  # the first call loads kernels
        np.testing.assert_array_equal(mapped(np.ones((2, 3), np.float32)), [[2, 4, 6]] * 2)
    assert len(in_one_thread) == calls


def test_a_kernel_that_faults_ends_those_that_wait_for_its_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = vf.jit(vf.shard_map(lambda x: lax.psum(x, "i"), mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P()))
    x = np.arange(4.0, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(mapped(x), [2, 4])
    stream = machine.devices[1].backend.gpu.queue.driver.stream
    kernel = type(machine.fake.kernels).__getitem__

    def failing(kernels: Any, source: str) -> Callable[..., None]:
        run = kernel(kernels, source)

        def call(*args: Any) -> None:
            if threading.current_thread().name == f"stream {stream}":
                raise Fault
            run(*args)

        return call

    monkeypatch.setattr(type(machine.fake.kernels), "__getitem__", failing)
    attempts = [lambda: mapped(x)] * 2
    try:
        result = mapped(x)
    except DeviceError as error:  # the call itself may meet the failure, and then there is no result to read
        assert any("raised on gpu:1" in note for note in error.__notes__)
    else:  # which is undefined
        attempts = [lambda: np.asarray(result)] * 2 + attempts
    for attempt in attempts:
        with pytest.raises(DistributedError, match="GPU 1 has failed, for which others waited in a collective: .*start the process again"):
            attempt()


def test_an_error_ends_collectives_on_the_host(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_PEER_MEMORY", "0")
    mesh = machine.mesh((2,), "i")
    mapped = vf.jit(vf.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
    np.testing.assert_array_equal(mapped(np.arange(4.0, dtype=np.float32)), [2, 4])
    with pytest.raises(ZeroDivisionError) as caught:
        on_all(machine.devices, lambda device: 1 / (1 - device.id) if device.id else 0)
    assert any("gpu:1" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(mapped(np.arange(4.0, dtype=np.float32)), [2, 4])


@pytest.mark.parametrize(
    ("function", "status"), [("cuMemAlloc_v2", OUT_OF_MEMORY), ("cuCtxEnablePeerAccess", INVALID_VALUE), ("cuMemHostAlloc", OUT_OF_MEMORY)]
)
def test_gpus_that_share_no_memory_go_through_the_host(machine: Machine, function: str, status: int) -> None:
    mapped = vf.shard_map(lambda x: lax.psum(x, "i"), mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P())
    for device in machine.devices:  # open it before
        vf.block_until_ready(vf.device_put(np.ones(4096, np.float32), device) + 1)
    machine.fake.failures[function] = [status]
    np.testing.assert_array_equal(mapped(np.arange(4.0, dtype=np.float32)), [2, 4])
    assert all(steps for steps in machine.host_steps())


def test_a_callback_cannot_start_another_such_program(machine: Machine) -> None:
    mesh = machine.mesh((2,), "i")
    mapped = vf.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    call = lambda x: np.asarray(mapped(np.tile(x, 2)))
    callback = lambda x: vf.pure_callback(call, vf.ShapeDtypeStruct((1,), np.float32), x)
    outer = vf.shard_map(callback, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(CallbackError, match="DistributedError: .*cannot call another"):
        outer(np.ones(2, np.float32))


@counts(3)
def test_a_program_of_two_meshes(machine: Machine) -> None:
    first, second = (vf.sharding.Mesh(np.array(devices, object), "i") for devices in (machine.devices[:2], machine.devices[1:]))
    total = lambda mesh: vf.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    x = np.arange(4.0, dtype=np.float32)
    for mesh in (first, second, first):
        np.testing.assert_array_equal(total(mesh)(x), [2, 4])
    with pytest.raises(DeviceError, match="jit the functions of each mesh by themselves"):
        vf.jit(lambda x: total(first)(x) + total(second)(x))(x)
    backwards = vf.sharding.Mesh(np.array(machine.devices[1::-1], object), "i")
    numbered = vf.shard_map(lambda x: x * lax.axis_index("i"), mesh=backwards, in_specs=P("i"), out_specs=P("i"))
    both = vf.jit(lambda x: (total(first)(x), numbered(x)))
    same(both(x), (np.array([2, 4], np.float32), np.array([0, 0, 2, 3], np.float32)))


def test_a_result_that_differs_between_shards_is_refused(machine: Machine) -> None:
    mapped = vf.shard_map(lambda x: x, mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P())
    with pytest.raises(ArgumentError, match="differs between the shards"):
        mapped(np.arange(4.0, dtype=np.float32))
    unchecked = vf.shard_map(lambda x: x, mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P(), check_vma=False)
    np.testing.assert_array_equal(unchecked(np.arange(4.0, dtype=np.float32)), [0, 1])


def test_kernels_that_wait_too_long_name_the_missing_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = vf.jit(vf.shard_map(lambda x: lax.psum(x, "i"), mesh=machine.mesh((2,), "i"), in_specs=P("i"), out_specs=P()))
    mapped(np.arange(4.0, dtype=np.float32))
    peers = machine.devices[0].backend.gpu.queue.driver.peers
    ((ranks, region),) = peers._connected()
    region.words[0] = 2
    with pytest.raises(DistributedError, match=r"GPU 0 has waited longer than 300 s in a collective of the GPUs \[0, 1\]: GPU 1 has not"):
        np.asarray(mapped(np.arange(4.0, dtype=np.float32)))
    region.words[0] = 0
    assert ranks == (0, 1)
