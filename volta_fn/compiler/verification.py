"""Verifiers of programs, kernels and memory, after each pass."""

from __future__ import annotations

import bisect
import heapq
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from volta_fn.compiler.contractions import Contraction, contraction_of
from volta_fn.compiler.emission import Slot
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import (
    Apply,
    FusedProgram,
    Kernel,
    KernelCall,
    Load,
    Node,
    ProgramNode,
    Reduce,
    Store,
    check_kernel,
    equations_between,
    format_kernel,
    operands,
    reads,
    stages,
    writes,
)
from volta_fn.compiler.plans import Operand, Plan, Step
from volta_fn.compiler.target import Item, LoweredProgram, Target
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program, has_effects, program_cache, sub_jaxprs
from volta_fn.errors import CompilerError, JaxprError, VoltaError
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p

#: The effectful equations of a program in order, and those of the programs of control flow.
Effects = tuple[Any, ...]

#: Shape and dtype.
_Type = tuple[tuple[int, ...], Any]


def verify_pass(stage: str, before: ClosedJaxpr | FusedProgram, after: ClosedJaxpr | FusedProgram) -> None:
    """Raise `CompilerError` unless a pass keeps effects, types and well-formedness."""
    if after is before:
        return
    old, new = _program_of(before), _program_of(after)
    _verify_interface(stage, old, new)
    if isinstance(before, ClosedJaxpr):  # later passes give fused programs outputs that nodes alone compute
        verify_program("tracing", old)
        verify_program(stage, new, old)
        _verify_effects(stage, effects_of(old), effects_of(new))
    if isinstance(after, FusedProgram):
        verify_nodes(stage, after, before.nodes if isinstance(before, FusedProgram) else ())


def _program_of(program: ClosedJaxpr | FusedProgram) -> ClosedJaxpr:
    return program.closed if isinstance(program, FusedProgram) else program


def describe(eqn: Equation) -> str:
    """Return an equation's primitive and types."""
    return f"{eqn.primitive} {_types(eqn.invars)} -> {_types(eqn.outvars)}"


def _types(atoms: Iterable[Atom]) -> str:
    return " ".join(str(v.aval) for v in atoms) or "()"


def _fail(stage: str, problem: str, eqn: Equation) -> NoReturn:
    raise CompilerError.of(stage, problem, describe(eqn), eqn.source)


# programs


#: The entry in `ClosedJaxpr.derived` of programs that are verified.
_VERIFIED = ("verified",)


def verify_program(stage: str, program: ClosedJaxpr, before: ClosedJaxpr | None = None) -> None:
    """Raise `CompilerError` unless a program and those in it are well formed.

    Every variable is bound once, before its uses; every equation's results have the types that its primitive gives them. Equations that
    the program `before` the pass has, too, itself or in those that it holds, were verified with it.
    """
    verified = set(before.eqns) if before is not None else set()
    pending = [program]
    while pending:
        current = pending.pop()
        if _VERIFIED in current.derived:
            continue
        if current is not program and before is not None:
            verified.update(_inner_equations(before))
            before = None
        _verify_bindings(stage, current)
        for eqn in [eqn for eqn in current.eqns if eqn not in verified]:
            _verify_types(stage, eqn)
            if eqn.primitive.holds_programs:
                pending.extend(sub_jaxprs(eqn.params))
        current.derived[_VERIFIED] = (True,)


def _inner_equations(program: ClosedJaxpr) -> list[Equation]:
    equations: list[Equation] = []
    pending = [program]
    while pending:
        for eqn in pending.pop().eqns:
            if eqn.primitive.holds_programs:
                for inner in sub_jaxprs(eqn.params):
                    equations += inner.eqns
                    pending.append(inner)
    return equations


def _verify_bindings(stage: str, program: ClosedJaxpr) -> None:
    jaxpr = program.jaxpr
    if [(v.aval.shape, v.aval.dtype) for v in jaxpr.constvars] != [(c.aval.shape, c.aval.dtype) for c in program.consts]:
        raise CompilerError.of(stage, f"constants {' '.join(str(c.aval) for c in program.consts)} stand for {_types(jaxpr.constvars)}")
    bound: set[Atom] = {*jaxpr.constvars, *jaxpr.invars}
    if len(bound) < len(jaxpr.constvars) + len(jaxpr.invars):
        raise CompilerError.of(stage, "an input is bound twice")
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if atom not in bound and type(atom) is Var:
                _fail(stage, f"an operand {atom.aval} is read before it is computed", eqn)
        for var in eqn.outvars:
            if var in bound:
                _fail(stage, f"a result {var.aval} is computed twice", eqn)
            bound.add(var)
    for number, atom in enumerate(jaxpr.outvars):
        if atom not in bound and not isinstance(atom, Literal):
            raise CompilerError.of(stage, f"output {number}, {atom.aval}, is not computed")


def _verify_types(stage: str, eqn: Equation) -> None:
    primitive, avals = eqn.primitive, tuple([v.aval for v in eqn.invars])
    if primitive.arity and len(avals) != primitive.arity:
        _fail(stage, f"{len(avals)} operands of a primitive that takes {primitive.arity}", eqn)
    try:
        derived = primitive.result_avals(avals, eqn.params)
    except (VoltaError, TypeError) as error:
        _fail(stage, f"operands that the primitive does not take: {error.args[0]}", eqn)
    results = eqn.outvars
    if len(results) == 1 and results[0].aval is derived:  # types are interned
        return
    expected: Sequence[ShapedArray] = derived if primitive.multiple_results else (derived,)
    if len(expected) != len(results) or not all(map(_is_type, expected, results)):
        _fail(stage, f"results of other types than the primitive's rule gives: {' '.join(map(str, expected))}", eqn)


def _is_type(aval: ShapedArray, var: Var) -> bool:
    var_aval = var.aval
    return var_aval is aval or (var_aval.shape == aval.shape and var_aval.dtype == aval.dtype)


def _verify_interface(stage: str, before: ClosedJaxpr, after: ClosedJaxpr) -> None:
    if before.in_avals == after.in_avals and before.out_avals == after.out_avals:
        return
    for kind, old, new in zip(("inputs", "outputs"), _interface(before), _interface(after), strict=True):
        if old != new:
            raise CompilerError.of(stage, f"{kind} of types {_named(old)} became {_named(new)}")


def _interface(program: ClosedJaxpr) -> tuple[list[_Type], list[_Type]]:
    return [(a.shape, a.dtype) for a in program.in_avals], [(a.shape, a.dtype) for a in program.out_avals]


def _named(types: Sequence[_Type]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types) or "()"


# effects


@program_cache
def effects_of(program: ClosedJaxpr) -> Effects:
    """Return a program's effects.

    Calls count as what they call, loops of one iteration as their body.
    """
    return _effects_of(program.eqns)


def _effects_of(equations: Iterable[Equation]) -> Effects:
    special = [e for e in equations if (p := e.primitive).effectful or p.holds_programs or p.expand]
    return tuple([effect for eqn in special for effect in _effects(eqn)])


def _effects(eqn: Equation) -> Effects:
    primitive = eqn.primitive
    if primitive.effectful:
        return ((primitive.name, _Parameters(eqn.params)),)
    if primitive.expand is not None and not has_effects(eqn):
        return ()
    if (called := called_program(eqn)) is not None:
        return effects_of(called)
    inner = tuple([effects_of(sub) for sub in sub_jaxprs(eqn.params)])
    if not any(inner):
        return ()
    if "branches" in eqn.params:
        return ((primitive.name, inner),)
    length = eqn.params.get("length")
    if length in (0, 1):
        return inner[0] * length
    return ((primitive.name, inner),)


class _Parameters:
    """An effectful equation's parameters, which are equal if all values are."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = dict(params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parameters) and self.params == other.params

    __hash__ = None  # type: ignore[assignment]  # values need not be hashable


def _verify_effects(stage: str, before: Effects, after: Effects) -> None:
    if not is_kept(before, after):
        raise CompilerError.of(stage, f"effects were lost, added or reordered: {_listed(before)} became {_listed(after)}")


def is_kept(before: Effects, after: Effects) -> bool:
    """Return True if effects are the same, except for branches that were chosen."""
    if before == after:
        return True
    if not before:
        return False
    first, rest = before[0], before[1:]
    if after and _is_same(first, after[0]) and is_kept(rest, after[1:]):
        return True
    return first[0] == "cond" and any(is_kept((*branch, *rest), after) for branch in first[1])


def _is_same(before: Any, after: Any) -> bool:
    if before == after:
        return True
    nested = before[0] == after[0] and isinstance(before[1], tuple) and isinstance(after[1], tuple)
    return nested and len(before[1]) == len(after[1]) and all(map(is_kept, before[1], after[1]))


def _listed(effects: Effects) -> str:
    return ", ".join(str(effect[0]) for effect in effects) or "none"


# fused and lowered programs


def verify_nodes(stage: str, program: FusedProgram, before: Sequence[ProgramNode] = ()) -> None:
    """Raise `CompilerError` unless nodes compute each value once, before its uses.

    Nodes from `before` the pass were verified with it.
    """
    closed = program.closed
    verified = frozenset([*map(id, before), *map(id, closed.eqns)])
    bound: set[Atom] = {*closed.jaxpr.constvars, *closed.jaxpr.invars}
    for alias, root in program.roots.items():
        if (alias.aval.size, alias.aval.dtype) != (root.aval.size, root.aval.dtype):
            raise CompilerError.of(stage, f"{alias.aval} shares the memory of {root.aval}, which has another size or dtype")
    for node in program.nodes:
        for var in program.reads(node):
            if var not in bound:
                _fail_node(stage, f"an operand {var.aval} is read before it is computed", closed, node)
        for var in writes(node):
            if var in bound or var in program.roots:
                _fail_node(stage, f"a result {var.aval} is computed twice", closed, node)
            bound.add(var)
        if id(node) in verified:
            continue
        if isinstance(node, KernelCall):
            verify_call(stage, closed, node)
        else:
            _verify_types(stage, node)
    for number, atom in enumerate(program.outputs):
        if not isinstance(atom, Literal) and program.root(atom) not in bound:
            raise CompilerError.of(stage, f"output {number}, {atom.aval}, is not computed")
    _verify_effects(stage, effects_of(closed), _effects_of([node for node in program.nodes if isinstance(node, Equation)]))


def _fail_node(stage: str, problem: str, closed: ClosedJaxpr, node: ProgramNode) -> NoReturn:
    if isinstance(node, Equation):
        _fail(stage, problem, node)
    fail_call(stage, problem, closed, node)


def verify_lowered(program: LoweredProgram) -> None:
    """Raise `CompilerError` unless items are well formed, and lifetimes long enough."""
    stage = f"lowering for {program.target.name}"
    roots = program.roots
    verify_nodes(stage, FusedProgram(program.closed, tuple([item.node for item in program.items]), roots))
    last: dict[Var, int] = {}
    for number, item in enumerate(program.items):
        if tuple(reads(item.node)) != tuple([v for v in item.operands if isinstance(v, Var)]) or tuple(writes(item.node)) != item.results:
            _fail_node(stage, "an item has other operands or results than its node", program.closed, item.node)
        last.update({program.root(v): number for v in item.operands if isinstance(v, Var)})
        for var in item.results:
            if program.producers.get(var) != number:
                _fail_node(stage, f"the producer of {var.aval} is another item than is noted", program.closed, item.node)
        _verify_inner(stage, item)
    last.update({program.root(v): len(program.items) for v in program.closed.jaxpr.outvars if isinstance(v, Var)})
    for var, number in last.items():
        if program.last_use.get(var, -1) < number:
            reader = program.items[number].node if number < len(program.items) else program.items[-1].node
            _fail_node(stage, f"{var.aval} is read later than its lifetime says", program.closed, reader)


def _verify_inner(stage: str, item: Item) -> None:
    if not item.programs or not isinstance(item.node, Equation):
        return
    interfaces = [_interface(program) for program in sub_jaxprs(item.node.params)]
    if any(_interface(lowered.closed) not in interfaces for lowered in item.programs):
        _fail(stage, "a program inside has other inputs or outputs than it was lowered from", item.node)


def fail_item(stage: str, problem: str, program: LoweredProgram, item: Item) -> NoReturn:
    """Raise the error of an item of a lowered program."""
    _fail_node(stage, problem, program.closed, item.node)


# Verify kernels: bounds, order, stores, and what recognisers take them for.


def verify_call(stage: str, program: ClosedJaxpr, call: KernelCall) -> None:
    """Raise `CompilerError` unless a kernel is well formed and fits its call."""
    kernel = call.kernel
    violation = violation_of(kernel)
    if violation is not None:
        fail_call(stage, violation, program, call)
    for kind, variables, buffers in (("operands", call.operands, kernel.inputs), ("results", call.results, kernel.outputs)):
        types, expected = [(v.aval.size, v.aval.dtype) for v in variables], [(b.size, b.dtype) for b in buffers]
        if types != expected:
            fail_call(stage, f"a kernel's {kind} are {_listed_axes(types)}, but it has buffers {_listed_axes(expected)}", program, call)


def fail_call(stage: str, problem: str, program: ClosedJaxpr, call: KernelCall) -> NoReturn:
    """Raise the error of a kernel, with its equations and a user's line."""
    producers = {v: eqn for eqn in program.eqns for v in eqn.outvars}
    between = {id(eqn) for eqn in equations_between(producers, call.operands, call.results)}
    equations = [eqn for eqn in program.eqns if id(eqn) in between]
    names = ", ".join(f"{eqn.primitive}{'' if eqn.source is None else f' at {eqn.source}'}" for eqn in equations)
    location = next((eqn.source for eqn in reversed(equations) if eqn.source is not None), None)
    try:
        text = format_kernel(call.kernel)
    except IndexError:  # it is too malformed to be printed as loops
        text = "\n".join(map(repr, (*call.kernel.nodes, *call.kernel.stores)))
    raise CompilerError.of(stage, problem, f"the kernel of {names or 'no equation'}:\n{textwrap.indent(text, '    ')}", location)


def _listed_axes(types: list[tuple[int, Any]]) -> str:
    return ", ".join(f"{dtype}[{size}]" for size, dtype in types) or "none"


@lru_cache(maxsize=4096)
def violation_of(kernel: Kernel) -> str | None:
    """Return the rule that a kernel violates, or None.

    The forms of it that code is generated from must keep the rules, too.
    """
    try:
        check_kernel(kernel)
        small = simplified(kernel)
        check_kernel(small)
        if (small.inputs, small.outputs) != (kernel.inputs, kernel.outputs):
            return "with fewer axes, the kernel has other buffers"
        contraction = contraction_of(kernel)
        return None if contraction is None else _violation_of_contraction(contraction)
    except JaxprError as error:
        return error.message


# recognisers


def _violation_of_contraction(contraction: Contraction) -> str | None:
    """Return the difference between a contraction and its kernel, or None."""
    # Code is generated for the sum of products and for the epilogue: together they must store what the kernel stores.
    kernel = contraction.kernel
    try:
        epilogue, inputs = contraction.epilogue()
        check_kernel(epilogue)
    except (JaxprError, AssertionError) as error:
        return f"taken for a matrix product, whose epilogue is no kernel: {error.args[0] if error.args else error}"
    numbers = ExpressionNumbers()
    values = numbers.of(kernel)
    total = kernel.nodes[contraction.total]
    assert isinstance(total, Reduce)
    product = kernel.nodes[total.operand]
    factors = [_unconverted(kernel, n) for n in operands(product)]
    if factors != [contraction.lhs, contraction.rhs] and factors != [contraction.rhs, contraction.lhs]:
        return "taken for a matrix product of other arrays than the kernel multiplies"
    after = numbers.of(epilogue, [None, *inputs], values[contraction.total])
    if _stores(kernel, values) != _stores(epilogue, after):
        return "taken for a matrix product, whose epilogue stores other values than the kernel"
    return None


def _unconverted(kernel: Kernel, number: int) -> Node:
    node = kernel.nodes[number]
    is_conversion = isinstance(node, Apply) and node.op == "convert_element_type"
    return kernel.nodes[operands(node)[0]] if is_conversion else node


def _stores(kernel: Kernel, values: list[int]) -> list[Store]:
    return [replace(store, value=values[store.value]) for store in kernel.stores]


class ExpressionNumbers:
    """Value numbers: equal expressions of several kernels have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, kernel: Kernel, inputs: list[int | None] | None = None, first: int | None = None) -> list[int]:
        """Return the number of each node.

        `inputs` are the numbers of the kernel's inputs in another kernel, and None for the one whose elements are the value `first`.
        """
        numbers: list[int] = []
        for node in kernel.nodes:
            key: Any = node
            if isinstance(node, Load) and inputs is not None:
                number = inputs[node.input]
                if number is None:
                    assert first is not None
                    numbers.append(first)
                    continue
                key = replace(node, input=number)
            elif isinstance(node, Apply):
                key = replace(node, operands=tuple([numbers[i] for i in node.operands]))
            elif isinstance(node, Reduce):
                key = replace(node, operand=numbers[node.operand])
            numbers.append(self._numbers.setdefault(key, len(self._numbers)))
        return numbers


# Memory.
#
# Lifetimes are derived again from the executed commands, independently of buffer assignment. `verify_plan` follows the values in a plan's
# registers and buffers. `MemoryVerifier` follows those of lowered programs through slots, item by item; `verify_extents` compares the uses
# of slots by commands with the bytes that slots have in blocks of memory.

# Plans: registers and buffers.


def verify_plan(plan: Plan, program: ClosedJaxpr, donated: Sequence[bool]) -> None:
    """Raise `CompilerError` if a step of a plan reads or overwrites a wrong value."""
    _PlanVerifier(plan, program, donated).verify()


class _PlanVerifier:
    """Follows the values of a plan through registers and memory.

    Memory is named by the variable that it was made for, or by the number of an array in the plan's block.
    """

    def __init__(self, plan: Plan, program: ClosedJaxpr, donated: Sequence[bool]) -> None:
        self.plan, self.jaxpr = plan, program.jaxpr
        invars, constvars, outvars = self.jaxpr.invars, self.jaxpr.constvars, self.jaxpr.outvars
        #: The variable that each register holds.
        self.held: dict[int, Var] = dict(zip(plan.inputs, invars, strict=True))
        self.held.update(zip([register for register, _ in plan.constants], constvars, strict=True))
        self.last = {v: number for number, step in enumerate(plan.steps) for v in step.eqn.invars if type(v) is Var}
        self.last.update({v: len(plan.steps) for v in outvars if type(v) is Var})
        self.readonly = {*invars, *constvars} - {v for v, is_donated in zip(invars, donated, strict=False) if is_donated}
        #: The memory that values may lie in, unless it is memory of their own, and the last step that reads what lies in memory.
        self.memory: dict[Atom, tuple[Any, ...]] = {}
        self.until: dict[Any, int] = {**self.last}
        self.extents = [(b.offset, b.offset + b.aval.size * b.aval.dtype.itemsize) for b in plan.buffers]
        #: Offset, end and number of the arrays in the block that hold values, in the order of offsets.
        self.block: list[tuple[int, int, int]] = []

    def verify(self) -> None:
        for first, end in self.extents:
            if first < 0 or end > self.plan.block:
                raise CompilerError.of(_PLAN, f"an array lies at bytes {first} to {end} of a block of {self.plan.block}")
        held, last = self.held, self.last
        for number, step in enumerate(self.plan.steps):
            eqn, operands, results, frees, into, buffers = step
            if [held.get(operand) if type(operand) is int else operand for operand in operands] != eqn.invars:
                _fail_step(step, self._wrong_operand(operands, eqn.invars, "the operand"))
            if into is not None or buffers or eqn.primitive.views:
                self._verify_memory(number, step)
            for register, var in zip(results, eqn.outvars, strict=True):
                if register in held and register not in frees and last.get(held[register], -1) > number:
                    _fail_step(step, f"register {register} holds {held[register].aval}, which is read later")
                held[register] = var
            for register in frees:
                held.pop(register, None)
        outputs = self.jaxpr.outvars
        if [held.get(operand) if type(operand) is int else operand for operand in self.plan.outputs] != outputs:
            raise CompilerError.of(_PLAN, self._wrong_operand(self.plan.outputs, outputs, "an output"))
        for atom in outputs:
            if any(type(m) is int for m in self.memory.get(atom, ())):
                raise CompilerError.of(_PLAN, f"an output {atom.aval} lies in the block, which ends with the call")

    def _verify_memory(self, number: int, step: Step) -> None:
        """Find the memory of results, and verify that no value in it is read later."""
        eqn, memory_of, until, into, buffers = step.eqn, self.memory, self.until, step.into, step.buffers
        for position, var in enumerate(eqn.outvars):
            if into is not None and not position:
                operand = eqn.invars[into]
                memory = memory_of.get(operand) or (operand,)
                for m in memory:
                    if m in self.readonly:
                        _fail_step(step, "it overwrites an argument that is not donated, or a constant")
                    if until.get(m, -1) > number:
                        self._fail_overwritten(step, m)
            elif buffers and (buffer := buffers[position]) is not None:
                memory = (buffer,)
                self._store(number, step, buffer)
            elif eqn.primitive.views:
                memory = (var, *[m for operand in eqn.invars if type(operand) is Var for m in memory_of.get(operand) or (operand,)])
            else:
                continue
            memory_of[var] = memory
            last = self.last.get(var, number)
            for m in memory:
                if until.get(m, -1) < last:
                    until[m] = last

    def _store(self, number: int, step: Step, buffer: int) -> None:
        """Store a result in the block, where nothing lies that this or a later step reads."""
        first, end = self.extents[buffer]
        block = self.block
        position = bisect.bisect_left(block, (first,))
        if position and block[position - 1][1] > first:
            position -= 1
        while position < len(block) and block[position][0] < end:
            if self.until[block[position][2]] >= number:
                self._fail_overwritten(step, block[position][2])
            del block[position]
        block.insert(position, (first, end, buffer))

    def _fail_overwritten(self, step: Step, memory: Any) -> NoReturn:
        values: list[Any] = [memory] if type(memory) is Var else []
        values += [v for v, owners in self.memory.items() if memory in owners]
        value = max(values, key=lambda v: self.last.get(v, -1))
        _fail_step(step, f"its result shares memory with {value.aval}, which is read later")

    def _wrong_operand(self, operands: Sequence[Operand], atoms: Sequence[Atom], kind: str) -> str:
        for operand, atom in zip(operands, atoms, strict=True):
            if type(operand) is int and self.held.get(operand) is not atom:
                contents = str(self.held[operand].aval) if operand in self.held else "nothing"
                return f"register {operand} does not hold {kind} {atom.aval}, but {contents}"
        return "a literal is not the one of the program"


_PLAN = "register assignment"


def _fail_step(step: Step, problem: str) -> NoReturn:
    raise CompilerError.of(_PLAN, problem, describe(step.eqn), step.eqn.source)


# Lowered programs: slots.


class MemoryVerifier:
    """Follows the values of programs through slots, while their commands are written.

    A slot holds the roots of the variables that it stands for: several if a caller passes one array twice. Results of an item may be stored
    in the slot of an operand that dies there only where each iteration of the item's kernel reads just the element that it overwrites.
    """

    def __init__(self) -> None:
        #: The item that stored a value in a slot last, with its program.
        self.writers: dict[Slot, tuple[LoweredProgram, Item]] = {}

    def program(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None]) -> ProgramContents:
        """Return the contents of a program's slots, before its first item.

        It reads `inputs` and stores outputs at `destinations`.
        """
        return ProgramContents(self, program, inputs, destinations)


class ProgramContents:
    """The contents of a program's slots, updated item by item."""

    def __init__(
        self, verifier: MemoryVerifier, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None]
    ) -> None:
        self.verifier, self.program, self.destinations = verifier, program, destinations
        self.stage = f"slots for {program.target.name}"
        self.contents: dict[Slot, set[Var]] = {}
        for var, slot in zip(program.closed.jaxpr.invars, inputs, strict=True):
            self.contents.setdefault(slot, set()).add(var)
        self.inputs = frozenset(inputs)
        self.constants = frozenset(program.closed.jaxpr.constvars)
        self.last = {program.root(v): n for n, item in enumerate(program.items) for v in item.operands if isinstance(v, Var)}
        self.last.update({program.root(v): len(program.items) for v in program.closed.jaxpr.outvars if isinstance(v, Var)})

    def item(self, number: int, operands: Sequence[Slot], results: Sequence[Slot]) -> None:
        """Verify the slots of an item, and update their contents."""
        item = self._verify_operands(number, operands)
        for position, slot in enumerate(results):
            if not item.results[position].aval.size:
                continue
            if slot in self.inputs and slot not in self.destinations:
                self._fail(item, f"the result {item.results[position].aval} overwrites an argument")
            for other, held in self.contents.items():
                if other is slot or slot in other.backing or other in slot.backing:
                    self._verify_overwrite(number, position, other, held, operands, results)
            self.contents[slot] = {item.results[position]}
            self.verifier.writers[slot] = self.program, item

    def view(self, number: int, operands: Sequence[Slot], result: Slot) -> None:
        """Verify the slots of an item whose result is a part of an operand's memory."""
        item = self._verify_operands(number, operands)
        self.contents[result] = {item.results[0]}
        self.verifier.writers[result] = self.program, item

    def _verify_operands(self, number: int, operands: Sequence[Slot]) -> Item:
        item = self.program.items[number]
        for atom, slot in zip(item.operands, operands, strict=True):
            if not self._holds(slot, atom):
                self._fail(item, f"the memory of the operand {atom.aval} {self._story(slot)}")
        return item

    def _verify_overwrite(
        self, number: int, position: int, slot: Slot, held: Iterable[Var], operands: Sequence[Slot], results: Sequence[Slot]
    ) -> None:
        item = self.program.items[number]
        new = item.results[position].aval
        for var in held:
            last = self.last.get(var, -1)
            if last > number:
                self._fail(item, f"the result {new} is stored where {var.aval} lies, which {self._reader(last)} reads later")
            if slot is not results[position] or slot in results[:position]:
                self._fail(item, f"the results {new} and {var.aval} are stored in the same memory")
            if last == number:
                reads = [n for n, other in enumerate(operands) if other is slot]
                if not reads or any(not may_overwrite(item, n, position, self.program.target) for n in reads):
                    self._fail(item, f"the result {new} is stored where the operand {var.aval} lies, before all of that is read")

    def copy(self, destination: Slot, source: Slot, atom: Atom) -> None:
        """Verify and note the copy of an output that has no memory of its own."""
        if not self._holds(source, atom):
            raise CompilerError.of(self.stage, f"the memory of the output {atom.aval} {self._story(source)}")
        self.contents[destination] = {self.program.root(atom)} if isinstance(atom, Var) else set()

    def finish(self) -> None:
        """Verify that all outputs are where they should be."""
        for atom, destination in zip(self.program.closed.jaxpr.outvars, self.destinations, strict=True):
            if (
                isinstance(atom, Var)
                and destination is not None
                and atom.aval.size
                and self.program.root(atom) not in self.contents.get(destination, ())
            ):
                raise CompilerError.of(self.stage, f"the memory of the output {atom.aval} {self._story(destination)}")

    def _holds(self, slot: Slot, atom: Atom) -> bool:
        if not isinstance(atom, Var) or not atom.aval.size:
            return True
        root = self.program.root(atom)
        return root in self.contents.get(slot, ()) or (root in self.constants and slot.array is not None)

    def _story(self, slot: Slot) -> str:
        if not self.contents.get(slot):
            return "holds no value"
        held = " and ".join(str(var.aval) for var in self.contents[slot])
        writer = self.verifier.writers.get(slot)
        return f"holds {held}" + ("" if writer is None else f", which {_name(writer[1])} stored there")

    def _reader(self, number: int) -> str:
        items = self.program.items
        return _name(items[number]) if number < len(items) else "the caller"

    def _fail(self, item: Item, problem: str) -> NoReturn:
        fail_item(self.stage, problem, self.program, item)


def verify_reuse(program: LoweredProgram, pairs: Iterable[tuple[int, int]]) -> None:
    """Raise `CompilerError` if a result overwrites an argument that is read later.

    Each pair is a result's number and an argument's; the two are slots of their own, as the caller gives them one memory.
    """
    for result, argument in pairs:
        new, old = program.results[result], program.closed.jaxpr.invars[argument]
        producer = next(n for n, item in enumerate(program.items) if new in item.results)
        reads = [(n, k) for n, item in enumerate(program.items) for k, v in enumerate(item.operands) if _is_root(program, v, old)]
        item = program.items[producer]
        position = item.results.index(new)
        late = any(n > producer or (n == producer and not may_overwrite(item, k, position, program.target)) for n, k in reads)
        if late or any(_is_root(program, v, old) for v in program.closed.jaxpr.outvars):
            problem = f"the result {new.aval} is stored where the argument {old.aval} lies, before all of that is read"
            fail_item(f"arguments' memory for {program.target.name}", problem, program, item)


def _is_root(program: LoweredProgram, atom: Atom, var: Var) -> bool:
    return isinstance(atom, Var) and program.root(atom) is var


def _name(item: Item) -> str:
    return "a kernel" if isinstance(item.node, KernelCall) else str(item.node.primitive)


def may_overwrite(item: Item, operand: int, result: int, target: Target) -> bool:
    """Return True if an item may store a result in the memory of an operand."""
    if isinstance(item.node, Equation):
        params, primitive = item.node.params, item.node.primitive
        if primitive is scan_p and item.programs:  # the steps of the body are verified by themselves
            return result < params["num_carry"] and operand == params["num_consts"] + result
        if primitive is while_p and item.programs:
            return operand == params["cond_nconsts"] + params["body_nconsts"] + result
        if primitive is cond_p and item.programs:  # and so are the branches
            return operand > 0
        return result == 0 and item.key is not None and target.in_place.get(primitive.name) == operand
    kernel = item.node.kernel
    passes = stages(kernel)
    return passes[kernel.stores[result].value] == max(passes) and all(  # no pass over a row follows that reads it
        not load.mask and row_major(load.index, load.shape) == _offset(kernel, result, target)
        for load in kernel.nodes
        if isinstance(load, Load) and load.input == operand
    )


def _offset(kernel: Kernel, result: int, target: Target) -> Any:
    store = kernel.stores[result]
    axes = {axis for affine in store.index for axis in affine.axes}
    iterated = kernel.sizes[: kernel.parallel] if target.uses_product_routine(kernel) else kernel.sizes
    is_own = all(size == 1 or axis in axes for axis, size in enumerate(iterated))  # no other iteration writes the element
    return row_major(store.index, store.shape) if is_own else None


# Blocks of memory: the bytes of slots.


class Extent(NamedTuple):
    """The bytes of a slot, in a block of memory of some number."""

    block: int
    offset: int
    size: int


class SlotUses:
    """The commands that use each slot, by their numbers, and the loops among these."""

    def __init__(self) -> None:
        self.time = 0
        self.times: dict[Slot, list[int]] = {}
        self.loops: list[tuple[int, int]] = []

    def command(self, slots: Iterable[Slot]) -> None:
        """Count a command that uses some slots, and those that they may point into."""
        pending = [*slots]
        while pending:
            slot = pending.pop()
            self.times.setdefault(slot, []).append(self.time)
            pending.extend(slot.backing)
        self.time += 1

    def loop(self, begin: int) -> None:
        """Note that the commands since `begin` repeat."""
        self.loops.append((begin, self.time - 1))

    def lifetimes(self) -> dict[Slot, tuple[int, int]]:
        """Return the first and last time at which each slot holds its value.

        A slot that is also used outside of a loop holds its value in all iterations.
        """
        lifetimes = {slot: (times[0], times[-1]) for slot, times in self.times.items()}
        for begin, end in self.loops:  # inner loops first
            for slot, (first, last) in lifetimes.items():
                if first <= end and last >= begin and not (begin <= first and last <= end):
                    lifetimes[slot] = min(first, begin), max(last, end)
        return lifetimes


def verify_extents(stage: str, uses: SlotUses, extents: Mapping[Slot, Extent], writers: Mapping[Slot, tuple[LoweredProgram, Item]]) -> None:
    """Raise `CompilerError` if slots share bytes while both hold values."""
    lifetimes = uses.lifetimes()
    ends: list[tuple[int, int, Extent]] = []
    living: list[tuple[Extent, int]] = []  # disjoint, in the order of memory
    slots = sorted((slot for slot in extents if slot in lifetimes), key=lambda slot: lifetimes[slot][0])
    for number, slot in enumerate(slots):
        first, last = lifetimes[slot]
        while ends and ends[0][0] < first:
            _, dead, extent = heapq.heappop(ends)
            living.pop(bisect.bisect_left(living, (extent, dead)))
        extent = extents[slot]
        position = bisect.bisect_left(living, (extent, number))
        for other, owner in living[max(position - 1, 0) : position + 1]:
            if other.block == extent.block and other.offset < extent.offset + extent.size and extent.offset < other.offset + other.size:
                _fail_extents(stage, slots[owner], slot, writers)
        living.insert(position, (extent, number))
        heapq.heappush(ends, (last, number, extent))


def _fail_extents(stage: str, old: Slot, new: Slot, writers: Mapping[Slot, tuple[LoweredProgram, Item]]) -> NoReturn:
    problem = f"{new.size} bytes share memory with {old.size} bytes that are needed later"
    for slot, whose in ((new, ""), (old, ": those of ")):
        if slot in writers:
            program, item = writers[slot]
            fail_item(stage, problem + (whose + _name(item) if whose else ""), program, item)
    raise CompilerError.of(stage, problem)
