"""Limits of memory: operations that exceed one are refused before they run, and what they held is free again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, OutOfMemoryError

MEGABYTE = 1_000_000

pytestmark = pytest.mark.usefixtures("new_objects_only")


@pytest.fixture(params=[False, True], ids=["numpy", "native"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Set the limit so many bytes above what is in use."""
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", request.param)
    vf.set_memory_limit(1 << 40, "cpu")
    yield lambda size: vf.set_memory_limit(1000 * in_use() + size, "cpu")
    vf.set_memory_limit(None, "cpu")


def in_use() -> int:
    """Kilobytes in use; Python's numbers, which are kept as scalars, are less."""
    gc.collect()
    return vf.device_memory_stats("cpu").in_use // 1000


def large(x: vf.Array) -> vf.Array:
    return jnp.sin(x[:, None] * x)[0]  # of 1,000 numbers, a million


def twice(x: vf.Array) -> vf.Array:
    return jnp.concatenate([jnp.cumsum(jnp.sort(jnp.tile(x, 600))), x])


def looped(x: vf.Array) -> vf.Array:
    return lax.scan(lambda a, _: (a + 1, a), x, None, length=600)[1]


def stacked(x: vf.Array) -> vf.Array:
    return vf.vmap(lambda a: a * x)(x)


PROGRAMS = {
    "elementwise": large,
    "sorted": twice,
    "scan": looped,
    "vmap": stacked,
    "gradient": vf.grad(lambda x: jnp.sum(jnp.sort(stacked(x)))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit], ids=["eager", "jit"])
def test_what_exceeds_the_limit_is_refused_and_leaves_nothing(name: str, wrap: Any, limit: Callable[[int], None]) -> None:
    x, function = jnp.linspace(0.0, 1.0, 1000) + 0, wrap(PROGRAMS[name])
    limit(2 * MEGABYTE)
    before = in_use()
    for _ in range(4):  # eager operations become programs
        with pytest.raises(OutOfMemoryError, match="bytes more than the .*VOLTA_MEMORY") as caught:
            function(x)
        assert "f32[" in caught.value.message
        assert caught.value.location is not None and caught.value.location.file == __file__
        assert in_use() == before
    assert float((x * 0 + 1).sum()) == 1000.0
    limit(100 * MEGABYTE)
    result = np.asarray(wrap(PROGRAMS[name])(x))
    vf.set_memory_limit(None, "cpu")
    np.testing.assert_array_equal(wrap(PROGRAMS[name])(x), result)


def test_programs_name_their_largest_array_and_its_line(limit: Callable[[int], None]) -> None:
    x = jnp.ones(1000) * 2
    limit(MEGABYTE)
    with pytest.raises(
        OutOfMemoryError, match=rf"largest array that the program computes is f32\[1000,1000\], of \w+ at {__file__}:\d+ \(stacked"
    ):
        vf.jit(stacked)(x)


def test_arrays_count_once_until_nothing_refers_to_them(limit: Callable[[int], None]) -> None:
    before = in_use()
    x = jnp.arange(250_000) * 1  # a megabyte
    views = [x[10:], x.reshape(500, 500), x.T, vf.jit(lambda x: x)(x)]
    assert in_use() - before == 1000
    del x
    assert in_use() - before == 1000
    del views
    assert in_use() == before
    put = vf.device_put(np.ones(250_000, np.float32), "cpu")
    assert (in_use() - before, vf.device_memory_stats("cpu").limit) == (1000, 1 << 40)
    put.delete()
    assert in_use() == before


CREATIONS = {
    "arange": lambda: jnp.arange(250_001),
    "linspace": lambda: jnp.linspace(0.0, 1.0, 250_001),
    "eye": lambda: jnp.eye(501),
    "zeros": lambda: jnp.zeros(250_001),
    "indices": lambda: jnp.indices((501, 501)),
    "normal": lambda: vf.random.normal(vf.random.key(0), (250_001,)),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_large_results_of_repeated_calls_are_not_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)  # else calls stay as they are
    vf.set_memory_limit(1 << 40, "cpu")
    try:
        before = in_use()
        for _ in range(4):
            CREATIONS[name]()
        assert in_use() - before < 100
    finally:
        vf.set_memory_limit(None, "cpu")


def test_donated_memory_is_not_needed_twice(limit: Callable[[int], None]) -> None:
    step = vf.jit(lambda x: x + 1, donate_argnums=0)
    limit(MEGABYTE + 100_000)
    x = vf.device_put(np.zeros(250_000, np.float32), "cpu")
    for _ in range(3):
        x = step(x)
    assert float(x[0]) == 3.0
    with pytest.raises(OutOfMemoryError):
        vf.jit(lambda x: x + 1)(x)


def test_threads_share_the_limit(limit: Callable[[int], None]) -> None:
    before = in_use()
    limit(50 * MEGABYTE)

    def work() -> None:
        x = vf.device_put(np.linspace(0, 1, 2000, dtype=np.float32), "cpu")  # small results of jnp.linspace are kept, to be copied
        for _ in range(50):
            (x[:, None] * jnp.ones(20)).sum()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_use() == before


def test_the_variable(tmp_path: Any) -> None:
    program = (
        "import volta_fn as vf, volta_fn.numpy as jnp\ntry: jnp.ones(1000) + 1\nexcept vf.errors.OutOfMemoryError as e: print(e.message)"
    )
    for limit, printed in (("3000", "add of"), ("30000", ""), ("much", None)):
        environment = {**os.environ, "VOLTA_MEMORY": limit, "VOLTA_DEVICE": "cpu"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
        if printed is None:
            assert "ArgumentError: VOLTA_MEMORY is 'much', but must be a number of bytes" in done.stderr
        else:
            assert done.stdout.startswith(printed) and bool(printed) == bool(done.stdout)


def test_limits_that_are_none() -> None:
    for wrong in (-1, 1.5, "1 GB"):
        with pytest.raises(ArgumentError, match="number of bytes or None"):
            vf.set_memory_limit(wrong, "cpu")  # type: ignore[arg-type]


def test_a_program_under_a_limit_is_compiled_once(limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    program = pytest.importorskip("volta_fn.targets.cpu.runtime.program")
    compiled: list[Any] = []
    compile_program = program.Program._of
    monkeypatch.setattr(program.Program, "_of", lambda closed, *args: (compiled.append(closed), compile_program(closed, *args))[1])
    limit(MEGABYTE)
    assert vf.jit(lambda x: jnp.cos(x) + 1)(jnp.ones(3)).shape == (3,)
    assert len(compiled) == vf.devices("cpu")[0].backend.native
