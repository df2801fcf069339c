"""The form of shaders' texts: what writes it (`scalars.Shader`), and what makes other shaders of it (`rewriting`), find it here.

Declarations come first, each buffer's on a line of its own. The entry point comes last, on one line, and its body ends with the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The entry point, which `entry` writes: the size of a workgroup, and parameters; and each of these: what it holds, its name, and its type.
ENTRY = re.compile(r"^@compute @workgroup_size\((\d+)\) fn main\((.*)\) \{\n", re.MULTILINE)
BUILTIN = re.compile(r"@builtin\((\w+)\) (\w+): ([\w<>]+)")

#: A buffer, which `bound` writes: its number, ``read`` or ``read_write``, its name, and the type of its elements.
BOUND = re.compile(r"^@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> (\w+): array<(.+)>;\n", re.MULTILINE)

#: The number of a workgroup along x, where a shader computes its own from it.
GROUP = "let group = _workgroup_id.x"


def bound(number: int, access: str, name: str, element: str) -> str:
    """The line that declares the buffer of a number as an array."""
    return f"@group(0) @binding({number}) var<storage, {access}> {name}: array<{element}>;\n"


def entry(invocations: int, builtins: Mapping[str, str]) -> str:
    """The line with which the entry point begins. Built-in values are given with their types, and are named after themselves, with a _."""
    parameters = ", ".join(f"@builtin({name}) _{name}: {type_}" for name, type_ in builtins.items())
    return f"@compute @workgroup_size({invocations}) fn main({parameters}) {{\n"
