"""`crosscheck`: compare a program with its equations in 64-bit floats.

Where results differ by more than rounding explains, the program's passes and kernels are run one by one, to find the one that is wrong.
"""

from __future__ import annotations

import functools
import math
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.compiler.ir.kernel import KernelCall, format_kernel, interpret
from volta_fn.compiler.target import Item, LoweredProgram, Pass, RoutineKey, Target
from volta_fn.core.arrays.array import Array, ConcreteArray, array_spec, as_value, host_buffer, wrap
from volta_fn.core.arrays.memory import common_device, device_put
from volta_fn.core.devices.device import Device, find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, has_effects, interpret_jaxpr, sub_jaxprs
from volta_fn.core.staging import check_callable, make_jaxpr
from volta_fn.inspection.explanation import Attribution, locations_of
from volta_fn.inspection.reference import Expected, control_flow, excess, expected, expected_outputs, expected_values, initial_values
from volta_fn.jit.eager import PIPELINE, as_buffer
from volta_fn.jit.function import PjitFunction
from volta_fn.jit.interpret import Iteration, iterations, structured_by
from volta_fn.lazy_imports import load
from volta_fn.source import SourceLocation


class Difference(NamedTuple):
    """An equation whose results on the device differ by more than rounding explains.

    Attributes:
        number: its position in the order of execution, from 1.
        primitive: its primitive's name.
        location: the user's line that it comes from, or None.
        result: the type of the result that differs.
        element: the index of the element that is off the most.
        actual, wanted: its value on the device, and in NumPy.
        excess: the difference, as a multiple of the tolerance.
        operands: the types of its operands.
        iterations: the iterations of the loops that it was in.
    """

    number: int
    primitive: str
    location: SourceLocation | None
    result: str
    element: tuple[int, ...]
    actual: Any
    wanted: Any
    excess: float
    operands: str
    iterations: tuple[Iteration, ...] = ()

    def __str__(self) -> str:
        where = "" if self.location is None else f" at {self.location}"
        loops = "".join(f", in iteration {i.number} of a {i.primitive}" for i in self.iterations)
        return (
            f"equation {self.number}, {self.primitive} {self.operands} -> {self.result}{where}{loops}: "
            f"element {self.element} is {self.actual}, and {self.wanted} in 64 bits, {self.excess:.3g} times what rounding explains"
        )


@dataclass(frozen=True)
class Crosscheck:
    """The result of `crosscheck`: `differences` in order; none if all is well.

    `skipped` lists the primitives without a reference to compare with. `miscompilations` lists the stages of the compiler that made the
    jitted program wrong, and `compiled` summarises how that program compares with its equations.
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
    """Return a function that compares `f` on a device with NumPy in 64 bits.

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

    >>> vf.crosscheck(lambda x: vf.numpy.tanh(x) @ x)(vf.numpy.ones(3))
    <lambda> on CpuDevice(id=0): 2 equations compared with NumPy in 64 bits, 0 differ
    compiled by jit, the program agrees with its equations
    """
    check_callable(f, "crosscheck")
    plain = f._fun if isinstance(f, PjitFunction) and not f._options.has_static else f

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


#: Primitives that call Python or communicate with other processes, so that they must not run twice.
_ONCE = frozenset({"pure_callback", "psum_start", "psum_done"})


def _runs_once(program: ClosedJaxpr) -> bool:
    """Return True if a second run of a program may have effects or other results."""
    return any(
        has_effects(eqn) or eqn.primitive.name in _ONCE or "axis_names" in eqn.params or any(map(_runs_once, sub_jaxprs(eqn.params)))
        for eqn in program.eqns
    )


class _Compiled(NamedTuple):
    """A compiled program that ran: its arguments and outputs."""

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
    """Return the stages that made a compiled program wrong, and a summary in words."""
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
        return interpret_jaxpr(closed, args, self._equation, partial(device_put, device=self.device))

    def _equation(self, eqn: Equation, operands: Sequence[Array]) -> Sequence[Array]:
        inner = structured_by(self.program, eqn.primitive, eqn.params, self.device, eqn.position)
        if inner is not None:
            results: Sequence[Array] = inner(*operands)
            return results
        key = (eqn.primitive.name, tuple([x.aval for x in operands]), tuple([(k, id(v)) for k, v in sorted(eqn.params.items())]))
        run = self._compiled.get(key)
        if run is None:
            invars, outvars = [Var(x.aval) for x in operands], [Var(v.aval) for v in eqn.outvars]
            one = Equation(eqn.primitive, [*invars], outvars, eqn.params, eqn.position)
            closed = ClosedJaxpr(Jaxpr([], invars, [*outvars], [one]))
            run = self._compiled[key] = self.device.backend.compile(closed, (False,) * len(invars), PIPELINE).run
        buffers = run(False, *[concrete.buffer() for concrete in _concrete(operands)])
        outs = [wrap(as_buffer(b), array_spec(v.aval, self.device)) for b, v in zip(buffers, eqn.outvars, strict=True)]
        self.count += 1
        self._compare(eqn, [np.asarray(x) for x in operands], [np.asarray(x) for x in outs])
        return outs

    def _compare(self, eqn: Equation, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        name = eqn.primitive.name
        if has_effects(eqn) or name == "pure_callback":
            self.skipped.add(name)
            return
        try:
            references = expected(eqn, operands)
        except (TypeError, ValueError, NotImplementedError, np.linalg.LinAlgError):
            self.skipped.add(name)
            return
        numbers = UNIQUE.get(name, range(len(results)))
        if len(numbers) < len(results):
            self.skipped.add(f"{name} (results that are not unique)")
        for number in numbers:
            mismatch = excess(results[number], references[number])
            if mismatch is not None:
                self._report(eqn, number, mismatch, results[number], references[number])

    def _report(self, eqn: Equation, number: int, mismatch: tuple[int, float], result: np.ndarray, reference: Expected) -> None:
        position, excess = mismatch
        index = tuple(map(int, np.unravel_index(position, result.shape)))
        self.differences.append(
            Difference(
                self.count,
                eqn.primitive.name,
                eqn.source,
                str(eqn.outvars[number].aval),
                index,
                result[index].item() if result.dtype.kind != "V" else float(result[index]),
                reference.values[index].item(),
                excess,
                " ".join(str(v.aval) for v in eqn.invars),
                iterations.get(),
            )
        )


def _concrete(arrays: Sequence[Any]) -> Sequence[ConcreteArray]:
    return arrays


# The search for the cause of a wrong program: a pass, a kernel, or memory.
#
# A program is compiled as `jit` does it, and its kernels also run one by one, each compiled by itself, in fresh memory. The results of
# each kernel are compared with its equations in 64 bits, for the same operands, which tells a wrong kernel from those that read its
# results. If all kernels are right, the programs before and after each pass are compared; the remaining cause is memory that is shared
# too early.

#: Values by their variables, on the host.
Values = dict[Var, np.ndarray]

#: Primitives whose results are not unique: signs of eigenvectors, order of equal elements. Only the results numbered here are compared.
UNIQUE: dict[str, tuple[int, ...]] = {
    "eigh": (1,), "eig": (), "svd": (0,), "qr": (), "householder_product": (), "geqrf": (), "lu": (), "lu_pivots_to_permutation": (0,),
    "schur": (), "hessenberg": (), "tridiagonal": (), "approx_top_k": (),
}  # fmt: skip

#: The most iterations of a kernel that is interpreted, in arrays of that many elements.
_MOST_INTERPRETED = 1 << 24
#: Units in the last place by which two runs of a program may differ before the cause is searched.
_UNITS = 16.0
#: The byte that memory is filled with before a program runs: half of all floats made of it are huge, and integers are no indices.
_PATTERN = 0xA5


class Miscompilation(NamedTuple):
    """A stage of the compiler that made a program wrong.

    Attributes:
        stage: the pass, the code generator of a kernel or routine, or the assignment of memory.
        equations: the equations that it computes, as primitives with the user's lines.
        locations: these lines, each once.
        result: the type of the result that is wrong.
        element: the index of the element that is off the most.
        actual, wanted: its value in the compiled program, and by the equations in 64 bits.
        excess: the difference, as a multiple of the tolerance.
        kernel: the text of the wrong kernel, or nothing.
        unwritten: whether the element was not written at all.
    """

    stage: str
    equations: tuple[str, ...]
    locations: tuple[SourceLocation, ...]
    result: str
    element: tuple[int, ...]
    actual: Any
    wanted: Any
    excess: float
    kernel: str = ""
    unwritten: bool = False

    def __str__(self) -> str:
        listed = ", ".join(self.equations[:6]) + (", …" if len(self.equations) > 6 else "")
        text = (
            f"{self.stage} is wrong for {listed or 'no equation'}: element {self.element} of the result {self.result} is "
            f"{'not written' if self.unwritten else self.actual}, and {self.wanted} by the equations in 64 bits, "
            f"{self.excess:.3g} times what rounding explains"
        )
        return "\n".join(filter(None, [text, textwrap.indent(self.kernel, "    ")]))


def differ(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True if two runs of a program differ by more than the last digits."""
    # These are some units in the last digit of the largest element.
    if one.dtype not in dtypes.INEXACT:
        return not np.array_equal(one, other)
    kind = np.complex128 if one.dtype in dtypes.COMPLEX else np.float64
    with np.errstate(all="ignore"):
        left, right = one.astype(kind), other.astype(kind)
        finite = np.abs(np.where(np.isfinite(right), right, 0))
        tolerance = _UNITS * float(dtypes.finfo(one.dtype).eps) * float(finite.max(initial=0))
        same = (left == right) | (np.isnan(left) & np.isnan(right)) | (np.abs(left - right) <= tolerance)
    return not bool(np.all(same))


class _LoweredPipeline(NamedTuple):
    """A pipeline whose program is already lowered."""

    program: LoweredProgram

    def lower(self, closed: ClosedJaxpr, target: Target) -> LoweredProgram:
        return self.program

    def early_routine_keys(self, closed: ClosedJaxpr, target: Target) -> Iterator[RoutineKey]:
        """Yield nothing."""
        yield from ()


class CompiledProgram:
    """A program as `jit` runs it on a device, and its items."""

    def __init__(self, closed: ClosedJaxpr, device: Device) -> None:
        self.closed, self.device = closed.replace(), device  # without the results of passes, which are observed
        self.target: Target | None = device.backend.target
        #: The passes that changed the program, with what it was before and after each.
        self.changes: list[tuple[Pass, ClosedJaxpr, ClosedJaxpr]] = []
        self._compiled: dict[int, tuple[Any, Callable[..., Any]]] = {}

    @property
    def is_native(self) -> bool:
        """Whether it runs as the CPU's machine code."""
        return self.target is not None and self.target.name == "cpu"

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs, computed in memory that was filled with a pattern."""
        donated = (False,) * len(arguments)
        with PIPELINE.observed(self._note_change):
            if self.target is not None:  # the program may be in a cache of machine code, which needs no passes
                PIPELINE.lower(self.closed, self.target)
            if self.is_native:
                run = _in_marked_memory(load("volta_fn.targets.cpu.runtime.program").Program.of(self.closed, donated, PIPELINE))
            else:
                run = self.device.backend.compile(self.closed, donated, PIPELINE).run
        return self._called(run, arguments, self.closed.jaxpr.outvars)

    def _note_change(self, one: Pass, before: Any, after: Any) -> None:
        latest = self.changes[-1][2] if self.changes else self.closed
        if before is latest and isinstance(after, ClosedJaxpr) and after is not before:  # not of a program inside
            self.changes.append((one, before, after))

    def _called(self, run: Callable[..., Any], arguments: Sequence[np.ndarray], outputs: Sequence[Atom]) -> list[np.ndarray]:
        backend = self.device.backend
        if not self.is_native:
            for out in outputs:  # so that reused memory holds the pattern, not the results of an earlier run
                backend.put(_marked(np.empty, out.aval.shape, out.aval.dtype))
        buffers = [backend.put(np.array(x)) for x in arguments]
        results = [wrap(as_buffer(b), array_spec(v.aval, self.device)) for b, v in zip(run(False, *buffers), outputs, strict=True)]
        return [np.array(host_buffer(x)) for x in results]

    def run_items(
        self, program: LoweredProgram, items: Sequence[Item], values: Mapping[Var, np.ndarray], results: Sequence[Var]
    ) -> list[Any]:
        """Run some items as a separate program, and return results of them."""
        key = id(items[-1]) if len(items) == 1 else -len(items)
        produced = {v for item in items for v in item.results}
        read = [program.root(v) for item in items for v in item.operands if isinstance(v, Var)]
        inputs = [v for v in dict.fromkeys(read) if v not in produced]
        if key not in self._compiled:
            last = {program.root(v): n for n, item in enumerate(items) for v in item.operands if isinstance(v, Var)}
            last.update(dict.fromkeys(results, len(items)))
            producers = {v: n for n, item in enumerate(items) for v in item.results}
            closed = ClosedJaxpr(Jaxpr([], inputs, [*results], []))
            program_of_items = LoweredProgram(program.target, closed, tuple(items), program.roots, last, producers)
            self._compiled[key] = program_of_items, self._compile(program_of_items)
        program_of_items, run = self._compiled[key]
        return self._called(run, [values[v] for v in inputs], results)

    def _compile(self, program: LoweredProgram) -> Callable[..., Any]:
        donated = (False,) * len(program.closed.in_avals)
        if not self.is_native:
            run: Callable[..., Any] = self.device.backend.compile(program.closed, donated, _LoweredPipeline(program)).run
            return run
        building, runtime = load("volta_fn.targets.cpu.runtime.compile"), load("volta_fn.targets.cpu.runtime.program")
        built = building.assemble(program, donated, building.CommandWriter(building.loaded_routines(program), building.CONTROL_FLOW))
        launches = built.launches
        return _in_marked_memory(runtime.Program(built.artifact, [x.address for x in launches], [x.code for x in launches], built.hosts))


def _in_marked_memory(program: Any) -> Callable[..., Any]:
    """Return machine code that runs on results filled with a pattern."""
    program.specs = [(partial(_marked, empty), shape, dtype) for empty, shape, dtype in program.specs]
    run: Callable[..., Any] = program.__call__
    return run


def _marked(empty: Callable[..., np.ndarray], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = _PATTERN
    return array


def find_miscompilations(compiled: CompiledProgram, arguments: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> list[Miscompilation]:
    """Return the causes of a program's wrong outputs; none if rounding explains them."""
    walk = _ItemRunner(compiled)
    if compiled.target is None:
        alone = _in_numpy(PIPELINE.optimize(compiled.closed), arguments)
    else:
        lowered = PIPELINE.lower(compiled.closed, compiled.target)
        alone = walk.program(lowered, arguments)
    if walk.miscompilations:
        return walk.miscompilations
    wrong = _wrong_pass(compiled, arguments)
    if wrong is not None:
        return [wrong]
    for number, (mine, other) in enumerate(zip(outputs, alone, strict=True)):
        if np.array_equal(_bits(mine), _bits(other)) or not (compiled.is_native or compiled.target is None or differ(mine, other)):
            continue
        if compiled.target is None:
            return [_of_memory("the assignment of registers and memory", [], number, mine, other)]
        return [walk.memory(lowered, arguments, number, mine, other)]
    return []


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _in_numpy(program: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program's equations in NumPy, each result in separate memory."""
    backend = load("volta_fn.targets.numpy.backend")

    def step(eqn: Equation, operands: list[np.ndarray]) -> list[np.ndarray]:
        kernel = backend.make_kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params, PIPELINE)
        results = kernel(*[x.copy() for x in operands])
        return list(map(np.asarray, results if eqn.primitive.multiple_results else (results,)))

    with np.errstate(all="ignore"):
        return interpret_jaxpr(program, arguments, step, host_buffer)


# kernels


class _ItemRunner:
    """Runs items of lowered programs one by one, and compares their results."""

    def __init__(self, compiled: CompiledProgram) -> None:
        self.compiled = compiled
        self.miscompilations: list[Miscompilation] = []
        self._attributions: dict[int, Attribution] = {}
        self._wrong: set[int] = set()

    def program(self, program: LoweredProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = initial_values(program.closed, arguments)
        for item in program.items:
            if not item.is_needed:
                values.update({v: np.zeros(v.aval.shape, v.aval.dtype) for v in item.results})
                continue
            results = self._control_flow(program, item, values) if item.programs else self._item(program, item, values)
            values.update(zip(item.results, results, strict=True))
        return [self._read(program, values, v) for v in program.closed.outvars]

    def _read(self, program: LoweredProgram, values: Values, atom: Atom) -> np.ndarray:
        value = host_buffer(atom.val) if isinstance(atom, Literal) else values[program.root(atom)]
        return value.reshape(atom.aval.shape)

    def _item(self, program: LoweredProgram, item: Item, values: Values) -> list[np.ndarray]:
        results = self.compiled.run_items(program, [item], values, item.results)
        if id(item) not in self._wrong:
            self._compare(program, item, values, results)
        return results

    def _compare(self, program: LoweredProgram, item: Item, values: Values, results: Sequence[np.ndarray]) -> None:
        attribution = self._attributions.setdefault(id(program), Attribution(program))
        equations = attribution.equations(item)
        computed = {v: n for n, v in enumerate(item.results) if any(v in eqn.outvars for eqn in equations)}
        if isinstance(item.node, Equation) and item.node.primitive.name in UNIQUE:
            unique = UNIQUE[item.node.primitive.name]
            computed = {v: n for v, n in computed.items() if n in unique}
        env = dict(values)
        env.update({v: self._read(program, values, v) for v in item.operands if isinstance(v, Var)})
        outvars = {v for eqn in equations for v in eqn.outvars}
        read = {v for eqn in equations for v in eqn.invars if isinstance(v, Var)} - outvars
        env.update({v: self._read(program, values, v) for v in read if program.root(v) in values})
        references = expected_values(equations, {v: x for v, x in env.items() if v in read}, computed)
        for (var, number), right in zip(computed.items(), references, strict=True):
            off = excess(results[number], right)
            if off is not None:
                stage, kernel = self._stage(program, item, values, number, right)
                self._wrong.add(id(item))
                self.miscompilations.append(_miscompilation(stage, equations, var, off, results[number], right, kernel))
                return

    def _stage(self, program: LoweredProgram, item: Item, values: Values, number: int, right: Expected) -> tuple[str, str]:
        """Return which stage made an item wrong, and the text of its kernel."""
        # If the interpreter gives the right results for a kernel, its code is wrong, else fusion is.
        if not isinstance(item.node, KernelCall):
            return f"the {program.target.name} target's routine of {item.node.primitive}", ""
        kernel = item.node.kernel
        stage = "fusion, or the code generation of a kernel,"
        if math.prod(kernel.sizes) <= _MOST_INTERPRETED:
            by_interpreter = interpret(kernel, *[self._read(program, values, v) for v in item.node.operands])[number]
            is_right = excess(by_interpreter.reshape(right.values.shape), right) is None
            stage = "the code generation of a kernel" if is_right else "the fusion to a kernel"
        return stage, format_kernel(kernel)

    def _control_flow(self, program: LoweredProgram, item: Item, values: Values) -> list[np.ndarray]:
        """Return the results of a loop or conditional, whose programs run item by item."""
        assert isinstance(item.node, Equation)
        operands = [self._read(program, values, v) for v in item.operands]
        return control_flow(item.node, item.programs, operands, self.program, lambda dtype: dtype)

    # memory

    def memory(
        self, program: LoweredProgram, arguments: Sequence[np.ndarray], output: int, mine: np.ndarray, other: np.ndarray
    ) -> Miscompilation:
        """Return the first item that is wrong only if run together with its predecessors."""
        # Its memory, or that of its operands, is shared too early.
        values = initial_values(program.closed, arguments)
        items = [item for item in program.items if item.is_needed]
        together = dict(values)
        for item in items:
            together.update(zip(item.results, self.compiled.run_items(program, [item], together, item.results), strict=True))

        def is_wrong(number: int) -> bool:
            results = items[number].results
            computed = self.compiled.run_items(program, items[: number + 1], values, results)
            return not all(np.array_equal(_bits(a), _bits(together[v])) for a, v in zip(computed, results, strict=True))

        first = bisect_left(range(len(items) - 1), True, key=is_wrong)
        equations = self._attributions.setdefault(id(program), Attribution(program)).equations(items[first])
        merging = "" if self.compiled.is_native else ", or the merging of dispatches,"
        return _of_memory(f"the assignment of memory{merging} for {program.target.name}", equations, output, mine, other)


def _of_memory(stage: str, equations: Sequence[Equation], output: int, mine: np.ndarray, other: np.ndarray) -> Miscompilation:
    position = int(np.argmax((_elements(mine) != _elements(other)).reshape(-1)))
    index = tuple(map(int, np.unravel_index(position, mine.shape)))
    named, locations = _named(equations)
    kind = f"output {output}, {mine.dtype}{list(mine.shape)}"
    return Miscompilation(stage, named, locations, kind, index, _number(mine[index]), _number(other[index]), math.inf)


def _elements(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(f"V{array.dtype.itemsize}").reshape(array.shape)


def _miscompilation(
    stage: str, equations: Sequence[Equation], var: Var, off: tuple[int, float], result: np.ndarray, right: Expected, kernel: str = ""
) -> Miscompilation:
    position, factor = off
    index = tuple(map(int, np.unravel_index(position, result.shape)))
    named, locations = _named(equations)
    unwritten = set(result[index].tobytes()) == {_PATTERN}
    actual, wanted = _number(result[index]), _number(right.values[index])
    return Miscompilation(stage, named, locations, str(var.aval), index, actual, wanted, factor, kernel, unwritten)


def _number(value: Any) -> Any:
    return float(value) if value.dtype.kind == "V" else value.item()


def _named(equations: Sequence[Equation]) -> tuple[tuple[str, ...], tuple[SourceLocation, ...]]:
    names = [f"{eqn.primitive}{'' if eqn.source is None else f' at {eqn.source}'}" for eqn in equations]
    return tuple(dict.fromkeys(names)), tuple(locations_of(equations))


# passes


def _wrong_pass(compiled: CompiledProgram, arguments: Sequence[np.ndarray]) -> Miscompilation | None:
    """Return the first pass that changes the results of a program."""
    # The programs are those of its compilation, as passes depend on the values of constants.
    changes = compiled.changes
    references = expected_outputs(compiled.closed, arguments)

    def fault(program: ClosedJaxpr) -> tuple[int, tuple[int, float], np.ndarray] | None:
        for number, (right, output) in enumerate(zip(references, expected_outputs(program, arguments), strict=True)):
            dtype = compiled.closed.out_avals[number].dtype
            off = excess(output.values.astype(dtype), right)
            if off is not None:
                return number, off, output.values.astype(dtype)
        return None

    if not changes or fault(changes[-1][2]) is None:
        return None
    first = bisect_left(range(len(changes) - 1), True, key=lambda number: fault(changes[number][2]) is not None)
    one, before, after = changes[first]
    wrong = fault(after)
    assert wrong is not None
    number, off, output = wrong
    old = set(map(id, before.eqns))
    equations = [eqn for eqn in after.eqns if id(eqn) not in old]
    return _miscompilation(f"the pass {one.name!r}", equations, Var(compiled.closed.out_avals[number]), off, output, references[number])
