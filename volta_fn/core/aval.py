"""Abstract values ("avals").

Types of arrays, known before their numbers, with sizes that may be symbolic, and the promotion of dtypes.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from volta_fn import dtypes
from volta_fn.core.caches import Interned
from volta_fn.core.dimension import Dimension, is_symbolic
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    OutOfMemoryError,
    PromotionWarning,
    ShapeError,
    TypePromotionError,
)
from volta_fn.lazy_imports import load
from volta_fn.source import is_called_by_user, user_location

# How operands of different dtypes may combine: silently, with a warning, or not.
#
# By default the first float32 array that becomes float64 because it meets float64 data gives a warning: it makes a network twice as large
# and several times slower. Functions that promote operands call `check_promotion`, while they are traced or run.

Mode = Literal["standard", "strict"]

#: A variable of the environment with the mode of the process.
_VARIABLE = "VOLTA_NUMPY_DTYPE_PROMOTION"
_WIDE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})
_NARROW = (dtypes.FLOATS | dtypes.COMPLEX) - _WIDE

#: Packages whose own operations are checked, too: they apply operators to the arrays that they are given. Others convert as they need.
_CHECKED = frozenset({"core", "primitives", "jit", "numpy", "nn", "optim"})

_scoped_mode: ContextVar[Mode | None] = ContextVar("numpy_dtype_promotion", default=None)
_process_mode: Mode | None = None
_warned = False


def numpy_dtype_promotion(new_val: Mode) -> contextlib.AbstractContextManager[None]:
    """Choose in a ``with`` block how arrays of different dtypes combine.

    "standard" promotes as JAX does, without a warning; "strict" raises `TypePromotionError` where arrays (not Python's numbers) would
    change their dtype. It holds for operations of the program, of `volta_fn.numpy`, layers and optimizers; not for those that solvers,
    samplers and the like consist of. Without a choice, the first promotion of a float32 array by float64 data gives a
    `PromotionWarning` with the line.
    Programs that were traced before keep the mode of their tracing.

    Raises `ArgumentError` for another mode.

    >>> import numpy as np
    >>> w, data = vf.numpy.ones(2), np.ones(2)
    >>> with vf.numpy_dtype_promotion("strict"):
    ...     w * 2.0, w * data
    Traceback (most recent call last):
    volta_fn.errors.TypePromotionError: mul: float32[2] and float64[2] would combine to float64...
    """
    return _scope(_checked(new_val))


@contextlib.contextmanager
def _scope(mode: Mode) -> Iterator[None]:
    token = _scoped_mode.set(mode)
    try:
        yield
    finally:
        _scoped_mode.reset(token)


def set_numpy_dtype_promotion(new_val: Mode | None) -> None:
    """Choose for the process what `numpy_dtype_promotion` chooses for a block.

    None goes back to the default, which warns once. The variable VOLTA_NUMPY_DTYPE_PROMOTION chooses for a process, too.

    >>> vf.set_numpy_dtype_promotion("standard")
    """
    global _process_mode, _warned
    _process_mode = None if new_val is None else _checked(new_val)
    _warned = False


def _checked(mode: str) -> Mode:
    if mode not in get_args(Mode):
        raise ArgumentError(f"numpy_dtype_promotion: the mode is 'standard' or 'strict', got {mode!r}")
    return mode  # type: ignore[return-value]  # it is one of these


def check_promotion(name: str, operands: Sequence[Any], dtype: np.dtype) -> None:
    """Warn or raise if operands promote to a dtype that not all arrays have.

    Operands are arrays of any kind, or Python's numbers. Raises `TypePromotionError` in the mode "strict".
    """
    for operand in operands:
        operand_dtype = getattr(operand, "dtype", None)
        if operand_dtype is None or operand_dtype is dtype or getattr(operand, "weak_type", False):
            continue
        if dtypes.canonical(operand_dtype) != dtype:
            _report_promotion(name, [x for x in operands if hasattr(x, "shape")], dtype)
            return


def _report_promotion(name: str, arrays: Sequence[Any], dtype: np.dtype) -> None:
    global _warned
    mode = _scoped_mode.get() or _process_mode
    mode = _checked(setting) if mode is None and (setting := os.environ.get(_VARIABLE)) else mode
    listed = " and ".join(f"{x.dtype.name}[{','.join(map(str, x.shape))}]" for x in arrays)
    if mode == "strict" and not is_called_by_user(_CHECKED):
        return
    if mode == "strict":
        raise TypePromotionError(
            f"{name}: {listed} would combine to {dtype.name}, which numpy_dtype_promotion('strict') forbids. "
            "Convert one of them with x.astype(...)."
        )
    if mode is not None or _warned or not (any(map(_is_wide, arrays)) and any(map(_is_widened, arrays))):
        return
    _warned = True
    message = (
        f"{name}: {listed} combine to {dtype.name}, and so does all that follows: twice the memory, and slower. NumPy's arrays and "
        "scalars are float64 unless you convert them: x.astype('float32'). If you want float64, say "
        "set_numpy_dtype_promotion('standard'); for an error instead, 'strict'. This warning is given once."
    )
    where = user_location()
    warnings.warn_explicit(message, PromotionWarning, where.file if where else "", where.lineno if where else 0)


def _is_wide(x: Any) -> bool:
    """Return True for float64 data; 64-bit integers that need it are another matter."""
    return x.dtype in _WIDE and not getattr(x, "weak_type", False)


def _is_widened(x: Any) -> bool:
    """Return True for arrays of 32 bits and less; a single number costs nothing."""
    return x.ndim > 0 and x.dtype in _NARROW and not getattr(x, "weak_type", False)


# Abstract values ("avals"): types of arrays, known before their numbers.
#
# An aval is interned: two avals with equal shape, dtype and weak type are the same object, so caches compare and hash them by
# identity, at the speed of a pointer. *Weak* avals belong to Python scalars, whose dtype yields to that of any array they meet.

Shape = tuple[int, ...]

_interned: Interned[tuple[Any, ...], ShapedArray] = Interned()
_lock = threading.Lock()


def _as_np_dtype(dtype: Any) -> np.dtype:
    return dtype if isinstance(dtype, (np.dtype, dtypes.ExtendedDType)) else dtypes.as_dtype(dtype)  # type: ignore[return-value]


#: The most dimensions of NumPy's arrays, and the most bytes, which it counts in signed words, without dimensions of 0.
_MOST_AXES = 64
_MOST_BYTES = sys.maxsize


class MemorySpace(enum.Enum):
    """A kind of memory in JAX; arrays of a device lie in one, which all mean."""

    Device = enum.auto()
    Host = enum.auto()
    Any = enum.auto()


class ShapedArray:
    """The shape, dtype and weak type of an array, without its values.

    >>> ShapedArray((2, 3), np.dtype("float32"))
    f32[2,3]
    >>> ShapedArray((2,), np.dtype("int32")) is ShapedArray((2,), np.dtype("int32"))
    True
    """

    __slots__ = ("__weakref__", "dtype", "is_float", "ndim", "shape", "size", "weak_type")
    shape: Shape
    dtype: np.dtype
    weak_type: bool
    ndim: int
    size: int
    #: Whether the dtype is a real floating one.
    is_float: bool
    #: The memory of arrays of the type: there is one.
    memory_space: ClassVar[MemorySpace] = MemorySpace.Device

    def __new__(
        cls, shape: Shape, dtype: np.dtype, weak_type: bool = False, *, sharding: Any = None, manual_axis_type: Any = None,
        memory_space: Any = None,
    ) -> ShapedArray:  # fmt: skip
        try:
            key: tuple[Any, ...] = (shape, dtype, weak_type)
            aval = _interned.get(key)
        except TypeError:  # a list for a shape
            aval = None
        if aval is not None:
            return aval
        shape, dtype = canonical_shape(shape), _as_np_dtype(dtype)
        symbolic = is_symbolic(shape)
        # Sizes without a scope are equal to those of every scope, but have none of its constraints.
        scopes = tuple([id(getattr(size, "scope", None)) for size in shape]) if symbolic else ()
        key = (shape, dtype, weak_type, *scopes)
        if len(shape) > _MOST_AXES:
            raise ShapeError(f"an array has at most {_MOST_AXES} axes, but this would have {len(shape)}; merge some by reshape")
        if not symbolic and math.prod([d or 1 for d in shape]) * dtype.itemsize > _MOST_BYTES:
            raise OutOfMemoryError(
                f"an array of shape {shape} and dtype {dtype} would have more than {_MOST_BYTES} bytes; compute it in parts"
            )
        with _lock:
            aval = _interned.get(key)
            if aval is None:
                aval = object.__new__(cls)
                aval.shape, aval.dtype, aval.weak_type = shape, dtype, weak_type
                aval.ndim, aval.size = len(shape), math.prod(shape)
                aval.is_float = dtype in dtypes.FLOATS
                _interned.add(key, aval)
        return aval

    @property
    def sharding(self) -> Any:
        """The sharding of arrays of the type that are not split: one without axes."""
        module = load("volta_fn.core.devices.sharding")
        return module.NamedSharding(module.AbstractMesh((), ()), module.PartitionSpec(*[None] * self.ndim))

    def __repr__(self) -> str:
        return self.str_short(short_dtypes=True)

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        """Return the type as JAX writes it, "float32[2,3]" or "f32[2,3]".

        `mesh_axis_types` has no effect.
        """
        return f"{dtypes.short_name(self.dtype) if short_dtypes else self.dtype.name}{self._sizes()}"

    def str_long(self) -> str:
        """Return the type as `str` gives it in JAX, weak ones as "~float32[]"."""
        return f"{'~' * self.weak_type}{self.str_short()}"

    def _sizes(self) -> str:
        return f"[{','.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)

    def update(
        self, shape: Shape | None = None, dtype: np.dtype | None = None, weak_type: bool | None = None, *, sharding: Any = None,
        manual_axis_type: Any = None, memory_space: Any = None,
    ) -> ShapedArray:  # fmt: skip
        """Return the aval that differs from this one in the given fields.

        Those of shardings and memories have no effect, as in the constructor.
        """
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def strip_weak_type(self) -> ShapedArray:
        """Return the same aval with a strong dtype."""
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def tangent_aval(self) -> ShapedArray:
        """Return the type of tangents and cotangents in programs, which is never weak.

        Its dtype is this one if that is inexact, float32 for floats that are only stored, and `float0` for integers and booleans.
        """
        if self.is_float or self.dtype in dtypes.INEXACT:
            return self.strip_weak_type()
        return ShapedArray(self.shape, np.dtype(np.float32) if self.dtype in dtypes.STORAGE_FLOATS else dtypes.float0)

    @property
    def is_differentiable(self) -> bool:
        """Whether values have tangents."""
        return self.is_float or self.dtype in dtypes.INEXACT or self.dtype in dtypes.STORAGE_FLOATS

    #: JAX's names for it.
    to_tangent_aval = at_least_vspace = tangent_aval

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return self.size * self.dtype.itemsize


class Typed:
    """Base class of what has an abstract value, `aval`, and so a shape and a dtype."""

    __slots__ = ()

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """The length of each dimension."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.aval.ndim


class ShapeDtypeStruct:
    """A shape and a dtype, without values.

    It stands in for an array in `eval_shape`, `make_jaxpr` and `jit(f).lower`, which splits the argument by its `sharding`.

    >>> ShapeDtypeStruct((8, 4), "float32")
    ShapeDtypeStruct(shape=(8, 4), dtype=float32)
    """

    __slots__ = ("dtype", "shape", "sharding", "weak_type")
    #: ``ShapeDtypeStruct.like(x)`` describes an array (`volta_fn.core.arrays.array` sets it).
    like: ClassVar[Callable[[Any], ShapeDtypeStruct]]

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False) -> None:
        self.shape: Shape = canonical_shape(shape)
        self.dtype = _as_np_dtype(dtype)
        self.sharding = sharding
        self.weak_type = weak_type

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """Return a description with other `shape`, `dtype`, `sharding` or `weak_type`."""
        fields = {"shape": self.shape, "dtype": self.dtype, "sharding": self.sharding, "weak_type": self.weak_type}
        if unknown := changes.keys() - fields.keys():
            raise ArgumentTypeError(f"a ShapeDtypeStruct has no {sorted(unknown)}; it has {sorted(fields)}")
        return ShapeDtypeStruct(**(fields | changes))

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a zero-dimensional array")
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        sharding = "" if self.sharding is None else f", sharding={self.sharding}"
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{weak}{sharding})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStruct):
            return NotImplemented
        return (self.shape, self.dtype, self.weak_type) == (other.shape, other.dtype, other.weak_type)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.weak_type))


def as_integer(value: Any, name: str) -> int:
    """Return `value` as an int; raise `ArgumentTypeError` if it is not an integer.

    `name` is how the message calls it.

    >>> as_integer(np.int8(3), "split: sections")
    3
    >>> as_integer(2.5, "split: sections")
    Traceback (most recent call last):
    volta_fn.errors.ArgumentTypeError: split: sections must be an integer, got 2.5 of type float...
    """
    if isinstance(value, Dimension):
        return value  # type: ignore[return-value]  # a symbolic size, for which programs are traced, too
    try:
        return value.__index__()
    except ConcretizationError:  # a traced number, whose message says where it comes from
        raise
    except (AttributeError, TypeError):
        raise ArgumentTypeError(f"{name} must be an integer, got {value!r:.80} of type {type(value).__name__}") from None


def check_option(value: Any, name: str, options: Collection[Any]) -> None:
    """Raise `ArgumentError` unless a value is one of some options."""
    if value not in options:
        *others, last = map(repr, options)
        raise ArgumentError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def sizes_of(shape: Any) -> tuple[Any, ...]:
    """Return a shape's sizes; a shape is any iterable of them, or one size."""
    if isinstance(shape, (int, np.integer)) or getattr(shape, "shape", None) == ():
        return (shape,)
    try:
        return tuple(shape)
    except TypeError:
        return (shape,)


def integer_sizes(shape: Any, context: str = "shape") -> Shape:
    """Return a tuple of ints, maybe negative, and symbolic sizes."""
    dims = sizes_of(shape)
    if all(type(d) is int for d in dims):
        return dims
    try:
        sizes: list[Any] = [d if isinstance(d, Dimension) else d.__index__() for d in dims]
        return tuple(sizes)
    except ConcretizationError:  # a traced size, whose message says where it comes from
        raise
    except (AttributeError, TypeError) as error:
        remedy = ". The quotient of integers is n // 2, and n / 2 is a float" if any(isinstance(d, float) for d in dims) else ""
        raise ShapeError(f"{context} must consist of integers, got {dims!r}{remedy}") from error


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return True if an array of a shape broadcasts to exactly `target`."""
    return len(shape) <= len(target) and all(n in (1, size) for n, size in zip(shape[::-1], target[::-1], strict=False))


def canonical_shape(shape: Sequence[int] | int, context: str = "shape") -> Shape:
    """Return a tuple of ints and symbolic sizes; raise `ShapeError` for others."""
    result = integer_sizes(shape, context)
    if any(not isinstance(d, Dimension) and d < 0 for d in result):
        raise ShapeError(f"{context} must have no negative dimension, got {result}")
    return result
