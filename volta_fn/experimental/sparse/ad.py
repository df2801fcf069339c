"""Derivatives by the elements of sparse arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.experimental.sparse.bcoo import JAXSparse
from volta_fn.transforms import grad as dense
from volta_fn.transforms import jacobian as dense_jacobian


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.value_and_grad` does; sparse arguments have sparse gradients.

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
        numbers, _ = dense.arguments_at(args, argnums, "grad")
        data = list(args)
        for i in numbers:
            data[i] = _data_of(args[i])

        @functools.wraps(fun)
        def of_data(*arrays: Any) -> Any:
            return fun(*[_restored(args[i], value) if i in numbers else value for i, value in enumerate(arrays)], **named)

        value, cotangents = dense.value_and_grad(of_data, tuple(numbers), has_aux, **kwargs)(*data)
        gradients = tuple([_restored(args[i], g) for i, g in zip(numbers, cotangents, strict=True)])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return with_gradient


def is_sparse(x: Any) -> bool:
    """Return whether something is a sparse array."""
    return isinstance(x, JAXSparse)


def _data_of(arg: Any) -> Any:
    """Return an argument with the elements of sparse arrays in the place of these."""
    return tree.map(lambda x: x.data if is_sparse(x) else x, arg, is_leaf=is_sparse)


def _restored(like: Any, data: Any) -> Any:
    """Put the elements of sparse arrays back to their indices."""
    return tree.map(lambda x, d: x.with_data(d) if is_sparse(x) else d, like, data, is_leaf=is_sparse)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Make the gradient alone; see `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    @functools.wraps(fun)
    def gradient(*args: Any, **named: Any) -> Any:
        value, gradients = both(*args, **named)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def _jacobian(transform: Callable[..., Any], name: str, fun: Callable[..., Any], argnums: Any, has_aux: bool, options: Any) -> Any:
    @functools.wraps(fun)
    def jacobian(*args: Any, **named: Any) -> Any:
        numbers, _ = dense.arguments_at(args, argnums, name)
        data, outputs = list(args), []
        for i in numbers:
            data[i] = _data_of(args[i])

        @functools.wraps(fun)
        def of_data(*arrays: Any) -> Any:
            result = fun(*[_restored(args[i], value) if i in numbers else value for i, value in enumerate(arrays)], **named)
            outputs.append(tree.map(lambda _: 0, result[0] if has_aux else result))
            return result

        result = transform(of_data, tuple(numbers), has_aux=has_aux, **options)(*data)
        derivatives, aux = result if has_aux else (result, None)

        def restore(_: Any, parts: Any) -> Any:
            restored = tuple([_restored(args[i], part) for i, part in zip(numbers, parts, strict=True)])
            return restored[0] if isinstance(argnums, int) else restored

        jacobians = tree.map(restore, outputs[0], derivatives)
        return (jacobians, aux) if has_aux else jacobians

    return jacobian


def jacfwd(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.jacfwd` does; sparse arguments have sparse Jacobians.

    The Jacobian has the dimensions of the result as batch dimensions, and the indices of the argument.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.jacfwd(lambda m: m @ vf.numpy.array([5.0, 7.0]))(m)
    BCOO(float32[2, 2, 2], nse=2, n_batch=1)
    """
    return _jacobian(dense_jacobian.jacfwd, "jacfwd", fun, argnums, has_aux, kwargs)


def jacrev(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.jacrev` does; Jacobians are sparse, as with `jacfwd`."""
    return _jacobian(dense_jacobian.jacrev, "jacrev", fun, argnums, has_aux, kwargs)


jacobian = jacrev
