"""Dtype changes that keep values or bits, and wide values of Python numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, from_host, number_of, with_number
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.core.staging import DynamicJaxprTrace, DynamicJaxprTracer
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement import movement
from volta_fn.settings import current as settings


def _convert_evaluate(operand: np.ndarray, *, new_dtype: np.dtype, weak_type: bool) -> np.ndarray:
    if operand.dtype == new_dtype:
        return operand
    if operand.dtype in dtypes.STORAGE:
        operand = operand.astype(np.float32 if operand.dtype in dtypes.STORAGE_FLOATS else np.int8)
    if operand.dtype.kind == "c" and new_dtype.kind not in "cb":
        operand = operand.real
    if new_dtype in dtypes.STORAGE_INTEGERS and operand.dtype in dtypes.FLOATS:
        return _saturate_to_bits(operand, new_dtype)
    if new_dtype in dtypes.INTEGERS and operand.dtype in dtypes.FLOATS:
        return _saturate(operand, new_dtype)
    if new_dtype in ROUNDED_FROM_FLOAT32 and operand.dtype.itemsize >= 4 and operand.dtype != np.float32:
        operand = _rounded_to_odd(operand)
    return operand.astype(new_dtype)


#: Floats that ml_dtypes makes of float32, which would round float64 and wide integers twice.
ROUNDED_FROM_FLOAT32 = dtypes.STORAGE_FLOATS | {np.dtype(dtypes.bfloat16)}


def _rounded_to_odd(operand: np.ndarray) -> np.ndarray:
    """Round float64 or integers to float32, to an odd last bit where that is inexact."""
    # Rounding the result to a format of at most 22 bits of precision rounds as if it were the first time (Boldo and Melquiond, 2008).
    if operand.dtype.kind in "iu" and operand.dtype.itemsize == 8:
        # Beyond 2**53, where float64 has no odd integers, a bit below all ties stands for the lower ones.
        low = operand & 0xFFF
        large = (operand >= 2**53) | (operand <= -(2**53)) if operand.dtype.kind == "i" else operand >= 2**53
        operand = np.where(large & (low != 0), operand - low + 0x800, operand)
    wide = operand.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        near = wide.astype(np.float32)
        toward = np.where(wide > near, np.float32(np.inf), np.float32(-np.inf))
        odd = (near.view(np.uint32) & 1).astype(bool)
        inexact = (near != wide) & ~np.isnan(wide)
        return np.where(inexact & ~odd, np.nextafter(near, toward), near)


def _saturate(operand: np.ndarray, new_dtype: np.dtype) -> np.ndarray:
    """Convert floats to integers as XLA does.

    They are rounded toward zero; NaN becomes 0, and values out of range the nearest bound.
    """
    info = np.iinfo(new_dtype)
    if operand.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        operand = operand.astype(np.float32)
    # The upper bound may not be a float of this precision: then the next float is one above it, and compares as out of range.
    inside = (operand > float(info.min) - 1) & (operand < float(info.max) + 1 if info.bits < 32 else operand < float(info.max))
    converted = np.where(inside, operand, 0).astype(new_dtype)
    if inside.all():
        return converted
    converted = np.where(~inside & (operand > 0), new_dtype.type(info.max), converted)
    return np.where(~inside & (operand < 0), new_dtype.type(info.min), converted)


def _saturate_to_bits(operand: np.ndarray, new_dtype: np.dtype) -> np.ndarray:
    """Convert floats to integers of a few bits by the same rules."""
    info = dtypes.iinfo(new_dtype)
    bounded = np.clip(np.nan_to_num(operand.astype(np.float64)), info.min, info.max)
    return np.trunc(bounded).astype(np.int8).astype(new_dtype)


def _convert_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, new_dtype: np.dtype, weak_type: bool) -> tuple[Array, Any]:
    (operand,), (tangent,) = primals, tangents
    out = convert_element_type(operand, new_dtype, weak_type)
    if type(tangent) is Zero or not out.aval.is_differentiable:
        return movement.no_tangents(out)
    return out, convert_element_type(tangent, out.aval.tangent_aval().dtype)


convert_element_type_p: Primitive = Primitive(
    "convert_element_type",
    lambda operand, *, new_dtype, weak_type: ShapedArray(operand.shape, new_dtype, weak_type),
    evaluate=_convert_evaluate,
    jvp=_convert_jvp,
    transpose=lambda cotangent, operand, **params: [convert_element_type(cotangent, operand.dtype)],
    batch=lambda axis, args, dims, **params: (bind(convert_element_type_p, *args, **params), dims[0]),
    views=True,
)


def convert_element_type(operand: Any, new_dtype: Any, weak_type: bool = False) -> Array:
    """Convert the elements of `operand` to `new_dtype`.

    Floats become integers by rounding toward zero (NaN becomes 0, values out of range the nearest bound); complex numbers become
    real ones by dropping the imaginary part. Floats of 8 bits and fewer only store numbers; their tangents are of dtype float32.

    Raises `DTypeError` for a dtype that arrays cannot have.

    >>> vf.lax.convert_element_type(vf.numpy.array([1.7, -1.7]), "int32")
    Array([ 1, -1], dtype=int32)
    """
    dtype = dtypes.as_dtype(new_dtype)
    if type(operand) is int and operand.bit_length() > 31:  # which no integer of the default width need hold
        if dtype in dtypes.INEXACT and (weak_type or operand.bit_length() > 63):
            operand = float(operand)
        elif operand.bit_length() <= 64:
            return from_host(_convert_evaluate(np.asarray(operand), new_dtype=dtype, weak_type=weak_type), weak_type)
    if (
        isinstance(operand, (np.ndarray, np.generic)) and operand.dtype in dtypes.STORED
    ):  # NumPy's own may be of a dtype that the device lacks
        return from_host(_convert_evaluate(np.asarray(operand), new_dtype=dtype, weak_type=weak_type), weak_type)
    value = as_value(operand)
    aval = value.aval
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return value
    if aval.weak_type and aval.dtype != dtype:
        number = number_of(value)
        if number is not None:
            return _converted_number(value, number, dtype, weak_type)
        if dtype in _PRECISE_DTYPES:
            value = wide_value(value)
            if value.dtype == dtype and weak_type:
                return value
    return bind(convert_element_type_p, value, new_dtype=dtype, weak_type=weak_type)


#: Functions of the bits of integers, whose sign takes part in a wider dtype.
_OF_BITS = ("population_count", "shift_right_logical")


def decoded(operand: Array) -> Array:
    """Convert numbers of a dtype that only stores them to int8, uint8 or float32."""
    if operand.dtype not in dtypes.STORAGE:
        return operand
    signed = np.int8 if operand.dtype in dtypes.STORAGE_SIGNED else np.uint8
    return convert_element_type(operand, np.float32 if operand.dtype in dtypes.STORAGE_FLOATS else signed)


def in_wider_dtype(name: str, compute: Callable[..., Array], operands: Sequence[Array], error: DTypeError | None = None) -> Array:
    """Compute in a wider dtype with numbers that are only stored, as JAX does.

    The result is converted to their dtype: integers wrap around, and floats are rounded. `error` is what the operands have raised: it is
    raised again for operands of other dtypes, in programs that are not written for JAX, and by `clz`, whose result depends on the width.
    """
    dtype = operands[0].dtype
    if error is not None and (not settings.permissive or dtype not in dtypes.STORAGE or name == "clz"):
        raise error
    if name in _OF_BITS and dtype in dtypes.STORAGE_SIGNED:
        operands = [convert_element_type(operand, f"u{dtype.name}") for operand in operands]
    wide = [decoded(operand) for operand in operands]
    try:
        result = compute(*wide)
    except DTypeError as wide_error:  # which names a dtype that the caller has not passed
        raise (error or wide_error) from None
    return convert_element_type(result, dtype) if result.dtype == wide[0].dtype else result


#: The dtypes in which a weakly typed value of 32 bits shows its rounding.
_PRECISE_DTYPES = (*dtypes.WIDE_NUMBERS.values(), *map(np.dtype, (np.int32, np.int64, np.uint32, np.uint64)))


def _converted_number(value: Any, number: complex, dtype: np.dtype, weak_type: bool) -> ConcreteArray:
    """Convert a weakly typed array from the Python number that it keeps."""
    value.buffer()  # raises if it was deleted
    exact = _convert_evaluate(np.asarray(number), new_dtype=dtype, weak_type=weak_type)
    array = from_host(np.broadcast_to(exact, value.shape), weak_type, value.device)
    return with_number(array, number) if weak_type and dtype in dtypes.WIDE_NUMBERS else array


def widened(values: Sequence[Array], positions: Collection[int]) -> list[Array]:
    """Return `values`, with 64 bits at `positions`, which are weakly typed."""
    return [convert_element_type(v, dtypes.WIDE_NUMBERS[v.dtype], weak_type=True) if i in positions else v for i, v in enumerate(values)]


def _bitcast_abstract(operand: ShapedArray, *, new_dtype: np.dtype) -> ShapedArray:
    old, new = dtypes.bits(operand.dtype), dtypes.bits(new_dtype)
    for dtype in (operand.dtype, new_dtype):
        if dtype in dtypes.COMPLEX or dtype in dtypes.BOOL:
            raise DTypeError(f"bitcast_convert_type is not defined for {dtype.name}; it takes integer and real floating dtypes")
    if old == new:
        return ShapedArray(operand.shape, new_dtype)
    if old > new:
        return ShapedArray((*operand.shape, old // new), new_dtype)
    if not operand.shape or operand.shape[-1] != new // old:
        raise ShapeError(
            f"bitcast_convert_type from {operand.dtype.name} to the wider {new_dtype.name} needs a last dimension of {new // old}, "
            f"got shape {operand.shape}"
        )
    return ShapedArray(operand.shape[:-1], new_dtype)


def _bitcast_evaluate(operand: np.ndarray, *, new_dtype: np.dtype) -> np.ndarray:
    old, new = dtypes.bits(operand.dtype), dtypes.bits(new_dtype)
    solid = np.ascontiguousarray(operand).reshape(operand.shape)
    if old == new:
        return solid.view(new_dtype)
    if min(old, new) < 8:  # several elements are one byte's bits, the first the lowest
        codes = np.unpackbits(solid[..., None].view(np.uint8), axis=-1, count=old, bitorder="little")
        shape = (*operand.shape, old // new) if old > new else operand.shape[:-1]
        return np.packbits(codes.reshape(*shape, new), axis=-1, bitorder="little").view(new_dtype)[..., 0]
    if old > new:
        return solid[..., None].view(new_dtype)
    return solid.view(new_dtype)[..., 0]


bitcast_convert_type_p = Primitive(
    "bitcast_convert_type",
    _bitcast_abstract,
    evaluate=_bitcast_evaluate,
    jvp=movement.zero_jvp,
    batch=movement.batch_in_front(),
    views=True,
)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Array:
    """Reinterpret the bits of `operand` as elements of `new_dtype`.

    A narrower dtype adds a last dimension, a wider one consumes it; elements of less than a byte are packed, the first in the lowest bits.
    Raises `DTypeError` for bool and complex dtypes and `ShapeError` when the last dimension does not fit.

    >>> vf.lax.bitcast_convert_type(vf.numpy.float32(1.0), "uint32")
    Array(1065353216, dtype=uint32)
    """
    return bind(bitcast_convert_type_p, as_value(operand), new_dtype=dtypes.as_dtype(new_dtype))


# Wide values: weakly typed values in 64 bits, for conversions to 64-bit dtypes.
#
# A Python float is 64 bits wide, but the weakly typed array that stands for it is a float32, the default of its kind. Where that meets a
# 64-bit dtype, widening it would keep the rounding. So an array made of Python numbers alone keeps its number
# (`core.arrays.array.with_number`), and a traced program takes the wide value instead: `wide_value` adds an input of 64 bits
# (`core.staging.trace_with_wide_inputs` tells its caller), and repeats the arithmetic since then in 64 bits. Programs of 32 bits stay as
# they are.

#: Primitives of one operand that move its elements or repeat them.
_MOVEMENT = frozenset([movement.broadcast_in_dim_p, movement.reshape_p, movement.squeeze_p, movement.transpose_p, movement.rev_p])


def keeps_number(primitive: Primitive) -> bool:
    """Return True if all elements of the result are equal where the operands' are."""
    return primitive.arity > 0 or primitive in _MOVEMENT


def wide_value(value: Array) -> Array:
    """Return a weakly typed value in 64 bits if it is traced and known, else itself."""
    if type(value) is not DynamicJaxprTracer or value.dtype not in dtypes.WIDE_NUMBERS:
        return value
    trace = value._trace
    if type(trace) is not DynamicJaxprTrace or not trace.alive:
        return value
    wide = _variable(trace, value._var)
    return value if wide is None else DynamicJaxprTracer(trace, wide)


def _variable(trace: DynamicJaxprTrace, var: Var) -> Var | None:
    """Return the variable of the same number in 64 bits, or None if there is none."""
    wide = trace.wide.variables
    if var not in wide:
        eqn = trace.wide.definitions.get(var)
        wide[var] = trace.wide_input(var, dtypes.WIDE_NUMBERS[var.aval.dtype]) if eqn is None else _repeated(trace, eqn)
    return wide[var]


def _repeated(trace: DynamicJaxprTrace, eqn: Equation) -> Var | None:
    """Record an equation once more, of its operands in 64 bits; return its result."""
    primitive, wide = eqn.primitive, dtypes.WIDE_NUMBERS[eqn.outvars[0].aval.dtype]
    if not keeps_number(primitive) and primitive.name not in ("select_n", "convert_element_type"):
        return None
    params = {**eqn.params, "new_dtype": wide} if "new_dtype" in eqn.params else eqn.params
    return trace.process(primitive, [_operand(trace, atom) for atom in eqn.invars], params)._var


def _operand(trace: DynamicJaxprTrace, atom: Atom) -> Array:
    value = atom.val if isinstance(atom, Literal) else trace.value(atom)
    dtype = value.dtype
    return convert_element_type(value, dtypes.WIDE_NUMBERS[dtype], True) if dtype in dtypes.WIDE_NUMBERS and value.weak_type else value
