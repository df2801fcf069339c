"""`lint` finds each habit with its line, and nothing in programs without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import errors, lax, random

TABLE = vnp.ones((256, 256))
X = vnp.ones((2, 256))


def rules(f: Any, *args: Any) -> list[str]:
    return [finding.rule for finding in vf.lint(f)(*args).findings]


def line_of(f: Any, *args: Any) -> int:
    """Return the line of the only finding, counted from that of the function."""
    (finding,) = vf.lint(vf.jit(f))(*args).findings
    assert finding.location is not None and finding.remedy
    assert finding.location.file == __file__
    return finding.location.lineno - f.__code__.co_firstlineno


def test_a_key_used_twice() -> None:
    def f(key: Any) -> Any:
        a = random.normal(key)
        return a + random.uniform(key)

    def drawn_and_split(key: Any) -> Any:
        a = random.normal(key)
        return a, random.split(key)

    assert line_of(f, random.key(0)) == 2
    assert line_of(drawn_and_split, random.key(0)) == 2


def test_split_and_folded_keys_are_fine() -> None:
    @vf.jit
    def f(key: Any) -> Any:
        k1, k2 = random.split(key)
        return random.normal(k1) + random.uniform(k2) + random.normal(random.fold_in(k2, 1)) + random.normal(random.fold_in(k2, 2))

    assert not rules(f, random.key(0))
    assert vf.lint(f)(random.key(0))


def test_a_captured_constant() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        return y @ TABLE

    assert line_of(f, X) == 2


def test_float64_creeping_in() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y + np.ones(256)

    with vf.numpy_dtype_promotion("standard"):
        assert line_of(f, X) == 2


def test_an_unrolled_loop() -> None:
    def f(x: Any) -> Any:
        for _ in range(80):
            x = vnp.sin(x)
        return x

    assert line_of(f, X) == 2
    assert not rules(vf.jit(lambda x: lax.fori_loop(0, 80, lambda i, x: vnp.sin(x), x)), X)


def test_work_for_want_of_jit() -> None:
    def f(x: Any) -> Any:
        a = vnp.sin(x) + vnp.sin(x)
        b = vnp.exp(x) * vnp.exp(x) + vnp.cos(x)
        return a + b

    (finding,) = vf.lint(f)(X).findings
    assert finding.rule == "jit" and "2 of them compute again" in finding.message
    assert not rules(vf.jit(f), X)


def test_a_jit_that_is_made_anew() -> None:
    def f(x: Any) -> Any:
        return vf.jit(lambda y: y * 2)(x)

    assert line_of(f, X) == 1


def test_bad_input() -> None:
    with pytest.raises(errors.ArgumentTypeError):
        vf.lint(3)  # type: ignore[arg-type]


def test_loops_of_the_package_are_not_the_users() -> None:
    params = [vnp.ones(3) for _ in range(80)]
    optimizer = vf.optim.adamw(1e-3)

    @vf.jit
    def step(params, grads, state):
        updates, state = optimizer.update(grads, state, params)
        scaled = vf.tree.map(lambda update: 0.5 * update + 1.0, updates)
        return vf.optim.apply_updates(params, scaled), state

    result = vf.lint(step)(params, params, optimizer.init(params))
    assert result and str(result) == "step: 0 findings"


def test_a_function_that_a_loop_of_the_user_calls_is_unrolled() -> None:
    def twice(x):
        return 2.0 * x

    @vf.jit
    def power(x):
        for _ in range(80):
            x = twice(x)
        return x

    result = vf.lint(power)(vnp.ones(2))
    assert [finding.rule for finding in result.findings] == ["unrolled loop"] and str(result).startswith("power: 1 finding\n")
