"""`check`, and the checks of primitives, where an error may begin."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentTypeError, CheckError, DTypeError
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import broadcast
from volta_fn.source import SourceLocation, user_location
from volta_fn.transforms.vmap import stack_at


class ErrorCategory(enum.Enum):
    """What a check looks for."""

    USER = "user"
    NAN = "nan"
    DIV = "div"
    INDEX = "index"


user_checks = frozenset([ErrorCategory.USER])
nan_checks = frozenset([ErrorCategory.NAN])
div_checks = frozenset([ErrorCategory.DIV])
index_checks = frozenset([ErrorCategory.INDEX])
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


class Message(NamedTuple):
    """A message, the structure of its arguments, and where it comes from.

    `primitive` is that whose result or operands are wrong, and `location` the user's line that it comes from.
    """

    template: str
    structure: Any = None
    primitive: str = "check"
    location: SourceLocation | None = None

    @property
    def origin(self) -> str:
        """The primitive and the user's line, as a line of text."""
        return "" if self.location is None else f"\n  in {self.primitive} at {self.location}"

    def text(self, values: Sequence[Any]) -> str:
        """Return the message with these values, NumPy arrays."""
        if self.structure is None:
            return self.template
        args, kwargs = tree.unflatten(self.structure, [np.asarray(v)[()] for v in values])
        return self.template.format(*args, **kwargs)


def _evaluate(pred: np.ndarray, *values: np.ndarray, message: Message, debug: bool) -> tuple[()]:
    failed = np.flatnonzero(~np.asarray(pred))
    if failed.size and not debug:
        index = np.unravel_index(failed[0], np.shape(pred))
        error = CheckError(message.text([v[index] for v in values]))
        error.location = message.location or error.location  # of the check, not of the call of a program that holds it
        raise error
    return ()


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[tuple[()], tuple[()]]:
    bind(check_p, *primals, **params)
    return (), ()


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[tuple[()], tuple[()]]:
    bind(check_p, *[stack_at(a, d, 0, axis.size) for a, d in zip(args, dims, strict=True)], **params)
    return (), ()


#: Operands: what must hold (of any shape, by `vmap`), and values for the message, with the same leading dimensions.
check_p = Primitive(
    "check",
    lambda pred, *values, message, debug: (),
    evaluate=_evaluate,
    jvp=_jvp,
    batch=_batch,
    multiple_results=True,
    effectful=True,
)


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Check that `pred` holds; under `checkify` a failure becomes its error.

    Outside of `checkify` a failure raises `CheckError`, when the program runs.

    Args:
        pred: a boolean scalar.
        msg: a message with fields for `fmt_args` and `fmt_kwargs`, which are pytrees of arrays.
        debug: check under `checkify` alone.

    >>> import volta_fn as vf
    >>> vf.experimental.checkify.check(False, "bad value {}", vf.numpy.array(3))
    Traceback (most recent call last):
    volta_fn.errors.CheckError: bad value 3 (`check` failed)...
    """
    value = as_value(pred)
    if value.dtype != np.bool_ or value.shape:
        raise DTypeError(f"check needs a boolean scalar, got {value.aval}")
    leaves, structure = tree.flatten((fmt_args, fmt_kwargs))
    for leaf in leaves:
        if isinstance(leaf, str):
            raise ArgumentTypeError(f"check formats arrays, got {leaf!r:.80}; write it into the message")
    message = Message(f"{msg} (`check` failed)", structure, location=user_location())
    bind(check_p, value, *map(as_value, leaves), message=message, debug=debug)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """Do what `check` does under `checkify`, and nothing outside."""
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


class Failure(NamedTuple):
    """Whether a check failed, and the values for its message."""

    failed: Array
    values: list[Array]


class Check(NamedTuple):
    """A check of an equation: its message, the types of its values, how it is made."""

    message: Message
    avals: list[ShapedArray]
    run: Callable[[Sequence[Array], Sequence[Array]], Failure]


def checks_of(eqn: Equation, errors: frozenset[ErrorCategory]) -> list[Check]:
    """Return the checks of an equation that these categories ask for."""
    if eqn.primitive is check_p:
        return [_user_check(eqn)] if ErrorCategory.USER in errors else []
    if eqn.primitive.holds_programs or eqn.primitive.call_param is not None:
        return []
    found: list[Check] = []
    name = eqn.primitive.name
    if ErrorCategory.DIV in errors and name in ("div", "rem"):
        found.append(Check(Message("division by zero", None, name, eqn.source), [], lambda ins, outs: Failure((ins[1] == 0).any(), [])))
    if ErrorCategory.INDEX in errors and name in _STARTS:
        found.append(_index_check(eqn))
    if ErrorCategory.NAN in errors and any(v.aval.dtype in dtypes.INEXACT for v in eqn.outvars):
        message = Message(f"nan generated by primitive: {name}.", None, name, eqn.source)
        found.append(Check(message, [], lambda ins, outs: Failure(_any_nan(outs), [])))
    return found


def _any_nan(values: Sequence[Array]) -> Array:
    return functools.reduce(operator.or_, [(v != v).any() for v in values if v.dtype in dtypes.INEXACT])


def _first_failed(pred: Array, values: Sequence[Array]) -> list[Array]:
    """Return the values at the first index where `pred`, of any shape, is false."""
    if not pred.ndim:
        return list(values)
    index = (~pred).reshape(-1).argmax()
    return [v.reshape((-1, *v.shape[pred.ndim :]))[index] for v in values]


def _user_check(eqn: Equation) -> Check:
    dims = eqn.invars[0].aval.ndim
    avals = [v.aval.update(shape=v.aval.shape[dims:]) for v in eqn.invars[1:]]

    def run(ins: Sequence[Array], outs: Sequence[Array]) -> Failure:
        return Failure((~ins[0]).any(), _first_failed(ins[0], ins[1:]))

    return Check(eqn.params["message"], avals, run)


def _window_starts(eqn: Equation, ins: Sequence[Array]) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """Return the starts of windows (along the last dimension), their axes and sizes."""
    params, shape = eqn.params, eqn.invars[0].aval.shape
    if eqn.primitive.name == "dynamic_slice":
        return _stacked(ins[1:]), tuple(range(len(shape))), params["slice_sizes"]
    if eqn.primitive.name == "dynamic_update_slice":
        return _stacked(ins[2:]), tuple(range(len(shape))), eqn.invars[1].aval.shape
    numbers = params["dimension_numbers"]
    if eqn.primitive.name == "gather":
        axes = numbers.start_index_map
        return ins[1], axes, tuple([params["slice_sizes"][a] for a in axes])
    axes = numbers.scatter_dims_to_operand_dims
    kept = [a for a in range(len(shape)) if a not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    sizes = dict(zip(kept, [eqn.invars[2].aval.shape[d] for d in numbers.update_window_dims], strict=True))
    return ins[1], axes, tuple([sizes.get(a, 1) for a in axes])


def _stacked(starts: Sequence[Array]) -> Array:
    joined = [broadcast(s.astype(np.int32), (1,)) for s in starts]
    return concatenate(joined, 0)


_STARTS = ("gather", "scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_slice", "dynamic_update_slice")


def _index_check(eqn: Equation) -> Check:
    """Make the check that no window lies outside of an array."""
    shape = eqn.invars[0].aval.shape
    template = f"out-of-bounds indexing for array of shape {shape}: index {{}} is out of bounds for axis {{}} with size {{}}."

    def run(ins: Sequence[Array], outs: Sequence[Array]) -> Failure:
        starts, axes, sizes = _window_starts(eqn, ins)
        if not starts.size:
            return Failure(from_host(np.asarray(False)), [from_host(np.zeros((), np.int32))] * 3)
        last = from_host(np.array([shape[a] - s for a, s in zip(axes, sizes, strict=True)], starts.dtype))
        outside = (starts < 0) | (starts > last)
        first = outside.reshape(-1).argmax()
        which = from_host(np.array([axes, [shape[a] for a in axes]], np.int32))[:, first % len(axes)]
        return Failure(outside.any(), [starts.reshape(-1)[first].astype(np.int32), which[0], which[1]])

    scalar = ShapedArray((), np.dtype(np.int32))
    message = Message(template, tree.structure(((0, 0, 0), {})), eqn.primitive.name, eqn.source)
    return Check(message, [scalar] * 3, run)
