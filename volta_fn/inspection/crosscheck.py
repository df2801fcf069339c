"""`crosscheck`: compare equations, and compiled programs, with NumPy in 64 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, array_spec, as_value, host_buffer, wrap
from volta_fn.core.device import Device, find_device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Literal, Var, has_effects, sub_jaxprs
from volta_fn.core.memory import device_put
from volta_fn.core.staging import check_callable
from volta_fn.inspection.bisection import UNIQUE, CompiledProgram, Miscompilation, differ, find_miscompilations
from volta_fn.inspection.reference import Expected, excess, expected
from volta_fn.jit.eager import PIPELINE, common_device, solid
from volta_fn.jit.function import Jitted
from volta_fn.jit.interpret import Iteration, iterations, structured_by
from volta_fn.source import SourceLocation
from volta_fn.transforms.make_jaxpr import make_jaxpr


class Difference(NamedTuple):
    """An equation whose results on the device differ by more than rounding explains.

    Attributes:
        number: which equation it is, in the order in which they ran, from 1.
        primitive: its primitive's name.
        location: the user's line that it comes from, or None.
        result: the type of the result that differs.
        element: the index of the element that is off the most.
        found, wanted: what the device and NumPy give there.
        excess: how many times the difference is what rounding explains.
        operands: the types of its operands.
        iterations: the iterations of the loops that it was in.
    """

    number: int
    primitive: str
    location: SourceLocation | None
    result: str
    element: tuple[int, ...]
    found: Any
    wanted: Any
    excess: float
    operands: str
    iterations: tuple[Iteration, ...] = ()

    def __str__(self) -> str:
        where = "" if self.location is None else f" at {self.location}"
        loops = "".join(f", in iteration {i.number} of a {i.primitive}" for i in self.iterations)
        return (
            f"equation {self.number}, {self.primitive} {self.operands} -> {self.result}{where}{loops}: "
            f"element {self.element} is {self.found}, and {self.wanted} in 64 bits, {self.excess:.3g} times what rounding explains"
        )


@dataclass(frozen=True)
class Crosscheck:
    """What `crosscheck` found: `differences` in order; none if all is well.

    `skipped` are the primitives that have nothing to be compared with. `miscompilations` are the stages of the compiler that made the
    program wrong which `jit` runs, and `compiled` says in words how that compares with its equations.
    """

    name: str
    device: str
    equations: int
    differences: tuple[Difference, ...]
    skipped: tuple[str, ...] = field(default=())
    miscompilations: tuple[Miscompilation, ...] = field(default=())
    compiled: str = ""

    @property
    def first(self) -> Difference | None:
        """The first equation that differs, which those after it may inherit from."""
        return self.differences[0] if self.differences else None

    def __bool__(self) -> bool:
        """Return True if nothing differs."""
        return not self.differences and not self.miscompilations

    def __str__(self) -> str:
        head = f"{self.name} on {self.device}: {self.equations:,} equations compared with NumPy in 64 bits, {len(self.differences)} differ"
        stages = [str(stage).replace("\n", "\n  ") for stage in self.miscompilations]
        notes = [f"not compared: {', '.join(self.skipped)}"] if self.skipped else []
        return "\n".join(
            [head, *[f"  {difference}" for difference in self.differences], self.compiled, *[f"  {stage}" for stage in stages], *notes]
        )

    __repr__ = __str__


def crosscheck(f: Callable[..., Any], *, device: str | Device | None = None) -> Callable[..., Crosscheck]:
    """Make a function that compares `f` on a device with NumPy in 64 bits.

    Every equation runs on the device, compiled by itself, and in NumPy with the same operands in 64 bits. So the first equation that is
    reported is where digits are lost, not one that inherits the loss.

    The program also runs as `jit` compiles it. Where that differs from the equations by more than a few units in the last digit, its
    kernels run one by one, each is compared with the equations that it computes, and the programs before and after each pass are compared.
    So the pass, the kernel or the assignment of memory that is wrong is reported (`miscompilations`), with equations and lines; if all are
    right, the difference is rounding that the program amplifies. Programs with effects run equation by equation only.

    Args:
        f: a function of pytrees of arrays, jitted or not.
        device: where to run it; by default where its arguments are.

    Returns:
        a function ``(*args) -> Crosscheck``, which is true if nothing differs, and prints what does.

    Raises:
        ArgumentTypeError: `f` cannot be called.
        DeviceError: there is no such device.

    >>> import volta_fn as vf
    >>> vf.crosscheck(lambda x: vf.numpy.tanh(x) @ x)(vf.numpy.ones(3))
    <lambda> on CpuDevice(id=0): 2 equations compared with NumPy in 64 bits, 0 differ
    compiled by jit, the program agrees with its equations
    """
    check_callable(f, "crosscheck")
    plain = f._fun if isinstance(f, Jitted) and not f._statics.some else f

    @functools.wraps(f)
    def checked(*args: Any, **kwargs: Any) -> Crosscheck:
        values = [as_value(x) for x in tree.leaves((args, kwargs))]
        here = common_device(values) if device is None else find_device(device)
        closed = make_jaxpr(plain)(*args, **kwargs)
        run, arrays = _Run(here), [device_put(v, here) for v in values]
        together = _run_compiled(closed, here, arrays)  # first: constants that the equations read are folded, as those of jit need not be
        outputs = run.program(closed, arrays)
        stages, compiled = _compare_compiled(together, outputs)
        name = getattr(f, "__name__", "a function")
        return Crosscheck(name, repr(here), run.count, tuple(run.differences), tuple(sorted(run.skipped)), tuple(stages), compiled)

    return checked


#: What runs Python, or talks to other processes: it must not happen again.
_ONCE = frozenset({"pure_callback", "psum_start", "psum_done"})


def _runs_once(program: ClosedJaxpr) -> bool:
    """Return True if running a program again may do or give something else."""
    return any(
        has_effects(eqn) or eqn.primitive.name in _ONCE or "axis_names" in eqn.params or any(map(_runs_once, sub_jaxprs(eqn.params)))
        for eqn in program.eqns
    )


class _Compiled(NamedTuple):
    """A compiled program that ran: its arguments, and what it gave."""

    program: CompiledProgram
    arguments: list[np.ndarray]
    outputs: list[np.ndarray]


def _run_compiled(closed: ClosedJaxpr, device: Device, arguments: Sequence[Array]) -> _Compiled | None:
    """Run a program as `jit` compiles it; return None if it must not run twice."""
    if _runs_once(closed):
        return None
    program, values = CompiledProgram(closed, device), list(map(host_buffer, _concrete(arguments)))
    return _Compiled(program, values, program.run(values))


def _compare_compiled(compiled: _Compiled | None, outputs: Sequence[Array]) -> tuple[list[Miscompilation], str]:
    """Return the stages that made a compiled program wrong, and that in words."""
    if compiled is None:
        return [], "not run as jit compiles it, as it calls Python functions or other processes"
    if not any(map(differ, compiled.outputs, map(host_buffer, _concrete(outputs)))):
        return [], "compiled by jit, the program agrees with its equations"
    stages = find_miscompilations(*compiled)
    if stages:
        return stages, "compiled by jit, the program differs from its equations:"
    return [], "compiled by jit, the program differs from its equations by rounding, which it amplifies: each kernel is right"


class _Run:
    """Runs a program on a device equation by equation, and compares each with NumPy."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.count = 0
        self.differences: list[Difference] = []
        self.skipped: set[str] = set()
        #: Programs of single equations, by primitive, parameters and types.
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def program(self, closed: ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
        """Run a program; return its outputs."""
        jaxpr = closed.jaxpr
        env: dict[Var, Array] = dict(zip(jaxpr.constvars, [device_put(c, self.device) for c in closed.consts], strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        for eqn in jaxpr.eqns:
            operands = [device_put(v.val, self.device) if isinstance(v, Literal) else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, self._equation(eqn, operands), strict=True))
        return [device_put(v.val, self.device) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def _equation(self, eqn: Equation, operands: Sequence[Array]) -> Sequence[Array]:
        inner = structured_by(self.program, eqn.primitive, eqn.params, self.device, eqn.position)
        if inner is not None:
            results: Sequence[Array] = inner(*operands)
            return results
        outs = self._on_device(eqn, operands)
        self.count += 1
        self._compare(eqn, [np.asarray(x) for x in operands], [np.asarray(x) for x in outs])
        return outs

    def _on_device(self, eqn: Equation, operands: Sequence[Array]) -> list[Array]:
        """Run an equation as a program of its own."""
        key = (eqn.primitive.name, tuple([x.aval for x in operands]), tuple([(k, id(v)) for k, v in sorted(eqn.params.items())]))
        run = self._compiled.get(key)
        if run is None:
            invars, outvars = [Var(x.aval) for x in operands], [Var(v.aval) for v in eqn.outvars]
            one = Equation(eqn.primitive, [*invars], outvars, eqn.params, eqn.position)
            closed = ClosedJaxpr(Jaxpr([], invars, [*outvars], [one]))
            run = self._compiled[key] = self.device.backend.compile(closed, (False,) * len(invars), PIPELINE)
        buffers = run(False, *[concrete.buffer() for concrete in _concrete(operands)])
        return [wrap(solid(b), array_spec(v.aval, self.device)) for b, v in zip(buffers, eqn.outvars, strict=True)]

    def _compare(self, eqn: Equation, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        name = eqn.primitive.name
        if has_effects(eqn) or name == "pure_callback":
            self.skipped.add(name)
            return
        try:
            wanted = expected(eqn, operands)
        except (TypeError, ValueError, NotImplementedError, np.linalg.LinAlgError):
            self.skipped.add(name)
            return
        numbers = UNIQUE.get(name, range(len(results)))
        if len(numbers) < len(results):
            self.skipped.add(f"{name} (results that are not unique)")
        for number in numbers:
            found = excess(results[number], wanted[number])
            if found is not None:
                self._report(eqn, number, found, results[number], wanted[number])

    def _report(self, eqn: Equation, number: int, found: tuple[int, float], result: np.ndarray, wanted: Expected) -> None:
        position, excess = found
        index = tuple(map(int, np.unravel_index(position, result.shape)))
        self.differences.append(
            Difference(
                self.count,
                eqn.primitive.name,
                eqn.source,
                str(eqn.outvars[number].aval),
                index,
                result[index].item() if result.dtype.kind != "V" else float(result[index]),
                wanted.values[index].item(),
                excess,
                " ".join(str(v.aval) for v in eqn.invars),
                iterations.get(),
            )
        )


def _concrete(arrays: Sequence[Any]) -> Sequence[ConcreteArray]:
    return arrays
