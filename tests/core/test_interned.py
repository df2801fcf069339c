"""Interned values: they end with their last reference, in no function of Python."""

from __future__ import annotations

import sys

from volta_fn.core.interned import Interned


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


def test_no_function_of_python_runs_at_the_end_of_a_value() -> None:
    table: Interned[str, Value] = Interned()
    value = Value()
    table.add("a", value)
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del value
    finally:
        sys.setprofile(None)
    assert called == []
    assert table.get("a") is None
