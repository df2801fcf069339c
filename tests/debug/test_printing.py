"""`debug.print` and `debug.callback`: calls, order and number in all programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, CallbackError

ROWS = np.array([0.5, 1.5, 2.5], np.float32)


def shown(x: Any) -> Any:
    vf.debug.print("x = {}", x)
    return x * 2


def scanned(start: Any) -> Any:
    return lax.scan(lambda c, row: (shown(c) + row, None), start, ROWS)[0]


def branching(x: Any) -> Any:
    return lax.cond(x > 1, shown, lambda x: x, x)


SQUARES = ["x = 0.25", "x = 2.25", "x = 6.25"]


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        (lambda: shown(np.float32(1.5)), ["x = 1.5"]),
        (lambda: shown(ROWS), ["x = [0.5 1.5 2.5]"]),
        (lambda: vf.jit(shown)(np.float32(1.5)), ["x = 1.5"]),
        (lambda: vf.grad(shown)(1.5), ["x = 1.5"]),
        (lambda: vf.grad(lambda x: shown(x * x))(1.5), ["x = 2.25"]),
        (lambda: vf.jit(vf.grad(lambda x: shown(x * x)))(1.5), ["x = 2.25"]),
        (lambda: vf.grad(vf.jit(lambda x: shown(x * x)))(1.5), ["x = 2.25"]),
        (lambda: vf.jvp(shown, (1.5,), (1.0,)), ["x = 1.5"]),
        (lambda: vf.vmap(shown)(ROWS), ["x = 0.5", "x = 1.5", "x = 2.5"]),
        (lambda: vf.jit(vf.vmap(vf.grad(lambda x: shown(x * x))))(ROWS), SQUARES),
        (lambda: vf.vmap(lambda x: (shown(2.0), x)[1])(ROWS), ["x = 2.0"]),
        (lambda: vf.vmap(lambda x: vf.vmap(lambda y: shown(x * y))(ROWS[:2]))(ROWS[:2]), ["x = 0.25", "x = 0.75", "x = 0.75", "x = 2.25"]),
        (lambda: scanned(np.float32(1)), ["x = 1.0", "x = 2.5", "x = 6.5"]),
        (lambda: vf.jit(vf.grad(scanned))(np.float32(1)), ["x = 1.0", "x = 2.5", "x = 6.5"]),
        (lambda: vf.vmap(scanned)(ROWS[:2]), ["x = 0.5", "x = 1.5", "x = 1.5", "x = 3.5", "x = 4.5", "x = 8.5"]),
        (lambda: vf.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: shown(c), x))(1.0), ["x = 1.0", "x = 2.0", "x = 4.0"]),
        (lambda: vf.jit(lambda x: lax.while_loop(lambda c: c < 4, shown, x))(1.0), ["x = 1.0", "x = 2.0"]),
        (lambda: (branching(0.5), vf.jit(branching)(1.5)), ["x = 1.5"]),
    ],
)
def test_once_per_value_in_program_order(call: Any, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    call()
    assert capsys.readouterr().out.splitlines() == lines


def test_a_program_prints_whenever_it_runs_and_not_when_it_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    program = vf.jit(shown)
    program.lower(1.0)
    assert capsys.readouterr().out == ""
    program(1.0), program(2.0)
    assert capsys.readouterr().out.splitlines() == ["x = 1.0", "x = 2.0"]


def test_formats(capsys: pytest.CaptureFixture[str]) -> None:
    vf.jit(lambda x: vf.debug.print("{x:.2f} {0} {tree[a]} {{}} {word!r}", x, x=x, tree={"a": x}, word="as it is", ordered=True))(1.0)
    assert capsys.readouterr().out == "1.00 1.0 1.0 {} 'as it is'\n"
    vf.debug.print("nothing")
    assert capsys.readouterr().out == "nothing\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: vf.debug.print("{} {}", x), "names more values than the 1 that follow it"),
        (lambda x: vf.debug.print("{1}", x), "names more values than the 1 that follow it"),
        (lambda x: vf.debug.print("{y}", x=x), "names an argument that is not given: 'y'"),
        (lambda x: vf.debug.print(x), r"first argument is a format, as in debug.print\('x = \{\}', x\)"),
        (lambda x: vf.debug.print("{}", x, x), r"does not use the arguments \[1\]"),
        (lambda x: vf.debug.print(f"{x}", y=x), r"does not use the arguments \['y'\].*f-string"),
    ],
)
def test_mistakes_are_found_when_the_program_is_traced(call: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message) as caught:
        vf.jit(call)(1.0)
    assert caught.value.location is not None and caught.value.location.file == __file__


def test_callback_gets_arrays_and_what_else_it_was_given() -> None:
    seen: list[Any] = []
    marker = object()
    vf.jit(lambda x: vf.debug.callback(lambda *args, **named: seen.append((args, named)), {"x": x}, marker, scale=x * 2))(ROWS)
    ((args, named),) = seen
    assert args[1] is marker
    np.testing.assert_array_equal(args[0]["x"], ROWS)
    np.testing.assert_array_equal(named["scale"] + jnp.zeros(3), 2 * ROWS)


def test_exceptions_of_a_callback_are_chained() -> None:
    def failing(_: Any) -> None:
        raise LookupError("no such key")

    for call in (lambda x: vf.debug.callback(failing, x), vf.jit(lambda x: vf.debug.callback(failing, x))):
        with pytest.raises(CallbackError, match="failing raised LookupError: no such key") as caught:
            call(1.0)
        assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int4", "bool", "complex64"])
def test_scalars_print_as_numpys_scalars_do(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bfloat16 is 9.0, as in JAX, though an array of one prints as 9."""
    x = jnp.array(1 if dtype in ("int4", "bool") else 9, dtype)
    vf.jit(lambda x: vf.debug.print("{} {x}", x, x=x[None]))(x)
    vf.effects_barrier()
    assert capsys.readouterr().out == f"{np.asarray(x)[()]:} {np.asarray(x)[None]}\n"
    assert f"{x}" == format(np.asarray(x)[()], "")
