"""Scans: cumulative operations, and loops over single numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from volta_fn.codegen.scalars import CumulativeOp, cumulative_op
from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, KernelCall, Load
from volta_fn.compiler.target import LoweredProgram, RoutineKey
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, Literal
from volta_fn.core.primitive import reduction_of
from volta_fn.primitives.cumulative import sum_dtype
from volta_fn.primitives.loops import while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64, nest
from volta_fn.targets.cpu.routine import (
    Routine,
    RoutineWriter,
    chunk_count,
    converted,
    empty_routine,
    handle_signals,
    lanes_for,
    signals_of,
    task_range,
)
from volta_fn.targets.cpu.scalars import Number, apply, combine, constant, horizontal, load, shuffled, splat, store, supports
from volta_fn.targets.cpu.scalars.number import lanes_below

# Scans of vectors: every lane combined with all that comes before it.


class Scan(CumulativeOp):
    """A cumulative operation, and the code of its steps."""

    def combine(self, f: Function, x: Number, y: Number) -> Number:
        """Emit `x`, which came before, combined with `y`."""
        return combine(f, self.reduction, x, y)

    def extend(self, f: Function, i: Value, before: Number, x: Number) -> Number:
        """Emit element number `i` combined with those before it."""
        # The first complex factor stays as it is: 1 times an infinite number has a component that is NaN.
        result = self.combine(f, before, x)
        if self.reduction.step != "mul" or self.dtype.kind != "c":
            return result
        first = f.splat(f.compare("icmp eq", i, i64(0)), x.lanes)
        return Number(x.dtype, tuple([f.select(first, a, b) for a, b in zip(x.components, result.components, strict=True)]))

    def identity(self, f: Function, lanes: int) -> Number:
        """Emit the identity."""
        return constant(f, self.reduction.start(self.dtype), lanes)

    def read(self, f: Function, base: Value, offset: Value, lanes: int, count: Value | None = None) -> Number:
        """Emit the load of numbers from an offset on."""
        at = f.at(base, f"[{self.stored.itemsize} x i8]", offset)
        return converted(f, load(f, self.stored, at, lanes, count=count), self.dtype)

    def write(self, f: Function, x: Number, base: Value, offset: Value, count: Value | None = None) -> None:
        """Emit the store of numbers from an offset on."""
        store(f, converted(f, x, self.stored), f.at(base, f"[{self.stored.itemsize} x i8]", offset), count=count)


def scan_vector(f: Function, scan: Scan, before: Number, x: Number) -> tuple[Number, Number]:
    """Emit the scan of a vector, and its last number in all lanes.

    Every lane of `before` holds the total of the elements before the vector.
    """
    if scan.reduction.step != "logaddexp":
        return _scan_by_doubling(f, scan, before, x)
    greatest = splat(f, horizontal(f, reduction_of("reduce_max"), _apply(f, "max", before, x)), x.lanes)
    start = _apply(f, "max", before, shuffled(f, x, [_first(scan, x.lanes)] * x.lanes))
    near = _apply(f, "sub", greatest, start)
    close = f.compare("fcmp ole", near.value, f.splat(Value(element_of(near.value.type), "1.0"), x.lanes))
    one = f.let("i1", f"extractelement {close}, i64 0")
    vectors = f.branch(
        one, lambda: _values(_scan_exponentials(f, scan, before, x, greatest)), lambda: _values(_scan_by_doubling(f, scan, before, x))
    )
    return Number(x.dtype, (vectors[0],)), Number(x.dtype, (vectors[1],))


def _values(pair: tuple[Number, Number]) -> list[Value]:
    return [pair[0].value, pair[1].value]


def _scan_by_doubling(f: Function, scan: Scan, before: Number, x: Number) -> tuple[Number, Number]:
    """Emit the scan of a vector in steps, each of which reaches twice as many lanes."""
    reach = 1
    while reach < x.lanes:
        x = scan.combine(f, _shifted(f, scan, x, reach), x)
        reach *= 2
    return scan.combine(f, before, x), scan.combine(f, before, shuffled(f, x, [_last(scan, x.lanes)] * x.lanes))


def _scan_exponentials(f: Function, scan: Scan, before: Number, x: Number, greatest: Number) -> tuple[Number, Number]:
    """Emit log-sum-exps as sums of exponentials relative to the greatest number."""
    # That is as accurate where the first result is not much less than the greatest number.
    sums = scan._replace(reduction=reduction_of("cumsum"))
    earlier = _apply(f, "exp", _apply(f, "sub", before, greatest))
    total, _ = _scan_by_doubling(f, sums, earlier, _apply(f, "exp", _apply(f, "sub", x, greatest)))
    result = _apply(f, "add", greatest, _apply(f, "log", total))
    return result, shuffled(f, result, [_last(scan, x.lanes)] * x.lanes)


def _apply(f: Function, name: str, *operands: Number) -> Number:
    return apply(f, name, operands, operands[0].dtype, {})


def _first(scan: Scan, lanes: int) -> int:
    return lanes - 1 if scan.reverse else 0


def _last(scan: Scan, lanes: int) -> int:
    return 0 if scan.reverse else lanes - 1


def _shifted(f: Function, scan: Scan, x: Number, reach: int) -> Number:
    """Emit a vector shifted by `reach` lanes, with identities at its beginning."""
    lanes = x.lanes
    order = [k + reach if scan.reverse else k - reach for k in range(lanes)]
    identity = scan.identity(f, lanes)
    if scan.reduction.step == "add" and scan.dtype.kind in "fc":
        # -0.0: LLVM shifts 0.0 in by `vexpandpd`, which takes four times as long as the permutation for other numbers.
        identity = constant(f, -scan.reduction.start(scan.dtype), lanes)
    return shuffled(f, x, [k if 0 <= k < lanes else lanes for k in order], identity)


# Cumulative sums, products, extrema and log-sum-exps.
#
# Along the last axis a vector's lanes are combined with those before them in a few steps, each reaching twice as far, and then with all
# that came before the vector; long rows are split into chunks, whose totals a first launch finds. Along other axes vectors run across
# the columns. Products of floats are computed one by one, since products of chunks might overflow where the result does not.
#
# Sums of floats accumulate in float64, other operations on float16 and bfloat16 in float32.

#: Elements of a chunk of a long row, and the fewest elements of a task.
_CHUNK = 1 << 16
_TASK = 1 << 14

#: Vectors of columns, or rows whose elements are accumulated one by one, in an unrolled loop.
_VECTORS = 8
_CHAINS = 4


def cumulative(avals: tuple[ShapedArray, ...], params: dict[str, Any], name: str) -> Routine | None:
    """Return the routine of the primitive of that name."""
    (operand,) = avals
    if not operand.size:
        return empty_routine()
    dtype = sum_dtype(reduction_of(name).step, operand.dtype)
    scan = Scan(*cumulative_op(name, operand, dtype, params["axis"], params["reverse"]))
    if not supports(scan.reduction.step, (dtype, dtype), {}):
        return None
    if scan.columns > 1:
        return _across_columns(scan)
    return _sequentially(scan) if scan.is_sequential else _along_rows(scan)


def _cost(scan: Scan) -> float:
    each = 4.0 if scan.reduction.step == "logaddexp" else 0.4
    return scan.rows * scan.size * scan.columns * each * scan.dtype.itemsize / 4


# across columns


def _across_columns(scan: Scan) -> Routine:
    lanes = lanes_for(scan.dtype)
    vectors = min(_VECTORS, math.ceil(scan.columns / lanes))
    blocks = math.ceil(scan.columns / (vectors * lanes))
    rows = chunk_count(scan.rows, max(1, _TASK // (scan.size * vectors * lanes)))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        first = f.times(f.remainder(number, blocks), vectors * lanes)
        mine = task_range(f, f.quotient(number, blocks), scan.rows, rows)
        nest(f, [scan.rows], lambda row: _column_block(f, scan, pointers, row[0], first, vectors, lanes), mine)

    writer = RoutineWriter(scan.name, 2)
    writer.launch(rows * blocks, _cost(scan), task)
    return writer.routine()


def _column_block(f: Function, scan: Scan, pointers: list[Value], row: Value, first: Value, vectors: int, lanes: int) -> None:
    """Emit the scans of vectors of neighbouring columns, of which some may not exist."""
    base = f.plus(f.times(row, scan.size * scan.columns), first)

    rest = scan.columns % (vectors * lanes)
    partial_counts = [*[None] * (rest // lanes), *([i64(rest % lanes)] if rest % lanes else [])]

    def full_block() -> None:
        _accumulate(f, scan, pointers, base, lanes, [None] * vectors, lanes)

    def masked_block() -> None:
        _accumulate(f, scan, pointers, base, lanes, partial_counts, lanes)

    if not rest:
        full_block()
    else:
        f.branch(f.compare("icmp sle", first, i64(scan.columns - vectors * lanes)), full_block, masked_block)


def _accumulate(
    f: Function, scan: Scan, pointers: list[Value], first: Value, spacing: int, counts: Sequence[Value | None], lanes: int
) -> None:
    """Emit the accumulations of interleaved vectors, `spacing` elements apart.

    The first begins at `first`. Each has as many lanes as `counts` says (None: all).
    """

    def step(i: Value, carried: list[Value]) -> list[Value]:
        start = f.plus(first, f.times(scan.position(f, i), scan.columns))
        positions = [f.plus(start, i64(k * spacing)) for k in range(len(counts))]
        read = [scan.read(f, pointers[0], position, lanes, count) for position, count in zip(positions, counts, strict=True)]
        totals = [scan.extend(f, i, old, x) for old, x in zip(_numbers(scan, carried), read, strict=True)]
        for total, position, count in zip(totals, positions, counts, strict=True):
            scan.write(f, total, pointers[1], position, count)
        return [p for total in totals for p in total.components]

    f.loop(i64(0), i64(scan.size), 1, [*scan.identity(f, lanes).components] * len(counts), step, nonempty=True)


def _numbers(scan: Scan, components: list[Value]) -> list[Number]:
    each = 2 if scan.dtype.kind == "c" else 1
    return [Number(scan.dtype, tuple(components[k : k + each])) for k in range(0, len(components), each)]


# along rows


def _along_rows(scan: Scan) -> Routine:
    chunks = chunk_count(scan.size, _CHUNK, 1 << 20)
    rows = scan.rows if chunks > 1 else chunk_count(scan.rows, max(1, _TASK // scan.size))
    writer = RoutineWriter(scan.name, 2 + (chunks > 1))
    lanes = lanes_for(scan.dtype)

    def sums(f: Function, pointers: list[Value], number: Value) -> None:
        bounds = task_range(f, f.remainder(number, chunks), scan.size, chunks, 64)
        total = _total(f, scan, pointers[0], f.times(f.quotient(number, chunks), scan.size), bounds, lanes)
        store(f, total, f.at(pointers[2], f"[{scan.dtype.itemsize} x i8]", number))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        row, position = f.quotient(number, chunks), f.remainder(number, chunks)
        before = scan.identity(f, 1)
        if chunks > 1:
            before = _preceding_total(f, scan, pointers[2], f.times(row, chunks), position)
        bounds = task_range(f, position, scan.size, chunks, 64)
        mine = task_range(f, row, scan.rows, rows)
        nest(f, [scan.rows], lambda r: _scan_chunk(f, scan, pointers, f.times(r[0], scan.size), bounds, before, lanes), mine)

    if chunks > 1:
        writer.launch(rows * chunks, _cost(scan) / 2, sums)
    writer.launch(rows * chunks, _cost(scan), task)
    return writer.routine(rows * chunks * scan.dtype.itemsize if chunks > 1 else 0)


def _preceding_total(f: Function, scan: Scan, totals: Value, first: Value, position: Value) -> Number:
    """Emit the combined totals of the chunks of a row before one of them."""

    def add(k: Value, carried: list[Value]) -> list[Value]:
        at = f.at(totals, f"[{scan.dtype.itemsize} x i8]", f.plus(first, k))
        return list(scan.combine(f, _numbers(scan, carried)[0], load(f, scan.dtype, at, 1)).components)

    return _numbers(scan, f.loop(i64(0), position, 1, scan.identity(f, 1).components, add))[0]


def _vector(f: Function, scan: Scan, source: Value, row: Value, i: Value, lanes: int, count: Value | None) -> tuple[Value, Number]:
    """Emit a row's elements from number `i` on, and their position.

    Lanes beyond `count` hold the identity.
    """
    if count is None:
        position = f.plus(row, scan.position(f, i, lanes))
        return position, scan.read(f, source, position, lanes)
    position = f.plus(row, f.minus(f.minus(i64(scan.size), i), count) if scan.reverse else i)
    read, identity = scan.read(f, source, position, lanes, count), scan.identity(f, lanes)
    valid = lanes_below(f, count, lanes)
    return position, Number(scan.dtype, tuple([f.select(valid, x, n) for x, n in zip(read.components, identity.components, strict=True)]))


def _fold(
    f: Function, scan: Scan, bounds: tuple[Value, Value], lanes: int, first: Number, step: Callable[[Value, Value | None, Number], Number]
) -> Number:
    """Emit ``carried = step(i, count, carried)`` for every vector of a chunk of a row."""
    begin, end = bounds
    rest = f.remainder(f.minus(end, begin), lanes)
    last = f.minus(end, rest)
    carried = f.loop(begin, last, lanes, first.components, lambda i, c: list(step(i, None, _numbers(scan, c)[0]).components))
    if f.known(rest) != 0:
        some = f.compare("icmp sgt", rest, i64(0))
        carried = f.branch(some, lambda: list(step(last, rest, _numbers(scan, carried)[0]).components), lambda: carried)
    return _numbers(scan, carried)[0]


def _total(f: Function, scan: Scan, source: Value, row: Value, bounds: tuple[Value, Value], lanes: int) -> Number:
    """Emit a chunk of a row combined: lane by lane, and then the lanes in their order."""

    def step(i: Value, count: Value | None, carried: Number) -> Number:
        return scan.combine(f, carried, _vector(f, scan, source, row, i, lanes, count)[1])

    return horizontal(f, scan.reduction, _fold(f, scan, bounds, lanes, scan.identity(f, lanes), step))


def _scan_chunk(
    f: Function, scan: Scan, pointers: list[Value], row: Value, bounds: tuple[Value, Value], before: Number, lanes: int
) -> None:
    """Emit the accumulation of a chunk of a row, given what came before it."""

    def step(i: Value, count: Value | None, carried: Number) -> Number:
        position, x = _vector(f, scan, pointers[0], row, i, lanes, count)
        result, last = scan_vector(f, scan, carried, x)
        scan.write(f, result, pointers[1], position, count)
        return last

    _fold(f, scan, bounds, lanes, splat(f, before, lanes), step)


# one by one


def _sequentially(scan: Scan) -> Routine:
    tasks = chunk_count(scan.rows, max(1, _TASK // scan.size))

    def several(f: Function, pointers: list[Value], count: int, row: Value, _: list[Value]) -> None:
        _accumulate(f, scan, pointers, f.times(row, scan.size), scan.size, [None] * count, 1)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        begin, end = task_range(f, number, scan.rows, tasks)
        last = f.minus(end, f.remainder(f.minus(end, begin), _CHAINS))
        for first, stop, count in ((begin, last, _CHAINS), (last, end, 1)):
            f.loop(first, stop, count, [], partial(several, f, pointers, count))

    writer = RoutineWriter(scan.name, 2)
    writer.launch(tasks, scan.rows * scan.size, task)
    return writer.routine()


# Scans and while loops over single numbers, which stay in registers.
#
# The executor needs several nanoseconds for each kernel and each carry of an iteration, more than a few scalar operations take. So a loop
# whose carry, constants and rows are single numbers, and whose programs consist of kernels of one element, is one routine.

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
    writer.launch(1, cost, lambda f, pointers, task: body(f, pointers), polls=True)
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
