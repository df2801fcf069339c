"""`grad`, `value_and_grad`, `vjp`, `jvp`, `linearize` of functions of pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, overload

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, aval_of, brief
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr
from volta_fn.core.primitive import Zero
from volta_fn.core.refs import Ref, RefArguments, positions_of_refs, read_all, with_refs_at
from volta_fn.core.staging import (
    FlatFunction,
    JittedFunction,
    check_callable,
    eval_jaxpr,
    function_name,
    jitted_like,
    leaf_structure,
    positional_index,
    wraps,
)
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.dtypes import float0
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, RefError, ShapeError, TreeError, UnsupportedError
from volta_fn.primitives.data_movement.movement import instantiate
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.settings import current as settings
from volta_fn.transforms.differentiation import gradient_flat, jvp_flat, marked, transpose_linear_program, with_zeros
from volta_fn.transforms.eager import gradient_eagerly, linearize_eagerly
from volta_fn.tree.structures import structural_difference

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Any)
Aux = TypeVar("Aux")

# `value_and_grad` and `grad`.


@overload
def value_and_grad(
    fun: Callable[Concatenate[T, P], R],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[R, T]]: ...
@overload
def value_and_grad(
    fun: Callable[Concatenate[T, P], tuple[R, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[tuple[R, Aux], T]]: ...
@overload
def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., tuple[Any, Any]]: ...
def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Make a function that returns the value of `fun` and its gradient.

    The gradient is with respect to the arguments at `argnums`.

    Args:
        fun: a function whose result is a scalar, or with `has_aux` a pair (scalar, anything).
        argnums: positional arguments to differentiate with respect to; an int gives one gradient, a sequence a tuple of them.
        holomorphic: differentiate a complex function of complex arguments. A real function of complex arguments needs no flag: its
            gradient with respect to z = x + iy is df/dx - i df/dy, whose conjugate is the direction of steepest ascent.
        allow_int: accept integer arguments, whose gradients are zeros of dtype `float0`.
        reduce_axes: must be empty, as in JAX: sum gradients over named axes by `lax.psum`.

    Raises:
        GradientError: the result is not a real scalar, or an argument is not of floating or complex dtype.

    >>> vf.value_and_grad(lambda x: x ** 2)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable(fun, "value_and_grad")
    check_no_axes(reduce_axes, "value_and_grad")
    name = function_name(fun)

    @wraps(fun)
    def with_gradient(*args: Any, **kwargs: Any) -> Any:
        positions, arguments = arguments_at(args, argnums, "grad", kwargs)
        leaves, in_tree = tree.flatten((tuple(arguments), {}))
        _check_inputs(leaves, positions, arguments, name, holomorphic, allow_int)
        values = [as_value(x) for x in leaves]
        differentiable = [v.aval.is_differentiable for v in values]
        function = DifferentiatedFunction(partial_function(fun, args, positions, kwargs), in_tree, has_aux, "grad")

        def check(outs: Sequence[Array]) -> None:  # called after the function, which sets `out_tree`
            _check_output(outs, function.flat.out_tree, name, holomorphic)

        gradient_of = gradient_eagerly if current_trace() is EVAL else gradient_flat  # a program that is traced has the plain one
        outs, cotangents = gradient_of(function, values, differentiable, name, check)
        (value,), aux = function.split(outs)
        gradient = _argument_cotangents(cotangents, differentiable, [v.aval for v in values], in_tree)
        gradient = gradient[0] if isinstance(argnums, int) else gradient
        return ((value, aux), gradient) if has_aux else (value, gradient)

    # The gradient of integers is a NumPy array of dtype float0, which programs cannot return: then this function is not jitted.
    return with_gradient if allow_int else jitted_like(fun, with_gradient, "value_and_grad", argnums, has_aux, holomorphic)


@overload
def grad(
    fun: Callable[Concatenate[T, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], T]: ...
@overload
def grad(
    fun: Callable[Concatenate[T, P], tuple[Any, Aux]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[T, P], tuple[T, Aux]]: ...
@overload
def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]: ...
def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Make the gradient of a scalar function.

    Arguments and errors are those of `value_and_grad`.

    >>> vf.grad(vf.numpy.tanh)(2.0)
    Array(0.07065082, dtype=float32, weak_type=True)
    """
    check_callable(fun, "grad")
    check_no_axes(reduce_axes, "grad")
    value_and_gradient = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    gradient = wraps(fun)(without_value(value_and_gradient, has_aux))
    return gradient if allow_int else jitted_like(fun, gradient, "grad", argnums, has_aux, holomorphic)


def without_value(value_and_gradient: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Return a function that returns the gradient alone, or with further results."""

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = value_and_gradient(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def check_no_axes(reduce_axes: Sequence[Any], transform: str) -> None:
    """Raise `UnsupportedError` if there are axes over which gradients would be summed."""
    if reduce_axes:
        raise UnsupportedError(
            f"{transform}: reduce_axes must be empty, got {reduce_axes!r}; sum gradients by lax.psum(gradient, axis_name)"
        )


def arguments_at(
    args: Sequence[Any], argnums: int | Sequence[int], transform: str, kwargs: Mapping[str, Any] | None = None
) -> tuple[list[int], list[Any]]:
    """Return the positions (from the front) and values of the arguments at `argnums`."""
    try:
        positions = [positional_index(i, len(args), transform) for i in ((argnums,) if isinstance(argnums, int) else argnums)]
    except ArgumentError as error:
        if not kwargs:
            raise
        names = ", ".join(kwargs)
        raise ArgumentError(
            f"{error.message}, and passes {names} by keyword. Pass the arguments to differentiate by position: f({next(iter(kwargs))})."
        ) from None
    return positions, [args[i] for i in positions]


def partial_function(fun: Callable[..., Any], args: Sequence[Any], positions: Sequence[int], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Make `fun` a function of the arguments at `positions` alone; others are `args`."""
    if list(positions) == list(range(len(args))) and not kwargs:
        return fun

    def partial(*values: Any) -> Any:
        arguments = list(args)
        for i, value in zip(positions, values, strict=True):
            arguments[i] = value
        return fun(*arguments, **kwargs)

    partial.__name__ = function_name(fun)
    return partial


def _check_inputs(
    leaves: Sequence[Any], positions: Sequence[int], arguments: Sequence[Any], name: str, holomorphic: bool, allow_int: bool
) -> None:
    """Raise `GradientError` unless the leaves are of dtypes that have gradients."""
    if not holomorphic and all(isinstance(leaf, Array) and leaf.aval.is_float for leaf in leaves):
        return  # the usual case, without the paths that only messages need
    for path, leaf in tree.leaves_with_path(list(arguments)):
        aval = as_value(leaf).aval
        where = f"argument {positions[path[0].idx]}{tree.keystr(path[1:])} of {name}"
        if holomorphic and aval.dtype not in dtypes.COMPLEX:
            raise GradientError(f"grad with holomorphic=True needs complex inputs, but {where} has dtype {aval.dtype.name}")
        if not aval.is_differentiable and not allow_int:
            raise GradientError(
                f"grad needs inputs of floating dtype, but {where} has dtype {aval.dtype.name}. "
                + (
                    "Differentiate by the rest of the pytree: trained, frozen = nn.partition(tree, nn.is_inexact_array); "
                    "a quantised model is trained by adapters, nn.lora"
                    if path[1:]
                    else "Convert it with .astype(float), choose other arguments with argnums"
                )
                + ", or pass allow_int=True to get an empty gradient."
            )


def _check_output(outs: Sequence[Array], out_tree: tree.TreeDef, name: str, holomorphic: bool) -> None:
    """Raise `GradientError` unless the result is one scalar of a dtype with gradients."""
    if out_tree != leaf_structure():
        result = tree.describe(out_tree)
        raise GradientError(
            f"grad needs a function with one scalar result, but {name} returned {result}"
            + (
                ": is a `return` missing at its end?"
                if result == "None"
                else f"{', where * is an array' * ('*' in result)}. Return (loss, aux) and pass has_aux=True to get other values out."
            )
        )
    aval = outs[0].aval
    if aval.is_float and not aval.shape and not holomorphic:
        return
    if aval.shape:
        raise GradientError(
            f"grad needs a function with a scalar result, but {name} returned an array of shape {aval.shape}. "
            "Reduce it with .sum() or .mean(), or use jacrev or vjp for the derivative of an array."
        )
    if aval.dtype not in dtypes.INEXACT:
        raise GradientError(
            f"grad needs a real scalar result, but {name} returned dtype {aval.dtype.name}. Counts, comparisons and indices have no "
            "gradient: return a loss of floats"
        )
    if (aval.dtype in dtypes.COMPLEX) != holomorphic:
        raise GradientError(
            f"{name} returned dtype {aval.dtype.name}: grad needs a real result, or with holomorphic=True a complex one. "
            "Take the real part or absolute value, or use vjp."
        )


# `vjp`: a function's value, and the function of cotangents.


@overload
def vjp(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, VJP]: ...
@overload
def vjp(fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]) -> tuple[R, VJP, Aux]: ...
@overload
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool, reduce_axes: Sequence[Any] = ()) -> Any: ...
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """Return ``fun(*primals)`` and its vector-Jacobian product.

    Returns ``(value, vjp_fun)``, or ``(value, vjp_fun, aux)`` with `has_aux`; ``vjp_fun(cotangent)`` gives one cotangent per argument.
    `reduce_axes` must be empty, as in `grad`.

    >>> y, pull_back = vf.vjp(lambda x: x * x, 3.0)
    >>> pull_back(1.0)
    (Array(6., dtype=float32, weak_type=True),)
    """
    check_callable(fun, "vjp")
    check_no_axes(reduce_axes, "vjp")

    @wraps(fun)
    def with_pull_back(*primals: Any) -> Any:
        leaves, in_tree = tree.flatten((primals, {}))
        if positions := positions_of_refs(leaves):
            slots = RefSlots(in_tree, tuple(positions))
            return RefArguments(leaves, positions, "vjp").run(lambda plain: _vjp_of_refs(fun, plain, slots, has_aux))
        linearized = linearize_at(fun, leaves, in_tree, has_aux, "vjp")
        return linearized.result(VJP(*linearized.saved_values(in_tree, None, fun if isinstance(fun, JittedFunction) else None)), has_aux)

    return jitted_like(fun, with_pull_back, "vjp", has_aux)(*primals)


def _vjp_of_refs(fun: Callable[..., Any], plain: list[Any], slots: RefSlots, has_aux: bool) -> tuple[Any, list[Array]]:
    """Return the `vjp` of a function of references, and the references' last values.

    The differentiated function returns those as further results.
    """

    @wraps(fun)
    def pure(*leaves: Any) -> Any:
        inner, refs = with_refs_at(slots.positions, leaves)
        args, _ = tree.unflatten(slots.in_tree, inner)
        result = fun(*args)
        return ((result[0], read_all(refs)), result[1]) if has_aux else (result, read_all(refs))

    linearized = linearize_at(pure, *tree.flatten((tuple(plain), {})), has_aux, "vjp")
    (value, last), *rest = linearized.result(VJP(*linearized.saved_values(slots.in_tree, slots)), has_aux)
    return (value, *rest), last


class _Structure(NamedTuple):
    """What a `VJP` has besides arrays."""

    signature: Signature
    #: The linear program, without its constants.
    jaxpr: Jaxpr
    #: For each constant, the leaf ``i >= 0`` of the arguments that it is, or ``~k`` for the k-th of the other saved arrays.
    sources: tuple[int, ...]
    #: The structure of ``(args, {})``.
    in_tree: Any
    #: The positions of references among the arguments, if some are references.
    slots: RefSlots | None
    #: The function that is differentiated, if it is jitted: calls of the `VJP` are jitted then.
    jitted: JittedFunction | None


class VJP:
    """The function that `vjp` returns, from result cotangents to those of arguments.

    It is a pytree of the values that the forward pass saved, so a jitted function may return it and another may take it.

    Attributes:
        args_res: the arguments, as a list, with `NotNeeded` in place of arrays that were not saved as they are. Their memory may be freed
            by ``vjp_fun.args_res[0] = None``; then the argument is to be assigned again before the call.
        opaque_residuals: the list of the other arrays that were saved.
    """

    def __init__(self, static: _Structure, args_res: list[Any], opaque_residuals: list[Any]) -> None:
        self._static = static
        self.args_res = args_res
        self.opaque_residuals = opaque_residuals

    def __call__(self, cotangent: Any) -> Any:
        """Return the cotangents of the arguments, as a tuple (float0 zeros for integers).

        Raises `TreeError`, `ShapeError` or `DTypeError` if the cotangent does not fit, `ArgumentError` if a value in `args_res` does not,
        and `RefError` if an argument is a reference, whose gradient must be accumulated in a reference (`with_refs`).
        """
        if self._static.slots is not None:
            raise RefError("the gradient by a reference must be accumulated into a reference: call vjp_fun.with_refs(...)(cotangent)")
        return self._pull_back(cotangent)

    def with_refs(self, *entries: Any) -> Callable[[Any], Any]:
        """Return this function with a destination of each argument's cotangent.

        An entry is a reference, to which the cotangent is added (the result has a `GradRef` instead), `GradValue()` for one that is
        returned, or `DontWant()` for one that is not wanted (the result has a `DidntWant`).

        >>> total = vf.new_ref(1.0)
        >>> vf.vjp(lambda x: x * x, 3.0)[1].with_refs(total)(1.0), total
        ((GradRef(),), Ref(7., dtype=float32))
        """
        slots = self._static.slots or RefSlots(self._static.in_tree, ())
        return functools.partial(apply_with_refs, self._pull_back, slots, entries)

    def _pull_back(self, cotangent: Any) -> Any:
        # Cotangents of integers are NumPy arrays of dtype float0, which programs cannot return.
        jitted = self._static.jitted
        if jitted is not None and current_trace() is EVAL and all(self._static.signature.differentiable):
            return jitted.transformed("pull back", _call_vjp, same_arguments=False)(self, cotangent)
        return _call_vjp(self, cotangent)

    def _program(self) -> ClosedJaxpr:
        """Return the linear program with the saved values as its constants."""
        static = self._static
        arguments: list[Any] = []
        for structure, argument in zip(tree.treedef_children(tree.treedef_children(static.in_tree)[0]), self.args_res, strict=True):
            try:
                arguments += tree.flatten_up_to(structure, argument)
            except TreeError:  # as of None
                arguments += [None] * structure.num_leaves
        constants = []
        for var, source in zip(static.jaxpr.constvars, static.sources, strict=True):
            saved = arguments[source] if source >= 0 else self.opaque_residuals[~source]
            constants.append(saved if isinstance(saved, Array) else _restored(saved, var.aval))
            if (constants[-1].shape, constants[-1].dtype) != (var.aval.shape, var.aval.dtype):
                raise ArgumentError(f"args_res of a vjp has an array of type {constants[-1].aval} in place of one of type {var.aval}")
        return ClosedJaxpr(static.jaxpr, constants)


tree.register_pytree_node(
    VJP,
    lambda vjp_fun: ((vjp_fun.args_res, vjp_fun.opaque_residuals), vjp_fun._static),
    lambda static, saved: VJP(static, *saved),
)


def _restored(saved: Any, aval: ShapedArray) -> Array:
    """Return a Python number or NumPy array of `VJP.args_res` as an array."""
    if saved is None or isinstance(saved, NotNeeded):
        raise ArgumentError(f"args_res of a vjp lacks an argument of type {aval}, which the derivative needs: assign it before the call")
    return as_value(saved)


def _call_vjp(vjp_fun: VJP, cotangent: Any) -> Any:
    signature = vjp_fun._static.signature
    leaves, structure = tree.flatten(cotangent)
    if structure != signature.out_tree:
        raise structure_error("the cotangent has the structure of the function's result", signature.out_tree, structure)
    cts = [checked_cotangent(ct, aval) for ct, aval in zip(leaves, signature.out_avals, strict=True)]
    return _argument_cotangents(
        transpose_linear_program(vjp_fun._program(), marked(cts, signature.out_nonzero)),
        signature.differentiable,
        signature.in_avals,
        signature.in_tree,
    )


def checked_cotangent(ct: Any, aval: ShapedArray) -> Any:
    """Convert a user's cotangent of a result to an array (a `Zero` for integers).

    Raises `ShapeError` or `DTypeError` if it does not fit.
    """
    expected = aval.tangent_aval()
    if expected.dtype == dtypes.float0:
        return Zero(expected)
    return _checked_derivative(ct, aval, False, "a cotangent", "the result it belongs to")


def _checked_derivative(value: Any, aval: ShapedArray, accepts_any_dtype: bool, what: str, owner: str) -> Array:
    """Return a user's tangent or cotangent as an array of the type that fits `aval`.

    Its shape must be equal. Its dtype may differ if it is weakly typed, or if `accepts_any_dtype`, but a complex one is never made real,
    and under `volta_fn.jax` (`permissive`) dtypes must be equal, as in JAX. `what` and `owner` name the two in messages.
    """
    array, dtype = as_value(value), aval.tangent_aval().dtype
    if array.shape != aval.shape:
        raise ShapeError(f"{what} has shape {array.shape}, but {owner} has shape {aval.shape}")
    converts = (array.weak_type or accepts_any_dtype) and not settings.permissive and (array.dtype.kind != "c" or dtype.kind == "c")
    if array.dtype not in (dtype, aval.dtype) and not converts:
        raise DTypeError(f"{what} has dtype {array.dtype.name}, but {owner} has dtype {aval.dtype.name}")
    return array if array.dtype == dtype and array.weak_type <= aval.weak_type else convert_element_type(array, dtype)


# Destinations of cotangents, which `VJP.with_refs` adds to references or drops.


class _Marker:
    """A value without contents; those of one class are equal."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class GradValue(_Marker):
    """A destination of `VJP.with_refs`: return the argument's cotangent (the default)."""


class DontWant(_Marker):
    """A destination of `VJP.with_refs`: drop the argument's cotangent."""


@tree.register_static
class GradRef(_Marker):
    """A placeholder for a cotangent that was added to a reference."""


@tree.register_static
class DidntWant(_Marker):
    """A placeholder for a cotangent that was not requested."""


@tree.register_static
class NotNeeded(_Marker):
    """A placeholder in `VJP.args_res` for an argument that was not saved as it is."""


class RefSlots(NamedTuple):
    """The structure of a function's ``(args, {})``, and which leaves are references."""

    in_tree: Any
    positions: tuple[int, ...]


def apply_with_refs(vjp_fun: Callable[[Any], Any], slots: RefSlots, entries: Sequence[Any], cotangent: Any) -> Any:
    """Return the arguments' cotangents, or accumulate them in references.

    A reference's last value is a result, whose cotangent the entry holds; then it holds that of the first value.
    """
    args = tree.unflatten(slots.in_tree, list(range(slots.in_tree.num_leaves)))[0]
    if len(entries) != len(args):
        raise ArgumentError(f"with_refs takes one entry per argument: {len(args)}, got {len(entries)}")
    destinations = tree.broadcast_prefix(tuple(entries), args)
    for entry in destinations:
        if not isinstance(entry, (Ref, GradValue, DontWant)):
            raise ArgumentError(f"an entry of with_refs is a reference, GradValue() or DontWant(), got {entry!r:.80}")
    if slots.positions:
        cotangent = cotangent, [_last_cotangent(destinations[i]) for i in slots.positions]
    cotangents = tree.leaves(vjp_fun(cotangent))
    results = [_deliver(e, c, i in slots.positions) for i, (e, c) in enumerate(zip(destinations, cotangents, strict=True))]
    return tree.unflatten(slots.in_tree, results)[0]


def _last_cotangent(entry: Any) -> Any:
    """Return the cotangent of the last value of a reference."""
    if isinstance(entry, Ref):
        return entry.get()
    raise RefError("the gradient by a reference must be accumulated into a reference: give with_refs one for that argument")


def _deliver(entry: Any, cotangent: Any, replaces: bool) -> Any:
    """Bring a cotangent to its destination; return what stands for it in the result."""
    if isinstance(entry, DontWant):
        return DidntWant()
    if isinstance(entry, GradValue):
        return cotangent
    if cotangent.dtype == float0:
        raise RefError("an integer argument has no gradient to accumulate in a reference: give with_refs GradValue() for it")
    entry[...] = cotangent if replaces else add(entry.get(), cotangent)
    return GradRef()


# Forward derivatives: `jvp`, and `linearize`.


@overload
def jvp(fun: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False) -> tuple[R, R]: ...
@overload
def jvp(fun: Callable[..., tuple[R, Aux]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]) -> tuple[R, R, Aux]: ...
@overload
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> Any: ...
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and its derivative along `tangents`.

    Returns ``(value, tangent)``, or ``(value, tangent, aux)`` with `has_aux`. Raises `TreeError`, `ShapeError` or `DTypeError` if a
    tangent does not fit its primal.

    >>> vf.jvp(lambda x: x * x, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable(fun, "jvp")
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise ArgumentTypeError(
                f"jvp: {name} is a tuple with an entry for each argument of {function_name(fun)}, got {brief(value)}; "
                "for one argument: jvp(f, (x,), (t,))"
            )

    def with_tangents(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        leaves, in_tree = tree.flatten((primals, {}))
        directions, tangent_tree = tree.flatten((tangents, {}))
        if in_tree != tangent_tree:
            raise structure_error("jvp: tangents have the structure of the primals", tree.structure(primals), tree.structure(tangents))
        values = [as_value(x) for x in leaves]
        in_tangents = [_checked_tangent(t, v.aval) for t, v in zip(directions, values, strict=True)]
        function = DifferentiatedFunction(fun, in_tree, has_aux, "jvp")
        outs, out_tangents = jvp_flat(function, values, in_tangents, function_name(fun))
        results, aux = function.split(outs)
        pairs = zip(out_tangents[: len(results)], results, strict=True)
        result_tangents = [derivative_of(t, v.aval) for t, v in pairs if v.aval.is_differentiable]
        return tree.unflatten(function.flat.out_tree, results), result_tangents, aux

    arguments = tuple(primals), tuple(tangents)
    # Tangents of integers are NumPy arrays of dtype float0, which programs neither take nor return.
    if not any(getattr(t, "dtype", None) == dtypes.float0 for t in tree.leaves(arguments[1])):
        with_tangents = jitted_like(fun, with_tangents, "jvp", has_aux, same_arguments=False)
    value, tangents_out, aux = with_tangents(*arguments)
    rest = iter(tangents_out)
    tangent = tree.map(lambda v: next(rest) if v.aval.is_differentiable else float0_zeros(v.shape), value)
    return (value, tangent, aux) if has_aux else (value, tangent)


def derivative_of(derivative: Any, aval: ShapedArray) -> Any:
    """Return the tangent or cotangent of a value of a type as an array.

    A `Zero` becomes zeros (float0 for integers). It is weakly typed if the value is, also where a strongly typed one came out, so that
    the derivative with respect to a Python number is promoted to the dtype of arrays that it meets, as the number is.
    """
    if type(derivative) is Zero and derivative.aval.dtype == dtypes.float0:
        return float0_zeros(derivative.aval.shape)
    array = instantiate(derivative)
    return array if array.weak_type is aval.weak_type else convert_element_type(array, array.dtype, aval.weak_type)


def _checked_tangent(tangent: Any, aval: ShapedArray) -> Any:
    expected = aval.tangent_aval()
    if expected.dtype == dtypes.float0:
        if getattr(tangent, "dtype", None) != dtypes.float0:
            raise DTypeError(
                f"the tangent of an array of dtype {aval.dtype.name} has dtype float0 (numpy.zeros(shape, volta_fn.dtypes.float0)), "
                f"got {tangent!r:.60}"
            )
        return Zero(expected)
    return _checked_derivative(tangent, aval, aval.weak_type, "a tangent", "its primal")


@overload
def linearize(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., R]]: ...
@overload
def linearize(fun: Callable[..., tuple[R, Aux]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Callable[..., R], Aux]: ...
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return ``fun(*primals)`` and the linear function that approximates `fun` there.

    It costs one evaluation of `fun`; a call of the linear function costs the derivative's own work only. The linear function is a pytree
    of values that the evaluation saved, so a jitted function may return it and another may take it.

    >>> y, push = vf.linearize(lambda x: x ** 3, 2.0)
    >>> push(1.0)
    Array(12., dtype=float32, weak_type=True)
    """
    check_callable(fun, "linearize")
    linearized = linearize_at(fun, *tree.flatten((primals, {})), has_aux, "linearize")
    return linearized.result(PushForward(linearized.signature, linearized.program), has_aux)


class PushForward:
    """The linear function that `linearize` returns."""

    def __init__(self, signature: Signature, program: ClosedJaxpr) -> None:
        self._signature, self._program = signature, program

    def __call__(self, *tangents: Any) -> Any:
        """Return the directional derivative along `tangents`.

        Raises `TreeError`, `ShapeError` or `DTypeError` if they do not fit the arguments.
        """
        signature = self._signature
        leaves, structure = tree.flatten((tangents, {}))
        if structure != signature.in_tree:
            raise structure_error("the linearized function takes tangents of the structure of (args, kwargs)", signature.in_tree, structure)
        in_tangents = [_checked_tangent(t, a) for t, a in zip(leaves, signature.in_avals, strict=True)]
        for tangent, aval in zip(leaves, signature.in_avals, strict=True):  # unlike `jvp`, JAX refuses weakly typed integers here
            dtype = aval_of(tangent).dtype
            if aval.is_differentiable and dtype not in dtypes.INEXACT:
                raise DTypeError(f"the linearized function got a tangent of dtype {dtype.name} for an argument of type {aval}")
        out_tangents = eval_jaxpr(self._program, *marked(in_tangents, signature.differentiable))
        results = with_zeros(out_tangents, signature.out_nonzero, signature.out_avals)
        return tree.unflatten(signature.out_tree, map(derivative_of, results, signature.out_avals))


tree.register_pytree_node(
    PushForward,
    lambda function: (function._program.consts, (function._signature, function._program.jaxpr)),
    lambda static, saved: PushForward(static[0], ClosedJaxpr(static[1], saved)),
)


# What they share: functions of pytrees as functions of flat arrays, and float0.


class DifferentiatedFunction:
    """A user's function, of pytrees and perhaps with aux, as one of flat arrays.

    A call sets the structure of the results (`flat.out_tree`) and of aux, whose arrays it returns after the outputs.
    """

    def __init__(self, function: Callable[..., Any], in_tree: Any, has_aux: bool, transform: str) -> None:
        self.has_aux = has_aux
        self.transform = transform
        self.flat = FlatFunction(self._without_aux(function) if has_aux else function, in_tree)
        self.aux_leaves: list[Any] = []
        self.aux_tree: Any = None

    def _without_aux(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def result_only(*args: Any, **kwargs: Any) -> Any:
            pair = function(*args, **kwargs)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                got = "one array" if isinstance(pair, Array) else type(pair).__name__
                raise ArgumentError(
                    f"{self.transform} with has_aux=True needs a function that returns (result, aux), got {got}. "
                    + ("Is a `return` missing at its end?" if pair is None else "Return such a pair, or leave has_aux out.")
                )
            result, aux = pair
            self.aux_leaves, self.aux_tree = tree.flatten(aux)
            return result

        return result_only

    def __call__(self, *xs: Array) -> list[Array]:
        outs = self.flat(*xs)
        return [*outs, *[a for a in self.aux_leaves if isinstance(a, Array)]]

    def split(self, results: Sequence[Any]) -> tuple[list[Any], Any]:
        """Split flat results into outputs and the auxiliary pytree, of leaves of any kind."""
        count = self.flat.out_tree.num_leaves
        rest = iter(results[count:])
        aux = tree.unflatten(self.aux_tree, [next(rest) if isinstance(a, Array) else a for a in self.aux_leaves]) if self.has_aux else None
        return list(results[:count]), aux


class Signature(NamedTuple):
    """Structures and types of a derivative's arguments and results."""

    in_tree: Any
    out_tree: Any
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    #: The arguments that have tangents.
    differentiable: tuple[bool, ...]
    #: The results that depend on those.
    out_nonzero: tuple[bool, ...]


class PytreeLinearization(NamedTuple):
    """The linearization of a function of pytrees, with the derivative's signature."""

    outs: list[Any]
    aux: Any
    program: ClosedJaxpr
    signature: Signature
    #: The arguments' leaves as arrays.
    inputs: list[Array]

    def saved_values(
        self, in_tree: Any, slots: RefSlots | None, jitted: JittedFunction | None = None
    ) -> tuple[_Structure, list[Any], list[Any]]:
        """Return the parts of a `VJP` of arguments of the structure `in_tree`."""
        references = slots.positions if slots else ()
        leaves = {_identity(x): i for i, x in enumerate(self.inputs) if i not in references}
        others: list[Any] = []
        sources = []
        for constant in self.program.consts:
            sources.append(leaves.get(_identity(constant), ~len(others)))
            others += [constant] if sources[-1] < 0 else []
        saved = dict(zip(sources, self.program.consts, strict=True))
        arguments = tree.unflatten(in_tree, [saved.get(i, NotNeeded()) for i in range(in_tree.num_leaves)])[0]
        return _Structure(self.signature, self.program.jaxpr, tuple(sources), in_tree, slots, jitted), list(arguments), others

    def result(self, derivative: Callable[..., Any], has_aux: bool) -> Any:
        """Return the function's value, the derivative, and the auxiliary result if any."""
        value = tree.unflatten(self.signature.out_tree, self.outs)
        return (value, derivative, self.aux) if has_aux else (value, derivative)


def linearize_at(fun: Callable[..., Any], leaves: Sequence[Any], in_tree: Any, has_aux: bool, transform: str) -> PytreeLinearization:
    """Run a function of pytrees, and record its derivative.

    `leaves` and `in_tree` are its flattened ``(args, kwargs)``, `transform` its caller's name for messages.
    """
    values = [as_value(x) for x in leaves]
    function = DifferentiatedFunction(fun, in_tree, has_aux, transform)
    in_avals = tuple([v.aval for v in values])
    differentiable = tuple([a.is_differentiable for a in in_avals])
    linearization = linearize_eagerly(function, values, differentiable, function_name(fun))
    outs, aux = function.split(linearization.outs)
    program, out_nonzero = linearization.of_first(len(outs))  # aux, which comes after the outputs, needs no derivative
    signature = Signature(in_tree, function.flat.out_tree, in_avals, tuple([o.aval for o in outs]), differentiable, tuple(out_nonzero))
    return PytreeLinearization(outs, aux, program, signature, values)


def _identity(x: Array) -> Any:
    """Return what aliases of an array share."""
    if type(x) is not ConcreteArray:
        return id(x)
    buffer = x._buffer
    memory = (buffer.ctypes.data, buffer.strides) if isinstance(buffer, np.ndarray) else id(buffer)
    return memory, x.aval


def float0_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Return the tangent of an integer array: zeros of dtype `float0`."""
    return np.zeros(shape, dtypes.float0)


def _argument_cotangents(cotangents: Sequence[Any], differentiable: Sequence[bool], avals: Sequence[ShapedArray], in_tree: Any) -> Any:
    """Return the cotangents of the arguments' leaves as pytrees, float0 for integers."""
    remaining = iter(cotangents)
    leaves = [derivative_of(next(remaining), a) if d else float0_zeros(a.shape) for d, a in zip(differentiable, avals, strict=True)]
    return tree.unflatten(in_tree, leaves)[0]


def structure_error(rule: str, expected: tree.TreeDef, got: tree.TreeDef) -> TreeError:
    """Return the error for the first difference of two structures."""
    path, expected_part, actual = structural_difference(expected, got)
    return TreeError(f"{rule}; at {tree.keystr(path) or 'the root'} that is {expected_part}, got {actual}")
