"""The examples of the pages on files and on ONNX run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["export.md", "onnx.md"])
def test_the_examples_run(page: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert programs
    for program in programs:
        exec(compile(program, page, "exec"), {})
