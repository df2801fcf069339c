"""`crosscheck` finds planted wrong kernels of a GPU, as its programs run them."""

from __future__ import annotations

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


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        y = lax.sort(jnp.tanh(x))
        z = y * 2 + x  # the wrong one
        return lax.sort(z), z.sum()

    def subtracting(kernel: Kernel) -> Kernel:
        several = sum(isinstance(n, Apply) for n in kernel.nodes) > 1
        nodes = [replace(n, op="sub") if isinstance(n, Apply) and n.op == "add" and several else n for n in kernel.nodes]
        return replace(kernel, nodes=tuple(nodes))

    x = vf.device_put(jnp.sin(jnp.arange(8192.0)).reshape(64, 128), GPU)
    assert vf.crosscheck(program)(x)
    original = WgslTarget.kernel_routine
    monkeypatch.setattr(WgslTarget, "kernel_routine", lambda self, kernel, batch=0: original(self, subtracting(kernel), batch))
    monkeypatch.setattr(settings, "verify", False)
    GPU.backend.gpu.routine.__init__()
    try:
        found = vf.crosscheck(program)(x)
    finally:
        GPU.backend.gpu.routine.__init__()
    assert not found and not found.differences
    (wrong,) = found.miscompilations
    assert wrong.stage == "the code generation of a kernel"
    assert {x.lineno - program.__code__.co_firstlineno for x in wrong.locations} >= {2}
    assert {e.split()[0] for e in wrong.equations} >= {"mul", "add"}
