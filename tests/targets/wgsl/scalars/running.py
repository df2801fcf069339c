"""Running many elementwise operations in few shaders over NumPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tests.laws import subnormals
from tests.targets.scalar_samples import assert_same_bits
from tests.targets.wgsl import running
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Routine, Shader
from volta_fn.targets.wgsl.scalars import apply, supports


class Call(NamedTuple):
    """An operation on some of the arrays of a shader."""

    op: str
    operands: tuple[int, ...]
    result: np.dtype
    params: Mapping[str, Any] = MappingProxyType({})


def run(calls: Sequence[Call], arrays: Sequence[np.ndarray], capabilities: TargetCapabilities | None = None) -> list[np.ndarray]:
    """Return the results of operations on arrays of one size, in as few shaders as bindings allow."""
    capabilities = capabilities or running.capabilities()
    results = []
    size = arrays[0].size
    for start in range(0, len(calls), 6):
        some = calls[start : start + 6]
        used = sorted({i for call in some for i in call.operands})
        shader = Shader(capabilities)
        inputs = {i: shader.buffer(k, arrays[i].dtype) for k, i in enumerate(used)}
        outputs = [shader.buffer(len(used) + k, call.result, written=True) for k, call in enumerate(some)]
        index = shader.let("u32", f"{shader.group} * {shader.invocations}u + {shader.local}")
        with shader.block(f"if ({index} < {size}u)"):
            loaded = {i: a.load(index) for i, a in inputs.items()}
            for call, out in zip(some, outputs, strict=True):
                dtypes = [arrays[i].dtype for i in call.operands]
                assert supports(call.op, dtypes, call.params, capabilities), f"{call} is not supported"
                out.store(index, apply(shader, call.op, [loaded[i] for i in call.operands], call.result, call.params))
        dispatch = shader.dispatch(-(-size // shader.invocations))
        result = running.run_routine(Routine((dispatch,)), [arrays[i] for i in used], [((size,), call.result) for call in some])
        results += result
    return results


def assert_reference(actual: np.ndarray, reference: Callable[..., Any], operands: Sequence[np.ndarray]) -> None:
    """Check the results of a function, to the last bit; where the device keeps no subnormal numbers, they may count as zeros."""
    with np.errstate(all="ignore"):
        assert_same_bits(actual, subnormals.expected(actual, reference, operands, preserved=running.capabilities().subnormals))
