"""Machine code on disk: what is read is what was written, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from volta_fn.runtime import caches
from volta_fn.targets.cpu.runtime import artifact

pytest.importorskip("llvmlite")


ENTRY = artifact.Compiled(
    b"code\x00with\nlines",
    (
        artifact.CompiledLaunch("first", 3, 1.5, restores=False, is_copy=False, polls=False),
        artifact.CompiledLaunch("second", 1, 0.0, restores=True, is_copy=True, polls=True),
    ),
    128,
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "cache_dir", lambda: tmp_path / "cache")


def entry_file(tmp_path: Path, name: str) -> Path:
    return caches.path_of(tmp_path / "cache", name)


def test_an_entry_comes_back() -> None:
    name = artifact.name_of("a routine")
    assert artifact.read_compiled(name) is None
    artifact.write_compiled(name, ENTRY)
    assert artifact.read_compiled(name) == ENTRY


def test_names_differ_by_routine() -> None:
    assert artifact.name_of("one") != artifact.name_of("two")
    assert artifact.name_of("one") == artifact.name_of("one")


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:40], lambda d: b"", lambda d: d[:-3] + b"xyz", lambda d: b"other" + d])
def test_a_damaged_entry_is_deleted(tmp_path: Path, damage: object) -> None:
    name = artifact.name_of("a routine")
    artifact.write_compiled(name, ENTRY)
    path = entry_file(tmp_path, name)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]  # a function of bytes
    assert artifact.read_compiled(name) is None
    assert not path.exists()


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the folder's place")
    name = artifact.name_of("a routine")
    artifact.write_compiled(name, ENTRY)
    assert artifact.read_compiled(name) is None
