"""Sort keys (`codegen.sort_keys`) in shaders.

Keys of more than 32 bits are several words, the most significant first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.codegen.sort_keys import INFINITY, is_float, number_of_key, sort_key
from volta_fn.targets.wgsl.scalars import Array, Number, Shader
from volta_fn.targets.wgsl.scalars.values import Lanes

_UINT32 = np.dtype(np.uint32)


class KeyWord(NamedTuple):
    """A word of the keys of a dtype.

    Attributes:
        dtype: the dtype of the number, or of one component of complex numbers.
        words: how many words of memory are an element (1, too, if several elements are in one).
        first: the word of memory with which the number begins.
        lower: whether this is the lower word of two.
    """

    dtype: np.dtype
    words: int = 1
    first: int = 0
    lower: bool = False

    @property
    def bits(self) -> int:
        """How many bits distinguish numbers."""
        return 1 if self.dtype.kind == "b" else min(32, 8 * self.dtype.itemsize)


def key_words(dtype: np.dtype) -> list[KeyWord]:
    """Return all words of the keys of a dtype."""
    component = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    step, words = max(1, component.itemsize // 4), max(1, dtype.itemsize // 4)
    return [KeyWord(component, words, first, lower) for first in range(0, words, step) for lower in (False, True)[:step]]


def storage(dtype: np.dtype) -> np.dtype:
    """Return the dtype as which numbers are loaded to get their bits."""
    return np.dtype(f"u{min(4, dtype.itemsize)}")


def read_key(shader: Shader, array: Array, which: KeyWord, index: str, faithful: bool = False, falling: bool = False) -> str:
    """Emit a word of the key of an element, in an array of `storage`.

    Of `falling` keys the greatest number has the least.
    """
    if which.dtype.itemsize == 8:
        low, high = (array.load(f"{index} * {which.words}u + {which.first + k}u").text for k in (0, 1))
        found = _word_of_two(shader, which, low, high)
    else:
        bits = array.load(f"{index} * {which.words}u + {which.first}u" if which.words > 1 else index).text
        found = key_of(shader, which.dtype, bits, faithful)
    return f"({found} ^ {(1 << which.bits) - 1}u)" if falling else found


def key_of(shader: Shader, dtype: np.dtype, bits: str, faithful: bool) -> str:
    """Emit the key of a number of at most 32 bits."""
    return sort_key(Lanes(shader, "u32", bits), dtype, faithful=faithful).text


def _word_of_two(shader: Shader, which: KeyWord, low: str, high: str) -> str:
    if not is_float(which.dtype):
        return low if which.lower else f"({high} ^ 0x80000000u)" if which.dtype.kind == "i" else high
    size = shader.let("u32", f"{high} & 0x7fffffffu")
    infinity = INFINITY["float64"] >> 32
    nan = f"({size} > {infinity}u || ({size} == {infinity}u && {low} != 0u))"
    mine, sign = (low, "0u") if which.lower else (high, "0x80000000u")
    turned = f"({mine} ^ select({sign}, 0xffffffffu, {high} >= 0x80000000u))"
    turned = f"select({turned}, {sign}, ({size} | {low}) == 0u)"
    return shader.let("u32", f"select({turned}, 0xffffffffu, {nan})")


def number_of(shader: Shader, dtype: np.dtype, faithful: str) -> Number:
    """Emit the bits of the number of a faithful key, in the dtype's `storage`."""
    return Number(storage(dtype), number_of_key(Lanes(shader, "u32", faithful), dtype).text)


def lesser_zero(dtype: np.dtype) -> int | None:
    """Return the faithful key of -0.0, next to that of 0.0; None if there is no -0.0."""
    return (1 << (8 * dtype.itemsize - 1)) - 1 if is_float(dtype) else None
