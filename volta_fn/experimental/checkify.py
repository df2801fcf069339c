"""Checks in traced functions: errors as values, with JAX's names.

>>> import volta_fn as vf
>>> from volta_fn.experimental import checkify
>>> def root(x):
...     checkify.check(x >= 0, "x must not be negative, got {x}", x=x)
...     return vf.numpy.sqrt(x)
>>> error, value = vf.jit(checkify.checkify(root))(-4.0)
>>> print(error.get())
x must not be negative, got -4.0 (`check` failed)
  in check at ...
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, interpret_jaxpr, sub_jaxprs
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.staging import FlatFunction, check_callable, function_name, trace_to_jaxpr
from volta_fn.core.trace import Tracer, bind
from volta_fn.errors import ArgumentTypeError, DTypeError
from volta_fn.errors import CheckError as CheckError
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice_p, dynamic_update_slice_p
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.movement import broadcast
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.source import SourceLocation, user_location
from volta_fn.transforms.differentiation import marked, merge
from volta_fn.transforms.vmap import stack_at

__all__ = [
    "CheckError", "Error", "ErrorCategory", "JaxRuntimeError", "all_checks", "automatic_checks", "check", "check_error", "checkify",
    "debug_check", "div_checks", "float_checks", "index_checks", "init_error", "nan_checks", "user_checks",
]  # fmt: skip


# `Error`: what went wrong first in a checked function, as a value.

#: JAX's name of the error.
JaxRuntimeError = CheckError


class Error:
    """The first failed check of a call, if any; a pytree.

    `code` is 0 if none failed, else k for the k-th of `messages`, whose values are in `values`.
    """

    def __init__(self, code: Any, values: Sequence[Sequence[Any]], messages: Sequence[Message]) -> None:
        self.code = code
        self.values = [list(v) for v in values]
        self.messages = tuple(messages)

    def get(self) -> str | None:
        """Return the error message, or None; one for each stacked call that failed.

        It is JAX's, and then a line with the primitive and the user's line.
        """
        codes = np.asarray(self.code)
        if not codes.ndim:
            return self._text(()) if codes else None
        messages = [f"at mapped index {', '.join(map(str, i))}: {self._text(tuple(i))}" for i in np.argwhere(codes)]
        return "\n".join(messages) or None

    def _text(self, index: tuple[Any, ...]) -> str:
        number = int(np.asarray(self.code)[index]) - 1
        message = self.messages[number]
        return message.text([np.asarray(v)[index] for v in self.values[number]]) + message.origin

    def throw(self) -> None:
        """Raise `CheckError` with the message if a check failed."""
        check_error(self)

    def __repr__(self) -> str:
        if isinstance(self.code, Tracer):
            return "Error(traced)"
        return f"Error({self.get() or ''})"


tree.register_pytree_node(
    Error, lambda error: ((error.code, error.values), error.messages), lambda messages, children: Error(children[0], children[1], messages)
)


def init_error() -> Error:
    """Return the error of no check.

    >>> vf.experimental.checkify.init_error().get() is None
    True
    """
    return Error(from_host(np.zeros((), np.int32)), (), ())


def check_error(error: Error) -> None:
    """Raise `CheckError` if a check failed; inside of `checkify`, check it there.

    >>> checkify = vf.experimental.checkify
    >>> error, _ = checkify.checkify(lambda x: 1 / x, errors=checkify.div_checks)(vf.numpy.float32(0))
    >>> checkify.check_error(error)
    Traceback (most recent call last):
    volta_fn.errors.CheckError: division by zero...
    """
    code: Any = error.code
    if not isinstance(code, Tracer):
        if (message := error.get()) is not None:
            raise CheckError(message)
        return
    for number, (message_of, values) in enumerate(zip(error.messages, error.values, strict=True), 1):
        operands: list[Array] = values
        bind(check_p, code != number, *operands, message=message_of, debug=False)


# `check`, and the checks of primitives, where an error may begin.


class ErrorCategory(enum.Enum):
    """A category of errors that checks look for."""

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
    "check", lambda pred, *values, message, debug: (), evaluate=_evaluate, jvp=_jvp, batch=_batch, multiple_results=True, effectful=True
)


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Check that `pred` holds; under `checkify` a failure becomes its error.

    Outside of `checkify` a failure raises `CheckError`, when the program runs.

    Args:
        pred: a boolean scalar.
        msg: a message with fields for `fmt_args` and `fmt_kwargs`, which are pytrees of arrays.
        debug: check under `checkify` alone.

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
    """A check of an equation: its message, the types of its values, its function."""

    message: Message
    avals: list[ShapedArray]
    run: Callable[[Sequence[Array], Sequence[Array]], Failure]


def checks_of(eqn: Equation, errors: frozenset[ErrorCategory]) -> list[Check]:
    """Return the checks of an equation that these categories ask for."""
    if eqn.primitive is check_p:
        return [_user_check(eqn)] if ErrorCategory.USER in errors else []
    if eqn.primitive.holds_programs:
        return []
    checks: list[Check] = []
    name = eqn.primitive.name
    if ErrorCategory.DIV in errors and name in ("div", "rem"):
        checks.append(Check(Message("division by zero", None, name, eqn.source), [], lambda ins, outs: Failure((ins[1] == 0).any(), [])))
    if ErrorCategory.INDEX in errors and name in _STARTS:
        checks.append(_index_check(eqn))
    if ErrorCategory.NAN in errors and any(v.aval.dtype in dtypes.INEXACT for v in eqn.outvars):
        message = Message(f"nan generated by primitive: {name}.", None, name, eqn.source)
        checks.append(Check(message, [], lambda ins, outs: Failure(_any_nan(outs), [])))
    return checks


def _any_nan(values: Sequence[Array]) -> Array:
    return functools.reduce(operator.or_, [(v != v).any() for v in values if v.dtype in dtypes.INEXACT])


def _first_failed(pred: Array, values: Sequence[Array]) -> list[Array]:
    """Return the values at the first index where `pred`, of any shape, is false."""
    if not pred.ndim:
        return list(values)
    if not pred.size:
        return [from_host(np.zeros(v.shape[pred.ndim :], v.dtype)) for v in values]
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
    if eqn.primitive is dynamic_slice_p:
        return _stacked(eqn, ins[1:]), tuple(range(len(shape))), params["slice_sizes"]
    if eqn.primitive is dynamic_update_slice_p:
        return _stacked(eqn, ins[2:]), tuple(range(len(shape))), eqn.invars[1].aval.shape
    numbers = params["dimension_numbers"]
    if eqn.primitive is gather_p:
        axes = numbers.start_index_map
        return ins[1], axes, tuple([params["slice_sizes"][a] for a in axes])
    axes = numbers.scatter_dims_to_operand_dims
    window_axes = [a for a in range(len(shape)) if a not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    sizes = dict(zip(window_axes, [eqn.invars[2].aval.shape[d] for d in numbers.update_window_dims], strict=True))
    return ins[1], axes, tuple([sizes.get(a, 1) for a in axes])


def _stacked(eqn: Equation, starts: Sequence[Array]) -> Array:
    return concatenate([broadcast(s.astype(_starts_dtype(eqn)), (1,)) for s in starts], 0)


def _starts_dtype(eqn: Equation) -> np.dtype:
    """Return the dtype of all starts of windows."""
    first = {dynamic_slice_p: 1, dynamic_update_slice_p: 2}.get(eqn.primitive)
    if first is None:
        return eqn.invars[1].aval.dtype
    return np.dtype(np.int64 if any(v.aval.dtype.itemsize == 8 for v in eqn.invars[first:]) else np.int32)


_STARTS = ("gather", "scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_slice", "dynamic_update_slice")


def _index_check(eqn: Equation) -> Check:
    """Make the check that no window lies outside of an array."""
    shape = eqn.invars[0].aval.shape
    scalar = ShapedArray((), np.dtype(np.int32))
    index = scalar.update(dtype=_starts_dtype(eqn))
    template = f"out-of-bounds indexing for array of shape {shape}: index {{}} is out of bounds for axis {{}} with size {{}}."

    def run(ins: Sequence[Array], outs: Sequence[Array]) -> Failure:
        starts, axes, sizes = _window_starts(eqn, ins)
        if not starts.size:
            return Failure(from_host(np.asarray(False)), [from_host(np.zeros((), np.int32))] * 3)
        most = int(dtypes.iinfo(starts.dtype).max)  # short integers end before long axes
        last = from_host(np.array([min(shape[a] - s, most) for a, s in zip(axes, sizes, strict=True)], starts.dtype))
        outside = (starts < 0) | (starts > last)
        first = outside.reshape(-1).argmax()
        which = from_host(np.array([axes, [shape[a] for a in axes]], np.int32))[:, first % len(axes)]
        return Failure(outside.any(), [starts.reshape(-1)[first], which[0], which[1]])

    message = Message(template, tree.structure(((0, 0, 0), {})), eqn.primitive.name, eqn.source)
    return Check(message, [index, scalar, scalar], run)


# `checkify`: a program with checks as one that returns its first error.
#
# The program is run equation by equation, with a state: the number of the failed check (0: none) and, for each check, the values of its
# message. A check sets them unless another one failed before. Loops carry the state, branches return it, and calls are run in place.


def checkify(f: Callable[..., Any], errors: frozenset[ErrorCategory] = user_checks) -> Callable[..., tuple[Error, Any]]:
    """Make a function that returns the first error of `f`, and its result.

    It can be transformed and jitted like any other, and sees into `jit`, `scan`, `cond`, `while_loop`, `vmap` and `grad` in `f`.

    Args:
        f: a function of pytrees of arrays. Other arguments, and Python's bools, are passed on as they are, so that it may branch on them.
        errors: what to check: `user_checks` (calls of `check`), `nan_checks`, `div_checks`, `index_checks`, `float_checks`,
            `automatic_checks`, `all_checks`, or a union of them.

    >>> checkify = vf.experimental.checkify
    >>> error, _ = checkify.checkify(vf.numpy.log, errors=checkify.nan_checks)(-1.0)
    >>> print(error.get())
    nan generated by primitive: log.
      in log at ...
    """
    check_callable(f, "checkify")

    @functools.wraps(f)
    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        leaves, in_tree = tree.flatten((args, kwargs))
        flat = FlatFunction(f, in_tree)
        is_array = [isinstance(x, (Array, np.ndarray, np.generic, int, float, complex)) and not isinstance(x, bool) for x in leaves]
        others = marked(leaves, is_array, False)
        values = [as_value(x) for x in marked(leaves, is_array)]
        program = trace_to_jaxpr(lambda *xs: flat(*merge(is_array, xs, others)), [x.aval for x in values], function_name(f))
        sites = _NumberedChecks(program, frozenset(errors))
        state, outs = sites.run(program, sites.start(), values)
        return Error(state.code, state.values, [c.message for c in sites.checks]), tree.unflatten(flat.out_tree, outs)

    return checked


class _State(NamedTuple):
    """The number of the failed check, and each check's values, as flat lists."""

    code: Array
    values: list[list[Array]]


class _NumberedChecks:
    """The checks of a program and of those in it, numbered from 1."""

    def __init__(self, program: ClosedJaxpr, errors: frozenset[ErrorCategory]) -> None:
        self.checks: list[Check] = []
        self.of_equation: dict[int, list[int]] = {}
        self.checked: set[int] = set()
        self.seen: dict[int, ClosedJaxpr] = {}
        self._collect(program, errors)

    def _collect(self, program: ClosedJaxpr, errors: frozenset[ErrorCategory]) -> bool:
        if id(program) not in self.seen:
            self.seen[id(program)] = program
            has_checks = [self._collect_equation(e, errors) for e in program.eqns]
            if any(has_checks):
                self.checked.add(id(program))
        return id(program) in self.checked

    def _collect_equation(self, eqn: Equation, errors: frozenset[ErrorCategory]) -> bool:
        checks = checks_of(eqn, errors)
        self.of_equation[id(eqn)] = list(range(len(self.checks), len(self.checks) + len(checks)))
        self.checks += checks
        inside = [self._collect(sub, errors) for sub in sub_jaxprs(eqn.params)]
        return bool(checks) or any(inside)

    def start(self) -> _State:
        zeros: list[list[Array]] = [[from_host(np.zeros(a.shape, a.dtype)) for a in c.avals] for c in self.checks]
        return _State(from_host(np.zeros((), np.int32)), zeros)

    def flat(self, state: _State) -> list[Array]:
        return [state.code, *[v for values in state.values for v in values]]

    def unflat(self, arrays: Sequence[Array]) -> tuple[_State, list[Array]]:
        """Return the state at the beginning of a list, and the rest."""
        rest = iter(arrays)
        code = next(rest)
        return _State(code, [[next(rest) for _ in c.avals] for c in self.checks]), list(rest)

    def run(self, program: ClosedJaxpr, state: _State, args: Sequence[Array]) -> tuple[_State, list[Array]]:
        """Run a program with checks; return the state and the outputs."""

        def step(eqn: Equation, ins: list[Array]) -> Sequence[Array]:
            nonlocal state
            state, outs = self._step(eqn, state, ins)
            for number in self.of_equation[id(eqn)]:
                state = self._checked(number, state, ins, outs)
            return outs

        outputs = interpret_jaxpr(program, args, step)
        return state, outputs

    def _checked(self, number: int, state: _State, ins: Sequence[Array], outs: Sequence[Array]) -> _State:
        failed, new = self.checks[number].run(ins, outs)
        fails_first = failed & (state.code == 0)
        values = list(state.values)
        values[number] = [select(fails_first, v.astype(o.dtype), o) for v, o in zip(new, values[number], strict=True)]
        return _State(select(fails_first, from_host(np.asarray(number + 1, np.int32)), state.code), values)

    def _step(self, eqn: Equation, state: _State, ins: list[Array]) -> tuple[_State, Sequence[Array]]:
        primitive, params = eqn.primitive, eqn.params
        if primitive is check_p:
            return state, ()
        if not any(id(sub) in self.checked for sub in sub_jaxprs(params)):
            outs = bind(primitive, *ins, **params)
            return state, outs if primitive.multiple_results else [outs]
        if primitive is cond_p:
            return self._cond(state, ins, params["branches"])
        if primitive is scan_p:
            return self._scan(state, ins, params)
        if primitive is while_p:
            return self._while(state, ins, params)
        return self.run(params[str(primitive.call_param)], state, ins)

    def _program(self, program: ClosedJaxpr, before: int = 0) -> ClosedJaxpr:
        """Return the program from (`before` inputs, state, others) to (state, outputs)."""
        avals = program.in_avals
        state_avals = [a.aval for a in self.flat(self.start())]
        count = len(state_avals)

        def run(*flat: Array) -> list[Array]:
            state, _ = self.unflat(flat[before : before + count])
            state, outs = self.run(program, state, [*flat[:before], *flat[before + count :]])
            return [*self.flat(state), *outs]

        return trace_to_jaxpr(run, [*avals[:before], *state_avals, *avals[before:]], "checked")

    def _cond(self, state: _State, ins: list[Array], branches: Sequence[ClosedJaxpr]) -> tuple[_State, list[Array]]:
        index, *operands = ins
        programs = tuple([self._program(b) for b in branches])
        return self.unflat(bind(cond_p, index, *self.flat(state), *operands, branches=programs))

    def _scan(self, state: _State, ins: list[Array], params: dict[str, Any]) -> tuple[_State, list[Array]]:
        before, carried = params["num_consts"], self.flat(state)
        changed = {"jaxpr": self._program(params["jaxpr"], before), "num_carry": params["num_carry"] + len(carried)}
        return self.unflat(bind(scan_p, *ins[:before], *carried, *ins[before:], **(params | changed)))

    def _while(self, state: _State, ins: list[Array], params: dict[str, Any]) -> tuple[_State, list[Array]]:
        """Run a loop; its condition's checks are done again after each step."""
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        cond_count, body_count = params["cond_nconsts"], params["body_nconsts"]
        cond_consts, body_consts, carry = ins[:cond_count], ins[cond_count : cond_count + body_count], ins[cond_count + body_count :]
        state, _ = self.run(cond, state, [*cond_consts, *carry])
        flat_state = self.flat(state)

        def continues(*flat: Array) -> list[Array]:
            inner, values = self.unflat(flat[cond_count:])
            return self.run(cond, inner, [*flat[:cond_count], *values])[1]

        def step(*flat: Array) -> list[Array]:
            consts, rest = flat[: cond_count + body_count], flat[cond_count + body_count :]
            inner, values = self.unflat(rest)
            inner, outs = self.run(body, inner, [*consts[cond_count:], *values])
            inner, _ = self.run(cond, inner, [*consts[:cond_count], *outs])
            return [*self.flat(inner), *outs]

        carried = [*[a.aval for a in flat_state], *[a.aval for a in carry]]
        cond_avals = [a.aval for a in cond_consts]
        outs = bind(
            while_p, *cond_consts, *cond_consts, *body_consts, *flat_state, *carry,
            cond_jaxpr=trace_to_jaxpr(continues, [*cond_avals, *carried], "checked"),
            body_jaxpr=trace_to_jaxpr(step, [*cond_avals, *[a.aval for a in body_consts], *carried], "checked"),
            cond_nconsts=cond_count, body_nconsts=cond_count + body_count,
        )  # fmt: skip
        return self.unflat(outs)
