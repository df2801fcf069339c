"""Control flow on NumPy arrays: Python loops around compiled sub-programs.

A carry goes from step to step without a copy. From the second step on a step may overwrite those elements of the carry that the step before
made in memory of their own (`_private`); the initial carry is the caller's and stays as it is. The other results of steps are copied into
arrays allocated before the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.core.jaxpr import ClosedJaxpr, Literal, Var, program_cache
from volta_fn.targets.numpy import blocks
from volta_fn.targets.numpy.backend import Program, planned, structured_kernel, subprogram
from volta_fn.targets.numpy.program import PlannedProgram

if TYPE_CHECKING:
    from volta_fn.compiler.program import Pipeline


@structured_kernel("cond")
def _cond(pipeline: Pipeline, *, branches: tuple[ClosedJaxpr, ...]) -> Program:
    programs = [subprogram(b, pipeline) for b in branches]

    def run(index: Any, *operands: Any) -> tuple[Any, ...]:
        return programs[int(index)](*operands)

    return run


@structured_kernel("while")
def _while(pipeline: Pipeline, *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> Program:
    condition = subprogram(cond_jaxpr, pipeline)
    count = cond_nconsts + body_nconsts
    step = _step(body_jaxpr, body_nconsts, len(body_jaxpr.out_avals), pipeline)

    def run(*operands: Any, most: int | None = None, rest: Program = lambda *operands: operands) -> tuple[Any, ...]:
        """Run the loop; one of more than `most` iterations is ended by `rest`."""
        cond_consts, body_consts, carry = operands[:cond_nconsts], operands[cond_nconsts:count], operands[count:]
        done = 0
        with _frame(step) as frame:
            while condition(*cond_consts, *carry)[0]:
                if done == most:
                    break
                carry = step.run(frame, done > 0, *body_consts, *carry)
                done += 1
            else:
                return carry
        return rest(*cond_consts, *body_consts, *carry)

    return run


@structured_kernel("scan")
def _scan(pipeline: Pipeline, *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int) -> Program:
    step = _step(jaxpr, num_consts, num_carry, pipeline)
    y_avals = jaxpr.out_avals[num_carry:]

    def run(*operands: Any, out: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
        rows = operands[num_consts + num_carry :]
        targets = out[num_carry:] or (None,) * len(y_avals)
        ys = [np.empty((length, *a.shape), a.dtype) if t is None else t for a, t in zip(y_avals, targets, strict=True)]
        order = range(length - 1, -1, -1) if reverse else range(length)
        steps: Iterable[tuple[Any, ...]] = zip(*[r[::-1] if reverse else r for r in rows], strict=True) if rows else ((),) * length
        overwrite = False
        with _frame(step) as frame:
            for i, row in zip(order, steps, strict=True):
                outs = step.run(frame, overwrite, *consts, *carry, *row)
                overwrite = True
                carry = outs[:num_carry]
                for y, out in zip(ys, outs[num_carry:], strict=True):
                    y[i] = out
        return (*carry, *ys)

    return run


@contextmanager
def _frame(step: PlannedProgram) -> Iterator[Sequence[np.ndarray]]:
    """Yield a step's values in a block of memory, which all iterations share."""
    if not step.in_block:
        yield ()
        return
    block = blocks.take(step.block)
    try:
        yield step.frame(block)
    finally:
        blocks.give(block)


@program_cache
def _step(closed: ClosedJaxpr, consts: int, carry: int, pipeline: Pipeline) -> PlannedProgram:
    """Compile a loop's body; its first argument allows overwriting the carry."""
    body = pipeline.optimize(closed)
    donated = [*[False] * consts, *_private(body, carry)]
    return planned(body, [*donated, *[False] * (len(closed.in_avals) - len(donated))], pipeline)


def _private(closed: ClosedJaxpr, carry: int) -> list[bool]:
    """Return which carries a step returns in new memory that it shares with no other."""
    sources: dict[Var, frozenset[Var]] = {}
    made: set[Var] = set()
    for eqn in closed.eqns:
        views = eqn.primitive.views
        shared = frozenset().union(*[sources.get(v, {v}) for v in eqn.invars if isinstance(v, Var)]) if views else frozenset()
        sources.update({v: shared | {v} for v in eqn.outvars})
        made.update(() if views else eqn.outvars)
    outs = closed.jaxpr.outvars[:carry]
    sharers = Counter(source for out in outs if isinstance(out, Var) for source in sources.get(out, {out}))
    return [not isinstance(out, Literal) and out in made and sharers[out] == 1 for out in outs]
