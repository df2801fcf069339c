"""Programs with linear algebra: machine code alone, found again by other processes, without SciPy too, and OpenBLAS's threads."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.cpu.running import entries, run_routine
from volta_fn.runtime.llvm import machine
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack import ROUTINES, Threads
from volta_fn.targets.cpu.routine import RoutineWriter

FUNCTIONS = {
    "inv": vnp.linalg.inv,
    "det": vnp.linalg.det,
    "slogdet": lambda x: vnp.linalg.slogdet(x)[1],
    "pinv": vnp.linalg.pinv,
    "cholesky": vnp.linalg.cholesky,
    "eigh": lambda x: vnp.linalg.eigh(x)[0],
    "svd": lambda x: vnp.linalg.svd(x)[1],
    "eigvals": vnp.linalg.eigvals,
    "qr": lambda x: vnp.linalg.qr(x)[1],
}
#: What gradients need besides linear algebra, and has no machine code: padding by values, complex products.
ELSEWHERE = {"pad", "dot_general"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_of_it_runs_on_the_host(name: str) -> None:
    for shape in ((4, 4), (3, 4, 4)):
        x = vf.ShapeDtypeStruct(shape, "float32")
        gradient = vf.grad(lambda a: abs(FUNCTIONS[name](a)).sum())
        steps = [*vf.jit(FUNCTIONS[name]).lower(x).host_steps(), *vf.jit(gradient).lower(x).host_steps()]
        assert {step.primitive for step in steps} <= ELSEWHERE


SCRIPT = """
import sys
import numpy as np
import volta_fn as vf
import volta_fn.numpy as vnp

x = np.random.default_rng(0).standard_normal((40, 9, 9))
print(np.asarray(vf.jit(lambda a: vnp.linalg.inv(a) + vnp.linalg.pinv(a))(x)).tobytes().hex())
print("volta_fn.targets.cpu.runtime.compile" in sys.modules, file=sys.stderr)
"""


def test_another_process_binds_the_functions_anew(tmp_path: Path) -> None:
    environment = os.environ | {"VOLTA_CACHE_DIR": str(tmp_path)}
    runs = [subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stderr.split()[-1] for run in runs] == ["True", "False"], "the second process compiled"
    assert runs[0].stdout == runs[1].stdout
    x = np.random.default_rng(0).standard_normal((40, 9, 9))
    got = np.frombuffer(bytes.fromhex(runs[0].stdout.strip())).reshape(x.shape)
    np.testing.assert_allclose(got, np.linalg.inv(x) + np.linalg.pinv(x), rtol=1e-8, atol=1e-8)


def test_without_scipy_there_are_no_routines(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has_lapack.cache_clear()
    monkeypatch.setattr(machine, "is_installed", lambda package: False)
    try:
        x = vf.make_jaxpr(vf.lax.linalg.lu)(np.eye(3, dtype=np.float32)).in_avals
        assert all(maker(tuple(x), {}) is None for maker in ROUTINES.values())
    finally:
        machine.has_lapack.cache_clear()


def test_a_function_that_scipy_lacks() -> None:
    with pytest.raises(KeyError, match="dnothing"):
        machine.lapack_address("dnothing")


def openblas_threads() -> int:
    """Return the number of OpenBLAS's threads."""
    control = machine._thread_control()
    return ctypes.CFUNCTYPE(ctypes.c_int)(control[machine.GET_THREADS])()


def test_openblas_has_its_threads_back() -> None:
    control = machine._thread_control()
    set_threads = ctypes.CFUNCTYPE(None, ctypes.c_int)(control[machine.SET_THREADS])
    before = openblas_threads()
    function = vf.jit(vf.lax.linalg.qr)
    x = np.random.default_rng(0).standard_normal((64, 24, 24))
    expected = [np.asarray(one) for one in function(x)]
    set_threads(2)
    try:
        wanted = openblas_threads()
        results: list[bool] = []

        def work() -> None:
            for _ in range(10):
                results.append(all(np.array_equal(a, b) for a, b in zip(map(np.asarray, function(x)), expected, strict=True)))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(results) and len(results) == 30
        assert openblas_threads() == wanted
        assert not machine._threads[0] and not machine._threads[machine._COUNTS].any(), "a routine did not give its lock or its count back"
    finally:
        set_threads(before)


def openblas_threads_during(steps: str, most: int) -> list[int]:
    """OpenBLAS's number of threads after each step, of a program with so many: a routine on one or many begins (1, m) or ends (o, n)."""
    kinds = {"1": Threads(many=False).begin, "o": Threads(many=False).end, "m": Threads(many=True).begin, "n": Threads(many=True).end}
    writer = RoutineWriter("steps", 1)

    def note(number: int, f: Function, pointers: list[Value], task: Value) -> None:
        f.store(f.call(machine.GET_THREADS, "i32"), f.at(pointers[0], "i32", i64(number)), 4)

    for number, step in enumerate(steps):
        writer.launch(1, 0.0, kinds[step])
        writer.launch(1, 0.0, functools.partial(note, number))
    routine = writer.routine()
    entries(routine.text, tuple(launch.symbol for launch in routine.launches), routine.shared)  # binds the record, which sets the most
    machine._threads[machine._MOST] = most
    (result,) = run_routine(routine, [], [((len(steps),), np.dtype(np.int32))])
    return [int(count) for count in result]


def test_single_large_matrices_have_the_programs_threads() -> None:
    set_threads = ctypes.CFUNCTYPE(None, ctypes.c_int)(machine._thread_control()[machine.SET_THREADS])
    before, most = openblas_threads(), int(machine._threads[machine._MOST])
    try:
        set_threads(4)
        assert openblas_threads() == 4
        assert openblas_threads_during("mm1onn", 3) == [3, 3, 1, 3, 3, 4]  # one while a stack is computed, too
        assert openblas_threads_during("1mon", 3) == [1, 1, 3, 4]
        assert openblas_threads_during("mn", 8) == [4, 4]  # OpenBLAS's own limit holds
        assert openblas_threads_during("mn", 1) == [1, 4]
    finally:
        set_threads(before)
        machine._threads[machine._MOST] = most


def test_a_forked_child_has_no_routines_at_work() -> None:
    before = openblas_threads()
    machine._threads[[0, machine._BEFORE]] = 1, before
    machine._threads[machine._COUNTS] = 2, 1
    machine._forget_routines()
    assert openblas_threads() == before
    assert not machine._threads[0] and not machine._threads[machine._COUNTS].any()


@pytest.mark.parametrize("size", [64, 200, 300])
def test_large_matrices(size: int) -> None:
    x = np.random.default_rng(0).standard_normal((size, size))
    np.testing.assert_allclose(np.asarray(vf.jit(vnp.linalg.inv)(x)), scipy.linalg.inv(x), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 5), (40, 20, 20)], ids=str)
def test_results_in_the_memory_of_operands(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(0).standard_normal(shape)
    square, b = a @ a.swapaxes(-1, -2) + np.eye(shape[-1]), np.random.default_rng(1).standard_normal(shape)

    def function(x, y):
        first = vf.lax.linalg.triangular_solve(vf.lax.linalg.cholesky(x), y + 1, left_side=True, lower=True)
        return first, vf.lax.linalg.triangular_solve(vf.lax.linalg.cholesky(2 * x), y, lower=True)

    first, second = map(np.asarray, vf.jit(function)(square, b))
    np.testing.assert_allclose(np.linalg.cholesky(square) @ first, b + 1, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(second @ np.linalg.cholesky(2 * square), b, rtol=1e-9, atol=1e-9)
    factor, arguments = np.linalg.cholesky(square), vf.device_put(b)
    solve = vf.jit(lambda y: vf.lax.linalg.triangular_solve(vnp.asarray(factor), y, left_side=True, lower=True), donate_argnums=0)
    np.testing.assert_allclose(factor @ np.asarray(solve(arguments)), b, rtol=1e-9, atol=1e-9)
