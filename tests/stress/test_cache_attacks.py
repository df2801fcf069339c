"""A cache that was tampered with: never foreign code, never wrong values."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.stress.amount import rounds
from tests.stress.processes import run
from volta_fn.core.caches import Interned
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir
from volta_fn.targets.cpu.runtime import artifact, compile
from volta_fn.targets.cpu.runtime import artifact as disk_cache
from volta_fn.targets.cpu.runtime.compile import CodeCache

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="users and modes are those of POSIX")

X = jnp.linspace(0.0, 1.0, 64)
#: Run two programs in a new process; print whether they are right, and how many were compiled.
PROGRAM = """
from volta_fn.targets.cpu.runtime import compile
built, build = [], compile.build
compile.build = lambda *args: built.append(1) or build(*args)
sine, tripled = vf.jit(jnp.sin)(x), vf.jit(lambda x: jnp.exp(x) * 7)(x)
right = np.allclose(sine, np.sin(np.asarray(x)), 1e-5) and np.allclose(tripled, np.exp(np.asarray(x)) * 7, 1e-5)
print(bool(right), len(built))
"""


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("?/*"))


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda cache: [path.write_bytes(change(path.read_bytes())) for path in files(cache)]


def swapped(cache: Path) -> None:
    result = files(cache)
    contents = [path.read_bytes() for path in result]
    for path, content in zip(result, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)


def for_another_cpu(cache: Path) -> None:
    """Seal entries again, for a CPU that this is not."""
    for path in files(cache):
        data = path.read_bytes()
        start = data.index(b"\n") + 1
        header, _, rest = data[start + 32 :].partition(b"\n")
        if header.startswith(b"["):
            body = json.dumps(["another 64", json.loads(header)[1]]).encode() + b"\n" + rest
            path.write_bytes(data[:start] + hashlib.sha256(path.name.encode() + b"\n" + body).digest() + body)


def linked(cache: Path) -> None:
    elsewhere = cache.with_name("elsewhere")
    shutil.copytree(cache, elsewhere)
    for path in files(cache):
        path.unlink()
        path.symlink_to(elsewhere / path.parent.name / path.name)


def owned_by_another(cache: Path) -> None:
    for path in [cache, *files(cache)]:
        os.chown(path, 65534, 65534)


def shared_with_a_group(cache: Path) -> None:
    for path in files(cache):
        os.chown(path, -1, 12345)
        path.chmod(0o660)


def modes(mode: int) -> Callable[[Path], object]:
    return lambda cache: [path.chmod(mode) for path in files(cache)]


ATTACKS: dict[str, Callable[[Path], object]] = {
    "writable by all": modes(0o666),
    "folder writable by all": lambda cache: cache.chmod(0o777),
    "links swapped": linked,
    "entries renamed": swapped,
    "bits flipped": damaged(lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]),
    "truncated": damaged(lambda data: data[: len(data) // 2]),
    "wrong CPU": for_another_cpu,
    "newer version": damaged(lambda data: data.replace(b"object 4", b"object 9", 1)),
    **({"other owner": owned_by_another, "group-writable": shared_with_a_group} if os.name == "posix" and not os.geteuid() else {}),
}


def outcome(cache: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int]:
    """Run both programs as a process does that has nothing but this cache.

    Returns whether they are right, and how many were compiled.
    """
    built: list[int] = []
    build = compile.build
    with monkeypatch.context() as patch:
        patch.setenv("VOLTA_CACHE_DIR", str(cache))
        patch.setattr(disk_cache, "cache_dir", cache_dir.__wrapped__)
        patch.setattr(compile, "CODE_CACHE", CodeCache())
        patch.setattr(compile, "build", lambda *args: built.append(1) or build(*args))  # type: ignore[func-returns-value]  # None
        artifact._recent.clear()
        patch.setattr(artifact, "_loaded", Interned())
        sine, tripled = vf.jit(lambda x: jnp.sin(x))(X), vf.jit(lambda x: jnp.exp(x) * 7)(X)  # anew in each call
    right = np.allclose(sine, np.sin(X), 1e-5) and np.allclose(tripled, np.exp(X) * 7, 1e-5)
    return right, len(built)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds both programs."""
    tmp_path.chmod(0o700)
    assert outcome(tmp_path / "cache", monkeypatch) == (True, 2)
    return tmp_path / "cache"


def test_an_untouched_cache_is_used(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(filled, monkeypatch) == (True, 0)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_costs_time_and_nothing_else(attack: str, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ATTACKS[attack](filled)
    assert outcome(filled, monkeypatch) == (True, 2)


def test_a_full_disk_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches.os, "replace", full)
    for _ in range(2):
        assert outcome(tmp_path / "cache", monkeypatch) == (True, 2)
    assert not files(tmp_path / "cache")


def test_a_read_only_folder_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    assert outcome(tmp_path / "file" / "cache", monkeypatch) == (True, 2)


def test_processes_race_and_are_killed_while_they_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    cache, count = tmp_path / "cache", rounds(2)
    killed = "import threading, os, signal\nthreading.Timer({}, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"

    def one(number: int) -> str:
        return run((killed.format(0.2 + 0.1 * number) if number % 2 else "") + PROGRAM, cache).stdout

    with ThreadPoolExecutor(2) as pool:
        printed = list(pool.map(one, range(2 * count)))
    assert all(line.startswith("True") for line in printed[::2]), printed
    assert run(PROGRAM, cache).stdout == "True 0\n"


def test_without_a_home_and_a_name_programs_are_compiled() -> None:
    result = run(
        """
import pwd
def nobody(uid):
    raise KeyError(uid)
pwd.getpwuid = nobody
"""
        + PROGRAM,
        HOME=None,
        XDG_CACHE_HOME=None,
        VOLTA_CACHE_DIR=None,
    )
    assert result.stdout == "True 2\n", result.stderr
    assert result.stderr.count("no home folder") == 1


def test_an_edit_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    """As of packages that are built with all times set to zero."""
    package, cache, edited = tmp_path / "sources" / "volta_fn", tmp_path / "cache", 0
    shutil.copytree(Path(vf.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {**os.environ, "VOLTA_CACHE_DIR": str(cache), "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    program = "import volta_fn as vf, volta_fn.numpy as jnp\nprint(float(vf.jit(jnp.arctanh)(jnp.full(64, 0.5))[0]))"

    def half() -> float:
        done = subprocess.run([sys.executable, "-c", program], env=settings, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        return float(done.stdout)

    assert half() == pytest.approx(np.arctanh(0.5))
    for path in package.rglob("*.py"):
        text, status = path.read_text(), path.stat()
        if "(1.0 - size)) * 0.5).copysign(x)" in text:
            path.write_text(text.replace("(1.0 - size)) * 0.5).copysign(x)", "(1.0 - size)) * 0.7).copysign(x)"))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            edited += 1
    assert edited == 1
    assert half() == pytest.approx(1.4 * np.arctanh(0.5))
