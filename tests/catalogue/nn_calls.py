"""Calls of the functions that `volta_fn.nn` shares with `jax.nn`, and of its initializers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.catalogue.call import Call, Calls, at, each, numbers
from tests.catalogue.numpy_calls import INDEX, P, X

QUERY = numbers((2, 5, 3, 4))
NN: Calls = (
    each(
        "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid relu relu6 selu sigmoid silu soft_sign softplus",
        X,
    )
    | each("sparse_plus sparse_sigmoid squareplus swish tanh mish identity softmax log_softmax logsumexp logmeanexp standardize", X)
    | {"glu": Call((X,)), "log1mexp": Call((P,)), "one_hot": Call((INDEX, 4), grad=False)}
    | {"dot_product_attention": Call((QUERY, QUERY[::-1] + 1, QUERY - 1))}
)

KEY = np.array([0, 42], np.uint32)


def initialized(*args: Any) -> Call:
    """Return the call of the function that an initializer's options make.

    `tests/nn/test_initializers.py` compares its numbers with JAX's.
    """
    return Call((KEY, (4, 3)), through=lambda make: make(*args), grad=False, theirs=None)


INITIALIZERS: Calls = (
    {name: initialized() for name in "normal uniform truncated_normal orthogonal glorot_normal glorot_uniform he_normal he_uniform".split()}
    | {name: initialized() for name in "kaiming_normal kaiming_uniform lecun_normal lecun_uniform xavier_normal xavier_uniform".split()}
    | {"constant": initialized(2.0), "variance_scaling": initialized(1.0, "fan_in", "normal")}
    | {"delta_orthogonal": Call((KEY, (3, 4, 4)), through=lambda make: make(), grad=False, theirs=None)}
    | each("ones zeros", KEY, (4, 3), grad=False, theirs=None)
)

CALLS: Calls = at("nn", NN) | at("nn.initializers", INITIALIZERS)
