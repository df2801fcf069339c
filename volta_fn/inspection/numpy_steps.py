"""The steps of a program that NumPy runs: its equations, timed one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import host_buffer
from volta_fn.core.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var
from volta_fn.inspection.attribution import locations_of
from volta_fn.inspection.costs import flops_of
from volta_fn.inspection.explanation import Step
from volta_fn.inspection.roofline import Roofline, samples
from volta_fn.jit.eager import PIPELINE


def numpy_steps(
    program: ClosedJaxpr, traced: ClosedJaxpr, buffers: Sequence[Any], device: Device, calls: int, roofline: Roofline | None
) -> tuple[list[Step], float | None, float]:
    """Return equations as steps, the seconds of a call, and those of no step.

    Each equation runs as its kernel in NumPy; a call runs the plan of `traced`, which saves memory and so some time.
    """
    if not calls:
        return _described(program, None, roofline), None, 0.0
    runs = [_kernel(eqn, device) for eqn in program.eqns]
    measured = [_timed(program, runs, buffers) for _ in range(calls)]
    seconds = [min(times) for times in zip(*measured, strict=True)]
    run = device.backend.compile(traced, (False,) * len(buffers), PIPELINE)
    call = min(samples(lambda: run(False, *buffers)))
    return _described(program, seconds, roofline), call, 0.0


def _kernel(eqn: Equation, device: Device) -> Callable[..., Sequence[Any]]:
    run = device.backend.kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params, PIPELINE)
    return run if eqn.primitive.multiple_results else lambda *buffers: (run(*buffers),)


def _timed(program: ClosedJaxpr, runs: Sequence[Callable[..., Sequence[Any]]], buffers: Sequence[Any]) -> list[float]:
    """Run the equations one by one, and return the seconds of each."""
    values: dict[Var, Any] = dict(zip(program.constvars, map(_on_host, program.consts), strict=True))
    values.update(zip(program.invars, buffers, strict=True))
    seconds = []
    for eqn, run in zip(program.eqns, runs, strict=True):
        operands = [_on_host(v.val) if isinstance(v, Literal) else values[v] for v in eqn.invars]
        start = time.perf_counter()
        results = run(*operands)
        seconds.append(time.perf_counter() - start)
        values.update(zip(eqn.outvars, results, strict=True))
    return seconds


def _on_host(value: Any) -> np.ndarray:
    return host_buffer(value)


def _described(program: ClosedJaxpr, seconds: Sequence[float] | None, roofline: Roofline | None) -> list[Step]:
    made: dict[Var, int] = {}
    steps = []
    for number, eqn in enumerate(program.eqns, 1):
        variables = [v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var)]
        flops, moved = flops_of([eqn]), sum(v.aval.nbytes for v in dict.fromkeys(variables))
        taken = None if seconds is None else seconds[number - 1]
        operands, results = (" ".join(str(v.aval) for v in some) for some in (eqn.invars, eqn.outvars))
        steps.append(
            Step(
                number=number,
                name=eqn.primitive.name,
                kind="control flow" if eqn.primitive.holds_programs else "kernel",
                shapes=f"{operands} → {results}",
                flops=flops,
                bytes=moved,
                runs=1,
                seconds=taken,
                fraction=roofline.seconds(flops, moved) / taken if taken and roofline is not None else None,
                user_lines=tuple(locations_of([eqn])),
                equations=(eqn.primitive.name,),
                text=f"{eqn.primitive.name} {operands} -> {results}",
                code="",
                after=tuple(sorted({made[v] for v in eqn.invars if isinstance(v, Var) and v in made})),
                depth=0,
            )
        )
        made.update(dict.fromkeys(eqn.outvars, number))
    return steps
