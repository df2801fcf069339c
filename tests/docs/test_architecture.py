"""The page about the architecture is true: its example gives what stands there, its files exist, and its words are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROGRAM = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
SIMPLIFIED, *PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
FILES = set(re.findall(r"[`\s]([\w/]+(?:\.(?:py|json|md)|/))(?=[`\s])", PAGE))


def test_the_example_gives_what_it_says(capsys: Any) -> None:
    names: dict[str, Any] = {"__name__": "architecture"}
    exec(compile(PROGRAM, "architecture.md", "exec"), names)
    assert capsys.readouterr().out == "".join(PRINTED)
    assert f"{names['lowered'].simplified}\n" == SIMPLIFIED


def test_files_exist() -> None:
    """A path may leave out the folders around it."""
    paths = {f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in ROOT.glob("[a-z]*/**/*")}
    missing = {file for file in FILES if not any(path.endswith(f"/{file}") for path in paths)}
    assert len(FILES) > 30
    assert not missing
