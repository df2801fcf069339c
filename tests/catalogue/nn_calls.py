"""Calls of the functions that `volta_fn.nn` shares with `jax.nn`, and of its initializers."""

from __future__ import annotations

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

CALLS: Calls = at("nn", NN)
