"""Lowering rules written with StableHLO's operations."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.extend import stablehlo
from volta_fn.extend.core import Primitive
from volta_fn.extend.interpreters import register_lowering


def test_a_rule_of_the_dialects_operations_is_compiled() -> None:
    multiply_add = Primitive("multiply_add_of_stablehlo")
    multiply_add.def_abstract_eval(lambda x, y, z: x)
    register_lowering(multiply_add, lambda context, x, y, z: [stablehlo.AddOp(stablehlo.MulOp(x, y), z).result])
    assert vf.jit(multiply_add.bind)(2.0, 3.0, 4.0) == 10.0


BINARY = "AddOp AndOp Atan2Op DivOp MaxOp MinOp MulOp OrOp PowOp RemOp SubtractOp XorOp".split()
LOGICAL = "AndOp NotOp OrOp XorOp".split()


@pytest.mark.parametrize("name", stablehlo.__all__)
def test_every_operation_is_a_function_here(name: str) -> None:
    x = np.ones(2, np.int32 if name in LOGICAL else np.float32)
    operands = {"ClampOp": (x, x, x), "SelectOp": (x > 0, x, x)}.get(name, (x, x) if name in BINARY else (x,))
    assert getattr(stablehlo, name)(*operands).results[0].shape == (2,)


def test_other_operations_are_refused() -> None:
    with pytest.raises(AttributeError, match="mlir.lower_fun"):
        stablehlo.ConvolutionOp
