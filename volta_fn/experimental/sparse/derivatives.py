"""Derivatives by the elements of sparse arguments: `grad`, `value_and_grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse
from volta_fn.transforms import grad as dense


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.value_and_grad` does; `BCOO` arguments have `BCOO` gradients.

    Such a gradient has the indices of its argument.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.grad(lambda m: (m @ vf.numpy.array([5.0, 7.0])).sum())(m).todense()
    Array([[0., 7.],
           [5., 0.]], dtype=float32)
    """

    @functools.wraps(fun)
    def with_gradient(*args: Any, **named: Any) -> Any:
        numbers, _ = dense.chosen_arguments(args, argnums, "grad")
        data = [tree.map(lambda x: x.data if isinstance(x, BCOO) else x, args[i], is_leaf=_is_sparse) for i in numbers]

        def of_data(*given: Any) -> Any:
            merged = list(args)
            for i, value in zip(numbers, given, strict=True):
                merged[i] = _restored(args[i], value)
            return fun(*merged, **named)

        value, found = dense.value_and_grad(of_data, tuple(range(len(numbers))), has_aux, **kwargs)(*data)
        gradients = tuple([_restored(args[i], g) for i, g in zip(numbers, found, strict=True)])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return with_gradient


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _restored(like: Any, data: Any) -> Any:
    """Put the elements of sparse arrays back to their indices."""
    return tree.map(lambda x, d: x.replace_data(d) if isinstance(x, BCOO) else d, like, data, is_leaf=_is_sparse)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Make the gradient alone; see `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    @functools.wraps(fun)
    def gradient(*args: Any, **named: Any) -> Any:
        value, found = both(*args, **named)
        return (found, value[1]) if has_aux else found

    return gradient
