"""Transform random functions in chains (`grad`, `vmap`, `jvp` of `grad`, `checkpoint`, …), and compare with plain Python or JAX.

`python -m tests.fuzz transforms --count 20000` draws statements (`transform_blocks.py`), and chains of transformations of all that they
compute, so that derivatives, batches and transposes of control flow, of indices, windows and factors meet in every order. They should give
what straight-line programs do, of which every step and example is evaluated by itself, and gradients are of forward mode
(`plain_control.py`), or with `--jax` what JAX gives: in float64, whatever dtype they have here. A difference is more than what the last
digits of the inputs explain. `--entry FILE` runs programs as they are printed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import volta_fn as vf
from tests.fuzz.plain_control import PLAIN
from tests.fuzz.programs import on_target
from tests.fuzz.transform_blocks import BLOCKS, helpers
from tests.fuzz.transform_calls import CALL_BLOCKS, DEVICES, call_helpers
from tests.fuzz.transform_kinds import KIND_BLOCKS
from volta_fn import dtypes
from volta_fn.errors import OutOfBoundsError, VoltaError

_NAMES = re.compile(r"\b[xv]\d+\b")
_SIZES = (1, 2, 3, 3, 4, 5)
_HALVES = ("bfloat16", "float16")
#: The most elements of a value.
_LARGEST = 400
#: Transformations, and how often they are drawn.
_STEPS = {
    "grad": 4, "vjp": 2, "jvp": 3, "linearize": 1, "jacrev": 1, "jacfwd": 1, "checkpoint": 2, "checkpoint_dots": 1, "jit": 1, "vmap": 3,
    "vmap_last": 2, "vmap_first_input": 2, "vmap_others": 2, "map": 1, "scan": 1, "cond": 1, "descent": 1,
    "custom_vjp": 1, "custom_jvp": 1, "checkpoint_named": 1, "jit_scan_vmap_jit": 1, "hessian": 1, "closure_convert": 1,
}  # fmt: skip
#: Ways to run a program here: a target, and whether it is compiled, and may take the memory of its arguments for its results.
WAYS = (("numpy", "eager"), ("native", "jit"), ("native", "eager"), ("native", "donated"), ("numpy", "jit"))
#: How far apart results of equal inputs may be: units in the last place of the largest value, with those on the way.
_UNITS = 8
#: How many times what results change by when inputs and statements' values change by two units in the last place.
_SPREADS = 16
#: What JAX takes and this package does not, by a part of the error, and why.
_REFUSALS = {
    "computes in": "factors of matrices of 16 bits, which JAX's CPU lacks as well, once it runs",
    "cannot pass a while_loop": "JAX lets the gradient pass a branch that is not taken, or a loop whose results no input moves",
    "has no spectrum unless n": "NumPy refuses it, too",
    "a custom_vjp rule, which has only a reverse derivative": "in a branch that is not taken",
}

Function = Callable[..., tuple[Any, ...]]


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    """Return normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.dtype(getattr(ml_dtypes, dtype, dtype)))


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Return integers from `low` up to but without `high`, or `low` alone."""
    return np.asarray(np.random.default_rng(seed).integers(low, max(high, low + 1), shape), np.int32)


@dataclass(frozen=True)
class Program:
    """Inputs and statements by name, results, and the transformations of the function that they are, the innermost first."""

    inputs: dict[str, str] = field(default_factory=dict)
    lines: tuple[tuple[str, str], ...] = ()
    results: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()

    def __str__(self) -> str:
        statements = [f"{name} = {text}" for name, text in (*self.inputs.items(), *self.lines)]
        return "\n".join([*statements, f"return {', '.join(self.results)}", " ".join(["then", *self.chain])])

    @classmethod
    def parse(cls, text: str) -> Program:
        """Return the program of a text as `str` writes it, without lines that begin with #."""
        *statements, results, chain = [line for line in text.strip().split("\n") if not line.startswith("#")]
        pairs = [line.partition(" = ")[::2] for line in statements]
        inputs = {name: value for name, value in pairs if name.startswith("x")}
        lines = tuple([(name, value) for name, value in pairs if name.startswith("v")])
        return cls(inputs, lines, tuple(results.removeprefix("return ").split(", ")), tuple(chain.split()[1:]))

    def needed(self) -> Program:
        """Return the part of the program that its results depend on."""
        needed, lines = set(self.results), []
        for name, text in reversed(self.lines):
            if name in needed:
                needed.update(_NAMES.findall(text))
                lines.append((name, text))
        return replace(self, inputs={name: text for name, text in self.inputs.items() if name in needed}, lines=tuple(lines[::-1]))

    def arguments(self) -> list[np.ndarray]:
        """Return the arguments."""
        return [eval(text, {"normal": normal, "integers": integers}) for text in self.inputs.values()]

    def function(self, space: dict[str, Any], nudge: Any = None) -> Function:
        """Return the transformed program, by volta_fn or JAX; with `nudge`, statements' values change by such relative amounts."""
        codes = [(name, compile(text, text, "eval")) for name, text in self.lines]

        def function(*arguments: Any) -> tuple[Any, ...]:
            values = dict(zip(self.inputs, arguments, strict=True))
            for number, (name, code) in enumerate(codes):
                value = eval(code, {**space, **values})
                if nudge is not None and _is_float(value):
                    pattern = space["np"].cos(7.0 * np.arange(value.size) + number).reshape(value.shape)
                    value = value * (1 + nudge * pattern).astype(value.dtype)
                values[name] = value
            return tuple([values[name] for name in self.results])

        for step in self.chain:
            function = _transformed(step, function, space["jax"])
        return function


def namespace(jax: Any) -> dict[str, Any]:
    """Return the names that programs use, of volta_fn or JAX."""
    return {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "np": np, "T": SimpleNamespace(**vars(helpers(jax)), **vars(call_helpers(jax)))}


def _is_float(x: Any) -> bool:
    return x.dtype in dtypes.FLOATS


def _transformed(step: str, function: Function, jax: Any) -> Function:
    """Return a function of the same arguments, by one transformation of another."""
    jnp, lax = jax.numpy, jax.lax
    weights = lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    positions = lambda xs: [i for i, x in enumerate(xs) if _is_float(x)]

    def of_floats(xs: Sequence[Any]) -> Function:
        """Return the function with float results of its float arguments."""

        def of_some(*some: Any) -> tuple[Any, ...]:
            values = [*xs]
            for i, x in zip(positions(xs), some, strict=True):
                values[i] = x
            return tuple([r for r in function(*values) if _is_float(r)])

        return of_some

    def total(xs: Sequence[Any]) -> Callable[..., Any]:
        zero = jnp.zeros((), jnp.float64 if any(x.dtype == np.float64 for x in xs) else jnp.float32)
        return lambda *some: sum([(r * weights(r)).sum().astype(zero.dtype) for r in of_floats(xs)(*some)], start=zero)

    some = lambda xs: tuple([xs[i] for i in positions(xs)])
    argnums = lambda xs: tuple(range(len(some(xs))))
    leaves = lambda tree: tuple(jax.tree.leaves(tree))
    tangents = lambda xs: tuple([jnp.cos(3 * x) for x in some(xs)])

    def copies(x: Any, axis: int) -> Any:
        return jnp.stack([x, jnp.roll(x, 1), 0.5 * x if _is_float(x) else x], axis)

    def vmap(*xs: Any) -> tuple[Any, ...]:
        axes = [{"vmap": 0, "vmap_last": -1}.get(step, 0 if (i == 0) == (step == "vmap_first_input") else None) for i in range(len(xs))]
        if all(axis is None for axis in axes):
            axes[0] = 0
        stacks = [x if axis is None else copies(x, axis) for x, axis in zip(xs, axes, strict=True)]
        return tuple(jax.vmap(function, tuple(axes), -1 if step == "vmap_last" else 0)(*stacks))

    def scan(*xs: Any) -> tuple[Any, ...]:
        def body(carry: Any, _: None) -> tuple[Any, Any]:
            results = function(*[x * carry.astype(x.dtype) if _is_float(x) else x for x in xs])
            return carry + 0.1 * sum([jnp.tanh(r).mean().astype(carry.dtype) for r in results if _is_float(r) and r.size], start=0), results

        carry, stacked = lax.scan(body, jnp.ones((), some(xs)[0].dtype), None, 2)
        return (carry, *stacked)

    def descent(*xs: Any) -> tuple[Any, ...]:
        gradient = jax.grad(total(xs), argnums(xs))
        move = lambda i, ps: tuple([p - (0.1 * g).astype(p.dtype) for p, g in zip(ps, gradient(*ps), strict=True)])
        return tuple(lax.fori_loop(0, 2, move, some(xs)))

    def vjp(*xs: Any) -> tuple[Any, ...]:
        results, pull = jax.vjp(of_floats(xs), *some(xs))
        return (*results, *pull(tuple(map(weights, results))))

    def conditional(*xs: Any) -> tuple[Any, ...]:
        other = lambda *ys: tuple([r * 2 if _is_float(r) else r for r in function(*ys)])
        return tuple(lax.cond(some(xs)[0].sum() > 0, other, function, *xs))

    def custom_vjp(*xs: Any) -> tuple[Any, ...]:
        ruled = jax.custom_vjp(function)
        ruled.defvjp(
            lambda *ys: (function(*ys), jax.vjp(of_floats(ys), *some(ys))[1]),
            lambda pull, cotangents: expanded(xs, pull(tuple([c for c in cotangents if _is_float(c)]))),
        )
        return tuple(ruled(*xs))

    def custom_jvp(*xs: Any) -> tuple[Any, ...]:
        ruled = jax.custom_jvp(lambda *ys: of_floats(put(xs, ys))(*ys))
        ruled.defjvp(lambda primals, slopes: jax.jvp(of_floats(put(xs, primals)), primals, slopes))
        return tuple(ruled(*some(xs)))

    def expanded(xs: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
        rest = iter(gradients)
        return tuple([next(rest) if _is_float(x) else None for x in xs])

    def put(xs: Sequence[Any], some: Sequence[Any]) -> list[Any]:
        rest = iter(some)
        return [next(rest) if _is_float(x) else x for x in xs]

    def nest(*xs: Any) -> tuple[Any, ...]:
        mapped = jax.vmap(jax.jit(function))
        stacks = tuple([copies(x, 0) for x in xs])
        return leaves(jax.jit(lambda ys: lax.scan(lambda c, _: (c + 1, mapped(*ys)), 0, None, length=2)[1])(stacks))

    def converted(*xs: Any) -> tuple[Any, ...]:
        pure, constants = jax.closure_convert(lambda *ys: of_floats(xs)(*ys), *some(xs))
        return tuple(pure(*some(xs), *constants))

    first = lambda xs: lambda *ys: tuple([r.reshape(-1)[:2] for r in of_floats(xs)(*ys)])
    policy = jax.checkpoint_policies.dots_saveable
    ways: dict[str, Function] = {
        "grad": lambda *xs: jax.grad(total(xs), argnums(xs))(*some(xs)),
        "vjp": vjp,
        "jvp": lambda *xs: leaves(jax.jvp(of_floats(xs), some(xs), tangents(xs))),
        "linearize": lambda *xs: leaves(jax.linearize(of_floats(xs), *some(xs))[1](*tangents(xs))),
        "jacrev": lambda *xs: leaves(jax.jacrev(first(xs), argnums(xs))(*some(xs))),
        "jacfwd": lambda *xs: leaves(jax.jacfwd(first(xs), argnums(xs))(*some(xs))),
        "checkpoint": jax.checkpoint(function),
        "checkpoint_dots": jax.checkpoint(function, policy=policy),
        "jit": jax.jit(function),
        "map": lambda *xs: leaves(lax.map(lambda ys: function(*ys), tuple([copies(x, 0) for x in xs]))),
        "scan": scan,
        "cond": conditional,
        "descent": descent,
        "custom_vjp": custom_vjp,
        "custom_jvp": custom_jvp,
        "checkpoint_named": jax.checkpoint(function, policy=jax.checkpoint_policies.save_anything_except_these_names("a")),
        "jit_scan_vmap_jit": nest,
        "hessian": lambda *xs: tuple([h.reshape(-1)[:9] for h in leaves(jax.hessian(total(xs), argnums(xs))(*some(xs)))]),
        "closure_convert": converted,
    }
    return vmap if step.startswith("vmap") else ways[step]


OURS = namespace(vf)


class Draft:
    """A program under construction, whose statements are evaluated one by one."""

    def __init__(self, seed: int, only: str | None = None) -> None:
        self.draw = random.Random(seed)
        blocks = {**BLOCKS, **CALL_BLOCKS, **KIND_BLOCKS}
        self._blocks = {block: weight for block, weight in blocks.items() if only in (None, block.__name__)}
        self._dtype = self.draw.choice(("float64",) * 6 + ("float32",) * 3 + _HALVES)
        self._sizes = [self.draw.choice(_SIZES) for _ in range(2)]
        if self.draw.random() < 0.04:
            self._sizes[0] = 0
        self._inputs: dict[str, str] = {}
        self._lines: list[tuple[str, str]] = []
        self._values: dict[str, Any] = {}

    def _input(self, text: str) -> str:
        name = f"x{len(self._inputs)}"
        self._inputs[name] = text
        self._values[name] = vf.numpy.asarray(eval(text, {"normal": normal, "integers": integers}))
        return name

    def new(self, shape: tuple[int, ...]) -> str:
        """Return a new input of normal numbers."""
        return self._input(f"normal({self.draw.randrange(10**6)}, {shape}, '{self._dtype}')")

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> str:
        """Return a new int32 input of numbers from `low` up to but without `high`."""
        return self._input(f"integers({self.draw.randrange(10**6)}, {shape}, {low}, {high})")

    def pick(self, rank: int | None = None, least: int = 1) -> str:
        """Return a floating-point variable of a rank, or at least of one."""
        fits = [n for n, v in self._values.items() if _is_float(v) and v.ndim >= least and (rank is None or v.ndim == rank)]
        if fits and self.draw.random() < 0.85:
            return self.draw.choice(fits[-4:])
        return self.new(tuple([self.draw.choice(self._sizes) for _ in range(rank or self.draw.choice((1, 1, 2, 3)))]))

    def like(self, name: str) -> str:
        """Return another variable of the same shape, or a new input."""
        fits = [n for n, v in self._values.items() if _is_float(v) and v.shape == self.shape(name) and v.dtype == self._values[name].dtype]
        return self.draw.choice(fits) if len(fits) > 1 and self.draw.random() < 0.6 else self.new(self.shape(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable."""
        return tuple(self._values[name].shape)

    def add(self) -> None:
        """Add a statement, unless it is refused or too large."""
        inputs, values = dict(self._inputs), dict(self._values)
        block = self.draw.choices([*self._blocks], [*self._blocks.values()])[0]
        text = block(self)
        name = f"v{len(self._lines)}"
        try:
            value = eval(text, {**OURS, **self._values})
        except Exception:  # JAX may accept it: `check` says so
            value = None
        if value is not None and (value.size > _LARGEST or value.ndim > 5):
            self._inputs, self._values = inputs, values
            return
        self._lines.append((name, text))
        if value is not None:
            self._values[name] = value

    def programs(self, count: int) -> Iterator[Program]:
        """Yield the program by several chains."""
        for _ in range(count):
            names = [name for name, _ in self._lines]
            results = names[-1:] if self.draw.random() < 0.5 else sorted(self.draw.sample(names, self.draw.randint(1, len(names))))
            chain = self.draw.choices([*_STEPS], [*_STEPS.values()], k=self.draw.choice((0, 1, 1, 2, 2, 3)))
            yield replace(Program(self._inputs, tuple(self._lines), tuple(results)).needed(), chain=tuple(chain))


def drawn(seed: int, count: int, only: str | None = None) -> list[Program]:
    """Return the programs of a seed: one draft in several ways, of all blocks or `only` those of a name."""
    draft = Draft(seed, only)
    with on_target("numpy"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        statements = draft.draw.choice((1, 1, 2, 3))
        while len(draft._lines) < statements:
            draft.add()
    return [program for program in draft.programs(count) if any("normal" in text for text in program.inputs.values())]


Values = list[np.ndarray]


class Reference:
    """What plain Python or JAX gives in float64, and by how much that changes with last digits of the program's narrowest dtype."""

    def __init__(self, program: Program, with_jax: bool = False) -> None:
        self.arguments = program.arguments()
        self._program = program
        self._scale: float | None = None
        self._spread: list[np.ndarray] | None = None
        self._jax = jax_module() if with_jax else None
        # JAX's attention computes its weights in float32 at most.
        self._least = 1e-4 if with_jax and "attention" in str(program) else 0.0
        # A tangent moves all examples of a named axis at once, so gradients by tangents have another meaning there.
        has_axes = any(text in str(program) for text in ("axis_name", "T.shards"))
        self._space = namespace(self._jax or (vf if has_axes else PLAIN))
        if self._jax is None:
            self.dtypes = [x.dtype for x in run_function(program.function(self._space), self.arguments)]
        else:
            with self._jax.enable_x64(True):
                self.dtypes = [x.dtype for x in self._jax.eval_shape(program.function(self._space), *self.arguments)]
        self.values = self._run(self.arguments)

    def _run(self, arguments: Sequence[np.ndarray], nudge: float | None = None, program: Program | None = None) -> Values:
        program = program or self._program
        wide = [x.astype(np.float64) if _is_float(x) else x for x in arguments]
        if self._jax is None:
            return run_function(program.function(self._space, nudge), wide)
        with self._jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(x) for x in self._jax.jit(program.function(self._space, nudge))(*wide)]

    def _narrowest(self, result: np.ndarray) -> np.dtype:
        return min([x.dtype for x in (*self.arguments, result) if _is_float(x)], key=lambda d: (d.itemsize, -ml_dtypes.finfo(d).eps))

    def _spreads(self, eps: float) -> Values:
        """Return how much results change when inputs and statements' values change in their last digits."""
        if self._spread is None:
            self._spread = [np.zeros(x.shape) for x in self.values]
            for seed in range(4):
                rng = np.random.default_rng(seed)
                moved = [x * (1 + eps * rng.choice([-2.0, 2.0], x.shape)) if _is_float(x) else x for x in self._wide()]
                for spread, other, value in zip(self._spread, self._run(moved, 2 * eps * (-1) ** seed), self.values, strict=True):
                    np.fmax(spread, _distance(other, value), out=spread)
        return self._spread

    def _wide(self) -> Values:
        return [x.astype(np.float64) if _is_float(x) else x for x in self.arguments]

    def _largest(self) -> float:
        """Return the largest value, of the arguments, of all statements, and after each transformation."""
        if self._scale is None:
            everything = replace(self._program, results=tuple([name for name, _ in self._program.lines]), chain=())
            parts = [everything, *[replace(self._program, chain=self._program.chain[:k]) for k in range(1, len(self._program.chain))]]
            arrays = [*self._wide(), *self.values, *[x for part in parts for x in self._run(self.arguments, program=part)]]
            self._scale = max([1.0, *[float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in arrays if x.dtype.kind != "b"]])
        return self._scale

    def difference(self, results: Sequence[np.ndarray]) -> str | None:
        """Return how results differ from these."""
        if len(results) != len(self.values):
            return f"{len(results)} results instead of {len(self.values)}"
        for number, (result, value, dtype) in enumerate(zip(results, self.values, self.dtypes, strict=True)):
            if result.shape != value.shape or (result.dtype.kind != "i" and result.dtype != dtype):
                return f"result {number} is {result.dtype}{result.shape} instead of {dtype}{value.shape}"
            info = ml_dtypes.finfo(self._narrowest(result))
            eps, distance = float(info.eps), _distance(result, value)
            largest = np.max(np.abs(value), initial=0.0, where=np.isfinite(value))
            if (distance <= max(8 * eps * largest, self._least)).all():
                continue
            if eps > 1e-4:  # what is computed on the way may overflow
                distance[~np.isfinite(result) & (self._largest() > float(info.max) ** 0.5)] = 0.0
            bound = np.maximum(_UNITS * eps * self._largest(), self._least * (1 + largest))
            if (distance > bound).any():
                wrong = distance > bound + _SPREADS * self._spreads(eps)[number]
                if wrong.any():
                    where = tuple(map(int, np.argwhere(wrong)[0]))
                    return f"result {number} element {where} is {result[where]} instead of {value[where]} ({wrong.sum()} of {wrong.size})"
        return None


def jax_module() -> Any:
    """Return JAX, which optimises little, as programs run once, and has several devices."""
    os.environ.setdefault("XLA_FLAGS", f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={DEVICES}")
    import jax

    return jax


def refused_by_jax(program: Program) -> bool | None:
    """Return True if JAX refuses a program while it traces or lowers it; None without JAX."""
    try:
        jax = jax_module()
    except ImportError:
        return None
    try:
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.jit(program.function(namespace(jax))).lower(*program.arguments())
    except Exception:
        return True
    return False


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how far apart values are: infinite where only one is a number."""
    with np.errstate(all="ignore"):
        x, y = [v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (a, b)]
        difference = np.abs(x - y)
        return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.where(np.isnan(difference), np.inf, difference))


def run_function(function: Function, arguments: Sequence[np.ndarray], target: str = "numpy") -> Values:
    """Return a function's results on a target."""
    with on_target(target), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(x) for x in function(*map(vf.numpy.asarray, arguments))]


def run(program: Program, way: tuple[str, str]) -> Values:
    """Return a program's results here."""
    target, how = way
    function, arguments = program.function(OURS), program.arguments()
    if how != "eager":
        function = vf.jit(function, donate_argnums=range(len(arguments)) if how == "donated" else ())
    return run_function(function, arguments, target)


def concurrent(programs: Sequence[Program], threads: int = 4) -> list[str]:
    """Run programs from several threads at once, in another order each; return how results differ from those of one thread.

    Every other program is jitted, and has the same bits. Parts of the others become programs when they are repeated, in whichever thread
    that is, so their last digits may differ, and they are right by their reference.
    """
    alone = [run(program, ("native", "jit" if number % 2 else "eager")) for number, program in enumerate(programs)]
    vf.clear_caches()
    functions = [program.function(OURS) for program in programs]
    functions = [vf.jit(function) if number % 2 else function for number, function in enumerate(functions)]
    others: dict[int, list[Values]] = {}
    reports: list[str] = []

    def work(thread: int) -> None:
        for number in random.Random(thread).sample(range(len(programs)), len(programs)):
            arguments = map(vf.numpy.asarray, programs[number].arguments())
            try:
                results = [np.asarray(x) for x in functions[number](*arguments)]
            except Exception as error:
                reports.append(f"{type(error).__name__}: {error!s:.300}\n{programs[number]}")
                continue
            if any(x.dtype != y.dtype or x.tobytes() != y.tobytes() for x, y in zip(results, alone[number], strict=True)):
                others.setdefault(number, []).append(results)

    with warnings.catch_warnings(), on_target("native"):
        warnings.simplefilter("ignore")
        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for number, values in others.items():
        reference = None if number % 2 else Reference(programs[number])
        for results in values:
            difference = f"{results} instead of {alone[number]}" if reference is None else reference.difference(results)
            if difference is not None:
                reports.append(f"{difference}\n{programs[number]}")
    return reports


def fault(program: Program, way: tuple[str, str], reference: Reference | None = None, with_jax: bool = False) -> str | None:
    """Return how a program differs from its reference, or its error; None if it is right, or refused by JAX, too."""
    try:
        reference = reference or Reference(program, with_jax)
    except Exception:
        reference = None
    try:
        results = run(program, way)
        difference = None if reference is None else reference.difference(results)
        # JAX forgets a function's rule in a loop that it differentiates twice, which shows where the rule is not the derivative.
        if (
            difference is not None
            and with_jax
            and any(f"T.{name}(" in str(program) for name in ("bent", "bent_by_parts", "scaled", "of_pair"))
        ):
            return Reference(program).difference(results)
        return difference
    except OutOfBoundsError:  # which compiled programs drop
        return None if way[1] == "eager" else "OutOfBoundsError"
    except Exception as error:
        if isinstance(error, VoltaError) and (any(text in str(error) for text in _REFUSALS) or refused_by_jax(program) is not False):
            return None
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error!s:.300} ({Path(last.filename).name}:{last.lineno})"


def minimised(program: Program, way: tuple[str, str], text: str, with_jax: bool = False) -> Program:
    """Return a small program with the same kind of fault."""
    smallest, changed = program, True
    while changed:
        changed = False
        for candidate in _smaller(smallest):
            other = fault(candidate, way, with_jax=with_jax)
            if other is not None and other.split(" ")[0] == text.split(" ")[0]:
                smallest, changed = candidate, True
                break
    return smallest


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with a part less."""
    for i in range(len(program.chain)):
        yield replace(program, chain=program.chain[:i] + program.chain[i + 1 :])
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,)).needed()
    for number, (name, _) in enumerate(program.lines[:-1]):
        try:
            value = run(replace(program, results=(name,), chain=()), WAYS[0])[0]
        except VoltaError:
            continue
        if _is_float(value):
            new = f"x{1 + max([int(other[1:]) for other in program.inputs], default=0)}"
            lines = [(n, re.sub(rf"\b{name}\b", new, text)) for i, (n, text) in enumerate(program.lines) if i != number]
            inputs = program.inputs | {new: f"normal({number}, {value.shape}, '{value.dtype.name}')"}
            yield replace(
                program, inputs=inputs, lines=tuple(lines), results=tuple([r for r in program.results if r != name] or [lines[-1][0]])
            ).needed()


def check(
    seeds: range,
    ways: Sequence[tuple[str, str]],
    *,
    with_jax: bool = False,
    chains: int = 3,
    until: float = float("inf"),
    only: str | None = None,
) -> tuple[int, list[str]]:
    """Compare the programs of seeds; return how many there were, and reports of what differs."""
    count, errors = 0, set()
    reports: list[str] = []
    for seed in seeds:
        for number, program in enumerate(drawn(seed, chains, only)):
            if time.monotonic() > until:
                return count, reports
            try:
                reference = Reference(program, with_jax)
            except Exception:  # refused there: is it here as well, and by JAX?
                reference = None
            count += 1
            for way in ways:
                text = fault(program, way, reference, with_jax)
                if text is None:
                    continue
                report = f"# seed {seed}, program {number}, {', '.join(way)}: {text}\n"
                place = text.rpartition("(")[2] if not text.startswith("result") else None
                if place is None or place not in errors:
                    errors.add(place)
                    small = minimised(program, way, text, with_jax)
                    report += f"# {fault(small, way, with_jax=with_jax)}\n{small}\n"
                reports.append(report)
                print(report, flush=True)
                break
        if seed % 32 == 31:
            vf.clear_caches()
            if with_jax:
                sys.modules["jax"].clear_caches()
            print(f"{count} programs, up to seed {seed}", file=sys.stderr, flush=True)
    return count, reports


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz transforms", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many programs (default 20,000)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many minutes")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, instead of machine code and NumPy")
    parser.add_argument("--jax", action="store_true", help="against JAX, which takes ten times as long")
    parser.add_argument("--quick", action="store_true", help="eagerly in NumPy alone")
    parser.add_argument(
        "--only", choices=[block.__name__ for block in (*BLOCKS, *CALL_BLOCKS, *KIND_BLOCKS)], help="statements of one kind"
    )
    parser.add_argument("--entry", type=Path, help="run the programs of a file, separated by empty lines")
    options = parser.parse_args(argv)
    ways = (("gpu", "jit"),) if options.gpu else WAYS[:1] if options.quick else WAYS
    if options.entry is not None:
        texts = [block for block in options.entry.read_text().split("\n\n") if block.strip()]
        faults = [(text, way, fault(Program.parse(text), way, with_jax=options.jax)) for text in texts for way in ways]
        print(*[f"{way}: {difference}\n{text}" for text, way, difference in faults], sep="\n")
        return any(difference is not None for _, _, difference in faults)
    start, chains = time.monotonic(), 3
    seeds = range(options.seed, options.seed + -(-options.count // chains))
    count, reports = check(seeds, ways, with_jax=options.jax, chains=chains, until=start + 60 * options.minutes, only=options.only)
    print(f"{count} programs in {time.monotonic() - start:.0f} s, {len(reports)} differences")
    return bool(reports)
