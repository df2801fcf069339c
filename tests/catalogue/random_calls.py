"""Calls of `volta_fn.random`, whose bits are JAX's.

`tests/random` compares them with JAX's: it takes JAX long to compile them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.catalogue.call import Call, Calls, at, each, numbers

KEY = np.array([0, 42], np.uint32)
SHAPE = (6,)
A = numbers((6,), 0.7, 3.0)
PROBABILITIES = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
LOGITS = np.log(PROBABILITIES)
MEAN, COVARIANCE = np.zeros(2, np.float32), np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)

SAMPLERS: Calls = at(
    "random",
    each("bits cauchy exponential gumbel laplace logistic maxwell normal rademacher uniform double_sided_maxwell", KEY, SHAPE, grad=False),
    each("rayleigh triangular wald lognormal", KEY, SHAPE, grad=False),
    {"pareto": Call((KEY, A), alike=True, grad=False)},
    each("chisquare gamma loggamma poisson t", KEY, A, alike=True, grad=False),
    {
        "ball": Call((KEY, 3), {"shape": (2,)}, grad=False),
        "bernoulli": Call((KEY, 0.3, SHAPE), grad=False),
        "beta": Call((KEY, A, A[::-1]), grad=False, alike=True),
        "binomial": Call((KEY, 9.0, 0.3, SHAPE), grad=False),
        "categorical": Call((KEY, LOGITS), {"shape": SHAPE}, grad=False, alike=True),
        "choice": Call((KEY, A, (3,)), grad=False, alike=True),
        "dirichlet": Call((KEY, A), grad=False, alike=True),
        "double_sided_maxwell": Call((KEY, 0.5, 2.0, SHAPE), grad=False),
        "f": Call((KEY, 2.0, 3.0, SHAPE), grad=False),
        "generalized_normal": Call((KEY, 1.5, SHAPE), grad=False),
        "geometric": Call((KEY, 0.3, SHAPE), grad=False),
        "multinomial": Call((KEY, 10, PROBABILITIES), grad=False, alike=True),
        "multivariate_normal": Call((KEY, MEAN, COVARIANCE, (3,)), grad=False, alike=True),
        "orthogonal": Call((KEY, 3), grad=False),
        "permutation": Call((KEY, A), grad=False),
        "randint": Call((KEY, SHAPE, 0, 9), grad=False),
        "rayleigh": Call((KEY, 2.0, SHAPE), grad=False),
        "triangular": Call((KEY, 0.0, 1.0, 2.0, SHAPE), grad=False),
        "truncated_normal": Call((KEY, -1.0, 2.0, SHAPE), grad=False),
        "wald": Call((KEY, 2.0, SHAPE), grad=False),
        "lognormal": Call((KEY, 0.5, SHAPE), grad=False),
        "weibull_min": Call((KEY, 2.0, 1.5, SHAPE), grad=False),
        "split": Call((KEY, 3), grad=False),
        "fold_in": Call((KEY, 7), grad=False),
        "clone": Call((KEY,), grad=False),
        "PRNGKey": Call((42,), grad=False, jit=False),
    },
)

CALLS: Calls = {path: replace(call, theirs=None) for path, call in SAMPLERS.items()}
