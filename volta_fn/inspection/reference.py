"""Equations in 64-bit floats, and how far from them a narrower dtype may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.pipeline import nested_programs
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program
from volta_fn.jit.eager import PIPELINE
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.runtime.native_calls import silenced
from volta_fn.targets.numpy.backend import make_kernel

# The effect of rounding is measured by rounding the operands: at random by one unit in the last place, several times. A result that
# differs by many times the largest such change is wrong. Sums lose digits to cancellation, so their terms count with their absolute
# values.

#: Primitives whose results depend on the dtype itself, or that are exact in it; they are computed in it.
IN_OWN_DTYPE = frozenset(
    {
        "convert_element_type", "bitcast_convert_type", "nextafter", "reduce_precision", "iota", "random_bits", "random_seed",
        "random_wrap", "random_unwrap", "rng_uniform",
    }
)  # fmt: skip
#: Primitives that add up products of their operands.
SUMS = frozenset(
    {"reduce_sum", "dot_general", "conv_general_dilated", "cumsum", "reduce_window_sum", "add", "sub", "scatter_add", "fft",
     "select_and_scatter_add", "add_any"}
)  # fmt: skip
#: The number of roundings that are tried, and the tolerance as a multiple of the largest change.
_TRIES, _FACTOR = 3, 32.0


class Expected(NamedTuple):
    """A reference result and its tolerance, element by element.

    `tolerance` is None for results that are exact.
    """

    values: np.ndarray
    tolerance: np.ndarray | None


def expected(eqn: Equation, operands: Sequence[np.ndarray]) -> list[Expected]:
    """Return an equation's results in 64 bits, with tolerances, for these operands.

    Raises whatever NumPy's function raises if there is none for such operands.
    """
    native = evaluate(eqn, operands, [v.aval.dtype for v in eqn.invars])
    inexact = [v.aval.dtype in dtypes.INEXACT for v in eqn.outvars]
    if not any(inexact) or eqn.primitive.name in IN_OWN_DTYPE:
        return [
            Expected(np.asarray(value), _one_unit(np.asarray(value)) if rounded else None)
            for value, rounded in zip(native, inexact, strict=True)
        ]
    wide = [wide_dtype(v.aval.dtype) for v in eqn.invars]
    values = evaluate(eqn, operands, wide)
    spread = _sensitivity(eqn, operands, wide, values)
    results = []
    for native_value, value, v, change, rounded in zip(native, values, eqn.outvars, spread, inexact, strict=True):
        if not rounded:
            results.append(Expected(np.asarray(native_value), None))
            continue
        step = epsilon(v.aval.dtype, operands)
        with np.errstate(all="ignore"):
            tolerance = _FACTOR * (change + step * np.abs(value)) + 4 * smallest(v.aval.dtype)
        results.append(Expected(np.asarray(value), np.asarray(tolerance)))
    return results


def evaluate(eqn: Equation, operands: Sequence[np.ndarray], result_dtypes: Sequence[np.dtype]) -> list[np.ndarray]:
    """Return the results of an equation's NumPy function for operands of these dtypes."""
    arrays = [np.asarray(x).astype(dtype, copy=False) for x, dtype in zip(operands, result_dtypes, strict=True)]
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in arrays])
    params = eqn.params
    if params.get("preferred_element_type") is not None and any(d in (np.float64, np.complex128) for d in result_dtypes):
        params = params | {"preferred_element_type": None}
    compute = silenced(make_kernel(eqn.primitive, avals, params, PIPELINE))
    results = compute(*arrays)
    return [np.asarray(r) for r in (results if eqn.primitive.multiple_results else (results,))]


def initial_values(program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> Values:
    """Return the values of a program's constants and inputs."""
    jaxpr = program.jaxpr
    constants: Any = program.consts
    return dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(host_buffer, constants), *arguments), strict=True))


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of 64-bit floats for inexact numbers; other dtypes stay."""
    if dtype in dtypes.COMPLEX:
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if dtype in dtypes.INEXACT else dtype


def _sensitivity(eqn: Equation, operands: Sequence[np.ndarray], wide: Sequence[np.dtype], values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the largest changes of the results when the operands are rounded."""
    rng = np.random.default_rng(0)
    changes = [np.zeros(value.shape) for value in values]
    with np.errstate(all="ignore"):
        for _ in range(_TRIES):
            moved = [_perturb_operand(x, dtype, rng) for x, dtype in zip(operands, wide, strict=True)]
            for change, other, value in zip(changes, evaluate(eqn, moved, wide), values, strict=True):
                if other.dtype in dtypes.INEXACT:
                    np.fmax(change, np.abs(other - value), out=change)
        if eqn.primitive.name in SUMS:
            absolute = absolute_operands(eqn.primitive.name, operands, wide)
            step = max([epsilon(x.dtype, operands) for x in operands if x.dtype in dtypes.INEXACT], default=0.0)
            for change, total in zip(changes, evaluate(eqn, absolute, wide), strict=True):
                change += step * np.abs(total)
    return [np.where(np.isfinite(change), change, 0.0) for change in changes]


def absolute_operands(name: str, operands: Sequence[np.ndarray], wide: Sequence[np.dtype]) -> list[np.ndarray]:
    """Return operands for which a sum adds up absolute values."""
    absolute = [np.abs(x.astype(d)) if d in dtypes.INEXACT and x.dtype.kind != "c" else x for x, d in zip(operands, wide, strict=True)]
    if name == "sub":
        absolute[1] = -absolute[1]
    return absolute


def _perturb_operand(x: np.ndarray, dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if dtype not in dtypes.INEXACT:
        return x
    return x.astype(dtype) * (1 + epsilon(x.dtype, [x]) * rng.choice([-1.0, 1.0], x.shape))


def epsilon(dtype: np.dtype, operands: Sequence[np.ndarray]) -> float:
    """Return the rounding of the coarsest dtype that is involved."""
    kinds = [d for d in (dtype, *[x.dtype for x in operands]) if d in dtypes.INEXACT]
    return max([float(dtypes.finfo(d).eps) for d in kinds], default=0.0)


def smallest(dtype: np.dtype) -> float:
    """Return the smallest normal number of a dtype."""
    return float(dtypes.finfo(dtype).tiny)


def _one_unit(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = np.abs(values.astype(wide_dtype(values.dtype)))
        return np.asarray(np.where(np.isfinite(wide), wide, 0.0) * float(dtypes.finfo(values.dtype).eps) + smallest(values.dtype))


def excess(result: np.ndarray, expected: Expected) -> tuple[int, float] | None:
    """Return the position and size of the largest error; None if the result is right.

    The size is a multiple of the tolerance.
    """
    if not result.size:
        return None
    if expected.tolerance is None:
        wrong = result != expected.values
        return (int(np.argmax(wrong)), float("inf")) if np.any(wrong) else None
    kind = np.complex128 if result.dtype in dtypes.COMPLEX else np.float64
    with np.errstate(all="ignore"):
        mine, right = result.astype(kind), expected.values.astype(kind)
        off = np.abs(mine - right) / expected.tolerance
        same = (mine == right) | (np.isnan(mine) & np.isnan(right))
        if result.dtype in dtypes.INEXACT:
            # It overflows the dtype, or may overflow when it is rounded.
            overflows = ~(np.abs(right) + expected.tolerance < float(dtypes.finfo(result.dtype).max))
            same |= ~np.isfinite(mine) & overflows
    off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
    worst = int(np.argmax(off))
    return (worst, float(off.reshape(-1)[worst])) if off.reshape(-1)[worst] > 1 else None


# Programs in 64-bit floats, and how far from them narrower dtypes may be.
#
# A program is evaluated once as it is, and several times with every value rounded at random by one unit in its last digit (Monte Carlo
# arithmetic: D. S. Parker, 1997). Results of compiled programs round elsewhere, but change about as much.

#: The number of evaluations with rounded values, and the tolerance as a multiple of the largest change.
_WIDE_TRIES, _WIDE_FACTOR = 4, 32.0

#: Errors of NumPy's functions that do not support 64 bits.
_REFUSALS = (TypeError, ValueError, NotImplementedError, np.linalg.LinAlgError)

Values = dict[Var, np.ndarray]


def expected_outputs(program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[Expected]:
    """Return the outputs of a program in 64 bits, with tolerances."""
    runs = [_Evaluation(rng).program(program, arguments) for rng in _generators()]
    return [_expected(v.aval.dtype, [run[n] for run in runs]) for n, v in enumerate(program.jaxpr.outvars)]


def expected_values(equations: Sequence[Equation], values: Mapping[Var, np.ndarray], results: Iterable[Var]) -> list[Expected]:
    """Return results of equations in 64 bits, with tolerances."""
    runs = [_Evaluation(rng).equations(equations, values) for rng in _generators()]
    return [_expected(v.aval.dtype, [run[v] for run in runs]) for v in results]


def _generators() -> list[np.random.Generator | None]:
    return [None, *[np.random.default_rng(seed) for seed in range(_WIDE_TRIES)]]


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
        tolerance = _WIDE_FACTOR * (change + epsilon(dtype, ()) * np.abs(exact)) + 4 * smallest(dtype)
    return Expected(exact, np.where(np.isnan(tolerance), np.inf, tolerance))


class _Evaluation:
    """Evaluates programs in NumPy: floats in 64 bits, other numbers in their dtypes.

    With a generator, each value is rounded at random, as one of its own dtype would be.
    """

    def __init__(self, rng: np.random.Generator | None) -> None:
        self.rng = rng

    def program(self, program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = self.equations(program.eqns, initial_values(program, arguments))
        return [self._read(results, v) for v in program.outvars]

    def equations(self, equations: Sequence[Equation], values: Mapping[Var, np.ndarray]) -> Values:
        """Return the values that equations compute, and those that they read."""
        env: Values = {}
        for var, value in values.items():
            env[var] = self._perturb(np.asarray(value).reshape(var.aval.shape), var.aval.dtype)
        for eqn in equations:
            results = self._equation(eqn, [self._read(env, v) for v in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return env

    def _read(self, values: Values, atom: Atom) -> np.ndarray:
        if isinstance(atom, Literal):
            value = host_buffer(atom.val)
            return value.astype(wide_dtype(value.dtype), copy=False)
        return values[atom]

    def _perturb(self, value: np.ndarray, dtype: np.dtype, absolute: np.ndarray | None = None) -> np.ndarray:
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
        if programs := nested_programs(eqn):
            with np.errstate(all="ignore"):
                return control_flow(eqn, programs, operands, self.program, wide_dtype)
        values, absolute = self._primitive(eqn, operands)
        return [self._perturb(np.asarray(x), v.aval.dtype, a) for x, v, a in zip(values, eqn.outvars, absolute, strict=True)]

    def _primitive(self, eqn: Equation, operands: list[np.ndarray]) -> tuple[list[np.ndarray], Sequence[np.ndarray | None]]:
        """Return an equation's results, and for sums the sums of absolute values."""
        name, operand_dtypes = eqn.primitive.name, [v.aval.dtype for v in eqn.invars]
        none = [None] * len(eqn.outvars)
        inexact = [d in dtypes.INEXACT for d in (*operand_dtypes, *[v.aval.dtype for v in eqn.outvars])]
        if name == "convert_element_type" and all(inexact):
            return [_convert(operands[0], eqn.outvars[0].aval.dtype)], none
        wide = [wide_dtype(d) for d in operand_dtypes]
        if name not in IN_OWN_DTYPE and any(inexact[len(operand_dtypes) :]):
            try:
                values = evaluate(eqn, operands, wide)
                absolute = none if self.rng is None or name not in SUMS else evaluate(eqn, absolute_operands(name, operands, wide), wide)
                return values, absolute
            except _REFUSALS:
                pass
        with np.errstate(all="ignore"):
            return evaluate(eqn, [x.astype(d) for x, d in zip(operands, operand_dtypes, strict=True)], operand_dtypes), none


def _convert(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype in dtypes.COMPLEX or value.dtype.kind != "c":
        return value.astype(wide_dtype(dtype))
    return value.real


def control_flow(
    eqn: Equation,
    programs: Sequence[Any],
    operands: list[np.ndarray],
    run: Callable[[Any, list[np.ndarray]], list[np.ndarray]],
    stacked_dtype: Callable[[np.dtype], np.dtype],
) -> list[np.ndarray]:
    """Return the results of a scan, a while loop or a conditional.

    `run` runs one of its programs; `stacked_dtype` returns the dtype of a scan's stacked results, given their own.
    """
    params = eqn.params
    if eqn.primitive is cond_p:
        return run(programs[min(max(int(operands[0]), 0), len(programs) - 1)], operands[1:])
    if eqn.primitive is while_p:
        condition, body = programs
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = operands[second:]
        while bool(run(condition, [*operands[:first], *carry])[0]):
            carry = run(body, [*operands[first:second], *carry])
        return carry
    (body,), length, consts, count = programs, params["length"], params["num_consts"], params["num_carry"]
    carry, xs = operands[consts : consts + count], operands[consts + count :]
    ys = [np.zeros(v.aval.shape, stacked_dtype(v.aval.dtype)) for v in eqn.outvars[count:]]
    for number in reversed(range(length)) if params["reverse"] else range(length):
        outs = run(body, [*operands[:consts], *carry, *[x[number] for x in xs]])
        carry = outs[:count]
        for stacked, y in zip(ys, outs[count:], strict=True):
            stacked[number] = y
    return [*carry, *ys]
