"""Keys of eager calls: signatures, and numbers that arrays were combined with."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.primitives import declare
from volta_fn.primitives.declare import NoSignatureError, array_of_number, signature

X: Any = jnp.asarray(np.arange(1000, dtype=np.float32))
SMALL: Any = jnp.asarray(np.arange(3, dtype=np.int32))


def test_a_number_is_the_array_that_it_was_before() -> None:
    declare._numbers.clear()
    assert array_of_number(X, 0.123456) is None
    array: Any = jnp.asarray(0.3)
    declare.remember_number(X, 0.123456, array)
    assert array_of_number(X, 0.123456) is array
    for other in (-0.123456, 0.5, 1, True, np.float64(0.123456), "0.123456", [0.123456]):
        assert array_of_number(X, other) is None
    assert array_of_number(SMALL, 0.123456) is None


def test_numbers_keep_their_signs_and_types() -> None:
    for _ in range(4):
        assert math.copysign(1.0, (X[:1] * 0.0 - 0.0).item()) == 1.0
        assert math.copysign(1.0, (X[:1] * 0.0 * -0.0).item()) == -1.0
        assert math.copysign(1.0, jnp.multiply(-0.0, X[:1] * 0.0).item()) == -1.0
        assert (SMALL + 1).dtype == np.int32 and (SMALL + 1.0).dtype == np.float32 and (X + 1).dtype == np.float32
        assert np.isnan((X + math.nan)[0].item()) and (SMALL + True).tolist() == [1, 2, 3]
        with pytest.raises(vf.errors.ArgumentError, match="does not fit"):
            SMALL + (1 << 40)
    wide = SMALL.astype("float64")
    for _ in range(4):
        assert (wide + 0.1)[0].item() == 0.1 and (X.astype("float16")[:1] + 0.1).dtype == np.float16


def test_many_numbers_are_bounded() -> None:
    for number in range(3000):
        assert (X[:2] + number / 7)[0].item() == np.float32(number / 7)
    assert len(declare._numbers) <= 1024


def test_other_calls_have_other_signatures() -> None:
    similar: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X, 1), {}), ((X, True), {}), ((X, 1.0), {}), ((X, "1"), {}), ((X, [1]), {}), ((X, (1,)), {}), ((X, 0.0), {}), ((X, -0.0), {}),
        ((X,), {"axis": 1}), ((X, "axis", 1), {}), ((X, ("axis",), 1), {}), ((X,), {"axis": 1.0}), ((X, float, 1), {}), ((X, None), {}),
        ((X, np.dtype("int32")), {}), ((X, np.int32), {}), (([X, 1],), {}),
    ]  # fmt: skip
    keys = [signature(args, kwargs, []) for args, kwargs in similar]
    assert len(set(keys)) == len(keys)


def test_a_signature_collects_the_arrays_of_a_call() -> None:
    arrays: list[Any] = []
    signature((X, [SMALL, (2.0, X)], "name"), {"where": SMALL}, arrays)
    assert [id(array) for array in arrays] == [id(X), id(SMALL), id(X), id(SMALL)]
    with pytest.raises(NoSignatureError):
        signature((np.zeros(3),), {}, [])


NARROW = [vf.numpy.array([5, 7], dtype) for dtype in ("int8", "uint8", "int32", "uint32")]


@pytest.mark.parametrize("number", [2**31, 2**32 - 1, 2**34, -(2**40), 2**63, 2**64 - 1])
@pytest.mark.parametrize("x", NARROW, ids=lambda x: x.dtype.name)
def test_a_traced_integer_is_compared_by_its_value(x: vf.Array, number: int) -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        expected = [compare(int(element), number) for element in x]
        assert vf.jit(compare)(x, number).tolist() == vf.jit(vf.vmap(compare, (0, None)))(x, number).tolist() == expected
        assert vf.jit(compare)(number, x).tolist() == [compare(number, int(element)) for element in x]
        assert compare(x, vf.numpy.asarray(number)).tolist() == expected


@pytest.mark.parametrize("x", NARROW, ids=lambda x: x.dtype.name)
def test_a_traced_integer_is_never_cut(x: vf.Array) -> None:
    functions = (operator.add, operator.mul, operator.or_, lambda x, n: vf.numpy.where(x > 6, x, n), lambda x, n: x.at[0].set(n))
    for function in (*functions, lambda x, n: vf.numpy.clip(x, n, n), lambda x, n: vf.lax.scan(lambda c, y: (c, y + n), 0, x)[1]):
        with pytest.raises(OverflowError, match=r"(meets operands of|does not fit) .*int"):
            vf.jit(function)(x, 2**34)
        with pytest.raises(OverflowError):
            function(x, vf.numpy.asarray(2**34))
