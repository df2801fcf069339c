"""`make_jaxpr` and `eval_shape`: trace functions without running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from volta_fn import tree
from volta_fn.core.arrays.array import aval_of
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.staging import FlatFunction, argument_labels, check_callable, describe_data, function_name, trace_to_jaxpr, wraps
from volta_fn.core.trace import bound_axis


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """Make a function that returns the program of `fun` as a `ClosedJaxpr`.

    Arguments may be arrays or `ShapeDtypeStruct`; those at `static_argnums` are constants. `axis_env` has the names and sizes of axes
    for collectives. With `return_shape` the result is a pair of the program and the shapes and dtypes of the results.

    >>> import volta_fn as vf
    >>> vf.make_jaxpr(lambda x: vf.lax.sin(x) * 2.0)(1.0)
    { lambda ; a:f32[]. let
        b:f32[] = sin a
        c:f32[] = mul b 2.0:f32[]
      in (c,) }
    """
    check_callable(fun, "make_jaxpr")
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @wraps(fun)
    def to_jaxpr(*args: Any, **kwargs: Any) -> Any:
        """Return the program for arguments like these."""
        fixed = {i % len(args): args[i] for i in static}
        dynamic = [a for i, a in enumerate(args) if i not in fixed]

        @wraps(fun)
        def of_dynamic(*values: Any, **named: Any) -> Any:
            rest = iter(values)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(len(args))], **named)

        with ExitStack() as axes:
            for name, size in axis_env or ():
                axes.enter_context(bound_axis(name, size))
            closed, shapes = _trace(of_dynamic if fixed else fun, dynamic, kwargs)
        return (closed, shapes) if return_shape else closed

    to_jaxpr.__name__ = f"make_jaxpr({function_name(fun)})"
    to_jaxpr.__qualname__ = f"make_jaxpr({getattr(fun, '__qualname__', function_name(fun))})"
    return to_jaxpr


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of ``fun(*args, **kwargs)`` without computing it.

    The result is a pytree of `ShapeDtypeStruct`. Results that are themselves of this class are returned as they are.

    >>> import volta_fn as vf
    >>> vf.eval_shape(lambda x: x.sum(0), vf.ShapeDtypeStruct((1000, 3), "float32"))
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    check_callable(fun, "eval_shape")
    results: list[Any] = []
    structure: Any = None

    @wraps(fun)
    def of_arrays(*args: Any, **kwargs: Any) -> list[Any]:
        nonlocal structure
        leaves, structure = tree.flatten(fun(*args, **kwargs))
        results[:] = [leaf if isinstance(leaf, ShapeDtypeStruct) else None for leaf in leaves]
        return [leaf for leaf, shape in zip(leaves, results, strict=True) if shape is None]

    shapes = iter(_trace(of_arrays, args, kwargs)[1])
    return tree.unflatten(structure, [next(shapes) if shape is None else shape for shape in results])


def _trace(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a function's program, and the shapes and dtypes of its results."""
    leaves, in_tree = describe_data(*tree.flatten((tuple(args), kwargs)))
    flat = FlatFunction(fun, in_tree)
    labels = argument_labels(fun, in_tree)
    closed = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], function_name(fun), labels)
    return closed, tree.unflatten(flat.out_tree, [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.out_avals])
