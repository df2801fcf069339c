"""Hashable wrappers and caches of JAX's private modules, beside JAX's own."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest

import volta_fn.numpy as jnp
from volta_fn import dtypes
from volta_fn.compat import utilities as ours
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError

util = pytest.importorskip("jax._src.util")
BOTH = pytest.mark.parametrize("module", [ours, util], ids=["ours", "theirs"])


class Key:
    """An object that weak references may be of."""


def counts(cached: Any) -> tuple[int, int, int]:
    info = cached.cache_info()
    return info.hits, info.misses, info.currsize


def test_results_are_kept_while_the_first_argument_lives() -> None:
    calls: list[Any] = []

    @ours.weakref_lru_cache
    def f(key: Key, number: int, *, scale: int = 1) -> int:
        calls.append(number)
        return number * scale

    key, other = Key(), Key()
    assert [f(key, 2), f(key, 2), f(key, 2, scale=3), f(other, 2), f(key, 3)] == [2, 2, 6, 2, 3]
    assert calls == [2, 2, 2, 3] and counts(f) == (1, 4, 4)
    del other
    gc.collect()
    assert counts(f)[2] == 3
    f.evict_weakref(key)
    assert counts(f)[2] == 0 and f(key, 2) == 2 and len(calls) == 5
    f.cache_clear()
    assert counts(f) == (0, 0, 0) and f.__name__ == "f"


@BOTH
def test_the_cache_has_a_size(module: Any) -> None:
    calls: list[int] = []
    f = module.weakref_lru_cache(maxsize=2)(lambda key, number: calls.append(number) or number)
    key = Key()
    assert [f(key, n) for n in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2] and calls == [1, 2, 3, 2]


@BOTH
def test_wrappers_compare_and_hash(module: Any) -> None:
    def make(n: int) -> Any:
        return lambda x: x + n

    f = module.HashableFunction
    assert f(make(1), (1,)) == f(make(1), (1,)) != f(make(1), (2,)) and hash(f(make(1), 1)) == hash(f(make(1), 1)) and f(make(1), 1)(2) == 3
    p = module.HashablePartial
    assert p(make(1), 1) == p(make(1), 1) != p(make(1), 2) and len({p(make(1), 1, a=2), p(make(1), 1, a=2)}) == 1
    assert p(lambda *a, **k: (a, k), 1, b=2)(3, c=4) == ((1, 3), {"b": 2, "c": 4})
    w = module.HashableWrapper
    array = [1]
    assert w(3) == w(3) and w(array) == w(array) != w([1]) and len({w(array), w(array), w([1])}) == 2 and w(3) != 3
    assert module.Hashable(2) == module.Hashable(2) and len({module.Hashable(2), module.Hashable(2)}) == 1
    assert module.Unhashable(2) == module.Unhashable(2)
    with pytest.raises(TypeError):
        hash(module.Unhashable(2))
    s = module.OrderedSet()
    s.add(3)
    s.update([1, 3, 2])
    assert list(s) == [3, 1, 2] and len(s) == 3 and 1 in s and 4 not in s


@BOTH
def test_small_functions(module: Any) -> None:
    seen: list[Any] = []
    assert module.foreach(lambda a, b: seen.append((a, b)), [1, 2], (3, 4)) is None and seen == [(1, 3), (2, 4)]
    with pytest.raises(ValueError):
        module.foreach(lambda a, b: None, [1], [1, 2])
    assert module.subs_list2([0, None, None], [None, 1, None], [5], [6, 7], [8]) == [5, 7, 8]
    assert module.fun_qual_name(functools.partial(Key.__init__)) == Key.__init__.__qualname__
    assert [module.maybe_named_axis(a, lambda i: ("at", i), lambda n: ("named", n)) for a in (np.int64(1), "x")] == [
        ("at", 1),
        ("named", "x"),
    ]
    sizes = [0, 1, 999, 1000, 1500, 10**6, 2.5e9, 1e15, 3e18]
    assert [module.pprint_bytes(s) for s in sizes] == [
        "0.00B", "1.00B", "999.00B", "1.00KB", "1.50KB", "1.00MB", "2.50GB", "1000.00TB", "3000000.00TB",
    ]  # fmt: skip


def test_zeros_of_types_and_numbers_of_transforms() -> None:
    assert ours.p2tz(np.ones(3, "float32")).aval == ours.a2tz(ShapedArray((3,), np.dtype("float32"))).aval
    assert ours.p2cz(np.ones(3, "int32")).aval.dtype == dtypes.float0
    fft = pytest.importorskip("jax._src.numpy.fft")
    for name in ("fft", "ifft"):
        for norm in ("backward", "ortho", "forward"):
            np.testing.assert_allclose(
                ours._fft_norm(jnp.array([4, 6]), name, norm), fft._fft_norm(np.array([4, 6]), name, norm), rtol=1e-6
            )
    with pytest.raises(ArgumentError, match="norm is"):
        ours._fft_norm(jnp.array([4]), "fft", "both")
    assert bool(ours._eq_meet(jnp.float32(0.1), jnp.bfloat16(0.1))) and not bool(ours._eq_meet(jnp.float32(1), jnp.float32(2)))
