"""A program evaluated equation by equation in float64, and how far rounding may move its results.

Every floating-point value is a float64 array, whatever dtype the program gives it. What rounding in those dtypes explains is measured: the
program runs again, several times, and every result that its dtype would round is changed at random by as much. A sum changes by the
rounding of its accumulator times the sum of its terms' absolute values. Values beyond a dtype's range become infinite; those below its
normal numbers may become zero. Where a comparison, an index or a conversion to integers depends on the last digits, such runs disagree, and
the bound covers both outcomes. Changes at random hardly ever make two values equal, as rounding does: where they differ by less than their
difference moves between runs, some runs compare them as equal, and every third run rounds each result to its dtype.

Roundings of a sum of equal terms, one after another, have one sign while its binade lasts, so that no change at random is as large. Where a
result seems to be wrong, runs that round also add up in that order what targets do: products, and what is scattered to an element. They
do not reductions, which every target adds up in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes import expansions
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var, called_program
from volta_fn.jit.eager import PIPELINE
from volta_fn.runtime.native_calls import silenced
from volta_fn.targets.numpy.backend import make_kernel

#: Primitives whose results are exact for operands of any dtype.
_EXACT = frozenset(
    {
        "reshape", "transpose", "broadcast_in_dim", "squeeze", "rev", "iota", "slice", "concatenate", "pad", "gather", "select_n", "clamp",
        "max", "min", "reduce_max", "reduce_min", "neg", "abs", "sign", "floor", "ceil", "round", "round_half_even", "rem", "sort", "top_k",
        "dynamic_slice", "dynamic_update_slice", "scatter", "scatter_min", "scatter_max", "cummax", "cummin", "stop_gradient",
        "optimization_barrier", "real", "imag", "conj", "complex", "reduce_window_max", "reduce_window_min", "bitcast_convert_type",
        "nextafter",
    }
)  # fmt: skip
#: Primitives that add up products of their operands. Those in the second set round each partial sum to their own dtype.
_SUMS = frozenset({"reduce_sum", "dot_general", "ragged_dot", "conv_general_dilated", "cumsum", "reduce_window_sum", "fft"})
_SUMS_IN_PLACE = frozenset({"scatter_add", "select_and_scatter_add", "select_and_gather_add"})
#: Those that add up one term after another.
_SUMS_IN_ORDER = frozenset({"dot_general", "scatter_add"})
#: The most products of a sum in order, which takes an operation of NumPy for each of its terms.
_MOST_IN_ORDER = 1 << 27
#: Primitives that multiply, or raise to a power: relative errors add up.
_PRODUCTS = frozenset({"reduce_prod", "cumprod", "scatter_mul", "integer_pow", "pow"})
#: Primitives that depend on the dtype of their operands.
_IN_OWN_DTYPE = frozenset({"bitcast_convert_type", "nextafter", "reduce_precision", "random_bits"})

#: Primitives whose floating-point results jump.
_STEPS = frozenset({"sign", "floor", "ceil", "round", "round_half_even"})

#: Primitives that compare two operands, or one with zero.
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sign"})

#: Primitives whose results are near those of a matrix that differs by its rounding from the operand (backward stability).
_FACTORS = frozenset({"cholesky", "eigh", "lu", "qr", "svd"})

#: How many times as far as it moved in the perturbed runs a result may be: functions err by some units in the last place, and the largest
#: of a few random changes falls short of the largest possible one.
_FACTOR = 16.0
#: Perturbed runs before a difference is believed: those of every program, then more and stronger ones where a result seems to be wrong.
_RUNS = ((1.0,) * 3, (1.0, 2.0, 4.0) * 4, (1.0, 2.0, 4.0, 8.0) * 12)

#: The scale of perturbed runs in which float32 is rounded as float64 is.
_ROUNDING_OF_FLOAT64 = 2.0**-29


class Difference(NamedTuple):
    """A result that differs from the float64 evaluation by more than rounding explains."""

    output: int
    element: tuple[int, ...]
    result: Any
    expected: Any
    bound: float
    count: int

    def __str__(self) -> str:
        where = f"output {self.output} element {self.element} is {self.result}"
        return f"{where} instead of {self.expected} ± {self.bound:.3g} ({self.count} elements)"


class Reference:
    """What a program should give for some arguments."""

    def __init__(self, closed: ClosedJaxpr, arguments: Sequence[np.ndarray], seed: int = 0) -> None:
        self._evaluator = Evaluator(np.random.default_rng(seed))
        self._closed, self._arguments = closed, arguments
        self.values = self._evaluator.run(closed, arguments)
        self._spreads = [np.zeros(value.shape) for value in self.values]
        self._level = 0

    def difference(self, results: Sequence[np.ndarray]) -> Difference | None:
        """Return how results differ from these by more than rounding explains."""
        while True:
            difference = None if self._level == 0 else self._compare(results)
            if self._level and (difference is None or self._level == len(_RUNS)):
                return difference
            self._evaluator.in_order = self._level > 0
            for number, scale in enumerate(_RUNS[self._level]):
                self._perturb(scale, number % 3 == 1)
            self._level += 1

    def _perturb(self, scale: float, rounds: bool) -> None:
        if rounds:
            scale = 1.0
        self._evaluator.scale, self._evaluator.rounds = scale, rounds
        for spread, other, value in zip(self._spreads, self._evaluator.run(self._closed, self._arguments), self.values, strict=True):
            np.fmax(spread, _distance(other, value) / scale, out=spread)

    def rounding_of_float64(self) -> list[np.ndarray]:
        """Return how far the rounding of float64 may move these results."""
        evaluator = Evaluator(np.random.default_rng(0))
        evaluator.scale = _ROUNDING_OF_FLOAT64
        runs = [evaluator.run(self._closed, self._arguments) for _ in _RUNS[0]]
        return [_FACTOR * np.max([_distance(x, value) for x in xs], 0) for value, *xs in zip(self.values, *runs, strict=True)]

    def _compare(self, results: Sequence[np.ndarray]) -> Difference | None:
        for number, (result, value, spread, aval) in enumerate(
            zip(results, self.values, self._spreads, self._closed.out_avals, strict=True)
        ):
            if (result.shape, result.dtype) != (value.shape, aval.dtype):
                return Difference(number, (), f"{result.dtype}{result.shape}", f"{aval}", 0.0, result.size)
            bound = _FACTOR * spread
            wrong = ~(_distance(wide(result), value) <= bound)
            if wrong.any():
                where = tuple(map(int, np.argwhere(wrong)[0]))
                return Difference(number, where, result[where], value[where], float(bound[where]), int(wrong.sum()))
        return None


def slope_difference(
    loss: ClosedJaxpr, arguments: Sequence[np.ndarray], positions: Sequence[int], reference: Reference, seed: int = 0
) -> str | None:
    """Return how a gradient differs from a loss's slope along a random direction, by differences in float64.

    One of several steps must give the same, up to the rounding of the loss and of the gradient, whose terms may cancel: long ones cross
    kinks and jumps, short ones cancel. Where the shortest step changes a rounded number, a comparison or an index, the slope is that of a
    jump, and says nothing. Nor does it where a clamped number stays equal to a bound that moves: there the gradient is zero by definition.
    """
    gradient = reference.values
    rng = np.random.default_rng(seed)
    evaluator = Evaluator(rng)
    directions = [rng.standard_normal(g.shape) for g in gradient]

    def loss_at(step: float) -> float:
        values = [wide(x) for x in arguments]
        for position, direction in zip(positions, directions, strict=True):
            values[position] = values[position] + step * direction
        return float(evaluator.run(loss, values)[0])

    steps = np.array([1e-4, 1e-5, 1e-6, 1e-7])
    slopes = np.array([(loss_at(h) - loss_at(-h)) / (2 * h) for h in steps])
    products = [float((g * d).sum()) for g, d in zip(gradient, directions, strict=True)]
    (left, before), (right, after) = [(loss_at(step), (evaluator.steps, evaluator.ties))[1] for step in (-steps[-1], steps[-1])]
    jumps = len(left) != len(right) or not all(map(np.array_equal, left, right))
    jumps = jumps or any(((x != y) & ~np.isnan(x) & ~np.isnan(y)).any() for x, y in zip(before, after, strict=True))
    value = loss_at(0.0)
    bound = 1e-6 * (abs(value) + sum([float(np.abs(g * d).sum()) for g, d in zip(gradient, directions, strict=True)]))
    bound += sum([float((spread * np.abs(d)).sum()) for spread, d in zip(reference.rounding_of_float64(), directions, strict=True)])
    evaluator.scale = _ROUNDING_OF_FLOAT64
    bound = bound + _FACTOR * max([abs(loss_at(0.0) - value) for _ in _RUNS[0]]) / steps
    if jumps or not np.isfinite([*slopes, *products]).all() or (np.abs(sum(products) - slopes) <= bound).any():
        return None
    return f"output: the slope is {slopes[-1]:.9g} along a direction in which the gradient gives {sum(products):.9g} ± {bound[-1]:.3g}"


def wide(value: Any) -> np.ndarray:
    """Return a value in float64 or complex128 if it is inexact."""
    array = np.asarray(value)
    return array.astype(_wide_dtype(array.dtype), copy=False)


def _wide_dtype(dtype: np.dtype) -> np.dtype:
    if dtype in dtypes.COMPLEX:
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if dtype in dtypes.INEXACT else dtype


def _step(dtype: np.dtype) -> float:
    """Return by how much one operation may change its result, relative to it.

    Operations on 16-bit floats are computed in float32 and rounded once, so that their error is half a unit in the last place, and no more.
    """
    return float(dtypes.finfo(dtype).eps) * (0.25 if dtype.itemsize == 2 else 1.0)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how far apart values are: infinite where only one is finite, or a number."""
    if a.dtype.kind == "V":  # the tangents of integers
        return np.zeros(a.shape)
    if a.dtype.kind in "biu":
        return np.abs(a.astype(np.float64) - b.astype(np.float64))
    with np.errstate(all="ignore"):
        difference = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


class Evaluator:
    """Evaluates programs in float64; with a `scale` above zero, with random roundings of that size.

    If it `rounds`, too, operations are changed at random as float32 would change them, and their results rounded to their dtypes.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.scale = 0.0
        self.rounds = False
        #: Whether runs that round add up one term after another where targets do.
        self.in_order = False
        #: The numbers that were clamped and equal to a bound in the last run, and NaN for the others.
        self.ties: list[np.ndarray] = []
        #: The results of step functions of inexact numbers in the last run.
        self.steps: list[np.ndarray] = []
        self._is_wide = False
        self._rng = rng
        #: By equation and how often it ran: the differences of compared operands without rounding, and how far rounding moved them.
        self._differences: dict[tuple[int, int], np.ndarray] = {}
        self._moves: dict[tuple[int, int], np.ndarray] = {}
        self._comparisons: dict[int, int] = {}
        self._kernels: dict[int, tuple[Equation, Callable[..., Any]]] = {}
        self._programs: dict[int, tuple[Equation, ClosedJaxpr | None]] = {}

    def run(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Return the results of a whole program."""
        self._comparisons.clear()
        self.steps, self.ties = [], []
        return self.program(closed, arguments)

    def program(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Return the results of a program, which may be part of another."""
        jaxpr = closed.jaxpr
        values: dict[Var, np.ndarray] = dict(zip(jaxpr.constvars, map(wide, closed.consts), strict=True))
        values.update(zip(jaxpr.invars, map(wide, arguments), strict=True))

        def read(atom: Any) -> np.ndarray:
            return wide(np.asarray(atom.val)) if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, self._equation(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Equation, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
        name = eqn.primitive.name
        if name in _CONTROL_FLOW:
            return _CONTROL_FLOW[name](self, operands, **eqn.params)
        if id(eqn) not in self._programs:
            self._programs[id(eqn)] = (eqn, called_program(eqn))
        called = self._programs[id(eqn)][1]
        if called is not None:
            if not (name.startswith("attention") and self.scale and not self.rounds):
                results = self.program(called, operands)
            else:  # routines may keep numbers on the way in float32, where they do not overflow
                self._is_wide = True
                results = self.program(called, operands)
                self._is_wide = False
                results = [self._in_range(x, v.aval.dtype) for x, v in zip(results, eqn.outvars, strict=True)]
            return self._with_rounded_sums(eqn, operands, results) if name == "attention_gradient" and self.scale else results
        if name == "convert_element_type":
            result = self._converted(eqn, operands[0])
            if operands[0].dtype.kind == "f" and result.dtype.kind in "iu":
                self.steps.append(result)
            return [result]
        if name == "clamp" and operands[1].dtype.kind == "f":
            low, x, high = operands
            self.ties.append(np.where((x == low) | (x == high), x, np.nan))
        if self.scale and name in _FACTORS and operands[0].size:
            size = np.abs(operands[0]).max((-2, -1), keepdims=True)
            error = np.broadcast_to(_step(eqn.invars[0].aval.dtype) * size, operands[0].shape)
            operands = [self._perturbed(operands[0], error, eqn.invars[0].aval.dtype), *operands[1:]]
        if self.in_order and self.rounds and name in _SUMS_IN_ORDER:
            results = self._in_order(eqn, operands)
        else:
            results = self._apply(eqn, self._with_ties(eqn, operands) if name in _COMPARISONS else operands)
        if any(x.dtype.kind in "fc" for x in operands):
            self.steps += [x for x in results if name in _STEPS or x.dtype.kind in "biu"]
        return [self._rounded(eqn, operands, result, v.aval) for result, v in zip(results, eqn.outvars, strict=True)]

    def _with_ties(self, eqn: Equation, operands: list[np.ndarray]) -> list[np.ndarray]:
        """Return the operands of a comparison; in perturbed runs some of those that rounding could make equal are."""
        first, second = operands if len(operands) == 2 else (operands[0], np.zeros_like(operands[0]))
        if first.dtype.kind not in "fc":
            return operands
        count = self._comparisons[id(eqn)] = self._comparisons.get(id(eqn), -1) + 1
        with np.errstate(all="ignore"):
            difference = first - second
        if not self.scale:
            self._differences[id(eqn), count] = difference
            return operands
        expected = self._differences.get((id(eqn), count))
        if expected is None or expected.shape != difference.shape:  # loops may end after another number of iterations
            return operands
        with np.errstate(all="ignore"):
            move = np.abs(difference - expected) / self.scale
        move = np.fmax(self._moves.get((id(eqn), count), 0.0), np.where(np.isfinite(move), move, 0.0))
        self._moves[id(eqn), count] = move
        tied = np.abs(difference) < move * self.scale * self._rng.random(difference.shape)
        return [np.where(tied, second, first), *operands[1:]]

    def _with_rounded_sums(self, eqn: Equation, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return gradients of attention in perturbed runs.

        GPUs take the sums of weights times their cotangents, per query, from the rounded result of attention, as FlashAttention does, so
        that the cotangents of a query's logits do not add up to zero. Keys that have much in common amplify that.
        """
        form, moved = eqn.params["form"], iter(eqn.params["moved"])
        q, k, v = [x.transpose(axes.order) for x, axes in zip(operands[:3], (form.q, form.k, form.v), strict=True)]
        out, cotangent = operands[-3].transpose(form.q.order), operands[-1].transpose(form.cotangent.order)
        shared = q.shape[-3] // max(1, k.shape[-3])
        keys, values = np.repeat(k, shared, -3), np.repeat(v, shared, -3)
        with np.errstate(all="ignore"):
            weights = expansions.attention_weights(q, keys, operands[3:-3], form).weights
            missing = (cotangent * (weights @ values - out)).sum(-1, keepdims=True) * form.scale
            slopes = weights * missing
            of_keys = (slopes.swapaxes(-1, -2) @ q).reshape(*k.shape[:-2], shared, *k.shape[-2:]).sum(-3)
        changes = [(slopes @ keys).transpose(form.q.inverse), of_keys.transpose(form.k.inverse), 0.0, 0.0]
        return [x + change for x, change in zip(results, [c for c, is_moved in zip(changes, moved, strict=False) if is_moved], strict=True)]

    def _apply(self, eqn: Equation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        in_own_dtype = eqn.primitive.name in _IN_OWN_DTYPE
        if in_own_dtype:
            operands = [x.astype(v.aval.dtype) for x, v in zip(operands, eqn.invars, strict=True)]
        if id(eqn) not in self._kernels:
            avals = tuple([ShapedArray(x.shape, x.dtype) for x in operands])
            params = eqn.params
            sums = "dtype" if eqn.primitive.name == "ragged_dot" else "preferred_element_type"
            if params.get(sums) is not None and not in_own_dtype:
                params = params | {sums: _wide_dtype(np.dtype(params[sums]))}
            self._kernels[id(eqn)] = (eqn, silenced(make_kernel(eqn.primitive, avals, params, PIPELINE)))
        results = self._kernels[id(eqn)][1](*operands)
        return [wide(result) for result in (results if eqn.primitive.multiple_results else (results,))]

    def _in_order(self, eqn: Equation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return sums whose terms are added one after another in the dtype of their accumulator."""
        aval = eqn.outvars[0].aval
        dtype = dtypes.accumulator(aval.dtype)
        narrow = [x.astype(dtype) if x.dtype.kind in "fc" else x for x in operands]
        if aval.dtype not in dtypes.INEXACT or any(x.dtype.kind not in "fc" for x in (narrow[0], narrow[-1])):
            return self._apply(eqn, operands)
        if eqn.primitive.name == "scatter_add":  # as NumPy's kernel does
            avals = tuple([ShapedArray(x.shape, x.dtype) for x in narrow])
            return [wide(silenced(make_kernel(eqn.primitive, avals, eqn.params, PIPELINE))(*narrow))]
        contracted, batch = eqn.params["dimension_numbers"]
        terms = math.prod([narrow[0].shape[i] for i in contracted[0]])
        if not aval.size * terms or aval.size * terms > _MOST_IN_ORDER:
            return self._apply(eqn, operands)
        left, right = [
            x.transpose([*b, *c, *[i for i in range(x.ndim) if i not in (*b, *c)]]).reshape(math.prod([x.shape[i] for i in b]), terms, -1)
            for x, c, b in zip(narrow, contracted, batch, strict=True)
        ]
        total = np.zeros((left.shape[0], left.shape[2], right.shape[2]), dtype)
        with np.errstate(all="ignore"):
            for k in range(terms):
                total += left[:, k, :, None] * right[:, k, None, :]
        return [wide(total.reshape(aval.shape))]

    def _converted(self, eqn: Equation, operand: np.ndarray) -> np.ndarray:
        before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
        if after not in dtypes.INEXACT:
            return self._apply(eqn, [operand])[0]
        with np.errstate(all="ignore"):
            if before not in dtypes.INEXACT:
                return wide(operand.astype(after))
            operand = operand if after in dtypes.COMPLEX else operand.real
            result = operand.astype(_wide_dtype(after), copy=False)
        if dtypes.finfo(before).eps <= dtypes.finfo(after).eps and before != after:
            result = self._perturbed(result, np.abs(result) * _step(after), after)
        return self._in_range(result, after)

    def _rounded(self, eqn: Equation, operands: Sequence[np.ndarray], result: np.ndarray, aval: Any) -> np.ndarray:
        """Return a result in the range of its dtype, and perturbed if its primitive rounds."""
        if aval.dtype not in dtypes.INEXACT:
            return result
        if self.scale and eqn.primitive.name not in _EXACT:
            with np.errstate(all="ignore"):
                result = self._perturbed(result, self._error(eqn, operands, result, aval.dtype), aval.dtype)
        return self._in_range(result, aval.dtype)

    def _error(self, eqn: Equation, operands: Sequence[np.ndarray], result: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return by how much rounding may change a result."""
        name = eqn.primitive.name
        error = _step(dtype) * np.abs(result)
        if name == "reduce_precision":
            return np.maximum(error, 2.0 ** -eqn.params["mantissa_bits"] * np.abs(result))
        if name in _SUMS or name in _SUMS_IN_PLACE:
            accumulator = dtype if name in _SUMS_IN_PLACE else dtypes.accumulator(dtype)
            terms = self._sum_of_sizes(eqn, operands)
            if name == "conv_general_dilated":  # fast algorithms err relative to the largest sum of a neighbourhood
                terms = np.broadcast_to(4 * np.max(terms, initial=0.0), terms.shape)
            return error + float(dtypes.finfo(accumulator).eps) * np.abs(terms)
        if name in _FACTORS and result.size:  # vectors are orthogonal up to the rounding of their length
            axes = (-2, -1) if result.ndim == operands[0].ndim else -1
            return np.broadcast_to(np.max(error, axes, keepdims=True), error.shape)
        if name in _PRODUCTS:
            return error * max(1.0, (operands[0].size / max(1, result.size)) ** 0.5, abs(eqn.params.get("y", 1)))
        if name in ("logaddexp", "cumlogsumexp"):
            largest = max([float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in operands])
            return error + float(dtypes.finfo(dtype).eps) * (1 + largest)
        return error

    def _sum_of_sizes(self, eqn: Equation, operands: Sequence[np.ndarray]) -> np.ndarray:
        """Return the sums of the absolute values of what an equation adds up."""
        if eqn.primitive.name == "fft":  # whose terms have phases
            shape, axis = eqn.outvars[0].aval.shape, eqn.params["axis"]
            count = shape[axis] if eqn.params["kind"] in ("IFFT", "IRFFT") else 1
            return np.broadcast_to(np.abs(operands[0]).sum(axis, keepdims=True) / max(1, count), shape)
        return self._apply(eqn, [np.abs(x).astype(x.dtype) if x.dtype.kind in "fc" else x for x in operands])[0]

    def _perturbed(self, result: np.ndarray, error: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if not self.scale or not result.size:
            return result
        with np.errstate(all="ignore"):
            if self.rounds:
                error = error * (_step(np.dtype(np.float32)) / _step(dtype) if dtype.itemsize == 2 else 1.0)
            step = self._rng.uniform(0.5, 1.0, result.shape) * self._rng.choice((-self.scale, self.scale), result.shape)
            if result.dtype.kind == "c":
                step = step * np.exp(1j * self._rng.uniform(0.0, np.pi, result.shape))
            result = np.where(np.isfinite(result), result + step * np.where(np.isfinite(error), error, 0.0), result)
            return wide(result.astype(dtype)) if self.rounds else result

    def _in_range(self, result: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if result.dtype.kind == "c" or not result.size or (self._is_wide and dtype.itemsize == 2):
            return result
        info = dtypes.finfo(dtype)
        size = np.abs(result)
        with np.errstate(all="ignore"):
            if not size.max() <= float(info.max):
                result = np.where(size > float(info.max) * (1 + float(info.eps) / 4), np.copysign(np.inf, result), result)
            tiny = float(info.tiny)
            if self.scale and ((size < tiny) & (size > 0)).any():
                small = (size < tiny) & (size > 0)
                step = tiny if dtype != np.float16 else float(info.smallest_subnormal)
                moved = result + step * self._rng.uniform(-1.0, 1.0, result.shape)
                result = np.where(small, np.where(self._rng.random(result.shape) < 0.5, 0.0 if step == tiny else moved, moved), result)
        return result


def _scan(
    evaluator: Evaluator,
    operands: Sequence[np.ndarray],
    *,
    jaxpr: ClosedJaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
) -> list[np.ndarray]:
    consts, carry, rows = operands[:num_consts], [*operands[num_consts : num_consts + num_carry]], operands[num_consts + num_carry :]
    stacked = [np.empty((length, *a.shape), _wide_dtype(a.dtype)) for a in jaxpr.out_avals[num_carry:]]
    for step in reversed(range(length)) if reverse else range(length):
        results = evaluator.program(jaxpr, [*consts, *carry, *[row[step] for row in rows]])
        carry = results[:num_carry]
        for stack, value in zip(stacked, results[num_carry:], strict=True):
            stack[step] = value
    return [*carry, *stacked]


def _while(
    evaluator: Evaluator,
    operands: Sequence[np.ndarray],
    *,
    cond_jaxpr: ClosedJaxpr,
    body_jaxpr: ClosedJaxpr,
    cond_nconsts: int,
    body_nconsts: int,
) -> list[np.ndarray]:
    first = cond_nconsts + body_nconsts
    cond_consts, body_consts, carry = operands[:cond_nconsts], operands[cond_nconsts:first], [*operands[first:]]
    while bool(evaluator.program(cond_jaxpr, [*cond_consts, *carry])[0]):
        carry = evaluator.program(body_jaxpr, [*body_consts, *carry])
    return carry


def _cond(evaluator: Evaluator, operands: Sequence[np.ndarray], *, branches: Sequence[ClosedJaxpr]) -> list[np.ndarray]:
    index, *rest = operands
    return evaluator.program(branches[min(max(int(index), 0), len(branches) - 1)], rest)


_CONTROL_FLOW: dict[str, Callable[..., list[np.ndarray]]] = {"scan": _scan, "while": _while, "cond": _cond}
