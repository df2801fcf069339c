"""Texts that the driver's compiler gets wrong are rewritten; what they mean is not changed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import pytest

from volta_fn.targets.nvidia.compilation import compile_ptx
from volta_fn.targets.nvidia.ptx import corrected

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


def test_disjunctions_of_ones_and_zeros_are_those_of_predicates() -> None:
    """The driver's compiler makes `not (a and b)` of `a | b` where the numbers are used besides, and a further predicate with their or."""
    ptx = compile_ptx(ANY, HOPPER).decode()
    assert len(re.findall(r"\bor\.pred", ptx)) == 1
    assert len(re.findall(r"\bsetp\.ne\.b32", ptx)) == 3


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
            values[result] = {"or": operands[0] | operands[-1], "and": operands[0] & operands[-1], "mov": operands[0]}[kind]
    return values


def instructions(*lines: str) -> str:
    return "".join([f"\t{line.replace(' ', ' ' + chr(9), 1)};\n" for line in lines])


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("comparison", ["eq", "ne"])
def test_rewritten_comparisons_mean_the_same(bits: int, comparison: str) -> None:
    text = instructions(
        *[f"selp.b{bits} %r{i}, 1, 0, %p{i}" for i in range(4)],
        f"or.b{bits} %r5, %r0, %r1",
        f"or.b{bits} %r6, %r5, %r2",
        f"or.b{bits} %r7, %r6, %r3",
        f"setp.{comparison}.b{bits} %p5, %r5, 0",
        f"setp.{comparison}.b{bits} %p7, %r7, 0",
        f"setp.{comparison}.b{bits} %p8, %r3, 0",
    )
    rewritten = corrected(text)
    assert rewritten.count("setp") == 1  # of a single condition
    assert rewritten.count("or.pred") == 4
    for predicates in itertools.product((0, 1), repeat=4):
        registers = {f"%p{i}": p for i, p in enumerate(predicates)}
        assert evaluated(rewritten, registers) == evaluated(text, registers)


@pytest.mark.parametrize(
    "lines",
    [
        ("selp.b32 %r1, 1, 0, %p1", "or.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 0"),
        ("selp.b32 %r1, 1, 0, %p1", "selp.b32 %r2, 2, 0, %p2", "or.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 0"),
        ("selp.b32 %r1, 1, 0, %p1", "selp.b32 %r2, 1, 0, %p2", "or.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 1"),
        ("selp.b32 %r1, 1, 0, %p1", "selp.b32 %r2, 1, 0, %p2", "and.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 0"),
        ("mov.b32 %r1, 2", "selp.b32 %r1, 1, 0, %p1", "selp.b32 %r2, 1, 0, %p2", "or.b32 %r3, %r1, %r2", "setp.ne.b32 %p3, %r3, 0"),
        (
            "ld.v2.b32 {%r1, %r4}, [%rd1]",
            "selp.b32 %r1, 1, 0, %p1",
            "selp.b32 %r2, 1, 0, %p2",
            "or.b32 %r3, %r1, %r2",
            "setp.ne.b32 %p3, %r3, 0",
        ),
    ],
    ids=["a number", "a two", "compared with one", "and", "a variable", "a variable that is loaded"],
)
def test_others_stay_as_they_are(lines: tuple[str, ...]) -> None:
    text = instructions(*lines)
    assert corrected(text) == text
