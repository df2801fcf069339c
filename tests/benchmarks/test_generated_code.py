"""The comparison of generated code finds what has changed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.generated_code import compare

ROOT = Path(__file__).resolve().parents[2]


def test_machine_code_of_a_program_is_recorded(tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in files:
        command = [sys.executable, "-m", "benchmarks.generated_code", "cpu", str(path), "--only", "^bench/op/sum 2048"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1 programs, 1 texts\n"
    assert "define" in files[0].read_text()
    assert files[0].read_text() == files[1].read_text()


def test_kernels_of_nvidia_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    command = [sys.executable, "-m", "benchmarks.generated_code", "nvidia", str(path), "--only", "^bench/llm/bfloat16 product 512"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.startswith("1 programs, ")
    assert "wgmma.mma_async" in path.read_text()


@pytest.mark.parametrize(("after", "changed"), [("a\n\nb", 0), ("a\nc", 1)])
def test_blank_lines_do_not_count(after: str, changed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare({"one": ["a\nb"], "gone": []}, {"one": [after]}) == changed
    assert capsys.readouterr().out.startswith(f"1 programs in both, {changed} with other code; 1 in one of them only\n")
