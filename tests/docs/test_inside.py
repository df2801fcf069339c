"""The examples of the page about seeing inside run, and give what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "inside.md").read_text()
PROGRAM = "\n".join(re.findall(r"```\{code-cell\} python\n(.*?)```", PAGE, re.DOTALL))


def test_the_examples_give_what_the_page_says(capsys: Any) -> None:
    names: dict[str, Any] = {"__name__": "inside"}
    exec(compile(PROGRAM, "inside.md", "exec"), names)
    printed = capsys.readouterr().out
    assert names["explanation"].steps
    assert "invalid value (nan) encountered in mul in 3 of 3 elements of the result, first at index (0,)" in printed
    assert "in the backward pass: the line below is that of the forward computation whose gradient this is, or of a rule for it" in printed
    assert "it became infinite in div at inside.md" in printed
    assert "0 differ" in printed and "key reuse" in printed and "train 9" in printed
