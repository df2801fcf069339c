"""PTX without what the driver's compiler gets wrong.

Two faults of it are known. Both change results without a message, so every text that LLVM writes is rewritten where it has what they need.
"""

from __future__ import annotations

import re
from collections import Counter

#: An instruction as LLVM writes it: its name, the registers that it sets, and its operands.
_INSTRUCTION = re.compile(r"^\t(?:@\S+ )?([a-z][\w.:]*) \s*(\{[^}]*\}|\([^)]*\)|[^,;]*), (.*);$", re.MULTILINE)
_REGISTER = re.compile(r"%\w+")


def corrected(ptx: str) -> str:
    """Return PTX, as LLVM writes it, in words that are translated rightly."""
    return _SIGNED_EXTREMUM.sub(_as_selection, _with_conditions(ptx))


# The least of three negated numbers.

#: A minimum or maximum of signed numbers of 32 bits.
_SIGNED_EXTREMUM = re.compile(r"^\t(min|max)\.s32 \t(\S+), (\S+), (\S+);$", re.MULTILINE)


def _as_selection(extremum: re.Match[str]) -> str:
    """Return a minimum or maximum as a comparison and a selection.

    The driver's compiler for Hopper takes the least of three negated numbers for another one. Shaders select for that reason
    (`wgsl/scalars/operations.py`), but LLVM makes minima of selections.
    """
    name, result, x, y = extremum.groups()
    comparison = {"min": "lt", "max": "gt"}[name]
    return f"\t{{ .reg .pred %first; setp.{comparison}.s32 %first, {x}, {y}; selp.b32 {result}, {x}, {y}, %first; }}"


# Bitwise operations on ones and zeros.
#
# The compiler (ptxas 13.0) computes `a | b` of numbers that are selected by predicates from these. Where the numbers are used besides, and
# the result in further logic, it forgets that it has negated the predicates: `(a | b) != 0 and c` becomes `not (a and b) and c`. So that is
# done here: all logic is that of predicates, by which each number is selected anew. Of 2,200 random texts that are written so it translates
# one wrongly, `a and (a or b)`, which LLVM never writes.

_BITWISE = re.compile(r"^(or|and|xor)\.b(16|32|64)$")
#: A comparison of a number with zero.
_WITH_ZERO = re.compile(r"^setp\.(eq|ne)\.[bsu](?:16|32|64)$")
_PREDICATE_REGISTERS = re.compile(r"^\t\.reg \.pred .*$", re.MULTILINE)


def _with_conditions(ptx: str) -> str:
    """Compute with predicates instead of the numbers 1 and 0."""
    if not any(f"\t{name}.b" in ptx for name in ("or", "and", "xor")) or "\tselp.b" not in ptx:
        return ptx
    definitions: dict[str, tuple[str, list[str]]] = {}
    counts = Counter[str]()
    for name, result, operands in _INSTRUCTION.findall(ptx):
        definitions[result] = name, operands.split(", ")
        counts.update(_REGISTER.findall(result))
    #: The predicate of each number that is 1 where it holds, else 0; None: there is none. A register that is set in several places is a
    #: variable of a loop, or of several paths.
    predicates: dict[str, str | None] = {register: None for register, count in counts.items() if count > 1}
    combined = 0

    def predicate(register: str) -> str | None:
        nonlocal combined
        if register not in predicates:
            name, operands = definitions.get(register, ("", []))
            predicates[register] = None
            if name.startswith("selp.b") and operands[:2] == ["1", "0"] and counts[operands[2]] == 1:
                predicates[register] = operands[2]
            elif _BITWISE.match(name) and None not in [predicate(operand) for operand in operands]:
                predicates[register] = f"%holds{combined}"
                combined += 1
        return predicates[register]

    def rewritten(instruction: re.Match[str]) -> str:
        name, result, operands = instruction[1], instruction[2], instruction[3].split(", ")
        bitwise, comparison = _BITWISE.match(name), _WITH_ZERO.match(name)
        if bitwise and predicate(result):
            x, y = [predicate(operand) for operand in operands]
            operation, bits = bitwise.groups()
            return f"\t{operation}.pred \t{predicate(result)}, {x}, {y};\n\tselp.b{bits} \t{result}, 1, 0, {predicate(result)};"
        if comparison and operands[1] == "0" and predicate(operands[0]):
            return f"\t{'mov' if comparison[1] == 'ne' else 'not'}.pred \t{result}, {predicate(operands[0])};"
        return instruction[0]

    result = _INSTRUCTION.sub(rewritten, ptx)
    return _PREDICATE_REGISTERS.sub(rf"\g<0>\n\t.reg .pred %holds<{combined}>;", result) if combined else result
