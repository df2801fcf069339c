"""Steps on the host are visible: which primitives run there today is listed here, `lower` tells, and so does the log, once per program."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("wgpu")

import volta_fn as vf
from tests.samples import all_samples
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import Target, TargetCapabilities
from volta_fn.targets.cpu.target import TARGET as CPU
from volta_fn.targets.wgsl.target import WgslTarget

#: What every WebGPU device has, and as much as any has.
PLAIN = WgslTarget(TargetCapabilities())
RICH = WgslTarget(TargetCapabilities(float16=True, float64=True, int64=True, fma=True, subgroups=True, buffers=64))

#: Forms of matrices that GPUs have no shaders for.
CONDENSED = ", ".join(
    f"{name} {dtype}"
    for name in ("hessenberg", "householder_product", "schur", "tridiagonal", "tridiagonal_solve")
    for dtype in ("complex64", "float32")
)

#: By target, the primitives some of whose samples run in NumPy, with the dtype of their first operand. A new name here is a decision:
#: such steps are slow, above all on GPUs. (`kernel`: an operation fused with others.)
ON_HOST: dict[str, tuple[Target, str]] = {
    "cpu": (
        CPU,
        "bitcast_convert_type float32, conv_general_dilated complex64, conv_general_dilated float32, debug_callback complex64, "
        "debug_callback float32, dot_general complex64, fft complex64, fft float32, io_callback float32, kernel bool, "
        "pure_callback float32, reduce_prod complex64, reduce_sum complex64, svd float32",
    ),
    "wgsl": (
        PLAIN,
        "convert_element_type complex64, convert_element_type float32, convert_element_type int32, "
        "convert_element_type uint32, debug_callback complex64, debug_callback float32, eig complex64, eig float32, or uint32, "
        f"io_callback float32, pure_callback float32, shift_left uint32, {CONDENSED}",
    ),
    "wgsl, all features": (
        RICH,
        "debug_callback complex64, debug_callback float32, eig complex64, eig float32, io_callback float32, "
        f"pure_callback float32, {CONDENSED}",
    ),
}


def steps_on_host(target: Target) -> set[str]:
    """Lower the samples of all primitives, each in one real and one complex dtype, and return what runs on the host."""
    results: set[str] = set()
    for sample in all_samples():
        real = next((d for d in ("float32", "int32", "uint32", "bool") if d in sample.dtypes), None)
        for dtype in [d for d in (real, "complex64") if d in sample.dtypes]:
            args = [vf.ShapeDtypeStruct(arg.shape, arg.dtype or dtype) for arg in sample.args]
            program = lower(vf.make_jaxpr(sample.function)(*args), target)
            results |= {f"{step.primitive} {dtype}" for step in program.host_steps()}
    return results


@pytest.mark.parametrize("name", ON_HOST)
def test_what_runs_on_the_host(name: str) -> None:
    target, text = ON_HOST[name]
    result, expected = steps_on_host(target), set(text.split(", "))
    assert result == expected, f"new on the host: {sorted(result - expected)}; no longer there: {sorted(expected - result)}"


def test_lower_tells() -> None:
    with vf.default_device("gpu"):
        lowered = vf.jit(lambda x: vf.numpy.linalg.eig(x)[0]).lower(np.eye(3, dtype=np.float32))
        (step,) = [s for s in lowered.host_steps() if s.primitive == "eig"]
        assert step.reason == "the wgsl target has no routine for it" and "test_host_steps.py" in step.source
        assert f"# eig runs on the host ({step.reason})" in lowered.as_text()
    assert not vf.jit(lambda x: x + 1.0).lower(1.0).host_steps()


def test_the_log_tells_once_per_program(caplog: pytest.LogCaptureFixture) -> None:
    f = vf.jit(lambda x: vf.numpy.linalg.eig(x)[0] * 2.0)
    with vf.default_device("gpu"), caplog.at_level(logging.WARNING, "volta_fn"):
        for _ in range(3):
            f(vf.numpy.eye(3))
    assert [r.message.count("eig runs on the host") for r in caplog.records if "eig" in r.message] == [1]


def test_callbacks_are_listed_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    f = vf.jit(lambda x: vf.pure_callback(np.sin, x, x))
    with vf.default_device("gpu"), caplog.at_level(logging.INFO, "volta_fn"):
        f(np.float32(1))
        assert not caplog.records
        assert [s.reason for s in f.lower(np.float32(1)).host_steps()] == ["it calls a Python function"]
