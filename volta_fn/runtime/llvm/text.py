"""LLVM IR as text: modules, functions, instructions, and index arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from volta_fn.codegen.scalars import IndexArithmetic

T = TypeVar("T")

# LLVM IR as text: modules of functions, whose instructions are strings.
#
# A `Value` is the name of a result (or a constant's text) with its LLVM type. A `Function` appends instructions one after another; loops
# and branches take Python functions that write their bodies.
#
# llvmlite.ir has the same, with an object for each type, operand and instruction. It takes 0.66 s to build and print a function of 20,000
# instructions (a large convolution has as many), which is written here in 0.07 s and which LLVM parses in 0.11 s: a program's first call
# would wait for it.


class Value(NamedTuple):
    """An operand of instructions: its LLVM type and its text."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


#: Instructions of index arithmetic.
_INDEX_OPERATIONS = {"+": "add nsw", "-": "sub nsw", "*": "mul nsw", "/": "udiv", "%": "urem"}


def i64(number: int) -> Value:
    """Return a constant 64-bit integer."""
    return Value("i64", str(number))


def vector_of(type_: str, lanes: int) -> str:
    """Return the type of a vector of `lanes` numbers; of one lane, the number's type."""
    return f"<{lanes} x {type_}>" if lanes > 1 else type_


#: A function of more lines than `_SHORT` that a module calls more than `_MOST_COPIES` times is not inlined: each copy of a sine costs LLVM
#: 5 ms, and from so many calls on programs are as fast without. Products, convolutions and losses call one 6 times at most.
_SHORT, _MOST_COPIES = 16, 16


class SharedFunction(NamedTuple):
    """A function that modules share, as a separate module.

    Its name determines its text.
    """

    name: str
    declaration: str
    text: str
    #: The types of the results of its instructions.
    types: frozenset[str]


class Module:
    """Functions and declarations, each of which is written once."""

    def __init__(self) -> None:
        self._definitions: dict[str, str] = {}
        #: The functions of other modules that are called here, by their names.
        self.shared: dict[str, SharedFunction] = {}
        #: The types of the results of instructions, those of the shared functions included.
        self.types: set[str] = set()

    def declare(self, name: str, declaration: str) -> None:
        """Add an external declaration or a global, by name."""
        self._definitions.setdefault(name, declaration)

    def define(self, name: str, write: Callable[[], None]) -> None:
        """Have `write` add the function called `name`, unless it is defined."""
        if name not in self._definitions:
            self._definitions[name] = ""  # so that functions can call each other
            write()

    def put(self, name: str, text: str) -> None:
        """Set the text of a function."""
        self._definitions[name] = text

    def share(self, function: SharedFunction) -> None:
        """Declare a function that is shared."""
        self.shared[function.name] = function
        self.types |= function.types
        self.declare(function.name, function.declaration)

    def __str__(self) -> str:
        # Whether a function is inlined is decided here, when all calls of it are known.
        text = "\n".join(self._definitions.values())
        for name, definition in self._definitions.items():
            is_long = definition.count("\n") > _SHORT and " alwaysinline " in definition.partition("\n")[0]
            if is_long and text.count(f"@{name}(") > _MOST_COPIES:
                text = text.replace(definition, definition.replace(" alwaysinline ", " noinline ", 1), 1)
        return text


class Function(IndexArithmetic[Value]):
    """One function being written. `finish` puts it into its module."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Value], result: str = "void", attributes: str = "nounwind") -> None:
        self.module = module
        self.name = name
        self.parameters = list(parameters)
        self.result = result
        self.attributes = attributes
        self._entry: list[str] = []
        self._text_lines: list[str] = []
        self._count = 0
        self._label = "entry"

    # instructions

    def let(self, type_: str, expression: str) -> Value:
        """Append an instruction and return its result."""
        self._count += 1
        name = f"%v{self._count}"
        self._text_lines.append(f"  {name} = {expression}")
        self.module.types.add(type_)
        return Value(type_, name)

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self._text_lines.append(f"  {instruction}")

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Append an instruction of two operands of the result's type, as ``fadd``."""
        return self.let(x.type, f"{op} {x}, {y.name}")

    def compare(self, op: str, x: Value, y: Value) -> Value:
        """Append ``icmp slt``, ``fcmp olt``, …: an i1, or a vector of them."""
        lanes = lanes_of(x.type)
        return self.let(vector_of("i1", lanes), f"{op} {x}, {y.name}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Append a choice: `yes` where the condition holds, else `no`."""
        return self.let(yes.type, f"select {condition}, {yes}, {no}")

    def cast(self, op: str, x: Value, type_: str) -> Value:
        """Append ``sext``, ``fptrunc``, ``bitcast``, … unless `x` has the type."""
        return x if x.type == type_ else self.let(type_, f"{op} {x} to {type_}")

    def call(self, name: str, type_: str, *args: Value) -> Value:
        """Append a call of a function of the module, or declared there."""
        return self.let(type_, f"call {type_} @{name}({', '.join(map(str, args))})")

    def run(self, name: str, *args: Value) -> None:
        """Append a call without a result."""
        self.do(f"call void @{name}({', '.join(map(str, args))})")

    def intrinsic(self, name: str, type_: str, *args: Value) -> Value:
        """Append a call of an LLVM intrinsic, by its full name with the types in it."""
        self.module.declare(name, f"declare {type_} @{name}({', '.join(a.type for a in args)})")
        return self.call(name, type_, *args)

    def run_shared(self, function: SharedFunction, *args: Value) -> None:
        """Append a call, without a result, of a function that modules share."""
        self.module.share(function)
        self.run(function.name, *args)

    # indices, of 64 bits

    def index(self, number: int) -> Value:
        """Return a constant."""
        return i64(number)

    def known(self, x: Value) -> int | None:
        """Return the number of a constant; None for other values."""
        return None if x.name.startswith("%") else int(x.name)

    def print_index(self, operator: str, x: Value, y: Value) -> Value:
        """Emit an operation on two indices."""
        return self.binary(_INDEX_OPERATIONS[operator], x, y)

    # memory

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> Value:
        """Reserve stack memory in the function's entry block, once per call."""
        self._count += 1
        name = f"%v{self._count}"
        self._entry.append(f"  {name} = alloca {type_}, i64 {count}, align {align}")
        return Value("ptr", name)

    def at(self, pointer: Value, type_: str, index: Value) -> Value:
        """Append the address of element `index` of an array of `type_`."""
        return self.let("ptr", f"getelementptr inbounds {type_}, {pointer}, {index}")

    def load(self, type_: str, pointer: Value, align: int) -> Value:
        """Append a load and return the value."""
        return self.let(type_, f"load {type_}, {pointer}, align {align}")

    def store(self, value: Value, pointer: Value, align: int) -> None:
        """Append a store."""
        self.do(f"store {value}, {pointer}, align {align}")

    def memcpy(self, target: Value, source: Value, size: Value, align: int = 1) -> None:
        """Append a copy of `size` bytes between arrays that do not overlap."""
        self.module.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        aligned = [Value(f"ptr align {align}", pointer.name) for pointer in (target, source)]
        self.run("llvm.memcpy.p0.p0.i64", *aligned, size, Value("i1", "false"))

    # vectors

    def splat(self, x: Value, lanes: int) -> Value:
        """Append a vector of copies of a number; of one lane, return the number."""
        if lanes == 1:
            return x
        type_ = vector_of(x.type, lanes)
        if not x.name.startswith("%"):
            return Value(type_, f"splat ({x})")
        one = self.let(type_, f"insertelement {type_} poison, {x}, i64 0")
        return self.let(type_, f"shufflevector {one}, {type_} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, x: Value, order: Sequence[int], other: Value | None = None) -> Value:
        """Append a shuffle: lanes of a vector and of `other` (numbered on) in `order`."""
        if len(order) == 1:
            lanes = lanes_of(x.type)
            source = x if order[0] < lanes or other is None else other
            return source if lanes == 1 else self.let(element_of(x.type), f"extractelement {source}, i64 {order[0] % lanes}")
        picked = ", ".join(f"i32 {k}" for k in order)
        second = f"{x.type} poison" if other is None else other
        return self.let(vector_of(element_of(x.type), len(order)), f"shufflevector {x}, {second}, <{len(order)} x i32> <{picked}>")

    # control flow

    def label(self, name: str) -> None:
        """Begin a block."""
        self._text_lines.append(f"{name}:")
        self._label = name

    def fresh(self, prefix: str) -> str:
        """Return a new label."""
        self._count += 1
        return f"{prefix}{self._count}"

    def loop(
        self,
        start: Value,
        end: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        *,
        nonempty: bool = False,
    ) -> list[Value]:
        """Append ``for i in range(start, end, step)`` over 64-bit integers.

        `body` takes ``(i, carried)`` and gives the next `carried`; the last is returned. `nonempty` promises at least one iteration.
        """
        before, head, done = self._label, self.fresh("loop"), self.fresh("done")
        if nonempty:
            self.do(f"br label %{head}")
        else:
            some = self.compare("icmp slt", start, end)
            self.do(f"br {some}, label %{head}, label %{done}")
        self.label(head)
        phis_at = len(self._text_lines)
        index = Value("i64", f"%i.{head}")
        phis = [Value(v.type, f"%c{k}.{head}") for k, v in enumerate(carried)]
        results = list(body(index, phis) or ())
        following = self.let("i64", f"add nsw {index}, {step}")
        more = self.compare("icmp slt", following, end)
        last = self._label
        self.do(f"br {more}, label %{head}, label %{done}")
        self._put_phis(phis_at, [index, *phis], (before, [start, *carried]), (last, [following, *results]))
        self.label(done)
        if nonempty:
            return results
        return [
            self.let(first.type, f"phi {first.type} [ {first.name}, %{before} ], [ {result.name}, %{last} ]")
            for first, result in zip(carried, results, strict=True)
        ]

    def _put_phis(self, at: int, phis: Sequence[Value], *edges: tuple[str, Sequence[Value]]) -> None:
        """Insert the phis of a block at a line: their values by the block before."""
        sources = [[f"[ {value.name}, %{block} ]" for value in values] for block, values in edges]
        self._text_lines[at:at] = [f"  {phi.name} = phi {phi.type} {', '.join(row)}" for phi, *row in zip(phis, *sources, strict=True)]

    def branch(
        self, condition: Value, yes: Callable[[], Sequence[Value] | None], no: Callable[[], Sequence[Value] | None] | None = None
    ) -> list[Value]:
        """Append a branch on an i1 and return what `yes` or `no` gives."""
        before, then, other, done = self._label, self.fresh("then"), self.fresh("else"), self.fresh("end")
        self.do(f"br {condition}, label %{then}, label %{other if no else done}")
        self.label(then)
        first = list(yes() or ())
        after_then = self._label
        self.do(f"br label %{done}")
        second: list[Value] = []
        after_other = before
        if no is not None:
            self.label(other)
            second = list(no() or ())
            after_other = self._label
            self.do(f"br label %{done}")
        self.label(done)
        return [
            self.let(x.type, f"phi {x.type} [ {x.name}, %{after_then} ], [ {y.name}, %{after_other} ]")
            for x, y in zip(first, second, strict=True)
        ]

    def repeat_while(self, condition: Callable[[], Value], work: Callable[[], object]) -> None:
        """Append ``while condition: work``."""
        head, body, done = self.fresh("while"), self.fresh("do"), self.fresh("over")
        self.do(f"br label %{head}")
        self.label(head)
        self.do(f"br {condition()}, label %{body}, label %{done}")
        self.label(body)
        work()
        self.do(f"br label %{head}")
        self.label(done)

    def finish(self, result: Value | None = None) -> None:
        """Return, and put the function into its module."""
        self.do("ret void" if result is None else f"ret {result}")
        parameters = ", ".join(map(str, self.parameters))
        head = f"define {self.result} @{self.name}({parameters}) {self.attributes} {{\nentry:"
        self.module.put(self.name, "\n".join([head, *self._entry, *self._text_lines, "}"]))


def shared_function(name: str, parameters: Sequence[Value], write: Callable[[Function], None]) -> SharedFunction:
    """Make a shared function, without a result, that `write` writes."""
    module = Module()
    f = Function(module, name, parameters)
    write(f)
    f.finish()
    return SharedFunction(name, f"declare void @{name}({', '.join([p.type for p in parameters])})", str(module), frozenset(module.types))


def lanes_of(type_: str) -> int:
    """Return the number of lanes of a vector type; 1 for other types."""
    return int(type_[1 : type_.index(" ")]) if type_.startswith("<") else 1


def element_of(type_: str) -> str:
    """Return the element type of a vector type; other types themselves."""
    return type_[type_.index(" x ") + 3 : -1] if type_.startswith("<") else type_


def locked(f: Function, lock: Value, work: Callable[[], T]) -> T:
    """Return what `work` gives under a lock, for which threads spin."""
    head, done = f.fresh("wait"), f.fresh("locked")
    f.do(f"br label %{head}")
    f.label(head)
    pair = f.let("{ i64, i1 }", f"cmpxchg {lock}, i64 0, i64 1 seq_cst seq_cst")
    f.do(f"br {f.let('i1', f'extractvalue {pair}, 1')}, label %{done}, label %{head}")
    f.label(done)
    result = work()
    f.do(f"store atomic i64 0, {lock} seq_cst, align 8")
    return result


# Arithmetic of 64-bit indices in LLVM IR, with constants folded.
#
# What shapes decide therefore costs nothing when the code runs.


def rounded_down(f: Function, x: Value, unit: int) -> Value:
    """Emit the greatest multiple of `unit`, a power of two, up to x."""
    a = f.known(x)
    return i64(a // unit * unit) if a is not None else x if unit == 1 else f.binary("and", x, i64(-unit))


def least(f: Function, x: Value, y: Value) -> Value:
    """Emit the minimum of x and y."""
    a, b = f.known(x), f.known(y)
    return i64(min(a, b)) if a is not None and b is not None else f.intrinsic("llvm.smin.i64", "i64", x, y)


def greatest(f: Function, x: Value, y: Value) -> Value:
    """Emit the maximum of x and y."""
    a, b = f.known(x), f.known(y)
    return i64(max(a, b)) if a is not None and b is not None else f.intrinsic("llvm.smax.i64", "i64", x, y)


def clamped(f: Function, x: Value, limit: int) -> Value:
    """Emit x clamped to [0, limit]."""
    return least(f, greatest(f, x, i64(0)), i64(limit))


def widened(f: Function, x: Value, signed: bool) -> Value:
    """Emit an integer as one of 64 bits; too large unsigned ones become the largest."""
    if x.type == "i64":
        return x if signed else f.intrinsic("llvm.umin.i64", "i64", x, i64(2**63 - 1))
    return f.cast("sext" if signed else "zext", x, "i64")


def counting(lanes: int, type_: str = "i64") -> Value:
    """Return the constant vector 0, 1, 2, …, or the number 0 for one lane."""
    if lanes == 1:
        return Value(type_, "0")
    return Value(vector_of(type_, lanes), f"<{', '.join(f'{type_} {k}' for k in range(lanes))}>")


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Emit the transpose of a square of vectors, by swaps of growing blocks."""
    result, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        upper = [j if not j & step else lanes + j - step for j in range(lanes)]
        lower = [j + step if not j & step else lanes + j for j in range(lanes)]
        for i in [i for i in range(lanes) if not i & step]:
            a, b = result[i], result[i + step]
            result[i], result[i + step] = f.shuffle(a, upper, b), f.shuffle(a, lower, b)
        step *= 2
    return result


def nest(f: Function, sizes: Sequence[int], body: Callable[[list[Value]], None], first: tuple[Value, Value] | None = None) -> None:
    """Emit nested loops, whose `body` gets one index per size.

    `first` is the range of the outermost loop, if it is not all of it.
    """

    def level(depth: int, indices: list[Value]) -> None:
        if depth == len(sizes):
            body(indices)
            return
        begin, end = first if first and not depth else (i64(0), i64(sizes[depth]))
        if f.known(begin) is not None and f.known(end) == (f.known(begin) or 0) + 1:
            level(depth + 1, [*indices, begin])
            return

        def iteration(i: Value, _: list[Value]) -> list[Value]:
            level(depth + 1, [*indices, i])
            return []

        f.loop(begin, end, 1, [], iteration)

    level(0, [])
