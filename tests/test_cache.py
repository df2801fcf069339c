"""The command that shows, verifies and clears the cache on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import volta_fn as vf
from volta_fn import cache
from volta_fn.runtime import caches

NAMES = ["ab" + "0" * 62, "ab" + "1" * 62, "cd" + "2" * 62]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three entries."""
    monkeypatch.setattr(cache, "cache_dir", lambda: tmp_path)
    for name in NAMES:
        caches.write(tmp_path, name, name.encode() * 10)
    return tmp_path


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["volta_fn.cache", *words])
    cache.main()
    return capsys.readouterr().out


def test_it_shows(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*/*"))
    assert f"{folder}: 3 entries, {size:,} of 1,073,741,824 bytes" in command(monkeypatch, capsys)


def test_it_verifies(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad = caches.path_of(folder, NAMES[1])
    bad.write_bytes(caches.path_of(folder, NAMES[0]).read_bytes())  # another's contents
    printed = command(monkeypatch, capsys, "verify")
    assert f"deleted {bad}\n" in printed
    assert "2 entries" in printed
    assert cache.verify() == []


def test_it_clears(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 entries, 0 of" in command(monkeypatch, capsys, "clear")
    assert not list(folder.glob("*/*"))


def test_without_a_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cache, "cache_dir", lambda: None)
    assert "no folder: 0 entries" in command(monkeypatch, capsys, "verify")


def test_a_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_CACHE_BYTES", "10 GB")
    with pytest.raises(vf.errors.ArgumentError, match="VOLTA_CACHE_BYTES"):
        cache.show()
