"""LLVM compiles the kernels for NVIDIA GPUs: in other processes, which it would end if it could not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.targets.cpu.scalars.running import address_list, compiled
from tests.targets.nvidia.planning import AMPERE, HOPPER, only_item, shaped
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, vector_of
from volta_fn.targets.cpu.scalars import Number, apply, supports
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.nvidia.matmul import OPERATIONS, ProductOptions, contraction
from volta_fn.targets.nvidia.matmul.problem import AnySchedule, candidates
from volta_fn.targets.nvidia.matmul.results import operation

_COMPILE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
module = llvm.parse_assembly(open(sys.argv[1]).read())
module.verify()
machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=sys.argv[2], features="+ptx83", opt=3)
builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
builder.getModulePassManager().run(module, builder)
print(machine.emit_assembly(module))
"""


def ptx(text: str, folder: Path, architecture: str) -> str:
    """Return the PTX of a module in LLVM IR."""
    path = folder / "kernel.ll"
    path.write_text(text)
    done = subprocess.run([sys.executable, "-c", _COMPILE, str(path), architecture], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("device", "schedule"),
    [pytest.param(device, schedule, id=str(schedule)) for device in (AMPERE, HOPPER) for schedule in candidates(device)],
)
def test_kernels_with_an_epilogue(device: TargetCapabilities, schedule: AnySchedule, tmp_path: Path) -> None:
    types = shaped(1024, 776), shaped(776, 512), shaped(512), shaped(1024, 512)
    item = only_item(lambda x, w, b, r: r + vf.nn.gelu(x @ w + b), *types, device=device)
    assert isinstance(item.node, KernelCall)
    routine = contraction(item.node.kernel, device, ProductOptions(schedule))
    assert routine is not None
    code = ptx(routine.dispatches[0].source, tmp_path, "sm_90a" if device is HOPPER else "sm_80")
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor.2d") if device is HOPPER else ("mma.sync", "ldmatrix", "cp.async.cg"):
        assert instruction in code
    assert ".local" not in code
    assert "call" not in code  # the epilogue is inlined
    assert "ld.global.nc.v2.b32" in code
    assert "st.global.v2.b32" in code


def test_every_operation_of_epilogues(tmp_path: Path) -> None:
    module = Module()
    for number, (op, dtype) in enumerate(
        (op, dtype) for op in sorted(OPERATIONS) for dtype in (np.float32, ml_dtypes.bfloat16, np.int32, bool)
    ):
        dtype, params = np.dtype(dtype), {"y": 3} if op == "integer_pow" else {}
        arity = PRIMITIVES[op].arity
        if not arity or not supports(op, [dtype] * arity, params):
            continue
        type_ = vector_of(element(dtype), 4)
        operands = [Value(type_, f"%x{k}") for k in range(arity)]
        f = Function(module, f"f{number}", [Value("ptr", "%result"), *operands])
        result = apply(f, op, [Number(dtype, (x,)) for x in operands], dtype, params)
        f.store(result.value, Value("ptr", "%result"), 4)
        f.finish()
    assert ptx(f'target triple = "nvptx64-nvidia-cuda"\n{module}', tmp_path, "sm_80").count(".visible .func") > 60


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(np.minimum(-x, 700)))


@pytest.mark.parametrize(("op", "reference"), [("tanh", np.tanh), ("logistic", _logistic)])
def test_functions_of_normal_bfloat16_with_their_signs(op: str, reference: Callable[[np.ndarray], np.ndarray]) -> None:
    """The CPU runs the same instructions, but for the approximations."""
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    # Not of subnormal numbers, which the CPU's conversion to bfloat16 flushes to zero.
    x = np.append(x[(x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)], np.float32("nan"))
    module = Module()
    f = Function(module, "run", [Value("ptr", "%buffers"), Value("i64", "%n")])
    source, target = [f.load("ptr", f.at(f.parameters[0], "ptr", i64(k)), 8) for k in range(2)]

    def turn(index: Value, _: list[Value]) -> list[Value]:
        number = Number(bfloat16, (f.load("float", f.at(source, "float", index), 4),))
        f.store(operation(f, op, [number], bfloat16, {}).value, f.at(target, "float", index), 4)
        return []

    f.loop(i64(0), f.parameters[1], 1, [], turn)
    f.finish()
    result = np.zeros_like(x)
    compiled(str(module))(address_list([x, result]), x.size)
    assert np.isnan(result[-1])
    actual, expected = result[:-1].astype(bfloat16), reference(x[:-1].astype(np.float64)).astype(bfloat16)
    distance = np.abs(actual.view(np.int16).astype(np.int32) - expected.view(np.int16))  # that of 0.0 and -0.0 is large
    normal = (x[:-1] == 0) | (np.abs(expected.astype(np.float32)) >= np.finfo(np.float32).tiny)
    assert distance[normal].max() <= 1
    assert (distance[normal] == 0).mean() > 0.999
    assert np.abs(actual[~normal].astype(np.float32)).max(initial=0) <= np.finfo(np.float32).tiny
