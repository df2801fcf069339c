"""Texts that the driver's compiler gets wrong are rewritten; what they mean is not changed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import pytest

from volta_fn.targets.nvidia.compilation import compile_ptx, corrected

HOPPER = "sm_90a+ptx83"

LEAST = """
declare i32 @llvm.smin.i32(i32, i32)
declare i32 @llvm.smax.i32(i32, i32)
define ptx_kernel void @main(ptr addrspace(1) %memory) {
  %vector = load <3 x i32>, ptr addrspace(1) %memory, align 16
  %negated = sub <3 x i32> zeroinitializer, %vector
  %a = extractelement <3 x i32> %negated, i32 0
  %b = extractelement <3 x i32> %negated, i32 1
  %c = extractelement <3 x i32> %negated, i32 2
  %less = icmp slt i32 %a, %b
  %least = select i1 %less, i32 %a, i32 %b
  %one = call i32 @llvm.smin.i32(i32 %least, i32 %c)
  %two = call i32 @llvm.smax.i32(i32 %one, i32 7)
  store i32 %two, ptr addrspace(1) %memory
  ret void
}
"""


def test_signed_extrema_are_selections() -> None:
    """The driver's compiler for Hopper forgets a minus sign in `min.s32` of three negated numbers."""
    ptx = compile_ptx(LEAST, HOPPER).decode()
    assert not re.search(r"\b(min|max)\.s32", ptx)
    assert re.findall(r"setp\.(?:lt|gt)\.s32 %first", ptx) == ["setp.lt.s32 %first"] * 2 + ["setp.gt.s32 %first"]


#: Two conditions that are stored as numbers, and whether one of them holds and a third one, as reductions of booleans have them.
ANY = """
define ptx_kernel void @main(ptr addrspace(1) %memory, ptr addrspace(1) %results) {
  %word = load i32, ptr addrspace(1) %memory
  %other = load i32, ptr addrspace(1) %results
  %low = and i32 %word, 255
  %first = icmp ne i32 %low, 0
  %high = and i32 %word, 65280
  %second = icmp ne i32 %high, 0
  %third = icmp ne i32 %other, 0
  %a = zext i1 %first to i32
  %b = zext i1 %second to i32
  store volatile i32 %a, ptr addrspace(1) %results
  store volatile i32 %b, ptr addrspace(1) %results
  %or = or i32 %a, %b
  %any = icmp ne i32 %or, 0
  %all = and i1 %any, %third
  %result = zext i1 %all to i32
  store volatile i32 %result, ptr addrspace(1) %results
  ret void
}
"""


def test_logic_of_ones_and_zeros_is_that_of_predicates() -> None:
    """The driver's compiler makes `not (a and b)` of `a | b` where the numbers are used besides, and a further predicate with their or."""
    ptx = compile_ptx(ANY, HOPPER).decode()
    assert re.findall(r"\b(?:and|or)\.pred", ptx) == ["or.pred", "and.pred"]
    assert len(re.findall(r"\bsetp\.ne\.b32", ptx)) == 3
    assert ".reg .pred %holds<1>;" in ptx and not re.search(r"\bor\.b32", ptx)


def evaluated(ptx: str, registers: Mapping[str, int]) -> dict[str, int]:
    """Run instructions one after another."""
    values = dict(registers)
    for name, result, rest in re.findall(r"^\t([\w.]+) \t(%\w+), (.*);$", ptx, re.MULTILINE):
        operands = [values[x] if x.startswith("%") else int(x) for x in rest.split(", ")]
        kind = name.split(".")[0]
        if kind == "selp":
            values[result] = operands[0] if operands[2] else operands[1]
        elif kind == "setp":
            values[result] = int((operands[0] == operands[1]) == (".eq" in name))
        elif kind == "not":
            values[result] = 1 - operands[0]
        else:
            x, y = operands[0], operands[-1]
            values[result] = {"or": x | y, "and": x & y, "xor": x ^ y, "mov": x}[kind]
    return values


def instructions(*lines: str) -> str:
    return "".join([f"\t{line.replace(' ', ' ' + chr(9), 1)};\n" for line in lines])


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("comparison", ["eq", "ne"])
def test_rewritten_logic_means_the_same(bits: int, comparison: str) -> None:
    text = instructions(
        *[f"setp.ne.b32 %p{i}, %i{i}, 0" for i in range(4)],
        *[f"selp.b{bits} %r{i}, 1, 0, %p{i}" for i in range(4)],
        f"or.b{bits} %r5, %r0, %r1",
        f"xor.b{bits} %r6, %r5, %r2",
        f"and.b{bits} %r7, %r6, %r3",
        f"or.b{bits} %r8, %r7, %i0",
        f"setp.{comparison}.b{bits} %p5, %r5, 0",
        f"setp.{comparison}.b{bits} %p7, %r7, 0",
        f"setp.{comparison}.b{bits} %p8, %r8, 0",
    )
    rewritten = corrected(text)
    assert re.findall(r"\w+\.pred", rewritten)[:3] == ["or.pred", "xor.pred", "and.pred"]
    assert len(re.findall(r"\b(?:or|xor|and)\.b\d\d", rewritten)) == 1  # of a number that is no condition
    for numbers in itertools.product((0, 1, 2), repeat=4):
        registers = {f"%i{i}": x for i, x in enumerate(numbers)}
        values = evaluated(rewritten, registers)
        assert evaluated(text, registers).items() <= values.items()


FIRST = "setp.ne.b32 %p1, %i0, 0", "selp.b32 %r1, 1, 0, %p1"


@pytest.mark.parametrize(
    "lines",
    [
        (*FIRST, "mov.b32 %r2, %i0"),
        (*FIRST, "selp.b32 %r2, 2, 0, %p2"),
        (*FIRST, "mov.b32 %r1, 2", "selp.b32 %r2, 1, 0, %p2"),
        (*FIRST, "ld.v2.b32 {%r1, %r4}, [%rd1]", "selp.b32 %r2, 1, 0, %p2"),
        (*FIRST, "setp.ne.b32 %p1, %i1, 0", "selp.b32 %r2, 1, 0, %p2"),
    ],
    ids=["a number", "a two", "a variable", "a variable that is loaded", "a predicate that is a variable"],
)
def test_others_stay_as_they_are(lines: tuple[str, ...]) -> None:
    """A register that is set in several places may hold something else where it is used."""
    text = instructions(*lines, "setp.ne.b32 %p2, %i2, 0", "or.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 0")
    assert corrected(text) == text
