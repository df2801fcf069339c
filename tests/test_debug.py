"""debug.print: formats values when the program runs, and checks the format when it is traced."""

from __future__ import annotations

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.errors import ArgumentError


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: vf.Array) -> vf.Array:
        vf.debug.print("x = {}, twice {y:.2f} {{}}", x, y=x * 2)
        return x * x

    for transform, expected in (
        (f, "x = 1.5, twice 3.00 {}\n"),
        (vf.jit(f), "x = 1.5, twice 3.00 {}\n"),
        (vf.jit(vf.grad(f)), "x = 1.5, twice 3.00 {}\n"),
    ):
        transform(1.5)
        assert capsys.readouterr().out == expected
    vf.vmap(f)(jnp.array([1.0, 2.0]))
    assert capsys.readouterr().out == "x = 1.0, twice 2.00 {}\nx = 2.0, twice 4.00 {}\n"
    vf.jit(lambda x: vf.debug.print("{}", x))(jnp.arange(3))
    assert capsys.readouterr().out == "[0 1 2]\n"


@pytest.mark.parametrize("fmt", ["{} {}", "{name}", "{1}"])
def test_formats_are_checked_while_tracing(fmt: str) -> None:
    with pytest.raises(ArgumentError, match="names an argument that is not given"):
        vf.make_jaxpr(lambda x: vf.debug.print(fmt, x))(1.0)
