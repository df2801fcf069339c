"""A sample of random kernels in every schedule, other ones after each commit, and proof that what is wrong in a code generator is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import kernels
from tests.fuzz.kernel_drawing import data_for, drawn
from tests.fuzz.kernel_machine_code import OVERWRITABLE
from tests.fuzz.kernel_oracle import Oracle, differs
from tests.fuzz.kernel_planted import FAULTS
from tests.fuzz.kernel_text import parsed, written
from tests.stress.amount import rounds
from volta_fn import dtypes
from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.axes import overwritable, simplified
from volta_fn.compiler.ir.kernel import Apply, Kernel, KernelCall, Reduce, Store, check_kernel, interpret
from volta_fn.compiler.target import Item
from volta_fn.compiler.verification import may_overwrite
from volta_fn.runtime.llvm.host import vector_widths
from volta_fn.targets.cpu import loops
from volta_fn.targets.cpu.loops.schedule import written_out
from volta_fn.targets.cpu.target import TARGET

ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked, and memory is protected by mprotect")


def every_dtype(dtype: np.dtype) -> bool:
    return dtype in dtypes.ALL


@LINUX
@pytest.mark.parametrize(("options", "count"), [(["--width", str(width)], 6) for width in vector_widths()] + [(["--gpu"], 2)], ids=str)
def test_a_sample_agrees_in_every_schedule(options: list[str], count: int, request: pytest.FixtureRequest) -> None:
    """The command runs the corpus first."""
    seed = 1_000_000 + 100 * int(request.config.getoption("shift"))
    command = [sys.executable, "-m", "tests.fuzz", "kernels", "--count", str(rounds(count)), "--seed", str(seed), *options]
    environment = {k: v for k, v in os.environ.items() if k != "VOLTA_VECTOR_BYTES"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.stdout.endswith(" 0 wrong\n"), run.stdout + run.stderr
    assert run.stdout.startswith(f"{rounds(count)} kernels, ")


def test_the_interpreter_is_right() -> None:
    """Two ways to evaluate a kernel that share no code."""
    for seed in range(rounds(200)):
        kernel = drawn(seed, every_dtype)
        inputs = data_for(kernel, seed)
        for result, wanted in zip(interpret(kernel, *inputs), Oracle(kernel, inputs).outputs(), strict=True):
            assert not differs(result, wanted).any(), written(kernel)


def test_most_bounds_are_zero() -> None:
    """A bound that says nothing would find nothing."""
    outputs = []
    for seed in range(100):
        kernel = drawn(seed, every_dtype)
        outputs += Oracle(kernel, data_for(kernel, seed)).outputs()
    assert sum(bool((x.error == 0).all()) for x in outputs) > 0.8 * len(outputs)
    assert sum(bool(np.isinf(x.error).any()) for x in outputs) < 0.1 * len(outputs)


def test_kernels_are_read_as_they_are_written() -> None:
    for seed in range(200):
        kernel = drawn(seed, every_dtype)
        check_kernel(kernel)
        assert parsed(written(kernel)) == kernel


def test_kernels_are_of_every_form() -> None:
    drawn_kernels = [drawn(seed, every_dtype) for seed in range(400)]
    assert {len(k.reduction_axes) for k in drawn_kernels} == {0, 1, 2, 3}
    assert {k.parallel for k in drawn_kernels} >= {0, 1, 2, 3, 4}
    assert {node.dtype for k in drawn_kernels for node in k.nodes} == dtypes.ALL
    assert {n.op for k in drawn_kernels for n in k.nodes if isinstance(n, Reduce)} >= {"reduce_sum", "reduce_prod", "argmax", "reduce_xor"}
    assert max(len(k.stores) for k in drawn_kernels) >= 3
    assert any(size > 4000 for k in drawn_kernels for size in k.sizes)
    ways = {way.split(":")[0] for k in drawn_kernels[:100] for way, _ in TARGET.all_kernel_routines(k)}
    assert ways == {"product", "loops"}


def test_targets_overwrite_what_the_verifier_allows() -> None:
    """Two ways to find the operands whose memory may hold a result: the target's, and the verifier's."""
    allowed = forbidden = 0
    for seed in range(rounds(400)):
        kernel = drawn(seed, every_dtype)
        item = Item(KernelCall(kernel, (), ()), (), (), None)
        for output in range(len(kernel.stores)):
            for operand in {*TARGET.overwritable_inputs(kernel, output), *overwritable(kernel, output)}:
                assert may_overwrite(item, operand, output, TARGET), f"result {output}, operand {operand} of\n{written(kernel)}"
                allowed += 1
            forbidden += sum(not may_overwrite(item, operand, output, TARGET) for operand in range(len(kernel.inputs)))
    assert allowed > 10 and forbidden > 100


def test_a_result_lies_where_the_routine_that_is_chosen_may_store_it() -> None:
    """Which routine a kernel gets decides, not what the kernel computes: products are computed by loops, too."""
    chosen = Counter[tuple[str, bool]]()
    for seed in range(rounds(400)):
        kernel = drawn(seed, every_dtype)
        routine = TARGET.kernel_routine(kernel)
        if routine is None:
            continue
        kind = "loops" if routine == loops.routine(kernel) else "product"
        for output in range(len(kernel.stores)):
            assert TARGET.overwritable_inputs(kernel, output) == OVERWRITABLE[kind](kernel, output), f"{kind}:\n{written(kernel)}"
        chosen[kind, contraction_of(kernel) is not None] += 1
    assert chosen["product", True] > 5 and chosen["loops", True] and chosen["loops", False] > 100 and not chosen["product", False]


def test_short_rows_that_are_written_out_give_the_same() -> None:
    count = 0
    for seed in range(rounds(1500)):
        kernel = simplified(drawn(seed, every_dtype))
        short = written_out(kernel)
        if short is None:
            continue
        check_kernel(short)
        inputs = data_for(kernel, seed)
        for result, wanted in zip(interpret(short, *inputs), Oracle(kernel, inputs).outputs(), strict=True):
            assert not differs(result, wanted).any(), written(kernel)
        count += 1
    assert count > 20


class WrongProducts:
    """A machine that takes products for sums."""

    fused = False

    def supports(self, dtype: np.dtype) -> bool:
        return every_dtype(dtype)

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[kernels.Run]:
        nodes = [Apply(n.dtype, "add", n.operands) if isinstance(n, Apply) and n.op == "mul" else n for n in kernel.nodes]
        wrong = Kernel(kernel.sizes, kernel.parallel, kernel.inputs, tuple(nodes), kernel.stores)
        yield kernels.Run("wrongly", interpret(wrong, *inputs))


def test_differences_are_made_small() -> None:
    seed = next(s for s in range(1000) if kernels.attempted(drawn(s, every_dtype), s, WrongProducts()) is not None)
    _, (report,) = kernels.check(range(seed, seed + 1), WrongProducts(), say=lambda text: None)
    assert len(report.kernel.nodes) <= 3
    assert report.kernel.stores == (Store((), (), report.kernel.stores[0].value),)
    assert parsed(str(report)) == report.kernel


@LINUX
def test_planted_faults_are_found() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.fuzz", "kernel_planted"], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.endswith(f"{len(FAULTS)} of {len(FAULTS)} planted faults found\n"), run.stdout + run.stderr
    assert "Error" not in run.stdout, run.stdout  # a fault gives wrong numbers: an exception would be one of the planting
