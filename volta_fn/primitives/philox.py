"""Random bits of keys of four words: counters enciphered by Philox-4x32.

Each counter gives a block of four words.
The key's words are the cipher's key and, with two more, where the counter begins. Bits are those of XLA's generator of this name.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.aval import Shape
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.joining import concatenate
from volta_fn.primitives.data_movement.movement import expand_dims, iota, reshape
from volta_fn.primitives.data_movement.slicing import slice_in_dim
from volta_fn.primitives.declare import Elementwise, elementwise
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.comparison import bitwise_or, lt, shift_left
from volta_fn.primitives.formulas.philox import evaluate_word

_UINT32, _UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)

philox4x32_word: Elementwise = elementwise(
    "philox4x32_word", evaluate_word, operands=frozenset((_UINT32,)), derivatives=[None] * 6,
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
    counter, carry = [], iota(_UINT32, blocks)
    for i in (2, 3, 0, 1):
        counter.append(add(words[i], carry))
        carry = convert_element_type(lt(counter[-1], carry), _UINT32)
    return counter
