"""Random bits as operations on counters, which kernels compute on use."""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.passes.rewriting import Rewriter, Rules, Table, listed, literal, rewrite, rule
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation

_RULES: Table = {}
_UINT32, _UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)


def expand_random_bits(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand random bits to ciphers of counters, which are indices."""
    return rewrite(closed, _LISTED)


@rule(_RULES, "random_bits")
def _random_bits(eqn: Equation, program: Rewriter) -> Atom:
    (keys,) = eqn.invars
    shape, width = eqn.params["shape"], eqn.params["bit_width"]
    words = [_word_of_key(eqn, program, keys, word, len(shape)) for word in (0, 1)]
    counters = _counters(eqn, program, shape, len(keys.aval.shape) - 1)

    def word(which: str) -> Atom:
        return program.emit(eqn, "threefry2x32_word", *words, *counters, word=which)

    if width != 64:
        return _converted(eqn, program, word("mixed"), eqn.outvars[0].aval.dtype)
    high, low = (_converted(eqn, program, word(which), _UINT64) for which in ("first", "second"))
    return program.emit(eqn, "or", program.emit(eqn, "shift_left", high, literal(32, _UINT64)), low)


@rule(_RULES, "threefry2x32")
def _both_words(eqn: Equation, program: Rewriter) -> list[Atom]:
    return [program.emit(eqn, "threefry2x32_word", *eqn.invars, word=word) for word in ("first", "second")]


def _word_of_key(eqn: Equation, program: Rewriter, keys: Atom, word: int, extra: int) -> Atom:
    """Return a word of every key, with `extra` new dimensions at the end."""
    shape = keys.aval.shape[:-1]
    start, limit = (0,) * len(shape) + (word,), (*shape, word + 1)
    words = program.emit(eqn, "slice", keys, start_indices=start, limit_indices=limit, strides=None)
    return program.emit(eqn, "reshape", words, new_sizes=(*shape, *(1,) * extra))


def _counters(eqn: Equation, program: Rewriter, shape: tuple[int, ...], keys: int) -> tuple[Atom, Atom]:
    """Return the upper and lower words of the elements' numbers.

    There are `keys` dimensions of size 1 before those of `shape`.
    """
    count = math.prod(shape)
    sizes = (1,) * keys + shape

    def numbers(dtype: np.dtype) -> Atom:
        flat = program.emit(eqn, "iota", dtype=dtype, shape=(count,), dimension=0)
        return program.emit(eqn, "reshape", flat, new_sizes=sizes)

    if count <= 1 << 32:
        return literal(0, _UINT32), numbers(_UINT32)
    wide = numbers(_UINT64)
    upper = program.emit(eqn, "shift_right_logical", wide, literal(32, _UINT64))
    return _converted(eqn, program, upper, _UINT32), _converted(eqn, program, wide, _UINT32)


def _converted(eqn: Equation, program: Rewriter, atom: Atom, dtype: np.dtype) -> Atom:
    if atom.aval.dtype == dtype:
        return atom
    return program.emit(eqn, "convert_element_type", atom, new_dtype=dtype, weak_type=False)


_LISTED = Rules(listed(_RULES))
