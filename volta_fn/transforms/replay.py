"""Replaying backward passes: eager reverse mode compiles the backward program of each shape of derivative once, and then calls it.

A training loop that is not jitted differentiates one function over and over, and linearization records the same equations each
time, with other values in them. The *shape* of a recorded program is all of it but those values. It is cheap to compare, so the
first backward pass of a shape is written down as a program of the values and the cotangents, and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from volta_fn.core.array import Array, ConcreteArray
from volta_fn.core.dce import dce_jaxpr, prune_inputs
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.transforms.tangent import tangent_p
from volta_fn.transforms.transpose import backward_pass

#: Longer programs are not worth comparing: the work in their equations outweighs the overhead of interpreting them.
_LONGEST = 1000
#: Shapes kept before all are dropped.
_CACHE_LIMIT = 512


class _Backward(NamedTuple):
    """A backward program: which of the values and cotangents it reads, and for which inputs it gives a cotangent."""

    params: dict[str, Any]
    reads: list[bool]
    nonzero: list[bool]


_programs: dict[Any, _Backward] = {}


def pull_back(program: ClosedJaxpr, cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents, arrays or `Zero`, of all inputs of a program that linearization recorded, from those of its outputs."""
    if len(program.eqns) <= _LONGEST and current_trace() is EVAL and all(type(c) is ConcreteArray for c in cotangents):
        parts = _take_apart(program)
        if parts is not None:
            return _replay(program, *parts, cotangents)
    return interpret(program, cotangents)


def interpret(program: ClosedJaxpr, cotangents: Sequence[Any]) -> list[Any]:
    """What `pull_back` gives, by transposing one equation after the other."""
    count = len(program.jaxpr.invars)
    return backward_pass(program, [True] * count, (), cotangents, all_linear=True)


def _replay(program: ClosedJaxpr, shape: Any, values: list[Any], cotangents: Sequence[Any]) -> list[Any]:
    backward = _programs.get(shape)
    if backward is None:
        if len(_programs) >= _CACHE_LIMIT:
            _programs.clear()
        backward = _programs.setdefault(shape, _write_down(program, values, cotangents))
    found = iter(bind(jit_p, *compress((*values, *cotangents), backward.reads), **backward.params))
    return [next(found) if nz else Zero(v.aval) for nz, v in zip(backward.nonzero, program.jaxpr.invars, strict=True)]


def _take_apart(program: ClosedJaxpr) -> tuple[Any, list[Any]] | None:
    """A program's shape and its values, in the order in which `_put_together` takes them; None if it holds sub-programs."""
    jaxpr = program.jaxpr
    numbers: dict[Atom, int] = {v: i for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    values: list[Any] = list(program.consts)
    shape: list[Any] = [len(values), *[v.aval for v in jaxpr.invars]]
    for eqn in jaxpr.eqns:
        if eqn.primitive.multiple_results and not _is_known_call(eqn):
            return None
        for atom in eqn.invars:
            if type(atom) is Literal:
                values.append(atom.val)
                shape.append(None)
            else:
                shape.append(numbers[atom])
        for out in eqn.outvars:
            numbers[out] = len(numbers)
        shape.append(eqn.primitive)
        if eqn.primitive is tangent_p:
            values.append(eqn.params["out"])
            values += eqn.params["operands"]
            shape += (*eqn.params["rules"], *eqn.params["settings"].items())
        else:
            shape += eqn.params.items()
    shape += [numbers.get(v) for v in jaxpr.outvars]
    shape += [v._spec for v in values]
    return tuple(shape), values


def _is_known_call(eqn: Equation) -> bool:
    """Whether an equation calls a program that was met before: one that is made afresh for each derivative is not worth comparing."""
    if eqn.primitive is not jit_p:
        return False
    cache = eqn.params["jaxpr"].cache
    known = "met" in cache
    cache["met"] = True
    return known


def _put_together(program: ClosedJaxpr, values: Iterator[Array]) -> ClosedJaxpr:
    """The program with other values in the places of its own."""
    jaxpr = program.jaxpr
    consts: list[Array] = [next(values) for _ in program.consts]
    constvars = list(jaxpr.constvars)
    eqns: list[Equation] = []
    for eqn in jaxpr.eqns:
        invars = list(eqn.invars)
        for i, atom in enumerate(invars):
            if type(atom) is Literal:
                invars[i] = var = Var(atom.aval)
                constvars.append(var)
                consts.append(next(values))
        params = eqn.params
        if eqn.primitive is tangent_p:
            params = params | {"out": next(values), "operands": [next(values) for _ in params["operands"]]}
        eqns.append(eqn.replace(invars=invars, params=params))
    return ClosedJaxpr(Jaxpr(constvars, jaxpr.invars, jaxpr.outvars, eqns), consts)


def _write_down(program: ClosedJaxpr, values: Sequence[Array], cotangents: Sequence[Array]) -> _Backward:
    """The backward pass as a program of the values and the cotangents."""
    nonzero: list[bool] = []

    def run(*flat: Array) -> list[Array]:
        results = interpret(_put_together(program, iter(flat[: len(values)])), flat[len(values) :])
        nonzero[:] = [type(r) is not Zero for r in results]
        return [r for r in results if type(r) is not Zero]

    closed = trace_to_jaxpr(run, [a.aval for a in (*values, *cotangents)], "backward")
    pruned, reads = prune_inputs(dce_jaxpr(closed), [True] * (len(values) + len(cotangents)))
    return _Backward(call_params(pruned, "backward"), reads, nonzero)
