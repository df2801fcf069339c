"""Functions that routines share: compiled once, kept on disk, made again when they are gone from there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import RoutineKey
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.runtime.threads import on_own_thread
from volta_fn.targets.cpu.matmul import dot_general
from volta_fn.targets.cpu.routine import Routine, RoutineWriter
from volta_fn.targets.cpu.runtime import artifact, compile
from volta_fn.targets.cpu.runtime.executor import Mode

FLOAT = np.dtype(np.float32)
#: Columns of a product: as many vectors for every width of vectors, so that products of 48 and of 72 rows are cut into the same tiles.
COLUMNS = 8 * host().lanes(4)


def product(m: int, k: int, n: int) -> RoutineKey:
    """Return a product of matrices."""
    avals = ShapedArray((m, k), FLOAT), ShapedArray((k, n), FLOAT)
    return RoutineKey(
        ("product", m, k, n), lambda: dot_general(avals, {"dimension_numbers": (((1,), (0,)), ((), ())), "preferred_element_type": None})
    )


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled, in a process that has no objects yet."""
    texts: list[str] = []
    compile_object = compile.compile_object

    def noted(text: str, *suffix: str, **options: bool) -> bytes:
        texts.append(text)
        return compile_object(text, *suffix, **options)

    monkeypatch.setattr(artifact, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(compile, "compile_object", noted)
    return texts


def multiplying(texts: list[str]) -> list[str]:
    """Return the texts of functions that multiply, in which all the arithmetic is."""
    return [text for text in texts if "fma" in text or "fmul" in text]


def test_products_of_several_sizes_share_what_multiplies(compiled: list[str]) -> None:
    library = compile.CodeCache()
    library.load([product(48, 40, COLUMNS)])
    functions = len(multiplying(compiled))
    assert functions
    library.load([product(72, 72, COLUMNS), product(48, 200, COLUMNS)])
    assert len(multiplying(compiled)) == functions


def test_another_process_finds_them_on_disk(compiled: list[str]) -> None:
    compile.CodeCache().load([product(48, 40, COLUMNS)])
    before = len(compiled)
    compile.CodeCache().load([product(48, 40, COLUMNS)])
    assert len(compiled) == before
    compile.CodeCache().load([product(72, 40, COLUMNS)])
    assert len(compiled) == before + 1


def test_one_that_is_gone_from_the_disk_is_made_again(compiled: list[str], tmp_path: Path) -> None:
    compile.CodeCache().load([product(48, 40, COLUMNS)])
    before = len(compiled)
    shared = [path for path in tmp_path.rglob("*") if path.is_file() and b'"launches": []' in path.read_bytes()]
    assert shared
    for path in shared:
        path.unlink()
    result = compile.CodeCache().load([product(48, 40, COLUMNS)])
    assert len(compiled) > before
    assert result[0] is not None


def test_one_that_cannot_be_compiled_is_tried_again(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, *suffix: str, **options: bool) -> Any:
        raise RuntimeError("no code for this")

    library, good = compile.CodeCache(), compile.compile_object
    monkeypatch.setattr(compile, "compile_object", broken)
    with pytest.raises(RuntimeError, match="no code"):
        library.load([product(48, 40, COLUMNS)])
    monkeypatch.setattr(compile, "compile_object", good)
    assert library.load([product(48, 40, COLUMNS)])[0] is not None


def test_one_that_fails_in_a_thread_is_tried_by_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def fails_at_first(name: str, function: SharedFunction) -> bytes:
        if begun.is_set():
            return b"code"
        begun.set()
        assert ended.wait(60)
        raise RuntimeError("no code for this")

    monkeypatch.setattr(compile, "_compile_shared", fails_at_first)
    library, function = compile.SharedCode(), SharedFunction("f", "", "", frozenset())
    entered = threading.Event()

    def call() -> list[bytes]:
        entered.set()
        return library.codes([library.compile(function)])

    first = on_own_thread(call)
    assert begun.wait(60)
    entered.clear()
    second = on_own_thread(call)
    assert entered.wait(60)  # it waits for the first by now, or will come when that has failed
    ended.set()
    assert isinstance(first.error(), RuntimeError)
    assert second.result() == [b"code"]


@pytest.mark.parametrize("nested", [False, True])
def test_programs_with_while_loops_are_long(nested: bool) -> None:
    endless = lambda x: vf.lax.while_loop(lambda c: c.sum() < 0, lambda c: c @ c, x)

    def scanned(x: vf.Array) -> vf.Array:
        return vf.lax.scan(lambda c, _: (jnp.tanh(endless(c) if nested else c @ c), None), x, None, length=3)[0]

    program = vf.make_jaxpr(lambda x: scanned(endless(x)))(vf.ShapeDtypeStruct((4, 4), "float32"))
    assert compile.build(program, (False,), pipeline).artifact.long


def test_only_long_launches_wake_threads(compiled: list[str]) -> None:
    """Shorter ones are shared with threads that are awake; the shortest and those of one task are not."""
    costs = [(4, 30_000.0), (4, 5_000.0), (4, 1_000.0), (1, 30_000.0)]

    def routine() -> Routine:
        writer = RoutineWriter("costs", 1)
        for tasks, cost in costs:
            writer.launch(tasks, cost, lambda f, pointers, task: None)
        return writer.routine()

    (loaded,) = compile.CodeCache().load([RoutineKey("costs", routine)])
    assert loaded is not None
    long = Mode.WAKES | Mode.POLLS
    assert [launch.mode for launch in loaded.launches] == [Mode.SHARED | long, Mode.SHARED, Mode(0), Mode.POLLS]
