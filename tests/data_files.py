"""The real data that some tests read: ../shared/data, or VOLTA_TEST_DATA's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("VOLTA_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def data_dir(name: str) -> Path:
    """Return the file or folder of real data, or skip the test if it is absent."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs the data in {path}; VOLTA_TEST_DATA names another folder for them")
    return path
