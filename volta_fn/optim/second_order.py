"""Second derivatives of losses with respect to all parameters, as vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.flatten_util import ravel_pytree
from volta_fn.transforms.forward import jvp
from volta_fn.transforms.grad import grad
from volta_fn.transforms.vmap import vmap

__all__ = ["fisher_diag", "hessian_diag", "hvp"]

#: A function of parameters, inputs and targets to a scalar.
Loss = Callable[[Any, Any, Any], Any]


def hvp(loss: Loss, v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Return the product of the loss's Hessian with a vector.

    Args:
        loss: ``loss(params, inputs, targets)``, a scalar.
        v: a vector of as many elements as the parameters have.
        params: a tree of arrays.
        inputs: of the loss.
        targets: of the loss.

    Returns a tree like the parameters.

    >>> loss = lambda w, x, y: vnp.sum(w**3 * x)
    >>> optim.second_order.hvp(loss, vnp.array([1.0, 1.0]), vnp.array([1.0, 2.0]), 1.0, None)
    Array([ 6., 12.], dtype=float32)
    """
    vector, unravel = ravel_pytree(params)
    return jvp(grad(lambda p: loss(p, inputs, targets)), (params,), (unravel(vnp.asarray(v, vector.dtype)),))[1]


def hessian_diag(loss: Loss, params: Any, inputs: Any, targets: Any) -> Array:
    """Return the diagonal of the loss's Hessian, by one `hvp` for each element.

    >>> loss = lambda w, x, y: vnp.sum(w**3 * x)
    >>> optim.second_order.hessian_diag(loss, vnp.array([1.0, 2.0]), 1.0, None)
    Array([ 6., 12.], dtype=float32)
    """
    vector, _ = ravel_pytree(params)
    return vmap(lambda v: vnp.vdot(v, ravel_pytree(hvp(loss, v, params, inputs, targets))[0]))(vnp.eye(vector.size, dtype=vector.dtype))


def fisher_diag(negative_log_likelihood: Loss, params: Any, inputs: Any, targets: Any) -> Array:
    """Return the squared gradient, the diagonal of the observed Fisher information.

    >>> loss = lambda w, x, y: vnp.sum(w**2 * x)
    >>> optim.second_order.fisher_diag(loss, vnp.array([1.0, 2.0]), 1.0, None)
    Array([ 4., 16.], dtype=float32)
    """
    return vnp.square(ravel_pytree(grad(negative_log_likelihood)(params, inputs, targets))[0])
