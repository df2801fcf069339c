"""The blocks of the guide on other libraries, those whose library is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "other_libraries.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```{code-block} python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
(SETUP, *_) = re.findall(r"^```{code-cell} python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
#: The libraries that a block imports.
LIBRARIES = [re.findall(r"^import (\w+)", block, re.MULTILINE) for block in BLOCKS]


def test_every_block_is_about_a_library() -> None:
    assert {"polars", "pyarrow", "datasets", "webdataset", "tensorflow", "hydra", "einops"} <= {
        name for names in LIBRARIES for name in names
    }


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=["-".join(names) for names in LIBRARIES])
def test_the_block_runs(number: int, tmp_path: Path) -> None:
    for name in LIBRARIES[number]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    code = f"{SETUP}\n{BLOCKS[number]}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
