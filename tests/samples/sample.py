"""A *sample*: one way to call a primitive, with arguments to draw and an oracle.

A sample says what cannot be derived: the call, which values its arguments may have, what NumPy gives, which dtypes it takes, and which laws
do not apply. Dtypes are swept: an argument whose `Arg.dtype` is None is drawn in each dtype of `Sample.dtypes`.

    Sample("dot_general", lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))), (Arg((2, 3)), Arg((3, 4))), reference=np.matmul)
    Sample("sort", lambda x: lax.sort(x), (Arg((5,), distinct()),), reference=np.sort)
    Sample("gather", lambda x, i: x[i], (Arg((4, 3)), Arg((2,), integers(0, 4), dtype="int32")), reference=lambda x, i: x[i])
    Sample("eigh", ..., (Arg((3, 3), positive_definite()),), check=lambda inputs, outputs: ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from volta_fn import dtypes as dt

#: ``draw(rng, shape, dtype) -> array`` of exactly that shape and dtype.
Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype], np.ndarray]

#: The shape of operands in the first samples of an elementwise primitive.
USUAL_SHAPE = (2, 3)

#: Names for `Sample.dtypes`.
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
INEXACT = FLOATS + COMPLEX
NUMBERS = INTEGERS + INEXACT
REALS = INTEGERS + FLOATS
ALL = ("bool", *NUMBERS)


def uniform(low: float, high: float, avoid: Sequence[float] = (), margin: float = 0.05) -> Draw:
    """Draw evenly from [low, high], at least `margin` from each point of `avoid`.

    For an integer dtype, draw its integers there; for a complex one, both real and imaginary parts.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype in dt.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if dtype in dt.INTEGERS:
            floor = max(low, 0) if dtype in dt.UNSIGNED else low
            pool = [i for i in range(int(np.ceil(floor)), int(np.floor(high)) + 1) if i not in avoid]
            return rng.choice(pool or [1], shape).astype(dtype)
        values = rng.uniform(low, high, shape)
        for point in avoid:
            offset = values - point
            values = np.where(np.abs(offset) < margin, point + np.where(offset < 0, -margin, margin), values)
        if dtype in dt.COMPLEX:
            values = values + 1j * rng.uniform(low, high, shape)
        return values.astype(dtype)

    return draw


def normal(scale: float = 1.0) -> Draw:
    """Draw normal numbers; small integers for an integer dtype, a coin for bool."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype not in dt.INEXACT:
            return uniform(-4, 4)(rng, shape, dtype)
        values = scale * rng.normal(size=shape)
        if dtype in dt.COMPLEX:
            values = values + 1j * scale * rng.normal(size=shape)
        return values.astype(dtype)

    return draw


def integers(low: int, high: int) -> Draw:
    """Draw integers from `low` up to, not including, `high`."""
    return lambda rng, shape, dtype: rng.integers(low, high, shape).astype(dtype)


def distinct() -> Draw:
    """Draw elements 1/2 or more from each other, shuffled: for max and sort.

    As long as the dtype can tell them from each other.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape))
        if dtype in dt.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        steps = rng.permutation(size)
        values = steps if dtype in dt.INTEGERS else 0.5 * (steps - size // 2) + 0.125
        if dtype in dt.COMPLEX:
            values = values + 0.5j * rng.permutation(size)
        return np.reshape(values, shape).astype(dtype)

    return draw


def positive_definite() -> Draw:
    """Draw Hermitian matrices with well-separated eigenvalues, all at least 1."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        n = shape[-1]
        wide = np.dtype(np.complex128 if dtype in dt.COMPLEX else np.float64)
        basis, _ = np.linalg.qr(normal()(rng, shape, wide)) if n else (np.zeros(shape, wide), None)
        product = (basis * (1.0 + np.arange(n))) @ basis.conj().swapaxes(-1, -2)
        return ((product + product.conj().swapaxes(-1, -2)) / 2).astype(dtype)

    return draw


def well_conditioned() -> Draw:
    """Draw square matrices that are far from singular."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return (normal(0.3)(rng, shape, dtype) + 2 * np.eye(shape[-2], shape[-1])).astype(dtype)

    return draw


def constant(values: Any) -> Draw:
    """Give the same values, whatever the seed."""
    return lambda rng, shape, dtype: np.broadcast_to(np.asarray(values).astype(dtype), shape)


@dataclass(frozen=True)
class Arg:
    """An argument of a sample: shape, how to draw it, and dtype (None: the one swept)."""

    shape: tuple[int, ...] = ()
    draw: Draw = field(default_factory=normal)
    dtype: Any = None


@dataclass(frozen=True)
class Sample:
    """A call of a primitive, with what the laws need to know."""

    #: The primitive, or several if the call shows all of them.
    primitive: str | tuple[str, ...]
    #: What to call: made of volta_fn functions, of as many arrays as `args`; returns an array or a tuple of arrays.
    function: Callable[..., Any]
    args: tuple[Arg, ...]
    #: The same in NumPy. It gets floats as float64 and complex numbers as complex128 (unless `exact`), integers and bools in their own
    #: dtype; its result is compared after conversion to the result's dtype.
    reference: Callable[..., Any] | None = None
    #: Instead of (or with) a reference: ``check(inputs, outputs)``, lists of NumPy arrays, asserts what must hold (U S V = A, …).
    check: Callable[[list[np.ndarray], list[np.ndarray]], None] | None = None
    #: The dtypes to sweep. Derivatives are checked where float64 (and complex128) is among them.
    dtypes: Sequence[str] = ("float32", "float64")
    #: The result's dtype from the swept dtype (a tuple of them for several results); None: the swept dtype for every result.
    result_dtype: Callable[[np.dtype], Any] | None = None
    #: The reference takes arguments in their own dtype and the result must be equal to the last bit.
    exact: bool = False
    #: Positions of the arguments to differentiate by; None: every argument whose dtype is swept. (): no derivative exists (or is zero).
    differentiable: tuple[int, ...] | None = None
    #: Whether the derivative can be differentiated again.
    second_order: bool = True
    #: Whether derivatives by complex arguments are checked (where complex128 is among the dtypes).
    complex_derivative: bool = True
    #: Positions in each of which the call is linear, the others fixed: its transpose is checked there.
    linear: tuple[int, ...] = ()
    #: Whether vmap applies, and whether reverse mode does.
    vmap: bool = True
    reverse: bool = True
    #: Relative (and absolute) tolerance of values per dtype name, where the general one does not do, and why.
    tolerance: dict[str, float] = field(default_factory=dict)
    #: Relative tolerance of derivatives against finite differences, where the general one does not do.
    derivative_tolerance: float | None = None
    why: str = ""
    #: A name that distinguishes samples of one primitive in test ids.
    label: str = ""

    @property
    def primitives(self) -> tuple[str, ...]:
        """The names of the primitives that this sample covers."""
        return (self.primitive,) if isinstance(self.primitive, str) else self.primitive

    @property
    def swept(self) -> tuple[int, ...]:
        """The positions of the arguments whose dtype is swept."""
        return tuple(i for i, arg in enumerate(self.args) if arg.dtype is None)

    @property
    def wrt(self) -> tuple[int, ...]:
        """The positions of the arguments to differentiate by."""
        return self.swept if self.differentiable is None else self.differentiable

    def __str__(self) -> str:
        name = "+".join(self.primitives)
        return f"{name}-{self.label}" if self.label else name

    def __post_init__(self) -> None:
        if self.reference is None and self.check is None:
            raise ValueError(f"sample {self}: give a NumPy reference or a check")
        if (self.tolerance or self.derivative_tolerance) and not self.why:
            raise ValueError(f"sample {self}: a tolerance of its own needs a reason (why=...)")
