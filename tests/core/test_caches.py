"""Caches of calls: tables, their room, and reasons of misses."""

from __future__ import annotations

import gc

from volta_fn.core.caches import CallCache, clear_all


def test_a_level_keeps_what_was_added_first() -> None:
    cache = CallCache("test", ["calls", "programs"])
    assert cache.add("calls", 1, "first") == "first" == cache.add("calls", 1, "second")
    assert (cache.table("calls"), cache.table("programs")) == ({1: "first"}, {})


def test_a_full_cache_is_emptied_in_all_tables() -> None:
    cache = CallCache("test", ["calls", "programs"], room=3)
    for key in range(3):
        cache.add("programs", key, key)
        cache.add("calls", key, key, 0)
    assert len(cache.table("calls")) == len(cache.table("programs")) == 3
    cache.add("programs", 3, 3)
    assert (cache.table("calls"), cache.table("programs")) == ({}, {3: 3})
    cache.reserve(2)
    assert cache.table("programs") == {3: 3}
    cache.reserve(1)
    assert not cache.table("programs")


def test_caches_of_a_kind_are_cleared_together_and_not_kept_alive() -> None:
    one, two, other = CallCache("test one", ["calls"]), CallCache("test one", ["calls"]), CallCache("test two", ["calls"])
    for cache in (one, two, other):
        cache.add("calls", 1, 1)
    del two
    gc.collect()
    clear_all("test one")
    assert (one.table("calls"), other.table("calls")) == ({}, {1: 1})


def test_a_miss_is_explained_by_the_closest_key() -> None:
    cache = CallCache("test", ["sizes"])

    def reason(key: int) -> str | None:
        return cache.why_missed("sizes", key, lambda a, b: abs(a - b), lambda keys: [f"{keys[1]} is not {keys[0]}"])

    assert reason(1) == "its first call, or the first of a function that is made anew each time"
    cache.add("sizes", 1, None)
    cache.add("sizes", 9, None)
    assert reason(1) is None
    assert reason(7) == "compared with the closest of 2 sizes, 7 is not 9"
