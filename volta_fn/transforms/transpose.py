"""Transposition: running a linear program backwards, from cotangents of its outputs to cotangents of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import Linear, Zero
from volta_fn.core.staging import current_position, trace_rules
from volta_fn.core.trace import current_trace
from volta_fn.errors import GradientError
from volta_fn.primitives.arithmetic import add


def pull_back(program: ClosedJaxpr, cotangents: Sequence[Any]) -> list[Any]:
    """Return the cotangents, arrays or `Zero`, of all inputs of a program that linearization recorded, given those of its outputs."""
    return backward_pass(program, [True] * len(program.jaxpr.invars), (), cotangents, all_linear=True)


def backward_pass(
    closed: ClosedJaxpr, linear: Sequence[bool], args: Sequence[Any], cotangents: Sequence[Any], all_linear: bool = False
) -> list[Any]:
    """Cotangents of the inputs that are `linear` (others: None), given the values of the rest in `args`.

    A cotangent is an array or a `Zero`. Equations that depend on no linear input are evaluated forward first; `all_linear` says
    that there are none, as in what linearization records.
    """
    jaxpr = closed.jaxpr
    #: The variables with values: a variable is linear if and only if it is not among them.
    known: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    if not all_linear:
        known.update((v, a) for v, a, is_linear in zip(jaxpr.invars, args, linear, strict=True) if not is_linear)
    token = current_position.set(current_position.get())
    try:
        if not all_linear:
            _evaluate_known(jaxpr, known)
        pending = _walk_back(jaxpr, known, cotangents)
    finally:
        current_position.reset(token)
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
    """Cotangents of the linear inputs, by running the linear equations in reverse."""
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
    """A cotangent (or None) for each operand of an equation, from those of its results."""
    primitive = eqn.primitive
    if primitive.transpose is None:
        raise GradientError(
            f"the primitive {primitive} (from {eqn.source}) has no transpose rule, so reverse-mode differentiation cannot pass it. "
            "Use forward mode (jvp, jacfwd), or give the function a custom_vjp."
        )
    current_position.set(eqn.position)
    args = [known[v] if v in known else v.val if type(v) is Literal else Linear(v.aval) for v in eqn.invars]
    if not primitive.multiple_results:
        return primitive.transpose(given[0], *args, **eqn.params)
    cotangents = [Zero(v.aval) if c is None else c for c, v in zip(given, eqn.outvars, strict=True)]
    return primitive.transpose(cotangents, *args, **eqn.params)


def transpose_jaxpr(closed: ClosedJaxpr, linear: Sequence[bool], nonzero_cts: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The backward program ``(*non-linear inputs, *nonzero cotangents) -> cotangents of linear inputs``, and which of those it gives."""
    key = ("transpose", tuple(linear), tuple(nonzero_cts))
    if key in closed.cache:
        return closed.cache[key]
    avals, outs = closed.in_avals, closed.out_avals
    residuals = sum(not is_linear for is_linear in linear)
    nonzero_out: list[bool] = []

    def run(*flat: Array) -> list[Array]:
        known, given = iter(flat[:residuals]), iter(flat[residuals:])
        args = [Linear(a) if is_linear else next(known) for is_linear, a in zip(linear, avals, strict=True)]
        cts = [next(given) if nz else Zero(a) for nz, a in zip(nonzero_cts, outs, strict=True)]
        results = [c for c, is_linear in zip(backward_pass(closed, linear, args, cts), linear, strict=True) if is_linear]
        nonzero_out[:] = [type(c) is not Zero for c in results]
        return [c for c in results if type(c) is not Zero]

    known_avals = [a for a, is_linear in zip(avals, linear, strict=True) if not is_linear]
    ct_avals = [a for nz, a in zip(nonzero_cts, outs, strict=True) if nz]
    result = trace_rules(run, [*known_avals, *ct_avals], "backward")
    closed.cache[key] = (result, list(nonzero_out))
    return closed.cache[key]
