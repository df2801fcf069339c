"""Arguments of public functions that Python numbers can be: found by trying.

The other arguments of a call, in a 64-bit dtype, come from a pool of generic values (an array, a size, …), of which the first that the
function accepts are taken. So functions are found by their signatures, without being listed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.primitives.array_operations.array_updates import AtIndex

#: The public namespaces of functions.
SPACES = {
    "numpy": vnp, "numpy.linalg": vnp.linalg, "numpy.fft": vnp.fft, "lax": vf.lax, "scipy.special": vf.scipy.special, "random": vf.random,
    "nn": vf.nn, "nn.initializers": vf.nn.initializers,
    **{f"scipy.{name}": getattr(vf.scipy, name) for name in ("linalg", "signal", "fft", "stats", "ndimage", "integrate")},
    "scipy.stats.norm": vf.scipy.stats.norm, "image": vf.image,
}  # fmt: skip


class Kind(NamedTuple):
    """A 64-bit dtype: an array of it, and Python numbers that 32 bits do not hold."""

    dtype: str
    array: np.ndarray
    numbers: tuple[Any, Any]

    def replaced(self, number: Any, convert: Callable[[Any], Any]) -> Any:
        """Convert the numbers in an argument."""
        return type(number)(map(convert, number)) if isinstance(number, (tuple, list)) else convert(number)

    def strong(self, number: Any) -> Any:
        """Return an argument with NumPy's numbers of 64 bits instead of Python's."""
        return self.replaced(number, np.dtype(self.dtype).type)

    def rounded(self, number: Any) -> Any:
        """Return an argument with NumPy's numbers of 64 bits, rounded to half of that."""
        half = {"f": np.float32, "c": np.complex64, "i": np.int32}[np.dtype(self.dtype).kind]
        return self.replaced(number, lambda x: np.asarray(x).astype(half).astype(self.dtype)[()])


def _fixed(array: np.ndarray) -> np.ndarray:
    """Forbid to overwrite an array, as some of NumPy's functions do."""
    array.flags.writeable = False
    return array


_REALS = _fixed(np.array([0.11, 0.23, 0.34, 0.58, 0.87]))
KINDS = [
    Kind("float64", _REALS, (0.3712345678901, 0.7412345678901)),
    Kind("complex128", _fixed(_REALS + 1j * _REALS[::-1]), (0.3712345678901 + 0.1j / 3, 0.7412345678901 - 0.1j / 7)),
    Kind("int64", _fixed(np.array([3, 1, 7, 2, 12])), (2**34 + 3, 2**36 + 5)),
]

#: Arguments that are no arrays or numbers, by the names of their parameters.
_NAMED: dict[str, Any] = {
    "key": vf.random.key(0), "computation": vf.lax.add, "func": vnp.negative, "fun": vnp.negative, "fn": vf.lax.add, "axis": 0,
    "shape": (2,),
    "padding_config": ((1, 1, 0),), "window_dimensions": (2,), "dimensions": (0,), "pad_width": 1, "indices": np.array([0, 2]),
    "start_indices": (1,), "which": _REALS > 0.3, "mask": _REALS > 0.3, "condition": _REALS > 0.3, "condlist": [_REALS > 0.3],
}  # fmt: skip

#: Functions whose numbers are not parameters of theirs: they take any positional or keyword arguments.
_VARIADIC: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {
        "gradient": lambda f, spacing: vnp.gradient(f, spacing),
        "pad": lambda array, constant_values: vnp.pad(array, 1, constant_values=constant_values),
        "pad with a ramp": lambda array, end_values: vnp.pad(array, 2, "linear_ramp", end_values=end_values),
    }
}

#: Parameters of which no sensible argument is a number, or of which a large one is a size that takes forever.
_NO_NUMBERS = frozenset({
    "axis", "axes", "dtype", "shape", "key", "out", "device", "order", "mode", "reduction", "precision", "keepdims", "size", "file", "norm",
    "preferred_element_type", "model", "method", "func", "fun", "f", "fn", "name", "n", "N", "m", "M", "d", "deg", "pytree", "replace",
})  # fmt: skip


def functions(space: str) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a namespace by name; "at" has updates of arrays."""
    if space == "at":
        return {name: _update(name) for name, f in vars(AtIndex).items() if inspect.isfunction(f) and name[0] != "_"}
    names = getattr(SPACES[space], "__all__", None) or dir(SPACES[space])  # a module that is imported by itself lists private names, too
    result = {name: getattr(SPACES[space], name) for name in names if name[0] != "_"} | _VARIADIC.get(space, {})
    return {name: f for name, f in result.items() if callable(f) and not inspect.isclass(f) and parameters(f)}


def _update(name: str) -> Callable[..., Any]:
    def update(x: Any, values: Any) -> Any:
        at = vnp.asarray(x).at[np.array([1, 3])]
        if name == "get":
            return vnp.asarray(x).at[np.array([1, 9])].get(mode="fill", fill_value=values)
        return at.apply(lambda _: values) if name == "apply" else getattr(at, name)(values)

    return update


@functools.cache
def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name; none if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: p for name, p in signature.parameters.items() if p.kind not in variadic}


class ScalarArgument(NamedTuple):
    """A call of a function with numbers, given by Python, as one of its arguments."""

    function: Callable[..., Any]
    parameter: str
    arguments: dict[str, Any]
    number: Any

    def call(self, number: Any, function: Callable[..., Any] | None = None) -> list[np.ndarray]:
        """Return the leaves of the result, of the function or one of the same signature."""
        return [np.asarray(x) for x in vf.tree.leaves(self.result(number, function))]

    def result(self, number: Any, function: Callable[..., Any] | None = None) -> Any:
        """Call the function, and what it returns if that is an initializer."""
        parameter_table = parameters(self.function)
        arguments = {
            n: (self.arguments | {self.parameter: number})[n] for n in parameter_table if n in self.arguments or n == self.parameter
        }
        leading = [
            n
            for n in itertools.takewhile(arguments.__contains__, parameter_table)
            if parameter_table[n].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        result = (function or self.function)(*[arguments.pop(n) for n in leading], **arguments)
        return result(vf.random.key(1), (3, 3), "float64") if inspect.isfunction(result) else result


def values(array: np.ndarray) -> list[Any]:
    """Return values for arguments: arrays made of this one, sizes, shapes."""
    return [array, 1, (2,), np.diag(array), [array, array]]


def accepted(function: Callable[..., Any], array: np.ndarray, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments that a function requires and those of `options`, or None if no combination is accepted."""
    required = [name for name, p in parameters(function).items() if p.default is p.empty]
    choices = itertools.product(*[[_NAMED[name]] if name in _NAMED else values(array) for name in required])
    bases = (options | dict(zip(required, choice, strict=True)) for choice in itertools.islice(choices, 400))
    return next((base for base in bases if _results(ScalarArgument(function, "", base, 0), 0)), None)


def scalar_arguments(function: Callable[..., Any], kind: Kind) -> Iterator[ScalarArgument]:
    """Return the arguments of a function that numbers of a kind can be."""
    parameter_table = parameters(function)
    first, second = kind.numbers
    pool = values(kind.array)
    required = [n for n, p in parameter_table.items() if p.default is p.empty]
    base = accepted(function, kind.array, {"dtype": kind.dtype} if "dtype" in parameter_table else {})
    for name in sorted(parameter_table.keys() - _NO_NUMBERS) if base is not None else ():
        others = [n for n, p in parameter_table.items() if n != name and n not in _NAMED and (p.default is p.empty or p.default is None)]
        changes = [{}, *[{n: v} for n in others if n in required for v in pool], *[{n: kind.array} for n in others if n not in required]]
        for change, arguments in itertools.product(changes, [first, (first, second), [first, first]]):
            argument = ScalarArgument(function, name, {n: v for n, v in (base | change).items() if n != name}, arguments)
            if not _is_size(argument, kind) and all(_is_wide(argument, numbers) for numbers in (arguments, kind.strong(arguments))):
                yield argument
                break


def _results(argument: ScalarArgument, number: Any) -> list[np.ndarray]:
    """Return the leaves of a call's result; none if the function refuses the arguments."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return argument.call(number)
    return []


def _is_size(argument: ScalarArgument, kind: Kind) -> bool:
    """Return True if it takes integers alone: a large one may be a size."""
    return kind.dtype == "int64" and not _results(argument, kind.replaced(argument.number, lambda _: 0.5))


def _is_wide(argument: ScalarArgument, number: Any) -> bool:
    return any(x.dtype.name in ("float64", "complex128", "int64") for x in _results(argument, number))
