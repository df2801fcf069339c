"""Messages that are kept in a file; `VOLTA_UPDATE_GOLDEN=1` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


class GoldenFile:
    """The messages of a file of the folder, by their titles."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / name

    def read(self) -> dict[str, str]:
        """Return the messages by their titles."""
        if not self.path.exists():
            return {}
        entries = self.path.read_text(encoding="utf-8").removeprefix("== ").rstrip("\n").split("\n== ")
        return dict(entry.split("\n", 1) for entry in entries)

    def compare(self, result: dict[str, str]) -> None:
        """Assert that messages are those of the file, or write them to it."""
        golden = self.read()
        if os.environ.get("VOLTA_UPDATE_GOLDEN", "0") != "0":
            golden |= result
            self.path.write_text("\n".join(f"== {title}\n{text}" for title, text in sorted(golden.items())) + "\n", encoding="utf-8")
        assert result == {title: golden.get(title) for title in result}


def shown(message: str) -> str:
    """Return a message without what depends on the machine: folders, lines, digits of numbers, and Python's version."""
    text = re.sub(r"\S*/(\w+\.py):\d+", r"\1", message.replace(".<locals>.<listcomp>", ""))
    return re.sub(r"from \S+ to [^,\n;]+", "from … to …", text)
