"""Where the real data are that some tests read: ../shared/data beside the repository, or the folder that VOLTA_TEST_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("VOLTA_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def data_dir(name: str) -> Path:
    """The file or folder `name` of the real data; the test that asks for one that is absent is skipped."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs the data in {path}; VOLTA_TEST_DATA names another folder for them")
    return path
