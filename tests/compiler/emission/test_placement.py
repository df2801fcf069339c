"""Programs give the same bits whether values share memory or each has memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import lowering
from tests.fuzz.programs import on_target
from tests.stress.amount import rounds
from tests.targets.nvidia.emulated_gpu import device as emulated
from volta_fn import lax
from volta_fn.compiler import emission, pipeline, plans
from volta_fn.compiler.buffers import ALIGNMENT, Lifetime
from volta_fn.compiler.contractions import accumulators, contraction_of
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import CompilerError, GradientError
from volta_fn.settings import current as settings
from volta_fn.targets.cpu import matmul
from volta_fn.targets.cpu.runtime import artifact
from volta_fn.targets.cpu.runtime import program as cpu_programs
from volta_fn.targets.cpu.runtime.compile import CommandWriter
from volta_fn.targets.cpu.target import CpuTarget
from volta_fn.targets.nvidia import library
from volta_fn.targets.wgsl import program_plan

CPU = vf.devices("cpu")[0]


def _side_by_side(values: Sequence[Lifetime]) -> tuple[list[int], int]:
    sizes = [-(-max(value.bytes, 1) // ALIGNMENT) * ALIGNMENT for value in values]
    return [sum(sizes[:number]) for number in range(len(sizes))], sum(sizes)


def _a_block_each(values: Sequence[Lifetime]) -> tuple[list[int], list[int]]:
    return [program_plan.size_class(max(value.bytes, 4)) for value in values], [*range(len(values))]


@contextmanager
def apart() -> Iterator[None]:
    """Give every value of the programs that are compiled memory of its own."""
    with ExitStack() as stack:
        for module, name, replacement in (
            (emission, "can_overwrite", lambda *args: False),
            (emission, "may_share", lambda *args: False),
            (CommandWriter, "view", lambda *args: None),
            (artifact, "arrange", _side_by_side),
            (program_plan, "share_blocks", _a_block_each),
            (plans, "arrange", _side_by_side),
            (plans._Planner, "_overwritable", lambda *args: None),
        ):
            stack.enter_context(patch.object(module, name, replacement))
        yield


def results(closed: ClosedJaxpr, arguments: Sequence[np.ndarray], device: Device, *, donated: bool) -> list[np.ndarray]:
    """Return the results of a program that is compiled anew, in the memory of its arguments if these are donated."""
    with patch.object(cpu_programs, "key_of", lambda *args: None):  # entries on disk are made with another placement
        executable = device.backend.compile(closed, [donated] * len(arguments), pipeline)
    outputs = executable.run(donated, *[device.backend.put(np.array(x)) for x in arguments])
    return [np.array(device.backend.get(x)) for x in outputs]


def assert_same_bits(closed: ClosedJaxpr, arguments: Sequence[np.ndarray], device: Device, what: str) -> None:
    """Fail if a program gives other bits where values share memory."""
    with apart():
        expected = results(closed, arguments, device, donated=False)
    for donated in (False, True):
        actual = results(closed, arguments, device, donated=donated)
        for number, (here, elsewhere) in enumerate(zip(actual, expected, strict=True)):
            assert here.tobytes() == elsewhere.tobytes(), f"output {number} is {here}, not {elsewhere}, {donated=}:\n{what}"


@pytest.mark.parametrize("target", ["native", "numpy"])
@pytest.mark.parametrize("seed", range(rounds(6)))
def test_random_programs(seed: int, target: str, request: pytest.FixtureRequest) -> None:
    """Programs of blocks with many results, their derivatives, and loops and branches around them."""
    seed += 1_000 * int(request.config.getoption("shift"))
    for program in lowering.drawn(seed, 3, 17):
        arguments = program.arguments()
        with on_target(target), np.errstate(all="ignore"):
            try:
                closed = vf.make_jaxpr(program.function())(*arguments)
            except GradientError:  # of a `while_loop` in reverse mode, which has none
                continue
            assert_same_bits(closed, arguments, CPU, str(program))


def integers(*shape: int) -> np.ndarray:
    """Small integers, whose sums and products are exact."""
    return np.random.default_rng(len(shape)).integers(-2, 3, shape).astype(np.float32)


def _sums_in_place(a: Any, b: Any, c: Any) -> Any:
    """Sums of products that are added to an operand, which another result reads, too."""
    d = c + 1
    return d * 2, a @ b + d, d - 1


def _beside_sums(a: Any, b: Any, c: Any) -> Any:
    """Results of the same sums, of which the second alone reads an operand where both are stored."""
    sums = a @ jnp.swapaxes(b, 1, 2)
    return sums * 2, sums + c


def _accumulated(a: Any, b: Any, c: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, carry: (a @ b + carry[0], carry[0] * 2 - carry[1]), (c, c + 1))


def _exchanged(a: Any, b: Any, c: Any) -> Any:
    return lax.scan(lambda carry, x: ((carry[1] + x, carry[0] * 2), carry[0]), (c[0], c[1]), jnp.stack([c[0], c[1], c[0]]))


def _scattered(a: Any, b: Any, c: Any) -> Any:
    d = c + a @ b
    return d.at[0].add(d[1]), lax.dynamic_update_slice(d * 2, d[:1], (1, 0, 0))


def _branches(a: Any, b: Any, c: Any) -> Any:
    d = c * 2
    e = lax.cond(jnp.sum(c) > 0, lambda x, y: (x @ y + x, x), lambda x, y: (x - y, y), d, a)
    return e[0] + 1, e[1] * 2


PROGRAMS: dict[str, Callable[..., Any]] = {
    "sums in place": _sums_in_place,
    "beside sums": _beside_sums,
    "accumulated": _accumulated,
    "exchanged": _exchanged,
    "scattered": _scattered,
    "branches": _branches,
    "a mean of rows": lambda a, b, c: (c - c.max(-1, keepdims=True), (c + 1).max(-1), jnp.max(c + 1, -1, keepdims=True) * (c + 1)),
}
SIZES = {"tiny": (5, 2, 2), "vectors": (3, 1, 4), "small": (2, 9, 9), "wide": (2, 40, 40)}


def traced(name: str, size: str) -> tuple[ClosedJaxpr, list[np.ndarray]]:
    """Return a program, and arguments: stacks of square matrices, or rows by matrices."""
    b, m, n = SIZES[size]
    arguments = [integers(b, m, n), integers(b, n, n), integers(b, m, n)]
    if name == "branches":
        arguments = [integers(b, n, n)] * 3
    if name == "beside sums":  # of many terms, along which vectors go
        arguments = [integers(b, m, 16), integers(b, m, 16), integers(b, m, m)]
    return vf.make_jaxpr(PROGRAMS[name])(*arguments), arguments


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ["native", "numpy"])
def test_programs_on_the_cpu(name: str, size: str, target: str) -> None:
    with on_target(target):
        assert_same_bits(*traced(name, size), CPU, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_a_gpu(name: str) -> None:
    assert_same_bits(*traced(name, "tiny"), vf.devices("gpu")[0], name)


@pytest.fixture(scope="module")
def emulated_gpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield emulated(monkeypatch)
    library._functions.cache_clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_an_emulated_gpu(name: str, emulated_gpu: Device) -> None:
    assert_same_bits(*traced(name, "tiny"), emulated_gpu, name)


def test_a_placement_by_what_a_kernel_computes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops store a result before they read the operand for the next one, where a product's routine would have read it for both."""

    def overwritable_inputs(target: Any, kernel: Any, output: int) -> tuple[int, ...]:
        return accumulators(kernel, output) if contraction_of(kernel) is not None else overwritable(kernel, output)

    monkeypatch.setattr(CpuTarget, "overwritable_inputs", overwritable_inputs)
    monkeypatch.setattr(matmul, "suits_loops", lambda kernel: True)
    arguments = [integers(6, 2, 16), integers(6, 2, 16), integers(6, 2, 2)]  # of sizes whose product no other test compiles
    closed = vf.make_jaxpr(_beside_sums)(*arguments)
    with on_target("native"):
        with pytest.raises(CompilerError, match="is stored where the argument .* lies, before all of that is read"):
            assert_same_bits(closed, arguments, CPU, "")
        monkeypatch.setattr(settings, "verify", False)
        with pytest.raises(AssertionError, match="output 1"):
            assert_same_bits(closed, arguments, CPU, "")
