"""Processes share memory of GPUs in these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for it, as users do."""
    monkeypatch.setenv("VOLTA_PEER_MEMORY", "1")
