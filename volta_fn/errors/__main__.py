"""The index of errors in a terminal.

`python -m volta_fn.errors ShapeError` prints cause, example and remedy; without a name, it prints a line for each error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from volta_fn.advice import correction
from volta_fn.signals import run

INDEX = Path(__file__).with_name("index.md")


def sections(text: str) -> dict[str, str]:
    """Return the entries of the index by name."""
    entries = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: body.strip() for name, body in entries}


def readable(entry: str) -> str:
    """Return an entry for a terminal, with indented examples and without links."""
    entry = re.sub(r"\[([^\]\n]+)\]\([^)\n]+\)", r"\1", entry)
    cell = re.compile(r"```[^\n]*\n(?::tags:[^\n]*\n)?(.*?)\n```", re.DOTALL)
    return cell.sub(lambda match: "\n".join(f"    {row}".rstrip() for row in match[1].splitlines()), entry)


def main(names: Sequence[str]) -> int:
    """Print the entries of some errors, or a line for each error.

    Returns the exit status, which is 2 for an unknown name.
    """
    entries = sections(INDEX.read_text(encoding="utf-8"))
    if not names:
        for name, entry in entries.items():
            print(f"{name}: {readable(entry).partition('. ')[0].splitlines()[0].removesuffix('.')}")
    for name in names:
        if name not in entries:
            message = f"the index of errors has no {name!r}"
            print(correction(message, name, entries, "python -m volta_fn.errors lists all"), file=sys.stderr)
            return 2
        print(f"{name}\n\n{readable(entries[name])}")
    return 0


if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
