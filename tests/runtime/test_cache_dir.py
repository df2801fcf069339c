"""The cache folder: the one that is asked for, if no other user can have written there."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from volta_fn.runtime import caches as module

pytestmark = pytest.mark.skipif(os.name != "posix", reason="users and modes are those of POSIX")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that VOLTA_CACHE_DIR names, in one of this user's."""
    tmp_path.chmod(0o700)
    result = tmp_path / "above" / "cache"
    monkeypatch.setenv("VOLTA_CACHE_DIR", str(result))
    return result


def cache_folder() -> Path | None:
    return module.cache_dir.__wrapped__()


def test_a_new_folder_is_this_users_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert cache_folder() == folder.resolve()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o722, 0o702], ids=oct)
def test_a_folder_that_others_write_to_is_not_used(folder: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "volta_fn"):
        assert cache_folder() is None
    assert "users other than" in caplog.text


def test_nor_one_in_a_folder_in_which_others_can_replace_it(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o777)
    assert cache_folder() is None
    folder.parent.chmod(0o1777)  # as /tmp, where only owners replace what is theirs
    assert cache_folder() == folder.resolve()


def test_nor_that_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True, mode=0o700)
    status = os.stat(folder)
    theirs = os.stat_result((status.st_mode, status.st_ino, status.st_dev, 1, 65534, 65534, 0, 0, 0, 0))
    assert "belongs to user 65534" in (module.fault_of(theirs, folder) or "")
    if os.geteuid():
        monkeypatch.setattr(module, "user", lambda: os.getuid() + 1)
    else:
        os.chown(folder, 65534, 65534)
    assert cache_folder() is None
    assert "belongs to user" in caplog.text


def test_a_link_is_followed_once(folder: Path, tmp_path: Path) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    folder.parent.mkdir(mode=0o700)
    for directory in (real, other):
        directory.mkdir(mode=0o700)
    folder.symlink_to(real)
    used = cache_folder()
    folder.unlink()
    folder.symlink_to(other)
    assert used == real.resolve()
    other.chmod(0o777)
    assert cache_folder() is None


def test_without_a_home_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("VOLTA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
    assert "no home folder" in caplog.text


def test_a_folder_that_cannot_be_made_is_not_used(folder: Path) -> None:
    folder.parent.write_text("a file")
    assert cache_folder() is None
