"""Declarations of elementwise primitives, and the keys of their eager calls.

All rules of such a primitive are derived from its declaration.
"""

from __future__ import annotations

import math
import struct
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple, Protocol

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, ArraySpec, ConcreteArray, as_value, from_number, number_of, wrap
from volta_fn.core.aval import Shape, ShapedArray, check_promotion
from volta_fn.core.devices.device import Device, current_default_device
from volta_fn.core.primitive import PRIMITIVES, AxisData, Linear, Primitive, RuleOf, Zero
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, DTypeError, GradientError, IntegerOverflowError
from volta_fn.primitives import reduction
from volta_fn.primitives.data_movement import movement
from volta_fn.primitives.elementwise.cast import convert_element_type, in_wider_dtype
from volta_fn.primitives.formulas.numpy_values import evaluated
from volta_fn.primitives.formulas.values import Values
from volta_fn.settings import current as settings
from volta_fn.source import is_called_by_user

# Keys of eager calls.
#
# An eager call looks up what to run by the specs of its arrays, or by its *signature*: the specs of the arrays among its arguments, also
# of those in lists, and the values of all others.


class NoSignatureError(Exception):
    """An argument is neither an array, nor a list of them, nor a hashable constant."""


def signature(args: Iterable[Any], kwargs: Mapping[str, Any], arrays: list[ConcreteArray]) -> tuple[Any, ...]:
    """Return the key of a call, and add its arrays to `arrays`.

    Raises:
        NoSignatureError: An argument is no constant that can be part of a key.
    """
    entries = [described(value, arrays) for value in args]
    if kwargs:
        entries += [tuple(kwargs), *[described(value, arrays) for value in kwargs.values()]]
    return tuple(entries)


#: Python's numbers as arrays, by the spec of the other operand and the number.
_numbers: dict[tuple[ArraySpec, type, Any], ConcreteArray] = {}
_MOST_NUMBERS = 1024


def remember_number(operand: ConcreteArray, value: float, array: ConcreteArray) -> None:
    """Store the array that a number, an array's other operand, was converted to."""
    if array.device is operand.device:
        if len(_numbers) >= _MOST_NUMBERS:
            _numbers.clear()
        _numbers[operand._spec, type(value), value or repr(value)] = array


def array_of_number(operand: ConcreteArray, value: Any) -> ConcreteArray | None:
    """Return the array that `remember_number` kept for a number, else None."""
    kind = type(value)
    if kind is not float and kind is not int:
        return None
    return _numbers.get((operand._spec, kind, value or repr(value)))  # 0.0 and -0.0 are equal


_FLOAT, _BITS = struct.Struct("=d"), struct.Struct("=q")


def described(value: Any, arrays: list[ConcreteArray]) -> Any:
    """Return a value's entry in a signature, and append its arrays to `arrays`."""
    kind = type(value)
    if kind is ConcreteArray:
        arrays.append(value)
        return value._spec
    if kind is int or kind is str or kind is NoneType:
        return value
    if kind is float:  # by its bits, in which 0.0 and -0.0 differ, and NaN is itself
        return kind, _BITS.unpack(_FLOAT.pack(value))[0]
    if kind is complex:
        return kind, repr(value)
    if kind is list or kind is tuple:
        return kind, *[described(entry, arrays) for entry in value]
    if not (kind is bool or isinstance(value, (type, np.dtype))) and (isinstance(value, Array) or any(hasattr(value, n) for n in _MUTABLE)):
        raise NoSignatureError
    return kind, value


#: Methods of objects that hold arrays: those may change while the object, and its hash, remain.
_MUTABLE = ("__array__", "__jax_array__", "__len__", "__iter__", "__getitem__")


# Declarations of elementwise primitives, from which all rules are derived.
#
# An *elementwise* primitive computes each element of its result from the elements at the same index of its operands, which broadcast as
# in NumPy. It is declared by its name, the NumPy function that is its meaning, its dtypes, and one derivative per operand:
# ``derivative(g, out, *operands)``, the product of ``g`` with the partial derivative. The Jacobian is diagonal, and so its own
# transpose: one rule serves forward and reverse mode. Transposition passes None for ``out``, and placeholders for linear operands. So
# where the primitive is linear in an operand, the derivative with respect to it must use neither. Shape, dtype, broadcasting, JVP,
# transpose and batching follow. Complex operands follow JAX's convention: derivatives are holomorphic, and transposes do not conjugate.

Derivative = Callable[..., Any] | None


class Domain(NamedTuple):
    """The domain from which tests sample the operands.

    Intervals per operand (the last one repeats), and points to keep away from.
    """

    low: float = -3.0
    high: float = 3.0
    avoid: tuple[float, ...] = ()
    margin: float = 0.05
    #: Intervals of single operands that differ from (low, high): {position: (low, high)}.
    operands: Mapping[int, tuple[float, float]] = MappingProxyType({})


_ANYWHERE = Domain()


class Elementwise(Protocol):
    """A function that applies an elementwise primitive, its attribute."""

    primitive: Primitive
    __name__: str
    __qualname__: str

    def __call__(self, *args: Any, **params: Any) -> Array:
        """Apply the operation to `args`."""


#: The packages between an operator and the types of its result.
_BELOW_OPERATORS = frozenset({"core", "primitives", "jit"})


def check_ranks(name: str, shapes: Sequence[Shape], below: frozenset[str] = _BELOW_OPERATORS) -> None:
    """Warn or raise, as settings say, if operands that are no scalars differ in rank.

    Only calls by the program count, where no packages but those `below` it stand between.
    """
    if len({len(shape) for shape in shapes if shape}) < 2 or not is_called_by_user(below):
        return
    operands = f"{name} on shapes {' '.join(map(str, shapes))}"
    cause = f"where jax_numpy_rank_promotion is {settings.rank_promotion!r}; reshape them to one rank"
    if settings.rank_promotion == "raise":
        raise BroadcastError(f"Operands could not be broadcast together for {operands}, {cause}")
    warnings.warn(f"Following NumPy automatic rank promotion for {operands}, {cause}", UserWarning, stacklevel=2)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that `shapes` broadcast to by NumPy's rule.

    Raises `BroadcastError` if there is none.

    >>> vf.lax.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    result = []
    for axis in range(-rank, 0):
        sizes = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(sizes) > 1:
            listed, ordered = ", ".join(map(str, shapes)), sorted(sizes, key=lambda n: (len(str(n)), str(n)))
            raise BroadcastError(
                f"Incompatible shapes for broadcasting: {listed}. Dimension {axis} has sizes {ordered}, and only equal sizes or 1 go "
                "together. Reshape, transpose, or insert an axis with x[:, None]."
            )
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _boolean_hint(name: str, dtype: np.dtype) -> str:
    """Return the remedy for arithmetic on booleans, and for logic on numbers."""
    if dtype == np.bool_ and name in ("sub", "neg"):
        return "; of booleans, a ^ b says where they differ, and ~a is the negation"
    if dtype in dtypes.INEXACT and name in ("and", "or", "xor", "not"):
        return ". Comparisons need parentheses: (x > 0) & (y < 1)"
    return ""


def elementwise(
    name: str,
    evaluate: Callable[..., Any] | None = None,
    *,
    formula: Callable[..., Values] | None = None,
    operands: frozenset[np.dtype],
    derivatives: Sequence[Derivative],
    result: Callable[[np.dtype], np.dtype] | None = None,
    linear: tuple[int, ...] = (),
    transpose: Callable[..., Any] | None = None,
    domain: Domain = _ANYWHERE,
    float_ufunc: np.ufunc | None = None,
    doc: str = "",
) -> Elementwise:
    """Declare an elementwise primitive and return the function that applies it.

    Args:
        name: the primitive's name, as `jax.lax` has it.
        evaluate: a NumPy function of as many arrays as there are operands, true to their dtype. Without it NumPy evaluates the formula.
        formula: the function over `Values`, of real floats, from which every target makes code.
        operands: the dtypes allowed; all operands share one.
        derivatives: per operand, ``(g, out, *operands) -> product``, or None where the derivative is zero.
        result: the result's dtype from the operands' (default: the same).
        linear: positions of the operands in each of which the primitive is linear, the others held fixed.
        transpose: the transposition rule of a primitive that is linear in the reals alone.
        domain: where tests may sample it.
        float_ufunc: the NumPy ufunc that does the same for real floats, where `evaluate` is not one.
        doc: the function's docstring.
    """

    def abstract(*avals: ShapedArray, **params: Any) -> ShapedArray:
        shape = _broadcast_avals(name, avals)
        dtype = avals[0].dtype
        if any(a.dtype != dtype for a in avals):
            listed = ", ".join(a.dtype.name for a in avals)
            raise DTypeError(
                f"{name} needs operands of one dtype, got {listed}. "
                "Convert with lax.convert_element_type, or use the function of that name in volta_fn.numpy, which promotes."
            )
        if dtype not in operands:
            hint = "; dtypes of 8 bits and less only store numbers: convert with x.astype first" if dtype in dtypes.STORAGE else ""
            hint = hint or _boolean_hint(name, dtype)
            raise dtypes.dtype_error(name, dtype, operands, hint)
        weak = all(a.weak_type for a in avals)
        return ShapedArray(shape, dtype if result is None else result(dtype), weak)

    if evaluate is None:
        if formula is None:
            raise ArgumentError(f"elementwise: {name} needs `evaluate`, a NumPy function, or `formula`, one over Values")
        evaluate = evaluated(formula)
    is_ufunc = isinstance(evaluate, np.ufunc)
    primitive = Primitive(
        name,
        abstract,
        evaluate=evaluate,
        arity=len(derivatives),
        dtypes=operands,
        domain=domain,
        inplace=(is_ufunc and result is None) or float_ufunc is not None,
        ufunc_for=None if float_ufunc is None else lambda dtype: float_ufunc if dtype in dtypes.FLOATS else evaluate,
        views=not is_ufunc and float_ufunc is None,
        jvp=RuleOf(lambda primitive: _jvp_from(primitive, derivatives)),
        transpose=RuleOf(lambda primitive: _transpose_from(primitive, derivatives, linear)) if linear else transpose,
        derivatives=tuple(derivatives),
        linear=linear,
        batch=batch_aligned,
        formula=formula,
    )
    function: Elementwise = _strict_function(primitive, len(derivatives))
    function.__name__ = function.__qualname__ = name
    function.__module__ = sys._getframe(1).f_globals["__name__"]  # where it is declared, and pickled functions are found again
    function.__doc__ = doc or f"Elementwise {name}; operands broadcast and share one dtype."
    function.primitive = primitive
    return function


def _broadcast_avals(name: str, avals: Sequence[ShapedArray]) -> Shape:
    try:
        shapes = [a.shape for a in avals]
        if settings.rank_promotion != "allow":
            check_ranks(name, shapes)
        return broadcast_shapes(*shapes)
    except BroadcastError as error:
        raise BroadcastError(f"{name}: {error.args[0]}") from None


def _jvp_from(primitive: Primitive, derivatives: Sequence[Derivative]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        out = bind(primitive, *primals, **params)
        total: Any = None
        for derivative, tangent in zip(derivatives, tangents, strict=True):
            if derivative is None or type(tangent) is Zero:
                continue
            term = derivative(tangent, out, *primals, **params)
            total = term if total is None else bind(PRIMITIVES["add"], total, term)  # by name: it is declared by this module's functions
        if total is None:
            return movement.no_tangents(out)
        return out, movement.broadcast_to(total, out.shape)

    return jvp


def unbroadcast(cotangent: Any, shape: Shape) -> Any:
    """Sum a cotangent over the axes along which an operand of `shape` was broadcast."""
    if cotangent.shape == shape:
        return cotangent
    extra = cotangent.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and cotangent.shape[i + extra] != 1]
    axes = (*range(extra), *stretched)
    return movement.reshape(reduction.reduce_sum(cotangent, axes), shape)


def _transpose_from(primitive: Primitive, derivatives: Sequence[Derivative], linear: tuple[int, ...]) -> Callable[..., Any]:
    def transpose(cotangent: Any, *args: Any, **params: Any) -> list[Any]:
        results: list[Any] = []
        for position, (derivative, arg) in enumerate(zip(derivatives, args, strict=True)):
            if type(arg) is not Linear:
                results.append(None)
            elif position not in linear or derivative is None:
                raise GradientError(f"{primitive} is not linear in operand {position}, so it cannot be transposed")
            else:
                results.append(unbroadcast(derivative(cotangent, None, *args, **params), arg.shape))
        return results

    return transpose


@RuleOf
def batch_aligned(primitive: Primitive) -> Callable[..., Any]:
    """Return the batching rule of operands that broadcast."""

    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        aligned, dim = _align_batched(args, dims)
        outs = bind(primitive, *aligned, **params)
        return (outs, [dim] * len(outs)) if primitive.multiple_results else (outs, dim)

    return batch


def _align_batched(args: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], int]:
    """Align operands so that their stacked dimensions coincide and broadcast.

    Returns the operands and that dimension.
    """
    stacked = {d for d in dims if d is not None}
    ranks = {a.ndim for a, d in zip(args, dims, strict=True) if d is not None}
    if len(stacked) == 1 and len(ranks) == 1 and all(d is not None or not a.shape for a, d in zip(args, dims, strict=True)):
        return list(args), stacked.pop()
    rank = max(a.ndim - (d is not None) for a, d in zip(args, dims, strict=True))
    aligned = []
    for arg, dim in zip(args, dims, strict=True):
        if dim is None:
            aligned.append(arg)
            continue
        front = movement.moveaxis(arg, dim, 0)
        missing = rank - (front.ndim - 1)
        aligned.append(movement.reshape(front, (front.shape[0], *(1,) * missing, *front.shape[1:])) if missing else front)
    return aligned, 0


# Functions that users call.


def _strict_function(primitive: Primitive, arity: int) -> Any:
    eager = primitive.eager_kernels
    if arity == 1:

        def unary(x: Any, **params: Any) -> Array:
            if type(x) is ConcreteArray and not params and current_trace() is EVAL:
                run = eager.get((x._spec,))
                if run is not None:
                    return run(x)
            params.pop("accuracy", None)  # JAX's choice between fast and exact code, of which there is the exact one
            try:
                return bind(primitive, as_value(x), **params)
            except DTypeError as error:
                return in_wider_dtype(primitive.name, lambda wide: unary(wide, **params), [as_value(x)], error)

        return unary

    if arity == 2:

        def binary(x: Any, y: Any) -> Array:
            if type(x) is ConcreteArray and type(y) is ConcreteArray and current_trace() is EVAL:
                run = eager.get((x._spec, y._spec))
                if run is not None:
                    return run(x, y)
            operands: Sequence[Array] = (x, y)
            if not (isinstance(x, Array) and isinstance(y, Array) and x.dtype is y.dtype):
                operands = weakly_promoted(primitive.name, operands)
            try:
                return bind(primitive, *operands)
            except DTypeError as error:
                return in_wider_dtype(primitive.name, binary, operands, error)

        return binary

    def nary(*args: Any) -> Array:
        if len(args) != arity:
            raise ArgumentTypeError(f"{primitive} takes {arity} operands, got {len(args)}")
        operands = weakly_promoted(primitive.name, args)
        try:
            return bind(primitive, *operands)
        except DTypeError as error:
            return in_wider_dtype(primitive.name, nary, operands, error)

    return nary


def weakly_promoted(name: str, args: Sequence[Any]) -> list[Array]:
    """Promote Python scalars and weak arrays to the strong operands' dtype.

    The strong ones must agree, and so must scalars alone.
    """
    if all(isinstance(a, Array) for a in args) and len({a.dtype for a in args}) == 1:
        return list(args)
    pairs = [_typed(a) for a in args]
    dtype, _ = dtypes.promote(*pairs)
    strong = {d for d, weak in pairs if not weak}
    numbers = {d for d, _ in pairs} if not strong and not any(isinstance(a, Array) for a in args) else set()
    if len(strong) > 1 or (strong and dtype not in strong) or len(numbers) > 1:
        listed = ", ".join(d.name + (" (weak)" if weak else "") for d, weak in pairs)
        raise DTypeError(
            f"{name} needs operands of one dtype, got {listed}. "
            "Convert with lax.convert_element_type, or use the function of that name in volta_fn.numpy, which promotes."
        )
    return [to_dtype(a, dtype) for a in args]


def _typed(value: Any) -> tuple[np.dtype, bool]:
    if isinstance(value, Array):
        aval = value.aval
        return aval.dtype, aval.weak_type
    if isinstance(value, (np.ndarray, np.generic)):
        return dtypes.canonical(value.dtype), False
    if isinstance(value, (bool, int, float, complex)):
        return dtypes.scalar_dtype(value)
    array = as_value(value)
    return array.dtype, array.weak_type


def _typed_argument(function: str, position: int, value: Any) -> tuple[np.dtype, bool]:
    try:
        return _typed(value)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{function}: argument {position}: {error.message}") from None


def to_dtype(value: Any, dtype: np.dtype, weak: bool = False) -> Array:
    """Convert `value` to an array of `dtype`; scalars and weak arrays stay weak.

    Strong values of another dtype become weak if `weak`.
    """
    if isinstance(value, Array):
        if value.dtype == dtype:
            return value
        return convert_element_type(check_narrowing(value, dtype), dtype, weak_type=weak or value.weak_type)
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        sign = math.copysign(1.0, value) if type(value) is float else 0.0  # equality does not tell 0.0 from -0.0
        buffer, spec, exact = _scalar(value, sign, dtype, current_default_device())
        array = wrap(buffer, spec)
        if exact:
            array._number = value
        return array
    if type(value) is complex:
        return convert_element_type(value, dtype, weak_type=True)
    return convert_element_type(as_value(value), dtype, weak_type=weak)


def check_narrowing(value: Array, dtype: np.dtype) -> Array:
    """Return `value`; raise `IntegerOverflowError` if its number may not fit `dtype`."""
    if value.weak_type and dtypes.narrows_number(value.dtype, dtype):
        number, info = number_of(value), np.iinfo(dtype)
        if number is None or not info.min <= number.real <= info.max:
            remedy = f"convert these, x.astype('int64'), or the integer, vf.numpy.astype(n, {dtype.name!r})"
            raise IntegerOverflowError(f"an integer of 64 bits meets operands of {dtype.name}, which cannot hold it; {remedy}")
    return value


@lru_cache(maxsize=1024, typed=True)
def _scalar(value: Any, sign: float, dtype: np.dtype, device: Device) -> tuple[Any, ArraySpec, bool]:
    """Return a Python scalar's buffer, type, and whether its array keeps it, cached."""
    _, weak = dtypes.scalar_dtype(value)
    try:
        array = from_number(value, dtype, weak, device)
    except OverflowError:
        raise IntegerOverflowError(f"the integer {value} does not fit {dtype.name}, the dtype of the other operands") from None
    return array.buffer(), array._spec, number_of(array) is not None


def promote_args(name: str, args: Sequence[Any], allowed: frozenset[np.dtype]) -> list[Array]:
    """Promote operands to one dtype of `allowed`, integers to floats if need be."""
    first = args[0]
    if isinstance(first, Array) and (dtype := first.dtype) in allowed:
        for arg in args:  # a loop: a generator for `all` would take longer than the rest
            if not isinstance(arg, Array) or arg.dtype is not dtype:
                break
        else:
            return list(args)
        keeps_dtype = dtype in dtypes.INEXACT and dtypes.canonical(dtype) is dtype
        if keeps_dtype and {*map(type, args[1:])} <= {float, int}:  # numbers do not change it
            return [first, *[to_dtype(a, dtype) for a in args[1:]]]
    try:
        pairs = [_typed(a) for a in args]
    except ArgumentTypeError:  # to say which argument it is
        pairs = [_typed_argument(name, i, a) for i, a in enumerate(args, 1)]
    dtype, weak = dtypes.promote(*pairs)
    check_promotion(name, args, dtype)
    if dtype not in allowed and allowed <= dtypes.INEXACT:
        dtype = dtypes.to_inexact(dtype)
    return [to_dtype(a, dtype, weak) for a in args]


def promote_numbers(name: str, args: Sequence[Any], allowed: frozenset[np.dtype]) -> list[Array]:
    """Promote operands to one dtype of `allowed`, and booleans to int32."""
    if all(isinstance(a, bool) or getattr(a, "dtype", None) == _BOOL for a in args):
        args = [to_dtype(as_value(a), _INT32) for a in args]
    return promote_args(name, args, allowed)


_BOOL, _INT32 = np.dtype(np.bool_), np.dtype(np.int32)


def _remember(x: Any, y: Any, operands: Sequence[Any]) -> None:
    """Cache the array of a Python number, if the other operand was not converted."""
    a, b = operands
    if type(y) in (int, float) and type(x) is ConcreteArray and a is x:
        remember_number(x, y, b)
    elif type(x) in (int, float) and type(y) is ConcreteArray and b is y:
        remember_number(y, x, a)


def _by_value(args: Sequence[Any]) -> list[Any] | None:
    """Return operands with integers that others cannot hold strongly typed, or None."""
    narrow = next((a.dtype for a in args if isinstance(a, Array) and not a.weak_type), np.dtype(np.int64))
    wide = [isinstance(a, Array) and a.weak_type and dtypes.narrows_number(a.dtype, narrow) for a in args]
    return [convert_element_type(a, a.dtype) if isinstance(a, Array) else a for a in args] if any(wide) else None


def _without_common_integer(args: Sequence[Any]) -> bool:
    """Return True for uint64 and a signed integer, whose common dtype is float64."""
    kinds = {getattr(a, "dtype", None) for a in args if not getattr(a, "weak_type", False)}
    return np.dtype(np.uint64) in kinds and not kinds.isdisjoint(dtypes.SIGNED)


def side_of_range(value: Any, other: Any) -> int:
    """Return -1 for an integer below all numbers of an array's dtype, 1 for one above.

    It is 0 for others, and in JAX's mode, where such integers wrap around.
    """
    dtype = getattr(other, "dtype", None)
    if type(value) is not int or dtype not in dtypes.INTEGERS or getattr(other, "weak_type", False) or settings.permissive:
        return 0
    info = np.iinfo(dtype)
    return (value > info.max) - (value < info.min)


_Form = Callable[..., Array]


def promoted(function: Elementwise, name: str = "", doc: str = "", fallback: _Form | None = None, mixed: _Form | None = None) -> _Form:
    """Return the NumPy form of an elementwise function, which promotes operands.

    `fallback` computes it of operands of the other dtypes, already promoted; `mixed` of uint64 and a signed integer, which float64 would
    round. A function with `mixed` is a comparison: it takes Python integers beyond the dtype of the other operand, too.

    >>> promoted(vf.lax.add)(vf.numpy.arange(2), 0.5)
    Array([0.5, 1.5], dtype=float32, weak_type=True)
    """
    primitive: Primitive = function.primitive
    allowed = primitive.dtypes or dtypes.ALL
    eager = primitive.eager_kernels

    def promote_and_bind(*args: Any) -> Array:
        if mixed is not None:
            if side := side_of_range(args[1], args[0]) - side_of_range(args[0], args[1]):
                shape = next(a.shape for a in args if type(a) is not int)
                return movement.broadcast_to(function(np.int32(0), np.int32(side)), shape)
            if (strong := _by_value(args)) is not None:
                return promote_and_bind(*strong)
            if _without_common_integer(args):
                check_promotion(name or primitive.name, args, np.dtype(np.float64))
                return mixed(*map(as_value, args))
        operands = promote_args(name or primitive.name, args, allowed)
        if len(args) == 2:
            _remember(*args, operands)
        if fallback is not None and operands[0].dtype not in allowed:
            return fallback(*operands)
        try:
            return bind(primitive, *operands)
        except DTypeError as error:
            return in_wider_dtype(primitive.name, promote_and_bind, operands, error)

    def bind_unary(x: Any) -> Array:
        if isinstance(x, Array) and x.dtype in allowed:
            return current_trace().process(primitive, (x,), {})
        return promote_and_bind(x)

    def bind_binary(x: Any, y: Any) -> Array:
        if isinstance(x, Array) and isinstance(y, Array) and x.dtype is y.dtype and x.dtype in allowed:
            return current_trace().process(primitive, (x, y), {})
        return promote_and_bind(x, y)

    def unary(x: Any) -> Array:
        if type(x) is ConcreteArray and current_trace() is EVAL:
            run = eager.get((x._spec,))
            if run is not None:
                return run(x)
        return bind_unary(x)

    def binary(x: Any, y: Any, /) -> Array:
        if current_trace() is EVAL:
            a = x if type(x) is ConcreteArray else array_of_number(y, x) if type(y) is ConcreteArray else None
            b = y if type(y) is ConcreteArray else array_of_number(x, y) if type(x) is ConcreteArray else None
            if a is not None and b is not None:
                run = eager.get((a._spec, b._spec))
                if run is not None:
                    return run(a, b)
        return bind_binary(x, y)

    forms: dict[int, Any] = {1: unary, 2: binary}
    result = forms.get(primitive.arity, promote_and_bind)
    result.__name__ = result.__qualname__ = name or primitive.name
    result.__module__ = sys._getframe(1).f_globals["__name__"]
    result.__doc__ = doc or f"Elementwise {name or primitive.name}, with NumPy's broadcasting and dtype promotion."
    return result
