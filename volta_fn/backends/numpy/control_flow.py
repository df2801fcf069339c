"""Control flow on NumPy arrays: Python loops around compiled sub-programs.

A compiled program never writes into its inputs, so a carry goes from step to step without a copy, even if a step returns its own
input or a view of a row. What steps give is copied into arrays made for it before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from volta_fn.backends.numpy.backend import Program, structured_kernel
from volta_fn.core.jaxpr import ClosedJaxpr

Compile = Callable[[ClosedJaxpr], Program]


@structured_kernel("cond")
def _cond(compile_sub: Compile, *, branches: tuple[ClosedJaxpr, ...]) -> Program:
    programs = [compile_sub(b) for b in branches]

    def run(index: Any, *operands: Any) -> tuple[Any, ...]:
        return programs[int(index)](*operands)

    return run


@structured_kernel("while")
def _while(compile_sub: Compile, *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> Program:
    condition, body = compile_sub(cond_jaxpr), compile_sub(body_jaxpr)
    count = cond_nconsts + body_nconsts

    def run(*operands: Any) -> tuple[Any, ...]:
        cond_consts, body_consts, carry = operands[:cond_nconsts], operands[cond_nconsts:count], operands[count:]
        while condition(*cond_consts, *carry)[0]:
            carry = body(*body_consts, *carry)
        return carry

    return run


@structured_kernel("scan")
def _scan(compile_sub: Compile, *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int) -> Program:
    body = compile_sub(jaxpr)
    y_avals = jaxpr.out_avals[num_carry:]

    def run(*operands: Any) -> tuple[Any, ...]:
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
        rows = operands[num_consts + num_carry :]
        ys = [np.empty((length, *a.shape), a.dtype) for a in y_avals]
        order = range(length - 1, -1, -1) if reverse else range(length)
        steps: Iterable[tuple[Any, ...]] = zip(*[r[::-1] if reverse else r for r in rows], strict=True) if rows else ((),) * length
        for i, row in zip(order, steps, strict=True):
            outs = body(*consts, *carry, *row)
            carry = outs[:num_carry]
            for y, out in zip(ys, outs[num_carry:], strict=True):
                y[i] = out
        return (*carry, *ys)

    return run
