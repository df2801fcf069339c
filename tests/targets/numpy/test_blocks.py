"""Programs' values in blocks of memory: nothing that outlives a call is in one, and no more memory is used than is said."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.targets.numpy import memory as blocks

X = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)


@pytest.fixture(autouse=True)
def _numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", False)
    monkeypatch.setattr(blocks, "_spare", [])


def model(x: Any) -> dict[str, Any]:
    """Results that are views of, or made in, what was computed before; a loop; a branch."""
    hidden = jnp.tanh(x @ x)
    product = hidden @ x + 1.0
    carried, rows = lax.scan(lambda c, row: (jnp.sin(c @ product), c + row), hidden, product)
    chosen = lax.cond(hidden[0, 0] > 0, lambda: carried * 2.0, lambda: carried)
    picked = jnp.where(product > 0, product, 0.0).T
    return {"picked": picked, "row": product[3], "rows": rows, "chosen": chosen, "joined": jnp.concatenate([hidden, picked], 1)}


def test_results_outlive_the_block() -> None:
    expected = {name: np.array(value) for name, value in model(jnp.asarray(X)).items()}
    compiled = vf.jit(model)
    actual = compiled(X)
    compiled(-X)
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert not any(np.shares_memory(value.buffer(), spare) for spare in blocks._spare), name


def test_a_program_within_itself_and_in_threads() -> None:
    """A callback calls the program that calls it; two threads call it at once."""
    inner = vf.jit(lambda x: jnp.tanh(x @ x) @ x)
    shape = vf.ShapeDtypeStruct(X.shape, "float32")
    outer = vf.jit(lambda x: jnp.tanh(x @ x) @ vf.pure_callback(inner, shape, x))
    first = np.tanh(X @ X)
    expected = first @ (first @ X)
    actual: list[Any] = [None] * 2

    def work(number: int) -> None:
        for _ in range(20):
            actual[number] = outer(X)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in actual:
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)


def test_few_blocks_are_kept_and_the_smallest_that_serves_is_taken() -> None:
    small, medium, large, larger = (blocks.take(size) for size in (1000, 2000, 100_000, 200_000))
    for block in (large, small, larger, medium):
        blocks.give(block)
    assert [block.size for block in blocks._spare] == [medium.size, large.size, larger.size]
    assert blocks.take(10) is medium
    assert blocks.take(150_000) is larger
    blocks.give(medium)
    assert blocks.take(300_000).size >= 300_000
    assert blocks._spare == [medium]  # the largest of those too small was let go of
    vf.free_memory("cpu")
    assert blocks._spare == []
    assert all(block.ctypes.data % 64 == 0 for block in (small, medium, large))


def test_scratch_lies_in_a_block_that_grows_to_what_was_needed() -> None:
    for iteration in range(3):
        with blocks.Scratch() as scratch:
            arrays = [
                scratch.array((3, 5), np.dtype(np.float32)),
                scratch.array((), np.dtype(bool)),
                scratch.array((70,), np.dtype(np.int8)),
            ]
            for i, array in enumerate(arrays):
                array[...] = i % 2
            with blocks.Scratch() as inner:
                inner.array((1000,), np.dtype(np.float64))[...] = 7.0
            assert [np.unique(array).tolist() for array in arrays] == [[0.0], [True], [0]]
        if iteration:
            assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert sorted(block.size for block in blocks._spare)[0] >= 256
    assert len(blocks._spare) == 2


def test_memory_is_what_is_used() -> None:
    """A chain of products, large values at the same time, and a loop that keeps what each iteration computes."""

    def function(x: Any) -> Any:
        retained = [jnp.tanh(x @ x) + float(i) for i in range(4)]
        _, rows = lax.scan(lambda c, row: (jnp.sin(c @ row), c * row), retained[0], jnp.stack(retained))
        return sum(retained) @ jnp.max(rows, 0)

    program = vf.jit(vf.grad(lambda x: function(x).sum()))
    said = program.lower(X).memory()
    x = jnp.asarray(X)
    program(x)
    blocks._spare.clear()
    tracemalloc.start()
    try:
        program(x)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 * said.temporaries < used - said.results < 1.1 * said.temporaries + 1e5
