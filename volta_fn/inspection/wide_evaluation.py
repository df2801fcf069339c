"""Programs in 64-bit floats, and how far from them narrower dtypes may be.

A program is evaluated once as it is, and several times with every value rounded at random by one unit in its last digit (Monte Carlo
arithmetic: D. S. Parker, 1997). Results of compiled programs round elsewhere, but change about as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import host_buffer
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program
from volta_fn.inspection.reference import (
    IN_OWN_DTYPE,
    SUMS,
    Expected,
    absolute_operands,
    epsilon,
    evaluate,
    smallest,
    wide_dtype,
)

#: Evaluations with rounded values, and how many times what they change may be missing.
_TRIES, _FACTOR = 4, 32.0

#: What NumPy's functions raise if they do not take 64 bits.
_REFUSALS = (TypeError, ValueError, NotImplementedError, np.linalg.LinAlgError)

Values = dict[Var, np.ndarray]


def expected_outputs(program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[Expected]:
    """Return the outputs of a program in 64 bits, and how far from them others may be."""
    runs = [_Evaluation(rng).program(program, arguments) for rng in _generators()]
    return [_expected(v.aval.dtype, [run[n] for run in runs]) for n, v in enumerate(program.jaxpr.outvars)]


def expected_values(equations: Sequence[Equation], values: Mapping[Var, np.ndarray], results: Iterable[Var]) -> list[Expected]:
    """Return results of equations in 64 bits, and how far from them others may be."""
    runs = [_Evaluation(rng).equations(equations, values) for rng in _generators()]
    return [_expected(v.aval.dtype, [run[v] for run in runs]) for v in results]


def _generators() -> list[np.random.Generator | None]:
    return [None, *[np.random.default_rng(seed) for seed in range(_TRIES)]]


def _expected(dtype: np.dtype, runs: Sequence[np.ndarray]) -> Expected:
    exact, others = runs[0], runs[1:]
    if dtype not in dtypes.INEXACT:
        changes = np.logical_or.reduce([other != exact for other in others])
        tolerance = np.where(changes, np.inf, 0.0)
        return Expected(exact, tolerance if np.any(changes) else None)
    with np.errstate(all="ignore"):
        change = np.zeros(exact.shape)
        for other in others:
            moved = np.where(np.isfinite(exact) == np.isfinite(other), np.abs(other - exact), np.inf)
            np.fmax(change, np.where((exact == other) | (np.isnan(exact) & np.isnan(other)), 0.0, moved), out=change)
        tolerance = _FACTOR * (change + epsilon(dtype, ()) * np.abs(exact)) + 4 * smallest(dtype)
    return Expected(exact, np.where(np.isnan(tolerance), np.inf, tolerance))


class _Evaluation:
    """Evaluates programs in NumPy: floats in 64 bits, other numbers in their dtypes.

    With a generator, each value is rounded at random, as one of its own dtype would be.
    """

    def __init__(self, rng: np.random.Generator | None) -> None:
        self.rng = rng

    def program(self, program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of a program."""
        jaxpr = program.jaxpr
        values: Values = dict(zip(jaxpr.constvars, map(host_buffer, program.consts), strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        found = self.equations(program.eqns, values)
        return [self._read(found, v) for v in jaxpr.outvars]

    def equations(self, equations: Sequence[Equation], values: Mapping[Var, np.ndarray]) -> Values:
        """Return the values that equations compute, and those that they read."""
        found: Values = {}
        for var, value in values.items():
            found[var] = self._moved(np.asarray(value).reshape(var.aval.shape), var.aval.dtype)
        for eqn in equations:
            results = self._equation(eqn, [self._read(found, v) for v in eqn.invars])
            found.update(zip(eqn.outvars, results, strict=True))
        return found

    def _read(self, values: Values, atom: Atom) -> np.ndarray:
        if isinstance(atom, Literal):
            value = host_buffer(atom.val)
            return value.astype(wide_dtype(value.dtype), copy=False)
        return values[atom]

    def _moved(self, value: np.ndarray, dtype: np.dtype, absolute: np.ndarray | None = None) -> np.ndarray:
        """Return a value in 64 bits, rounded at random by a unit of a dtype."""
        if dtype not in dtypes.INEXACT:
            return value
        value = value.astype(wide_dtype(dtype), copy=False)
        if self.rng is None:
            return value
        step = epsilon(dtype, ())
        with np.errstate(all="ignore"):
            moved = value * (1 + step * self.rng.choice([-1.0, 1.0], value.shape))
            if absolute is not None:
                moved = moved + step * np.abs(absolute) * self.rng.choice([-1.0, 1.0], value.shape)
        return np.where(np.isfinite(value) & np.isfinite(moved), moved, value)

    def _equation(self, eqn: Equation, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
        called = called_program(eqn)
        if called is not None:
            return self.program(called, operands)
        if eqn.primitive.name in _LOOPS:
            with np.errstate(all="ignore"):
                results: Sequence[np.ndarray] = _LOOPS[eqn.primitive.name](self, operands, **eqn.params)
                return results
        values, absolute = self._primitive(eqn, operands)
        return [self._moved(np.asarray(x), v.aval.dtype, a) for x, v, a in zip(values, eqn.outvars, absolute, strict=True)]

    def _primitive(self, eqn: Equation, operands: list[np.ndarray]) -> tuple[list[np.ndarray], Sequence[np.ndarray | None]]:
        """Return an equation's results, and for sums the sums of absolute values."""
        name, own = eqn.primitive.name, [v.aval.dtype for v in eqn.invars]
        none = [None] * len(eqn.outvars)
        inexact = [d in dtypes.INEXACT for d in (*own, *[v.aval.dtype for v in eqn.outvars])]
        if name == "convert_element_type" and all(inexact):
            return [_converted(operands[0], eqn.outvars[0].aval.dtype)], none
        wide = [wide_dtype(d) for d in own]
        if name not in IN_OWN_DTYPE and any(inexact[len(own) :]):
            try:
                values = evaluate(eqn, operands, wide)
                absolute = none if self.rng is None or name not in SUMS else evaluate(eqn, absolute_operands(name, operands, wide), wide)
                return values, absolute
            except _REFUSALS:
                pass
        with np.errstate(all="ignore"):
            return evaluate(eqn, [x.astype(d) for x, d in zip(operands, own, strict=True)], own), none


def _converted(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype in dtypes.COMPLEX or value.dtype.kind != "c":
        return value.astype(wide_dtype(dtype))
    return value.real


def _scan(
    run: _Evaluation, args: list[np.ndarray], *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any
) -> list[np.ndarray]:
    consts, carry, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
    ys = [np.zeros((length, *a.shape), wide_dtype(a.dtype)) for a in jaxpr.out_avals[num_carry:]]
    for number in reversed(range(length)) if reverse else range(length):
        outs = run.program(jaxpr, [*consts, *carry, *[x[number] for x in xs]])
        carry = outs[:num_carry]
        for stacked, y in zip(ys, outs[num_carry:], strict=True):
            stacked[number] = y
    return [*carry, *ys]


def _while(
    run: _Evaluation, args: list[np.ndarray], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int
) -> list[np.ndarray]:
    before = cond_nconsts + body_nconsts
    consts, carry = args[cond_nconsts:before], args[before:]
    while bool(run.program(cond_jaxpr, [*args[:cond_nconsts], *carry])[0]):
        carry = run.program(body_jaxpr, [*consts, *carry])
    return carry


def _cond(run: _Evaluation, args: list[np.ndarray], *, branches: Sequence[ClosedJaxpr]) -> list[np.ndarray]:
    return run.program(branches[min(max(int(args[0]), 0), len(branches) - 1)], args[1:])


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
