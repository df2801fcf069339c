"""What a backend's kernels may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.core.jaxpr import Equation


class Limits(NamedTuple):
    """What a kernel may be at most."""

    #: Inputs and outputs together (WebGPU promises 8 to a stage).
    buffers: int = 8
    #: Elements of a row that is visited again after a reduction over it.
    row: int = 1 << 16
    #: Equations: what writes a kernel down may recurse over it, and takes longer the longer it is.
    steps: int = 200
    #: Bytes up to which a value is not worth computing again instead of storing it.
    small: int = 4096
    #: Whether kernels can compute an equation that has a place in one, by its operations and dtypes; otherwise it stays an equation.
    computes: Callable[[Equation], bool] = lambda eqn: True
    #: Whether a product as a kernel, reading its operands through views as it says, is as good as one of arrays in memory; a product for
    #: which no such kernel is good stays an equation.
    contracts: Callable[[Kernel], bool] = lambda kernel: False
