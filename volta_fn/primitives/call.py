"""Calls of programs, barriers, and callbacks to Python.

The calls of programs are those of `jit`, and those of attention, which targets without a routine inline. Barriers are identities that stop
derivatives or the compiler's rearrangements; tokens are made of them. Of callbacks `pure_callback` is for values, `debug_callback` for
effects such as printing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, CallbackError
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.data_movement.movement import broadcast, instantiate, no_derivative, to_front, zero_jvp

# Calls of programs, among them `jit`'s.


def call_primitive(name: str, parameter: str = "jaxpr", **rules: Any) -> Primitive:
    """Declare the call of a program, which the parameter of that name holds.

    Its results are those of the program, and compilers inline it. `rules` are the call's own, as `Primitive` takes them.
    """
    return Primitive(
        name,
        lambda *avals, **params: tuple(params[parameter].out_avals),
        multiple_results=True,
        holds_programs=True,
        call_param=parameter,
        views=True,
        **rules,
    )


#: ``jaxpr`` has concrete constants only; ``donated`` marks the operands whose memory the call may reuse (empty: none).
jit_p = call_primitive("jit")


def call_params(jaxpr: ClosedJaxpr, name: str) -> dict[str, Any]:
    """Return the parameters of a call that donates nothing."""
    return {"jaxpr": jaxpr, "name": name, "donated": ()}


# Attention as calls of its expansions, which targets without a routine inline.
#
# Each of the three calls holds its expansion as a program (`jaxpr`), and a description for targets with routines (`Form`):
#
# - ``attention(q, k, v[, bias], *masks)`` gives the result, and the statistics of the softmax: for each query its largest logit and the
# sum of its weights relative to that, of shape (*heads, queries, 2).
# - ``attention_tangent(q, k, v[, bias], *masks, result, statistics, *tangents)`` gives the result's tangent, and is linear in the
# tangents, one for each of q, k, v and the bias that `moved` marks.
# - ``attention_gradient(q, k, v[, bias], *masks, result, statistics, cotangent)`` gives the cotangents of the `moved` ones of q, k, v and
# the bias. It is the tangent's transpose; with the statistics a routine needs no array of all weights.
#
# Their derivatives and batching rules are in `volta_fn.transforms.call_rules`.


class Axes(NamedTuple):
    """The roles of an array's axes: heads (of all batch entries), rows, features."""

    heads: tuple[int, ...]
    rows: int
    features: int

    @property
    def order(self) -> tuple[int, ...]:
        """The axes as heads, rows, features."""
        return (*self.heads, self.rows, self.features)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The position of each axis in that order."""
        return tuple(np.argsort(self.order).tolist())

    def batched(self) -> Axes:
        """Return the axes of arrays with a leading axis of examples, counted as heads."""
        return Axes((0, *[a + 1 for a in self.heads]), self.rows + 1, self.features + 1)


class Window(NamedTuple):
    """How many keys before and after its own position a query sees; None: all."""

    before: int | None = None
    after: int | None = None


#: Queries see the keys up to their own position.
CAUSAL = Window(None, 0)


class Form(NamedTuple):
    """The layout and options of an attention, for routines.

    Keys have as many axes of heads as queries; the last one may be shorter, by a factor: each head then serves several of queries. The
    result has the axes of q, gradients have those of what they belong to.
    """

    q: Axes
    k: Axes
    v: Axes
    cotangent: Axes | None
    #: The scale of logits, and their value where a query does not see a key.
    scale: float
    unseen: float
    #: The keys that a query sees by their positions.
    window: Window = Window()
    #: The bound of logits, which become ``softcap tanh(logit / softcap)`` before the bias is added; 0: none.
    softcap: float = 0.0
    #: Whether there is a bias, and how many masks there are. Each broadcasts to (*heads, queries, keys).
    biased: bool = False
    masks: int = 0
    #: Whether a gradient is that of the bias, too.
    to_bias: bool = False
    #: Whether the program reads the statistics, as a gradient does.
    statistics: bool = False

    @property
    def operands(self) -> int:
        """How many operands there are: q, k, v, the bias and the masks."""
        return 3 + self.biased + self.masks


attention_p = call_primitive("attention")
attention_tangent_p = call_primitive("attention_tangent")
attention_gradient_p = call_primitive("attention_gradient")

#: The calls that a target may have routines for.
ROUTINE_CALLS = frozenset((attention_p, attention_gradient_p))


def attention_params(jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...] = ()) -> dict[str, Any]:
    """Return the parameters of one of the calls."""
    return {"jaxpr": jaxpr, "form": form, "moved": moved}


# Barriers: stop_gradient, optimization_barrier, and tokens.


stop_gradient_p: Primitive = Primitive(
    "stop_gradient",
    lambda operand: operand,
    evaluate=lambda operand: operand,
    jvp=zero_jvp,
    batch=lambda axis, args, dims: (bind(stop_gradient_p, *args), dims[0]),
    views=True,
)


T = TypeVar("T", bound=Any)


def stop_gradient(x: T) -> T:
    """Return `x`, a pytree of arrays, as constants for differentiation.

    >>> vf.grad(lambda x: x * vf.lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: bind(stop_gradient_p, as_value(leaf)), x)


# optimization_barrier


def _barrier_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Sequence[Array], Sequence[Any]]:
    outs = bind(optimization_barrier_p, *primals)
    nonzero = [t for t in tangents if type(t) is not Zero]
    out_tangents = iter(bind(optimization_barrier_p, *nonzero) if nonzero else ())
    return outs, [t if type(t) is Zero else next(out_tangents) for t in tangents]


optimization_barrier_p: Primitive = Primitive(
    "optimization_barrier",
    lambda *operands: operands,
    evaluate=lambda *operands: operands,
    jvp=_barrier_jvp,
    transpose=lambda cotangents, *args: [
        instantiate(ct) if type(arg) is Linear else None for ct, arg in zip(cotangents, args, strict=True)
    ],
    batch=lambda axis, args, dims: (bind(optimization_barrier_p, *args), dims),
    multiple_results=True,
    views=True,
)


def optimization_barrier(operand: Any) -> Any:
    """Return `operand`, a pytree of arrays, all of which is computed before any use.

    The compiler does not merge equations across the barrier.
    """
    leaves, structure = tree.flatten(operand)
    if not leaves:
        return operand
    return tree.unflatten(structure, bind(optimization_barrier_p, *[as_value(x) for x in leaves]))


# tokens


def create_token(_: Any = None) -> Array:
    """Return a token, by which programs for XLA order effects.

    Effects here keep the order of the program, so a token is an empty array.

    >>> vf.lax.create_token().shape
    (0,)
    """
    return as_value(np.zeros((0,), np.bool_))


def after_all(*operands: Any) -> Array:
    """Return a token that waits for the given ones.

    >>> vf.lax.after_all(vf.lax.create_token(), vf.lax.create_token()).shape
    (0,)
    """
    return optimization_barrier((create_token(), operands))[0]


# Callbacks: calls of Python functions from running programs.

#: Loaded when a callback is batched: it loads pytrees.
_SCAN = deferred("volta_fn.primitives.scan")

Avals = tuple[ShapedArray, ...]
_ARRAYS = (Array, np.ndarray, np.generic, bool, int, float, complex)
VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


def _call(callback: Callable[..., Any], args: Sequence[Any], name: str) -> Any:
    try:
        return callback(*args)
    except Exception as error:
        raise CallbackError(f"{name} raised {type(error).__name__}: {error}") from error


# pure_callback


class _UserFunction:
    """A user's function on the leaves of its arguments."""

    def __init__(self, function: Callable[..., Any], in_tree: Any) -> None:
        self.function = function
        self.in_tree = in_tree
        self.name = f"the callback {getattr(function, '__name__', function)!s}"
        self.eager_kernels: dict[Any, Any] = {}

    def call(self, leaves: Sequence[Any]) -> Any:
        """Return the function's result; errors of its own are a `CallbackError`'s cause."""
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        return _call(functools.partial(self.function, **kwargs), args, self.name)


class HostFunction(_UserFunction):
    """A user's function on flat lists of NumPy arrays."""

    def __init__(self, function: Callable[..., Any], in_tree: Any, out_tree: Any) -> None:
        super().__init__(function, in_tree)
        self.out_tree = out_tree

    def __call__(self, *leaves: np.ndarray) -> list[Any]:
        outs, structure = tree.flatten(self.call([from_host(x) for x in leaves]))
        if structure != self.out_tree:
            raise CallbackError(f"{self.name} was to return a result of structure {self.out_tree}, but returned {structure}")
        return outs


def _evaluate(*operands: np.ndarray, callback: HostFunction, result_avals: Avals, vmap_method: str | None) -> tuple[np.ndarray, ...]:
    results = callback(*operands)
    outs = [_checked_result(r, a) for r, a in zip(results, result_avals, strict=True)]
    for out, aval in zip(outs, result_avals, strict=True):
        if out.shape != aval.shape or out.dtype != aval.dtype:
            raise CallbackError(
                f"{callback.name} was to return an array of shape {aval.shape} and dtype {aval.dtype.name}, "
                f"but returned shape {out.shape} and dtype {out.dtype.name}"
            )
    return tuple([np.array(o) for o in outs])


def _checked_result(result: Any, aval: ShapedArray) -> np.ndarray:
    """Convert a result to a NumPy array.

    A Python number takes the promised dtype if it would in an operation with such an array. Where 64 bits are not allowed, numbers of 64
    bits are rounded to 32, as everywhere.
    """
    if type(result) not in (int, float, complex):
        values = np.asarray(result)
        return values.astype(dtypes.canonical(values.dtype), copy=False)
    combined, _ = dtypes.promote((aval.dtype, False), dtypes.scalar_dtype(result))
    return np.asarray(result, aval.dtype if combined == aval.dtype else None)


def _batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    callback: HostFunction,
    result_avals: Avals,
    vmap_method: str | None,
) -> tuple[Sequence[Array], list[int]]:
    if vmap_method is None and axis.of_shards:
        vmap_method = "sequential"
    if vmap_method is None:
        raise ArgumentError(f"{callback.name} is called under vmap: say how with pure_callback(..., vmap_method=…), one of {VMAP_METHODS}")
    settings: dict[str, Any] = {"callback": callback, "vmap_method": vmap_method}
    front = to_front(args, dims)
    stacked = [d is not None for d in dims]
    if vmap_method in ("sequential", "sequential_unrolled"):
        outs = _one_by_one(front, stacked, axis.size, functools.partial(bind, pure_callback_p, result_avals=result_avals, **settings))
    else:
        fill = axis.size if vmap_method == "broadcast_all" else 1
        operands = [
            a if s else (broadcast(a, (fill,)) if vmap_method != "legacy_vectorized" else a) for a, s in zip(front, stacked, strict=True)
        ]
        stacked_avals = tuple([a.update(shape=(axis.size, *a.shape)) for a in result_avals])
        outs = bind(pure_callback_p, *operands, result_avals=stacked_avals, **settings)
    return outs, [0] * len(outs)


def _one_by_one(args: Sequence[Array], stacked: Sequence[bool], size: int, call: Callable[..., Any]) -> Sequence[Array]:
    """Call a function per row of the stacked arguments; stack the results."""
    rows = [a for a, s in zip(args, stacked, strict=True) if s]

    def call_row(row: Any) -> Any:
        entries = iter(row)
        return call(*[next(entries) if s else a for a, s in zip(args, stacked, strict=True)])

    return _SCAN.scan(lambda carry, row: (carry, call_row(row)), None, tuple(rows), length=size)[1]


pure_callback_p = Primitive(
    "pure_callback",
    lambda *avals, callback, result_avals, vmap_method: result_avals,
    evaluate=_evaluate,
    jvp=no_derivative(
        "{callback.name} is a pure_callback, whose derivative is unknown. "
        "Give the function around it a custom_jvp or custom_vjp, or put stop_gradient on its arguments."
    ),
    batch=_batch,
    multiple_results=True,
)


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: None = None, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """Call a pure Python function of arrays from a program.

    It may run any number of times, or never if its result is unused.

    Args:
        callback: called with arrays in the structure of `args` and `kwargs`.
        result_shape_dtypes: a pytree of objects with `shape` and `dtype`, which the result must match.
        vmap_method: what `vmap` does: "sequential" or "sequential_unrolled" calls once per example, "expand_dims" once with unmapped
            arguments given a leading dimension of 1, "broadcast_all" once with all arguments stacked.

    Raises:
        CallbackError: the function raised, or its result does not match.
        GradientError: it is differentiated.

    >>> import numpy as np
    >>> vf.jit(lambda x: vf.pure_callback(lambda v: np.sort(v), x, x))(vf.numpy.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ArgumentError(f"vmap_method must be one of {VMAP_METHODS}, got {vmap_method!r}")
    host, avals, values = _host_call(callback, result_shape_dtypes, args, kwargs)
    outs = bind(pure_callback_p, *values, callback=host, result_avals=avals, vmap_method=vmap_method)
    return tree.unflatten(host.out_tree, outs)


def _host_call(
    callback: Callable[..., Any], result_shape_dtypes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[HostFunction, Avals, list[Array]]:
    """Return a callback on flat lists, the types of its results, and its operands."""
    leaves, in_tree = tree.flatten((args, kwargs))
    result_types, out_tree = tree.flatten(result_shape_dtypes)
    avals = tuple([ShapedArray(tuple(w.shape), dtypes.as_dtype(w.dtype)) for w in result_types])
    return HostFunction(callback, in_tree, out_tree), avals, [as_value(x) for x in leaves]


# io_callback


def _io_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, callback: HostFunction, result_avals: Avals, ordered: bool
) -> tuple[Sequence[Array], list[int]]:
    if ordered and not axis.of_shards:
        raise ArgumentError(f"{callback.name} is an ordered io_callback, so vmap cannot map it: the examples have no order")
    front = to_front(args, dims)
    one = functools.partial(bind, io_callback_p, callback=callback, result_avals=result_avals, ordered=ordered)
    outs = _one_by_one(front, [d is not None for d in dims], axis.size, one)
    return outs, [0] * len(outs)


io_callback_p = Primitive(
    "io_callback",
    lambda *avals, callback, result_avals, ordered: result_avals,
    evaluate=lambda *operands, callback, result_avals, ordered: _evaluate(
        *operands, callback=callback, result_avals=result_avals, vmap_method=None
    ),
    jvp=no_derivative("{callback.name} is an io_callback, which has no derivative; put stop_gradient on its arguments"),
    batch=_io_batch,
    multiple_results=True,
    effectful=True,
)


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: None = None, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call a Python function with effects from a program.

    It runs once per execution of the call, in program order, even if its result is unused.

    Args:
        callback: called with arrays in the structure of `args` and `kwargs`.
        result_shape_dtypes: a pytree of objects with `shape` and `dtype`, which the result must match.
        ordered: whether the order matters; then `vmap` raises `ArgumentError`, else it calls once for each example.

    Raises:
        CallbackError: the function raised, or its result does not match.
        GradientError: it is differentiated.

    >>> seen = []
    >>> vf.jit(lambda x: vf.experimental.io_callback(lambda v: seen.append(int(v)), None, x, ordered=True))(3)
    >>> seen
    [3]
    """
    host, avals, values = _host_call(callback, result_shape_dtypes, args, kwargs)
    outs = bind(io_callback_p, *values, callback=host, result_avals=avals, ordered=bool(ordered))
    return tree.unflatten(host.out_tree, outs)


# debug_callback


def _debug_evaluate(*operands: np.ndarray, callback: Callable[..., Any]) -> tuple[()]:
    callback(*operands)
    return ()


class _DebugFunction(_UserFunction):
    """A user's function on NumPy arrays and other arguments.

    Arrays take the place of the leaves that are None.
    """

    def __init__(self, function: Callable[..., Any], in_tree: Any, leaves: Sequence[Any]) -> None:
        super().__init__(function, in_tree)
        self.leaves = leaves

    def __call__(self, *operands: np.ndarray) -> None:
        arrays = iter(operands)
        self.call([from_host(np.asarray(next(arrays))) if leaf is None else leaf for leaf in self.leaves])


class _PerExample:
    """A callback called once per example of operands stacked along axis 0."""

    def __init__(self, callback: Callable[..., Any], stacked: Sequence[bool], size: int) -> None:
        self.callback = callback
        self.stacked = stacked
        self.size = size
        self.eager_kernels: dict[Any, Any] = {}

    def __call__(self, *operands: np.ndarray) -> None:
        for i in range(self.size):
            self.callback(*[x[i] if s else x for x, s in zip(operands, self.stacked, strict=True)])


def _debug_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, callback: Callable[..., Any]
) -> tuple[tuple[()], tuple[()]]:
    front = to_front(args, dims)
    bind(debug_callback_p, *front, callback=_PerExample(callback, [d is not None for d in dims], axis.size))
    return (), ()


debug_callback_p = Primitive(
    "debug_callback",
    lambda *avals, callback: (),
    evaluate=_debug_evaluate,
    jvp=zero_jvp,
    batch=_debug_batch,
    multiple_results=True,
    effectful=True,
)


def debug_callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call a Python function with the run-time values of `args` and `kwargs`.

    Its result is ignored. Calls happen in program order, whether or not `ordered` asks for it; under `vmap` once per example; under
    differentiation with the primal values. Arguments other than arrays are passed as they are.
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    host = _DebugFunction(callback, in_tree, [None if isinstance(x, _ARRAYS) else x for x in leaves])
    bind(debug_callback_p, *[as_value(x) for x in leaves if isinstance(x, _ARRAYS)], callback=host)
