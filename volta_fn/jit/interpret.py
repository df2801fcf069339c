"""Run programs equation by equation, as `debug_nans` asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import current_position, eval_jaxpr, in_backward_pass
from volta_fn.errors import NonFiniteError
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.source import Position, SourceLocation, user_code_position

# The message of a NaN or an infinity: where, from what, and what to do.

#: Results that became infinite where no operand was: the buffer, and the primitive with the user's line.
_born: deque[tuple[Any, str]] = deque(maxlen=64)

#: What to do, by primitive. `_ANY` is for all others.
REMEDIES = {
    "log": "Keep the operand positive: log(x + eps), log(maximum(x, eps)), or log1p for arguments near 1.",
    "log1p": "Keep the operand above -1, as in log1p(maximum(x, -1 + eps)).",
    "sqrt": "Keep the operand positive: sqrt(x + eps); the slope at 0 is infinite.",
    "rsqrt": "Keep the operand positive: rsqrt(x + eps).",
    "cbrt": "The slope at 0 is infinite: add a small number to the operand.",
    "div": "Keep the divisor from 0: x / (y + eps), or x / where(y == 0, 1, y) with a where outside as well.",
    "rem": "Keep the divisor from 0, and the dividend finite.",
    "pow": "Keep the base positive; a negative base has no real power of a fraction, and 0 none of a negative number.",
    "exp": "Subtract the maximum first, as nn.softmax and nn.logsumexp do, or clip the operand.",
    "exp2": "Subtract the maximum first, or clip the operand.",
    "expm1": "Clip the operand.",
    "sub": "Infinity minus infinity is NaN: look for the overflow, or the mask of -inf, before this line. A row whose every element is "
    "masked has no softmax: mask with a large negative number, or leave the row out.",
    "add": "The sum overflows, or adds infinities of both signs: use a wider dtype, or scale the operands.",
    "mul": "0 times infinity is NaN, and large factors overflow: look for the infinite operand, or use a wider dtype. In a gradient, put "
    "where on the operand of the function with the infinite slope, not on its result.",
    "dot_general": "The sum of products overflows: scale the operands, or accumulate with preferred_element_type=float32.",
    "reduce_sum": "The sum overflows, or adds infinities of both signs: use a wider dtype, or scale the operands.",
    "reduce_prod": "The product overflows: add logarithms instead.",
    "cumsum": "The sum overflows: use a wider dtype.",
    "acos": "Keep the operand between -1 and 1 with clip; the slope at the ends is infinite.",
    "asin": "Keep the operand between -1 and 1 with clip; the slope at the ends is infinite.",
    "atanh": "Keep the operand inside of (-1, 1) with clip.",
    "acosh": "Keep the operand at 1 or above with maximum.",
    "gather": "An index lies outside of the array, and what it reads there is filled with NaN: check it with debug.indices() or clip it.",
    "convert_element_type": "The number is larger than the new dtype holds: scale it, or use bfloat16 or float32.",
    "cholesky": "The matrix is not positive definite: add a small multiple of the identity.",
    "triangular_solve": "The matrix is singular: a diagonal element is 0.",
    "integer_pow": "The power overflows, or is that of 0 with a negative exponent: use a wider dtype, or keep the base from 0.",
    "tan": "The operand is at a pole, or infinite.",
    "sin": "The sine of an infinite number is NaN: look for the overflow before this line.",
    "cos": "The cosine of an infinite number is NaN: look for the overflow before this line.",
    "lgamma": "The operand is infinite, or at a pole: 0 or a negative integer.",
    "digamma": "The operand is at a pole: 0 or a negative integer.",
    "erf_inv": "Keep the operand inside of (-1, 1) with clip.",
    "logistic": "Look for the overflow before this line.",
}
_ANY = "Look at the operands' ranges; debug.print shows values in programs, and experimental.checkify returns such errors as values."
_CARRIED = "The operand has it already: it is an argument or a constant, or the check was off when it was computed."


def note_infinite(primitive: Primitive, operands: Sequence[Any], result: Any) -> None:
    """Remember where a result became infinite, for a NaN that comes of it."""
    source = next((origin for buffer in operands for infinite, origin in _born if infinite is buffer), None)
    if source is None:
        position = current_position.get() or user_code_position()
        source = f"{primitive}{'' if position is None else f' at {SourceLocation.of(position)}'}"
    _born.append((result, source))


def _origin(operand: Any) -> str:
    source = next((origin for infinite, origin in _born if infinite is operand), None)
    return "" if source is None else f"; it became infinite in {source}"


def refused(name: str, primitive: Primitive, operands: Sequence[Any], on_host: Callable[[Any], Any], mask: np.ndarray) -> NonFiniteError:
    """Make the error of a result that is refused; `mask` marks its bad elements.

    `operands` are the buffers that it was computed from, which `on_host` reads.
    """
    values = [np.asarray(on_host(buffer)) for buffer in operands]
    first = tuple(map(int, np.unravel_index(int(np.argmax(mask)), mask.shape)))
    count = int(mask.sum())
    where = "" if not mask.shape else f" in {count:,} of {mask.size:,} elements of the result, first at index {first}"
    spread = [f"{_range(i, x)}{_origin(buffer)}" for i, (x, buffer) in enumerate(zip(values, operands, strict=True))]
    has_it = any(_has(name, x) for x in values)
    details = [
        *[
            f"in iteration {i.number}{'' if i.length is None else f' of {i.length}'} of a {i.primitive}{_at(i.position)}"
            for i in iterations.get()
        ],
        *(
            ["in the backward pass: the line below is that of the forward computation whose gradient this is, or of a rule for it"]
            if in_backward_pass.get()
            else []
        ),
        *spread,
        _CARRIED if has_it else REMEDIES.get(primitive.name, _ANY),
    ]
    error = NonFiniteError(f"invalid value ({name}) encountered in {primitive}{where}\n  " + "\n  ".join(details))
    error.index, error.shape = first, mask.shape
    if (position := current_position.get()) is not None:
        error.location = SourceLocation.of(position)
    return error


def _at(position: Any) -> str:
    return "" if position is None else f" at {SourceLocation.of(position)}"


def _has(name: str, values: np.ndarray) -> bool:
    if values.dtype not in dtypes.INEXACT:
        return False
    return bool((np.isnan(values) if name == "nan" else np.isinf(values)).any())


def _range(number: int, values: np.ndarray) -> str:
    """Describe an operand: type, range of finite numbers, how many others there are."""
    title = f"operand {number}: {values.dtype.name}[{','.join(map(str, values.shape))}]"
    if not values.size:
        return f"{title}, empty"
    if values.dtype.kind == "c":
        return f"{title} with absolute values {_range(0, np.abs(values)).partition('] ')[2]}"
    if values.dtype not in dtypes.INEXACT:
        return f"{title} from {values.min()} to {values.max()}"
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    spread = f"from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "without a finite element"
    others = [f"{count:,} {label}" for label, count in (("NaN", np.isnan(wide).sum()), ("infinite", np.isinf(wide).sum())) if count]
    return ", ".join([f"{title} {spread}", *others])


# The interpreter, which runs programs equation by equation for `debug_nans`.
#
# `structured` gives the function of arrays for a primitive that holds programs. `iterations` are the iterations of loops that it is in.


class Iteration(NamedTuple):
    """An iteration of a loop: primitive, number, how many there are, user's line.

    `length` is None for a `while`.
    """

    primitive: str
    number: int
    length: int | None
    position: Position | None


#: The iterations that run now, from the outermost loop to the innermost.
iterations: ContextVar[tuple[Iteration, ...]] = ContextVar("iterations", default=())


@contextmanager
def _within(iteration: Iteration) -> Iterator[None]:
    token = iterations.set((*iterations.get(), iteration))
    try:
        yield
    finally:
        iterations.reset(token)


#: Runs a program on arrays: ``(program, arrays) -> arrays``.
Runner = Callable[[ClosedJaxpr, Sequence[Array]], Sequence[Array]]


def structured(primitive: Primitive, params: dict[str, Any], device: Device) -> Callable[..., Any] | None:
    """Return how a primitive with programs runs equation by equation; None for others."""
    return structured_by(lambda program, args: eval_jaxpr(program, *args), primitive, params, device)


def structured_by(
    run: Runner, primitive: Primitive, params: dict[str, Any], device: Device, position: Position | None = None
) -> Callable[..., Any] | None:
    """Return how a primitive runs if `run` runs its programs; None if it has none.

    `position` is the user's line; by default the one that runs.
    """
    if primitive in _LOOPS:
        return lambda *args: _LOOPS[primitive](
            _Loop(run, device, position or current_position.get() or user_code_position()), args, **params
        )
    if primitive.call_param is not None:
        program: ClosedJaxpr = params[primitive.call_param]
        return lambda *args: tuple(run(program, args))
    return None


class _Loop(NamedTuple):
    """How programs run, where, and for which line of the user."""

    run: Runner
    device: Device
    position: Position | None


def _scan(
    loop: _Loop, args: Sequence[Array], *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int
) -> tuple[Array, ...]:
    consts, carry, xs = args[:num_consts], [*args[num_consts : num_consts + num_carry]], args[num_consts + num_carry :]
    rows = [np.asarray(x) for x in xs]
    ys: list[list[Array]] = [[] for _ in jaxpr.out_avals[num_carry:]]
    for number in reversed(range(length)) if reverse else range(length):
        with _within(Iteration("scan", number, length, loop.position)):
            slices = [from_host(row[number], x.aval.weak_type, loop.device) for row, x in zip(rows, xs, strict=True)]
            outs = loop.run(jaxpr, [*consts, *carry, *slices])
        carry = [*outs[:num_carry]]
        for stacked, y in zip(ys, outs[num_carry:], strict=True):
            stacked.append(y)
    return (*carry, *[_stacked(s, a, length, reverse, loop.device) for s, a in zip(ys, jaxpr.out_avals[num_carry:], strict=True)])


def _stacked(rows: Sequence[Array], aval: ShapedArray, length: int, reverse: bool, device: Device) -> Array:
    in_order = rows[::-1] if reverse else rows
    values = np.stack([np.asarray(y) for y in in_order]) if in_order else np.empty((0, *aval.shape), aval.dtype)
    return from_host(values.reshape(length, *aval.shape), aval.weak_type, device)


def _while(
    loop: _Loop, args: Sequence[Array], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int
) -> tuple[Array, ...]:
    carry_start = cond_nconsts + body_nconsts
    cond_consts, body_consts, carry = args[:cond_nconsts], args[cond_nconsts:carry_start], [*args[carry_start:]]
    number = 0
    while bool(loop.run(cond_jaxpr, [*cond_consts, *carry])[0]):
        with _within(Iteration("while_loop", number, None, loop.position)):
            carry = [*loop.run(body_jaxpr, [*body_consts, *carry])]
        number += 1
    return tuple(carry)


def _cond(loop: _Loop, args: Sequence[Array], *, branches: Sequence[ClosedJaxpr]) -> tuple[Array, ...]:
    index, *operands = args
    return tuple(loop.run(branches[min(max(int(index), 0), len(branches) - 1)], operands))


_LOOPS: dict[Primitive, Callable[..., tuple[Array, ...]]] = {scan_p: _scan, while_p: _while, cond_p: _cond}
