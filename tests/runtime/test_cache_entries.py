"""Entries of the cache on disk: sealed, private, and bounded in number."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from volta_fn.runtime import caches

NAMES = [f"{number:02x}" + "0" * 62 for number in range(20)]


def test_an_entry_under_another_name_is_not_used(tmp_path: Path) -> None:
    for name in NAMES[:2]:
        caches.write(tmp_path, name, name.encode())
    first, second = (caches.path_of(tmp_path, name) for name in NAMES[:2])
    second.write_bytes(first.read_bytes())
    assert caches.read(tmp_path, NAMES[0]) == NAMES[0].encode()
    assert caches.read(tmp_path, NAMES[1]) is None
    assert not second.exists()


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
@pytest.mark.parametrize("mode", [0o602, 0o666])
def test_an_entry_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    caches.write(tmp_path, NAMES[0], b"code")
    path = caches.path_of(tmp_path, NAMES[0])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(mode)
    assert caches.read(tmp_path, NAMES[0]) is None


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_links_and_folders_are_not_used(tmp_path: Path) -> None:
    caches.write(tmp_path, NAMES[0], b"code")
    path = caches.path_of(tmp_path, NAMES[0])
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert caches.read(tmp_path, NAMES[0]) is None
    path.mkdir()
    assert caches.read(tmp_path, NAMES[0]) is None
    caches.write(tmp_path, NAMES[0], b"code")  # in vain
    assert not [entry for entry in caches.entries(tmp_path) if caches.is_temporary(entry)]


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    now = time.time()
    for number, name in enumerate(NAMES):
        caches.write(tmp_path, name, bytes(1000))
        os.utime(caches.path_of(tmp_path, name), (now, now - 100_000 * (number + 1)))
    assert caches.read(tmp_path, NAMES[-1]) == bytes(1000)  # used just now
    size = next(caches.entries(tmp_path)).size
    caches.evict(tmp_path, 12 * size)
    left = {entry.path.name for entry in caches.entries(tmp_path)}
    assert left == {*NAMES[:8], NAMES[-1]}  # three quarters of the limit
    caches.evict(tmp_path, 12 * size)
    assert len(list(caches.entries(tmp_path))) == 9


def test_writing_evicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_CACHE_BYTES", "5000")
    monkeypatch.setattr(caches, "_EVICTION_INTERVAL_S", 0)
    for name in NAMES:
        caches.write(tmp_path, name, bytes(1000))
        assert sum(entry.size for entry in caches.entries(tmp_path)) <= 5000


def test_what_interrupted_writers_left_goes(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    old, new = tmp_path / "ab" / ".tmp-old", tmp_path / "ab" / ".tmp-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    caches.evict(tmp_path, 1 << 30)
    assert (old.exists(), new.exists()) == (False, True)


def test_entries_of_earlier_versions_and_no_others_are_evicted(tmp_path: Path) -> None:
    old, other = tmp_path / "ab" / "ab00", tmp_path / "data" / "ab00"
    for path in (old, other):
        path.parent.mkdir()
        path.write_bytes(bytes(1000))
    caches.write(tmp_path, NAMES[0], b"code")
    caches.evict(tmp_path, 0)
    assert (old.exists(), other.exists(), list(caches.entries(tmp_path))) == (False, True, [])
