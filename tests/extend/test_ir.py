"""Programs that are built by the names of MLIR's Python module."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from volta_fn.core.aval import ShapedArray
from volta_fn.errors import LoweringError
from volta_fn.extend import ir
from volta_fn.extend import stablehlo as hlo
from volta_fn.extend.ir import CallOp, func
from volta_fn.process import get_backend


def executable(body: Any, *types: ShapedArray) -> Any:
    """Build a module whose program is a function of values, and compile its text."""
    with ir.Context() as context, ir.Location.unknown(context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):

            @func(*types)
            def main(*values: Any) -> Any:
                return body(*values)

    text = io.StringIO()
    module.operation.print(file=text)
    return get_backend("cpu").compile_and_load(text.getvalue())


F64 = ir.RankedTensorType.get((3,), ir.F64Type.get())


def test_operations_become_a_program_in_64_bits() -> None:
    run = executable(lambda x: [hlo.add(hlo.sine(x), hlo.constant(np.full(3, 0.5)))], F64)
    x = np.array([0.1, 0.2, 0.3])
    (result,) = run.execute([ir.batched_device_put(None, None, [x], ["cpu"])])
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, np.sin(x) + 0.5, rtol=1e-15)


def test_a_reduction_has_a_block_for_its_function() -> None:
    scalar = ir.RankedTensorType.get((), ir.F64Type.get())

    def body(x: Any) -> Any:
        op = hlo.ReduceOp([scalar], [x], [hlo.constant(np.array(0.0))], [0])
        block = op.body.blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.return_([hlo.add(*block.arguments)])
        return op.results

    (total,) = executable(body, F64).execute([ir.batched_device_put(None, None, [np.array([1.0, 2.0, 4.0])], ["cpu"])])
    assert float(total) == 7.0


@pytest.mark.parametrize(("chosen", "wanted"), [(True, 6.0), (False, 9.0)])
def test_branches_and_calls(chosen: bool, wanted: float) -> None:
    f32, pred = ir.RankedTensorType.get((), ir.F32Type.get()), ir.RankedTensorType.get((), ir.IntegerType.get_signless(1))

    def body(which: Any, x: Any) -> Any:
        @func(f32)
        def double(y: Any) -> Any:
            return [hlo.add(y, y)]

        op = hlo.IfOp([f32], which)
        with ir.InsertionPoint(op.true_branch.blocks.append()):
            hlo.return_(CallOp(double.func_op, [x]).results)
        with ir.InsertionPoint(op.false_branch.blocks.append()):
            hlo.return_([hlo.multiply(x, x)])
        return op.results

    operands = [ir.batched_device_put(None, None, [v], ["cpu"]) for v in (np.bool_(chosen), np.float32(3))]
    assert float(executable(body, pred, f32).execute(operands)[0]) == wanted


def test_other_texts_and_unfinished_blocks_are_refused() -> None:
    with pytest.raises(LoweringError, match="not MLIR"):
        ir.compile_and_load("module {}")
    with pytest.raises(LoweringError, match="without return_"):
        ir.Block([]).program()
    with pytest.raises(LoweringError, match="no block"):
        ir.Region().run()
