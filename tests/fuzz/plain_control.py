"""volta_fn with control flow, batches and compiled functions in plain Python: every step, branch and example is evaluated by itself.

Gradients are tangents along each element of the arguments, unless a function has a reverse derivative alone. So a program has the same
meaning as in volta_fn, and needs other rules: of straight-line programs, and of forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import tree
from volta_fn.errors import GradientError, VoltaError

#: Steps after which loops with a traced condition have ended.
_MOST_STEPS = 8


def _concrete(x: Any) -> Any:
    """Return the value of a scalar as a Python number; None if it is traced."""
    try:
        return x.item() if hasattr(x, "item") else x
    except VoltaError:
        return None


def _selected(condition: Any, yes: Any, no: Any) -> Any:
    return tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _arrays(values: Any, like: Any = None) -> Any:
    """Return values as arrays, of the dtypes of others where their own are weak."""
    return tree.map(jnp.asarray, values) if like is None else tree.map(_of_type, values, like)


def _of_type(x: Any, like: Any) -> Any:
    """Return a value as an array of the dtype of another, which Python's numbers leave weak."""
    if not like.weak_type:
        return jnp.asarray(x, like.dtype)
    return x if hasattr(x, "dtype") else vf.jit(lambda y: y)(float(x) if like.dtype.kind == "f" else x)


def _initial(carry: Any, step: Callable[[Any], Any]) -> Any:
    """Return a carry as arrays, Python's numbers of the dtypes that a step gives them."""
    if all(hasattr(x, "dtype") for x in tree.leaves(carry)):
        return carry
    types = vf.eval_shape(step, carry)
    return tree.map(
        lambda x, t: x if hasattr(x, "dtype") else _of_type(x, t) if t.weak_type else jnp.asarray(x, jnp.result_type(x, t.dtype)),
        carry,
        types,
    )


def _stacked(values: Sequence[Any], axis: int = 0) -> Any:
    return tree.map(lambda *xs: jnp.stack(xs, axis), *values)


def scan(step: Any, carry: Any, rows: Any = None, length: int | None = None, reverse: bool = False, unroll: Any = 1) -> tuple[Any, Any]:
    """Run the steps of a scan one after another."""
    leaves = tree.leaves(rows)
    count = length if length is not None else leaves[0].shape[0]
    types = tree.map(lambda x: vf.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    carry, outs = _initial(carry, lambda c: step(c, tree.map(lambda t: jnp.zeros(t.shape, t.dtype), types))[0]), {}
    for i in reversed(range(count)) if reverse else range(count):
        new, outs[i] = step(carry, tree.map(lambda x, i=i: x[i], rows))
        carry = _arrays(new, carry)
    if not count:
        shapes = vf.eval_shape(lambda: step(carry, tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), rows))[1])
        return carry, tree.map(lambda s: jnp.zeros((0, *s.shape), s.dtype), shapes)
    return carry, _stacked([outs[i] for i in range(count)])


def while_loop(condition: Callable[[Any], Any], step: Callable[[Any], Any], carry: Any) -> Any:
    """Run the steps of a loop; where the condition is traced, as many as any loop has, and keep the carry once it has ended."""
    carry = _initial(carry, step)
    for _ in range(_MOST_STEPS):
        goes_on = condition(carry)
        concrete = _concrete(goes_on)
        if concrete is False:
            break
        new = _arrays(step(carry), carry)
        carry = new if concrete else _selected(goes_on, new, carry)
    return carry


def fori_loop(low: Any, high: Any, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Run the steps of a loop over numbers."""
    return while_loop(lambda c: c[0] < high, lambda c: (c[0] + 1, step(c[0], c[1])), (jnp.int32(low), carry))[1]


def switch(index: Any, branches: Sequence[Any], *operands: Any) -> Any:
    """Evaluate the branch of a number, or all of them and select."""
    concrete = _concrete(index)
    last = len(branches) - 1
    if concrete is not None:
        return _arrays(branches[min(max(int(concrete), 0), last)](*operands))
    result = _arrays(branches[last](*operands))
    for i in reversed(range(last)):
        result = _selected(index <= i, branches[i](*operands), result)
    return result


def cond(condition: Any, yes: Any, no: Any, *operands: Any) -> Any:
    """Evaluate a branch, or both and select."""
    concrete = _concrete(condition)
    if concrete is None:
        return _selected(condition, yes(*operands), no(*operands))
    return _arrays((yes if concrete else no)(*operands))


def vmap(function: Any, in_axes: Any = 0, out_axes: int = 0, **options: Any) -> Callable[..., Any]:
    """Return a function that evaluates one example after another, unless it has a named axis or axes of leaves."""
    if options or any(isinstance(axis, dict) for axis in (in_axes if isinstance(in_axes, tuple) else (in_axes,))):
        return vf.vmap(function, in_axes, out_axes, **options)

    def mapped(*arguments: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)
        count = next(tree.leaves(x)[0].shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not None)
        pick = lambda x, axis, i: x if axis is None else tree.map(lambda a: jnp.take(a, i, axis), x)
        results = [function(*[pick(x, axis, i) for x, axis in zip(arguments, axes, strict=True)]) for i in range(count)]
        return _stacked(results, out_axes)

    return mapped


def associative_scan(operator: Any, values: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Combine elements one after another."""
    parts = tree.map(lambda x: jnp.moveaxis(x, axis, 0), values)
    count = tree.leaves(parts)[0].shape[0]
    order = list(reversed(range(count))) if reverse else list(range(count))
    results: dict[int, Any] = {}
    for i in order:
        part = tree.map(lambda x, i=i: x[i], parts)
        results[i] = operator(results[i + (1 if reverse else -1)], part) if results else part
    return tree.map(lambda x: jnp.moveaxis(x, 0, axis), _stacked([results[i] for i in range(count)])) if count else values


class _Overlaid:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _forward(function: Any, selected: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the gradient of a function of arrays as its tangents along each of their elements.

    As in JAX, that by x + iy is the derivative of the real part by x, minus i times that by y.
    """
    gradient = []
    for i, x in enumerate(selected):
        tangents = [jnp.zeros_like(other) for other in selected]
        along = lambda t, i=i, tangents=tangents: jnp.real(vf.jvp(function, selected, (*tangents[:i], t, *tangents[i + 1 :]))[1])
        basis = jnp.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape)
        parts = [vf.vmap(along)(unit * basis) for unit in ((1, 1j) if x.dtype.kind == "c" else (1,))] if x.size else [x]
        gradient.append(sum([p * unit for p, unit in zip(parts, (1, -1j), strict=False)]).reshape(x.shape).astype(x.dtype))
    return tuple(gradient)


def grad(function: Any, argnums: int | tuple[int, ...] = 0, holomorphic: bool = False) -> Callable[..., Any]:
    """Return the gradient by forward mode; by reverse mode where that is refused, and of trees."""

    def gradient(*arguments: Any) -> Any:
        positions = (argnums,) if isinstance(argnums, int) else argnums

        def of_selected(*selected: Any) -> Any:
            values = [*arguments]
            for position, value in zip(positions, selected, strict=True):
                values[position] = value
            return function(*values)

        if any(isinstance(arguments[i], (dict, tuple)) for i in positions):
            return vf.grad(function, argnums, holomorphic=holomorphic)(*arguments)
        try:
            result = _forward(of_selected, tuple([arguments[i] for i in positions]))
        except GradientError:
            return vf.grad(function, argnums, holomorphic=holomorphic)(*arguments)
        return result[0] if isinstance(argnums, int) else result

    return gradient


def vjp(function: Any, *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a function's results, and the gradient of their sum weighted by cotangents."""

    def pull(cotangents: Any) -> Any:
        products = lambda *xs: tree.map(lambda r, c: jnp.real((r * c).sum()), function(*xs), cotangents)
        return grad(lambda *xs: sum(tree.leaves(products(*xs))), tuple(range(len(primals))))(*primals)

    return function(*primals), pull


def jacrev(function: Any, argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return the Jacobian by forward mode; by reverse mode where that is refused."""

    def jacobian(*arguments: Any) -> Any:
        selected = arguments[argnums] if isinstance(argnums, int) else [arguments[i] for i in argnums]
        dtype = jnp.result_type(*tree.leaves(selected))
        try:  # cotangents have the dtype of what is derived by, tangents that of the results
            return tree.map(lambda x: x.astype(dtype), vf.jacfwd(function, argnums)(*arguments))
        except GradientError:
            return vf.jacrev(function, argnums)(*arguments)

    return jacobian


def _linearized(function: Any, *primals: Any) -> tuple[Any, Callable[..., Any]]:
    return function(*primals), lambda *tangents: vf.jvp(function, primals, tangents)[1]


def _unchanged(function: Any, **_: Any) -> Any:
    return function


#: The package so, by the names that programs use.
PLAIN = _Overlaid(
    vf,
    numpy=jnp,
    vmap=vmap,
    grad=grad,
    vjp=vjp,
    jacrev=jacrev,
    jit=_unchanged,
    checkpoint=_unchanged,
    linearize=_linearized,
    lax=_Overlaid(
        vf.lax,
        scan=scan, while_loop=while_loop, fori_loop=fori_loop, switch=switch, cond=cond, associative_scan=associative_scan,
        map=lambda function, xs, batch_size=None: scan(lambda c, x: (c, function(x)), 0, xs)[1],
        custom_root=lambda f, guess, solve, tangent_solve: solve(f, guess),
        custom_linear_solve=lambda matvec, b, solve, transpose_solve=None, symmetric=False: solve(matvec, b),
        optimization_barrier=lambda x: x,
    ),
    ad_checkpoint=SimpleNamespace(checkpoint_name=lambda x, name: x),
)  # fmt: skip
