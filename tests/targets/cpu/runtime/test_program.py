"""Compiled programs: results, memory, control flow, failures and threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.errors import CallbackError, CompilerError
from volta_fn.runtime.fastcall import Status
from volta_fn.targets.cpu.runtime import artifact, compile
from volta_fn.targets.cpu.runtime.program import Program

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def compiled(function: Callable[..., Any], *args: Any, donated: tuple[bool, ...] = ()) -> Program:
    return Program.of(vf.make_jaxpr(function)(*args), donated, pipeline)


def check(function: Callable[..., Any], *args: np.ndarray) -> Program:
    program = compiled(function, *args)
    expected = vf.tree.leaves(function(*[jnp.asarray(a) for a in args]))
    for _ in range(2):  # the second call finds a table and an arena
        for actual, wanted in zip(program(False, *args), expected, strict=True):
            assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(actual, np.asarray(wanted), rtol=1e-5, atol=1e-6)
    return program


def swapped(c: Any, x: Any) -> Any:
    return (c[1], c[0] + x), c[0]


def recurrent(x: Any) -> Any:
    """Compute what loop fission moves out of a scan: products before and after it, and a sum over its iterations."""

    def loss(w: Any) -> Any:
        _, y = lax.scan(lambda h, r: (lambda h: (h, h @ w))(jnp.tanh(h @ w + r[:, None] @ w[:1])), jnp.zeros((4, 4)), x)
        return (y * y).sum(), y

    return vf.grad(loss, has_aux=True)(x.T @ x / 50)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: jnp.sin(x) * 2 + 1,
    "product": lambda x: (x @ x.T, x.sum()),
    "arguments as results": lambda x: (x, x.reshape(-1), x.T, jnp.float32(3), x),
    "one result twice": lambda x: (lambda y: (y, y, y.reshape(4, 3)))(x * 2),
    "constants": lambda x: (jnp.asarray(X[0]), x + X),
    "scan in place": lambda x: lax.scan(lambda c, r: (c + r, c * 2), jnp.zeros(4), x),
    "scan back and forth": lambda x: lax.scan(swapped, (jnp.zeros(4), jnp.ones(4)), x),
    "scan in reverse": lambda x: lax.scan(swapped, (jnp.zeros(4), jnp.ones(4)), x, reverse=True),
    "scan of an even number": lambda x: lax.scan(swapped, (jnp.zeros(3), jnp.ones(3)), x.T),
    "scan of nothing": lambda x: lax.scan(swapped, (jnp.zeros(4), jnp.ones(4)), x[:0]),
    "a carry that stays": lambda x: lax.scan(lambda c, r: (c, c * r), x[0], x),
    "scan in scan": lambda x: lax.scan(lambda c, r: (lax.scan(lambda d, s: (d * s, d), c[0], r)[1] + c, c), x[0], x),
    "a recurrent network": recurrent,
    "while": lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[2], c[1] * 2), (0, x, x + 1)),
    "while that does not begin": lambda x: lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[2], c[1]), (0, x, x + 1)),
    "branches": lambda x: [lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x[::-1]], x) for i in (jnp.int32(x[0, 1]), -1, 7)],
    "loop with updates": lambda x: lax.fori_loop(0, 4, lambda i, c: c.at[i % 3].set(c[(i + 1) % 3] * 2), x),
    "linear algebra": lambda x: jnp.linalg.inv(x.T @ x + jnp.eye(4)),
    "nothing": lambda x: (),
    "empty": lambda x: (x[:0] + 1, x[:0].sum()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_eager_evaluation_gives(name: str) -> None:
    check(PROGRAMS[name], X)


def test_arguments_in_any_order_in_memory() -> None:
    program = compiled(lambda x: x * 2, X.T)
    np.testing.assert_array_equal(program(False, X.T)[0], X.T * 2)
    shifted = np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape).T
    np.testing.assert_array_equal(program(False, shifted)[0], X.T * 2)


def test_a_donated_argument_is_overwritten_if_the_caller_lets_it() -> None:
    program = compiled(lambda x, y: (x + y, y), X, X, donated=(True, False))
    x = X.copy()
    result, _ = program(True, x, X)
    assert result is x
    np.testing.assert_array_equal(result, 2 * X)
    y = X.copy()
    result, _ = program(False, y, X)
    assert not np.shares_memory(result, y)


def test_an_argument_that_is_needed_later_is_not_overwritten() -> None:
    program = compiled(lambda x: (x + 1, x.T @ x), X, donated=(True,))
    x = X.copy()
    first, second = program(True, x)
    np.testing.assert_array_equal(first, X + 1)
    np.testing.assert_allclose(second, X.T @ X)


def test_memory_of_values_that_died_is_used_again() -> None:
    def deep(x: Any) -> Any:
        for _ in range(50):
            x = lax.optimization_barrier(x @ x)
        return x

    square = np.eye(64, dtype=np.float32)
    assert compiled(deep, square).temporaries <= 3 * square.nbytes


ROWS = np.array([2, 0, 2, 5], np.int32)


def test_what_a_result_is_made_over_is_in_its_memory() -> None:
    updates = np.ones((4, 64), np.float32)
    program = compiled(lambda u, i: (jnp.zeros((50, 64)).at[i].add(u), jnp.zeros((50, 64)).at[i].set(u).at[i + 1].add(u)), updates, ROWS)
    assert program.temporaries < 50 * 64 * 4
    first, second = program(False, updates, ROWS)
    assert first.sum() == 4 * 64 and first[2].sum() == 2 * 64
    assert second.sum() == 7 * 64 and second[3].sum() == 2 * 64


def test_what_a_result_is_made_over_does_not_spoil_a_donated_argument() -> None:
    def late(x: Any, i: Any) -> Any:
        ones = lax.optimization_barrier(jnp.ones((6, 4)))
        return ones.at[i].add(jnp.sort(x * ones[0, 0], axis=0)[:4])

    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    expected = np.ones((6, 4), np.float32)
    np.add.at(expected, ROWS, x[:4])
    (result,) = compiled(late, x, ROWS, donated=(True, False))(True, x.copy(), ROWS)
    np.testing.assert_array_equal(result, expected)


def test_an_exception_in_a_callback_ends_the_program() -> None:
    def fail(x: Any) -> Any:
        if x[0] > 0:
            raise LookupError("not today")
        return x

    program = compiled(lambda x: vf.pure_callback(fail, x, x) + 1, X[0])
    with pytest.raises(CallbackError, match="not today"):
        program(False, X[1])
    np.testing.assert_array_equal(program(False, X[0])[0], X[0] + 1)


def test_a_callback_may_keep_what_it_gets() -> None:
    retained = []
    program = compiled(lambda x: vf.pure_callback(lambda v: retained.append(v) or v, x * 2, x * 2) * 3, X[0])
    for row in (X[0], X[1]):
        program(False, row)
    np.testing.assert_array_equal(retained, X[:2] * 2)


def test_threads_call_one_program_at_once() -> None:
    program = compiled(lambda x: lax.fori_loop(0, 20, lambda i, c: jnp.tanh(c @ x.T @ x) + c, x), X)
    inputs = [X / (k + 1) for k in range(8)]
    expected = [program(False, x)[0] for x in inputs]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            for actual, wanted in zip(threads.map(lambda x: program(False, x)[0], inputs), expected, strict=True):
                np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("donate", [(), (1,)])
@pytest.mark.parametrize("make", [lambda size: jnp.ones((size, 2)), lambda size: jnp.arange(2.0 * size).reshape(2, size).T])
def test_arguments_are_copied_once(size: int, donate: tuple[int, ...], make: Callable[[int], Any]) -> None:
    """Views of elements that do not lie one after another, such as `ones`, keep the copy that the first call needs."""
    f = vf.jit(lambda x, y: (x * 2, y + x), donate_argnums=donate)
    x = make(size)
    wanted = np.array(x)
    assert not x._buffer.flags.c_contiguous
    for _ in range(2):
        double, total = f(x, jnp.zeros((size, 2)))
        assert x._buffer.flags.c_contiguous
        np.testing.assert_array_equal(x, wanted)
        np.testing.assert_array_equal(double, wanted * 2)
        np.testing.assert_array_equal(total, wanted)


def test_what_llvm_refuses_is_an_error_with_equations_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def malformed(text: str, *suffix: str) -> bytes:
        return original(text.replace("ret void", "ret float 0.0"), *suffix)

    def odd(x: Any) -> Any:
        return lax.scan(lambda c, r: (lax.sort(c * r), c), x[0], x)

    original, fresh = compile.compile_object, compile.CodeCache()
    monkeypatch.setattr(compile, "compile_object", malformed)
    monkeypatch.setattr(compile.CODE_CACHE, "_recent", fresh._recent)
    monkeypatch.setattr(artifact, "cache_dir", lambda: None)
    with pytest.raises(CompilerError, match=r"(?s)code generation: LLVM refuses the module: .*in (the kernel of|sort)") as caught:
        compiled(odd, np.ones((5, 7), np.float32))
    assert caught.value.location is not None and caught.value.location.file == __file__


def test_arguments_that_are_not_contiguous_are_copied_and_reported() -> None:
    program, statuses = compiled(lambda x, y: jnp.cos(x) + y, X, X), list[int]()
    enter = program.enter

    def note(*arrays: np.ndarray) -> int:
        statuses.append(enter(*arrays))
        return statuses[-1]

    program.enter = note
    executable = program.executable()
    np.testing.assert_allclose(executable.run(False, X, X.T.copy().T)[0], np.cos(X) + X, rtol=1e-6)
    assert statuses == [Status.NOT_CONTIGUOUS, Status.OK]
    assert executable.copied == [1]


def test_updates_in_place_copy_nothing() -> None:
    """A launch that copies the operand is left out where the result has its memory."""
    x, i, u = np.zeros((500, 20)), np.arange(5), np.ones((5, 20))
    of_argument = vf.make_jaxpr(lambda x, i, u: x.at[i].add(u))(x, i, u)
    of_carry = vf.make_jaxpr(lambda x, i, u: lax.fori_loop(0, 3, lambda k, c: c.at[i].add(u), x))(x, i, u)
    copies = [[launch.is_copy for launch in compile.build(program, (), pipeline).launches] for program in (of_argument, of_carry)]
    assert any(copies[0]) and copies[1] and not any(copies[1])
