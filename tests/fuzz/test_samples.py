"""A sample of every fuzzer: a few programs, files, interrupts and losses, and what was once wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import control, files, interrupts, losses, numbers, programs, soak
from tests.fuzz.planted_losses import POINTS, planted
from tests.stress.amount import rounds

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and /proc are those of Linux")
CORPUS = [block for block in (Path(__file__).parent / "corpus.txt").read_text().split("\n\n") if block.strip()]


def test_programs_agree_on_all_targets() -> None:
    count, reports = programs.check(range(rounds(12)), programs.lanes())
    assert (count, reports) == (rounds(12), [])


@pytest.mark.wide
def test_edges_of_dtypes_agree_with_numpy() -> None:
    pytest.importorskip("jax")  # which has the catalogue's names
    assert [str(difference) for difference in numbers.differences(seed=0, count=rounds(250))] == []


def test_an_edge_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    right = jnp.expm1
    monkeypatch.setattr(jnp, "expm1", lambda x: right(x * 0.5) * 2.0)  # nothing is left of the smallest number
    assert any("numpy.expm1" in str(difference) for difference in numbers.differences(seed=0, count=20, path="numpy.expm1"))


def parsed(block: str) -> programs.Program:
    """Return a program of the corpus: inputs are calls of NumPy."""
    program = programs.Program({})
    for line in block.strip().split("\n"):
        name, _, text = line.partition(" = ")
        if text.startswith("np."):
            program.inputs[name] = eval(text, {"np": np})
        elif not line.startswith("#"):
            program.lines.append((name, text))
    return program


@pytest.mark.skipif(os.name != "posix", reason="addresses of the loopback interface are those of Linux")
def test_whatever_is_sent_to_the_switchboard_messages_pass() -> None:
    count, wrong = control.check(rounds(150))
    assert (count, wrong) == (rounds(150), {})


@pytest.mark.parametrize("block", CORPUS, ids=[block.strip().split("\n")[0].removeprefix("# ") for block in CORPUS])
def test_what_was_once_wrong_is_right(block: str) -> None:
    program = parsed(block)
    for name, lane in programs.lanes().items():
        assert programs.compared(program, lane) is None, name


def test_differences_are_found_and_made_small() -> None:
    program = programs.Program({"x0": np.arange(3, dtype=np.float32)})
    program.lines = [("v0", "lax.sin(x0)"), ("v1", "x0 + 1"), ("v2", "v0 * v1"), ("v3", "lax.cos(v0)")]

    def wrong_product(program: programs.Program) -> Any:
        result = programs.run(program, "numpy", "jit")
        assert isinstance(result, dict)
        return {name: value + 1 if "*" in dict(program.lines)[name] else value for name, value in result.items()}

    assert programs.compared(program, wrong_product) == ("v2", "3 of 3, at (0,) np.float32(1.0) instead of np.float32(0.0)")
    assert programs.minimised(program, wrong_product).lines == [("v2", "v0 * v1")]


def test_documented_differences_are_not_reported() -> None:
    program = parsed(
        """
x0 = np.array([True, False])
x1 = np.array([2.0, np.inf])
v0 = x0.astype('float64')
v1 = jnp.dot(v0, x1)
v2 = v1 + 1
"""
    )
    in_jax = programs.lanes(jax=True)["JAX"]
    assert programs.compared(program, in_jax, way="numpy jit") == ("v1", "1 of 1, at () np.float64(2.0) instead of np.float64(nan)")
    assert programs.compared(program, in_jax, way="JAX") is None


def test_damaged_files_are_refused() -> None:
    done, wrong = files.check(rounds(270))
    assert (done, wrong) == (rounds(270), {})


@POSIX
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a callback of Python's weak references
def test_interrupts_do_no_harm() -> None:
    seen, wrong = interrupts.check(rounds(24), names=tuple(n for n in interrupts.NAMES if n != "wait_for_gpu"))
    assert (sum(seen.values()), wrong) == (rounds(24), [])


@POSIX
@pytest.mark.parametrize("name", soak.PARTS)
def test_memory_does_not_grow(name: str) -> None:
    assert soak.grown(name, 100) < soak.MOST[name]


@pytest.mark.parametrize("kind", POINTS)
def test_a_lost_gpu_costs_no_bits(kind: str) -> None:
    wanted = losses.outcome("loop")
    middle = wanted.points.counts[kind] // 2
    for every in (1, 5):
        actual = losses.outcome("loop", [middle, middle + 1], (kind,), every)
        assert actual.digest == wanted.digest
        assert actual.points.losses >= 1


def test_arrays_from_before_the_policy_and_constants_survive() -> None:
    device = losses.own_device()
    with vf.default_device(device):
        early, constant = jnp.arange(1000.0) * 2, jnp.arange(1000.0) * 3
        unused = jnp.arange(50.0) * 5
        vf.set_recovery("checkpoint", every=7)
        step = vf.jit(lambda x: x + constant)
        x = early
        for _ in range(20):
            x = step(x)
        with planted([0]):
            y = step(x)
            np.testing.assert_array_equal(np.asarray(y), np.arange(1000.0) * 65)
        np.testing.assert_array_equal(np.asarray(early), np.arange(1000.0) * 2)
        assert device.backend.recovery.losses >= 1  # type: ignore[attr-defined]
        with pytest.raises(vf.errors.DeviceError, match=r"float32\[50\], made before the call of set_recovery, is gone"):
            np.asarray(unused)


def test_without_the_policy_what_was_recorded_is_not_used() -> None:
    device = losses.own_device()
    with vf.default_device(device):
        vf.set_recovery("checkpoint")
        x = jnp.arange(1000.0) * 1
        vf.set_recovery(None)
        x = vf.jit(lambda x: x + 1, donate_argnums=0)(x)
        vf.set_recovery("checkpoint")
        y = x * 2
        with planted([0]):
            np.testing.assert_array_equal(np.asarray(y + 0), (np.arange(1000.0) + 1) * 2)


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def note(x: np.ndarray) -> np.ndarray:
        seen.append(float(x))
        return x

    device = losses.own_device()
    with vf.default_device(device):
        vf.set_recovery("checkpoint", every=100)
        noted = vf.jit(lambda x: vf.experimental.io_callback(note, vf.ShapeDtypeStruct((), "float32"), x) + 1)
        x = noted(jnp.float32(1.0) + jnp.float32(1.0))
        y = x * 2
        with planted([0]):
            assert float(y + 1) == 7.0
        assert float(x) == 3.0
    assert seen == [2.0]


@pytest.mark.parametrize("wrong", [{"policy": "always"}, {"policy": "checkpoint", "every": 0}, {"policy": "checkpoint", "every": 1.5}])
def test_policies_that_there_are_not(wrong: dict[str, Any]) -> None:
    with pytest.raises(vf.errors.ArgumentError, match="set_recovery: "):
        vf.set_recovery(**wrong)
