"""The samples of all primitives, and derivatives, pass all verifiers: as NumPy's plans, machine code and commands for GPUs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.laws.common import arrays, draw
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from tests.targets.wgsl.test_program_plan import WEBGPU
from volta_fn import dtypes, lax, nn
from volta_fn.compiler import pipeline
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import VoltaError
from volta_fn.settings import current as settings
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, assemble, loaded_routines
from volta_fn.targets.cpu.target import TARGET
from volta_fn.targets.numpy.backend import out_results as writes
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

GPU = WgslTarget(WEBGPU.capabilities)
SAMPLES = list(samples_of_code())


def verify_everywhere(closed: ClosedJaxpr) -> None:
    """Compile a program for all targets."""
    donated = (False,) * len(closed.in_avals)
    pipeline.plan(closed.replace(), donated, writes)
    program = pipeline.lower(closed.replace(), TARGET)
    assemble(program, donated, CommandWriter(loaded_routines(program), CONTROL_FLOW))
    plan_program(closed.replace(), donated, pipeline, GPU, RoutineCache())


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_samples_pass(sample: Sample) -> None:
    assert settings.verify
    verify_everywhere(vf.make_jaxpr(sample.function)(*arrays(draw(sample, dtypes.as_dtype(sample.dtypes[0])))))


def attention(w: Any, x: Any) -> Any:
    q, k, v = jnp.split(nn.standardize(x) @ w, 3, -1)
    return (nn.softmax(q @ k.T / 4.0) @ v + x).sum()


def recurrence(w: Any, x: Any) -> Any:
    carry, ys = lax.scan(lambda h, r: ((h := jnp.tanh(h @ w[:, :8] + r)), h), x[0], x)
    return (ys * carry).sum() + lax.while_loop(lambda c: c < 3, lambda c: c + 1, carry.sum())


def branches(w: Any, x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda: (x @ w).sum(), lambda: lax.sort(x)[0, 0] * w.sum())


@pytest.mark.parametrize("function", [attention, recurrence, branches])
def test_programs_with_derivatives_pass(function: Any) -> None:
    w, x = vf.ShapeDtypeStruct((8, 24), "float32"), vf.ShapeDtypeStruct((6, 8), "float32")
    verify_everywhere(vf.make_jaxpr(function)(w, x))
    if function is not recurrence:
        verify_everywhere(vf.make_jaxpr(vf.grad(function, (0, 1)))(w, x))
        verify_everywhere(vf.make_jaxpr(vf.vmap(vf.grad(function), (None, 0)))(w, vf.ShapeDtypeStruct((3, 6, 8), "float32")))


def test_errors_are_those_of_users() -> None:
    """Programs that the compiler refuses for a reason of theirs raise that error."""
    with pytest.raises(VoltaError, match="larger|elements|split"):
        plan_program(vf.make_jaxpr(lambda: jnp.zeros((1 << 16, 1 << 17), "int8"))(), (), pipeline, GPU, RoutineCache())
