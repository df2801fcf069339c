"""Built-in functions that find what runs a call."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core import dispatch
from volta_fn.core.dispatch import BuiltIns, signature
from volta_fn.runtime.internals import finders
from volta_fn.targets.cpu.runtime import executor

X: Any = jnp.asarray(np.arange(1000, dtype=np.float32))
SMALL: Any = jnp.asarray(np.arange(3, dtype=np.int32))


def built_ins() -> BuiltIns:
    executor.support_code_of_process()
    result = dispatch.available()
    assert result is not None
    return result


def by_types(functions: dict[Any, Any], otherwise: Callable[..., Any] = lambda *args: args) -> Callable[..., Any]:
    return built_ins().finder(functions, otherwise)


def by_signature(functions: dict[Any, Any], otherwise: Callable[..., Any] = lambda *args, **kwargs: "otherwise") -> Callable[..., Any]:
    return built_ins().signature_finder(functions, otherwise)


def test_finders_run_what_is_known_for_the_types() -> None:
    find = by_types({(X._spec,): lambda x: "one", (X._spec, SMALL._spec): lambda x, y: "two", (): lambda: "none"})
    assert (find(X), find(X, SMALL), find()) == ("one", "two", "none")
    assert find(SMALL) == (SMALL,)
    for other in (2.0, None, "x", np.zeros(3)):
        assert find(other) == (other,)
    assert vf.make_jaxpr(lambda x: (find(X) == (X,)) * x)(1).jaxpr.eqns  # not while tracing


@pytest.mark.parametrize("has_versions", [True, False])
def test_the_last_call_is_remembered_until_the_dict_changes(has_versions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_versions:
        monkeypatch.setattr(finders, "version_offset", lambda: 0)
    for make in (by_types, by_signature):
        one, pair = (X._spec,), (X._spec, SMALL._spec)
        functions: dict[Any, Any] = {one: lambda x: "one", pair: lambda x, y: "two"}
        find = make(functions, lambda *args, **kwargs: "otherwise")
        calls = [(X,), (X, SMALL), (SMALL, X), (SMALL,), (X, X), (X, 1.5), (1.5,), (), (X, SMALL, X)]
        wanted = {0: "one", 1: "two"}
        for first in range(len(calls)):
            for second in range(len(calls)):
                results = [find(*calls[k]) for k in (first, first, second, first, second)]
                assert results == [wanted.get(k, "otherwise") for k in (first, first, second, first, second)]
        functions[one] = lambda x: "another"
        assert find(X) == find(X) == "another" and find(X, SMALL) == "two"
        del functions[one]
        gc.collect()
        assert find(X) == "otherwise" and find(X, SMALL) == "two"
        functions.clear()
        assert find(X, SMALL) == find(X, SMALL) == "otherwise"
        functions[one] = lambda x: find(x, SMALL) + functions.clear.__name__ if functions.clear() is None else ""
        assert [find(X), find(X)] == ["otherwiseclear", "otherwise"]  # the dict is cleared during the call
    named = by_signature({(X._spec,): lambda x: "one", (("x",), X._spec): lambda x: "named"})
    assert [named(X), named(X), named(x=X), named(X), named(x=X)] == ["one", "one", "named", "one", "named"]
    assert vf.make_jaxpr(lambda x: x * (named(X) == "otherwise"))(1.0).jaxpr.eqns


def test_a_number_is_the_array_that_it_was_before() -> None:
    dispatch.NUMBERS.clear()
    array: Any = jnp.asarray(0.3)
    find = by_types({(X._spec, array._spec): lambda x, y: (x, y), (array._spec, X._spec): lambda y, x: (y, x)}, lambda *args: "otherwise")
    assert find(X, 0.123456) == "otherwise"
    dispatch.remember_number(X, 0.123456, array)
    assert find(X, 0.123456)[1] is array is find(0.123456, X)[0]
    for other in (-0.123456, 0.5, 1, True, np.float64(0.123456), "0.123456"):
        assert find(X, other) == "otherwise"
    assert find(0.123456) == find(0.123456, 0.123456) == find(X, X, 0.123456) == "otherwise"
    assert find(SMALL, 0.123456) == "otherwise"


def test_numbers_keep_their_signs_and_types() -> None:
    for _ in range(4):
        assert math.copysign(1.0, (X[:1] * 0.0 - 0.0).item()) == 1.0
        assert math.copysign(1.0, (X[:1] * 0.0 * -0.0).item()) == -1.0
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
    assert len(dispatch.NUMBERS) <= 1024


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "arrays": ((X, SMALL), {}),
    "nothing": ((), {}),
    "a number": ((X, 3), {}),
    "constants": ((X, None, "name", 0, -1, 1 << 80, 2.5, -0.0, 0.0, math.inf, True, False), {}),
    "dtypes": ((X, np.dtype("float32"), np.float32, float, jnp.bfloat16.dtype), {}),
    "lists": (([X, SMALL], (X, [1, (2.0, X)])), {}),
    "an empty list": (([], ()), {}),
    "keywords": ((X,), {"axis": 0, "keepdims": True, "where": SMALL}),
    "only keywords": ((), {"a": X}),
}


@pytest.mark.parametrize("call", CALLS)
def test_machine_code_makes_the_signatures_of_python(call: str) -> None:
    args, kwargs = CALLS[call]
    arrays: list[Any] = []
    key = signature(args, kwargs, arrays)
    find = by_signature({key: lambda *arrays: arrays})
    result = find(*args, **kwargs)
    assert len(result) == len(arrays) and all(a is b for a, b in zip(result, arrays, strict=True))


def test_other_calls_have_other_signatures() -> None:
    similar: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X, 1), {}), ((X, True), {}), ((X, 1.0), {}), ((X, "1"), {}), ((X, [1]), {}), ((X, (1,)), {}), ((X, 0.0), {}), ((X, -0.0), {}),
        ((X,), {"axis": 1}), ((X, "axis", 1), {}), ((X, ("axis",), 1), {}), ((X,), {"axis": 1.0}), ((X, float, 1), {}), ((X, None), {}),
        ((X, np.dtype("int32")), {}), ((X, np.int32), {}), (([X, 1],), {}),
    ]  # fmt: skip
    keys = [signature(args, kwargs, []) for args, kwargs in similar]
    assert len(set(keys)) == len(keys)
    find = by_signature({key: lambda *arrays, number=number: number for number, key in enumerate(keys)})
    assert [find(*args, **kwargs) for args, kwargs in similar] == list(range(len(keys)))


def test_what_machine_code_does_not_describe_is_left_to_the_other_function() -> None:
    deep: list[Any] = []
    deep.append(deep)
    find = by_signature({})
    for value in (1j, np.float32(1), slice(3), {}, deep, [0] * 100, [X] * 16, np.zeros(3), object(), jnp.float32, range(3)):
        assert find(X, value) == find(X, key=value) == "otherwise"
    assert find(*[X] * 16) == "otherwise"
    assert vf.make_jaxpr(lambda x: (by_signature({(X._spec,): lambda x: 1})(X) == "otherwise") * x)(1).jaxpr.eqns  # not while tracing


def test_a_finder_may_be_emptied_by_what_it_runs() -> None:
    for make in (by_types, by_signature):
        functions: dict[Any, Any] = {}

        def emptying(x: Any, functions: dict[Any, Any] = functions) -> str:
            functions.clear()
            return "done"

        functions[(X._spec,)] = emptying
        find = make(functions, lambda *args: "empty")
        del emptying
        assert (find(X), find(X)) == ("done", "empty")


def test_a_list_may_lose_its_arrays_during_a_call() -> None:
    operands = [X + 0, X + 1]

    def emptying(x: Any, y: Any) -> Any:
        operands.clear()
        gc.collect()
        return x.sum() + y.sum()

    find = by_signature({signature((operands,), {}, []): emptying})
    assert find(operands).item() == 2 * 499500 + 1000


def test_references_are_counted() -> None:
    args = (X, [SMALL, 2.5], "name", True, np.float32)
    find = by_signature({signature(args, {"axis": 1234567}, []): lambda *arrays: None})
    counted = [X, SMALL, X._spec, SMALL._spec, args[1], "name", None]
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(1000):
        find(*args, axis=1234567), find(*args, axis=1j), find(*args), X + 0.25
    assert max(abs(sys.getrefcount(thing) - count) for thing, count in zip(counted, before, strict=True)) < 200


def test_errors_come_through() -> None:
    def missing(*args: Any) -> Any:
        raise KeyError

    for make in (by_types, by_signature):
        find = make({(X._spec,): lambda x: 1 / 0}, missing)
        with pytest.raises(ZeroDivisionError):
            find(X)
        with pytest.raises(KeyError):
            find(1)


def test_who_asks_before_there_is_machine_code_gets_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    result = built_ins()
    monkeypatch.setattr(dispatch, "_built_ins", None)
    monkeypatch.setattr(dispatch, "_waiting", [])
    got: list[Any] = []
    dispatch.when_available(got.append)
    assert not got and dispatch.available() is None
    dispatch.provide(result)
    dispatch.when_available(got.append)
    assert got == [result, result]
