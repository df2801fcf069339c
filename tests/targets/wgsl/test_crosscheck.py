"""`crosscheck` finds planted wrong kernels of a GPU, as its programs run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler.ir.kernel import Apply, Kernel
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.target import WgslTarget

GPU = vf.devices("gpu")[0]


@contextmanager
def replaced(monkeypatch: pytest.MonkeyPatch, op: str, wrong: str) -> Iterator[None]:
    """Compute another operation in kernels of several."""

    def planted(kernel: Kernel) -> Kernel:
        several = sum(isinstance(n, Apply) for n in kernel.nodes) > 1
        nodes = [replace(n, op=wrong) if isinstance(n, Apply) and n.op == op and several else n for n in kernel.nodes]
        return replace(kernel, nodes=tuple(nodes))

    original = WgslTarget.kernel_routine
    monkeypatch.setattr(WgslTarget, "kernel_routine", lambda self, kernel, batch=0: original(self, planted(kernel), batch))
    monkeypatch.setattr(settings, "verify", False)
    GPU.backend.gpu.routines.__init__()
    try:
        yield
    finally:
        GPU.backend.gpu.routines.__init__()


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        y = lax.sort(jnp.tanh(x))
        z = y * 2 + x  # the wrong one
        return lax.sort(z), z.sum()

    x = vf.device_put(jnp.sin(jnp.arange(8192.0)).reshape(64, 128), GPU)
    assert vf.crosscheck(program)(x)
    with replaced(monkeypatch, "add", "sub"):
        result = vf.crosscheck(program)(x)
    assert not result and not result.differences
    (wrong,) = result.miscompilations
    assert wrong.stage == "the code generation of a kernel"
    assert {x.lineno - program.__code__.co_firstlineno for x in wrong.locations} >= {2}
    assert {e.split()[0] for e in wrong.equations} >= {"mul", "add"}


def test_constants_on_the_gpu_are_computed_with_as_jit_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the equations have read them, the compiler would fold them, and leave out the kernel that is wrong."""

    def program(x: Any) -> Any:
        return jnp.cos(jnp.arange(48.0)) * x

    with vf.default_device(GPU), replaced(monkeypatch, "cos", "sin"):
        result = vf.crosscheck(program)(jnp.ones(48))
    assert not result and not result.differences
    (wrong,) = result.miscompilations
    assert {e.split()[0] for e in wrong.equations} >= {"cos", "mul"}
