"""Check derivatives against finite differences, for tests of one's own rules.

A *direction* is one random tangent for each argument. Complex numbers are checked as pairs of real ones: the derivative along a complex
direction is that of the function along a real line, and cotangents are paired without conjugation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import as_value
from volta_fn.dtypes import COMPLEX, INEXACT, float0
from volta_fn.errors import ArgumentError, DerivativeError, GradientError
from volta_fn.settings import current as settings
from volta_fn.transforms.grad import jvp, vjp

#: A function of named arrays whose results are named arrays.
Function = Callable[[Mapping[str, Any]], dict[str, Any]]
Arrays = dict[str, np.ndarray]
#: An allowed error: a number, one for each dtype, or None for the default.
Tolerance = float | Mapping[Any, float] | None


class Precision(NamedTuple):
    """Absolute and relative tolerance of derivatives, and the finite difference step."""

    atol: float
    rtol: float
    eps: float


#: By dtype, the least precise first. Steps are near the cube root of the precision, which makes central differences most exact.
_PRECISIONS = {
    "bfloat16": Precision(2e-1, 2e-1, 2.0**-3),
    "float16": Precision(5e-2, 5e-2, 2.0**-4),
    "float32": Precision(5e-3, 5e-3, 2.0**-8),
    "complex64": Precision(5e-3, 5e-3, 2.0**-8),
    "float64": Precision(1e-6, 1e-6, 2.0**-17),
    "complex128": Precision(1e-6, 1e-6, 2.0**-17),
}


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
) -> None:
    """Check the derivatives of `f` at `args` against central differences.

    The differences go along random directions, up to the given order of derivatives.

    Args:
        f: a function of pytrees of arrays, with a pytree of arrays for its result. Integer arguments are held fixed,
            integer results left out.
        args: where to check: a sequence of the arguments, best of sizes around 1.
        order: 1 for first derivatives, 2 for those and the second ones, and so on.
        modes: "fwd" for `jvp`, "rev" for `vjp`; with both, beyond the first order, all their mixtures.
        atol, rtol: allowed absolute and relative error, or a dict from dtypes to such numbers, of which the least precise dtype of the
            arguments and results selects one. Default: by that dtype, 5e-3 for float32 and 1e-6 for float64.
        eps: step of the differences. Default: likewise, 2⁻⁸ for float32 and 2⁻¹⁷ for float64.

    Raises:
        DerivativeError: a derivative is wrong. The message names the mode, the element, and both numbers. It is also an `AssertionError`.
        GradientError: no argument or no result has a derivative. ArgumentError: `order` or `modes` are not as above.

    >>> vf.test_util.check_grads(vf.numpy.sin, (vf.numpy.array([0.5, 1.0]),), order=2)

    A wrong rule raises an error:

    >>> double = vf.custom_jvp(lambda x: 2 * x)
    >>> double.defjvps(lambda g, out, x: 2.1 * g)
    >>> vf.test_util.check_grads(double, (1.0,), order=1)
    Traceback (most recent call last):
    volta_fn.errors.DerivativeError: check_grads: jvp of f: ...
    """
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise ArgumentError(f"check_grads: order is a whole number, 1 or more, got {order!r}")
    chosen = {modes} if isinstance(modes, str) else set(modes)
    if not chosen or not chosen <= {"fwd", "rev"}:
        raise ArgumentError(f'check_grads: modes are "fwd", "rev" or both, got {modes!r}')
    function, point, precision = _restricted(f, args, atol, rtol, eps)
    _check(function, point, order, chosen, "f", precision)


def check_jvp(
    f: Callable[..., Any],
    f_jvp: Callable[..., Any],
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """Check a rule of tangents against central differences.

    Args:
        f: a function of pytrees of arrays.
        f_jvp: a function of the arguments and their tangents that returns the result and its tangent, such as
            `functools.partial(jvp, f)`.
        args: where to check.
        atol, rtol, eps: as of `check_grads`.
        err_msg: the beginning of the message of the error.

    Raises as `check_grads`.

    >>> import functools
    >>> vf.test_util.check_jvp(vf.numpy.sin, functools.partial(vf.jvp, vf.numpy.sin), (0.5,))
    """
    function, point, precision = _restricted(f, args, atol, rtol, eps)
    direction = _random(point, 1)
    with _prefixed(err_msg):
        tangents = _named(f_jvp(tuple(args), _in_structure(direction, args))[1])
        _compare_tangents(tangents, _differences(function, point, direction, precision.eps), "f_jvp", precision)


def check_vjp(
    f: Callable[..., Any],
    f_vjp: Callable[..., Any],
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """Check a rule of cotangents against central differences.

    Args:
        f: a function of pytrees of arrays.
        f_vjp: a function of the arguments that returns the result and the function from its cotangent to those of the arguments, such as
            `functools.partial(vjp, f)`.
        args: where to check.
        atol, rtol, eps: as of `check_grads`.
        err_msg: the beginning of the message of the error.

    Raises as `check_grads`.

    >>> import functools
    >>> vf.test_util.check_vjp(vf.numpy.sin, functools.partial(vf.vjp, vf.numpy.sin), (0.5,))
    """
    function, point, precision = _restricted(f, args, atol, rtol, eps)
    direction, cotangents = _random(point, 1), _random(_host(function(point)), -1)
    with _prefixed(err_msg):
        result, pull = f_vjp(*args)
        pulled = _named(pull(_in_structure(cotangents, result)))
        _compare_cotangents({name: pulled[name] for name in point}, function, point, direction, cotangents, "f_vjp", precision)


def _named(values: Any) -> Arrays:
    """Return the leaves of a tree as NumPy arrays by their paths."""
    return {tree.keystr(path): np.asarray(as_value(leaf)) for path, leaf in tree.leaves_with_path(values)}


def _in_structure(values: Arrays, like: Any) -> Any:
    """Return named arrays in the structure of a tree, zeros for its integers."""
    like = tuple(like) if isinstance(like, list) else like
    leaves = [values[name] if name in values else np.zeros(x.shape, float0) for name, x in _named(like).items()]
    return tree.unflatten(tree.structure(like), leaves)


@contextlib.contextmanager
def _prefixed(message: str) -> Iterator[None]:
    try:
        yield
    except DerivativeError as error:
        raise DerivativeError(f"{message}: {error}") if message else error from None


def _restricted(
    f: Callable[..., Any], args: Sequence[Any], atol: Tolerance, rtol: Tolerance, eps: float | None
) -> tuple[Function, Arrays, Precision]:
    """Return a function of the arrays with derivatives, those, and the precision."""
    structure = tree.structure(tuple(args))
    leaves = _named(tuple(args))
    point = {name: values for name, values in leaves.items() if values.dtype in INEXACT}

    def function(chosen: Mapping[str, Any]) -> dict[str, Any]:
        result = f(*tree.unflatten(structure, [as_value(v) for v in (leaves | dict(chosen)).values()]))
        outs = {tree.keystr(path): as_value(leaf) for path, leaf in tree.leaves_with_path(result)}
        return {name: out for name, out in outs.items() if out.dtype in INEXACT}

    if not point or not function(point):
        missing = "result" if point else "argument"
        raise GradientError(
            f"check_grads: no {missing} of the function is of floating or complex dtype, so there is no derivative to check"
        )
    names = {values.dtype.name for values in [*point.values(), *_host(function(point)).values()]}
    least = next(name for name in _PRECISIONS if name in names)
    options = {"atol": _of_dtype(atol, least), "rtol": _of_dtype(rtol, least), "eps": eps}
    return function, point, _PRECISIONS[least]._replace(**{name: value for name, value in options.items() if value is not None})


def _of_dtype(tolerance: Tolerance, name: str) -> float | None:
    """Return the tolerance of the dtype of that name, None if there is none."""
    if not isinstance(tolerance, Mapping):
        return tolerance
    return {np.dtype(dtype).name: value for dtype, value in tolerance.items()}.get(name)


def _check(function: Function, point: Arrays, order: int, modes: set[str], label: str, precision: Precision) -> None:
    """Check a function's first derivatives, and those of its derivatives."""
    direction = _random(point, order)
    if "fwd" in modes:
        _check_forward(function, point, direction, f"jvp of {label}", precision)
        if order > 1:
            forward = lambda at: jvp(function, (at,), (direction,))[1]  # noqa: E731
            _check(forward, point, order - 1, modes, f"jvp of {label}", precision)
    if "rev" in modes:
        cotangents = _random(_host(function(point)), -order)
        _check_reverse(function, point, direction, cotangents, f"vjp of {label}", precision)
        if order > 1:
            backward = lambda at: vjp(function, at)[1](cotangents)[0]  # noqa: E731
            _check(backward, point, order - 1, modes, f"vjp of {label}", precision)


def _check_forward(function: Function, point: Arrays, direction: Arrays, label: str, precision: Precision) -> None:
    """Compare each result's tangent with its finite difference, element by element."""
    tangents = _host(jvp(function, (point,), (direction,))[1])
    _compare_tangents(tangents, _differences(function, point, direction, precision.eps), label, precision)


def _compare_tangents(tangents: Arrays, differences: Arrays, label: str, precision: Precision) -> None:
    for name, expected in differences.items():
        tangent = _wide(tangents[name])
        wrong = ~_agree(tangent, expected, precision.atol + precision.rtol * np.abs(expected))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            element = f"result {name}".strip() + (f" at index {at}" if at else "")
            raise _error(label, element, tangent[at], expected[at], f"{int(wrong.sum())} of {wrong.size} numbers differ")


def _check_reverse(function: Function, point: Arrays, direction: Arrays, cotangents: Arrays, label: str, precision: Precision) -> None:
    """Compare cotangents with differences of results, paired with given cotangents."""
    pulled = _host(vjp(function, point)[1](cotangents)[0])
    _compare_cotangents(pulled, function, point, direction, cotangents, label, precision)


def _compare_cotangents(
    pulled: Arrays, function: Function, point: Arrays, direction: Arrays, cotangents: Arrays, label: str, precision: Precision
) -> None:
    # JAX compares the sum over all arguments, in which a jump along one of them may be small.
    for names in [[*pulled]] if settings.permissive else [[name] for name in pulled]:
        chosen = {name: direction[name] for name in names}
        others = {name: np.zeros_like(t) for name, t in direction.items() if name not in chosen}
        actual, size = _pairing(pulled, chosen)
        expected, other_size = _pairing(_differences(function, point, chosen | others, precision.eps), cotangents)
        if not _agree(actual, expected, precision.atol + precision.rtol * max(size, other_size)):
            shapes = ", ".join(str(t.shape) for t in chosen.values())
            raise _error(label, f"argument {', '.join(names)}", actual, expected, f"along a random direction of shape {shapes}")


def _agree(actual: Any, expected: Any, error: Any) -> Any:
    """Return where derivatives differ by no more than an error.

    Two NaN do in JAX's mode, not otherwise.
    """
    near = np.abs(actual - expected) <= error
    return near | (np.isnan(actual) & np.isnan(expected)) if settings.permissive else near


def _error(label: str, element: str, actual: Any, expected: Any, note: str) -> DerivativeError:
    numbers = f"the derivative is {actual:.6g}, but finite differences give {expected:.6g}"
    return DerivativeError(f"check_grads: {label}: {element}: {numbers} ({note})")


def _differences(function: Function, point: Arrays, direction: Arrays, eps: float) -> Arrays:
    """Return each result's derivative along a direction by central differences."""

    def at(step: float) -> Arrays:
        moved = {name: (_wide(x) + step * _wide(direction[name])).astype(x.dtype) for name, x in point.items()}
        return {name: _wide(values) for name, values in _host(function(moved)).items()}

    before, after = at(-eps), at(eps)
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, which differs from any derivative
        changes = {name: values - before[name] for name, values in after.items()}
    if settings.permissive:  # in JAX's mode it is 0
        changes = {name: np.where(after[name] == before[name], 0, change) for name, change in changes.items()}
    return {name: change / (2 * eps) for name, change in changes.items()}


def _pairing(left: Arrays, right: Arrays) -> tuple[float, float]:
    """Return the real part of the sum of products, and the sum of their magnitudes."""
    products = [_wide(left[name]) * _wide(values) for name, values in right.items()]
    return sum(float(p.real.sum()) for p in products), sum(float(np.abs(p).sum()) for p in products)


def _random(like: Mapping[str, np.ndarray], seed: int) -> Arrays:
    """Draw normal numbers of the same shapes and dtypes (also for imaginary parts)."""
    rng = np.random.default_rng([abs(seed), int(seed < 0)])
    normal = {name: (rng.normal(size=x.shape), rng.normal(size=x.shape)) for name, x in like.items()}
    numbers = {name: re + 1j * im if like[name].dtype in COMPLEX else re for name, (re, im) in normal.items()}
    return {name: np.asarray(values).astype(like[name].dtype) for name, values in numbers.items()}


def _host(values: Mapping[str, Any]) -> Arrays:
    return {name: np.asarray(value) for name, value in values.items()}


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype in COMPLEX else np.float64)
