"""Transposition: from cotangents of a linear program's outputs to those of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, program_cache
from volta_fn.core.primitive import Linear, Zero
from volta_fn.core.staging import backward, current_position, trace_rules
from volta_fn.core.trace import current_trace
from volta_fn.dtypes import BOOL
from volta_fn.errors import MissingRuleError
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.transforms.marks import is_nonzero, marked, merge


def pull_back(program: ClosedJaxpr, cotangents: Sequence[Any]) -> list[Any]:
    """Return cotangents of the inputs of a program that linearization recorded."""
    return backward_pass(program, [True] * len(program.jaxpr.invars), (), cotangents, all_linear=True)


def backward_pass(
    closed: ClosedJaxpr, linear: Sequence[bool], args: Sequence[Any], cotangents: Sequence[Any], all_linear: bool = False
) -> list[Any]:
    """Return cotangents of the `linear` inputs (None for others).

    `args` are the values of the other inputs.

    A cotangent is an array or a `Zero`. Equations that depend on no linear input are evaluated first; `all_linear` says that there are
    none, as in the programs that linearization records.
    """
    jaxpr = closed.jaxpr
    #: The variables with values; all others are linear.
    known: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    token, outside = current_position.set(current_position.get()), backward.set(True)
    try:
        if not all_linear:
            known.update((v, a) for v, a, is_linear in zip(jaxpr.invars, args, linear, strict=True) if not is_linear)
            _evaluate_known(jaxpr, known)
        pending = _walk_back(jaxpr, known, cotangents)
    finally:
        current_position.reset(token)
        backward.reset(outside)
    return [
        None if not is_linear else (pending[v] if v in pending else Zero(v.aval)) for v, is_linear in zip(jaxpr.invars, linear, strict=True)
    ]


def _evaluate_known(jaxpr: Jaxpr, known: dict[Var, Any]) -> None:
    process = current_trace().process
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if atom not in known and type(atom) is not Literal:
                break
        else:
            current_position.set(eqn.position)
            result = process(eqn.primitive, [_read(known, v) for v in eqn.invars], eqn.params)
            known.update(zip(eqn.outvars, result if eqn.primitive.multiple_results else (result,), strict=True))


def _read(known: dict[Var, Any], atom: Atom) -> Any:
    return atom.val if type(atom) is Literal else known[atom]  # type: ignore[index]  # mypy keeps the union


def _walk_back(jaxpr: Jaxpr, known: dict[Var, Any], cotangents: Sequence[Any]) -> dict[Any, Any]:
    """Return cotangents of the linear inputs, by the equations in reverse order."""
    pending: dict[Any, Any] = {}
    targets: Sequence[Any] = jaxpr.outvars
    results: Sequence[Any] = cotangents
    for eqn in (None, *reversed(jaxpr.eqns)):
        if eqn is not None:
            given = [pending.pop(v, None) for v in eqn.outvars]
            if not given or (given[0] is None and all(c is None for c in given)):
                continue
            targets, results = eqn.invars, _transposed(eqn, known, given)
        for atom, cotangent in zip(targets, results, strict=True):
            if cotangent is None or type(cotangent) is Zero or type(atom) is Literal or atom in known:
                continue
            before = pending.get(atom)
            pending[atom] = cotangent if before is None else add(before, cotangent)
    return pending


def _transposed(eqn: Equation, known: dict[Var, Any], given: list[Any]) -> Sequence[Any]:
    """Return a cotangent or None for each operand, from those of the results."""
    primitive = eqn.primitive
    if primitive.transpose is None:
        raise MissingRuleError(
            f"the primitive {primitive} (from {eqn.source}) has no transpose rule, so reverse-mode differentiation cannot pass it. "
            "Use forward mode (jvp, jacfwd), or give the function a custom_vjp."
        )
    current_position.set(eqn.position)
    args = [known[v] if v in known else v.val if type(v) is Literal else Linear(v.aval, eqn) for v in eqn.invars]
    for arg in args:
        if type(arg) is Linear and arg.dtype in BOOL:  # no comparison is linear, even where the rule needs no result of it
            arg.refuse()
    if not primitive.multiple_results:
        return primitive.transpose(given[0], *args, **eqn.params)
    cotangents = [Zero(v.aval) if c is None else c for c, v in zip(given, eqn.outvars, strict=True)]
    return primitive.transpose(cotangents, *args, **eqn.params)


@program_cache
def transpose_jaxpr(closed: ClosedJaxpr, linear: Sequence[bool], nonzero_cts: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Derive the backward program; tell which linear inputs have a cotangent.

    It is ``(*non-linear inputs, *nonzero cotangents) -> cotangents of linear inputs``.
    """
    avals, outs = closed.in_avals, closed.out_avals
    known_avals, ct_avals = marked(avals, linear, False), marked(outs, nonzero_cts)
    nonzero: list[bool] = []

    def run(*flat: Array) -> list[Array]:
        args = merge(linear, [None] * sum(linear), flat[: len(known_avals)])
        cts = merge(nonzero_cts, flat[len(known_avals) :], map(Zero, marked(outs, nonzero_cts, False)))
        results = marked(backward_pass(closed, linear, args, cts), linear)
        nonzero[:] = is_nonzero(results)
        return marked(results, nonzero)

    result = trace_rules(run, [*known_avals, *ct_avals], "backward")
    return result, nonzero
