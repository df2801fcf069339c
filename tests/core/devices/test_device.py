"""Devices: found by name; defaults by scope, process and environment; errors."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core.devices import device as module
from volta_fn.core.devices.device import Device, current_default_device, find_device, register_platform
from volta_fn.errors import ArgumentError, DeviceError

CPU = vf.devices("cpu")[0]


def test_the_cpu() -> None:
    assert vf.devices() == vf.devices("cpu") == [CPU]
    assert vf.device_count() == 1
    assert vf.default_backend() == "cpu"
    assert (repr(CPU), str(CPU)) == ("CpuDevice(id=0)", "cpu:0")
    assert find_device("cpu") is find_device("cpu:0") is find_device(CPU) is CPU
    assert pickle.loads(pickle.dumps(CPU)) is CPU
    assert (CPU.name, CPU.kind, CPU.features, CPU.limits) == ("cpu", "cpu", (), {})


@pytest.mark.parametrize("bad", [-1, 1.5, "1 GiB"])
def test_limits_and_timeouts_are_numbers(bad: object) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"number of bytes or None, got {bad!r}")):
        vf.set_memory_limit(bad)  # type: ignore[arg-type]
    if bad != 1.5:
        with pytest.raises(ArgumentError, match=re.escape(f"number of seconds or None, got {bad!r}")):
            vf.synchronize(timeout=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cpu:1", "cpu:x", "cpu:-1", "nothing", "nothing:0"])
def test_devices_that_do_not_exist(name: str) -> None:
    for use in (lambda: find_device(name), lambda: vf.device_put(1.0, name), lambda: vf.set_default_device(name)):
        with pytest.raises(DeviceError, match=r"no device|Unknown backend"):
            use()
    with pytest.raises(DeviceError), vf.default_device(name):
        pass
    assert current_default_device() is CPU


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Another device, of the CPU's backend."""
    monkeypatch.setattr(module, "_platforms", dict(module._platforms))
    monkeypatch.setattr(module, "_devices_by_platform", dict(module._devices_by_platform))
    monkeypatch.setattr(module, "_process_default", CPU)
    other = Device("other", 0, "test", CPU.backend)
    register_platform("other", SimpleNamespace(discover=lambda: [other]))
    return other


def test_default_device_is_scoped_to_block_and_thread(second: Device) -> None:
    seen: list[Device] = []
    with vf.default_device("other") as device:
        assert device is second
        assert jnp.ones(2).device is second
        thread = threading.Thread(target=lambda: seen.append(jnp.ones(2).device))
        thread.start()
        thread.join()
        with vf.default_device(CPU):
            assert jnp.ones(2).device is CPU
        assert current_default_device() is second
    assert seen == [CPU]
    assert current_default_device() is CPU
    vf.set_default_device("other")
    assert jnp.ones(2).device is second


def test_programs_without_arguments_run_on_the_default_device(second: Device) -> None:
    f, g = vf.jit(lambda: 2 * jnp.ones(3)), vf.jit(lambda n: jnp.full(3, n), static_argnums=0)
    for device in (CPU, second) * 3:
        with vf.default_device(device):
            assert f().device is g(2.0).device is device


def test_a_named_default_device_is_found_at_its_first_use(second: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_default_spec", None)
    module.set_default_spec("other")
    assert "other" not in module._devices_by_platform
    assert jnp.ones(2).device is second
    module.set_default_spec(None)
    assert current_default_device().platform == (os.environ.get("VOLTA_DEVICE") or "cpu").partition(":")[0]
    with pytest.raises(DeviceError, match="Unknown backend 'cuda'.*GPUs of all makers"):
        module.set_default_spec("cuda:1")


@pytest.mark.parametrize("function", [vf.process_index, vf.process_count])
def test_processes_of_an_unknown_platform(function: Callable[[str], int]) -> None:
    assert function("cpu") == function(None)
    with pytest.raises(DeviceError, match="Unknown backend 'cuda'"):
        function("cuda")


def test_the_cpus_number_may_change_until_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_devices_by_platform", {})
    monkeypatch.setattr(module, "_cpu_count", None)
    vf.set_cpu_devices(4)
    vf.set_cpu_devices(2)
    assert module._devices_by_platform == {} and [device.id for device in vf.devices("cpu")] == [0, 1]
    vf.set_cpu_devices(3)
    assert vf.device_count("cpu") == 3
    with pytest.raises(ArgumentError, match="there are 3 devices in use"):
        vf.set_cpu_devices(2)


def test_computation_happens_where_the_arguments_are(second: Device) -> None:
    x = vf.device_put(np.arange(3.0), "other")
    f = vf.jit(lambda x: x * 2)
    for result in (x + x, jnp.sum(x), f(x), f(x), vf.vmap(jnp.sin)(x)):
        assert result.device is second
    assert f(jnp.arange(3.0)).device is CPU
    assert vf.device_put(x, CPU).device is CPU
    assert vf.device_put(x) is x


def test_arrays_on_the_default_device_go_where_others_are(second: Device) -> None:
    x, y = vf.device_put(np.arange(3.0), "other"), jnp.asarray(np.arange(3.0))
    f = vf.jit(lambda x, y: x + y)
    for result in (x + y, y + x, f(x, y), f(y, x)):
        assert result.device is second
        np.testing.assert_array_equal(result, [0.0, 2.0, 4.0])
    assert f(y, y).device is CPU
    for result in (jnp.concatenate([y, x]), jnp.median(x), jnp.argsort(x), jnp.zeros_like(x, shape=(2, 2)), vf.lax.full_like(x, 1)):
        assert result.device is second
    inside = vf.jit(lambda y: jnp.ones_like(x) + y)(y)  # a program's constants go where its arguments are
    assert inside.device is CPU
    np.testing.assert_array_equal(inside, [1.0, 2.0, 3.0])
    state = vf.optim.adam(0.1).init({"w": x})
    updates, _ = vf.optim.adam(0.1).update({"w": x}, state)
    assert updates["w"].device is second


def test_arguments_on_different_devices_are_refused(second: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(2)
    x, y = vf.device_put(np.arange(3.0), "other"), vf.device_put(np.arange(3.0), vf.devices("cpu")[1])
    f = vf.jit(lambda x, y: x + y)
    f(y, y)
    for use in (lambda: x + y, lambda: f(x, y), lambda: f(y, x)):
        with pytest.raises(DeviceError, match=r"different devices.*other:0.*device_put"):
            use()


def test_a_lowered_function_is_for_the_device_of_what_it_was_lowered_for(second: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(2)
    x, y = vf.device_put(np.arange(3.0), "other"), jnp.asarray(np.arange(3.0))
    third = vf.device_put(np.arange(3.0), vf.devices("cpu")[1])
    described = vf.ShapeDtypeStruct(x.shape, x.dtype, sharding=vf.sharding.SingleDeviceSharding(second))
    f = vf.jit(lambda x, y: x + y)
    for arguments in ((x, y), (y, x), (described, y), (described, described)):
        compiled = f.lower(*arguments).compile()
        assert compiled.input_shardings[0][0].device is second
        for result in (compiled(x, x), compiled(x, y), compiled(y, y)):
            assert result.device is second
            np.testing.assert_array_equal(result, [0.0, 2.0, 4.0])
        with pytest.raises(DeviceError, match=r"compiled for other:0, but an argument is on cpu:1; .*device_put"):
            compiled(x, third)
    with pytest.raises(DeviceError, match=r"different devices.*device_put"):
        f.lower(described, third)
    with pytest.raises(DeviceError, match=r"compiled for cpu:0, but an argument is on other:0"):
        f.lower(y, y).compile()(y, x)


def test_jit_runs_on_the_device_that_it_is_given(second: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(2)
    here, there = jnp.arange(3.0), vf.device_put(np.arange(3.0, dtype="float32"), vf.devices("cpu")[1])
    only, other = (vf.sharding.SingleDeviceSharding(d) for d in (second, vf.devices("cpu")[1]))
    for options in (
        {"device": second},
        {"backend": "other"},
        {"in_shardings": only},
        {"out_shardings": only},
        {"in_shardings": (only, None)},
    ):
        f = vf.jit(lambda x, y: x + y + jnp.ones(3), **options)
        for x in (here, there, vf.device_put(here, second)):
            for result in (f(x, here), f(x, there), f.lower(here, here).compile()(here, here), vf.jvp(f, (x, x), (x, x))[1]):
                assert result.device is second
            np.testing.assert_array_equal(f(x, here), [1.0, 3.0, 5.0])
            np.testing.assert_array_equal(vf.grad(lambda x, f=f: f(x, x).sum())(x), [2.0, 2.0, 2.0])
        assert f.lower(here, here).compile().input_shardings[0][0].device is second
    assert vf.jit(lambda x: x * 2, backend="cpu")(there).device is vf.devices("cpu")[0]
    assert vf.jit(device=second)(lambda x: x * 2)(here).device is second
    with pytest.raises(DeviceError, match="one device, but its shardings name cpu:1, other:0"):
        vf.jit(lambda x: x, in_shardings=only, out_shardings=other)


def test_the_environment_chooses_the_default() -> None:
    code = "import volta_fn as vf; print(vf.numpy.ones(1).device)"

    def run(device: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "VOLTA_DEVICE": device}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60)

    assert run("cpu:0").stdout == "cpu:0\n"
    failed = run("nonsense")
    assert failed.returncode != 0
    assert "Unknown backend 'nonsense'" in failed.stderr


def test_a_devices_repr_has_its_name():
    backend = vf.devices("cpu")[0].backend
    assert repr(Device("gpu", 1, "NVIDIA H200", backend)) == 'GpuDevice(id=1, "NVIDIA H200")'
    assert repr([Device("cpu", 0, "cpu", backend)]) == "[CpuDevice(id=0)]"


@pytest.mark.parametrize(
    "function",
    [lambda y, x, n: y[n], lambda y, x, n: y[n[0]], lambda y, x, n: y[None, n], lambda y, x, n: y.reshape(2, 3)[:, n],
     lambda y, x, n: y.reshape(2, 3)[n - 1, n], lambda y, x, n: y[-n], lambda y, x, n: y[x.astype(int)], lambda y, x, n: jnp.take(y, n),
     lambda y, x, n: jnp.take(y.reshape(2, 3), n, axis=1), lambda y, x, n: jnp.take(y, n, mode="wrap"),
     lambda y, x, n: jnp.take_along_axis(y, n, 0), lambda y, x, n: y.at[n].get(mode="fill"), lambda y, x, n: y.at[n].set(7),
     lambda y, x, n: y.at[n[0]].add(1), lambda y, x, n: y.reshape(2, 3).at[:, n].multiply(2), lambda y, x, n: jnp.nonzero(x)[0],
     lambda y, x, n: jnp.argwhere(x), lambda y, x, n: jnp.where(x > 2)[0], lambda y, x, n: jnp.bincount(n, length=4),
     lambda y, x, n: jnp.histogram(x)[0], lambda y, x, n: vf.lax.fori_loop(0, 3, lambda i, c: c + x, y),
     lambda y, x, n: vf.lax.while_loop(lambda c: (c < x + 3).any(), lambda c: c + 1, y),
     lambda y, x, n: vf.lax.scan(lambda c, a: (c, a * x), 0.0, y)[1], lambda y, x, n: vf.lax.cond(True, lambda: x, lambda: x + 1),
     lambda y, x, n: vf.lax.cond(True, lambda a: a + x, lambda a: a, y), lambda y, x, n: vf.lax.switch(1, [lambda: y, lambda: x * y]),
     lambda y, x, n: vf.lax.map(lambda a: a + x, y)],
)  # fmt: skip
def test_a_result_is_on_the_device_of_an_index_or_a_captured_array(function: Callable[..., jnp.ndarray], second: Device) -> None:
    """As that of any operation of an array on the default device with one on another; JAX places these results alike."""
    y, x, n = jnp.arange(6.0), np.arange(6, dtype=np.float32), np.array([1, 2], np.int32)
    expected = function(y, jnp.asarray(x), jnp.asarray(n))
    result = function(y, vf.device_put(x, second), vf.device_put(n, second))
    assert expected.device is CPU and result.device is second
    np.testing.assert_array_equal(result, expected)


def test_an_index_on_the_default_device_leaves_an_array_where_it_is(second: Device) -> None:
    x, n = vf.device_put(np.arange(6, dtype=np.float32), second), jnp.array([1, 2])
    results = [x[n], x[n, None], x.at[n].set(0), jnp.take(x, n), vf.jit(lambda: x[n])()]
    assert [r.device for r in results] == [second] * 4 + [CPU]  # what a jitted function closes over does not tell where it runs
