"""Compile random programs as people write them, and compare with the same programs evaluated equation by equation in float64.

`python -m tests.fuzz lowering --count 20000` draws programs of blocks (`blocks.py`, `array_blocks.py`, `numeric_blocks.py`) with any
subset of their intermediate values as results, transforms them (derivatives by any subset of the inputs, second derivatives, `vmap`, loops,
`checkpoint`, mixed precision), and runs them as machine code, eagerly and in NumPy; `--gpu` on a GPU. Some have arrays of millions of
elements, axes without elements, or inputs of 16 or 64 bits. How far results may be off follows from the program
(`evaluation.py`). What differs is made small and printed; what was once wrong is in `lowering.txt`, one program a block, which
`--entry FILE` runs. A program is one way to transform one draft; its targets count once.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import cells, lowered
from tests.fuzz.array_blocks import ARRAY_BLOCKS
from tests.fuzz.blocks import BLOCKS
from tests.fuzz.evaluation import Reference, slope_difference
from tests.fuzz.numeric_blocks import NUMERIC_BLOCKS
from tests.fuzz.programs import MARGINS, on_target
from volta_fn import dtypes, lax, nn
from volta_fn.errors import OutOfBoundsError, VoltaError
from volta_fn.targets.cpu.runtime import program as cpu_programs

_NAMES = re.compile(r"\b[xv]\d+\b")
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
_SIZE_WEIGHTS = (2, 2, 2, 2, 3, 2, 3, 2, 2, 3, 2, 2, 3, 2, 1, 2, 1, 0.5, 1, 0.5, 0.2, 0.2, 0.1)
#: The most elements of a value, and statements of a program.
_LARGEST, _LONGEST = 30_000, 60
#: Sizes of large drafts, of which threads share a launch, and the most elements of their values.
_LARGE_SIZES, _MILLIONS = (3, 8, 33, 100, 256, 300, 1000, 1024, 2047, 4099, 70_001), 2_000_000
#: How often drafts are large, have an axis without elements, and have inputs of another dtype than float32.
_LARGE, _EMPTY, _OTHER_DTYPE = 0.04, 0.04, 0.2
#: Machine code whose results may take the memory of all arguments.
DONATED = "native, donated"
#: Eager calls on the CPU.
EAGER = "eager"
#: Not a target: the traced gradient beside slopes of the loss.
SLOPES = "slopes"
#: What occurs in programs whose gradients are meant not to be slopes: straight-through estimators, and clipped cotangents.
_WITH_OTHER_DERIVATIVES = ("straight_through", "clipped(", "stop_gradient")
#: Examples of a batch, and steps of a loop around a program.
_COPIES = 3


def normal(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Return normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * scale, np.float32)


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Return integers from `low` up to but without `high`, or `low` alone where an axis without elements leaves none."""
    return np.asarray(np.random.default_rng(seed).integers(low, max(high, low + 1), shape), np.int32)


_BLOCKS = {**BLOCKS, **ARRAY_BLOCKS, **NUMERIC_BLOCKS}
_NAMESPACE = {"jax": vf, "jnp": jnp, "lax": lax, "nn": nn, "np": np, "cells": cells}
_INPUTS = {"normal": normal, "integers": integers, "np": np}


@dataclass(frozen=True)
class Program:
    """Inputs and statements by name, results, and how the program is transformed, by which inputs, for which sum of its results."""

    inputs: dict[str, str] = field(default_factory=dict)
    lines: tuple[tuple[tuple[str, ...], str], ...] = ()
    results: tuple[str, ...] = ()
    way: str = "plain"
    names: tuple[str, ...] = ()
    total: str = "sum"

    def __str__(self) -> str:
        inputs = [f"{name} = {text}" for name, text in self.inputs.items()]
        lines = [f"{', '.join(targets)} = {text}" for targets, text in self.lines]
        return "\n".join([*inputs, *lines, f"return {', '.join(self.results)}", f"{self.way} {self.total} {' '.join(self.names)}".strip()])

    @classmethod
    def parse(cls, text: str) -> Program:
        """Return the program of a text as `str` writes it, without lines that begin with #."""
        *statements, results, way = [line for line in text.strip().split("\n") if not line.startswith("#")]
        inputs, lines = {}, []
        for line in statements:
            targets, _, expression = line.partition(" = ")
            if targets.startswith("x"):
                inputs[targets] = expression
            else:
                lines.append((tuple(targets.split(", ")), expression))
        name, total, *names = way.split()
        return cls(inputs, tuple(lines), tuple(results.removeprefix("return ").split(", ")), name, tuple(names), total)

    def needed(self) -> Program:
        """Return the part of the program that its results depend on."""
        wanted, lines = set(self.results), []
        for targets, text in reversed(self.lines):
            if wanted.intersection(targets):
                wanted.update(_NAMES.findall(text))
                lines.append((targets, text))
        inputs = {name: text for name, text in self.inputs.items() if name in wanted}
        return replace(self, inputs=inputs, lines=tuple(lines[::-1]), names=tuple([name for name in self.names if name in inputs]))

    def arguments(self) -> list[np.ndarray]:
        """Return the arguments of the transformed program."""
        arguments = []
        for name, text in self.inputs.items():
            value = eval(text, _INPUTS)
            if name in self.names and self.way in _STACKED:
                copies = [value + np.asarray(0.1 * i, value.dtype) for i in range(_COPIES)]
                value = np.stack(copies, -1 if self.way.endswith("last") else 0)
            arguments.append(value)
        return arguments

    def body(self) -> Callable[..., tuple[Any, ...]]:
        """Return the program as a function of its inputs."""
        codes = [(targets, compile(text, text, "eval")) for targets, text in self.lines]

        def body(*arguments: Any) -> tuple[Any, ...]:
            values = dict(zip(self.inputs, map(jnp.asarray, arguments), strict=True))
            for targets, code in codes:
                value = eval(code, {**_NAMESPACE, **values})
                values.update(zip(targets, vf.tree.leaves(value), strict=True))
            return tuple([values[name] for name in self.results])

        return body

    def function(self) -> Callable[..., Any]:
        """Return the transformed program."""
        return _WAYS[self.way](self)

    def loss(self, body: Callable[..., tuple[Any, ...]] | None = None) -> Callable[..., Any]:
        """Return the sum of the results as a function of the inputs."""
        compute = body or self.body()

        def loss(*arguments: Any) -> Any:
            terms = [x.astype(jnp.float32) for x in compute(*arguments) if x.dtype in dtypes.FLOATS]
            reduce = {
                "sum": jnp.sum,
                "mean": jnp.mean,
                "squares": lambda x: jnp.mean(x * x),
                "weighted": lambda x: jnp.sum(x * _weights(x)),
            }
            return sum(map(reduce[self.total], terms), start=jnp.float32(0))

        return loss

    def argnums(self) -> tuple[int, ...]:
        """Return the positions of the inputs that are differentiated, stacked or updated."""
        return tuple([i for i, name in enumerate(self.inputs) if name in self.names])


def _weights(x: Any) -> Any:
    return jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)


def _partial(program: Program, function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of those arguments that the program's transform is about, and these."""
    positions = program.argnums()

    def of_some(*some: Any) -> Any:
        values = [*arguments]
        for position, value in zip(positions, some, strict=True):
            values[position] = value
        return function(*values)

    return of_some, tuple([arguments[i] for i in positions])


def _gradient(program: Program, body: Callable[..., Any] | None = None) -> Callable[..., Any]:
    return vf.grad(program.loss(body), program.argnums())


def _jvp(program: Program) -> Callable[..., Any]:
    def tangent(*arguments: Any) -> Any:
        function, some = _partial(program, program.body(), arguments)
        return vf.jvp(function, some, tuple(map(jnp.cos, some)))

    return tangent


def _vjp(program: Program) -> Callable[..., Any]:
    def cotangent(*arguments: Any) -> Any:
        function, some = _partial(program, program.body(), arguments)
        results, pull = vf.vjp(lambda *x: tuple([r for r in function(*x) if r.dtype in dtypes.FLOATS]), *some)
        return results, pull(tuple([_weights(r).astype(r.dtype) for r in results]))

    return cotangent


def _hvp(program: Program) -> Callable[..., Any]:
    def product(*arguments: Any) -> Any:
        function, some = _partial(program, program.loss(), arguments)
        return vf.jvp(vf.grad(function, tuple(range(len(some)))), some, tuple(map(jnp.cos, some)))

    return product


def _gradient_norm(program: Program) -> Callable[..., Any]:
    def penalised(*arguments: Any) -> Any:
        function, some = _partial(program, program.loss(), arguments)
        gradient = vf.grad(function, tuple(range(len(some))))
        return vf.grad(lambda *x: function(*x) + sum([jnp.sum(g * g) for g in gradient(*x)]), tuple(range(len(some))))(*some)

    return penalised


def _vmapped(function: Callable[[Program], Callable[..., Any]], axis: int = 0) -> Callable[[Program], Callable[..., Any]]:
    def vmapped(program: Program) -> Callable[..., Any]:
        return vf.vmap(function(program), tuple([axis if name in program.names else None for name in program.inputs]))

    return vmapped


def _scanned(program: Program) -> Callable[..., Any]:
    """Run the program along a loop whose carry moves its first stacked input."""
    body = program.body()

    def scanned(*arguments: Any) -> Any:
        _, some = _partial(program, body, arguments)

        def step(carry: Any, rows: tuple[Any, ...]) -> tuple[Any, Any]:
            function, _ = _partial(program, body, arguments)
            results = function(*[row + carry.astype(row.dtype) for row in rows])
            moved = sum([jnp.tanh(r.astype(jnp.float32)).mean() for r in results if r.dtype in dtypes.FLOATS], start=jnp.float32(0))
            return 0.5 * carry + moved, results

        return lax.scan(step, jnp.float32(0.1), some)

    return scanned


def _scan_gradient(program: Program) -> Callable[..., Any]:
    scanned = _scanned(program)
    loss = program.loss(lambda *arguments: vf.tree.leaves(scanned(*arguments)))
    return vf.grad(loss, program.argnums())


def _conditional(program: Program) -> Callable[..., Any]:
    body = program.body()

    def conditional(*arguments: Any) -> Any:
        half = jnp.float32(0.5)
        other = lambda *x: tuple([r * half.astype(r.dtype) if r.dtype in dtypes.FLOATS else r for r in body(*x)])
        return lax.cond(sum([jnp.sum(x.astype(jnp.float32)) for x in arguments]) > 0, body, other, *arguments)

    return conditional


def _descent(program: Program, loop: str = "fori") -> Callable[..., Any]:
    """Take some steps of gradient descent in a loop."""
    loss = program.loss()

    def descent(*arguments: Any) -> Any:
        function, some = _partial(program, loss, arguments)
        gradient = vf.grad(function, tuple(range(len(some))))
        step = lambda x: tuple([p - 0.01 * g for p, g in zip(x, gradient(*x), strict=True)])
        if loop == "fori":
            return lax.fori_loop(0, _COPIES, lambda i, x: step(x), some)
        return lax.while_loop(lambda carry: carry[0] < _COPIES, lambda carry: (carry[0] + 1, step(carry[1])), (0, some))

    return descent


def _adam(program: Program) -> Callable[..., Any]:
    """Take a step of Adam, with a scaled loss and a check for infinities as in mixed precision."""
    loss = program.loss()

    def adam(*arguments: Any) -> Any:
        function, some = _partial(program, lambda *x: loss(*x) * 128, arguments)
        value, gradients = vf.value_and_grad(function, tuple(range(len(some))))(*some)
        gradients = [g / 128 for g in gradients]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in gradients]))
        firsts, seconds = [0.1 * g for g in gradients], [0.01 + 0.001 * g * g for g in gradients]
        moved = [p - 0.01 * m / (jnp.sqrt(s) + 1e-3) for p, m, s in zip(some, firsts, seconds, strict=True)]
        return value, finite, firsts, seconds, [jnp.where(finite, q, p) for p, q in zip(some, moved, strict=True)]

    return adam


_WAYS: dict[str, Callable[[Program], Callable[..., Any]]] = {
    "plain": Program.body,
    "grad": _gradient,
    "value_and_grad": lambda program: lambda *x: (program.body()(*x), _gradient(program)(*x)),
    "jvp": _jvp,
    "vjp": _vjp,
    "hvp": _hvp,
    "gradient_norm": _gradient_norm,
    "checkpoint": lambda program: _gradient(program, vf.checkpoint(program.body())),
    "nested": lambda program: _gradient(program, vf.jit(program.body())),
    "vmap": _vmapped(Program.body),
    "vmap_last": _vmapped(Program.body, -1),
    "vmap_grad": _vmapped(_gradient),
    "scan": _scanned,
    "scan_grad": _scan_gradient,
    "cond": _conditional,
    "fori": _descent,
    "while": lambda program: _descent(program, "while"),
    "adam": _adam,
}
_WAY_WEIGHTS = {"plain": 6, "grad": 8, "value_and_grad": 6, "adam": 2}
#: Ways that give a gradient and nothing else.
_GRADIENTS = frozenset({"grad", "checkpoint", "nested"})
#: Ways in which the named inputs have an axis of examples or steps.
_STACKED = frozenset({"vmap", "vmap_last", "vmap_grad", "scan", "scan_grad"})


class Draft:
    """A program under construction, whose statements are traced one by one for their types."""

    def __init__(self, seed: int, largest: int = 1 << 30) -> None:
        self.draw = random.Random(seed)
        self.half = self.draw.choice((None, None, None, "bfloat16", "float16"))
        self._largest = largest
        self.is_large = self.draw.random() < _LARGE
        self._dtype = self.draw.choice(("float64", "bfloat16", "float16")) if self.draw.random() < _OTHER_DTYPE else "float32"
        self._sizes = [*self.draw.choices(_LARGE_SIZES, k=3)] if self.is_large else self.draw.choices(_SIZES, _SIZE_WEIGHTS, k=3)
        if self.draw.random() < _EMPTY:
            self._sizes[0] = 0
        self._inputs: dict[str, str] = {}
        self._lines: list[tuple[tuple[str, ...], str]] = []
        self._values: dict[str, Any] = {}
        self._block: Callable[[Any], str] | None = None

    def size(self) -> int:
        """Return a random size: often one that the program has already."""
        size = self.draw.choice(self._sizes) if self.is_large or self.draw.random() < 0.6 else self.draw.choices(_SIZES, _SIZE_WEIGHTS)[0]
        return min(size, self._largest)

    def pick(self, rank: int | None = None, least: int = 0) -> str:
        """Return a variable of `rank` axes or at least `least`, or a new input."""
        fits = [n for n, v in self._values.items() if v.dtype in dtypes.FLOATS and v.ndim >= least and (rank is None or v.ndim == rank)]
        if fits and self.draw.random() < 0.85:
            return self.draw.choice(fits[-8:])
        axes = self.draw.randint(max(least, 1), 3) if rank is None else rank
        return self.new(tuple([self.size() for _ in range(axes)]))

    def like(self, name: str) -> str:
        """Return another variable of the same shape, or a new input."""
        fits = [n for n, v in self._values.items() if v.dtype in dtypes.FLOATS and v.shape == self.shape(name) and n != name]
        return self.draw.choice(fits) if fits and self.draw.random() < 0.7 else self.new(self.shape(name))

    def new(self, shape: tuple[int, ...], scale: float = 1.0) -> str:
        """Return a new input of normal numbers, of the dtype of the draft's inputs."""
        text = f"normal({self.draw.randrange(10**6)}, {shape}, {scale:.3g})"
        cast = "" if self._dtype == "float32" else f".astype({self._dtype!r})"
        return self._input(text + cast, shape, np.dtype(self._dtype))

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> str:
        """Return a new int32 input of numbers from `low` up to but without `high`."""
        return self._input(f"integers({self.draw.randrange(10**6)}, {shape}, {low}, {high})", shape, np.int32)

    def array(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return a new input of a dtype: normal numbers, bools, or integers."""
        seed = self.draw.randrange(10**6)
        if dtype == "bool":
            text = f"integers({seed}, {shape}, 0, 2)"
        elif np.dtype(dtype).kind in "iu":
            text = f"integers({seed}, {shape}, {0 if dtype.startswith('u') else -9}, 60)"
        else:
            text = f"normal({seed}, {shape}, 1)"
        return self._input(f"{text}.astype({dtype!r})", shape, np.dtype(dtype))

    def _input(self, text: str, shape: tuple[int, ...], dtype: Any) -> str:
        if math.prod(shape) > _MILLIONS:
            raise _TooLarge
        name = f"x{len(self._inputs)}"
        self._inputs[name] = text
        self._values[name] = jnp.zeros(shape, dtype)
        return name

    def emit(self, text: str, count: int = 1) -> Any:
        """Add a statement; return its variable, or its `count` variables."""
        first = sum([len(targets) for targets, _ in self._lines])
        targets = tuple([f"v{first + i}" for i in range(count)])
        values = vf.tree.leaves(eval(text, {**_NAMESPACE, **self._values}))
        if any(value.size > (_MILLIONS if self.is_large else _LARGEST) for value in values):
            raise _TooLarge
        self._lines.append((targets, text))
        self._values.update(zip(targets, values, strict=True))
        return targets[0] if count == 1 else targets

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable."""
        return tuple(self._values[name].shape)

    def low(self, name: str) -> str:
        """Return an expression of a variable in the dtype of products."""
        return name if self.half is None or self._values[name].dtype == self.half else f"{name}.astype(jnp.{self.half})"

    def full(self, name: str) -> str:
        """Return an expression of a variable in float32."""
        return name if self._values[name].dtype == np.float32 else f"{name}.astype(jnp.float32)"

    def add(self) -> None:
        """Add a block, unless its values are refused or too large."""
        inputs, lines, values = dict(self._inputs), [*self._lines], dict(self._values)
        if self._block is None or self.draw.random() > 0.3:  # networks repeat their blocks
            self._block = self.draw.choices([*_BLOCKS], [*_BLOCKS.values()])[0]
        try:
            self._block(self)
        except (_TooLarge, VoltaError):
            self._inputs, self._lines, self._values = inputs, lines, values

    def programs(self, count: int) -> Iterator[Program]:
        """Yield the program in several ways."""
        variables = [target for targets, _ in self._lines for target in targets]
        for _ in range(count):
            amount = self.draw.choice((1, 2, self.draw.randint(1, len(variables)), len(variables)))
            results = sorted(self.draw.sample(variables, min(amount, len(variables))), key=variables.index)
            if self.draw.random() < 0.1:
                results = variables[-1:]
            program = Program(self._inputs, tuple(self._lines), tuple(results)).needed()
            ways = ("plain", "grad", "value_and_grad") if self.is_large else [*_WAYS]
            way = self.draw.choices(ways, [_WAY_WEIGHTS.get(way, 1) for way in ways])[0]
            names = [name for name, text in program.inputs.items() if text.startswith("normal")]
            if not names or not any(self._values[name].dtype in dtypes.FLOATS for name in results):
                way = "plain"
            names = self.draw.sample(names, self.draw.choice((1, len(names), self.draw.randint(1, len(names))))) if names else []
            total = self.draw.choice(("sum", "mean", "squares", "weighted"))
            names = sorted(names, key=[*program.inputs].index) if way != "plain" else []
            yield replace(program, way=way, names=tuple(names), total=total)


class _TooLarge(Exception):  # no error: the block is not added
    """A value has too many elements."""


def drawn(seed: int, count: int, largest: int = 1 << 30) -> list[Program]:
    """Return the programs of a seed: one draft in several ways."""
    drafts: list[Draft] = []

    def draft() -> tuple[()]:
        draft = Draft(seed, largest)
        drafts.append(draft)
        blocks_left = draft.draw.choice((1, 2) if draft.is_large else (1, 1, 2, 2, 3, 4, 6))
        while not draft._lines or (blocks_left > 0 and len(draft._lines) < _LONGEST):
            draft.add()
            blocks_left -= 1
        return ()

    vf.eval_shape(draft)
    return [*drafts[0].programs(1 if drafts[0].is_large else count)]


class Case:
    """A program with what it should give."""

    def __init__(self, program: Program) -> None:
        self.program, self.arguments = program, program.arguments()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.closed = vf.make_jaxpr(program.function())(*self.arguments)
            self.reference = Reference(self.closed, self.arguments)

    def targets(self, targets: Sequence[str], number: int) -> list[str]:
        """Return the targets that the n-th program of a draft is tried on: memory is given away and calls are eager once.

        Large programs are run, and plain GPUs lack what 64 bits need.
        """
        # Eagerly, arrays that are computed of Python's numbers alone are rounded to 32 bits.
        has_wide = any(aval.dtype == np.float64 for aval in self.closed.in_avals)
        skipped = {DONATED: number != 0, EAGER: number != 1 or has_wide}
        if any(x.size > _LARGEST for x in self.arguments):
            skipped |= dict.fromkeys([SLOPES, *lowered.TARGETS], True)
        if any(aval.dtype.itemsize == 8 and aval.dtype.kind in "fiu" for aval in self.closed.in_avals):
            skipped["lowered for a plain GPU"] = True
        return [target for target in targets if not skipped.get(target, False)]

    def fault(self, target: str) -> str | None:
        """Return how the compiled program differs on a target, or its error."""
        if target == SLOPES:
            return self._slope_difference()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                calls = self._calls(target)
            except Exception as error:
                if target == EAGER and isinstance(error, OutOfBoundsError):  # which compiled programs drop
                    return None
                last = traceback.extract_tb(error.__traceback__)[-1]
                return f"{type(error).__name__}: {error!s:.300} ({Path(last.filename).name}:{last.lineno})"
        differences = [self.reference.difference(results) for results in calls]
        return next((str(difference) for difference in differences if difference is not None), None)

    def _slope_difference(self) -> str | None:
        text = str(self.program)
        # Constants of derivatives are rounded to 16 bits.
        if self.program.way not in _GRADIENTS or any(name in text for name in ("float16", *_WITH_OTHER_DERIVATIVES)):
            return None
        loss = vf.make_jaxpr(self.program.loss())(*self.arguments)
        return slope_difference(loss, self.arguments, self.program.argnums(), self.reference)

    def _calls(self, target: str) -> list[list[np.ndarray]]:
        """Return the results of two calls, of which the second must leave those of the first and the arguments as they are."""
        if target in lowered.TARGETS:
            return [lowered.run(self.closed, lowered.TARGETS[target], self.arguments)]
        with on_target("native" if target in (DONATED, EAGER) else target), patch.object(cpu_programs, "np", MARGINS):
            function = self.program.function()
            if target != EAGER:
                function = vf.jit(function, donate_argnums=range(len(self.arguments)) if target == DONATED else ())
            arguments = [jnp.array(x) for x in self.arguments]
            calls = [vf.tree.leaves(function(*arguments))]
            if target != DONATED:
                calls.append(vf.tree.leaves(function(*arguments)))
                unchanged = [np.array_equal(x, y) for x, y in zip(arguments, self.arguments, strict=True)]
                assert all(unchanged), f"a call changed its arguments {unchanged}"
            MARGINS.check()
            return [[np.asarray(x) for x in results] for results in calls]


def fault(program: Program, target: str) -> str | None:
    """Return how a program differs on a target; None if it is right, or refused before it is compiled."""
    try:
        case = Case(program)
    except Exception:
        return None
    return case.fault(target)


def minimised(program: Program, target: str, redraw: Callable[[int], Program] | None = None) -> Program:
    """Return a small program that differs, too: smaller sizes, fewer results, statements and inputs.

    `redraw` draws the program with sizes up to a limit.
    """
    smallest = program
    if redraw is not None:
        for largest in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33):
            candidate = redraw(largest)
            if fault(candidate, target) is not None:
                smallest = candidate
                break
    size = -1
    while size != (size := len(str(smallest))):
        for candidate in _smaller(smallest):
            if fault(candidate, target) is not None:
                smallest = candidate
                break
        else:
            break
        size = 0
    return smallest


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with a part less."""
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,)).needed()
        for name in program.results:
            yield replace(program, results=tuple([other for other in program.results if other != name])).needed()
    types = _types(program)
    for number in reversed(range(len(program.lines))):
        targets, _ = program.lines[number]
        inputs = dict(program.inputs)
        renamed = {}
        for target in targets:
            name = f"x{1 + max([int(other[1:]) for other in inputs], default=0)}"
            shape, dtype = types[target]
            if dtype in dtypes.FLOATS:
                inputs[name] = f"normal({number}, {shape})" + ("" if dtype == np.float32 else f".astype('{dtype}')")
            elif dtype.kind in "iub":
                inputs[name] = f"np.ones({shape}, np.{dtype})"
            else:
                break
            renamed[target] = name
        else:
            if set(targets).intersection(program.results):
                continue
            lines = [
                (t, _NAMES.sub(lambda match: renamed.get(match[0], match[0]), text))
                for i, (t, text) in enumerate(program.lines)
                if i != number
            ]
            yield replace(program, inputs=inputs, lines=tuple(lines)).needed()
    if len(program.names) > 1:
        for name in program.names:
            yield replace(program, names=(name,))
        for name in program.names:
            yield replace(program, names=tuple([other for other in program.names if other != name]))
    if program.way != "plain":
        yield replace(program, way="plain", names=())
    if program.way not in ("plain", "grad"):
        yield replace(program, way="grad")
    if program.way not in ("plain", "grad", "value_and_grad"):
        yield replace(program, way="value_and_grad")
    if program.total != "sum":
        yield replace(program, total="sum")


def _types(program: Program) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the shapes and dtypes of all statements' variables."""
    every = replace(program, results=tuple([target for targets, _ in program.lines for target in targets]))
    values = vf.eval_shape(every.body(), *[eval(text, _INPUTS) for text in program.inputs.values()])
    return {name: (value.shape, value.dtype) for name, value in zip(every.results, values, strict=True)}


def check(seeds: range, targets: Sequence[str], *, ways: int = 4, until: float = float("inf")) -> tuple[int, list[str]]:
    """Compare the programs of seeds; return how many there were, and reports of what differs."""
    count, reports, errors = 0, [], set()
    for seed in seeds:
        for number, program in enumerate(drawn(seed, ways)):
            if time.monotonic() > until:
                return count, reports
            try:
                case = Case(program)
            except VoltaError:  # a derivative that does not exist
                continue
            count += 1
            for target in case.targets(targets, number):
                text = case.fault(target)
                if text is None:
                    continue
                report = f"# seed {seed}, program {number}, {target}: {text}\n"
                place = text.rpartition("(")[2] if not text.startswith("output") else None
                if place is None or place not in errors:  # an error of one place in the compiler is made small once
                    errors.add(place)
                    small = minimised(program, target, lambda largest: drawn(seed, ways, largest)[number])
                    report += f"# {fault(small, target)}\n{small}\n"
                reports.append(report)
                print(report, flush=True)
        if seed % 16 == 15:
            vf.clear_caches()
        if seed % 32 == 31:
            print(f"{count} programs, up to seed {seed}", file=sys.stderr, flush=True)
    return count, reports


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz lowering", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many programs (default 20,000)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many minutes")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, instead of machine code and NumPy")
    parser.add_argument(
        "--lowered", action="store_true", help="as it is lowered for each target, interpreted, and in NumPy: no code is generated"
    )
    parser.add_argument("--entry", type=Path, help="run the programs of a file, separated by empty lines")
    options = parser.parse_args(argv)
    targets = (
        ("gpu",)
        if options.gpu
        else (SLOPES, "numpy", *lowered.TARGETS)
        if options.lowered
        else (SLOPES, "native", DONATED, EAGER, "numpy", *lowered.TARGETS)
    )
    if options.entry is not None:
        texts = [block for block in options.entry.read_text().split("\n\n") if block.strip()]
        faults = [(text, target, fault(Program.parse(text), target)) for text in texts for target in targets]
        print(*[f"{target}: {difference}\n{text}" for text, target, difference in faults], sep="\n")
        return any(difference is not None for _, _, difference in faults)
    start = time.monotonic()
    ways = 4
    seeds = range(options.seed, options.seed + -(-options.count // ways))
    count, reports = check(seeds, targets, ways=ways, until=start + 60 * options.minutes)
    print(f"{count} programs on {', '.join(targets)} in {time.monotonic() - start:.0f} s, {len(reports)} differences")
    return bool(reports)
