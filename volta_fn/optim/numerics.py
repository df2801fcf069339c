"""Rules for the leaves of trees; norms, counters and moving averages.

Transformations and schedules are closures, which the first section stores as data, so that they can be sent to other processes.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.errors import DTypeError, SerializationError, ShapeError
from volta_fn.lazy_imports import load

__all__ = [
    "abs_sq", "all_finite", "bias_correction", "global_norm", "safe_increment", "safe_int32_increment", "safe_norm",
    "safe_root_mean_squares", "update_infinity_moment", "update_moment", "update_moment_per_elem_norm",
]  # fmt: skip


# Closures as data: where their code is, and the values of their variables.
#
# Python pickles functions by name, which functions within functions have none of. Transformations and schedules are such closures. As
# data they can be pickled, and so sent to other processes that have the same version of this package.


class Closure(NamedTuple):
    """A function within a function, as data.

    Attributes:
        module: where the outermost function is.
        name: its qualified name.
        path: the position of each inner function among those of the one around it, and its name.
        variables: the values of the variables that it takes from the functions around it.
        defaults: those of its arguments, by position and by name.
    """

    module: str
    name: str
    path: tuple[tuple[int, str], ...]
    variables: tuple[Any, ...]
    defaults: tuple[Any, Any]


class Partial(NamedTuple):
    """A `functools.partial` as data."""

    function: Any
    args: Any
    keywords: Any


def described(value: Any) -> Any:
    """Return a value with a `Closure` for each closure.

    Functions that have a name of their own, or whose code is not part of a function's, stay as they are.
    """
    if isinstance(value, functools.partial):
        return Partial(*map(described, (value.func, value.args, value.keywords)))
    if isinstance(value, (tuple, list, dict)):
        return _mapped(described, value)
    if not isinstance(value, FunctionType):
        return value
    if "<locals>" not in value.__qualname__:  # public functions are some modules' own with a check of their arguments
        return value if _attribute(value.__module__, value.__qualname__) is value else getattr(value, "__wrapped__", value)
    name = value.__qualname__.partition(".<locals>")[0]
    path = _path(_code(value.__module__, name), value.__code__)
    if path is None:
        return value
    variables = tuple([described(cell.cell_contents) for cell in value.__closure__ or ()])
    return Closure(value.__module__, name, path, variables, described((value.__defaults__, value.__kwdefaults__)))


def restored(value: Any) -> Any:
    """Return a value with functions in place of each `Closure`.

    Raises `SerializationError` if the code is not there, as in another version.
    """
    if isinstance(value, Partial):
        return functools.partial(restored(value.function), *restored(value.args), **restored(value.keywords))
    if isinstance(value, Closure):
        return _function(value)
    return _mapped(restored, value) if isinstance(value, (tuple, list, dict)) else value


def _mapped(function: Callable[[Any], Any], container: Any) -> Any:
    if type(container) is dict:
        return {key: function(item) for key, item in container.items()}
    make = getattr(container, "_make", type(container))
    return make(map(function, container)) if type(container) in (tuple, list) or make is not type(container) else container


def _function(closure: Closure) -> FunctionType:
    code = _code(closure.module, closure.name)
    for position, name in closure.path:
        inner = [] if code is None else _inner(code)
        code = inner[position] if position < len(inner) and inner[position].co_name == name else None
    if code is None or len(code.co_freevars) != len(closure.variables):
        raise SerializationError(
            f"a pickled optimizer needs a function within {closure.module}.{closure.name} that is not there: pickles are for processes "
            "that run the same version. Keep the state, which is arrays, and make the optimizer again."
        )
    cells = tuple([CellType(restored(value)) for value in closure.variables])
    by_position, by_name = restored(closure.defaults)
    function = FunctionType(code, vars(load(closure.module)), code.co_name, by_position, cells)
    function.__kwdefaults__, function.__qualname__, function.__module__ = by_name, code.co_qualname, closure.module
    return function


def _attribute(module: str, name: str) -> Any:
    value = load(module)
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    return value


def _code(module: str, name: str) -> CodeType | None:
    """Return the code of a function of a module, without its decorators."""
    code = getattr(inspect.unwrap(_attribute(module, name)), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _path(outer: CodeType | None, code: CodeType) -> tuple[tuple[int, str], ...] | None:
    """Return the path from a function's code to that of an inner one, or None."""
    for position, inner in enumerate([] if outer is None else _inner(outer)):
        step = (position, inner.co_name)
        if inner is code:
            return (step,)
        rest = _path(inner, code)
        if rest is not None:
            return (step, *rest)
    return None


# Rules for single arrays, applied to the leaves of trees.
#
# A *rule* is a function of corresponding leaves of these trees. float16 and bfloat16 leaves are *widened* to float32 for it, and its
# results are cast back to the dtypes of the leaves that they replace: updates and states keep their dtypes, whatever the rule computes
# in.

Rule = Callable[..., Any]
_FLOAT = np.dtype(np.float32)


def is_leaf(node: Any) -> bool:
    """Return True if a node is a leaf: no container, not None."""
    leaves = tree.leaves(node)
    return len(leaves) == 1 and leaves[0] is node


def widened(x: Array) -> Array:
    """Return a float16 or bfloat16 array in float32, any other unchanged."""
    wide = dtypes.accumulator(x.dtype)
    return x if wide == x.dtype else lax.convert_element_type(x, wide)


def cast_like(x: Array, like: Array) -> Array:
    """Return `x` in the dtype of `like`."""
    if x.dtype == like.dtype and x.weak_type <= like.weak_type:
        return x
    return lax.convert_element_type(x, like.dtype)


def tree_cast_like(values: Any, like: Any) -> Any:
    """Return each leaf of `values` in the dtype of the corresponding leaf of `like`."""
    return tree.map(lambda x, other: cast_like(as_value(x), as_value(other)), values, like)


def map_leaves(rule: Rule, updates: Any, *operands: Any) -> Any:
    """Return the tree of ``rule(update, *operands)``.

    The operands (such as parameters) have the structure and shapes of the updates. Raises `TreeError` or `ShapeError` where they differ,
    `DTypeError` for updates that are not floating-point or complex numbers.
    """
    return map_with_state(lambda *row: (rule(*row),), updates, operands=operands)[0]


def map_with_state(rule: Rule, updates: Any, *states: Any, operands: Sequence[Any] = (), same_shapes: bool = True) -> tuple[Any, ...]:
    """Map leaves by ``rule(update, *states, *operands) -> (update, *states)``.

    `same_shapes` says whether the states have the shapes of the updates. Raises the errors of `map_leaves`.
    """
    leaves, treedef = tree.flatten(updates)
    leaves = [_inexact(x, updates, i) for i, x in enumerate(leaves)]
    columns = [leaves]
    for i, other in enumerate((*states, *operands)):
        columns.append(_column(updates, leaves, treedef, other, same_shapes or i >= len(states)))
    rows = [_apply(rule, row, 1 + len(states)) for row in zip(*columns, strict=True)]
    return tuple(treedef.unflatten([row[i] for row in rows]) for i in range(1 + len(states)))


def _apply(rule: Rule, row: tuple[Array, ...], count: int) -> list[Array]:
    results = rule(*[widened(x) for x in row])
    return [cast_like(result, old) for result, old in zip(results, row[:count], strict=True)]


def _inexact(x: Any, updates: Any, i: int) -> Array:
    value = as_value(x)
    if value.dtype not in dtypes.INEXACT:
        raise DTypeError(
            f"an optimizer's leaf{at_path(updates, i)} is of dtype {value.dtype.name}: only floating-point and complex numbers can be "
            "optimised. Leave it out, or exclude it with optim.masked."
        )
    return value


_SAME_TREES = "The updates are gradients with respect to the parameters that init was called with, or were made of such gradients."


def _column(updates: Any, leaves: list[Array], treedef: tree.TreeDef, other: Any, same_shapes: bool) -> list[Array]:
    """Return the leaves of a state or of parameters in the order of the updates."""
    context = "an optimizer's state or parameters, compared with the updates"
    nodes = tree.flatten_up_to(treedef, other, context, _SAME_TREES)
    if not all(isinstance(node, Array) for node in nodes):
        tree.flatten_up_to(tree.structure(other), updates, context, _SAME_TREES)  # raises if a node is a container
    column = [as_value(node) for node in nodes]
    if same_shapes:
        for i, (value, leaf) in enumerate(zip(column, leaves, strict=True)):
            if value.shape != leaf.shape:
                raise ShapeError(
                    f"the update{at_path(updates, i)} has shape {leaf.shape}, its parameter (or the state made from it) {value.shape}; "
                    "pass gradients with respect to the parameters that init was called with"
                )
    return column


def at_path(updates: Any, i: int, is_leaf: Callable[[Any], bool] | None = None) -> str:
    """Return where leaf `i` of a tree is, for a message."""
    path, _ = tree.leaves_with_path(updates, is_leaf)[i]
    return f" at {tree.keystr(path)}" if path else ""


# Initial states.


def count_zero() -> Array:
    """Return the initial step counter, an int32."""
    return vnp.zeros((), np.int32)


def zeros_like(params: Any, dtype: Any = None) -> Any:
    """Return zeros of the parameters' shapes, in their dtypes or in `dtype`."""
    return full_like(params, 0, dtype)


def full_like(params: Any, value: Any, dtype: Any = None) -> Any:
    """Return arrays like the parameters filled with `value`, in `dtype` if given."""
    return _filled(params, value, lambda leaf_dtype: leaf_dtype if dtype is None else dtype)


def wide_zeros_like(params: Any) -> Any:
    """Return zeros of the parameters' shapes, in float32 at least, for sums."""
    return _filled(params, 0, dtypes.accumulator)


def magnitudes(params: Any, value: Any = 0) -> Any:
    """Return real arrays filled with `value`, in float32 at least, for statistics."""
    return _filled(params, value, lambda leaf_dtype: dtypes.real_dtype(dtypes.accumulator(leaf_dtype)))


def _filled(params: Any, value: Any, dtype_of: Callable[[np.dtype], Any]) -> Any:
    leaves, treedef = tree.flatten(params)
    arrays = [_inexact(x, params, i) for i, x in enumerate(leaves)]
    return treedef.unflatten([vnp.full(x.shape, value, dtype_of(x.dtype)) for x in arrays])


# Scalars for rules.


def widest_real(values: Any) -> np.dtype:
    """Return the real dtype (float32 or float64) that holds all leaves' magnitudes."""
    real_dtypes = {dtypes.real_dtype(dtypes.accumulator(as_value(x).dtype)) for x in tree.leaves(values)}
    return np.dtype(np.float64) if np.dtype(np.float64) in real_dtypes else _FLOAT


def factor(value: Any, like: Array) -> Any:
    """Return a number or scalar array as a factor that keeps the dtype of `like`."""
    if isinstance(value, (int, float)):
        return float(value)
    scalar = as_value(value)
    if scalar.shape:
        raise ShapeError(f"a learning rate or other factor of updates must be a scalar, got shape {scalar.shape}")
    return lax.convert_element_type(scalar, dtypes.real_dtype(like.dtype))


def scaled_by(value: Any, updates: Any) -> Any:
    """Return updates times a number or scalar array."""
    return map_leaves(lambda u: factor(value, u) * u, updates)


def add_scaled(values: Any, number: Any, direction: Any) -> Any:
    """Return ``values + number * direction`` of two trees, in the values' dtypes."""
    return map_leaves(lambda x, d: x + factor(number, x) * d, values, direction)


def steps_for(count: Array, updates: Any) -> Array:
    """Return a step counter, int64 for float64 updates, whose schedule needs it."""
    return count if widest_real(updates) == _FLOAT else lax.convert_element_type(count, np.int64)


# Choices between trees.


def branch(pred: Array, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """Return ``on_true() if pred else on_false()``, by `lax.cond` if `pred` is traced."""
    if isinstance(pred, ConcreteArray):
        return on_true() if bool(pred) else on_false()
    return lax.cond(pred, on_true, on_false)


# Counters, norms, squared magnitudes, and moving averages with bias correction.


def safe_increment(count: Any) -> Array:
    """Return ``count + 1``, saturating at the largest number of the dtype.

    >>> import numpy as np
    >>> optim.safe_increment(np.int32(2**31 - 1))
    Array(2147483647, dtype=int32)
    """
    value = as_value(count)
    if value.dtype in dtypes.INTEGERS:
        return vnp.minimum(value, dtypes.iinfo(value.dtype).max - 1) + 1
    if value.dtype in dtypes.FLOATS:
        return vnp.minimum(value + 1, dtypes.finfo(value.dtype).max)
    raise DTypeError(f"safe_increment: a counter is an integer or a float, got dtype {value.dtype.name}")


safe_int32_increment = safe_increment


def abs_sq(x: Any) -> Array:
    """Return squared magnitudes: x² of real numbers, re² + im² of complex ones.

    >>> vf.optim.abs_sq(vf.numpy.array([3 + 4j]))
    Array([25.], dtype=float32)
    """
    value = as_value(x)
    if value.dtype not in dtypes.COMPLEX:
        return value * value
    re, im = lax.real(value), lax.imag(value)
    return re * re + im * im


def sum_of_squares(updates: Any) -> Array:
    """Return the sum of all squared magnitudes of a tree, in float32 at least."""
    sums = [vnp.sum(abs_sq(widened(as_value(x)))) for x in tree.leaves(updates)]
    return functools.reduce(operator.add, sums) if sums else vnp.zeros((), np.float32)


def global_norm(updates: Any) -> Array:
    """Return the Euclidean norm of all elements of all leaves together.

    It is computed in float32 at least; that of a tree without leaves is 0.

    >>> vf.optim.global_norm({"a": vf.numpy.array([3.0]), "b": vf.numpy.array([[4.0]])})
    Array(5., dtype=float32)
    """
    return vnp.sqrt(sum_of_squares(updates))


def normalized(updates: Any) -> Any:
    """Divide a tree by its global norm; zeros stay zeros."""
    norm = global_norm(updates)
    return scaled_by(vnp.where(norm == 0, vnp.ones_like(norm), 1 / norm), updates)


def real_dot(x: Any, y: Any) -> Array:
    """Return the real part of the inner product of two trees, in float32 at least."""
    total = vnp.zeros((), widest_real(x))
    for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True):
        total = total + vnp.real(vnp.vdot(widened(as_value(a)), widened(as_value(b))))
    return total


def safe_norm(x: Any, min_norm: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the norm of `x`, but at least `min_norm`.

    Where the norm is less, the gradient is zero, not NaN. `ord`, `axis` and `keepdims` are those of `numpy.linalg.norm`.
    """
    value = as_value(x)
    norm = vnp.linalg.norm(value, ord=ord, axis=axis, keepdims=True)
    harmless = vnp.where(norm <= min_norm, vnp.ones_like(value), value)
    small = norm <= min_norm if keepdims else vnp.squeeze(norm <= min_norm, axis=axis)
    return vnp.where(small, min_norm, vnp.linalg.norm(harmless, ord=ord, axis=axis, keepdims=keepdims))


def safe_root_mean_squares(x: Any, min_rms: Any) -> Array:
    """Return the root mean square of `x`, or `min_rms` with gradient 0 if it is less."""
    value = as_value(x)
    small = vnp.sqrt(vnp.mean(abs_sq(value))) <= min_rms
    return vnp.where(small, min_rms, vnp.sqrt(vnp.mean(abs_sq(vnp.where(small, vnp.ones_like(value), value)))))


def all_finite(updates: Any) -> Array:
    """Return a boolean scalar: True if no element of any leaf is infinite or NaN.

    >>> vf.optim.all_finite([vf.numpy.ones(3), vf.numpy.array([1.0, float("nan")])])
    Array(False, dtype=bool)
    """
    flags = [vnp.all(vnp.isfinite(as_value(x))) for x in tree.leaves(updates)]
    return functools.reduce(operator.and_, flags) if flags else vnp.array(True)


# Moving averages and their bias correction.


def decayed(decay: Any, value: Array, average: Array) -> Array:
    """Return the next moving average, ``(1 - decay) * value + decay * average``."""
    return (1 - decay) * value + decay * average


def log_of(decay: Any) -> Any:
    """Return the logarithm of a decay rate, in double precision if possible."""
    if isinstance(decay, (int, float)):
        return math.log(decay) if decay > 0 else -math.inf
    return lax.log(as_value(decay))


def debiaser(decay: Any, count: Array) -> Callable[[Array], Array]:
    """Return a function that corrects a moving average's start at zero.

    It divides by ``1 - decay**count``. The divisor is computed once for each dtype, and without the cancellation that would cost float32
    half its digits in the first steps.
    """
    divisors: dict[np.dtype, Array] = {}

    def debias(average: Array) -> Array:
        dtype = dtypes.real_dtype(average.dtype)
        if dtype not in divisors:
            divisors[dtype] = -lax.expm1(vnp.asarray(log_of(decay), dtype) * lax.convert_element_type(count, dtype))
        return average / divisors[dtype]

    return debias


def update_moment(updates: Any, moments: Any, decay: Any, order: int) -> Any:
    """Return the moving averages ``(1 - decay) * updates**order + decay * moments``."""
    return map_with_state(lambda u, m: (u, decayed(decay, u**order, m)), updates, moments)[1]


def update_moment_per_elem_norm(updates: Any, moments: Any, decay: Any, order: int) -> Any:
    """Return the moving averages ``(1 - decay) * |updates|**order + decay * moments``."""

    def power(u: Array) -> Array:
        if u.dtype not in dtypes.COMPLEX:
            return u**order
        return abs_sq(u) ** (order // 2 if order % 2 == 0 else order / 2)

    return map_with_state(lambda u, m: (u, decayed(decay, power(u), m)), updates, moments)[1]


def update_infinity_moment(updates: Any, moments: Any, decay: Any, eps: Any) -> Any:
    """Return the next decaying maxima ``max(|updates| + eps, decay * moments)``."""
    return map_with_state(lambda u, m: (u, vnp.maximum(vnp.abs(u) + eps, decay * m)), updates, moments)[1]


def bias_correction(moment: Any, decay: Any, count: Any) -> Any:
    """Divide moving averages by ``1 - decay**count``, to correct their start at zero.

    >>> vf.optim.bias_correction([vf.numpy.array([0.5])], decay=0.5, count=1)
    [Array([1.], dtype=float32)]
    """
    debias = debiaser(decay, as_value(count))
    return tree.map(lambda m: debias(as_value(m)), moment)
