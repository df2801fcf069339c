"""Random bits: counters enciphered under a key, by Threefry-2x32 or Philox-4x32."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, ShapedArray, canonical_shape, check_option
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import batch_in_front, expand_dims, iota, moveaxis, reshape, zero_jvp
from volta_fn.primitives.data_movement.slicing import concatenate, index_in_dim, slice_in_dim
from volta_fn.primitives.declare import Elementwise, batch_aligned, broadcast_shapes, elementwise
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import bitcast_convert_type, convert_element_type
from volta_fn.primitives.elementwise.selection import bitwise_or, lt, shift_left
from volta_fn.primitives.formulas.ciphers import evaluate_philox_word, evaluate_threefry_word
from volta_fn.settings import current

# Random bits of keys of four words: counters enciphered by Philox-4x32.
#
# Each counter gives a block of four words.
# The key's words are the cipher's key and, with two more, where the counter begins. Bits are those of XLA's generator of this name.

_PHILOX_WORD, _UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)

philox4x32_word: Elementwise = elementwise(
    "philox4x32_word", evaluate_philox_word, operands=frozenset((_PHILOX_WORD,)), derivatives=[None] * 6,
    doc="One of four words that Philox-4x32 makes of a key of two words and a counter of four.",
)  # fmt: skip


def philox_bits(key_data: Array, shape: Shape, bit_width: int) -> Array:
    """Return unsigned integers of `shape` for each key of four words."""
    keys, axis = key_data.shape[:-1], key_data.ndim - 1
    count = math.prod(shape) * (2 if bit_width == 64 else 1)
    words = [slice_in_dim(key_data, i, i + 1, axis=axis) for i in range(4)]
    counter = _counter(words, -(-count // 4))
    blocks = [bind(philox4x32_word.primitive, words[0], words[1], *counter, word=i) for i in range(4)]
    bits = reshape(concatenate([expand_dims(b, (axis + 1,)) for b in blocks], axis + 1), (*keys, 4 * blocks[0].shape[-1]))
    bits = slice_in_dim(bits, 0, count, axis=axis)
    if bit_width == 64:
        low, high = (convert_element_type(slice_in_dim(bits, i, count, 2, axis), _UINT64) for i in (0, 1))
        bits = bitwise_or(shift_left(high, np.uint64(32)), low)
    return reshape(convert_element_type(bits, np.dtype(f"u{bit_width // 8}")), (*keys, *shape))


def _counter(words: list[Array], blocks: int) -> list[Array]:
    """Return the words of the blocks' counters, numbers of 128 bits.

    They begin at the key, whose third word is the lowest.
    """
    counter, carry = [], iota(_PHILOX_WORD, blocks)
    for i in (2, 3, 0, 1):
        counter.append(add(words[i], carry))
        carry = convert_element_type(lt(counter[-1], carry), _PHILOX_WORD)
    return counter


# Random bits: counters enciphered under a key, by Threefry-2x32 or Philox-4x32.
#
# *Key data* is an array of dtype uint32 whose last dimension holds the words of a key, two of Threefry's or four of those whose bits are
# Philox's; its other dimensions are an array of keys.
# The bits that a key gives for a shape are a function of the key and the shape alone, so mapping over keys gives what a loop gives.

_UINT32 = np.dtype(np.uint32)
#: The number of words of Philox's keys: two keys of Threefry, from which new keys are derived.
PHILOX_WORDS = 4


# threefry2x32


def _threefry_abstract(*operands: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    if any(o.dtype != _UINT32 for o in operands):
        raise DTypeError(f"threefry2x32 enciphers uint32 words, got {', '.join(map(str, operands))}")
    out = ShapedArray(broadcast_shapes(*[o.shape for o in operands]), _UINT32)
    return out, out


threefry2x32_p = Primitive("threefry2x32", _threefry_abstract, jvp=zero_jvp, batch=batch_aligned, multiple_results=True)


def threefry2x32(k1: Any, k2: Any, x1: Any, x2: Any) -> tuple[Array, Array]:
    """Encipher the counters (x1, x2) under the keys (k1, k2) by Threefry-2x32.

    The operands are uint32 and broadcast; there are two words per counter. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
    as 1, 2, 3", SC 2011. Raises `DTypeError` for other dtypes.

    >>> import numpy as np
    >>> zero = np.uint32(0)
    >>> [hex(word) for word in threefry2x32(zero, zero, zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    return bind(threefry2x32_p, *[as_value(x) for x in (k1, k2, x1, x2)])


threefry2x32_word: Elementwise = elementwise(
    "threefry2x32_word", evaluate_threefry_word, operands=frozenset((_UINT32,)), derivatives=[None] * 4,
    doc="""One word per counter from `threefry2x32`'s two: `word` is "first", "second", or "mixed" for their exclusive or.

    Compilers write random bits in terms of it, so that they are made where they are used.
    """,
)  # fmt: skip


# random_bits

_REMEDY = "Make keys with volta_fn.random.key(seed); a key is the first argument."


def check_key_data(function: str, key_data: ShapedArray) -> None:
    """Raise `DTypeError` or `ShapeError` unless these are the types of key data."""
    if key_data.dtype != _UINT32:
        raise DTypeError(f"{function}: a key's data has dtype uint32, got {key_data}. {_REMEDY}")
    if not key_data.shape or key_data.shape[-1] not in (2, PHILOX_WORDS):
        raise ShapeError(f"{function}: a key's data has shape (..., 2), two words per key (four of 'rbg'), got {key_data}. {_REMEDY}")


def _is_philox(function: str, key_data: Array) -> bool:
    check_key_data(function, key_data.aval)
    return key_data.shape[-1] == PHILOX_WORDS


def checked_width(bit_width: int) -> int:
    """Return a width of random bits; raise `ArgumentError` for a wrong one."""
    check_option(bit_width, "random_bits: bit_width", (8, 16, 32, 64))
    return bit_width


def _bits_abstract(key_data: ShapedArray, *, shape: Shape, bit_width: int) -> ShapedArray:
    check_key_data("random_bits", key_data)
    checked_width(bit_width)
    return ShapedArray(key_data.shape[:-1] + shape, np.dtype(f"u{bit_width // 8}"))


random_bits_p = Primitive("random_bits", _bits_abstract, jvp=zero_jvp, batch=batch_in_front())


def random_bits(key_data: Any, shape: Sequence[int], bit_width: int = 32) -> Array:
    """Return unsigned integers of random bits, of `shape` for each key.

    They have `bit_width` bits: 8, 16, 32 or 64. Raises `DTypeError` or `ShapeError` if `key_data` is not an array of keys, `ArgumentError`
    for another width.

    >>> import numpy as np
    >>> random_bits(np.array([0, 42], np.uint32), (2,), 16)
    Array([ 5026, 12505], dtype=uint16)
    """
    data = as_value(key_data)
    if _is_philox("random_bits", data):
        return philox_bits(data, canonical_shape(shape), checked_width(bit_width))
    if not current.threefry_partitionable:
        return _bits_of_halves(data, canonical_shape(shape), checked_width(bit_width))
    return bind(random_bits_p, data, shape=canonical_shape(shape), bit_width=bit_width)


# Threefry's bits where `jax_threefry_partitionable` is off, the default of JAX before 0.5: a counter is enciphered with the one half of the
# counters later, so that all bits depend on their number.


def _words_of_halves(key_data: Array, count: int) -> Array:
    """Return `count` words for each key of two words."""
    half = (count + 1) // 2
    counters = concatenate([iota(_UINT32, count), as_value(np.zeros(count % 2, _UINT32))], 0)
    words = threefry2x32(*_words(key_data, 1), slice_in_dim(counters, 0, half), slice_in_dim(counters, half, 2 * half))
    return slice_in_dim(concatenate(words, key_data.ndim - 1), 0, count, axis=key_data.ndim - 1)


def _bits_of_halves(key_data: Array, shape: Shape, bit_width: int) -> Array:
    size, axis = math.prod(shape), key_data.ndim - 1
    words = _words_of_halves(key_data, -(-bit_width * size // 32))
    if bit_width == 64:
        high, low = (convert_element_type(slice_in_dim(words, i * size, (i + 1) * size, axis=axis), _UINT64) for i in (0, 1))
        words = bitwise_or(shift_left(high, np.uint64(32)), low)
    elif bit_width < 32:
        parts = bitcast_convert_type(words, np.dtype(f"u{bit_width // 8}"))
        words = slice_in_dim(reshape(parts, (*key_data.shape[:-1], -1)), 0, size, axis=axis)
    return reshape(words, (*key_data.shape[:-1], *shape))


# new keys from old


def _words(key_data: Array, extra: int) -> tuple[Array, Array]:
    """Return the two words of every key, with `extra` new trailing dimensions."""
    last = key_data.ndim - 1
    new = tuple(range(last, last + extra))
    return tuple(expand_dims(index_in_dim(key_data, word, last, keepdims=False), new) for word in (0, 1))  # type: ignore[return-value]  # two


def _pair(first: Array, second: Array) -> Array:
    return concatenate([expand_dims(first, (-1,)), expand_dims(second, (-1,))], first.ndim)


def _threefry_pairs(key_data: Array) -> Array:
    """Return the two keys of Threefry in each key of four words."""
    return reshape(key_data, (*key_data.shape[:-1], 2, 2))


def _from_threefry_pairs(halves: Array, axis: int) -> Array:
    """Return keys of four words from pairs of keys along `axis`."""
    pairs = moveaxis(halves, axis, halves.ndim - 2)
    return reshape(pairs, (*pairs.shape[:-2], PHILOX_WORDS))


def random_split(key_data: Any, shape: Sequence[int]) -> Array:
    """Return the key data of `shape` new keys for each key; key i is the cipher of i."""
    value, sizes = as_value(key_data), canonical_shape(shape)
    if _is_philox("random_split", value):
        return _from_threefry_pairs(random_split(_threefry_pairs(value), sizes), value.ndim - 1)
    if not current.threefry_partitionable:
        return reshape(_words_of_halves(value, 2 * math.prod(sizes)), (*value.shape[:-1], *sizes, 2))
    k1, k2 = _words(value, len(sizes))
    counts = reshape(iota(_UINT32, math.prod(sizes)), sizes)
    return _pair(*threefry2x32(k1, k2, np.uint32(0), counts))


def random_fold_in(key_data: Any, data: Any) -> Array:
    """Return a new key's data for each key: the cipher of `data`'s lowest 32 bits."""
    value = as_value(key_data)
    if _is_philox("random_fold_in", value):
        return _from_threefry_pairs(random_fold_in(_threefry_pairs(value), data), value.ndim - 1)
    counter = as_value(data)
    if counter.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"random_fold_in: data is an integer, got {counter.aval}")
    return _pair(*threefry2x32(*_words(value, 0), np.uint32(0), convert_element_type(counter, _UINT32)))


class RandomAlgorithm(enum.IntEnum):
    """The generators of `rng_bit_generator`; Philox is the default."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def rng_bit_generator(
    key: Any, shape: Sequence[int], dtype: Any = np.uint32, algorithm: int = RandomAlgorithm.RNG_DEFAULT, *, out_sharding: Any = None
) -> tuple[Array, Array]:
    """Return the next key and random bits.

    `volta_fn.random.bits` is the simpler way.

    Args:
        key: four uint32 words: a key's two, and those of a counter, the lower first; or two uint64 words, a key and a counter.
        shape: the shape of the bits.
        dtype: an unsigned integer dtype.
        algorithm: Philox-4x32, whose bits are JAX's, or Threefry-2x32.

    Raises:
        ArgumentError: another algorithm.
        DTypeError, ShapeError: a key of other types; bits that are not unsigned integers.

    >>> key = jnp.array([0, 42, 0, 0], "uint32")
    >>> next_key, bits = vf.lax.rng_bit_generator(key, (3,))
    >>> next_key
    Array([ 0, 42,  1,  0], dtype=uint32)
    """
    words, bits_dtype = as_value(key), dtypes.as_dtype(dtype)
    if words.dtype == np.uint64 and words.shape == (2,):
        halves = reshape(bitcast_convert_type(words, _UINT32), (4,))
        following, bits = rng_bit_generator(halves, shape, dtype, algorithm, out_sharding=out_sharding)
        return bitcast_convert_type(reshape(following, (2, 2)), words.dtype), bits
    if words.dtype != _UINT32 or words.shape != (4,):
        raise (ShapeError if words.dtype == _UINT32 else DTypeError)(
            f"rng_bit_generator: the key is uint32[4] or uint64[2], got {words.aval}"
        )
    if bits_dtype not in dtypes.UNSIGNED:
        raise DTypeError(f"rng_bit_generator: bits are unsigned integers, got dtype {bits_dtype.name}")
    if algorithm not in tuple(RandomAlgorithm):
        raise ArgumentError(f"rng_bit_generator: algorithm={algorithm!r} is none of {', '.join(map(str, RandomAlgorithm))}")
    sizes, width = canonical_shape(shape), bits_dtype.itemsize * 8
    if algorithm != RandomAlgorithm.RNG_THREE_FRY:
        blocks = -(-math.prod(sizes) * max(width // 32, 1) // PHILOX_WORDS)
        return _with_counter_added(words, blocks), constrained(philox_bits(words, sizes, width), out_sharding)
    first, second, low, high = [index_in_dim(words, i, keepdims=False) for i in range(4)]
    one_time = concatenate([expand_dims(word, (0,)) for word in threefry2x32(first, second, high, low)], 0)
    bits = bind(random_bits_p, one_time, shape=sizes, bit_width=width)
    return _with_counter_added(words, 1), constrained(bits, out_sharding)


def _with_counter_added(words: Array, steps: int) -> Array:
    """Return the key with its counter, the last two words, increased."""
    first, second, low, high = [index_in_dim(words, i, keepdims=False) for i in range(4)]
    step = np.uint32(steps)
    following = add(low, step)
    carry = convert_element_type(lt(following, step), _UINT32)
    return concatenate([expand_dims(word, (0,)) for word in (first, second, following, add(high, carry))], 0)
