"""Samples of random bits; the oracle is the cipher in Python's own integers."""

from __future__ import annotations

import math

import numpy as np

from tests.laws.integers import cipher
from tests.samples.sample import Arg, Sample, integers
from volta_fn.primitives.random import random_bits, threefry2x32

_words = integers(0, 2**32)


def _threefry(*operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    k1, k2, x1, x2 = np.broadcast_arrays(*operands)
    pairs = [cipher((a, b), (c, d)) for a, b, c, d in zip(*(v.ravel().tolist() for v in (k1, k2, x1, x2)), strict=True)]
    out = np.array(pairs, np.uint32).reshape(*k1.shape, 2)
    return out[..., 0], out[..., 1]


def _bits(keys: np.ndarray, shape: tuple[int, ...], width: int) -> np.ndarray:
    rows = []
    for key in keys.reshape(-1, 2).tolist():
        pairs = [cipher((key[0], key[1]), (0, i)) for i in range(math.prod(shape))]
        rows.append([x << 32 | y if width == 64 else (x ^ y) % 2**width for x, y in pairs])
    return np.array(rows, f"u{width // 8}").reshape(keys.shape[:-1] + shape)


def _sample(width: int, keys: tuple[int, ...], shape: tuple[int, ...], label: str) -> Sample:
    return Sample(
        "random_bits", lambda k: random_bits(k, shape, width), (Arg((*keys, 2), _words),), lambda k: _bits(k, shape, width),
        dtypes=("uint32",), result_dtype=lambda d: f"uint{width}", exact=True, differentiable=(), label=f"{width}{label}",
    )  # fmt: skip


def _cipher_sample(shapes: tuple[tuple[int, ...], ...], label: str) -> Sample:
    return Sample(
        "threefry2x32", threefry2x32, tuple(Arg(shape, _words) for shape in shapes), _threefry,
        dtypes=("uint32",), exact=True, differentiable=(), label=label,
    )  # fmt: skip


SAMPLES = [
    *[_sample(width, (), (2, 3), "") for width in (8, 16, 32, 64)],
    _sample(32, (2, 2), (3,), "-keys"),
    _sample(32, (), (), "-0d"),
    _sample(32, (3,), (0, 2), "-empty"),
    _sample(32, (0,), (2,), "-no-keys"),
    _sample(32, (), (40,), "-many"),
    _cipher_sample(((), (), (), ()), "0d"),
    _cipher_sample(((2, 1), (2, 1), (), (3,)), "broadcast"),
    _cipher_sample(((0,), (), (), ()), "empty"),
    _cipher_sample(((30,), (30,), (30,), (30,)), "many"),
]
