"""Keys of four words: the bits and the keys that JAX makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import config, lax, random
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.settings import current

IMPLEMENTATIONS = ("rbg", "unsafe_rbg")


def words(library: Any, keys: Any) -> list[Any]:
    return np.asarray(library.random.key_data(keys)).tolist()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "derive",
    [
        lambda library, key: library.random.split(key, 3),
        lambda library, key: library.random.split(key, (2, 2)),
        lambda library, key: library.random.fold_in(key, 7),
        lambda library, key: library.vmap(library.random.split)(library.random.split(key, 2)) if library is vf else key,
    ],
)
def test_keys_are_those_of_jax(impl: str, derive: Callable[[Any, Any], Any]) -> None:
    theirs, ours = (derive(library, library.random.key(42, impl=impl)) for library in (jax, vf))
    assert str(ours.dtype) == str(jax.random.key(0, impl=impl).dtype)
    if theirs.shape == ours.shape:
        assert words(vf, ours) == words(jax, theirs)


@pytest.mark.parametrize(("shape", "dtype"), [((9,), "uint32"), ((2, 3), "uint8"), ((5,), "uint16"), ((), "uint32"), ((0,), "uint32")])
def test_bits_are_those_of_jax(shape: tuple[int, ...], dtype: str) -> None:
    theirs, ours = (library.random.bits(library.random.key(3, impl="rbg"), shape, dtype) for library in (jax, vf))
    assert (ours.shape, ours.dtype.name) == (shape, dtype)
    assert ours.tolist() == theirs.tolist()


def test_bits_of_64() -> None:
    with jax.enable_x64(True):
        theirs = jax.random.bits(jax.random.key(1, impl="rbg"), (5,), "uint64").tolist()
    assert random.bits(random.key(1, impl="rbg"), (5,), "uint64").tolist() == theirs


@pytest.mark.parametrize("start", [(1, 2, 3, 4), (1, 2, 2**32 - 1, 4), (2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)])
def test_the_counter_carries(start: tuple[int, ...]) -> None:
    key = np.array(start, np.uint32)
    bits = [library.lax.rng_bit_generator(key, (10,), algorithm=2)[1].tolist() for library in (jax, vf)]
    assert bits[0] == bits[1]


def test_the_next_key_of_the_generator() -> None:
    key = np.array([1, 2, 2**32 - 1, 4], np.uint32)
    assert lax.rng_bit_generator(key, (7,))[0].tolist() == jax.lax.rng_bit_generator(key, (7,))[0].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_two_words_of_64_bits_are_a_key(dtype: str) -> None:
    key = np.array([123456789012345678, 2**32 - 1], np.uint64)
    with jax.enable_x64(True):
        following, bits = jax.lax.rng_bit_generator(key, (5, 7), dtype, algorithm=2)
    for transform in (lambda f: f, vf.jit):
        ours = transform(lambda key: lax.rng_bit_generator(key, (5, 7), dtype, algorithm=2))(key)
        assert [o.dtype.name for o in ours] == ["uint64", dtype]
        np.testing.assert_array_equal(ours[0], following)
        np.testing.assert_array_equal(ours[1], bits)


def test_mapping_gives_what_a_loop_gives() -> None:
    keys = random.split(random.key(5, impl="rbg"), 3)
    draw = vf.jit(lambda key: random.normal(key, (2,)))
    assert np.allclose(vf.vmap(draw)(keys), [draw(key) for key in keys], rtol=1e-6)
    assert keys.reshape(3, 1)[2, 0].shape == ()


def test_the_default_is_a_setting() -> None:
    with config.default_prng_impl("unsafe_rbg"):
        assert random.key_impl(random.key(0)) == random.key_impl(random.PRNGKey(0)) == "unsafe_rbg"
    assert random.key_impl(random.key(0)) == "threefry2x32"


def test_a_setting_moves_seeds() -> None:
    config.config.update("jax_random_seed_offset", 5)
    try:
        assert words(vf, random.key(3)) == words(vf, random.PRNGKey(3)) == [0, 8]
    finally:
        config.config.update("jax_random_seed_offset", 0)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_setting_makes_the_bits_of_older_versions(impl: str) -> None:
    def draws(module: Any) -> list[Any]:
        key = module.random.key(3, impl=impl)
        split = lambda: module.random.split(key, (3, 5))
        keys = module.jit(split)()
        normal = module.vmap(module.vmap(lambda key: module.random.normal(key, (3,))))
        data = [module.random.key_data(k) for k in (split(), keys, module.random.fold_in(key, 7))]
        return [*data, normal(keys) if impl == "threefry2x32" else module.random.normal(keys[2, 4], (3,))]

    before = draws(vf)
    with jax.threefry_partitionable(False), config.threefry_partitionable(False):
        assert_same(draws(vf), draws(jax))
    assert_same(draws(vf), before)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (7001,), (0,), (4, 0, 2)])
def test_bits_of_older_versions(width: int, shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True), jax.threefry_partitionable(False), config.threefry_partitionable(False):
        expected = jax.random.bits(jax.random.key(5), shape, f"uint{width}")
        eager = random.bits(random.key(5), shape, f"uint{width}")
        jitted = vf.jit(lambda key: random.bits(key, shape, f"uint{width}"))(random.key(5))
    for bits in (eager, jitted):
        assert bits.dtype == expected.dtype and bits.tolist() == expected.tolist()


def assert_same(results: list[Any], expected: list[Any]) -> None:
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(other), rtol=1e-6, atol=1e-6)


def test_bounds_of_integers_may_be_floats_in_jax_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "permissive", True)
    for low, high in ((0.5, 30.7), ([0.0, 5.9, -3.2], [3.0, 9.0, 40.5])):
        draws = [library.random.randint(library.random.key(1), (3,), np.float32(low), np.float32(high)) for library in (vf, jax)]
        assert draws[0].tolist() == draws[1].tolist()


def test_a_setting_chooses_the_mode_of_gumbel_numbers() -> None:
    key, logits = random.key(0), vf.numpy.zeros((20, 9))
    with config.use_high_dynamic_range_gumbel(True):
        high = random.gumbel(key, (3,)), random.categorical(key, logits)
    assert (high[0] == random.gumbel(key, (3,), mode="high")).all()
    assert (high[1] == random.categorical(key, logits, mode="high")).all()
    assert (high[0] != random.gumbel(key, (3,))).all()


def test_arrays_of_keys_tell_of_their_data() -> None:
    keys = random.split(random.key(0, impl="rbg"), 3)
    assert (keys.itemsize, keys.nbytes, keys.is_fully_addressable, keys.is_deleted()) == (16, 48, True, False)
    assert keys.device == keys._data.device


def test_words_that_fit_no_implementation() -> None:
    with pytest.raises(ShapeError, match="'rbg' does not have 2 words"):
        random.wrap_key_data(np.zeros(2, np.uint32), impl="rbg")
    with pytest.raises(ArgumentError, match="threefry2x32, rbg, unsafe_rbg"):
        random.key(0, impl="philox")
