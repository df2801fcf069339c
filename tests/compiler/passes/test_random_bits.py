"""Random bits written out: the same bits, in the kernels that use them."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.ir import oracle
from volta_fn import random
from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.passes.expansions import expand_random_bits
from volta_fn.compiler.pipeline import simplify
from volta_fn.primitives.random import random_bits, threefry2x32


def fused(function, *args):
    return fuse(expand_random_bits(simplify(vf.make_jaxpr(function)(*args))), oracle.SimpleTarget())


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize(("keys", "shape"), [((), (7,)), ((), ()), ((3,), (2, 5)), ((2, 2), ()), ((3,), (0, 2)), ((0,), (4,))], ids=str)
def test_the_bits_are_the_same(width, keys, shape):
    data = np.random.default_rng(0).integers(0, 2**32, (*keys, 2), np.uint32)
    result = oracle.run(fused(lambda k: random_bits(k, shape, width), data), data)
    np.testing.assert_array_equal(result[0], random_bits(data, shape, width))


def test_counters_of_more_than_32_bits_have_two_words():
    """Written out for an array too large to exist, and evaluated for a part of it."""
    shape = (1 << 20, 1 << 13)
    program = expand_random_bits(vf.make_jaxpr(lambda k: random_bits(k, shape, 32))(np.zeros(2, np.uint32)))
    names = [eqn.primitive.name for eqn in program.eqns]
    assert "shift_right_logical" in names and names.count("iota") == 1
    assert program.out_avals[0].shape == shape


def test_both_words_are_the_same():
    operands = np.random.default_rng(1).integers(0, 2**32, (4, 6), np.uint32)
    result = oracle.run(fused(threefry2x32, *operands), *operands)
    for one, other in zip(result, threefry2x32(*operands), strict=True):
        np.testing.assert_array_equal(one, other)


def test_normal_numbers_are_one_kernel():
    program = fused(vf.jit(lambda key: random.normal(key, (64, 64)) * 2.0), random.key(0))
    assert len(program.nodes) == 1 and len(program.kernels) == 1


def test_dropout_makes_its_bits_once():
    """What is kept for the backward pass is the mask, not the key."""

    def loss(x, key):
        return vf.numpy.sum(vf.numpy.where(random.bernoulli(key, 0.5, x.shape), x * x, 0.0))

    x = np.ones((64, 64), np.float32)
    program = fused(vf.jit(vf.value_and_grad(loss)), x, random.key(0))
    ciphers = [node for kernel in program.kernels for node in kernel.nodes if getattr(node, "op", "") == "threefry2x32_word"]
    assert len(ciphers) == 1
