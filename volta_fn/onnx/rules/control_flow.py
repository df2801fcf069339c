"""Control flow: scan is Scan, cond is If, while is Loop.

The graphs that these run read surrounding values by name, so that constants need not be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.onnx.rules.registry import Writer, aval, ints, rule, scalar

_COUNTER, _FLAG = ShapedArray((), np.dtype(np.int64)), ShapedArray((), np.dtype(np.bool_))


@rule("scan")
def scan(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Run a program over the slices of arrays."""
    params = eqn.params
    consts, carried, program = params["num_consts"], params["num_carry"], params["jaxpr"]
    states, rows = names[consts : consts + carried], list(names[consts + carried :])
    kinds = program.in_avals[consts:]
    counted = not rows
    if counted:  # Scan needs something to scan
        rows, kinds = [ints(w, np.arange(params["length"]))], [*kinds, _COUNTER]

    def build(inner: Writer, given: Sequence[str]) -> Sequence[str]:
        return inner.program(program, [*names[:consts], *(given[:-1] if counted else given)])

    outputs, backward = len(eqn.outvars), params["reverse"]
    directions = {"scan_input_directions": [1] * len(rows)} if backward else {}
    if backward and outputs > carried:
        directions["scan_output_directions"] = [1] * (outputs - carried)
    body = w.graph("step", kinds, build)
    return w.ops("Scan", outputs, *states, *rows, body=body, num_scan_inputs=len(rows), **directions)


@rule("cond")
def cond(w: Writer, eqn: Equation, index: str, *operands: str) -> Sequence[str]:
    """Run one of several programs: a chain of choices between two."""
    branches: Sequence[ClosedJaxpr] = eqn.params["branches"]

    def chosen(inner: Writer, number: int) -> Sequence[str]:
        if number == len(branches) - 1:
            return inner.program(branches[number], operands)
        is_it = inner.op("Equal", index, scalar(inner, number, aval(eqn)))
        then = inner.graph("branch", [], lambda one, _: one.program(branches[number], operands))
        otherwise = inner.graph("branch", [], lambda one, _: chosen(one, number + 1))
        return inner.ops("If", len(eqn.outvars), is_it, then_branch=then, else_branch=otherwise)

    return chosen(w, 0)


@rule("while")
def while_loop(w: Writer, eqn: Equation, *names: str) -> Sequence[str]:
    """Repeat a program while another says so."""
    params: dict[str, Any] = eqn.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    for_cond, for_body, carried = names[:first], names[first:second], names[second:]
    (begin,) = w.program(params["cond_jaxpr"], [*for_cond, *carried])
    kinds = [_COUNTER, _FLAG, *params["body_jaxpr"].in_avals[len(for_body) :]]

    def build(inner: Writer, given: Sequence[str]) -> Sequence[str]:
        values = inner.program(params["body_jaxpr"], [*for_body, *given[2:]])
        (again,) = inner.program(params["cond_jaxpr"], [*for_cond, *values])
        return [again, *values]

    return w.ops("Loop", len(carried), "", begin, *carried, body=w.graph("turn", kinds, build))
