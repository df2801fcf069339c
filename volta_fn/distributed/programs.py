"""Comparison of what processes compile, equation by equation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from volta_fn.core.jaxpr import ClosedJaxpr

#: Where an object is in memory, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

#: A row with the results of an equation.
_EQUATION = re.compile(r"^\s*[a-z]+:\S+.* = ")


def text_of(closed: ClosedJaxpr, *, sources: bool = False) -> str:
    """Return a program's text, which is the same in all processes."""
    return _ADDRESS.sub("", closed.jaxpr.pretty_print(source_info=sources))


def digest(text: str) -> bytes:
    """Return a hash of a program's text."""
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def first_difference(texts: Sequence[str]) -> str:
    """Describe the first equation in which the programs of processes differ."""
    rows = [text.splitlines() for text in texts]
    for number in range(max(map(len, rows))):
        found = [program[number].strip() if number < len(program) else "nothing, it has ended" for program in rows]
        compared = [row.partition("  # ")[0] for row in found]
        if len({*compared}) > 1:
            first = next(i for i, row in enumerate(compared) if row != compared[0])
            equation = len([row for row in rows[0][: number + 1] if _EQUATION.match(row)])
            where = f"equation {equation} differs" if equation else "the inputs differ"
            return f"{where}:\n  process 0: {found[0]}\n  process {first}: {found[first]}"
    return "only constants differ"
