"""Run random programs on every target, eagerly, jitted and vmapped, and compare; print the smallest part of what differs.

`python -m tests.fuzz.programs --count 20000` compares NumPy's target with machine code; `--gpu` adds the GPU and `--jax` JAX. A difference
is more than what inputs that are changed in their last digit explain. What was once wrong is in `corpus.txt`, one program a block.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import documented
from tests.fuzz.operations import ALL, COMPLEX, FLOATS, RULES, statement
from volta_fn import lax
from volta_fn.core.devices import device as devices
from volta_fn.errors import VoltaError
from volta_fn.targets.cpu.runtime import program as cpu_programs

_NAMES = re.compile(r"\b[xv]\d+\b")
_SIZES = (1, 2, 3, 5)
#: Sizes that fill vectors of a CPU and leave some lanes over, and the most elements of results in programs without and with them.
_LONG_SIZES = (15, 17, 33, 65, 129, 145, 257, 1025)
_ELEMENTS, _LONG_ELEMENTS = 3000, 40_000
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e3)
#: How far apart results of equal inputs may be, relative to the largest, by the bits of a float.
_TOLERANCE = {"float64": 1e-10, "float32": 3e-5, "float16": 1e-2, "bfloat16": 6e-2, "complex64": 1e-4, "complex128": 1e-9}
OURS = {"jax": vf, "jnp": jnp, "lax": lax, "np": np}

Values = dict[str, np.ndarray]


@dataclass
class Program:
    """Inputs by name, and statements ``name = expression``."""

    inputs: Values
    lines: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        operands = [f"{name} = np.array({value.tolist()!r}, {value.dtype.name!r})" for name, value in self.inputs.items()]
        return "\n".join([*operands, *[f"{name} = {text}" for name, text in self.lines]]).replace("nan", "np.nan").replace("inf", "np.inf")

    def function(self, namespace: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Return the program as a function of its inputs."""
        codes = [(name, compile(text, text, "eval")) for name, text in self.lines]

        def run(inputs: dict[str, Any]) -> dict[str, Any]:
            values = dict(inputs)
            for name, code in codes:
                values[name] = eval(code, {**namespace, **values})
            return {name: values[name] for name, _ in codes}

        return run


class Drawing:
    """A program under construction: the pool of `operations`."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.special = self.draw.random() < 0.3
        self.long = self.draw.random() < 0.15
        self.program = Program({})
        self.values: dict[str, Any] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable."""
        return tuple(self.values[name].shape)

    def dtype(self, name: str) -> str:
        """Return the name of a variable's dtype."""
        return str(self.values[name].dtype.name)

    def new(self, dtype: str, shape: tuple[int, ...], *, most: int | None = None) -> str:
        """Return a new input."""
        name = f"x{len(self.program.inputs)}"
        self.program.inputs[name] = self._numbers(np.dtype(getattr(ml_dtypes, dtype, dtype)), shape, most)
        self.values[name] = jnp.asarray(self.program.inputs[name])
        return name

    def _numbers(self, dtype: np.dtype, shape: tuple[int, ...], most: int | None) -> np.ndarray:
        if dtype.kind == "b":
            return np.asarray(self.numbers.random(shape) < 0.5)
        if dtype.kind in "iu":
            return np.asarray(
                self.numbers.integers(0 if dtype.kind == "u" else -5, 6, shape)
                if most is None
                else self.numbers.integers(0, most + 1, shape)
            ).astype(dtype)
        result = np.array(self.numbers.normal(size=shape))
        if self.special and result.size:
            result.reshape(-1)[self.numbers.integers(result.size)] = self.draw.choice(_SPECIAL)
        return (result + (1j * self.numbers.normal(size=shape) if dtype.kind == "c" else 0)).astype(dtype)

    def pick(self, dtypes: tuple[str, ...] = ALL, *, rank: int | None = None, least: int = 0) -> str:
        """Return a variable of one of these dtypes, or a new input."""
        fits = [n for n in self.values if self.dtype(n) in dtypes and len(self.shape(n)) >= least and 0 not in self.shape(n)]
        fits = [n for n in fits if rank is None or len(self.shape(n)) == rank]
        if fits and self.draw.random() < 0.85:
            return self.draw.choice(fits[-5:])
        axes = self.draw.randint(least, 3) if rank is None else rank
        shape = [self.draw.choice(_SIZES) for _ in range(axes)]
        if self.long and axes:
            shape[self.draw.randrange(axes)] = self.draw.choice(_LONG_SIZES)
        return self.new(self.draw.choice(dtypes), tuple(shape))

    def like(self, name: str, dtype: str | None = None) -> str:
        """Return a variable of the same shape."""
        wanted = dtype or self.dtype(name)
        fits = [n for n in self.values if self.dtype(n) == wanted and self.shape(n) == self.shape(name)]
        return self.draw.choice(fits) if fits and self.draw.random() < 0.6 else self.new(wanted, self.shape(name))

    def add(self) -> None:
        """Add a statement, unless what was drawn is refused."""
        values, inputs = dict(self.values), dict(self.program.inputs)
        try:
            text = statement(self, RULES[self.draw.choice([*RULES])])
            result = eval(text, {**OURS, **self.values})
        except VoltaError:
            result = None
        if result is None or result.size > (_LONG_ELEMENTS if self.long else _ELEMENTS) or result.ndim > 5:
            self.values, self.program.inputs = values, inputs
            return
        name = f"v{len(self.program.lines)}"
        self.program.lines.append((name, text))
        self.values[name] = result


def drawn(seed: int) -> Program:
    """Return the random program of a seed."""
    drawing = Drawing(seed)
    with on_target("numpy"):
        for _ in range(drawing.draw.choice((1, 2, 3, 5, 8))):
            drawing.add()
    return needed(drawing.program, [name for name, _ in drawing.program.lines])


def needed(program: Program, results: Sequence[str]) -> Program:
    """Return the part of a program that some results depend on."""
    wanted, lines = set(results), []
    for name, text in reversed(program.lines):
        if name in wanted:
            wanted.update(_NAMES.findall(text))
            lines.append((name, text))
    return Program({name: value for name, value in program.inputs.items() if name in wanted}, lines[::-1])


@contextlib.contextmanager
def on_target(target: str) -> Iterator[None]:
    """Run on "numpy", "native" or "gpu"."""
    backend: Any = vf.devices("cpu")[0].backend
    native, default = backend.native, devices._process_default
    backend.native = target == "native"
    devices._process_default = vf.devices("gpu" if target == "gpu" else "cpu")[0]
    try:
        yield
    finally:
        backend.native, devices._process_default = native, default


class Margins:
    """NumPy, for programs in machine code: results lie between margins that tell whether something was written beside them."""

    def __init__(self) -> None:
        self._made: list[tuple[np.ndarray, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with undefined elements."""
        size = math.prod(shape) * dtype.itemsize
        block = np.full(size + 128, 0xA5, np.uint8)
        block[64 : 64 + size] = 0xFF  # NaN, or -1
        self._made.append((block, size))
        return block[64 : 64 + size].view(dtype).reshape(shape)

    def check(self) -> None:
        """Raise `AssertionError` if a margin has changed."""
        blocks, self._made = self._made, []
        for block, size in blocks:
            assert (block[:64] == 0xA5).all() and (block[64 + size :] == 0xA5).all(), f"written beside a result of {size} bytes"


MARGINS = Margins()


def run(program: Program, target: str, way: str) -> Values | str:
    """Return a program's results, or its error: "eager", "jit" or "vmap"."""
    with patch.object(cpu_programs, "np", MARGINS), patch.object(cpu_programs, "LARGE", sys.maxsize):
        result = _run(program, target, way)
    try:
        MARGINS.check()
    except AssertionError as error:
        return f"AssertionError: {error}"
    return result


def _run(program: Program, target: str, way: str) -> Values | str:
    function = program.function(OURS)
    arguments = {name: value if way != "vmap" else np.stack([value, value]) for name, value in program.inputs.items()}
    try:
        with on_target(target), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = {"eager": lambda x: function(vf.tree.map(jnp.asarray, x)), "jit": vf.jit(function), "vmap": vf.jit(vf.vmap(function))}
            if way == "vmap" and not arguments:
                way = "jit"
            result = {name: np.asarray(value) for name, value in wrapped[way](arguments).items()}
            return {name: value[0] for name, value in result.items()} if way == "vmap" else result
    except VoltaError as error:
        return f"{type(error).__name__}: {error.message}"


def run_in_jax(program: Program) -> Values | str:
    """Return a program's results in JAX, or its error."""
    import jax

    namespace = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "np": np}
    try:
        with jax.enable_x64(True):
            return {name: np.asarray(value) for name, value in jax.jit(program.function(namespace))(program.inputs).items()}
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def spreads(program: Program, wanted: Values) -> Values:
    """Return how much results change when inputs change in their last digits."""
    actual = {name: np.zeros(value.shape) for name, value in wanted.items()}
    for seed in range(3):
        signs = np.random.default_rng(seed)
        inputs = {}
        for name, value in program.inputs.items():
            inexact = value.dtype.name in (*FLOATS, *COMPLEX)
            step = float(ml_dtypes.finfo(value.dtype).eps) * signs.choice([-2.0, 2.0], value.shape) if inexact else 0
            with np.errstate(all="ignore"):
                inputs[name] = (value * (1 + step)).astype(value.dtype) if inexact else value
        changed = run(Program(inputs, program.lines), "numpy", "eager")
        if isinstance(changed, dict):
            with np.errstate(all="ignore"):
                for name, value in wanted.items():
                    difference = np.abs(_wide(changed[name]) - _wide(value))
                    unequal = ~((_wide(changed[name]) == _wide(value)) | (np.isnan(difference) & np.isnan(_wide(value))))
                    actual[name] = np.maximum(actual[name], np.where(unequal, np.where(np.isfinite(difference), difference, np.inf), 0))
    return actual


def _wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def tolerances(program: Program, values: Values) -> dict[str, float]:
    """Return how far apart results may be: as far as the least precise of the results that they are computed of."""
    results: dict[str, float] = {}
    for name, text in program.lines:
        operands = [results[used] for used in _NAMES.findall(text) if used in results]
        results[name] = max([_TOLERANCE.get(values[name].dtype.name, 0), *operands])
    return results


Lane = Callable[[Program], Values | str]


@dataclass
class Reference:
    """What eager NumPy gives, and by how much that changes with the last digits of the inputs."""

    values: Values | str
    spread: Values
    tolerance: dict[str, float]

    @classmethod
    def of(cls, program: Program) -> Reference:
        """Run a program."""
        values = run(program, "numpy", "eager")
        return cls(values, {}, {}) if isinstance(values, str) else cls(values, spreads(program, values), tolerances(program, values))


def difference(actual: Values | str, reference: Reference, excused: Collection[str] = ()) -> tuple[str, str] | None:
    """Return the first result that differs by more than its spread explains, and how."""
    wanted, spread = reference.values, reference.spread
    if isinstance(actual, str) or isinstance(wanted, str):
        both = isinstance(actual, str) and isinstance(wanted, str) and "written beside" not in actual
        return None if both else ("", f"{actual!s:.200} instead of {wanted!s:.200}")
    for name, value in wanted.items():
        if name in excused:
            continue
        other = actual[name]
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            return name, f"{other.dtype}{other.shape} instead of {value.dtype}{value.shape}"
        a, b = _wide(other), _wide(value)
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
            bound = 100 * spread[name] + reference.tolerance[name] * (np.abs(b) + min(scale, 1e30))
            if value.dtype.name in _TOLERANCE:
                bound += 100 * float(ml_dtypes.finfo(value.dtype).tiny)
            wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(spread[name]))
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            return name, f"{int(wrong.sum())} of {value.size}, at {where} {other[where]!r} instead of {value[where]!r}"
    return None


def compared(program: Program, lane: Lane, wanted: Reference | None = None, way: str = "") -> tuple[str, str] | None:
    """Return what a lane gives that eager NumPy does not, unless that is documented of this way to run programs."""
    wanted = wanted or Reference.of(program)
    excused = () if isinstance(wanted.values, str) else documented.excused(way, program.lines, {**program.inputs, **wanted.values})
    return difference(lane(program), wanted, excused)


def minimised(program: Program, lane: Lane, way: str = "") -> Program:
    """Return the smallest part of a program that still differs.

    Later statements get the values of earlier ones as inputs, and go if nothing needs them.
    """
    smallest, values = program, run(program, "numpy", "eager")
    if isinstance(values, str):
        return program
    for start in range(len(program.lines)):
        for end in range(start + 1, len(program.lines) + 1):
            inputs = {**program.inputs, **{name: values[name] for name, _ in program.lines[:start]}}
            part = needed(Program(inputs, program.lines[start:end]), [program.lines[end - 1][0]])
            if len(part.lines) < len(smallest.lines) and compared(part, lane, way=way) is not None:
                smallest = part
    return smallest


def lanes(*, gpu: bool = False, jax: bool = False) -> dict[str, Lane]:
    """Return the ways to run a program, by name."""
    targets = ["numpy", "native", *(["gpu"] if gpu else [])]
    results: dict[str, Lane] = {}
    for target in targets:
        for way in ("eager", "jit", "vmap"):
            results[f"{target} {way}"] = lambda program, target=target, way=way: run(program, target, way)
    del results["numpy eager"]
    return {**results, **({"JAX": run_in_jax} if jax else {})}


def check(seeds: range, ways: dict[str, Lane], until: float = float("inf")) -> tuple[int, list[str]]:
    """Compare the programs of seeds; return how many there were, and reports of what differs."""
    reports = []
    for count, seed in enumerate(seeds):
        if time.monotonic() > until:
            return count, reports
        program = drawn(seed)
        wanted = Reference.of(program)
        for name, lane in ways.items():
            actual = compared(program, lane, wanted, name) if program.lines else None
            if actual is not None:
                reports.append(f"# seed {seed}, {name}: {actual[0]}: {actual[1]}\n{minimised(program, lane, name)}\n")
                print(reports[-1], flush=True)
    return len(seeds), reports


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many programs (default 20,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--gpu", action="store_true", help="also on the GPU")
    parser.add_argument("--jax", action="store_true", help="also in JAX")
    options = parser.parse_args(argv)
    ways = lanes(gpu=options.gpu, jax=options.jax)
    count, reports = check(range(options.first, options.first + options.count), ways, time.monotonic() + options.seconds)
    print(f"{count} programs in {len(ways) + 1} ways, {len(reports)} differences")
    return bool(reports)


if __name__ == "__main__":
    sys.exit(main())
