"""Abstract values ("avals"): types of arrays, with sizes that may be symbolic."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from volta_fn import dtypes
from volta_fn.core.interned import Interned
from volta_fn.errors import ArgumentTypeError, ConcretizationError, OutOfMemoryError, ShapeError
from volta_fn.lazy_imports import deferred

if TYPE_CHECKING:
    from fractions import Fraction


# ------------------------------------------------------------------------------
# Symbolic sizes: polynomials of variables that stand for the sizes of axes.
#
# Programs have sizes that are numbers. Only descriptions of arrays hold symbolic ones, for `volta_fn.export`, which finds the program for
# every size of a variable.
# ------------------------------------------------------------------------------

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
        #: What is known of the variables: a `SymbolicScope`, or None.
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
        """Return the value for given sizes of all variables."""
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
                monomial = _times(left, right)
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
    """Return a monomial's value for given sizes of its variables."""
    product = 1
    for name, exponent in monomial:
        product *= sizes[name] ** exponent
    return product


def _times(left: Monomial, right: Monomial) -> Monomial:
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, 0) + exponent
    return tuple(sorted(exponents.items()))


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


# ------------------------------------------------------------------------------
# Abstract values ("avals"): types of arrays, known before their numbers.
#
# An aval is interned: two avals with equal shape, dtype and weak type are the same object, so caches compare and hash them by
# identity, at the speed of a pointer. *Weak* avals belong to Python scalars, whose dtype yields to that of any array they meet.
# ------------------------------------------------------------------------------

Shape = tuple[int, ...]

_interned: Interned[tuple[Shape, np.dtype, bool], ShapedArray] = Interned()
_lock = threading.Lock()


def _as_np_dtype(dtype: Any) -> np.dtype:
    return dtype if isinstance(dtype, (np.dtype, dtypes.ExtendedDType)) else dtypes.as_dtype(dtype)  # type: ignore[return-value]


#: The most dimensions of NumPy's arrays, and the most bytes, which it counts in signed words, without dimensions of 0.
_MOST_AXES = 64
_MOST_BYTES = sys.maxsize


def _check_possible(shape: Shape, dtype: np.dtype) -> None:
    """Raise an error for an array that cannot exist, however large the memory."""
    if len(shape) > _MOST_AXES:
        raise ShapeError(f"an array has at most {_MOST_AXES} axes, but this would have {len(shape)}; merge some by reshape")
    if math.prod([d or 1 for d in shape]) * dtype.itemsize > _MOST_BYTES:
        raise OutOfMemoryError(f"an array of shape {shape} and dtype {dtype} would have more than {_MOST_BYTES} bytes; compute it in parts")


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
    #: How arrays of the type are split between devices: not at all.
    sharding: ClassVar[None] = None

    def __new__(cls, shape: Shape, dtype: np.dtype, weak_type: bool = False, *, sharding: None = None) -> ShapedArray:
        try:
            key = (shape, dtype, weak_type)
            found = _interned.get(key)
        except TypeError:  # a list for a shape
            found = None
        if found is not None:
            return found
        shape, dtype = tuple(shape), _as_np_dtype(dtype)
        shape = tuple([d.__index__() if isinstance(d, Dimension) else d for d in shape])
        key = (shape, dtype, weak_type)
        _check_possible(shape, dtype)
        with _lock:
            found = _interned.get(key)
            if found is None:
                found = object.__new__(cls)
                found.shape, found.dtype, found.weak_type = shape, dtype, weak_type
                found.ndim, found.size = len(shape), math.prod(shape)
                found.is_float = dtype in dtypes.FLOATS
                _interned.add(key, found)
        return found

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

    def to_tangent_aval(self) -> ShapedArray:
        """Return the aval of tangents, by JAX's name for `at_least_vspace`."""
        return self.at_least_vspace()

    def strip_weak_type(self) -> ShapedArray:
        """Return the same aval with a strong dtype."""
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def at_least_vspace(self) -> ShapedArray:
        """Return the aval of tangents: itself if inexact, else of dtype `float0`."""
        if self.is_float or self.dtype in dtypes.INEXACT:
            return self.strip_weak_type()
        return ShapedArray(self.shape, dtypes.float0)

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return self.size * self.dtype.itemsize


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
        kept = {"shape": self.shape, "dtype": self.dtype, "sharding": self.sharding, "weak_type": self.weak_type}
        if unknown := changes.keys() - kept.keys():
            raise ArgumentTypeError(f"a ShapeDtypeStruct has no {sorted(unknown)}; it has {sorted(kept)}")
        return ShapeDtypeStruct(**(kept | changes))

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
    """Return the sizes that a shape lists: any iterable, or one size."""
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
