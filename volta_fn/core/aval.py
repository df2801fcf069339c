"""Abstract values ("avals").

Types of arrays, known before their numbers, with sizes that may be polynomials, and the promotion of dtypes.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args

import numpy as np

from volta_fn import dtypes
from volta_fn.core.caches import Interned
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    OutOfMemoryError,
    PromotionWarning,
    ShapeError,
    TypePromotionError,
)
from volta_fn.lazy_imports import deferred
from volta_fn.source import is_called_by_user, user_location

if TYPE_CHECKING:
    from fractions import Fraction


# Symbolic sizes: polynomials of variables that stand for the sizes of axes.
#
# Programs have sizes that are numbers. Only descriptions of arrays hold symbolic ones, for `volta_fn.export`, which finds the program for
# every size of a variable.

#: Loaded on first use: few programs have symbolic sizes.
_fractions = deferred("fractions")

#: The variables of a product with their exponents, sorted by name; () is the constant term.
Monomial = tuple[tuple[str, int], ...]


class Dimension:
    """A polynomial with rational coefficients, immutable and comparable.

    >>> b = Dimension.variable("b")
    >>> 2 * b + 1, (2 * b + 1).evaluate({"b": 3})
    (2*b + 1, Fraction(7, 1))
    """

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction], scope: Any = None) -> None:
        #: The constraints on the variables: a `SymbolicScope`, or None.
        self.scope = scope
        self.terms = {monomial: _fractions.Fraction(c) for monomial, c in sorted(terms.items()) if c}

    @classmethod
    def variable(cls, name: str, scope: Any = None) -> Dimension:
        """Return the polynomial that is a variable."""
        return cls({((name, 1),): _fractions.Fraction(1)}, scope)

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables."""
        return frozenset([name for monomial in self.terms for name, _ in monomial])

    def evaluate(self, sizes: Mapping[str, int]) -> Fraction:
        """Evaluate the polynomial at sizes of all variables."""
        total = _fractions.Fraction(0)
        for monomial, coefficient in self.terms.items():
            total += coefficient * value_of(monomial, sizes)
        return total

    def __add__(self, other: Dimension | int) -> Dimension:
        terms = dict(self.terms)
        for monomial, coefficient in _as_dimension(other).terms.items():
            terms[monomial] = terms.get(monomial, _fractions.Fraction(0)) + coefficient
        return Dimension(terms, self.scope or getattr(other, "scope", None))

    def __mul__(self, other: Dimension | int) -> Dimension:
        terms: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in _as_dimension(other).terms.items():
                exponents = dict(left)
                for name, exponent in right:
                    exponents[name] = exponents.get(name, 0) + exponent
                monomial = tuple(sorted(exponents.items()))
                terms[monomial] = terms.get(monomial, _fractions.Fraction(0)) + a * b
        return Dimension(terms, self.scope or getattr(other, "scope", None))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dimension:
        return self * -1

    def __sub__(self, other: Dimension | int) -> Dimension:
        return self + _as_dimension(other) * -1

    def __rsub__(self, other: int) -> Dimension:
        return -self + other

    def __pow__(self, exponent: int) -> Dimension:
        result = _as_dimension(1)
        for _ in range(exponent):
            result = result * self
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dimension | int) and self.terms == _as_dimension(other).terms

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __index__(self) -> NoReturn:
        raise ConcretizationError(f"the size {self} is symbolic: only volta_fn.export.export takes arguments of symbolic sizes")

    __int__ = __bool__ = __index__

    def __repr__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: (-sum([n for _, n in term[0]]), term[0]))
        return " + ".join([_term(monomial, c) for monomial, c in ordered]).replace("+ -", "- ") or "0"


def _as_dimension(value: Dimension | int) -> Dimension:
    return value if isinstance(value, Dimension) else Dimension({(): _fractions.Fraction(value)})


def value_of(monomial: Monomial, sizes: Mapping[str, int]) -> int:
    """Evaluate a monomial at sizes of its variables."""
    product = 1
    for name, exponent in monomial:
        product *= sizes[name] ** exponent
    return product


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    factors = [name if n == 1 else f"{name}^{n}" for name, n in monomial]
    number = [] if coefficient == 1 and factors else [str(coefficient)]
    return "*".join([*number, *factors]).replace("-1*", "-", 1)


def is_symbolic_dim(p: Any) -> bool:
    """Return True if a size is symbolic, and not a number.

    >>> is_symbolic_dim(Dimension.variable("b")), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, Dimension)


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

    >>> import numpy as np, volta_fn as vf
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

    >>> import volta_fn as vf
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
            _tell(name, [x for x in operands if hasattr(x, "dtype")], dtype)
            return


def _tell(name: str, arrays: Sequence[Any], dtype: np.dtype) -> None:
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

_interned: Interned[tuple[Shape, np.dtype, bool], ShapedArray] = Interned()
_lock = threading.Lock()


def _as_np_dtype(dtype: Any) -> np.dtype:
    return dtype if isinstance(dtype, (np.dtype, dtypes.ExtendedDType)) else dtypes.as_dtype(dtype)  # type: ignore[return-value]


#: The most dimensions of NumPy's arrays, and the most bytes, which it counts in signed words, without dimensions of 0.
_MOST_AXES = 64
_MOST_BYTES = sys.maxsize


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
    #: The sharding of arrays of the type: none.
    sharding: ClassVar[None] = None

    def __new__(cls, shape: Shape, dtype: np.dtype, weak_type: bool = False, *, sharding: None = None) -> ShapedArray:
        try:
            key = (shape, dtype, weak_type)
            aval = _interned.get(key)
        except TypeError:  # a list for a shape
            aval = None
        if aval is not None:
            return aval
        shape, dtype = tuple(shape), _as_np_dtype(dtype)
        shape = tuple([d.__index__() if isinstance(d, Dimension) else d for d in shape])
        key = (shape, dtype, weak_type)
        if len(shape) > _MOST_AXES:
            raise ShapeError(f"an array has at most {_MOST_AXES} axes, but this would have {len(shape)}; merge some by reshape")
        if math.prod([d or 1 for d in shape]) * dtype.itemsize > _MOST_BYTES:
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

    def __repr__(self) -> str:
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)

    def update(self, shape: Shape | None = None, dtype: np.dtype | None = None, weak_type: bool | None = None) -> ShapedArray:
        """Return the aval that differs from this one in the given fields."""
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def strip_weak_type(self) -> ShapedArray:
        """Return the same aval with a strong dtype."""
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def tangent_aval(self) -> ShapedArray:
        """Return the aval of tangents: itself if inexact, else of dtype `float0`."""
        if self.is_float or self.dtype in dtypes.INEXACT:
            return self.strip_weak_type()
        return ShapedArray(self.shape, dtypes.float0)

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

    It stands in for an array in `eval_shape`, `make_jaxpr` and `jit(f).lower`. `sharding` is kept, and has no effect.

    >>> ShapeDtypeStruct((8, 4), "float32")
    ShapeDtypeStruct(shape=(8, 4), dtype=float32)
    """

    __slots__ = ("dtype", "shape", "sharding", "weak_type")
    #: ``ShapeDtypeStruct.like(x)`` describes an array (`volta_fn.core.array` sets it).
    like: ClassVar[Callable[[Any], ShapeDtypeStruct]]

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False) -> None:
        symbolic = isinstance(shape, tuple) and any(isinstance(d, Dimension) for d in shape)
        self.shape: Shape = tuple(shape) if symbolic else canonical_shape(shape)
        self.dtype = dtypes.as_dtype(dtype)
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
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{weak})"

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
    try:
        return value.__index__()
    except ConcretizationError:  # a traced number, whose message says where it comes from
        raise
    except (AttributeError, TypeError):
        raise ArgumentTypeError(f"{name} must be an integer, got {value!r:.80} of type {type(value).__name__}") from None


def sizes_of(shape: Any) -> tuple[Any, ...]:
    """Return a shape's sizes; a shape is any iterable of them, or one size."""
    if isinstance(shape, (int, np.integer)) or getattr(shape, "shape", None) == ():
        return (shape,)
    try:
        return tuple(shape)
    except TypeError:
        return (shape,)


def canonical_shape(shape: Sequence[int] | int, context: str = "shape") -> Shape:
    """Return `shape` as a tuple of ints; raise `ShapeError` if it cannot be one."""
    dims = sizes_of(shape)
    if all(type(d) is int and d >= 0 for d in dims):
        return dims
    try:
        result = tuple(d.__index__() for d in dims)
    except ConcretizationError:  # a traced size, whose message says where it comes from
        raise
    except (AttributeError, TypeError) as error:
        raise ShapeError(f"{context} must consist of integers, got {dims!r}") from error
    if any(d < 0 for d in result):
        raise ShapeError(f"{context} must have no negative dimension, got {result}")
    return result
