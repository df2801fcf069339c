"""Steps of reductions: neutral numbers, NaN, and places of extrema."""

import numpy as np
import pytest

from tests.laws.subnormals import flushed
from tests.targets.scalar_samples import operands
from tests.targets.wgsl import running
from tests.targets.wgsl.scalars.running import assert_reference
from volta_fn import dtypes
from volta_fn.core.primitive import reduction_of
from volta_fn.targets.wgsl.routine import Routine, Shader
from volta_fn.targets.wgsl.scalars import Number, combine, combine_indexed, constant

STEPS = {"reduce_sum": np.add, "reduce_prod": np.multiply, "reduce_max": np.maximum, "reduce_min": np.minimum}
BITS = {"reduce_and": np.bitwise_and, "reduce_or": np.bitwise_or, "reduce_xor": np.bitwise_xor}
INT32 = np.dtype(np.int32)


def run_steps(write, arrays, results):
    """Return what `write` makes of a shader's elements, one an invocation."""
    size = arrays[0].size
    shader = Shader(running.capabilities())
    inputs = [shader.buffer(k, x.dtype) for k, x in enumerate(arrays)]
    outputs = [shader.buffer(len(arrays) + k, dtype, written=True) for k, dtype in enumerate(results)]
    index = shader.let("u32", f"{shader.group} * {shader.invocations}u + {shader.local}")
    with shader.block(f"if ({index} < {size}u)"):
        for out, number in zip(outputs, write(shader, [a.load(index) for a in inputs]), strict=True):
            out.store(index, number)
    dispatch = shader.dispatch(-(-size // shader.invocations))
    return running.run_routine(Routine((dispatch,)), arrays, [((size,), dtype) for dtype in results])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "uint8", "bool", "int64", "float64"])
def test_combine(name):
    """Each step as NumPy has it; combined with the neutral number nothing changes."""
    dtype = dtypes.as_dtype(name)
    x, y = operands(2, dtype)
    ops = [
        op for op in {**STEPS, **(BITS if dtype not in dtypes.FLOATS else {})} if name != "bool" or op not in ("reduce_sum", "reduce_prod")
    ]

    def write(shader, loaded):
        pairs = [combine(shader, reduction_of(op), *loaded) for op in ops]
        return pairs + [combine(shader, reduction_of(op), loaded[0], constant(dtype, reduction_of(op).start(dtype))) for op in ops]

    result = run_steps(write, [x, y], [dtype] * (2 * len(ops)))
    for op, actual, same in zip(ops, result, result[len(ops) :], strict=False):
        assert_reference(actual, {**STEPS, **BITS}[op], [x, y])
        zero = np.zeros((), dtype)
        assert_reference(
            same + zero if dtype in dtypes.FLOATS else same, lambda x, zero=zero: x + zero if dtype in dtypes.FLOATS else x, [x]
        )


@pytest.mark.parametrize("name", ["float32", "float16", "int32", "bool"])
def test_places(name):
    """Of two places in either order, as argmax and argmin of the two numbers."""
    dtype = dtypes.as_dtype(name)
    x, y = [v if running.capabilities().subnormals else flushed(v) for v in operands(2, dtype)]

    def write(shader, loaded):
        a, b = [(number, Number(INT32, f"{k}i")) for k, number in enumerate(loaded)]
        return [combine_indexed(shader, reduction_of(op), *pair)[1] for op in ("argmax", "argmin") for pair in ((a, b), (b, a))]

    actual = run_steps(write, [x, y], [INT32] * 4)
    both = np.stack([x, y])
    for k, expected in enumerate([np.argmax(both, 0), np.argmax(both, 0), np.argmin(both, 0), np.argmin(both, 0)]):
        np.testing.assert_array_equal(actual[k], expected)
