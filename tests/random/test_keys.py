"""Keys: JAX's values, arrays of keys, pytrees, transforms, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random, tree
from volta_fn.compat.config import legacy_prng_key
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

SEEDS = [0, 42, 2**31 - 1, 2**32 - 1, -1, np.int16(-3), np.uint8(200), True]


def words(keys: object) -> np.ndarray:
    """Return the data of keys as a NumPy array."""
    return np.asarray(random.key_data(keys))


def test_golden_values():
    key = random.key(1701)
    assert words(key).tolist() == [0, 1701]
    assert words(random.split(key)).tolist() == [[741045208, 1847055613], [85238482, 2594297577]]
    assert words(random.fold_in(key, 5)).tolist() == [3270721456, 929585804]
    assert words(random.key(2**40 + 5)).tolist() == [256, 5]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_match_jax(seed):
    jax = pytest.importorskip("jax")
    np.testing.assert_array_equal(random.PRNGKey(seed), jax.random.PRNGKey(seed))
    np.testing.assert_array_equal(words(random.key(seed)), random.PRNGKey(seed))


@pytest.mark.parametrize("seed", [2**40 + 5, -(2**40), np.int64(-1), np.uint64(2**63)])
def test_wide_seeds_match_jax_with_64_bits(seed):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        np.testing.assert_array_equal(random.PRNGKey(seed), jax.random.PRNGKey(seed))


@pytest.mark.parametrize("num", [0, 1, 2, 100, (), (2, 3), (0, 4)])
def test_split_matches_jax(num):
    jax = pytest.importorskip("jax")
    ours, theirs = random.split(random.key(7), num), jax.random.split(jax.random.key(7), num)
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(words(ours), jax.random.key_data(theirs))


@pytest.mark.parametrize("data", [0, 1, 2**32 - 1, np.int32(-5), np.uint8(9)])
def test_fold_in_matches_jax(data):
    jax = pytest.importorskip("jax")
    np.testing.assert_array_equal(random.fold_in(random.PRNGKey(3), data), jax.random.fold_in(jax.random.PRNGKey(3), data))


def test_the_type_of_keys_is_jaxs():
    jax = pytest.importorskip("jax")
    ours, theirs = random.split(random.key(0), 3), jax.random.split(jax.random.key(0), 3)
    for take in (lambda keys: keys[0], lambda keys: keys):
        assert str(vf.typeof(take(ours))) == str(jax.typeof(take(theirs)))
    aval = vf.typeof(ours)
    assert (aval.shape, aval.dtype, aval.size, aval.nbytes) == ((3,), ours.dtype, 3, 24)
    assert aval is vf.typeof(random.split(random.key(1), 3))
    assert str(vf.eval_shape(lambda: random.key(0)).dtype) == "key<fry>"


def test_raw_keys_give_raw_keys_and_the_same_numbers():
    raw, typed = random.PRNGKey(5), random.key(5)
    assert isinstance(random.split(raw), vf.Array)
    assert isinstance(random.split(typed), random.PRNGKeyArray)
    np.testing.assert_array_equal(random.split(raw, 3), words(random.split(typed, 3)))
    np.testing.assert_array_equal(random.fold_in(raw, 1), words(random.fold_in(typed, 1)))
    np.testing.assert_array_equal(random.normal(raw, (4,)), random.normal(typed, (4,)))
    np.testing.assert_array_equal(random.normal(np.asarray(raw), (4,)), random.normal(typed, (4,)))


def test_an_array_of_keys_is_a_sequence():
    keys = random.split(random.key(0), (3, 2))
    assert (keys.shape, keys.ndim, keys.size, len(keys)) == ((3, 2), 2, 6, 3)
    assert [k.shape for k in keys] == [(2,)] * 3
    np.testing.assert_array_equal(words(keys[1, 0]), words(keys)[1, 0])
    np.testing.assert_array_equal(words(keys[..., 1]), words(keys)[:, 1])
    np.testing.assert_array_equal(words(keys[np.array([2, 0])]), words(keys)[[2, 0]])
    np.testing.assert_array_equal(words(keys.reshape(2, -1)), words(keys).reshape(2, 3, 2))
    np.testing.assert_array_equal(words(keys.reshape((6,))), words(keys.flatten()))
    a, b = random.split(keys[0, 0])
    assert bool(a == a) and bool(a != b)
    assert (keys == keys).shape == (3, 2)


def test_single_keys_are_no_sequence():
    key = random.key(0)
    for use in (len, iter, np.asarray, lambda k: k[0]):
        with pytest.raises((TypeError, IndexError)):
            use(key)


def test_keys_are_pytrees_and_pickle():
    key = random.key(3)
    assert [leaf.shape for leaf in tree.leaves(key)] == [(2,)]
    assert tree.map(lambda x: x, key) == key
    assert pickle.loads(pickle.dumps(key)) == key
    assert repr(key) == "PRNGKeyArray((), dtype=key<fry>) overlaying:\n[0 3]"
    assert random.key_dtype() == key.dtype
    assert random.key_impl(key) == random.key_impl(random.PRNGKey(3)) == "threefry2x32"
    assert random.clone(key) == key


def test_keys_go_through_transforms():
    keys = random.split(random.key(1), 4)
    looped = [random.normal(k, (3,)) for k in keys]
    np.testing.assert_array_equal(vf.vmap(lambda k: random.normal(k, (3,)))(keys), np.stack(looped))
    # Within one shader a GPU's driver may take the last factors in another order.
    np.testing.assert_allclose(vf.jit(lambda k: random.normal(k, (3,)))(keys[0]), looped[0], rtol=3e-7)
    np.testing.assert_array_equal(words(vf.jit(random.split)(keys[1])), words(random.split(keys[1])))
    folded = vf.vmap(random.fold_in, in_axes=(None, 0))(keys[0], vf.numpy.arange(3))
    np.testing.assert_array_equal(words(folded), np.stack([words(random.fold_in(keys[0], i)) for i in range(3)]))
    key_array = vf.vmap(random.key)(vf.numpy.arange(3))
    np.testing.assert_array_equal(words(key_array), np.stack([words(random.key(i)) for i in range(3)]))
    _, drawn = vf.lax.scan(lambda k, _: (random.split(k)[0], random.bits(k)), keys[0], None, length=3)
    key, expected = keys[0], []
    for _ in range(3):
        expected.append(int(random.bits(key)))
        key = random.split(key)[0]
    assert drawn.tolist() == expected


def test_mapping_over_both_kinds_of_axes():
    keys = random.split(random.key(1), (2, 3))
    nested = vf.vmap(vf.vmap(lambda k: random.uniform(k, (2,))))(keys)
    for i, j in np.ndindex(2, 3):
        np.testing.assert_array_equal(nested[i, j], random.uniform(keys[i, j], (2,)))
    inner = vf.vmap(lambda column: random.split(column[0], 2), in_axes=1, out_axes=1)(keys)
    np.testing.assert_array_equal(words(inner[:, 1]), words(random.split(keys[0, 1], 2)))


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: random.key(1.5), DTypeError, "seed must be an integer"),
        (lambda: random.key(np.arange(3)), ShapeError, "vmap"),
        (lambda: random.key(random.key(0)), ArgumentTypeError, "split or fold_in"),
        (lambda: random.key(0, impl="philox"), ArgumentError, "threefry2x32"),
        (lambda: random.key(0, impl="threefry2x32", dtype="threefry2x32"), ArgumentError, "not both"),
        (lambda: random.normal(random.split(random.key(0)), (2,)), ShapeError, "vmap"),
        (lambda: random.normal(np.zeros(2), (2,)), DTypeError, "random.key"),
        (lambda: random.normal(np.zeros(3, np.uint32)), ShapeError, "two words"),
        (lambda: random.normal(3), DTypeError, "random.key"),
        (lambda: random.wrap_key_data(np.zeros((2, 3), np.uint32)), ShapeError, "two words"),
        (lambda: random.split(random.key(0), -1), ShapeError, "-1"),
        (lambda: random.fold_in(random.key(0), 2**32), ArgumentError, "uint32"),
        (lambda: random.fold_in(random.key(0), 1.5), DTypeError, "integer"),
        (lambda: random.fold_in(random.key(0), np.arange(2)), ShapeError, "vmap"),
    ],
)
def test_wrong_keys_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_kind_of_a_keys_dtype_is_jaxs() -> None:
    """Libraries that check types of arrays read it by this name."""
    key = vf.random.key(0)
    assert key.dtype.type.__name__ == "prng_key"


def test_typed_keys_are_taken_while_raw_ones_are_errors() -> None:
    key = vf.random.key(3)
    weights = np.arange(1.0, 5.0, dtype="float32")
    functions = [
        lambda key: random.categorical(key, weights),
        lambda key: random.choice(key, 10, (3,), replace=False),
        lambda key: random.gamma(key, weights),
        lambda key: random.permutation(key, 5),
        lambda key: random.t(key, weights),
        lambda key: random.normal(key, (2,)),
    ]
    for function in functions:
        with legacy_prng_key("error"):
            drawn = function(key)
            with pytest.raises(ArgumentError, match="Legacy"):
                function(random.key_data(key))
        np.testing.assert_array_equal(drawn, function(random.key_data(key)))
