"""Tables of weak references: entries go with their objects, without calls of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from volta_fn.core.caches import Finalized, Interned, WeakIdentityDict


class Value:
    """Something that has weak references."""


def test_values_end_with_their_last_reference_and_keys_follow() -> None:
    table: Interned[str, Value] = Interned()
    first, second = Value(), Value()
    table.add("a", first)
    table.add("b", second)
    assert (table.get("a"), table.get("b"), table.get("c")) == (first, second, None)
    del first
    assert table.get("a") is None
    table.add("c", second)
    assert len(table) == 2


def test_a_key_may_have_a_new_value_when_the_old_one_has_ended() -> None:
    table: Interned[str, Value] = Interned()
    table.add("a", Value())
    new = Value()
    table.add("a", new)
    table.add("b", new)
    assert table.get("a") is new


def interned(value: Value) -> Callable[[], object]:
    table: Interned[str, Value] = Interned()
    table.add("a", value)
    return lambda: table.get("a")


def weak_identity_dict(value: Value) -> Callable[[], object]:
    table: WeakIdentityDict[Value, list[int]] = WeakIdentityDict()
    table.set(value, [1])
    return lambda: [*table] or None


def finalized(value: Value) -> Callable[[], object]:
    table: Finalized[str] = Finalized()
    table.add(value, "rest")
    return lambda: None if [*table.drain()] == ["rest"] else "nothing was left"


@contextmanager
def calls() -> Iterator[list[str]]:
    """List the functions of Python that are called."""
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        yield called
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("keep", [interned, weak_identity_dict, finalized])
def test_no_function_of_python_runs_at_the_end_of_a_value(keep: Callable[[Value], Callable[[], object]]) -> None:
    value = Value()
    result = keep(value)
    with calls() as called:
        del value
        seen = [*called]
    assert seen == []
    assert result() is None


def test_values_are_attached_to_objects() -> None:
    table: WeakIdentityDict[Value, int] = WeakIdentityDict()
    first, second = Value(), Value()
    table.set(first, 1)
    table.set(first, 2)
    table.set(second, 3)
    assert (table.get(first), table.get(second), table.get(Value()), len(table)) == (2, 3, None, 2)
    assert set(table) == {first, second}
    del first
    assert len(table) == 1
    table.clear()
    del second
    assert [*table] == []


def test_values_of_collected_objects_are_drained_once() -> None:
    table: Finalized[int] = Finalized()
    first, second = Value(), [Value()]
    table.add(first, 1)
    table.add(second[0], 2)
    assert [*table.drain()] == []
    second.clear()
    assert [*table.drain()] == [2]
    assert [*table.drain()] == []
