"""The cache of a jitted function: calls that find their program without being analysed."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from functools import partial, wraps

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
    cached = f._cache.lookup((number, tree))
    assert cached is not None
    assert cached[0](cached[1])[1].tolist() == want[0][1].tolist()
    cached = g._cache.lookup((number,))
    assert cached is not None
    assert cached[0](cached[1]).tolist() == g(number).tolist() == want[1].tolist()
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
        cached = f._cache.lookup(args)
        assert cached is not None
        assert cached[0](cached[1]).tolist() == want
    assert f.cache_info().traces == len(calls)
    assert f(tree, True).tolist() == [3, 4, 5]  # another type of static argument
    assert f.cache_info().traces == len(calls) + 1
    with pytest.raises(UnhashableStaticError):
        f(tree, jnp.ones(2))
    with pytest.raises(UnhashableStaticError):
        f(tree, [2])


def test_jit_of_the_same_function_and_options_shares_programs():
    def f(x, power=2):
        traced.append(power)
        return x**power

    traced: list[int] = []
    assert [vf.jit(f)(x) for x in (2.0, 3.0, 4.0)] == [4, 9, 16]
    assert vf.jit(f).cache_info() == (1, 1)
    assert vf.jit(f, static_argnames="power")(2.0, power=3) == vf.jit(f, static_argnums=1)(2.0, 3) == 8
    assert vf.jit(f, donate_argnums=0)(jnp.array(2.0)) == 4
    assert traced == [2, 3, 3, 2]
    vf.jit(f).clear_cache()
    assert vf.jit(f)(5.0) == 25
    assert traced == [2, 3, 3, 2, 2]


def test_wrappers_do_not_share_the_programs_of_what_they_wrap():
    def f(x):
        return x + 1

    assert vf.jit(f)(1.0) == 2
    wrapped = wraps(f)(lambda x: x + 2)
    assert vf.jit(wrapped)(1.0) == vf.jit(wrapped)(1.0) == 3
    assert vf.jit(f)(1.0) == 2
    assert vf.jit(wrapped).cache_info() == vf.jit(f).cache_info() == (1, 1)


def test_programs_end_with_their_function_even_if_they_refer_to_it():
    def dropped() -> list[weakref.ref]:
        class Model:
            def scaled(self, x):
                return x * 3

        f = lambda x: x * 2
        scaled = vf.jit(Model.scaled, static_argnums=0)
        assert vf.jit(f)(2.0) == 4
        assert scaled(Model(), 2.0) == 6
        return [weakref.ref(f), weakref.ref(vf.jit(f)._cache), weakref.ref(scaled._cache), weakref.ref(Model)]

    ends = dropped()
    assert [end() for end in ends[:2]] == [None, None]  # by reference counts alone
    gc.collect()
    assert [end() for end in ends] == [None] * 4


def test_threads_share_the_programs_of_a_function():
    def f(x):
        return x * 2

    barrier, result = threading.Barrier(4), []

    def use() -> None:
        barrier.wait()
        jitted = vf.jit(f)
        result.append((jitted(3.0).tolist(), jitted._cache))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value for value, _ in result] == [6] * 4
    assert len({id(cache) for _, cache in result}) == vf.jit(f).cache_info().programs == 1


def test_programs_are_not_pickled_with_their_function():
    def f(x):
        return x * 2

    vf.jit(f)(1.0)
    assert pickle.loads(pickle.dumps(f.__dict__)) == {"__volta_fn_programs__": {}}
