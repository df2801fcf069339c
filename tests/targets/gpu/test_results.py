"""What calls give back: donated arguments' own buffers, and small results sent to the host as long as somebody reads them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp

GPU = vf.devices("gpu")[0]


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    with vf.default_device(GPU):
        yield


def test_a_state_that_is_read_at_every_step_is_that_of_the_step() -> None:
    """Its memory is the same all the time, and what was read of it once must not be taken for what comes next."""
    step = vf.jit(lambda state: {"count": state["count"] + 1, "w": state["w"] * 2}, donate_argnums=0)
    state = {"count": jnp.zeros((), "int32"), "w": jnp.ones(3)}
    for number in range(1, 20):
        before, state = state, step(state)
        assert int(state["count"]) == number
        np.testing.assert_array_equal(np.asarray(state["w"]), np.full(3, 2.0**number, np.float32))
        assert before["w"].is_deleted()


def test_states_are_given_back_in_the_buffers_that_they_came_in() -> None:
    step = vf.jit(lambda w, x: (w + x, x * 2), donate_argnums=0)
    w, x = jnp.ones(16), jnp.arange(16.0)
    w, _ = step(w, x)
    buffer_ids = id(w.buffer()), w.buffer().lease.block.number  # to hold the buffer itself would keep it from being overwritten
    w, twice = step(w, x)
    assert (id(w.buffer()), w.buffer().lease.block.number) == buffer_ids
    np.testing.assert_array_equal(np.asarray(w), 1 + 2 * np.arange(16, dtype=np.float32))
    np.testing.assert_array_equal(np.asarray(twice), 2 * np.arange(16, dtype=np.float32))
    doubled = vf.jit(lambda w: (w * 2).reshape(2, 8), donate_argnums=0)(w)  # another shape: another buffer in the same memory
    assert doubled.buffer().lease.block.number == buffer_ids[1]
    np.testing.assert_array_equal(np.asarray(doubled), 2 + 4 * np.arange(16, dtype=np.float32).reshape(2, 8))


def test_small_results_are_sent_as_long_as_they_are_read() -> None:
    gc.collect()  # what earlier tests have left, whose copies would be counted
    GPU.backend.gpu.queue.wait()
    readbacks = GPU.backend.gpu.driver.readbacks
    loss = vf.jit(lambda x: jnp.sum(x * x))
    x = jnp.arange(8.0)

    def sent(calls: int, read: bool) -> int:
        before = readbacks.count
        for _ in range(calls):
            result = loss(x)
            if read:
                assert float(result) == 140
        GPU.backend.gpu.queue.submit()
        return readbacks.count - before

    assert sent(20, read=False) == 0
    assert sent(20, read=True) == 20
    assert sent(40, read=False) == 16
    assert sent(1, read=True) == 1


def test_a_result_that_cannot_be_sent_is_no_lost_result(monkeypatch: pytest.MonkeyPatch) -> None:
    step = vf.jit(lambda w: (w + 1, jnp.sum(w)), donate_argnums=0)
    w = jnp.ones(4)
    for number in range(1, 4):
        w, total = step(w)
        assert float(total) == 4 * number

    def refused(*args: object) -> None:
        raise vf.errors.OutOfMemoryError("the host has no room")

    with monkeypatch.context() as patch:
        patch.setattr(GPU.backend.gpu.queue, "request", refused)
        w, total = step(w)
    assert float(total) == 16
    np.testing.assert_array_equal(np.asarray(w), np.full(4, 5, np.float32))
