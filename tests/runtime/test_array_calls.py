"""Programs as built-in functions of arrays."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core.arrays.array import ConcreteArray, array_spec
from volta_fn.errors import DonatedBufferError, LeakedTracerError
from volta_fn.runtime import fastcall
from volta_fn.runtime.fastcall import CtypesEntry, FastcallEntry
from volta_fn.targets.cpu.runtime.program import Program

X: Any = jnp.asarray(np.arange(1000, dtype=np.float32))


def program_of(function: Any, *arrays: Any) -> Program:
    from volta_fn.compiler import pipeline

    return Program.of(vf.make_jaxpr(function)(*arrays), (), pipeline)


def of_arrays(function: Any, *arrays: Any, otherwise: Any = None) -> Any:
    """Return a program as a function of arrays."""
    result = vf.eval_shape(function, *arrays)
    within = type(result) if isinstance(result, (tuple, list)) else None
    specs = [array_spec(vf.typeof(leaf), arrays[0].device) for leaf in vf.tree.leaves(result)]
    executable: Any = program_of(function, *arrays).executable()
    return executable.of_arrays(specs, within, otherwise or (lambda *args: "otherwise"))


def test_a_program_makes_an_array_that_owns_what_it_has() -> None:
    run = of_arrays(lambda x, y: x * y + 1, X, X)
    completed = run(X, X)
    references = sys.getrefcount(completed._buffer)
    assert references == 2  # the array's, and the argument
    gc.collect()
    np.testing.assert_array_equal(run(X, X), completed)  # the built-in alone keeps the program
    assert type(completed) is ConcreteArray
    assert completed.aval == X.aval
    np.testing.assert_array_equal(completed, np.arange(1000, dtype=np.float32) ** 2 + 1)
    del run
    np.testing.assert_array_equal(completed[:3], [1, 2, 5])


def test_references_are_counted() -> None:
    run, operand = of_arrays(lambda x: x + 1, X), X + 0
    run(operand)
    counted = [operand, operand._buffer, operand._spec, None]
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(1000):
        run(operand)
        run(operand[::-1])
        run(3)
    assert max(abs(sys.getrefcount(thing) - count) for thing, count in zip(counted, before, strict=True)) < 100


def test_what_machine_code_does_not_know_is_left_to_the_other_function() -> None:
    run = of_arrays(lambda x: x + 1, X[:500])
    assert run(X[::2]) == "otherwise"
    assert run(2.0) == run(np.zeros(500, "float32")) == run(None) == "otherwise"
    gone = X[:500] + 0
    gone.delete()
    assert run(gone) == "otherwise"
    with pytest.raises(ZeroDivisionError):
        of_arrays(lambda x: x + 1, X, otherwise=lambda x: 1 / 0)(X[::-1])


@pytest.mark.parametrize("within", [tuple, list])
def test_several_results_are_returned_together(within: Any) -> None:
    run = of_arrays(lambda x: within([x + 1, x.sum(), x[:3] > 1]), X)
    completed = run(X)
    assert type(completed) is within and [f.shape for f in completed] == [(1000,), (), (3,)]
    np.testing.assert_array_equal(completed[0], np.asarray(X) + 1)
    assert completed[1].item() == 499500 and completed[2].tolist() == [False, False, True]
    assert [sys.getrefcount(f._buffer) for f in completed] == [2, 2, 2]
    assert run(X[::-1]) == run(2.0) == "otherwise"
    before = [sys.getrefcount(thing) for thing in (X._buffer, X._spec, completed[0]._spec)]
    for _ in range(1000):
        run(X), run(X[::-1]), run(None)
    after = [sys.getrefcount(thing) for thing in (X._buffer, X._spec, completed[0]._spec)]
    assert max(abs(b - a) for a, b in zip(before, after, strict=True)) < 100


def test_only_programs_with_few_new_results_and_operands_have_one() -> None:
    for function, count in ((lambda x: (x,), 1), (lambda x: x, 1), (lambda *xs: sum(xs), 16), (lambda x: [x + i for i in range(9)], 1)):
        assert program_of(function, *[X] * count).executable().of_arrays is None
    assert program_of(lambda x: vf.pure_callback(lambda x: x, x, x) + 1, X).executable().of_arrays is None
    assert program_of(lambda *xs: sum(xs), *[X] * 15).executable().of_arrays is not None


def test_threads_share_a_program() -> None:
    run = of_arrays(lambda x: jnp.sin(x) @ x.reshape(1000, 1) + jnp.cos(x)[:1], X)
    expected = np.asarray(run(X))
    wrong: list[Any] = []

    def work() -> None:
        wrong.extend(actual for actual in [run(X) for _ in range(300)] if not np.array_equal(actual, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_may_be_deleted_while_a_long_program_reads_them() -> None:
    arrays = [jnp.asarray(np.full(1 << 20, i, np.float32)) + 0 for i in range(8)]
    run, output, started = of_arrays(lambda x: jnp.tanh(x) + x, arrays[0]), dict[int, Any](), threading.Semaphore(0)

    def work() -> None:
        for i, x in enumerate(arrays):
            started.release()
            output[i] = run(x)

    thread = threading.Thread(target=work)
    thread.start()
    for i in range(len(arrays)):
        started.acquire()
        arrays[i].delete()
        jnp.full(1 << 20, -1.0).block_until_ready()  # in the memory that is free, if it is
    thread.join()
    for i, result in output.items():
        assert type(result) is str or np.allclose(result, np.tanh(i) + i, rtol=1e-6)


def test_repeated_calls_are_found_and_still_notice_deleted_arrays_and_tracers() -> None:
    for function in (jnp.add, jnp.fmax, lambda x, y: x - y):
        gone = X + 0
        for _ in range(5):
            function(gone, X)
        gone.delete()
        with pytest.raises(DonatedBufferError):
            function(gone, X)
        leaked: list[Any] = []
        vf.make_jaxpr(lambda x, leaked=leaked: leaked.append(x) or x)(X)
        with pytest.raises(LeakedTracerError):
            function(leaked[0], X)
        np.testing.assert_allclose(vf.grad(lambda x, function=function: function(x, x + 1).sum())(X), 0.5, atol=1.5)


def test_another_layout_of_arrays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastcall.find_layout() is not None
    monkeypatch.setattr(fastcall, "_WORD", 1 << 20)  # so that no word of an array is read
    assert fastcall.find_layout() is None
    entry = FastcallEntry(fastcall.Addresses(*[0] * len(fastcall.Addresses._fields)))
    assert entry.of_arrays(None, np.zeros(10, np.int64), [], [X._spec], None, print) is print


def test_without_built_ins_python_does_the_same() -> None:
    assert CtypesEntry.of_arrays(None, None, None, [], [X._spec], None, print) is print  # type: ignore[arg-type]  # it needs none
