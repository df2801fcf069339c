"""Programs on disk: what a later process finds is what this one compiled, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.targets.cpu.runtime.test_program import PROGRAMS, X
from volta_fn.compiler import pipeline
from volta_fn.core.caches import Interned
from volta_fn.runtime import caches, entries
from volta_fn.targets.cpu.runtime import artifact, compile
from volta_fn.targets.cpu.runtime import artifact as disk_cache
from volta_fn.targets.cpu.runtime.compile import CodeCache
from volta_fn.targets.cpu.runtime.program import Program

LARGE = np.arange(5000, dtype=np.float32)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(artifact, "_loaded", Interned())
    monkeypatch.setattr(compile, "CODE_CACHE", CodeCache())  # routines that were compiled before are in another folder


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled."""
    results: list[Any] = []
    build = compile.build

    def counted(closed: Any, donated: Any, pipeline: Any) -> Any:
        results.append(closed)
        return build(closed, donated, pipeline)

    monkeypatch.setattr(compile, "build", counted)
    return results


def of(function: Callable[..., Any], *args: Any, donated: tuple[bool, ...] = ()) -> Program:
    """Return a program of a function traced anew."""
    return Program.of(vf.make_jaxpr(lambda *a: function(*a))(*args), donated, pipeline)


def entry(function: Callable[..., Any], *args: Any) -> Path:
    """Return the file of a program's entry."""
    key = artifact.key_of(vf.make_jaxpr(lambda *a: function(*a))(*args), ())
    assert key is not None
    where = disk_cache.cache_dir()
    assert where is not None
    return caches.path_of(where, key.name)


def forget_loaded() -> None:
    """Forget what is loaded, as if this were another process."""
    artifact._recent.clear()
    artifact._loaded = Interned()


#: The sum of nothing is computed by NumPy, whose functions have no address in another process.
KEPT = sorted(set(PROGRAMS) - {"empty"})


@pytest.mark.parametrize("name", KEPT)
def test_a_program_that_was_kept_is_not_compiled_and_gives_the_same(name: str, builds: list[Any]) -> None:
    expected = of(PROGRAMS[name], X)(False, X)
    forget_loaded()
    actual = of(PROGRAMS[name], X)(False, X)
    assert len(builds) == 1
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def test_programs_that_differ_are_compiled(builds: list[Any]) -> None:
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(of(lambda x: x * factor, X)(False, X)[0], X * factor)  # called at once
    assert len(builds) == 2


def test_donation_is_kept(builds: list[Any]) -> None:
    for _ in range(2):
        x = X.copy()
        assert of(lambda x: x + 1, X, donated=(True,))(True, x)[0] is x
    assert of(lambda x: x + 1, X, donated=(False,)).reuse == {}
    assert len(builds) == 2


def test_programs_with_functions_of_numpy_are_not_kept(builds: list[Any]) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(of(jnp.fft.fft, jnp.ones(3))(False, np.ones(3, np.float32))[0], [3, 0, 0])
    assert len(builds) == 2
    for _ in range(2):
        of(lambda x: vf.pure_callback(np.sin, x, x), X)
    assert len(builds) == 4


def test_constants(builds: list[Any]) -> None:
    def function(x: Any) -> Any:
        return x + LARGE, jnp.asarray(LARGE), jnp.asarray(LARGE) * 2 + 1, x[:2] + jnp.asarray([0.5, 1.5])

    expected = of(function, LARGE)(False, LARGE)
    forget_loaded()
    actual = of(function, LARGE)(False, LARGE)
    assert len(builds) == 1
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_constants_of_the_traced_program_are_not_written() -> None:
    of(lambda x: x + LARGE, LARGE)
    assert entry(lambda x: x + LARGE, LARGE).stat().st_size < LARGE.nbytes


def test_of_a_program_with_too_large_constants_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, builds: list[Any]) -> None:
    monkeypatch.setattr(entries, "LARGEST", 10)
    for _ in range(2):
        np.testing.assert_array_equal(of(lambda x: x + 1, X)(False, X)[0], X + 1)
    assert len(builds) == 2


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-1],
    "nearly empty": lambda data: data[:20],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "other kind": lambda data: b"#!/bin/sh\n" + data,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_compiled_again(name: str, builds: list[Any]) -> None:
    function = PROGRAMS["product"]
    expected = of(function, X)(False, X)
    path = entry(function, X)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[name](whole))
    forget_loaded()
    for one, other in zip(of(function, X)(False, X), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(builds) == 2
    assert path.read_bytes() == whole


def test_an_entry_of_something_else_is_compiled_again(builds: list[Any]) -> None:
    path = entry(PROGRAMS["product"], X)
    for header in ({}, [], {"words": [1, 2, 3]}, {"words": [["float99", [1]]] * 3}):
        disk_cache.write(path.name, header, [b"foreign"])
        of(PROGRAMS["product"], X)
    assert len(builds) == 4


def test_a_lost_object_does_no_harm(tmp_path: Path, builds: list[Any]) -> None:
    of(PROGRAMS["product"], X)
    path = entry(PROGRAMS["product"], X)
    for other in [p for p in tmp_path.glob("?/*") if p != path]:
        other.unlink()
    forget_loaded()
    of(PROGRAMS["product"], X)
    assert len(builds) == 1


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, builds: list[Any]) -> None:
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: None)
    for _ in range(2):
        np.testing.assert_array_equal(of(lambda x: x + 1, X)(False, X)[0], X + 1)
    assert len(builds) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [
        (entries, "sources_digest", lambda root, folder: "other sources"),
        (disk_cache, "host", lambda: "another machine"),
        (np, "__version__", "0"),
        (entries, "version_text", lambda package: "0"),
        (sys, "version", "0"),
    ],
    ids=["sources", "machine", "NumPy", "SciPy", "Python"],
)
def test_names_say_under_which_circumstances(owner: Any, name: str, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "circumstances", entries.circumstances.__wrapped__)
    monkeypatch.setattr(disk_cache, "_kind", disk_cache._kind.__wrapped__)
    usual = disk_cache.name_of("a routine")
    assert disk_cache.name_of("a routine") == usual
    monkeypatch.setattr(owner, name, other)
    assert disk_cache.name_of("a routine") != usual


@pytest.mark.parametrize("name", ["passes.py", "tuned.json"])
@pytest.mark.parametrize("settled", [0.0, 1e9])
def test_a_changed_source_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: float, name: str) -> None:
    monkeypatch.setattr(caches, "_SETTLED", settled)
    package, folder = tmp_path / "volta_fn", tmp_path / "cache"
    (package / "compiler").mkdir(parents=True)
    source = package / "compiler" / name
    source.write_text("0.5")
    before = caches.sources_digest(package, folder)
    assert caches.sources_digest(package, folder) == before
    status = source.stat()
    new = source.with_suffix(".new")
    new.write_text("0.7")  # as many bytes
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(source)
    assert caches.sources_digest(package, folder) != before
    source.write_text("0.5")
    assert caches.sources_digest(package, folder) == before


def test_threads_at_once(builds: list[Any]) -> None:
    def run(_: int) -> Any:
        return of(PROGRAMS["scan in scan"], X)(False, X)

    with ThreadPoolExecutor(8) as threads:
        first, *others = list(threads.map(run, range(16)))
    for other in others:
        for one, same in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, same)


SCRIPT = """
import json, sys
import numpy as np
from volta_fn.runtime.llvm import machine
compile_object, texts = machine.compile_object, []
machine.compile_object = lambda text, *suffix, **options: texts.append(text) or compile_object(text, *suffix, **options)
import volta_fn as vf
import volta_fn.numpy as jnp
x = np.arange(12, dtype=np.float32).reshape(3, 4)
step = vf.jit(vf.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum()))
value, gradient = step(x.T * 0.1, x)
building = "volta_fn.targets.cpu.runtime.compile" in sys.modules
print(json.dumps([len(texts), building, np.asarray(value).tobytes().hex() + np.asarray(gradient).tobytes().hex()]))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]

    def run(cache: str) -> list[Any]:
        environment = os.environ | {"PYTHONPATH": str(root), "VOLTA_CACHE_DIR": cache}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        result: list[Any] = json.loads(done.stdout)
        return result

    first, second, without = run(str(tmp_path)), run(str(tmp_path)), run("")
    assert first[0] > 1 and first[1]
    assert second[:2] == [0, False]
    assert without[:2] == first[:2]
    assert first[2] == second[2] == without[2]
