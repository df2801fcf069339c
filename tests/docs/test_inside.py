"""The examples of the page about seeing inside run, and give what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "inside.md").read_text()
PROGRAM = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))


def test_the_examples_run(capsys: Any, tmp_path: Path) -> None:
    program = PROGRAM.replace("/tmp/step.html", str(tmp_path / "step.html"))
    exec(compile(program, "inside.md", "exec"), {"__name__": "inside"})
    printed = capsys.readouterr().out
    assert (tmp_path / "step.html").stat().st_size < 1 << 20
    message = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert message is not None
    for text in message[1].split("…")[0].splitlines()[:2]:
        assert text in printed
    assert "it became infinite in div at inside.md" in printed
    assert "0 differ" in printed and "key reuse" in printed and "train 9" in printed
