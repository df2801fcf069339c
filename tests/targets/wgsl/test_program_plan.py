"""Plans without a device: the memory that they foresee is what the runtime reports, and what does not fit is named.

`python -m tests.targets.wgsl.test_program_plan` compares the memory of all workloads of the benchmarks; the tests that of some.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.workloads import WORKLOADS, large
from benchmarks.workloads.case import Workload, library, map_arrays
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.arrays.memory import pairs_of
from volta_fn.errors import ArgumentError, OutOfMemoryError
from volta_fn.jit.stages import WEBGPU, profile_of
from volta_fn.targets.gpu import program as call_module
from volta_fn.targets.gpu.device import Gpu
from volta_fn.targets.gpu.memory import Buffer
from volta_fn.targets.gpu.pipelines import Pipeline
from volta_fn.targets.gpu.program import Program
from volta_fn.targets.wgsl.commands import runs
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

DEVICE = vf.devices("gpu")[0]


def lowered_of(workload: Workload) -> Any:
    """Return it with constants on the CPU, which any device may read: that of `compared` is not the one that arrays are on."""
    with vf.default_device("cpu"):
        case = workload.case()
        args = map_arrays(lambda x: vf.ShapeDtypeStruct(np.shape(x), vf.numpy.asarray(x).dtype), case.inputs)
        return vf.jit(case.functional(library("volta_fn")), donate_argnums=(0,) if case.stateful else ()).lower(*args)


def account_only(gpu: Gpu, patch: pytest.MonkeyPatch) -> None:
    """Let a device count memory, but have none, and run nothing: the workloads are large."""
    patch.setattr(gpu.driver, "allocate", lambda size, grids=False: None)
    patch.setattr(gpu.pool, "_full", lambda size: False)
    patch.setattr(gpu.pool, "largest", 1 << 62)
    patch.setattr(gpu.queue, "write", lambda *args: None)
    patch.setattr(gpu.pipelines, "make", lambda *args, **options: Pipeline(None, None))
    patch.setattr(Program, "_replay", lambda *args: True)
    patch.setattr(call_module.Call, "execute", lambda *args: None)


def reported_peak(gpu: Gpu, lowered: Any) -> int:
    """Return the most memory in use during a call."""
    gpu.pool.collect()
    gpu.scratch.clear()
    gpu._constants.clear()
    gpu.pool.collect()
    gpu.pool.free.clear()
    before = gpu.pool.peak = gpu.pool.in_use
    program = Program(gpu, lowered.jaxpr, lowered._traced.donated, pipeline)
    avals = lowered.jaxpr.in_avals
    arguments = [Buffer(gpu.pool.lease(max(a.nbytes, 4)), a.shape, a.dtype, a.nbytes) for a in avals]
    results = program(True, *arguments)
    del results, arguments, program
    return gpu.pool.peak - before


def compared(workloads: list[Workload]) -> Iterator[tuple[str, int, int]]:
    """Yield names, planned and reported peaks."""
    gpu = Gpu(DEVICE.backend.handle.adapter)
    with pytest.MonkeyPatch.context() as patch:
        account_only(gpu, patch)
        for workload in workloads:
            if workload.case().jit:
                lowered = lowered_of(workload)
                plan = plan_program(lowered.jaxpr, lowered._traced.donated, pipeline, gpu.target, RoutineCache())
                yield workload.name, plan.memory.peak - plan.memory.grids, reported_peak(gpu, lowered)
    for number in [number for number, block in gpu.pool.blocks.items() if block.handle is None]:  # there is nothing to release
        del gpu.pool.blocks[number]


def test_the_planned_peak_is_what_the_runtime_reports() -> None:
    result = list(compared(WORKLOADS[::8]))
    assert len(result) >= 3
    for name, planned, reported in result:
        assert planned == pytest.approx(reported, rel=0.02), name


def test_results_take_the_memory_of_the_argument_at_the_same_place() -> None:
    def step(params: Any, moments: Any, x: Any) -> Any:
        grads = vf.grad(lambda p: vnp.sum(vnp.tanh(x @ p["w"] + p["b"])))(params)
        mu = vf.tree.map(lambda m, g: 0.9 * m + g, moments["mu"], grads)
        nu = vf.tree.map(lambda m, g: 0.9 * m + g * g, moments["nu"], grads)
        return vnp.sum(x), vf.tree.map(lambda p, m, n: p - m * n, params, mu, nu), {"mu": mu, "nu": nu}

    params = {"w": vnp.ones((8, 8)), "b": vnp.ones((8, 8))}
    args = params, {"mu": params, "nu": params}, vnp.ones((8, 8))
    lowered = vf.jit(step, donate_argnums=(0, 1)).lower(*args)
    paths = [vf.tree.keystr(path) for path, _ in vf.tree.leaves_with_path((args[0], args[1]))]
    outs = [vf.tree.keystr(path) for path, _ in vf.tree.leaves_with_path(lowered.out_info)]
    named = {outs[result]: paths[argument] for result, argument in pairs_of(lowered._traced.donated)}
    assert named == {
        "[1]['b']": "[0]['b']",
        "[1]['w']": "[0]['w']",
        "[2]['mu']['b']": "[1]['mu']['b']",
        "[2]['mu']['w']": "[1]['mu']['w']",
        "[2]['nu']['b']": "[1]['nu']['b']",
        "[2]['nu']['w']": "[1]['nu']['w']",
    }
    plan = plan_program(lowered.jaxpr, lowered._traced.donated, pipeline, WgslTarget(WEBGPU.capabilities), RoutineCache())
    for number, output in enumerate(plan.outputs):
        if output.result in plan.reuse:
            assert paths[plan.reuse[output.result]] == named[outs[number]]
    expected = step(*args)
    for actual, wanted in zip(vf.tree.leaves(vf.jit(step, donate_argnums=(0, 1))(*args)), vf.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_loops_over_rows_share_one_array_of_index_constants() -> None:
    def loop(x: Any, y: Any) -> Any:
        return lax.scan(lambda carry, rows: (carry + rows[0], (carry * rows[1], carry - rows[1])), x[0], (x, y))

    lowered = vf.jit(loop).lower(vnp.ones((40, 3)), vnp.ones((40, 3)))
    plan = plan_program(lowered.jaxpr, lowered._traced.donated, pipeline, WgslTarget(WEBGPU.capabilities), RoutineCache())
    large = [array for array in plan.constants if array.nbytes > 64]
    assert len(large) == 1
    assert plan.memory.constants == large[0].nbytes


def test_what_does_not_fit_is_named_with_the_users_line() -> None:
    def outer(x: Any) -> Any:
        return vnp.sort((x[:, None] * x[None, :]).reshape(-1))

    plan = vf.jit(outer).lower(vf.ShapeDtypeStruct((20000,), "float32")).plan("phone")
    assert not plan.fits
    assert plan.peak_memory > 3_200_000_000
    assert any("-> f32[400000000]" in problem and "test_program_plan.py" in problem for problem in plan.problems)
    small = vf.jit(outer).lower(vf.ShapeDtypeStruct((200,), "float32")).plan("phone")
    assert small.fits
    assert str(small).endswith("fits phone")
    assert vf.jit(outer).lower(vf.ShapeDtypeStruct((8000,), "float32")).plan({"maxBufferSize": 1 << 30}).fits


def test_dtypes_that_webgpu_lacks_and_steps_of_the_host_are_named() -> None:
    plan = vf.jit(lambda x: vnp.sin(x)).lower(vf.ShapeDtypeStruct((3,), "float64")).plan()
    assert "argument 0 is f64[3], and webgpu has no float64" in str(plan)
    plan = vf.jit(lambda x: vnp.linalg.eigvals(x)).lower(vf.ShapeDtypeStruct((3, 3), "float32")).plan()
    assert [step.primitive for step in plan.host_steps] == ["eig"]


def test_limits_by_the_name_of_a_gpu_and_mistakes() -> None:
    assert profile_of(DEVICE.device_kind[:4].upper()).name == DEVICE.device_kind
    assert profile_of(DEVICE).largest == DEVICE.backend.gpu.description.largest
    with pytest.raises(ArgumentError, match=r"expected 'webgpu', 'phone', .*got 'Voodoo'"):
        profile_of("Voodoo")
    with pytest.raises(ArgumentError, match=r"WebGPU has no maxTextures"):
        profile_of({"maxTextures": 1})
    with pytest.raises(ArgumentError, match=r"expected a GPU"):
        profile_of(vf.devices("cpu")[0])


def main() -> int:
    """Compare the memory of all workloads."""
    worst = 0.0
    for name, planned, reported in compared([*WORKLOADS, *large.WORKLOADS]):
        worst = max(worst, abs(planned - reported) / reported)
        print(f"{name:40s} planned {planned:14,d} reported {reported:14,d}", flush=True)
    print(f"largest difference {worst:.2%}")
    return worst > 0.02


@pytest.mark.parametrize(
    "function, shape, problem",
    [
        (lambda x: vnp.concatenate([x, x]), (3_000_000_000,), "an array of 6000000000 elements"),
        (lambda x: x[::-1], (5_000_000_000,), "an array of 5000000000 elements"),
        (vnp.argmax, (3_000_000_000,), "an extremum among 3000000000 elements"),
        (lambda x: vnp.argmin((x[:, None] * x).reshape(-1)), (99_991,), "an extremum among 9998200081 elements"),
        (lambda x: lax.scan(lambda c, r: (c + r, c), vnp.int8(0), x), (3_000_000_000,), "elements is more than a GPU's shader can number"),
    ],
)
def test_what_32_bits_cannot_number_is_refused_before_it_runs(function: Callable[..., Any], shape: tuple[int, ...], problem: str) -> None:
    capabilities = TargetCapabilities(buffers=64, binding=1 << 40, int64=True)
    lowered = vf.jit(function).lower(vf.ShapeDtypeStruct(shape, "int8"))
    with pytest.raises(OutOfMemoryError, match=problem):
        plan_program(lowered.jaxpr, (False,), pipeline, WgslTarget(capabilities), RoutineCache())


def test_numbers_of_32_bits_reach_as_far_as_they_say() -> None:
    """Between 2³¹ and 2³² elements positions are unsigned, and become 64-bit integers without a sign."""
    capabilities = TargetCapabilities(buffers=64, binding=1 << 40, int64=True)
    for function, shape in (
        (lambda x: x[::-1], 3_000_000_000),
        (vnp.argmax, 2_000_000_000),
        (lambda x: vnp.arange(3_000_000_000) + x[0], 1),
    ):
        lowered = vf.jit(function).lower(vf.ShapeDtypeStruct((shape,), "int8"))
        plan = plan_program(lowered.jaxpr, (False,), pipeline, WgslTarget(capabilities), RoutineCache())
        texts = [run.source for run in runs(plan.commands)]
        assert texts and not any(int(n) >= 1 << 32 for text in texts for n in re.findall(r"\b(\d+)u\b", text))
        assert "i64(i32(" not in "".join(texts)


if __name__ == "__main__":
    sys.exit(main())
