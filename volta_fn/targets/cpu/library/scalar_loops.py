"""Scans and while loops over single numbers, which stay in registers.

The executor needs several nanoseconds for each kernel and each carry of an iteration, more than a few scalar operations take. So a loop
whose carry, constants and rows are single numbers, and whose programs consist of kernels of one element, is one routine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, KernelCall, Load
from volta_fn.compiler.target import LoweredProgram, RoutineKey
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, Literal
from volta_fn.primitives.loops import while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, handle_signals, signals_of
from volta_fn.targets.cpu.scalars import Number, apply, constant, load, store, supports

#: Scalar operations in the programs of a loop, at most.
_MOST_NODES = 256
#: The estimated nanoseconds of a while loop, whose number of iterations is unknown.
_WHILE_LOOP_NS = 1e6
#: Iterations from one handling of signals to the next: some milliseconds, as an iteration takes up to a few microseconds.
_CLOCK_INTERVAL = 4096


class ScalarProgram(NamedTuple):
    """A program of single values: its inputs and the results of kernels, numbered."""

    dtypes: tuple[Any, ...]
    #: Kernels of one element, each with the numbers that it reads.
    kernels: tuple[tuple[Kernel, tuple[int, ...]], ...]
    outputs: tuple[int | Constant, ...]

    def emit(self, f: Function, inputs: Sequence[Number]) -> list[Number]:
        """Emit the program, and return its outputs."""
        values = list(inputs)
        for kernel, operands in self.kernels:
            numbers: list[Number] = []
            for node in kernel.nodes:
                if isinstance(node, Load):
                    numbers.append(values[operands[node.input]])
                elif isinstance(node, Constant):
                    numbers.append(constant(f, node.value, 1))
                else:
                    assert isinstance(node, Apply)
                    numbers.append(apply(f, node.op, [numbers[i] for i in node.operands], node.dtype, dict(node.params)))
            values += [numbers[result.value] for result in kernel.stores]
        return [constant(f, out.value, 1) if isinstance(out, Constant) else values[out] for out in self.outputs]


def loop_key(eqn: Equation, programs: Sequence[LoweredProgram]) -> RoutineKey | None:
    """Return the key of the routine of a loop with these programs, or None."""
    scalar = [_scalar_program(program) for program in programs]
    loop_programs = [program for program in scalar if program is not None]
    if eqn.primitive not in (scan_p, while_p) or len(loop_programs) < len(scalar):
        return None
    if sum([len(kernel.nodes) for program in loop_programs for kernel, _ in program.kernels]) > _MOST_NODES:
        return None
    avals = tuple([v.aval for v in eqn.invars])
    sizes = tuple(sorted([(name, value) for name, value in eqn.params.items() if isinstance(value, int)]))
    key = ("scalar loop", eqn.primitive.name, sizes, *loop_programs)
    write = _scan if eqn.primitive is scan_p else _while
    return RoutineKey(key, lambda: write(avals, dict(sizes), loop_programs))


def _scalar_program(program: LoweredProgram) -> ScalarProgram | None:
    jaxpr = program.closed.jaxpr
    if jaxpr.constvars or any(v.aval.size != 1 for v in jaxpr.invars):
        return None
    numbers = {v: i for i, v in enumerate(jaxpr.invars)}
    kernels = []
    for item in program.items:
        node = item.node
        if not isinstance(node, KernelCall) or not _is_scalar(node.kernel):
            return None
        kernels.append((node.kernel, tuple([numbers[program.root(v)] for v in node.operands])))
        numbers |= {v: i for i, v in enumerate(node.results, len(numbers))}
    outputs = [Constant.of(v.val.host(), v.aval.dtype) if isinstance(v, Literal) else numbers[program.root(v)] for v in jaxpr.outvars]
    return ScalarProgram(tuple([v.aval.dtype for v in jaxpr.invars]), tuple(kernels), tuple(outputs))


def _is_scalar(kernel: Kernel) -> bool:
    return all(size == 1 for size in kernel.sizes) and all(
        isinstance(node, Constant)
        or (isinstance(node, Load) and not node.mask)
        or (isinstance(node, Apply) and supports(node.op, [kernel.nodes[i].dtype for i in node.operands], dict(node.params)))
        for node in kernel.nodes
    )


def _routine(name: str, buffers: int, cost: float, body: Callable[[Function, list[Value]], None]) -> Routine:
    writer = RoutineWriter(name, buffers)
    writer.launch(1, cost, lambda f, pointers, task: body(f, pointers))
    return writer.routine()


def _loaded(f: Function, dtypes: Sequence[Any], pointers: Sequence[Value]) -> list[Number]:
    return [load(f, dtype, pointer, 1) for dtype, pointer in zip(dtypes, pointers, strict=True)]


def _while(avals: Sequence[ShapedArray], sizes: dict[str, int], programs: Sequence[ScalarProgram]) -> Routine:
    condition, body = programs
    first, consts = sizes["cond_nconsts"], sizes["cond_nconsts"] + sizes["body_nconsts"]
    dtypes = [aval.dtype for aval in avals]

    def write(f: Function, pointers: list[Value]) -> None:
        fixed = _loaded(f, dtypes[:consts], pointers[:consts])
        cells = _cells(f, _loaded(f, dtypes[consts:], pointers[consts : len(avals)]))

        def goes_on(number: Value) -> Value:
            return condition.emit(f, [*fixed[:first], *_loaded(f, dtypes[consts:], cells)])[0].value

        def iteration(number: Value) -> None:
            _store_all(f, body.emit(f, [*fixed[first:], *_loaded(f, dtypes[consts:], cells)]), cells)

        _repeat(f, goes_on, iteration)
        _store_all(f, _loaded(f, dtypes[consts:], cells), pointers[len(avals) :])

    return _routine("while", 2 * len(avals) - consts, _WHILE_LOOP_NS, write)


def _scan(avals: Sequence[ShapedArray], sizes: dict[str, int], programs: Sequence[ScalarProgram]) -> Routine:
    (body,) = programs
    consts, carries, length = sizes["num_consts"], sizes["num_carry"], sizes["length"]
    rows, inputs = consts + carries, len(avals)

    def write(f: Function, pointers: list[Value]) -> None:
        before = _loaded(f, body.dtypes[:rows], pointers[:rows])
        fixed, cells = before[:consts], _cells(f, before[consts:])

        def iteration(i: Value) -> None:
            number = f.minus(i64(length - 1), i) if sizes["reverse"] else i
            row = [_row(f, dtype, p, number) for dtype, p in zip(body.dtypes[rows:], pointers[rows:inputs], strict=True)]
            carry = _loaded(f, body.dtypes[consts:rows], cells)
            outs = body.emit(f, [*fixed, *carry, *_loaded(f, body.dtypes[rows:], row)])
            for out, pointer in zip(outs[carries:], pointers[inputs + carries :], strict=True):
                store(f, out, _row(f, out.dtype, pointer, number))
            _store_all(f, outs[:carries], cells)

        _repeat(f, lambda i: f.compare("icmp slt", i, i64(length)), iteration)
        _store_all(f, _loaded(f, body.dtypes[consts:rows], cells), pointers[inputs : inputs + carries])

    nodes = sum([len(kernel.nodes) for kernel, _ in body.kernels])
    return _routine("scan", inputs + len(body.outputs), float(length * (nodes + 1)), write)


def _row(f: Function, dtype: Any, pointer: Value, number: Value) -> Value:
    return f.at(pointer, f"[{dtype.itemsize} x i8]", number)


def _cells(f: Function, numbers: Sequence[Number]) -> list[Value]:
    """Emit variables that hold numbers; LLVM keeps them in registers."""
    cells = [f.alloca(f"[{number.dtype.itemsize} x i8]", align=16) for number in numbers]
    _store_all(f, numbers, cells)
    return cells


def _store_all(f: Function, numbers: Sequence[Number], pointers: Sequence[Value]) -> None:
    for number, pointer in zip(numbers, pointers, strict=True):
        store(f, number, pointer)


def _repeat(f: Function, goes_on: Callable[[Value], Value], iteration: Callable[[Value], None]) -> None:
    """Emit iterations as long as `goes_on` is true of their numbers."""
    # They also end when the handler of a signal raises.
    signals, count = signals_of(f, f.parameters[0]), f.alloca("i64", align=8)
    f.store(i64(0), count, 8)
    again, inside, look, over = (f.fresh(name) for name in ("again", "inside", "look", "over"))
    f.do(f"br label %{again}")
    f.label(again)
    number = f.load("i64", count, 8)
    f.do(f"br {goes_on(number)}, label %{inside}, label %{over}")
    f.label(inside)
    iteration(number)
    following = f.plus(number, i64(1))
    f.store(following, count, 8)
    due = f.compare("icmp eq", f.binary("and", following, i64(_CLOCK_INTERVAL - 1)), i64(0))
    f.do(f"br {due}, label %{look}, label %{again}")
    f.label(look)
    good = f.compare("icmp eq", handle_signals(f, signals), i64(0))
    f.do(f"br {good}, label %{again}, label %{over}")
    f.label(over)
