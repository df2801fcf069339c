"""Short launches that run together: which do, and that they compute the same as one after another."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.targets.cpu.runtime import compile
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, JoinedLaunch, JoinedLaunches, assemble, loaded_routines
from volta_fn.targets.cpu.runtime.executor import MOST_JOINED, Mode, Op
from volta_fn.targets.cpu.runtime.program import Program
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


def test_loops_that_handle_signals_run_by_themselves() -> None:
    """Another thread would wait for Python's lock, which the caller of a short program holds, and the caller for that thread."""
    loop = lambda f, x: vf.lax.fori_loop(0, 3000, lambda _, c: f(c) + 1.0, x)
    both = lambda x, y: (loop(jnp.sin, x), loop(jnp.cos, y))
    x = np.float32(0.5)
    assert joined(both, x, x) == []
    assert [Mode(words[3]) for words in commands(both, x, x)] == [Mode.POLLS, Mode.POLLS]
    sines = cosines = 0.5
    for _ in range(3000):
        sines, cosines = np.sin(sines) + 1.0, np.cos(cosines) + 1.0
    np.testing.assert_allclose(vf.jit(both)(x, x), (sines, cosines), rtol=1e-5)


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


# Programs of random parts: what runs together may run in any order.


def _products(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    x = rng.choice(rows)
    rows += [jnp.tanh(x @ m) if rng.random() < 0.5 else x @ m.T for m in rng.sample(ms, min(3, len(ms)))]


def _reductions(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    rows += [jnp.sin(m).max(0, keepdims=True) for m in rng.sample(ms, min(2, len(ms)))]


def _elementwise(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    for _ in range(2):
        k = rng.randrange(len(ms))
        ms[k] = jnp.sin(ms[k] + rng.choice(ms)) * rng.choice(rows)


def _updates(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    for _ in range(2):
        k, place = rng.randrange(len(ms)), rng.randrange(SIZE // 2)
        ms[k] = ms[k].at[place].set(rng.choice(rows)[0]) if rng.random() < 0.5 else ms[k].at[place:].add(rng.choice(rows))


def _empty(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    rows.append(jnp.concatenate([rng.choice(rows)[:0], rng.choice(rows)]) @ rng.choice(ms))


def _steps(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array], most: int = 6) -> None:
    """Append rows, and change matrices, by some parts; in loops and branches there are some, too."""
    parts = [_products, _products, _reductions, _elementwise, _updates, _empty]
    for part in rng.choices([*parts, *[_loop, _branch] * (most > 3)], k=rng.randint(2, most)):
        part(rng, rows, ms)


def _inside(seed: float, rows: list[vf.Array], carry: tuple[vf.Array, vf.Array]) -> tuple[vf.Array, vf.Array]:
    rows, ms = [*rows[:2], carry[0]], [carry[1], 0.5 * carry[1]]
    _steps(random.Random(seed), rows, ms, 3)
    return jnp.tanh(rows[-1]), ms[0]


def _loop(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    seed, outer, k = rng.random(), list(rows), rng.randrange(len(ms))
    row, ms[k] = vf.lax.fori_loop(0, rng.randint(0, 3), lambda _, carry: _inside(seed, outer, carry), (rows[-1], ms[k]))
    rows.append(row)


def _branch(rng: random.Random, rows: list[vf.Array], ms: list[vf.Array]) -> None:
    seeds, outer, k = [rng.random(), rng.random()], list(rows), rng.randrange(len(ms))
    ways = [lambda *carry, seed=seed: _inside(seed, outer, carry) for seed in seeds]
    row, ms[k] = vf.lax.cond(rows[-1].sum() > 0, *ways, rows[-1], ms[k])
    rows.append(row)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_what_runs_together_gives_the_same_bits_apart_and_in_reverse(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of each routine are the same, so bits are; arguments that are donated are results' memory, too."""
    monkeypatch.setattr(compile, "WORTH_JOINING", -1.0)  # so that most run together
    words, together = JoinedLaunches.words, 0
    backwards = lambda joined: words(joined._replace(members=joined.members[::-1]))
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        arguments = [*[row() for _ in range(2)], *matrices(3)]
        donated = [rng.random() < 0.5 for _ in arguments]

        def function(*arrays: vf.Array, seed: int = seed) -> list[vf.Array]:
            rows, ms = list(arrays[:2]), list(arrays[2:])
            _steps(random.Random(seed), rows, ms)
            return [*rows[-4:], *ms]

        program = pipeline.lower(vf.make_jaxpr(function)(*arguments), TARGET)
        loaded, results = loaded_routines(program), []
        for name, value in (("may_be", lambda launches: False), ("words", words), ("words", backwards)):
            with monkeypatch.context() as patch:
                patch.setattr(JoinedLaunch if name == "may_be" else JoinedLaunches, name, value)
                writer = CommandWriter(loaded, CONTROL_FLOW)
                built = assemble(program, donated, writer)
            together += writer.words.count(Op.JOIN)
            addresses, codes = [launch.address for launch in built.launches], [launch.code for launch in built.launches]
            run = Program(built.artifact, addresses, codes, built.hosts).executable().run
            for donate in (False, True):
                results.append([np.asarray(result).tobytes() for result in run(donate, *[x.copy() for x in arguments])])
        assert all(result == results[0] for result in results), f"seed {seed}"
    assert together
