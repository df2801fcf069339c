"""The cache of a jitted function: calls that find their program without being analysed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import UnhashableStaticError


@pytest.mark.parametrize("number", [True, 3, 2.5, 1j, np.arange(3.0, dtype=np.float32)])
def test_calls_with_numbers_find_their_program(number):
    @vf.jit
    def f(x, tree):
        return x * 2, tree["a"] + x

    g = vf.jit(lambda x: x + 1)
    tree = {"a": vf.numpy.ones(3)}
    want = f(number, tree), g(number)
    cached = f._cache.find((number, tree), {})
    assert cached is not None
    assert cached[0](cached[1])[1].tolist() == want[0][1].tolist()
    run, arrays = g._cache.find_flat((number,))
    assert run is not None
    assert run(arrays).tolist() == g(number).tolist() == want[1].tolist()
    assert g(number).dtype == want[1].dtype
    assert g(number).weak_type == want[1].weak_type
    assert f.cache_info().traces == g.cache_info().traces == 1


def test_numbers_are_not_taken_for_others():
    f = vf.jit(lambda x: x / 3)
    assert [f(1.0).dtype.name, f(1).dtype.name, f(True).dtype.name, f(1j).dtype.name] == ["float32"] * 3 + ["complex64"]
    assert f(3.0) == 1
    assert f(6.0) == 2
    assert f(vf.numpy.float32(9.0)) == 3
    g = vf.jit(lambda x: x * vf.numpy.ones(2, "float64"))
    assert [g(0.1)[0] == 0.1, g(0.1)[0] == 0.1, g(0.2)[1] == 0.2]


def test_calls_with_static_arguments_and_pytrees_find_their_program():
    @partial(vf.jit, static_argnums=(1, 2))
    def f(tree, power, minus=False):
        return -(tree["a"] ** power) if minus else tree["a"] ** power + tree["b"]

    tree = {"a": jnp.arange(3.0) + 1, "b": 2.0}
    calls = [((tree, 2), [3, 6, 11]), ((tree, 3), [3, 10, 29]), ((tree, 2, True), [-1, -4, -9]), (({"a": jnp.ones(1), "b": 1}, 2), [2])]
    for args, want in calls * 2:
        assert f(*args).tolist() == want
        known = f._cache.find_with_statics(f._argnums, args)
        assert known is not None
        assert known[0](known[1]).tolist() == want
    assert f.cache_info().traces == len(calls)
    assert f(tree, True).tolist() == [3, 4, 5]  # another type of static argument
    assert f.cache_info().traces == len(calls) + 1
    with pytest.raises(UnhashableStaticError):
        f(tree, jnp.ones(2))
    with pytest.raises(UnhashableStaticError):
        f(tree, [2])
