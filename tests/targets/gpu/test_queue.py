"""Work on the GPU's queue: threads share it, reading does not hold it up, and it stays short."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.targets.gpu import pipelines, program

GPU = vf.devices("gpu")[0]


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    with vf.default_device(GPU):
        yield


def test_two_threads_and_a_reader() -> None:
    steps: list[Any] = [
        vf.jit(lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), x[0], x)[1]),
        vf.jit(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1][:, ::-1] * 0.5 + 1), (0, x))[1]),
    ]
    start = jnp.arange(15.0).reshape(5, 3)
    expected = []
    for step in steps:
        x = start
        for _ in range(20):
            x = step(x)
        expected.append(np.asarray(x))
    actual: list[Any] = [start, start]
    failures: list[BaseException] = []
    done = threading.Event()

    def work(number: int) -> None:
        try:
            with vf.default_device(GPU):
                for _ in range(20):
                    actual[number] = steps[number](actual[number])
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            while not done.is_set():
                assert all(np.isfinite(np.asarray(x)).all() for x in list(actual))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*workers, reader):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    reader.join()
    assert not failures
    for x, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(x), wanted)


def test_a_result_that_is_read_each_time_is_sent_at_once() -> None:
    step = vf.jit(lambda x: (x * 0.5, x.sum()))
    x = jnp.ones(512)
    losses = []
    for _ in range(3):
        x, loss = step(x)
        losses.append(loss)
    assert float(losses[0]) == 512.0  # from now on it is known that somebody reads the second result
    for _ in range(3):
        x, loss = step(x)
        losses.append(loss)
    GPU.backend.gpu.queue.submit()
    before = GPU.backend.counters
    assert [float(loss) for loss in losses[3:]] == [64.0, 32.0, 16.0]
    assert GPU.backend.counters.submissions == before.submissions  # nothing was put behind what is waiting
    assert float(losses[1]) == 256.0


def test_bind_groups_are_released_while_their_dispatches_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that is being recorded keeps them: neither earlier calls nor the beginning of a long list need be submitted before."""
    gpu = GPU.backend.gpu

    def step(x: Any) -> Any:
        return lax.scan(lambda c, r: (jnp.sort(c * 0.5 + r), c[::-1] + r), x[0], x)

    x = jnp.arange(63.0 * 100).reshape(63, 100)
    run, expected = vf.jit(step), [np.asarray(y) for y in vf.jit(step)(x)]
    monkeypatch.setattr(pipelines, "_MOST_GROUPS", 1)
    monkeypatch.setattr(program, "_MOST_RECORDED", 3)
    monkeypatch.setattr("volta_fn.targets.gpu.queue._COMMANDS", 1 << 20)  # nothing is submitted before the results are read
    monkeypatch.setattr(gpu.queue, "submit_if_due", lambda: None)
    before, submissions = gpu.pipelines.group_releases, gpu.queue.submitted
    results = [run(x) for _ in range(3)]
    assert gpu.pipelines.group_releases > before + 60
    assert gpu.queue.submitted == submissions
    for carry, rows in results:
        np.testing.assert_array_equal(np.asarray(carry), expected[0])
        np.testing.assert_array_equal(np.asarray(rows), expected[1])


def test_ten_thousand_steps_leave_memory_flat() -> None:
    queue = GPU.backend.gpu.queue
    step = vf.jit(lambda w, n: (w - 0.01 * w, n + 1), donate_argnums=0)
    w, n = jnp.ones(1000), jnp.int32(0)
    most, held = 0, 0
    for i in range(10_000):
        w, n = step(w, n)
        most = max(most, queue.submitted - queue.done)
        if i == 100:
            held = vf.device_memory_stats(GPU).held
    assert int(n) == 10_000
    assert vf.device_memory_stats(GPU).held == held
    assert most <= 17


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, also where the tests run in the background: shells have it ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_waiting_can_be_interrupted() -> None:
    """Ctrl-C ends the wait, not the work."""
    queue = GPU.backend.gpu.queue
    y = jnp.ones(1000) + 1
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        queue.wait_for(lambda: False)
    assert float(y[0]) == 2.0


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_waits_until_commands_are_written() -> None:
    """Between two statements it would lose commands; it comes when they are written, and once."""
    queue, usual = GPU.backend.gpu.queue, signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), queue.lock:
        with queue.lock:
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the inner block")
        reached.append("the end of the outer block")
    assert len(reached) == 2
    assert signal.getsignal(signal.SIGINT) is usual
    assert float((jnp.ones(1000) + 1)[0]) == 2.0


@pytest.mark.usefixtures("ctrl_c")
def test_a_wait_under_the_lock_can_be_interrupted() -> None:
    queue = GPU.backend.gpu.queue
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt), queue.lock:
        queue.wait_for(lambda: False)


def test_what_was_sent_and_never_read_is_not_taken_for_what_is_read_next() -> None:
    """While the GPU is busy: the library would hand out the buffer of the first copy as soon as that is done, whatever was asked since."""
    slow = vf.jit(lambda w: lax.fori_loop(0, 20, lambda i, w: w @ w * 0.01, w))
    step = vf.jit(lambda x: x + 1)
    w, x = jnp.ones((256, 256)), jnp.arange(100.0)
    vf.block_until_ready((slow(w), x * 3))
    assert np.asarray(step(x))[5] == 6.0  # from now on results are sent at once
    busy = slow(w)
    sent = step(x)
    GPU.backend.gpu.queue.submit()
    del sent
    np.testing.assert_array_equal(np.asarray(x * 3), np.arange(100.0, dtype=np.float32) * 3)
    del busy


def test_no_function_of_python_ends_a_lease_or_a_readback() -> None:
    """In one, a signal's handler might raise, and Python would only print what it raises."""
    gpu = GPU.backend.gpu
    with gpu.queue.lock:
        lease = gpu.pool.lease(1 << 20)
        block, in_use = lease.block, gpu.pool.in_use
        readback = gpu.queue.request(block, 1 << 20)
        gpu.queue.submit()
        gone = len(gpu.driver.readbacks.gone)
        called: list[str] = []
        sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            del lease, readback
        finally:
            sys.setprofile(None)
        assert called == []
        assert len(gpu.driver.readbacks.gone) == gone + 1
        gpu.pool.collect()
        assert gpu.pool.in_use == in_use - block.size
