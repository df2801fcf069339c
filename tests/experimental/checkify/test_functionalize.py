"""`checkify`: the errors and results are JAX's, under every transform."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.checkify
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.experimental.checkify
from volta_fn.errors import ArgumentTypeError, CheckError, DTypeError
from volta_fn.settings import current

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
X = np.array([1.0, 2.0, 3.0], np.float32)
ONE, ZERO = np.float32(1.0), np.float32(0.0)


def program(*args: Any) -> Callable[..., Any]:
    """Register a program of jax, jax.numpy, checkify and an argument; try all `args`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, args)
        return function

    return register


@program(-ONE, ONE)
def user(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    ch.check(x > 0, "x is {} and {half}", x, half=x / 2)
    return xp.log(x)


@program(-X, X)
def nan(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    return xp.sin(xp.log(x)) + 1


@program(ZERO, ONE)
def divide(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    return ONE / x, np.int32(7) // x.astype(int)


@program(np.int32(5), np.int32(2), np.int32(-4), np.int32(-3))
def index(ja: Any, xp: Any, ch: Any, i: Any) -> Any:
    return xp.asarray(X)[i]


@program(np.array([0, 7]), np.array([0, 2]))
def indices(ja: Any, xp: Any, ch: Any, i: Any) -> Any:
    return xp.ones((2, 3))[:, i].sum()


@program(np.int32(5), np.int32(1))
def update(ja: Any, xp: Any, ch: Any, i: Any) -> Any:
    return xp.asarray(X).at[i].set(9.0)


@program(ONE, ONE + 5)
def scan(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    def step(carry: Any, y: Any) -> Any:
        ch.check(carry > 0, "carry {c} at {y}", c=carry, y=y)
        return carry - y, 1 / carry

    return ja.lax.scan(step, x, xp.arange(3.0))


@program(np.int32(0), np.int32(9))
def loop(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    def step(i: Any) -> Any:
        ch.check(i < 2, "i is {}", i)
        return i + 1

    return ja.lax.while_loop(lambda i: i < 3, step, x)


@program(ONE, -ONE, ZERO)
def branches(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    ja.lax.cond(x > 0, lambda: ch.check(x < 0, "positive {}", x), lambda: ch.check(x == 0, "negative {}", x))
    return x


@program(-ONE)
def jitted(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    inner = ja.jit(lambda y: (ch.check(y > 0, "inner {}", y), y * 2)[1])
    return inner(x) + inner(x - 1)


@program(-ONE, ONE)
def gradient(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    return ja.grad(lambda y: (ch.check(y > 0, "y {}", y), y * y)[1])(x)


@program(X, X - 2.5)
def mapped(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    return ja.vmap(lambda y: (ch.check(y > 0, "some are not positive"), y * 2)[1])(x)


@program(-ONE)
def two(ja: Any, xp: Any, ch: Any, x: Any) -> Any:
    ch.check(x > -2, "first")
    ch.check(x > 0, "second")
    ch.check(x > 5, "third")
    return x


def without_lines(text: str) -> str:
    """Return a message of ours without the lines that JAX's has not."""
    return re.sub(r"\n  in \w+ at .*", "", text)


def root(x: Any) -> Any:
    """Compute in three lines, each of which may fail."""
    vf.experimental.checkify.check(x > -10, "x is {}", x)
    y = vf.numpy.log(x)
    return y / (x - 2)


@pytest.mark.parametrize(("bad", "primitive", "line"), [(-20.0, "check", 2), (-1.0, "log", 3), (2.0, "div", 4)])
@pytest.mark.parametrize("mode", ["eager", "jit", "scan", "vmap", "thrown"])
def test_messages_end_with_the_primitive_and_the_users_line(bad: float, primitive: str, line: int, mode: str) -> None:
    checkify = vf.experimental.checkify
    functions: dict[str, Any] = {
        "jit": vf.jit(root),
        "scan": lambda x: vf.lax.scan(lambda carry, x: (carry, root(x)), 0, vf.numpy.stack([x, x])),
        "vmap": lambda x: vf.vmap(root)(vf.numpy.stack([x * 0 + 1, x])),
    }
    error, _ = checkify.checkify(functions.get(mode, root), errors=checkify.all_checks)(bad)
    number = root.__code__.co_firstlineno + line
    place = f"in {primitive} at {__file__}:{number} (root)"
    assert error.get().splitlines()[-1].strip() == place
    if mode == "thrown":
        with pytest.raises(CheckError, match=re.escape(place)):
            error.throw()


def test_a_check_outside_of_checkify_names_its_line() -> None:
    for function in (root, vf.jit(root)):
        with pytest.raises(CheckError) as caught:
            vf.block_until_ready(function(-20.0))
        assert caught.value.location is not None
        assert caught.value.location.lineno == root.__code__.co_firstlineno + 2


@pytest.mark.parametrize("kind", ["user_checks", "all_checks"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_errors_are_jaxs(name: str, compiled: bool, kind: str) -> None:
    function, args = PROGRAMS[name]
    for arg in args:
        results = []
        for ja, xp in ((vf, vf.numpy), (jax, jnp)):
            checkify = ja.experimental.checkify
            checked = checkify.checkify(lambda x, ja=ja, xp=xp, ch=checkify: function(ja, xp, ch, x), errors=getattr(checkify, kind))
            error, out = (ja.jit(checked) if compiled else checked)(xp.asarray(arg))
            results.append((without_lines(error.get() or "").strip(), [np.asarray(o) for o in jax.tree.leaves(out)]))
        (ours, our_outs), (theirs, their_outs) = results
        assert ours == theirs
        if not theirs:
            for a, b in zip(our_outs, their_outs, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_mapped_error_tells_the_indices() -> None:
    checkify = vf.experimental.checkify
    messages = []
    for ja, ch, xp in ((vf, checkify, vf.numpy), (jax, jax.experimental.checkify, jnp)):
        error, _ = ja.vmap(ch.checkify(lambda x, ch=ch: (ch.check(x > 0, "x is {}", x), x)[1]))(xp.asarray([1.0, -1.0, -2.0]))
        messages.append(without_lines(error.get()))
    assert messages[0] == messages[1]
    assert "at mapped index 2: x is -2.0" in messages[0]


def test_errors_can_be_thrown_and_checked_again() -> None:
    checkify = vf.experimental.checkify
    inner = checkify.checkify(lambda x: checkify.check(x > 0, "x is {}", x))

    def outer(x: Any) -> Any:
        error, _ = inner(x)
        checkify.check_error(error)
        return x

    error, _ = vf.jit(checkify.checkify(outer))(-1.0)
    assert without_lines(error.get()) == "x is -1.0 (`check` failed)"
    with pytest.raises(CheckError, match=r"x is -1\.0"):
        error.throw()
    inner(1.0)[0].throw()
    assert checkify.init_error().get() is None


def test_checks_outside_of_checkify_raise_when_the_program_runs() -> None:
    check, debug_check = vf.experimental.checkify.check, vf.experimental.checkify.debug_check
    run = vf.jit(lambda x: (check(x > 0, "x is {}", x), x * 2)[1])
    assert run(1.0) == 2.0
    with pytest.raises(CheckError, match=r"x is -1\.0"):
        vf.block_until_ready(run(-1.0))
    debug_check(False, "nothing")
    assert without_lines(vf.experimental.checkify.checkify(lambda: debug_check(False, "found"))()[0].get()) == "found (`check` failed)"


def test_checks_take_boolean_scalars() -> None:
    check = vf.experimental.checkify.check
    with pytest.raises(DTypeError, match="boolean scalar"):
        check(1.0, "a number")
    with pytest.raises(ArgumentTypeError, match="write it into the message"):
        check(True, "{}", "text")


def test_gradients_pass_through() -> None:
    checkify = vf.experimental.checkify
    checked = checkify.checkify(lambda x: x / (x + 1), errors=checkify.all_checks)
    np.testing.assert_allclose(vf.grad(lambda x: checked(x)[1])(3.0), 1 / 16, rtol=1e-6)


def test_indices_of_any_integers_are_compared_in_their_dtype() -> None:
    """Those of 64 bits are not cut to 32, and those of 8 bits may belong to a longer axis."""
    errors = vf.experimental.checkify.index_checks
    numbers = vf.lax.GatherDimensionNumbers((), (0,), (0,))
    gather = vf.experimental.checkify.checkify(lambda x, i: vf.lax.gather(x, i, numbers, (1,)), errors)
    cut = vf.experimental.checkify.checkify(lambda x, i: vf.lax.dynamic_slice(x, (i,), (2,)), errors)
    x = np.arange(300, dtype=np.float32)
    for dtype in ("int8", "uint8", "int16", "uint32", "int64", "uint64"):
        for function, index in ((gather, np.array([[3]], dtype)), (cut, np.array(3, dtype))):
            assert function(x, vf.numpy.asarray(index))[0].get() is None
    far = 2**32 + 1
    for dtype in ("int64", "uint64"):
        message = gather(x, vf.numpy.asarray([[far]], dtype))[0].get()
        assert message is not None and f"index {far} is out of bounds for axis 0 with size 300" in message
        assert "is out of bounds for axis 0" in str(cut(x, vf.numpy.asarray(far, dtype))[0].get())


def test_checks_of_no_examples() -> None:
    def positive(x: Any) -> Any:
        vf.experimental.checkify.check(x > 0, "x is {}", x)
        return x * 2

    for function in (vf.vmap(positive), vf.jit(vf.vmap(positive))):
        error, out = vf.experimental.checkify.checkify(function)(np.zeros(0, np.float32))
        assert error.get() is None and out.shape == (0,)


def test_arguments_that_are_no_arrays_stay_as_they_are() -> None:
    def f(x: Any, twice: bool, mode: str) -> Any:
        return 2 * x if twice and mode == "on" else x

    error, out = vf.experimental.checkify.checkify(f)(3.0, True, "on")
    assert error.get() is None
    assert out == 6.0


@pytest.mark.parametrize("f", [lambda x: x[5], lambda x: x[-7] + x[0], lambda x: x.at[5].set(1.0)], ids=["read", "negative", "written"])
@pytest.mark.parametrize("is_jitted", [False, True])
def test_known_indices_outside_are_reported_where_jax_permits_them(f: Callable[[Any], Any], is_jitted: bool) -> None:
    current.permissive = True
    try:
        checked = vf.experimental.checkify.checkify(vf.jit(f) if is_jitted else f, errors=vf.experimental.checkify.index_checks)
        message = checked(vf.numpy.ones(2))[0].get()
        program = vf.jit(f)(vf.numpy.arange(2.0))
    finally:
        current.permissive = False
    expected, _ = jax.experimental.checkify.checkify(f, errors=jax.experimental.checkify.index_checks)(jnp.ones(2))
    assert message is not None
    assert message.partition(". ")[0].split("\n")[0].startswith(expected.get().split(". ")[0].partition(" for axis")[0].split(":")[0])
    np.testing.assert_array_equal(program, jax.jit(f)(jnp.arange(2.0)))
