"""How rules split, reorder and compose programs, mostly cached on the originals."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Var, dce_jaxpr, program_cache
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.transforms.linearize import marked, merge, partial_eval_jaxpr


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with reordered inputs."""
    jaxpr = closed.jaxpr
    invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
    program = closed.replace(invars=invars, outvars=outvars)
    return program if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(program)


def paired_order(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return positions that order groups a, b, a', b' of these sizes as a, a', b, b'."""
    order: list[int] = []
    start, second_start = 0, sum(first)
    for size, second_size in zip(first, second, strict=True):
        order += [*range(start, start + size), *range(second_start, second_start + second_size)]
        start, second_start = start + size, second_start + second_size
    return order


@program_cache
def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Return the program with more inputs at the end, which it ignores."""
    return closed.replace(invars=[*closed.invars, *map(Var, extra)])


@program_cache
def split_program(
    closed: ClosedJaxpr, is_unknown: Sequence[bool], forced_unknown: Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with more outputs unknown.

    The outputs that `forced_unknown` marks are unknown even if they could be known. The known program returns those as its first residuals,
    which the unknown program forwards.
    """
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    is_forwarded = [f for f, u in zip(forced_unknown, out_unknown, strict=True) if not u]
    if not any(is_forwarded):
        return known_program, unknown_program, out_unknown
    known_outs, residuals = known_program.outvars[: len(is_forwarded)], known_program.outvars[len(is_forwarded) :]
    forwarded_inputs = [Var(v.aval) for v in marked(known_outs, is_forwarded)]
    outs_unknown = [u or f for u, f in zip(out_unknown, forced_unknown, strict=True)]
    outvars = merge(marked(out_unknown, outs_unknown), unknown_program.outvars, forwarded_inputs)
    known_outvars = [*marked(known_outs, is_forwarded, False), *marked(known_outs, is_forwarded), *residuals]
    forwarding = unknown_program.replace(invars=[*forwarded_inputs, *unknown_program.invars], outvars=outvars)
    return known_program.replace(outvars=known_outvars), forwarding, outs_unknown


def compose(first: ClosedJaxpr, second: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Compose programs: `first` computes the first inputs of `second` from its own."""
    count, input_count = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[input_count:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, name)
