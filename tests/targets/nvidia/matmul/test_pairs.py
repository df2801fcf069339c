"""Which products are joined in one kernel, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.planning import AMPERE, HOPPER, shaped
from volta_fn.compiler.contractions import paired_contraction
from volta_fn.compiler.ir.kernel import KernelCall, interpret
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.target import NvidiaTarget

TYPES = shaped(512, 256), shaped(1024, 256), shaped(1024, 256)


def products(f: Callable[..., Any], *types: Any, device: TargetCapabilities = HOPPER) -> list[KernelCall]:
    """Return the calls of kernels on matrix units of a function's program."""
    program = lower(vf.jit(f).lower(*types).jaxpr, NvidiaTarget(device))
    calls = [item.node for item in program.items if isinstance(item.node, KernelCall)]
    return [call for call in calls if matmul.computes_product(call.kernel, device)]


def gated(x: Any, gate: Any, up: Any) -> Any:
    """Return a gated activation."""
    return vf.nn.silu(x @ gate.T) * (x @ up.T)


def test_a_gate_is_joined_with_what_it_multiplies() -> None:
    (call,) = products(gated, *TYPES)
    assert paired_contraction(call.kernel) is not None
    assert len(products(gated, *TYPES, device=AMPERE)) == 2


def test_a_gate_that_is_a_result_is_stored() -> None:
    def both(x: Any, gate: Any, up: Any) -> Any:
        g = vf.nn.silu(x @ gate.T)
        return g, g * (x @ up.T)

    (call,) = products(both, *TYPES)
    assert len(call.kernel.stores) == 2
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape, np.float32).astype(t.dtype) / 16 for t in TYPES]
    inputs = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    results = [r.astype(np.float32).reshape(-1) for r in interpret(call.kernel, *inputs)]
    x, gate, up = [a.astype(np.float32) for a in arrays]
    g = np.asarray(vf.nn.silu(vnp.asarray(x @ gate.T)))
    expected = sorted([g.reshape(-1), (g * (x @ up.T)).reshape(-1)], key=lambda a: float(np.linalg.norm(a)))
    for actual, reference in zip(sorted(results, key=lambda a: float(np.linalg.norm(a))), expected, strict=True):
        np.testing.assert_allclose(actual, reference, atol=2e-2 * np.abs(reference).max())


@pytest.mark.parametrize(
    ("function", "types"),
    [
        pytest.param(lambda x, g, u: (h := vf.nn.silu(x @ g.T)) * (x @ u.T + vnp.cumsum(h, 0)), TYPES, id="read before"),
        pytest.param(lambda x, g, u: (x @ g.T, x @ u.T), TYPES, id="neither reads the other"),
        pytest.param(lambda x, g, u: vf.nn.silu(x @ g.T) * ((2 * x) @ u.T), TYPES, id="other rows"),
        pytest.param(lambda x, g, u: vf.nn.silu(x @ g.T).T[:512] * (x @ u[:512].T), (shaped(512, 256), *TYPES[1:]), id="transposed"),
    ],
)
def test_others_are_not_joined(function: Callable[..., Any], types: Any) -> None:
    assert not any(paired_contraction(call.kernel) for call in products(function, *types))
