"""The loader's threads: prefetching, its limit, errors, and their end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

from volta_fn import data
from volta_fn.data import loader as prefetch
from volta_fn.data.loader import prefetched
from volta_fn.errors import DataError, OutOfBoundsError

PATIENCE = 20.0  # seconds after which something that should happen is given up


def loading_threads() -> list[int]:
    """Return the threads that are in a worker's function."""
    results = []
    for thread, frame in sys._current_frames().items():
        functions = [(f.f_code.co_filename, f.f_code.co_name) for f, _ in traceback.walk_stack(frame)]
        results += [thread] * any(file == prefetch.__file__ and name == "_work" for file, name in functions)
    return results


def ended() -> bool:
    """Wait for the end of threads that nobody joins."""
    latest = time.monotonic() + PATIENCE
    while loading_threads() and time.monotonic() < latest:
        time.sleep(0.001)
    return not loading_threads()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert loading_threads() == []
    yield
    assert loading_threads() == []


class Watched:
    """Numbers that count how many batches were begun; `reached(n)` waits for the nth."""

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count, self.fail_at, self.begun = count, fail_at, 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        with self._changed:
            self.begun += 1
            self._changed.notify_all()
        if index == self.fail_at:
            raise self.failure(index)
        return index

    def failure(self, index: int) -> Exception:
        return LookupError(f"example {index} is unreadable")

    def reached(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.begun >= number, PATIENCE)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 1), (2, 3)])
def test_a_slow_consumer_holds_the_workers_up(workers, prefetch):
    source, ahead = Watched(30), workers * prefetch
    for taken, batch in enumerate(data.DataLoader(source, 1, workers=workers, prefetch=prefetch), 1):
        assert source.reached(min(taken + ahead, 30))  # so much is prefetched while the consumer works
        assert source.begun <= taken + ahead  # and no more
        assert batch.tolist() == [taken - 1]
    assert source.begun == 30


def test_results_that_were_taken_are_not_kept():
    class Result:
        pass

    alive: weakref.WeakSet[Result] = weakref.WeakSet()

    def make() -> Result:
        result = Result()
        alive.add(result)
        return result

    gc.collect()
    for result in prefetched((make for _ in range(20)), 1, 2):
        del result
        assert len(alive) <= 3


def test_without_workers_nothing_is_loaded_ahead_and_no_thread_started():
    source = Watched(5)
    for taken, _ in enumerate(data.DataLoader(source, 1), 1):
        assert (source.begun, loading_threads()) == (taken, [])


def test_workers_work_at_once():
    barrier = threading.Barrier(3, timeout=PATIENCE)

    class Together:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            barrier.wait()  # which only ends when three threads are here
            return index

    assert [int(batch[0]) for batch in data.DataLoader(Together(), 1, workers=3)] == list(range(6))


def test_batches_come_in_order_whichever_is_ready_first():
    second_done = threading.Event()

    def first() -> str:
        assert second_done.wait(PATIENCE)
        return "first"

    def second() -> str:
        second_done.set()
        return "second"

    assert list(prefetched(iter([first, second]), 2, 2)) == ["first", "second"]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_workers_exception_reaches_the_consumer(workers):
    loader, seen = data.DataLoader(Watched(12, fail_at=5), 2, workers=workers), []
    with pytest.raises(LookupError, match="example 5 is unreadable") as caught:
        for batch in loader:
            seen.extend(batch.tolist())
    assert seen == [0, 1, 2, 3]
    assert caught.value.__notes__ == ["while reading example 5", "while loading batch 2 of epoch 0, examples 4, 5"]
    functions = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert functions[-1] == "__getitem__"
    state = loader.state()
    assert (state["epoch"], state["batch"]) == (0, 2)
    loader.dataset.fail_at = None
    loader.restore(state)
    assert [batch.tolist() for batch in loader] == [[4, 5], [6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("error", [StopIteration("no more"), SystemExit(3), OutOfBoundsError("beyond")])
def test_no_exception_is_mistaken_for_an_end(error):
    source = Watched(4, fail_at=1)
    source.failure = lambda index: error
    with pytest.raises((RuntimeError, SystemExit, OutOfBoundsError)):
        list(data.DataLoader(source, 1, workers=2))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_typed_error_has_the_users_line(workers):
    loader = data.DataLoader([1, 1.5], 2, workers=workers)
    with pytest.raises(DataError, match=r"at .*test_loader_threads.py:\d+ in test_a_typed_error_has_the_users_line"):
        list(loader)


def test_leaving_the_loop_stops_the_workers():
    source = Watched(1000)
    for _ in data.DataLoader(source, 1, workers=2):
        break
    assert loading_threads() == []
    assert source.begun <= 5


def test_an_exception_in_the_loop_stops_the_workers():
    def fail() -> None:
        for _ in data.DataLoader(Watched(1000), 1, workers=2):
            assert loading_threads()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    del caught
    gc.collect()
    assert loading_threads() == []


def test_a_worker_may_end_the_iteration():
    """Close the iterator in its own thread, as the garbage collector may."""
    asked, closed = threading.Event(), threading.Event()

    def close() -> None:
        assert asked.wait(PATIENCE)
        results.close()
        closed.set()

    results = prefetched(iter([int, close, int]), 1, 2)
    assert next(results) == 0
    assert loading_threads()
    asked.set()
    assert closed.wait(PATIENCE)
    assert ended()
    assert list(results) == []


@pytest.mark.wide
def test_several_consumers_each_have_all():
    loader = data.DataLoader(data.ArrayDataset(np.arange(40)), 3, shuffle=True, key=1, workers=2)
    expected = [batch.tolist() for batch in loader.epoch(0)]
    results: list[list[list[int]]] = []
    consume = lambda: results.append([batch.tolist() for batch in loader.epoch(0)])
    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(PATIENCE)
    assert results == [expected] * 4


INTERRUPTED = """
import itertools, sys, threading
from volta_fn.data import DataLoader

def took_all(after):
    \"\"\"Take all batches, and interrupt this thread where the n-th handler of a signal could run.\"\"\"
    seen, moments = [], itertools.count()

    def interrupt(frame, event, argument):
        closed = frame.f_code.co_name == "<genexpr>"  # which is called to be closed, where no handler runs
        if event in ("call", "c_return") and not closed and next(moments) == after:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        for batch in DataLoader([1, 2, 3, 4, 5], 1, workers=2):
            seen.append(int(batch[0]))
    finally:
        sys.setprofile(None)
    assert seen == [1, 2, 3, 4, 5], seen

took_all(-1)  # everything is imported
for after in itertools.count():
    try:
        took_all(after)
    except KeyboardInterrupt:
        continue
    break
latest = threading.Event()
while any(frame.f_code.co_name == "_work" for frame in sys._current_frames().values()):
    latest.wait(0.001)
print(after > 100)
"""


def test_an_interrupt_at_any_moment_lets_the_threads_end():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


def test_an_iterator_that_is_left_does_not_keep_the_process_alive():
    program = """
import itertools
from volta_fn.data.loader import prefetched
kept = prefetched(itertools.repeat(int), 2, 4)
print(next(kept), next(kept))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE * 3, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0 0", "")
