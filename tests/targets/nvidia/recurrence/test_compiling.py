"""LLVM compiles the kernels of recurrences: in other processes, which it would end if it could not."""

from __future__ import annotations

from pathlib import Path

import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.matmul.test_compiling import ptx
from tests.targets.nvidia.planning import AMPERE, HOPPER
from tests.targets.nvidia.recurrence.test_recurrence import lstm
from volta_fn.compiler.pipeline import optimize
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.config import default_matmul_precision
from volta_fn.targets.nvidia.recurrence import loop_key


@pytest.mark.parametrize(("device", "architecture"), [(AMPERE, "sm_80"), (HOPPER, "sm_90a")], ids=["ampere", "hopper"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_kernels(dtype: str, device: TargetCapabilities, architecture: str, tmp_path: Path) -> None:
    shapes = (256, 1024), (1024,), (32, 256), (32, 256), (8, 32, 1024)
    with default_matmul_precision("tensorfloat32"):
        gradient = vf.grad(lambda *arrays: vnp.sum(lstm(*arrays)[1].astype("float32")), argnums=(0, 4))
        program = optimize(vf.jit(gradient).lower(*[vf.ShapeDtypeStruct(shape, dtype) for shape in shapes]).jaxpr)
    forward, backward = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    for eqn in (forward, backward):
        key = loop_key(eqn, device)
        assert key is not None
        _, dispatch = key.make().dispatches
        code = ptx(dispatch.source, tmp_path, architecture)
        assert "mma.sync" in code
        assert code.count("red.release.gpu") == code.count("ld.acquire.gpu") == 1
        assert ".local" not in code
        assert "call" not in code
