"""Memory of large results: it is reused when the last array over it has died, and only then."""

from __future__ import annotations

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from numpy._core.multiarray import get_handler_name

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.runtime import result_allocator
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Module
from volta_fn.runtime.result_allocator import FUNCTIONS, LARGE, make_empty, write_blocks

COUNT = LARGE // 4


#: The kernel's functions, counting bytes.
COUNTED = """
@held = internal global i64 0
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
define ptr @counted_mmap(ptr %a, i64 %size, i32 %b, i32 %c, i32 %d, i64 %e) {
  %before = atomicrmw add ptr @held, i64 %size seq_cst
  %result = call ptr @mmap(ptr %a, i64 %size, i32 %b, i32 %c, i32 %d, i64 %e)
  ret ptr %result
}
define i32 @counted_munmap(ptr %a, i64 %size) {
  %before = atomicrmw sub ptr @held, i64 %size seq_cst
  %result = call i32 @munmap(ptr %a, i64 %size)
  ret i32 %result
}
define i64 @how_much_is_held() {
  %result = load i64, ptr @held
  ret i64 %result
}
"""


class Allocator:
    """An allocator of its own, that keeps at most 16 times the least size, 3 of them beyond what was in use."""

    def __init__(self) -> None:
        module = Module()
        write_blocks(module)
        lines = [line for line in str(module).splitlines() if "declare ptr @mmap" not in line and "declare i32 @munmap" not in line]
        text = "\n".join(lines).replace("@mmap(", "@counted_mmap(").replace("@munmap(", "@counted_munmap(") + COUNTED
        held, *functions = load_object(compile_object(text), ["how_much_is_held", *FUNCTIONS])
        self.addresses, self.make = functions, make_empty(functions)
        self.count = ctypes.CFUNCTYPE(ctypes.c_int64)(held)

    def __call__(self, times: int) -> np.ndarray:
        """Return an array that is so many times the least size."""
        return self.make((times * COUNT,), np.dtype(np.float32))

    def held(self) -> int:
        """Return the memory that it has from the kernel, in least sizes, without the header's page."""
        return self.count() // LARGE


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    monkeypatch.setattr(result_allocator, "_MOST_KEPT", 16 * LARGE)
    monkeypatch.setattr(result_allocator, "_SPARE", 3 * LARGE)
    return Allocator()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_an_array_owns_its_memory_and_gives_it_to_the_next_one(empty: Allocator) -> None:
    first = empty(1)
    assert first.flags.owndata and first.base is None and first.flags.writeable and get_handler_name(first) == "volta_fn"
    assert address(first) % 64 == 0
    place = address(first)
    view = np.from_dlpack(first)[5:]
    view[:] = 7
    del first
    second = empty(1)
    assert address(second) != place
    second[:] = 8
    assert (view == 7).all()
    del view
    assert address(empty(1)) == place


def test_other_arrays_are_none_of_its_business(empty: Allocator) -> None:
    large = empty(1)
    others = [np.empty(COUNT), large * 2, large.copy(), large[::2].copy()]
    assert {get_handler_name(other) for other in others} == {"default_allocator"}


def test_sizes_that_differ_little_share_blocks(empty: Allocator) -> None:
    place = address(empty(9))
    assert address(empty(8)) == place
    assert address(empty(4)) != place


def test_the_newest_block_that_fits_is_taken(empty: Allocator) -> None:
    arrays = [empty(1) for _ in range(4)]
    places = [address(array) for array in arrays]
    for number in (2, 0, 3, 1):
        arrays[number] = np.zeros(0)
    again = [empty(1) for _ in range(4)]
    assert [address(array) for array in again] == [places[k] for k in (1, 3, 0, 2)]


def test_little_more_is_held_than_was_in_use_at_once(empty: Allocator) -> None:
    held = []
    for times in (1, 2, 4, 1, 4, 8, 4, 1):
        empty(times)
        held.append(empty.held())
    assert held == [1, 3, 4, 5, 5, 8, 4, 5]


def test_what_is_kept_is_bounded(empty: Allocator) -> None:
    arrays = [empty(4) for _ in range(6)]
    assert empty.held() == 24
    arrays.clear()
    assert empty.held() == 12  # a fourth one with its header is more than 16
    empty(20)
    assert empty.held() == 0


def test_many_blocks(empty: Allocator) -> None:
    arrays = [empty(1) for _ in range(100)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [array[-1] for array in arrays] == list(range(100))


def test_an_array_can_be_resized(empty: Allocator) -> None:
    array = empty(1)
    array[:] = np.arange(COUNT)
    array.resize(3 * COUNT, refcheck=False)
    np.testing.assert_array_equal(array, np.concatenate([np.arange(COUNT), np.zeros(2 * COUNT)]))
    array.resize(5, refcheck=False)
    np.testing.assert_array_equal(array, np.arange(5))


def test_threads(empty: Allocator) -> None:
    def work(number: int) -> bool:
        held = [empty(1 + (number + k) % 3) for k in range(4)]
        for k, array in enumerate(held):
            array[:] = 4 * number + k
        return all((array == 4 * number + k).all() for k, array in enumerate(held))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(200)))


@pytest.mark.parametrize("change", [("_KNOWN_MAJOR", 1), ("_NAME", b"another")])
def test_a_numpy_without_the_hook_gives_its_own_memory(change: tuple[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_allocator, *change)
    monkeypatch.setattr(result_allocator.multiarray, "get_handler_name", lambda array: "volta_fn")
    assert make_empty([0, 0, 0, 0] if change[0] == "_KNOWN_MAJOR" else Allocator().addresses) is result_allocator._numpy_empty


def test_results_of_programs() -> None:
    double = vf.jit(lambda x: x * 2)
    x = jnp.arange(float(COUNT))
    result = double(x)
    assert get_handler_name(np.asarray(result).base) == "volta_fn"
    place = address(np.asarray(result))
    shown = np.asarray(result)
    del result
    assert address(np.asarray(double(x))) != place
    np.testing.assert_array_equal(shown, 2 * np.arange(float(COUNT)))
    del shown
    last = threading.Thread(target=gc.collect)  # whichever thread frees it
    last.start()
    last.join()
    assert address(np.asarray(double(x))) == place
    small = vf.jit(lambda x: x[:4] * 2)(x)
    assert get_handler_name(np.asarray(small).base) == "default_allocator"


def test_memory_of_a_result_that_is_donated() -> None:
    step = vf.jit(lambda x: x + 1, donate_argnums=0)
    state = step(jnp.zeros(COUNT))
    place = address(np.asarray(state))
    for _ in range(3):
        state = step(state)
    assert address(np.asarray(state)) == place and (np.asarray(state) == 4).all()
