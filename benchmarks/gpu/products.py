"""Check and time products on matrix units: `python -m benchmarks.gpu.products`.

First it runs products of every layout and dtype, of ragged sizes, in stacks, with epilogues, with split sums, in branches and in loops, and
compares the results with those in float64. Then it times products as they occur in networks beside cuBLAS by PyTorch, in alternation. With
`--tune` it times every schedule for them, too, and writes the fastest to a file in the format of the package's own.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain
from benchmarks.gpu.device import forget_routines, opened_gpu
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.kernel import header_of
from volta_fn.targets.nvidia.matmul.problem import HALVES, AnySchedule, Choices, MatrixProduct, Schedule, WarpSchedule, candidates, write
from volta_fn.targets.wgsl.commands import runs
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache

BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)

#: The largest error that results may have, relative to all of them: that of rounding once, and with an epilogue some more times; and that
#: of products of operands that are rounded to TensorFloat-32.
TOLERANCES = {BFLOAT16: 8e-3, FLOAT16: 1e-3, FLOAT32: 2e-5}
ROUNDED_TOLERANCE = 8e-4

#: Products in a timed chain, at least and at most, and seconds that it takes about.
FEWEST, MOST, CHAIN_SECONDS = 8, 256, 6e-4

#: Samples of each chain, and seconds that one of a peer's takes about.
SAMPLES, SECONDS = 7, 0.004


@dataclass(frozen=True)
class Check:
    """A function of arrays, of which some dispatches are to run on matrix units."""

    name: str
    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    dtype: np.dtype = BFLOAT16
    expected: int = 1
    #: Whether operands may be rounded to TensorFloat-32.
    rounds: bool = False


def laid_out(layout: str) -> Callable[[Any, Any], Any]:
    """Return the product of operands that are transposed (T) in memory or not (N)."""
    return lambda x, y: (x.swapaxes(-1, -2) if layout[0] == "T" else x) @ (y.swapaxes(-1, -2) if layout[1] == "T" else y)


def shapes_of(layout: str, m: int, n: int, k: int, batch: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of operands in memory."""
    stack = (batch,) if batch > 1 else ()
    return (*stack, *((m, k) if layout[0] == "N" else (k, m))), (*stack, *((k, n) if layout[1] == "N" else (n, k)))


def rounded(layout: str, precision: str = "tensorfloat32") -> Callable[[Any, Any], Any]:
    """Return the product of operands that may be rounded as a precision says."""
    return lambda x, y: vnp.matmul(x.T if layout[0] == "T" else x, y.T if layout[1] == "T" else y, precision=precision)


def in_float32(x: Any, y: Any) -> Any:
    """Multiply 16-bit numbers with results in float32; others in their own dtype."""
    return vnp.dot(x, y, preferred_element_type="float32") if x.dtype.itemsize == 2 else vnp.dot(x, y)


def in_int32(layout: str) -> Callable[[Any, Any], Any]:
    """Return the product of integers of 8 bits; of others in their own dtype."""

    def multiply(x: Any, y: Any) -> Any:
        x, y = x.T if layout[0] == "T" else x, y.T if layout[1] == "T" else y
        return vnp.dot(x, y, preferred_element_type="int32") if x.dtype == INT8 else vnp.dot(x, y)

    return multiply


def dequantised(x: Any, y: Any) -> Any:
    """Multiply integers of 8 bits, and scale the columns of the result."""
    return in_int32("NT")(x, y).astype("float32") * vnp.arange(1, y.shape[0] + 1, dtype="float32")


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Apply a layer with an activation and a residual connection."""
    return r + vf.nn.gelu(x @ w + b)


def heads(x: Any, y: Any) -> Any:
    """Multiply queries by keys, whose heads lie between positions and features."""
    return vnp.einsum("bthd,bshd->bhts", x, y)


def gated(x: Any, gate: Any, up: Any) -> Any:
    """Return a gated activation of two products."""
    return vf.nn.silu(x @ gate.T) * (x @ up.T)


def to_heads(x: Any, w: Any) -> Any:
    """Return a projection by heads."""
    return (x @ w).reshape(4, 256, 8, 64).transpose(0, 2, 1, 3)


def two_results(x: Any, w: Any, b: Any) -> Any:
    """Return a result, and where it is positive."""
    y = x @ w + b
    return y, y > 0


def masked(x: Any, w: Any) -> Any:
    """Return a product whose upper triangle is 0."""
    y = x @ w
    return vnp.where(vnp.tri(y.shape[0], y.shape[1], dtype=bool), y, 0)


def looped(x: Any, ws: Any) -> Any:
    """Multiply by one matrix after another."""
    return lax.scan(lambda carry, w: (vnp.tanh(carry @ w), None), x, ws)[0]


def branch(x: Any, y: Any) -> Any:
    """Multiply in the branch that is taken, and square in the other."""
    return lax.cond(x[0, 0] == x[0, 0], lambda: x @ y, lambda: (x @ y) ** 2)


def loss_gradient(w: Any, x: Any) -> Any:
    """Return the gradients of a layer."""
    return vf.grad(lambda w, x: vnp.sum(vnp.tanh(x @ w) / 64), argnums=(0, 1))(w, x)


def checks() -> list[Check]:
    """Return all checks."""
    result = []
    for dtype in (BFLOAT16, FLOAT16):
        for layout in ("NN", "NT", "TN", "TT"):
            product = laid_out(layout)
            for m, n, k in ((512, 512, 256), (520, 776, 264), (1160, 136, 1032)):
                result.append(Check(f"{layout} {m}x{n}x{k}", product, shapes_of(layout, m, n, k), dtype))
            result.append(Check(f"{layout} 6x256x264x200", product, shapes_of(layout, 256, 264, 200, 6), dtype))
        result.append(Check("results in float32", in_float32, ((512, 264), (264, 520)), dtype))
        result.append(Check("odd columns", laid_out("NT"), shapes_of("NT", 512, 1001, 256), dtype))
        result.append(Check("rows that are not aligned", laid_out("NN"), shapes_of("NN", 1024, 1001, 1003), dtype))
        result.append(Check("columns that are not aligned", laid_out("TN"), shapes_of("TN", 1001, 1024, 1000), dtype))
        result.append(Check("odd rows", laid_out("NN"), shapes_of("NN", 517, 1024, 256), dtype))
        result.append(Check("layer", layer, ((1024, 776), (776, 520), (520,), (1024, 520)), dtype))
        result.append(Check("split sums", laid_out("TN"), shapes_of("TN", 256, 264, 1 << 15), dtype))
        result.append(Check("split sums, layer", layer, ((128, 1 << 15), (1 << 15, 128), (128,), (128, 128)), dtype))
    result += [
        Check("heads", heads, ((4, 256, 8, 64), (4, 264, 8, 64))),
        *[Check(f"gated {n}", gated, ((1000, 520), (n, 520), (n, 520))) for n in (1031, 1208)],
        Check("to heads", to_heads, ((4, 256, 512), (512, 512))),
        Check("two results", two_results, ((1024, 512), (512, 520), (520,))),
        Check("a mask", masked, ((1024, 512), (512, 520))),
        Check("a matrix by itself", lambda x: x @ x.T, ((1024, 512),)),
        Check("a loop", looped, ((1024, 512), (6, 512, 512))),
        Check("a branch", branch, ((1024, 512), (512, 512)), expected=2),
        Check("gradients", loss_gradient, ((512, 512), (1024, 512)), expected=3),
        *[Check(f"rounded {x}", rounded(x), shapes_of(x, 1032, 1000, 1024), FLOAT32, rounds=True) for x in ("NN", "NT", "TN", "TT")],
        *[Check(f"pairs {x}", rounded(x, "bfloat16_3x"), shapes_of(x, 1032, 1000, 1023), FLOAT32) for x in ("NN", "NT", "TN", "TT")],
        *[Check(f"8 bits {x}", in_int32(x), shapes_of(x, 1032, 1000, 1040), INT8) for x in ("NN", "NT", "TN", "TT")],
        Check("8 bits, scaled", dequantised, ((1032, 1040), (1000, 1040)), INT8),
        Check("8 bits, split sums", in_int32("NT"), ((256, 1 << 15), (264, 1 << 15)), INT8),
        Check("many tiles", laid_out("NN"), shapes_of("NN", 4096, 4104, 512)),
        *[Check(f"few rows {x}", laid_out(x), shapes_of(x, *sizes)) for x, sizes in (("NN", (64, 4096, 512)), ("NT", (64, 512, 4096)))],
    ]
    return result


def on_matrix_units(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> int:
    """Return how many dispatches of a function's program are no shaders."""
    lowered = vf.jit(function).lower(*[vf.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays])
    plan = plan_program(lowered.jaxpr, (False,) * len(arrays), pipeline, opened_gpu().target, RoutineCache())
    return sum(header_of(run.source) is not None for run in runs(plan.commands))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return random numbers; those of long sums are small, unless they are integers."""
    if dtype.kind == "i":
        return rng.integers(-128, 128, shape, dtype)
    scale = max(shape[-2:]) ** -0.5 if len(shape) > 1 else 1.0
    return (rng.standard_normal(shape, np.float32) * scale).astype(dtype)


def relative_error(actual: Any, reference: Any) -> float:
    """Return ‖actual - reference‖ / ‖reference‖.

    Of bools it is the share that differs beyond what rounding explains.
    """
    x, y = np.asarray(actual), np.asarray(reference)
    if x.dtype == np.bool_:
        return max(0.0, float((x != y).mean()) - 0.01)
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.linalg.norm(x - y) / np.linalg.norm(y)) if np.isfinite(x).all() else float("inf")


def run_check(check: Check) -> bool:
    """Run a check and print its result; return whether it is right."""
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, shape, check.dtype) for shape in check.shapes]
    with vf.default_device("cpu"):
        reference = check.function(*[vnp.asarray(x.astype(np.float64)) for x in arrays])
    actual = vf.jit(check.function)(*[vnp.asarray(x) for x in arrays])
    pairs = list(zip(vf.tree.leaves(actual), vf.tree.leaves(reference), strict=True))
    errors = [relative_error(x, y) for x, y in pairs]
    tolerance = ROUNDED_TOLERANCE if check.rounds else max(TOLERANCES.get(np.dtype(x.dtype), 0.0) for x, _ in pairs)
    right = max(errors) <= tolerance
    count = on_matrix_units(check.function, arrays)
    expected = 0 if check.rounds and opened_gpu().capabilities.matrix_units != "wgmma" else check.expected
    enough = count >= expected
    verdict = "" if right and enough else "  WRONG" if not right else f"  NOT ON MATRIX UNITS: {count} of {expected}"
    print(f"{check.dtype.name:9s} {check.name:28s} {count} on matrix units, error {max(errors):.1e}{verdict}", flush=True)
    return right and enough


# Time products beside cuBLAS.


class Timed(NamedTuple):
    """A product as it occurs in networks.

    Operands of float32 may be rounded to TensorFloat-32.
    """

    layout: str
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: np.dtype = BFLOAT16

    @property
    def name(self) -> str:
        """Its dtype, layout and sizes."""
        dtype = {FLOAT32: "tf32", INT8: "s8"}.get(self.dtype, "bf16")
        return f"{dtype} {self.layout} {f'{self.batch}x' if self.batch > 1 else ''}{self.m}x{self.n}x{self.k}"

    @property
    def function(self) -> Callable[[Any, Any], Any]:
        """Return the product of operands as they are in memory."""
        return {FLOAT32: rounded, INT8: in_int32}.get(self.dtype, laid_out)(self.layout)

    @property
    def seconds(self) -> float:
        """Return about how long it takes."""
        return self.operations / 4e14 + 2e-6

    @property
    def repeated(self) -> int:
        """Return the number of products in a timed chain."""
        return min(MOST, max(FEWEST, round(CHAIN_SECONDS / self.seconds)))

    @property
    def calls(self) -> int:
        """Return the number of chains in a sample."""
        return max(1, round(SECONDS / (self.repeated * self.seconds)))

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


TIMED = [
    *[Timed(layout, 4096, 4096, 4096) for layout in ("NN", "TN", "NT")],
    Timed("NN", 8192, 8192, 8192),
    Timed("NN", 1024, 1024, 1024),
    Timed("NN", 512, 512, 512, 64),
    Timed("NN", 128, 128, 64, 96),
    *[Timed("NN", 1024, n, 256) for n in (256, 768, 1024)],
    *[Timed(layout, 1024, 256, 1024) for layout in ("NN", "NT")],
    Timed("TN", 256, 1024, 1024),
    Timed("NN", 128, 1024, 1024),
    Timed("TN", 1024, 1024, 128),
    Timed("NN", 32, 1024, 256),
    Timed("NT", 32, 256, 1024),
    Timed("TN", 256, 1024, 2048),
    *[Timed("NN", 4096, n, 768) for n in (2304, 3072, 768, 8192)],
    *[Timed(layout, 4096, 768, 3072) for layout in ("NN", "NT")],
    Timed("TN", 768, 3072, 4096),
    Timed("NT", 4096, 50257, 768),
    Timed("NT", 512, 4864, 896),
    Timed("NT", 512, 896, 4864),
    Timed("NT", 512, 896, 896),
    Timed("NT", 512, 128, 896),
    Timed("NT", 512, 1536, 576),
    Timed("NT", 512, 576, 1536),
    Timed("TN", 50257, 768, 4096),
    *[Timed(layout, n, n, n, dtype=FLOAT32) for n in (4096, 2048, 1024) for layout in ("NT", "NN", "TN", "TT")],
    *[Timed("NT", n, n, n, dtype=INT8) for n in (1024, 4096)],
]


def timer(product: Timed, operands: tuple[Any, Any]) -> Callable[[], float]:
    """Return a function that times the product on the device."""
    program = vf.jit(product.function)
    return chain(lambda: program(*operands), product.repeated)


def peer(product: Timed) -> Callable[[], float] | None:
    """Return PyTorch's timer of the same products, in a CUDA graph; None without CUDA."""
    torch = peers.torch()
    if torch is None:
        return None
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = {FLOAT32: torch.float32, INT8: torch.int8}.get(product.dtype, torch.bfloat16)
    scale = 40 if product.dtype == INT8 else 1
    shapes = shapes_of(product.layout, product.m, product.n, product.k, product.batch)
    x, y = [(scale * torch.randn(shape, device="cuda")).to(dtype) for shape in shapes]
    multiply = laid_out(product.layout)
    if product.dtype == INT8:
        assert product.layout == "NT", "torch._int_mm needs that"
        multiply = lambda x, y: torch._int_mm(x, y.T)

    def run() -> list[Any]:
        return [multiply(x, y) for _ in range(product.repeated)]

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()

    def sample() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(product.calls):
            graph.replay()
        torch.cuda.synchronize()
        assert len(outputs) == product.repeated
        return (time.perf_counter() - start) / product.calls / product.repeated

    return sample


def alternate(samplers: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median times, sampled by turns."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(SAMPLES):
        for name, sample in samplers.items():
            samples[name].append(sample())
    return {name: statistics.median(values) for name, values in samples.items()}


#: Schedules to try besides those that are chosen from.
FURTHER: tuple[AnySchedule, ...] = (
    Schedule(256, 2, stages=5, turns=True),
    *[Schedule(columns, 2, stages=stages) for columns, stages in ((224, 4), (160, 5), (96, 6))],
    Schedule(160, 2, blocks=2, stages=4),
    Schedule(128, 2, blocks=2, stages=4),
    Schedule(96, 2, blocks=2, stages=4),
    Schedule(96, 1, stages=4),
    Schedule(128, 2, stages=6),
    Schedule(128, 2, stages=6, turns=True),
    Schedule(64, 2, blocks=2, stages=6, turns=True),
    Schedule(64, 2, stages=8, turns=True),
    Schedule(64, 2, stages=6),
    Schedule(64, 1, stages=6),
    Schedule(128, 1, stages=4, splits=2),
    Schedule(64, 1, stages=4, splits=4),
    WarpSchedule(128, 256, stages=3),
    WarpSchedule(128, 128, stages=4),
    WarpSchedule(128, 64, 64, 32, stages=4),
    WarpSchedule(64, 64, 32, 32, stages=4, residents=2),
    WarpSchedule(32, 64, 16, 32, stages=4, residents=2),
    WarpSchedule(32, 32, 16, 32, stages=4, residents=2),
)


def tried(product: Timed) -> list[AnySchedule]:
    """Return the schedules that are tried for a product."""
    device = opened_gpu().capabilities
    along_k = (product.layout[0] == "N", product.layout[1] == "T") if product.dtype in HALVES else (True, True)

    def is_tried(s: AnySchedule) -> bool:
        if isinstance(s, WarpSchedule):
            return product.dtype in HALVES and s.copies(*along_k)
        return device.matrix_units == "wgmma" and s.copies(*along_k)

    return [s for s in (*candidates(device), *FURTHER) if s.shared <= device.block_memory and is_tried(s)]


def check_schedule(number: int) -> int:
    """Check one of the schedules that are tried; return 1 if a result is wrong.

    A kernel that accesses memory out of range ends the GPU for its process.
    """
    device, failures = opened_gpu().capabilities, 0
    schedules = [*candidates(device), *FURTHER]
    if number >= len(schedules):
        return 0
    for product in (Timed("NN", 520, 776, 264), Timed("TT", 520, 776, 264), Timed("NT", 32, 256, 1024), Timed("NN", 1024, 1024, 1024)):
        if schedules[number] not in tried(product):
            continue
        forced(schedules[number])
        check = Check(f"{product.name} {schedules[number]}", product.function, shapes_of(product.layout, product.m, product.n, product.k))
        failures += not run_check(check)
    return int(failures > 0)


def forced(schedule: AnySchedule | None) -> None:
    """Let all products use a schedule from now on; None: those that are chosen."""
    matmul.choose = _CHOOSE if schedule is None else lambda *_: schedule
    matmul.is_worthwhile = _IS_WORTHWHILE if schedule is None else lambda product, capabilities: True
    forget_routines()


_IS_WORTHWHILE = matmul.is_worthwhile
_CHOOSE = matmul.choose


def run_timed(product: Timed, best: dict[str, AnySchedule] | None) -> None:
    """Time a product and print the result.

    If `best` is given, all schedules are timed, and the fastest is put into it.
    """
    rng = np.random.default_rng(0)
    left, right = shapes_of(product.layout, product.m, product.n, product.k, product.batch)
    operands = vnp.asarray(numbers(rng, left, product.dtype)), vnp.asarray(numbers(rng, right, product.dtype))
    samplers = {"": timer(product, operands)}
    schedules: dict[str, AnySchedule] = {}
    for schedule in tried(product) if best is not None else ():
        forced(schedule)
        schedules[str(schedule)] = schedule
        samplers[str(schedule)] = timer(product, operands)
    if best is not None:
        forced(None)
        matmul.is_worthwhile = lambda product, capabilities: False
        samplers["shader"] = timer(product, operands)
    forced(None)
    theirs = peer(product)
    if theirs is not None:
        samplers["cuBLAS"] = theirs
    times = alternate(samplers)
    reference = times.get("cuBLAS", float("nan"))
    for name, seconds in sorted(times.items(), key=lambda pair: pair[1]):
        rate = product.operations / seconds / 1e12
        print(f"{product.name:24s} {seconds * 1e6:9.1f} us {rate:5.0f} TFLOP/s {reference / seconds:5.2f} of cuBLAS  {name}", flush=True)
    if best is not None:
        fastest = min(schedules, key=lambda name: times[name])
        if times[fastest] < 0.97 * times[""]:
            best[named(product)] = schedules[fastest]


def named(product: Timed) -> str:
    """Return the name by which a schedule of the product is found."""
    names: list[str] = []

    def choose(product: MatrixProduct, capabilities: TargetCapabilities, most_splits: int = 1) -> AnySchedule:
        names.append(product.name)
        return _CHOOSE(product, capabilities, most_splits)

    matmul.choose, matmul.is_worthwhile = choose, lambda product, capabilities: True
    shapes = shapes_of(product.layout, product.m, product.n, product.k, product.batch)
    on_matrix_units(product.function, [np.empty(shape, product.dtype) for shape in shapes])
    forced(None)
    return names[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.products", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="checks and products whose names match")
    parser.add_argument("--no-checks", action="store_true", help="only times")
    parser.add_argument("--no-times", action="store_true", help="only checks")
    parser.add_argument("--schedule", type=int, metavar="NUMBER", help="only check this one of the schedules that are tried")
    parser.add_argument("--tune", metavar="FILE", help="time all schedules, and write the fastest to a file")
    options = parser.parse_args(arguments)
    gpu = opened_gpu()
    if options.tune and not gpu.capabilities.matrix_units:
        parser.error(f"{gpu.capabilities.adapter} has no matrix units to tune for")
    print(f"{gpu.capabilities.adapter}: matrix units {gpu.capabilities.matrix_units or 'none'}", flush=True)
    if options.schedule is not None:
        return check_schedule(options.schedule)
    failures = 0
    for check in [] if options.no_checks else [c for c in checks() if re.search(options.only, c.name)]:
        try:
            failures += not run_check(check)
        except Exception as error:  # the others are checked all the same
            failures += 1
            print(f"{check.dtype.name:9s} {check.name:28s} FAILED {type(error).__name__}: {str(error)[:400]}", flush=True)
    best: dict[str, AnySchedule] | None = {} if options.tune else None
    for product in [] if options.no_times else [t for t in TIMED if re.search(options.only, t.name)]:
        run_timed(product, best)
    if options.tune and best:
        choices: Choices = {gpu.capabilities.adapter: best}
        write(Path(options.tune), choices)
    print(f"{failures} checks failed" if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
