"""Universal functions, and functions mapped over arrays."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.advice import explained
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import canonical_shape
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy import arithmetic, logic, reductions
from volta_fn.numpy.arguments import axes_of, axis_of, dtype_or, no_out, operand, promote_inexact
from volta_fn.numpy.creation import arange
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import check_ranks
from volta_fn.settings import current as settings
from volta_fn.transforms.vmap import vmap

# Universal functions: elementwise functions with methods such as `reduce`.
#
# The functions of two numbers that NumPy reduces by, such as `add`, stay plain functions, so that calls cost nothing more, and have the
# methods as attributes. `frompyfunc` makes a `ufunc` of any function that can be traced.

METHODS = ("reduce", "accumulate", "at", "outer", "reduceat")


class _Universal(type):
    """The type of `ufunc`: plain functions with the methods are instances, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or (
            not isinstance(instance, type) and all(hasattr(instance, method) for method in METHODS)
        )


class ufunc(metaclass=_Universal):  # NumPy's name
    """An elementwise function of `nin` arrays with `nout` results, and its methods.

    Args:
        function: the function of arrays.
        nin, nout: how many arrays it takes and gives.
        identity: what leaves every other value unchanged, or None.
        promote: converts an array that is reduced to the dtype of the function's results.
        fast: methods that have a better form than the general one, by name.
    """

    __name__: str
    nin: int
    nout: int
    nargs: int
    identity: Any

    def __init__(
        self,
        function: Callable[..., Any],
        nin: int,
        nout: int,
        identity: Any = None,
        promote: Callable[[str, Any], Array] | None = None,
        **fast: Callable[..., Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._fast, self._promote = function, fast, promote
        self.nin, self.nout, self.nargs, self.identity = nin, nout, nin + nout, identity

    def __call__(self, *args: Any) -> Any:
        """Apply the function elementwise."""
        if len(args) != self.nin:
            raise ArgumentTypeError(f"{self.__name__} takes {self.nin} arrays, got {len(args)}")
        return self._function(*args)

    def __repr__(self) -> str:
        return f"<ufunc {self.__name__!r}>"

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Array:
        """Combine the elements along `axis` from the first to the last.

        Args:
            a: the array.
            axis: one axis; several, or None for all, of functions with an identity, and of `maximum` and `minimum`.
            dtype: the dtype to combine in.
            out: must be None.
            keepdims: whether the axis stays, with size 1.
            initial: the value to begin with.
            where: which elements to combine; then there must be an identity or `initial`.

        >>> jnp.add.reduce(jnp.array([[1, 2], [3, 4]]))
        Array([4, 6], dtype=int32)
        """
        self._check_binary("reduce", out)
        if "reduce" in self._fast:
            return self._fast["reduce"](a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        value = self._typed(a, dtype)
        axes = axes_of(self.__name__, axis, value.ndim)
        if len(axes) != 1 and self.identity is None:
            raise ArgumentError(f"{self.__name__}.reduce: without an identity the order of axes matters; reduce one axis at a time")
        start = self.identity if initial is None else initial
        if where is not None and start is None:
            raise ArgumentError(f"{self.__name__}.reduce: where= needs initial=, as the function has no identity")
        rows, shape = _axes_first(value, axes)
        mask = None if where is None else _axes_first(broadcast_to(operand(self.__name__, "where", where), value.shape), axes)[0]
        result = self._folded(rows, start, mask)
        return lax.expand_dims(result, axes) if keepdims else lax.reshape(result, shape)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Return the combination of each element with all before it along `axis`.

        >>> jnp.multiply.accumulate(jnp.array([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int32)
        """
        self._check_binary("accumulate", out)
        if "accumulate" in self._fast:
            value = operand(self.__name__, "a", a)
            return self._fast["accumulate"](value, axis=axis_of(self.__name__, axis, value.ndim), dtype=dtype)
        value = self._typed(a, dtype)
        dim = axis_of(self.__name__, axis, value.ndim)
        rows = _moved(value, dim, 0)
        if not rows.shape[0]:
            return _moved(rows, 0, dim)
        _, later = lax.scan(lambda total, row: (new := self._step(total, row), new), rows[0], rows[1:])
        return _moved(lax.concatenate([rows[:1], later], 0), 0, dim)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = False) -> Array:
        """Return `a` with the function applied at `indices`, repeated ones repeatedly.

        Args:
            a: the array, which stays as it is: `inplace` must be False.
            indices: an index as in ``a[indices]``.
            b: the second operand, which broadcasts to ``a[indices]``, of functions of two arrays.
            inplace: must be False.

        >>> jnp.add.at(jnp.zeros(3), jnp.array([0, 0, 2]), 1.0)
        Array([2., 0., 1.], dtype=float32)
        """
        if inplace:
            raise ArgumentError(f"{self.__name__}.at: arrays are immutable; use the returned array (inplace=False)")
        if self.nout != 1 or (b is None) != (self.nin == 1):
            raise ArgumentTypeError(f"{self.__name__}.at takes an array, indices and {self.nin - 1} operands, and the function one result")
        value = operand(self.__name__, "a", a)
        if "at" in self._fast:
            return self._fast["at"](value, indices, b)
        chosen = lax.reshape(arange(value.size), value.shape)[indices]
        positions = lax.reshape(chosen, (chosen.size,))
        others = () if b is None else (lax.reshape(broadcast_to(operand(self.__name__, "b", b), chosen.shape), (chosen.size,)),)

        def change(flat: Array, operands: tuple[Array, ...]) -> tuple[Array, None]:
            position, *rest = operands
            new = self._function(flat[position], *rest)
            return flat.at[position].set(lax.convert_element_type(new, flat.dtype)), None

        flat, _ = lax.scan(change, lax.reshape(value, (value.size,)), (positions, *others))
        return lax.reshape(flat, value.shape)

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Reduce the slices that begin at each index and end before the next.

        A slice whose end is not after its begin is its first element.

        >>> jnp.add.reduceat(jnp.arange(6), jnp.array([0, 3, 1]))
        Array([ 3,  3, 15], dtype=int32)
        """
        self._check_binary("reduceat", out)
        value, starts = self._typed(a, dtype), operand(self.__name__, "indices", indices)
        dim = axis_of(self.__name__, axis, value.ndim)
        if starts.ndim != 1:
            raise ShapeError(f"{self.__name__}.reduceat: indices must have one dimension, got shape {starts.shape}")
        rows = _moved(value, dim, 0)
        count = rows.shape[0]
        ends = lax.concatenate([starts[1:], lax.full((min(1, starts.size),), count, starts.dtype)], 0)

        def reduced(start: Array, end: Array) -> Array:
            def step(total: Array, operands: tuple[Array, Array]) -> tuple[Array, None]:
                i, row = operands
                return lax.select(broadcast_to((i > start) & (i < end), row.shape), self._step(total, row), total), None

            return lax.scan(step, rows[start], (arange(count, dtype=starts.dtype), rows))[0]

        return _moved(vmap(reduced)(starts, ends), 0, dim)

    def outer(self, A: Any, B: Any, /) -> Array:
        """Apply the function to every pair of elements of two arrays.

        >>> jnp.subtract.outer(jnp.array([1, 2]), jnp.array([0, 1, 2]))
        Array([[ 1,  0, -1],
               [ 2,  1,  0]], dtype=int32)
        """
        if self.nin != 2:
            raise ArgumentTypeError(f"{self.__name__}.outer: needs a function of two arrays, not {self.nin}")
        left, right = operand(self.__name__, "A", A), operand(self.__name__, "B", B)
        return self._function(lax.reshape(left, left.shape + (1,) * right.ndim), right)

    def _check_binary(self, method: str, out: None) -> None:
        no_out(f"{self.__name__}.{method}", out)
        if (self.nin, self.nout) != (2, 1):
            raise ArgumentTypeError(f"{self.__name__}.{method}: needs a function of two arrays with one result")

    def _typed(self, a: Any, dtype: Any) -> Array:
        """Return an array in the dtype to combine its elements in."""
        value = operand(self.__name__, "a", a)
        if dtype is None and self._promote is not None:
            return self._promote(self.__name__, value)
        return lax.convert_element_type(value, dtype_or(dtype, value.dtype))

    def _step(self, total: Array, row: Array) -> Array:
        return lax.convert_element_type(self._function(total, row), total.dtype)

    def _folded(self, rows: Array, start: Any, mask: Array | None) -> Array:
        """Combine rows from the first to the last, or those that `mask` selects."""
        if start is None and not rows.shape[0]:
            raise ArgumentError(f"{self.__name__}.reduce: there are no elements, and no identity; give initial=")
        first, rest = (rows[0], rows[1:]) if start is None else (lax.full(rows.shape[1:], start, rows.dtype), rows)
        if mask is None:
            return lax.scan(lambda total, row: (self._step(total, row), None), first, rest)[0]
        step = lambda total, operands: (lax.select(operands[1], self._step(total, operands[0]), total), None)  # noqa: E731
        return lax.scan(step, first, (rest, mask))[0]


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """Make a ufunc of a function of scalars.

    Args:
        func: from `nin` scalars to `nout`, of operations that can be traced.
        nin, nout: how many arrays the ufunc takes and gives.
        identity: what leaves every other value unchanged, for reductions.

    Raises `ArgumentError` for numbers of arrays below 1.

    >>> clipped_sum = jnp.frompyfunc(lambda x, y: jnp.minimum(x + y, 5), 2, 1, identity=0)
    >>> clipped_sum.accumulate(jnp.array([1, 3, 4, -2]))
    Array([1, 4, 5, 3], dtype=int32)
    """
    if not callable(func):
        raise ArgumentTypeError(f"frompyfunc: func must be a function, got {func!r}")
    if nin < 1 or nout < 1:
        raise ArgumentError(f"frompyfunc: a ufunc takes and gives at least one array, got nin={nin} and nout={nout}")
    return ufunc(vectorize(func), nin, nout, identity)


def _moved(value: Array, source: int, target: int) -> Array:
    order = [i for i in range(value.ndim) if i != source]
    order.insert(target, source)
    return lax.transpose(value, order)


def _axes_first(value: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """Merge the axes into one that comes first; return also the shape of the others."""
    others = [i for i in range(value.ndim) if i not in axes]
    shape = tuple(value.shape[i] for i in others)
    count = int(np.prod([value.shape[i] for i in axes]))
    return lax.reshape(lax.transpose(value, (*axes, *others)), (count, *shape)), shape


def _with_methods(function: Any, identity: Any = None, nin: int = 2, **options: Callable[..., Any]) -> Any:
    """Set the methods and attributes of a ufunc on its function."""
    universal = ufunc(function, nin, 1, identity, **options)
    for name in (*METHODS, "nin", "nout", "nargs", "identity"):
        setattr(function, name, getattr(universal, name))
    return function


def _inexact(function: str, value: Array) -> Array:
    return promote_inexact(function, value)[0]


def _selected(reduction: Callable[..., Array]) -> Callable[..., Array]:
    """Return a reduction to one of the elements as a fast form of `reduce`."""

    def reduce(a: Any, *, dtype: Any, **options: Any) -> Array:
        return reduction(a if dtype is None else lax.convert_element_type(operand(reduction.__name__, "a", a), dtype), **options)

    return reduce


def _updated(method: str) -> Callable[..., Array]:
    return lambda value, indices, b: getattr(value.at[indices], method)(b)


add = _with_methods(arithmetic.add, 0, reduce=reductions.sum, accumulate=reductions.cumsum, at=_updated("add"))
multiply = _with_methods(arithmetic.multiply, 1, reduce=reductions.prod, accumulate=reductions.cumprod, at=_updated("multiply"))
subtract = _with_methods(arithmetic.subtract, at=_updated("subtract"))
maximum = _with_methods(arithmetic.maximum, reduce=_selected(reductions.max), at=_updated("max"))
minimum = _with_methods(arithmetic.minimum, reduce=_selected(reductions.min), at=_updated("min"))
negative = _with_methods(arithmetic.negative, nin=1)
bitwise_and = _with_methods(logic.bitwise_and, -1)
bitwise_or = _with_methods(logic.bitwise_or, 0)
bitwise_xor = _with_methods(logic.bitwise_xor, 0)
logical_and = _with_methods(logic.logical_and, True, promote=logic.truth)
logical_or = _with_methods(logic.logical_or, False, promote=logic.truth)
logical_xor = _with_methods(logic.logical_xor, False, promote=logic.truth)
logaddexp = _with_methods(arithmetic.logaddexp, -np.inf, promote=_inexact)
logaddexp2 = _with_methods(arithmetic.logaddexp2, -np.inf, promote=_inexact)


# Functions mapped over arrays: vectorize, apply_along_axis, fromfunction, ….

_ARGUMENT = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*,?)?\s*\)"
_SIGNATURE = re.compile(rf"\s*(?:{_ARGUMENT}\s*(?:,\s*{_ARGUMENT}\s*)*)?->\s*{_ARGUMENT}\s*(?:,\s*{_ARGUMENT}\s*)*")
CoreDims = list[tuple[str, ...]]


def iterable(y: Any) -> bool:
    """Return True if `y` can be iterated over; scalars cannot.

    >>> jnp.iterable(jnp.ones(2)), jnp.iterable(jnp.float32(1.0))
    (True, False)
    """
    return bool(y.ndim) if isinstance(y, Array) else np.iterable(y)


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply `func1d` to every vector along `axis`; its results replace that axis.

    >>> jnp.apply_along_axis(jnp.sum, 0, jnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    value = operand("apply_along_axis", "arr", arr)
    dim = axis_of("apply_along_axis", axis, value.ndim)
    function: Callable[..., Any] = lambda v: func1d(v, *args, **kwargs)  # noqa: E731
    for later in range(1, value.ndim - dim):
        function = vmap(function, in_axes=later, out_axes=-1)
    for _ in range(dim):
        function = vmap(function, in_axes=0, out_axes=0)
    return function(value)


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Array:
    """Apply `func(a, axis)` axis by axis; dropped dimensions return with size 1.

    >>> jnp.apply_over_axes(jnp.sum, jnp.ones((2, 3, 4)), [0, 2]).shape
    (1, 3, 1)
    """
    value = operand("apply_over_axes", "a", a)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        dim = axis_of("apply_over_axes", axis, value.ndim)
        result = func(value, dim)
        if result.ndim == value.ndim - 1:
            result = lax.expand_dims(result, (dim,))
        if result.ndim != value.ndim:
            raise ShapeError(f"apply_over_axes: the function changed {value.ndim} dimensions to {result.ndim}")
        value = result
    return value


@explained
def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """Vectorise a function of scalars, or of the core dimensions in `signature`.

    The other dimensions of its arguments broadcast.

    Args:
        pyfunc: the function; it is mapped with `vmap`, so it must be traceable.
        excluded: positions and names of arguments that are passed through; so is None, if there is no signature.
        signature: such as "(n),(n)->()".

    >>> dot = jnp.vectorize(lambda a, b: jnp.sum(a * b), signature="(n),(n)->()")
    >>> dot(jnp.ones((2, 3)), jnp.arange(3.0))
    Array([3., 3.], dtype=float32)
    """
    core = None if signature is None else _parsed(signature)
    wrong = [item for item in excluded if not isinstance(item, (int, str))]
    if wrong:
        raise ArgumentTypeError(f"vectorize: excluded holds positions and names of arguments, got {wrong}")
    if any(isinstance(item, int) and item < 0 for item in excluded):
        raise ArgumentError(f"vectorize: positions in excluded count from the first argument and are not negative, got {set(excluded)}")

    @functools.wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mapped_names = [n for n in kwargs if n not in excluded and (core or kwargs[n] is not None)]
        if mapped_names and signature is not None:
            raise ArgumentError(f"vectorize: arguments of a function with a signature must be positional, got {mapped_names} by name")
        positions = [i for i in range(len(args)) if i not in excluded and (core or args[i] is not None)]
        values = [operand("vectorize", str(i), args[i]) for i in positions] + [operand("vectorize", n, kwargs[n]) for n in mapped_names]
        ins, outs = core or ([()] * len(values), None)
        if len(ins) != len(values):
            raise ArgumentError(f"vectorize: signature {signature!r} takes {len(ins)} arguments, got {len(values)}")

        def called(*items: Any) -> Any:
            full, named = list(args), dict(kwargs)
            for position, item in zip(positions, items, strict=False):
                full[position] = item
            named.update(zip(mapped_names, items[len(positions) :], strict=True))
            result = pyfunc(*full, **named)
            sizes = core_sizes(ins, [v.shape for v in values])
            if outs is None:
                return result
            results = result if isinstance(result, tuple) else (result,)
            if len(results) != len(outs):
                raise ArgumentError(f"vectorize: signature {signature!r} promises {len(outs)} results, got {len(results)}")
            for value, names in zip(results, outs, strict=True):
                if value.ndim != len(names) or any(sizes.setdefault(n, s) != s for n, s in zip(names, value.shape, strict=True)):
                    raise ShapeError(f"vectorize: a result of shape {value.shape} does not fit {names} of signature {signature!r}")
            return result

        return _mapped(called, values, ins)

    return wrapped


def _parsed(signature: str) -> tuple[CoreDims, CoreDims]:
    if not _SIGNATURE.fullmatch(signature):
        raise ArgumentError(f"vectorize: signature {signature!r} is not of the form '(m,n),(n)->(m)'")
    sides = signature.split("->")
    dims = [[tuple(re.findall(r"\w+", argument)) for argument in re.findall(_ARGUMENT, side)] for side in sides]
    return dims[0], dims[1]


def core_sizes(ins: Sequence[Sequence[str]], shapes: Sequence[tuple[int, ...]], context: str = "vectorize") -> dict[str, int]:
    """Return the size of each core dimension; raise `ShapeError` if two disagree."""
    sizes: dict[str, int] = {}
    for i, (names, shape) in enumerate(zip(ins, shapes, strict=True)):
        if len(shape) < len(names):
            raise ShapeError(f"{context}: argument {i} of shape {shape} lacks some of the core dimensions {tuple(names)}")
        for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeError(f"{context}: core dimension {name!r} has sizes {sizes[name]} and {size}")
    return sizes


def _mapped(function: Callable[..., Any], values: Sequence[Array], ins: Sequence[tuple[str, ...]]) -> Any:
    """Map over the loop dimensions where an argument's size is not 1, innermost first."""
    core_sizes(ins, [v.shape for v in values])
    loops = [v.shape[: v.ndim - len(names)] for v, names in zip(values, ins, strict=True)]
    if settings.rank_promotion != "allow":
        check_ranks("vectorize", loops, frozenset({"numpy"}))
    shape = lax.broadcast_shapes(*loops) if loops else ()
    rank = len(shape)
    squeezed, axes = [], []
    for value, loop in zip(values, loops, strict=True):
        padded = (1,) * (rank - len(loop)) + loop
        axes.append([n != 1 or shape[i] == 1 for i, n in enumerate(padded)])
        value = lax.reshape(value, padded + value.shape[len(loop) :])
        squeezed.append(lax.squeeze(value, [i for i, n in enumerate(padded) if not axes[-1][i]]))
    for i in reversed(range(rank)):
        function = vmap(function, in_axes=tuple([0 if taking[i] else None for taking in axes]))
    return function(*squeezed)


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """Evaluate `function(i, j, …)` at every index (i, j, …) of `shape`, with `vmap`.

    >>> jnp.fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int)
    Array([[ 0,  1,  2],
           [10, 11, 12]], dtype=int32)
    """
    sizes = canonical_shape(shape)
    for axis in reversed(range(len(sizes))):
        function = vmap(function, in_axes=tuple([0 if i == axis else None for i in range(len(sizes))]))
    return function(*[arange(n, dtype=dtype) for n in sizes], **kwargs)
