"""Index arithmetic: what is known is folded, and every printer computes what Python does."""

from __future__ import annotations

import re

import pytest

from volta_fn.codegen.scalars import IndexArithmetic
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.llvm.text import Function as LlvmFunction
from volta_fn.runtime.llvm.text import Module, Value, i64
from volta_fn.targets.wgsl.shader import TEXT
from volta_fn.targets.wgsl.shader import Function as WgslFunction
from volta_fn.targets.wgsl.shader import Module as WgslModule


class Interpreter(IndexArithmetic[tuple[bool, int]]):
    """Index arithmetic on numbers, of which some are constants."""

    def __init__(self) -> None:
        self.printed = 0

    def index(self, number: int) -> tuple[bool, int]:
        return True, number

    def known(self, x: tuple[bool, int]) -> int | None:
        return x[1] if x[0] else None

    def print_index(self, operator: str, x: tuple[bool, int], y: tuple[bool, int]) -> tuple[bool, int]:
        self.printed += 1
        a, b = x[1], y[1]
        return False, {"+": a + b, "-": a - b, "*": a * b, "/": a // (b or 1), "%": a % (b or 1)}[operator]


def test_constants_cost_nothing() -> None:
    f = Interpreter()
    two, three = f.index(2), f.index(3)
    assert f.plus(two, three) == (True, 5)
    assert f.minus(two, three) == (True, -1)
    assert f.times(three, 4) == (True, 12)
    assert f.divided(f.index(17), 5) == ((True, 3), (True, 2))
    assert f.dotted([two, three], [10, 1]) == (True, 23)
    assert f.coordinates(f.index(17), [2, 3, 4]) == [(True, 1), (True, 1), (True, 1)]
    assert f.printed == 0


def test_neutral_operations_are_left_out() -> None:
    f, x = Interpreter(), (False, 7)
    for same in (f.plus(x, f.index(0)), f.plus(f.index(0), x), f.minus(x, f.index(0)), f.times(x, 1), f.quotient(x, 1)):
        assert same is x
    assert f.times(x, 0) == f.remainder(x, 1) == (True, 0)
    assert f.printed == 0


@pytest.mark.parametrize("number", [0, 5, 23])
def test_coordinates_are_those_of_the_row_major_number(number: int) -> None:
    f, sizes = Interpreter(), [2, 3, 4]
    results = [value for _, value in f.coordinates((False, number), sizes)]
    assert results == [number // 12, number // 4 % 3, number % 4]
    assert f.dotted([(False, value) for value in results], [12, 4, 1])[1] == number


def test_terms_are_emitted_in_their_order() -> None:
    f = LlvmFunction(Module(), "f", [Value("i64", "%x"), Value("i64", "%y")])
    f.dotted(f.parameters, [3, 5])
    f.finish()
    assert re.findall(r"= (\w+)", str(f.module)) == ["mul", "mul", "add"]
    assert f.known(i64(4)) == 4
    assert f.known(f.parameters[0]) is None


def test_shaders_have_flat_sums() -> None:
    assert TEXT.plus("a", "0u", TEXT.times("b", 3), "c") == "(a + (b * 3u) + c)"
    f = WgslFunction(WgslModule(TargetCapabilities()))
    assert f.coordinates("n", [2, 3]) == ["v1", "v2"]
    assert [line.strip() for line in f.statements] == ["let v1: u32 = (n / 3u);", "let v2: u32 = (n % 3u);"]
