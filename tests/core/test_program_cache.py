"""Results of functions of programs are kept on the programs: computed once, by arguments, and gone with the program."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import volta_fn as vf
from volta_fn.core.jaxpr import ClosedJaxpr, fixed_point_cache, program_cache


def program() -> ClosedJaxpr:
    return vf.make_jaxpr(lambda x: x + 1.0)(np.float32(0))


def test_results_are_computed_once_for_equal_arguments() -> None:
    calls: list[tuple[object, ...]] = []

    @program_cache
    def function(closed: ClosedJaxpr, marks: object, flag: bool = False) -> list[object]:
        calls.append((marks, flag))
        return [marks]

    closed = program()
    assert function(closed, [True, False]) is function(closed, (True, False)) is function(closed, [True, False])
    assert function(closed, (True, False), flag=True) is not function(closed, (True, False))
    assert function(program(), (True, False)) is not function(closed, (True, False))
    assert len(calls) == 3


def test_none_is_a_result() -> None:
    calls: list[int] = []

    @program_cache
    def function(closed: ClosedJaxpr) -> None:
        calls.append(1)

    closed = program()
    assert function(closed) is None is function(closed)
    assert calls == [1]


def test_a_program_that_is_its_own_result_is_no_cycle() -> None:
    @fixed_point_cache
    def function(closed: ClosedJaxpr) -> ClosedJaxpr:
        return closed

    closed = program()
    gc.collect()
    gc.disable()
    try:
        assert function(function(closed)) is closed
        gone = weakref.ref(closed)
        del closed
        assert gone() is None
    finally:
        gc.enable()


def test_results_of_a_fixed_point_are_their_own() -> None:
    calls: list[ClosedJaxpr] = []

    @fixed_point_cache
    def function(closed: ClosedJaxpr) -> ClosedJaxpr:
        calls.append(closed)
        return program()

    closed = program()
    result = function(closed)
    assert function(result) is result is function(closed)
    assert calls == [closed]


def test_threads_get_the_same_result() -> None:
    barrier = threading.Barrier(4)

    @program_cache
    def function(closed: ClosedJaxpr) -> object:
        barrier.wait(10)
        return object()

    closed = program()
    with ThreadPoolExecutor(4) as threads:
        assert len({id(r) for r in threads.map(lambda _: function(closed), range(4))}) == 1
