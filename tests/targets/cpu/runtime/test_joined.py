"""Short launches that run together: which do, and that they compute the same as one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, assemble, loaded_routines
from volta_fn.targets.cpu.runtime.executor import MOST_JOINED, Mode, Op
from volta_fn.targets.cpu.target import TARGET

SIZE = 192


def matrices(count: int, rows: int = SIZE, columns: int = SIZE) -> list[np.ndarray]:
    """Return matrices by which a product keeps the scale of a row."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(rows, columns)).astype(np.float32) / np.float32(rows**0.5) for _ in range(count)]


def row() -> np.ndarray:
    """Return a row of random numbers."""
    return np.random.default_rng(1).normal(size=(1, SIZE)).astype(np.float32)


def commands(function: Callable[..., Any], *arguments: Any, donated: bool = False) -> list[list[Any]]:
    """Return the commands of a function's program, each with its words."""
    closed = vf.make_jaxpr(function)(*arguments)
    program = pipeline.lower(closed, TARGET)
    writer = CommandWriter(loaded_routines(program), CONTROL_FLOW)
    assemble(program, [donated] * len(closed.jaxpr.invars), writer)
    parts: list[list[Any]] = []
    for word in writer.words:
        if isinstance(word, Op):
            parts.append([])
        parts[-1].append(word)
    return parts


def joined(*call: Any, donated: bool = False) -> list[int]:
    """Return how many launches each command runs that runs several."""
    return [words[1] for words in commands(*call, donated=donated) if words[0] is Op.JOIN]


def test_products_with_several_matrices_run_together() -> None:
    together = lambda x, ms: [x @ m for m in ms]
    x, ms = row(), matrices(3)
    assert joined(together, x, ms) == [3]
    (command,) = [words for words in commands(together, x, ms) if words[0] is Op.JOIN]
    assert Mode.SHARED in Mode(command[3])
    for result, m in zip(vf.jit(together)(x, ms), ms, strict=True):
        np.testing.assert_allclose(result, x.astype(float) @ m, atol=1e-5)


def test_a_function_between_them_does_not_part_them() -> None:
    gated = lambda x, gate, up: jnp.tanh(x @ gate) * (x @ up)
    x, (gate, up) = row(), matrices(2)
    assert joined(gated, x, gate, up) == [2]
    np.testing.assert_allclose(vf.jit(gated)(x, gate, up), np.tanh(x.astype(float) @ gate) * (x.astype(float) @ up), atol=1e-5)


def test_quantized_products_run_together() -> None:
    layers = [vf.nn.quantize(vf.nn.Linear.init(vf.random.key(k), SIZE, SIZE), "int8") for k in range(2)]
    assert joined(lambda x, layers: [layer(x) for layer in layers], row(), layers) == [2]


def test_what_reads_another_launch_s_result_runs_after_it() -> None:
    x, (a, b) = row(), matrices(2)
    chain = lambda x, a, b: (x @ a) @ b
    assert joined(chain, x, a, b) == []
    np.testing.assert_allclose(vf.jit(chain)(x, a, b), x.astype(float) @ a @ b, atol=1e-5)


def test_more_than_a_command_has_run_in_several() -> None:
    count = 2 * MOST_JOINED + 1
    together = lambda x, ms: [x @ m for m in ms]
    x, ms = row(), matrices(count)
    assert joined(together, x, ms) == [MOST_JOINED, MOST_JOINED]
    for result, m in zip(vf.jit(together)(x, ms), ms, strict=True):
        np.testing.assert_allclose(result, x.astype(float) @ m, atol=1e-5)


def test_long_and_tiny_launches_run_by_themselves() -> None:
    together = lambda x, ms: [x @ m for m in ms]
    assert joined(together, row(), matrices(2, columns=100 * SIZE)) == []
    assert joined(together, row()[:, :8], matrices(2, 8, 8)) == []


def test_results_in_donated_memory_wait_for_its_readers() -> None:
    """The caller may pass a donated argument's memory as that of the second product, which the first one reads."""
    a, b = matrices(2)
    step = lambda x, y, a, b: (y @ b, x @ a)
    assert joined(step, row(), row(), a, b, donated=True) == []
    run = vf.jit(step, donate_argnums=(0, 1))
    expected: list[Any] = [row().astype(float), 2 * row().astype(float)]
    values: Any = (jnp.asarray(row()), jnp.asarray(2 * row()))
    for _ in range(50):
        expected = [expected[1] @ b, expected[0] @ a]
        values = run(*values, a, b)
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_a_loop_s_condition_is_not_part_of_its_body() -> None:
    a, b = matrices(2)

    def loop(x: vf.Array, a: vf.Array, b: vf.Array) -> vf.Array:
        """Both read the carry alone, and nothing stands between them but the loop's own flag."""
        return vf.lax.while_loop(lambda c: jnp.abs(c @ a).sum() > 1.0, lambda c: 0.5 * (c @ b), x)

    expected = row().astype(float)
    while np.abs(expected @ a).sum() > 1.0:
        expected = 0.5 * (expected @ b)
    np.testing.assert_allclose(vf.jit(loop)(row(), a, b), expected, atol=1e-5)


def test_several_threads_compute_the_same_bits_at_once() -> None:
    ms = matrices(5)

    @vf.jit
    def layers(x: vf.Array, ms: list[vf.Array]) -> vf.Array:
        for _ in range(10):
            parts = [x @ m for m in ms]
            x = jnp.tanh(parts[0] + parts[1] * parts[2] + parts[3].max() * parts[4])
        return x

    expected = np.asarray(layers(row(), ms)).tobytes()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if np.asarray(layers(row(), ms)).tobytes() != expected:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
