"""Split WGSL into tokens: as much of a lexer as the transformations need."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

#: Identifiers and keywords, numbers (with their suffixes), white space, and single characters of anything else.
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


@functools.lru_cache(maxsize=4096)
def tokenize(text: str) -> tuple[str, ...]:
    """Split WGSL into tokens, whose concatenation is the text."""
    return tuple(_TOKEN.findall(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Rename identifiers, except members of structures and vectors (``x.name``)."""
    found, before = [], ""
    for token in tokenize(text):
        found.append(names.get(token, token) if before != "." else token)
        before = token
    return "".join(found)


def closing(tokens: Sequence[str], start: int, depth: int = 0) -> int:
    """Return the position of the bracket that closes the one at `start`.

    With `depth`, so many brackets are open before `start`, and the outermost one counts.
    """
    for position in range(start, len(tokens)):
        depth += (tokens[position] in _OPENING) - (tokens[position] in _CLOSING)
        if not depth:
            return position
    raise ValueError(f"a bracket is not closed: {''.join(tokens[start : start + 40])}")


def accesses(tokens: Sequence[str], position: int) -> bool:
    """Return whether the name at a position is indexed, or its address taken.

    That is not so for a local variable of a buffer's name.
    """
    before, after = tokens[max(position - 1, 0)], tokens[min(position + 1, len(tokens) - 1)]
    return before == "&" or after == "["


def skip_space(tokens: Sequence[str], position: int) -> int:
    """Return the position of the next token that is no white space."""
    while position < len(tokens) and tokens[position].isspace():
        position += 1
    return position


def _module_scope(text: str) -> list[str]:
    """Return the tokens outside of all braces, without white space."""
    found, depth = [], 0
    for token in tokenize(text):
        depth += (token == "{") - (token == "}")
        if not depth and not token.isspace():
            found.append(token)
    return found


def declared_names(text: str) -> list[str]:
    """Return the functions, constants and variables declared at module scope."""
    tokens, found = _module_scope(text), []
    for position, token in enumerate(tokens):
        if token in ("fn", "const"):
            found.append(tokens[position + 1])
        elif token == "var":
            following = position + 1
            if tokens[following] == "<":
                following = tokens.index(">", following) + 1
            found.append(tokens[following])
    return found


def declares_types(text: str) -> bool:
    """Return whether WGSL declares structures or aliases."""
    return not {"struct", "alias"}.isdisjoint(_module_scope(text))
