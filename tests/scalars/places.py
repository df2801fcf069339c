"""Where public functions take Python numbers: found by trying, from signatures alone.

A *place* is a parameter of a function that takes a number in a call with arrays of a 64-bit dtype. The other arguments come from a pool
of generic values (an array, a size, …); the first ones that the function accepts are taken.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.primitives.array_updates import AtIndex


class Kind(NamedTuple):
    """A 64-bit dtype: an array of it, and Python numbers that 32 bits do not hold."""

    dtype: str
    array: np.ndarray
    numbers: tuple[Any, Any]

    def strong(self, value: Any) -> Any:
        """Return Python numbers of this kind as NumPy's, which are 64 bits wide."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.strong, value))
        return np.dtype(self.dtype).type(value) if value in self.numbers else value

    def rounded(self, value: Any) -> Any:
        """Return Python numbers of this kind as they are with half the bits, in 64."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.rounded, value))
        half = {"f": np.float32, "c": np.complex64, "i": np.int32}[np.dtype(self.dtype).kind]
        return np.dtype(self.dtype).type(np.asarray(value).astype(half)) if value in self.numbers else value


_REALS = np.array([0.11, 0.23, 0.34, 0.58, 0.87])
KINDS = [
    Kind("float64", _REALS, (0.3712345678901, 0.7412345678901)),
    Kind("complex128", _REALS + 1j * _REALS[::-1], (0.3712345678901 + 0.1j / 3, 0.7412345678901 - 0.1j / 7)),
    Kind("int64", np.array([3, 2**33 + 1, 7, 2**35, 12]), (2**34 + 3, 2**36 + 5)),
]

#: Arguments that are no numbers, by name.
_NAMED: dict[str, Any] = {
    "key": vf.random.key(0), "computation": vf.lax.add, "func": vnp.negative, "fun": vnp.negative, "fn": vf.lax.add, "func1d": vnp.negative,
    "body_fun": lambda carry: carry, "cond_fun": lambda carry: False, "true_fun": lambda x: x, "false_fun": lambda x: x, "pred": True,
    "mask": _REALS > 0.3, "condition": _REALS > 0.3, "condlist": [_REALS > 0.3], "f": lambda carry, x: (carry + x, None),
    "padding_config": ((1, 1, 0),), "window_dimensions": (2,), "dimensions": (0,), "pad_width": 1, "axis_name": "i",
    "indices": np.array([0, 2]), "start_indices": (1,), "branches": [lambda x: x, lambda x: -x], "which": _REALS > 0.3,
}  # fmt: skip

#: Parameters that are never numbers, and are left as they are.
_NO_NUMBERS = frozenset({
    "axis", "axes", "dtype", "shape", "key", "out", "device", "order", "mode", "reduction", "precision", "keepdims", "size", "file", "norm",
    "preferred_element_type", "method", "func", "fun", "f", "fn", "name",
})  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions, and the updates of arrays, by their names."""
    spaces = {"numpy": vnp, "numpy.linalg": vnp.linalg, "numpy.fft": vnp.fft, "lax": vf.lax, "special": vf.special, "random": vf.random}
    spaces |= {"nn": vf.nn, "nn.initializers": vf.nn.initializers}
    found = {f"{space}.{name}": getattr(module, name) for space, module in spaces.items() for name in dir(module) if name[0] != "_"}
    updates = {f"at.{name}": _update(name) for name, f in vars(AtIndex).items() if inspect.isfunction(f) and name[0] != "_"}
    return {n: f for n, f in (found | updates).items() if callable(f) and not inspect.isclass(f) and parameters(f)}


def _update(name: str) -> Callable[..., Any]:
    def update(x: Any, values: Any) -> Any:
        at = vnp.asarray(x).at[1]
        if name == "get":
            return at.get(mode="fill", fill_value=values) if False else vnp.asarray(x).at[9].get(mode="fill", fill_value=values)
        return at.apply(lambda _: values) if name == "apply" else getattr(at, name)(values)

    return update


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name; none if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: p for name, p in signature.parameters.items() if p.kind not in variadic}


class Place(NamedTuple):
    """A call of a function with arrays and numbers, those of one parameter given by Python."""

    function: Callable[..., Any]
    parameter: str
    arguments: dict[str, Any]
    given: Any

    def call(self, given: Any) -> Any:
        """Call the function with these numbers."""
        return call(self.function, self.arguments | {self.parameter: given})


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function of named arguments, and what it returns if that is an initializer."""
    known = parameters(function)
    positional = [arguments[n] for n in itertools.takewhile(arguments.__contains__, known) if known[n].kind is not known[n].KEYWORD_ONLY]
    named = {n: v for n, v in arguments.items() if n not in list(known)[: len(positional)]}
    result = function(*positional, **named)
    return result(vf.random.key(1), (3, 3), "float64") if inspect.isfunction(result) else result


def places(function: Callable[..., Any], kind: Kind) -> Iterator[Place]:
    """Return the places of a function."""
    known = parameters(function)
    first, second = kind.numbers
    pool = [kind.array, kind.strong(first), 1, (2,), np.diag(kind.array), [kind.array, kind.array]]
    required = [n for n, p in known.items() if p.default is p.empty]
    choices = [[_NAMED[n]] if n in _NAMED else [(2,)] if n == "shape" else [0] if n == "axis" else pool for n in required]
    typed = {"dtype": kind.dtype} if "dtype" in known else {}
    base = next((b for c in itertools.islice(itertools.product(*choices), 400) if _works(function, b := typed | dict(zip(required, c)))), None)
    if base is None:
        return
    for name in known.keys() - _NO_NUMBERS:
        others = [n for n in required if n != name]
        changed = [{}, *[{n: v} for n in others for v in pool if n not in _NAMED]]
        for change, given in itertools.product(changed, [first, (first, second), [first, first]]):
            arguments = base | change
            if _works(function, arguments | {name: given}, True) and _works(function, arguments | {name: kind.strong(given)}, True):
                yield Place(function, name, {n: v for n, v in arguments.items() if n != name}, given)
                break


def _works(function, arguments, tell=False):
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaves = [np.asarray(x) for x in vf.tree.leaves(call(function, arguments))]
        return bool(leaves) if not tell else any(x.dtype.itemsize >= 8 and x.dtype.kind in "fci" for x in leaves)
    return False
