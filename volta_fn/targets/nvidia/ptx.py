"""PTX without what the driver's compiler gets wrong.

Two faults of it are known. Both change results without a message, so every text that LLVM writes is rewritten where it has what they need.
The comments say how each was seen; `tests/targets/nvidia/test_ptx.py` has the smallest texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

#: An instruction as LLVM writes it: its name, the registers that it sets, and its operands.
_INSTRUCTION = re.compile(r"^\t(?:@\S+ )?([a-z][\w.:]*) \s*(\{[^}]*\}|\([^)]*\)|[^,;]*), (.*);$", re.MULTILINE)
_REGISTER = re.compile(r"%\w+")
#: A minimum or maximum of signed numbers of 32 bits.
_SIGNED_EXTREMUM = re.compile(r"^\t(min|max)\.s32 \t(\S+), (\S+), (\S+);$", re.MULTILINE)
#: A comparison of an integer with zero.
_ZERO_COMPARISON = re.compile(r"^\tsetp\.(eq|ne)\.[bsu](?:16|32|64) \t(%\w+), (%\w+), 0;$", re.MULTILINE)


def corrected(ptx: str) -> str:
    """Return PTX, as LLVM writes it, in words that are translated rightly."""
    return _SIGNED_EXTREMUM.sub(_as_selection, _with_disjunctions(ptx))


def _as_selection(extremum: re.Match[str]) -> str:
    """Return a minimum or maximum as a comparison and a selection.

    The driver's compiler for Hopper takes the least of three negated numbers for another one. Shaders select for that reason
    (`wgsl/scalars/operations.py`), but LLVM makes minima of selections.
    """
    name, result, x, y = extremum.groups()
    comparison = {"min": "lt", "max": "gt"}[name]
    return f"\t{{ .reg .pred %first; setp.{comparison}.s32 %first, {x}, {y}; selp.b32 {result}, {x}, {y}, %first; }}"


def _with_disjunctions(ptx: str) -> str:
    """Compare a bitwise or of ones and zeros with zero by their predicates.

    The driver's compiler, ptxas 13.0, does so itself, but where both numbers are used besides and a further predicate is combined with the
    comparison, it forgets that it has negated the predicates: `(a | b) and c` becomes `not (a and b) and c`.
    """
    if "setp" not in ptx or "or.b" not in ptx:
        return ptx
    definitions, counts = {}, Counter[str]()
    for name, result, operands in _INSTRUCTION.findall(ptx):
        definitions[result] = name, operands.split(", ")
        counts.update(_REGISTER.findall(result))
    # A register that is set in several places is a loop's variable, or of several paths: what it holds is not in the text.
    values = {register: value for register, value in definitions.items() if counts[register] == 1}

    def rewritten(comparison: re.Match[str]) -> str:
        name, result, number = comparison.groups()
        predicates = _predicates(number, values)
        if predicates is None or len(predicates) == 1:
            return comparison[0]
        first, second, *others = predicates
        lines = [f"\tor.pred \t{result}, {first}, {second};"] + [f"\tor.pred \t{result}, {result}, {other};" for other in others]
        return "\n".join(lines + [f"\tnot.pred \t{result}, {result};"] * (name == "eq"))

    return _ZERO_COMPARISON.sub(rewritten, ptx)


def _predicates(register: str, values: Mapping[str, tuple[str, list[str]]]) -> list[str] | None:
    """Return the predicates of which one holds if a number is not zero.

    None if it is no bitwise or of ones and zeros.
    """
    name, operands = values.get(register, ("", []))
    if name.startswith("selp.b") and operands[:2] == ["1", "0"]:
        return [operands[2]]
    if not name.startswith("or.b"):
        return None
    predicates = [_predicates(operand, values) for operand in operands]
    return [p for each in predicates if each is not None for p in each] if None not in predicates else None
