"""`stax`: networks have JAX's shapes, parameters and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.example_libraries import stax as theirs

import volta_fn as vf
from volta_fn.errors import ArgumentError
from volta_fn.example_libraries import stax as ours

NETWORKS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "dense": (lambda s: s.serial(s.Dense(5), s.Tanh, s.Dense(3), s.LogSoftmax), (-1, 4)),
    "convolutions": (
        lambda s: s.serial(
            s.Conv(3, (3, 3), padding="SAME"), s.BatchNorm(), s.Relu, s.MaxPool((2, 2), strides=(2, 2)), s.Conv(2, (2, 2)), s.Flatten
        ),
        (3, 8, 8, 2),
    ),
    "channels first": (lambda s: s.serial(s.GeneralConv(("NCHW", "OIHW", "NHWC"), 3, (2, 3), (2, 1)), s.Gelu), (2, 3, 6, 6)),
    "transposed": (lambda s: s.serial(s.ConvTranspose(3, (3, 3), (2, 2), "SAME"), s.Elu), (2, 4, 4, 2)),
    "transposed in one dimension": (lambda s: s.Conv1DTranspose(3, (3,), (2,)), (2, 5, 2)),
    "pools": (lambda s: s.serial(s.AvgPool((2, 2), (2, 1), "SAME"), s.SumPool((2, 2), spec="NHWC"), s.Sigmoid), (2, 5, 6, 3)),
    "branches": (
        lambda s: s.serial(s.FanOut(3), s.parallel(s.Dense(4), s.serial(s.Dense(2), s.Dense(4)), s.Identity), s.FanInConcat(), s.Softmax),
        (-1, 4),
    ),
    "sums": (
        lambda s: s.serial(s.FanOut(2), s.parallel(s.Dense(4), s.shape_dependent(lambda shape: s.Dense(shape[-1]))), s.FanInSum),
        (-1, 4),
    ),
    "normalised": (lambda s: s.serial(s.BatchNorm(axis=0, scale=False), s.LeakyRelu, s.Selu, s.Exp, s.Softplus), (-1, 4)),
    "dropout": (lambda s: s.serial(s.Dense(4), s.Dropout(0.7), s.Dropout(0.5, mode="test")), (-1, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_jaxs(name: str) -> None:
    make, shape = NETWORKS[name]
    results = []
    x = np.random.default_rng(0).normal(size=[3 if s == -1 else s for s in shape]).astype(np.float32)
    for ja, stax in ((vf, ours), (jax, theirs)):
        init, apply = make(stax)
        out_shape, params = init(ja.random.key(1), shape)
        out = ja.jit(apply)(params, x, rng=ja.random.key(2))
        results.append(([tuple(out_shape)], [np.asarray(p) for p in jax.tree.leaves(params)], np.asarray(out)))
    (our_shape, our_params, our_out), (their_shape, their_params, their_out) = results
    assert our_shape == their_shape
    for p, q in zip(our_params, their_params, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(our_out, their_out, rtol=2e-4, atol=1e-5)


def test_dropout_needs_a_key() -> None:
    with pytest.raises(ArgumentError, match="rng=key"):
        ours.Dropout(0.5)[1]((), vf.numpy.ones(3))
