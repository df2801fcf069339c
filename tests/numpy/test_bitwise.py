"""Functions of integers and their bits against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn.numpy as vnp
from tests.numpy.oracle import BOOL, INTEGERS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits_of_two(name):
    for dtype in BOOL + INTEGERS:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((3, 1), dtype, 1, -99, 99), sample((4,), dtype, 2, -99, 99))


def test_bits_of_one():
    for dtype in BOOL + INTEGERS:
        check(lambda xp, x: xp.bitwise_not(x), sample((4,), dtype, 1, -99, 99))
    for dtype in INTEGERS:
        check(lambda xp, x: xp.bitwise_count(x), sample((9,), dtype, 1, -99, 99), jax=False)


@pytest.mark.parametrize("name", ["left_shift", "right_shift"])
def test_shifts(name):
    for dtype in INTEGERS:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((8,), dtype, 1, -99, 99), sample((8,), dtype, 2, 0, 7))


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_divisors(name):
    for dtype in INTEGERS:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample((5, 1), dtype, 1, -12, 12), sample((6,), dtype, 2, -8, 8))
    check(lambda xp, x, y: getattr(xp, name)(x, y), np.int32(12), np.arange(6, dtype=np.int32))
    with pytest.raises(ArgumentTypeError, match=f"{name}: .*integers"):
        getattr(vnp, name)(1.5, 2)


def test_the_divisor_of_the_least_integer_is_positive():
    for dtype in INTEGERS:
        least = np.iinfo(dtype).min
        numbers = np.array([least, least, least, 6, least // 2], dtype), np.array([6, least + 2, 3, least, least], dtype)
        check(lambda xp, x, y: xp.gcd(x, y), *numbers)


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_packing(bitorder):
    bits = sample((3, 13), bool, 1)
    for axis in (None, 0, 1, -1):
        check(lambda xp, x, axis=axis: xp.packbits(x, axis=axis, bitorder=bitorder), bits)
    packed = sample((2, 3), np.uint8, 1, 0, 255)
    for axis in (None, 0, 1):
        check(lambda xp, x, axis=axis: xp.unpackbits(x, axis=axis, bitorder=bitorder), packed)
    for count in (5, 30, -3):
        check(lambda xp, x, count=count: xp.unpackbits(x, axis=1, count=count, bitorder=bitorder), packed)


@pytest.mark.wide
def test_refusals():
    with pytest.raises(ArgumentError, match="bitorder"):
        vnp.packbits(np.ones(8, bool), bitorder="middle")
    with pytest.raises(ArgumentTypeError, match="unpackbits: a must be uint8"):
        vnp.unpackbits(np.ones(8, np.int32))
    with pytest.raises(ArgumentTypeError, match="packbits"):
        vnp.packbits(np.ones(8))
    with pytest.raises(DTypeError, match="float32"):
        vnp.bitwise_and(np.ones(2, np.float32), 1)
