"""How results are split between devices, compared with JAX, whose compiler propagates shardings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import P
from volta_fn.core.devices import device as core_device
from volta_fn.core.devices.placement import placed_aval

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("propagation_cases.py")


def placements(library: str) -> dict[str, Any]:
    """Return where a library leaves the results of the cases, from a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(SCRIPT), library], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert not done.returncode, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_results_are_split_as_by_jax() -> None:
    ours, theirs = placements("volta_fn"), placements("jax")
    assert ours.keys() == theirs.keys()
    differing = {name: (ours[name], fact) for name, fact in theirs.items() if ours[name] != fact}
    assert not differing


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> vf.NamedSharding:
    """Let the CPU be four devices while a test runs, and split rows between them."""
    monkeypatch.setitem(core_device._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(4)
    return vf.NamedSharding(vf.make_mesh((4,), ("rows",)), P("rows", None))


@pytest.mark.parametrize(
    "function",
    [vnp.zeros_like, lambda x: vnp.where(x > 0, x, vnp.ones((64, 64))), vf.nn.softmax,
     lambda x: vnp.var(x, 1, keepdims=True) + x,
     lambda x: x[:, vnp.arange(8)], lambda x: vnp.ones((64, 3))[vnp.argmax(x, 1)], lambda x: vf.grad(lambda y: vnp.tanh(y).sum())(x)],
)  # fmt: skip
def test_repeated_calls_of_large_arrays_stay_split(by_rows: vf.NamedSharding, function: Any) -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    for _ in range(4):  # the third runs a program
        result = function(vf.device_put(x, by_rows))
        assert result.sharding == by_rows
        np.testing.assert_allclose(result, function(vnp.asarray(x)), rtol=1e-6)


def test_a_compiled_function_splits_its_results(by_rows: vf.NamedSharding) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    split = vf.device_put(x, by_rows)
    for described in (split, vf.ShapeDtypeStruct((8, 4), "float32", sharding=by_rows)):
        compiled = vf.jit(lambda x: 2 * x, donate_argnums=0).lower(described).compile()
        argument = vf.device_put(x, by_rows)
        result = compiled(argument)
        assert argument.is_deleted() and result.sharding == by_rows == compiled.output_shardings
        np.testing.assert_array_equal(result, 2 * x)
    plain = vf.jit(lambda x: 2 * x).lower(x).compile()
    assert plain(split).sharding == by_rows and plain(x).sharding == plain.output_shardings
    assert plain.input_shardings == ((vnp.ones(()).sharding,), {})


def test_types_of_axes_are_those_of_the_array_itself(by_rows: vf.NamedSharding) -> None:
    explicit = vf.device_put(np.ones((8, 4), np.float32), by_rows)
    automatic = vf.device_put(explicit, vf.NamedSharding(vf.make_mesh((4,), ("rows",), vf.sharding.AxisType.Auto), P("rows")))
    for _ in range(2):
        assert [str(placed_aval(x + 1)) for x in (explicit, automatic)] == ["f32[8@rows,4]", "f32[8,4]"]
    assert (explicit + automatic).sharding == by_rows


def test_types_of_traced_values_know_long_programs(by_rows: vf.NamedSharding) -> None:
    seen = []

    def f(x: vf.Array) -> vf.Array:
        x = vf.lax.with_sharding_constraint(x, by_rows)
        for _ in range(3000):
            x = x + 1
        seen.append(placed_aval(x))
        return x

    vf.make_jaxpr(f)(np.ones((8, 4), np.float32))
    assert [str(aval) for aval in seen] == ["f32[8@rows,4]"]
