"""Emission: slots for the values of a lowered program, and commands over these.

The slot of each value is chosen here, for all targets; a target's subclass writes the commands. The values of one slot have one memory:
an operand and the result that overwrites it, or a donated argument and a result. Afterwards slots whose lifetimes do not overlap may
share memory, too.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Lifetime
from volta_fn.compiler.target import CALLS_PROCESSES, CALLS_PYTHON, HostStep, Item, LoweredProgram
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.arrays.memory import pairs_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, program_cache
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.settings import current as settings

_VERIFICATION = deferred("volta_fn.compiler.verification")
_LOG = logging.getLogger("volta_fn")


# Slots: the memory of values while commands are written. Their numbers are known at the end.

#: Bytes up to which constants are compared by their elements, larger ones by their address.
SMALL_CONSTANT = 64


class CommandScope:
    """A list of commands inside another, such as the body of a loop or a branch.

    It may run several times or not at all, so values from outside that it uses live until its end.
    """

    def __init__(self, outer: CommandScope | None) -> None:
        self.outer = outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.begin = 0
        self.used: set[Slot] = set()


class Slot:
    """The memory of one value."""

    def __init__(self, scope: CommandScope, size: int = 0, backing: tuple[Slot, ...] = (), array: Any = None) -> None:
        self.scope = scope
        #: Bytes in the arena, if it is there.
        self.size = size
        #: For a slot whose pointer moves: the slots into whose memory it may point.
        self.backing = backing
        #: A constant's value.
        self.array = array
        self.number = -1
        self.begin: int | None = None
        self.end = 0


class Slots:
    """All slots of a program, and the clock of their lifetimes: a tick per command."""

    def __init__(self) -> None:
        self.outermost = CommandScope(None)
        self.callers: list[Slot] = []
        self.constants: dict[Any, Slot] = {}
        #: The constants as they were passed: while they live, no other array has their address.
        self.sources: list[np.ndarray] = []
        self.arena: list[Slot] = []
        self.pointers: list[Slot] = []
        self.time = 0

    # making slots

    def caller(self) -> Slot:
        """Add a slot for an array that the caller passes."""
        self.callers.append(Slot(self.outermost))
        return self.callers[-1]

    def constant(self, array: np.ndarray) -> Slot:
        """Return the slot of a constant.

        Equal small constants share one, and so do large ones in the same memory.
        """
        contiguous = np.ascontiguousarray(array).reshape(array.shape)  # `ascontiguousarray` alone makes a 0-d array 1-d
        identity = contiguous.tobytes() if array.nbytes <= SMALL_CONSTANT else (array.ctypes.data, array.strides)
        key = array.dtype, array.shape, identity
        if key not in self.constants:
            self.constants[key] = Slot(self.outermost, array=contiguous)
            self.sources.append(array)
        return self.constants[key]

    def device_constant(self, value: Any) -> Slot:
        """Return the slot of a constant that is already on the device."""
        if id(value) not in self.constants:
            self.constants[id(value)] = Slot(self.outermost, array=value)
        return self.constants[id(value)]

    def memory(self, size: int, scope: CommandScope) -> Slot:
        """Add a slot in the arena."""
        self.arena.append(Slot(scope, size))
        return self.arena[-1]

    def pointer(self, scope: CommandScope, *backing: Slot) -> Slot:
        """Add a slot whose pointer commands set."""
        self.pointers.append(Slot(scope, backing=backing))
        return self.pointers[-1]

    # lifetimes

    def touch(self, slot: Slot, scope: CommandScope) -> None:
        """Record that the next command of a scope uses a slot."""
        for backing in slot.backing:
            self.touch(backing, scope)
        slot.begin = self.time if slot.begin is None else slot.begin
        slot.end = max(slot.end, self.time)
        inner: CommandScope | None = scope
        while inner is not None and inner.depth > slot.scope.depth:
            inner.used.add(slot)
            inner = inner.outer

    def open_scope(self, outer: CommandScope) -> CommandScope:
        """Begin a scope inside another."""
        scope = CommandScope(outer)
        scope.begin = self.time
        return scope

    def close_scope(self, scope: CommandScope) -> None:
        """End a scope: slots from outside that it uses live at least until here."""
        for slot in scope.used:
            slot.begin = min(scope.begin, self.time if slot.begin is None else slot.begin)
            slot.end = max(slot.end, self.time)

    # after the last command

    def assign_numbers(self) -> int:
        """Assign numbers to the caller's slots, the arena's, constants, and pointers.

        Return how many there are.
        """
        slots = [*self.callers, *self.arena, *self.constants.values(), *self.pointers]
        for number, slot in enumerate(slots):
            slot.number = number
        return len(slots)

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each of the arena's slots."""
        return [Lifetime(s.begin or 0, s.end, s.size) for s in self.arena]

    def arrays(self) -> tuple[Any, ...]:
        """Return the constants."""
        return tuple([s.array for s in self.constants.values()])


# Which values of a lowered program may share memory.


def _kind(var: Var) -> tuple[int, np.dtype]:
    return var.aval.size, var.aval.dtype


def fits(old: Var, new: Var) -> bool:
    """Return True if a value may take another's memory: equal size and dtype."""
    return _kind(old) == _kind(new)


@program_cache
def inputs_by_kind(closed: ClosedJaxpr) -> dict[tuple[int, np.dtype], list[Var]]:
    """Return the inputs of a program that fit each other; see `fits`."""
    inputs: dict[tuple[int, np.dtype], list[Var]] = {}
    for var in closed.jaxpr.invars:
        inputs.setdefault(_kind(var), []).append(var)
    return inputs


def can_overwrite(program: LoweredProgram, number: int, operand: Var, result: Var) -> bool:
    """Return True if item `number` may store a result in an operand's memory."""
    item = program.items[number]
    positions = [i for i, v in enumerate(item.operands) if isinstance(v, Var) and program.root(v) is operand]
    if len(positions) != 1:
        return False
    position = item.results.index(result)
    if item.programs and isinstance(item.node, Equation) and item.node.primitive in (scan_p, while_p):
        carries = _CarryPositions.of(item)
        return position < carries.number and positions[0] == carries.operand + position and _updates_in_place(item, position)
    if item.programs and isinstance(item.node, Equation) and item.node.primitive is cond_p:
        number = positions[0] - 1  # among the operands of the branches
        return number >= 0 and all(_may_update(branch, branch.closed.jaxpr.invars[number], position) for branch in item.programs)
    return positions[0] in program.target.overwritable(item, position)


def may_share(program: LoweredProgram, argument: Var, output: Atom) -> bool:
    """Return True if an output may be computed in the memory of an input."""
    if not isinstance(output, Var):
        return False
    result = program.root(output)
    return result in program.producers and fits(argument, result) and _is_free(program, argument, result)


def _is_free(program: LoweredProgram, argument: Var, result: Var) -> bool:
    """Return True if a result may take the memory of an input that it fits."""
    producer, last = program.producers[result], program.last_use.get(argument, -1)
    return last < producer or (last == producer and can_overwrite(program, producer, argument, result))


def overwritten_before(program: LoweredProgram, output: Var) -> list[Var]:
    """Return the values that an output's memory may hold before it, latest first.

    These are the operand that the output overwrites, what that one overwrites, and so on. An input that may share the output's memory
    is not overwritten before its last use.
    """
    values: list[Var] = []
    inputs: list[Var] | None = None
    result = program.root(output)
    while True:
        number = program.producers[result]
        operands = [program.root(v) for v in program.items[number].operands if isinstance(v, Var)]
        dying = [v for v in operands if v in program.producers and program.last_use[v] == number and fits(v, result)]
        old = next((v for v in dying if can_overwrite(program, number, v, result)), None)
        if old is None:
            return values
        if inputs is None:
            inputs = [v for v in inputs_by_kind(program.closed).get(_kind(result), ()) if _is_free(program, v, result)]
        if not all(_is_free(program, v, old) for v in inputs):
            return values
        values.append(old)
        result = old


def reusable(program: LoweredProgram, donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return which results may take the memory of donated arguments.

    Each is a pair of numbers: (result, argument). Those with equal paths in their trees come first.
    """
    invars = program.closed.jaxpr.invars
    pairs = _pairs_by_path(program, donated)
    arguments, results = {argument for _, argument in pairs}, {result for result, _ in pairs}
    free: dict[tuple[int, np.dtype], list[int]] = {}
    for i in [i for i, d in enumerate(donated) if d and i not in arguments]:
        free.setdefault(_kind(invars[i]), []).append(i)
    for number, var in enumerate(program.results):
        fitting = free.get(_kind(var), []) if number not in results else []
        donor = next((i for i in fitting if may_share(program, invars[i], var)), None)
        if donor is not None:
            fitting.remove(donor)
            pairs.append((number, donor))
    return tuple(sorted(pairs))


def _pairs_by_path(program: LoweredProgram, donated: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the results that may take the memory of the argument of their path."""
    jaxpr, numbers = program.closed.jaxpr, {var: number for number, var in enumerate(program.results)}
    arguments: dict[int, int] = {}
    for output, argument in pairs_of(donated):
        var = jaxpr.outvars[output]
        number = numbers.get(program.root(var)) if isinstance(var, Var) else None
        if number is not None and number not in arguments and may_share(program, jaxpr.invars[argument], var):
            arguments[number] = argument
    return list(arguments.items())


# Loops: the slots of their operands and results, by what they are for.


class CarriedValue(NamedTuple):
    """A value that a loop carries: the variable of a step's body, and what follows it."""

    var: Var
    next: Atom
    #: The slots of the initial value and of the last one.
    start: Slot
    result: Slot
    #: Whether a step may compute the next value in the memory of the one that it reads.
    in_place: bool

    @property
    def is_constant(self) -> bool:
        """Whether each step passes the value on as it is."""
        return self.next is self.var


#: The slot of a stacked array, and the type of one of its rows.
Rows = tuple[Slot, ShapedArray]


class _CarryPositions(NamedTuple):
    """The positions of carries among a loop's operands and its body's inputs."""

    #: The first of either, and how many there are.
    operand: int
    variable: int
    number: int

    @classmethod
    def of(cls, item: Item) -> _CarryPositions:
        """Return the positions of the carries of a `scan` or `while`."""
        params = params_of(item)
        if "num_carry" in params:
            return cls(params["num_consts"], params["num_consts"], params["num_carry"])
        return cls(params["cond_nconsts"] + params["body_nconsts"], params["body_nconsts"], len(item.results))


class ScanSlots(NamedTuple):
    """The slots of a `scan`: steps read rows of `xs`, and write rows of `ys`."""

    body: LoweredProgram
    length: int
    reverse: bool
    constants: Sequence[Slot]
    carries: list[CarriedValue]
    xs: list[Rows]
    ys: list[Rows]


def scan_slots(item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> ScanSlots:
    """Return the slots of a scan's operands and results."""
    (body,), params = item.programs, params_of(item)
    consts, first_row = params["num_consts"], params["num_consts"] + params["num_carry"]
    carries = _carries(item, operands, results)
    jaxpr = body.closed.jaxpr
    xs = [(slot, v.aval) for slot, v in zip(operands[first_row:], jaxpr.invars[first_row:], strict=True)]
    ys = [(slot, v.aval) for slot, v in zip(results[len(carries) :], jaxpr.outvars[len(carries) :], strict=True)]
    return ScanSlots(body, params["length"], params["reverse"], operands[:consts], carries, xs, ys)


class WhileSlots(NamedTuple):
    """The slots of a `while`."""

    condition: LoweredProgram
    body: LoweredProgram
    condition_constants: Sequence[Slot]
    body_constants: Sequence[Slot]
    carries: list[CarriedValue]


def while_slots(item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> WhileSlots:
    """Return the slots of a while loop's operands and results."""
    (condition, body), params = item.programs, params_of(item)
    first, carry = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return WhileSlots(condition, body, operands[:first], operands[first:carry], _carries(item, operands, results))


def _carries(item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> list[CarriedValue]:
    """Return the values that a loop carries."""
    first, first_variable, number = _CarryPositions.of(item)
    jaxpr = item.programs[-1].closed.jaxpr
    variables = jaxpr.invars[first_variable : first_variable + number]
    return [
        CarriedValue(var, next_var, start, result, _updates_in_place(item, carry))
        for carry, (var, next_var, start, result) in enumerate(
            zip(variables, jaxpr.outvars[:number], operands[first : first + number], results[:number], strict=True)
        )
    ]


def _updates_in_place(item: Item, carry: int) -> bool:
    """Return True if a step may compute a carry's next value where it reads it."""
    body = item.programs[-1]
    return _may_update(body, body.closed.jaxpr.invars[_CarryPositions.of(item).variable + carry], carry)


def _may_update(program: LoweredProgram, argument: Var, number: int) -> bool:
    """Return True if an output is an argument or may take its memory."""
    output = program.closed.jaxpr.outvars[number]
    return output is argument or may_share(program, argument, output)


def params_of(item: Item) -> dict[str, Any]:
    """Return the parameters of an item that is an equation."""
    assert isinstance(item.node, Equation)
    return item.node.params


# The writer of commands.

#: No result takes the memory of an argument.
NO_REUSE: Mapping[int, int] = MappingProxyType({})


class ProgramWriter:
    """Writes the commands of one program, item by item.

    A target's subclass says how an item and a copy are written.
    """

    def __init__(self) -> None:
        self.slots = Slots()
        #: The items that run on the host, in NumPy.
        self.on_host: list[Item] = []
        #: Follows values through slots, if the compiler verifies its results.
        self.verifier = _VERIFICATION.MemoryVerifier() if settings.verify else None

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Write an item."""
        raise NotImplementedError

    def copy(self, to: Slot, source: Slot, size: int, scope: CommandScope) -> None:
        """Copy an array of `size` bytes."""
        raise NotImplementedError

    def view(self, item: Item, operands: Sequence[Slot], scope: CommandScope) -> Slot | None:
        """Return the slot of a result that is a part of an operand's memory.

        None if it is not, or if that memory may be overwritten.
        """
        return None

    def constant(self, value: Any) -> Slot:
        """Return the slot of a constant array."""
        return self.slots.constant(host_buffer(value))

    def write(self, program: LoweredProgram, reuse: Mapping[int, int] = NO_REUSE) -> None:
        """Write a complete program.

        The caller gives memory for the arguments, then for the program's results; those that `reuse` maps to arguments take their memory.
        """
        jaxpr = program.closed.jaxpr
        inputs = [self.slots.caller() for _ in jaxpr.invars]
        results = {var: inputs[reuse[n]] if n in reuse else self.slots.caller() for n, var in enumerate(program.results)}
        destinations: list[Slot | None] = [results.get(program.root(v)) if isinstance(v, Var) else None for v in jaxpr.outvars]
        seen: set[Slot] = set()  # outputs with a common root are one result, which is stored once
        for number, slot in enumerate(destinations):
            if slot in seen:
                destinations[number] = None
            elif slot is not None:
                seen.add(slot)
        self.body(program, inputs, destinations, self.slots.outermost)
        steps = [HostStep.of(item, program.target.explain_host(item)) for item in self.on_host]
        if steps := [step for step in steps if step.reason not in (CALLS_PYTHON, CALLS_PROCESSES)]:
            _LOG.log(program.target.host_log_level, "a program for the %s target: %s", program.target.name, "; ".join(map(str, steps)))

    def body(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], scope: CommandScope) -> None:
        """Write a program that reads `inputs` and stores outputs at `destinations`.

        An output without a destination is not stored.
        """
        values = _Values(self, program, inputs, destinations, scope)
        contents = None if self.verifier is None else self.verifier.program(program, inputs, destinations)
        for number, item in enumerate(program.items):
            if item.is_needed:
                operands = values.operands(item)
                if (view := values.view(item, operands)) is not None:
                    if contents is not None:
                        contents.view(number, operands, view)
                    continue
                results = values.results(number, item)
                if contents is not None:
                    contents.item(number, operands, results)
                self.item(item, operands, results, scope)
        stored: set[Var] = set()
        for out, destination in zip(program.closed.jaxpr.outvars, destinations, strict=True):
            root = program.root(out) if isinstance(out, Var) else None
            if root is not None and root not in stored and values.output_slots.get(root) is destination:
                stored.add(root)
            elif destination is not None and out.aval.size:
                source = values.operand(out)
                if contents is not None:
                    contents.copy(destination, source, out)
                self.copy(destination, source, out.aval.nbytes, scope)
        if contents is not None:
            contents.finish()


class _Values:
    """The slots of the values of one program."""

    def __init__(
        self,
        writer: ProgramWriter,
        program: LoweredProgram,
        inputs: Sequence[Slot],
        destinations: Sequence[Slot | None],
        scope: CommandScope,
    ) -> None:
        self.writer = writer
        self.program = program
        self.scope = scope
        jaxpr = program.closed.jaxpr
        self.outputs = [v for v in jaxpr.outvars if isinstance(v, Var)]
        self.slots: dict[Var, Slot] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, program.closed.consts, strict=True):
            self.slots[var] = writer.constant(value)
        #: Values that this program computes in memory of its own.
        self.computed: set[Var] = set()
        #: The slots of outputs that this program computes, and of the values that these overwrite.
        self.output_slots: dict[Var, Slot] = {}
        for out, destination in zip(jaxpr.outvars, destinations, strict=True):
            if isinstance(out, Var) and destination is not None and program.root(out) in program.producers:
                self.output_slots.setdefault(program.root(out), destination)
        for result, slot in list(self.output_slots.items()):
            for var in itertools.takewhile(lambda v: v not in self.output_slots, overwritten_before(program, result)):
                self.output_slots[var] = slot

    def operand(self, atom: Atom) -> Slot:
        if isinstance(atom, Literal):
            return self.writer.constant(atom.val)
        if not atom.aval.size:
            return self.writer.slots.constant(np.zeros(1, np.int64))
        return self.slots[self.program.root(atom)]

    def operands(self, item: Item) -> list[Slot]:
        return [self.operand(v) for v in item.operands]

    def results(self, number: int, item: Item) -> list[Slot]:
        overwritten: set[Var] = set()
        return [self.result(number, item, position, overwritten) for position in range(len(item.results))]

    def view(self, item: Item, operands: Sequence[Slot]) -> Slot | None:
        """Assign the slot of a result that is a part of an operand's memory.

        Return None if it is not.
        """
        if len(item.results) != 1 or item.results[0] in map(self.program.root, self.outputs):
            return None
        slot = self.writer.view(item, operands, self.scope)
        if slot is not None:
            self.slots[item.results[0]] = slot
        return slot

    def result(self, number: int, item: Item, position: int, overwritten: set[Var]) -> Slot:
        """Assign a slot to a result: an output's, a dying operand's, or a new one."""
        var = item.results[position]
        slot = self.output_slots.get(var)
        if slot is None:
            self.computed.add(var)
            read = dict.fromkeys([self.program.root(v) for v in item.operands if isinstance(v, Var)])
            computed = [v for v in read if v in self.computed and v not in overwritten and v in self.slots]
            dying = [v for v in computed if self.program.last_use.get(v) == number and v not in self.output_slots]
            old = next((v for v in dying if fits(v, var) and can_overwrite(self.program, number, v, var)), None)
            if old is not None:
                overwritten.add(old)
                slot = self.slots[old]
            else:
                slot = self.writer.slots.memory(var.aval.nbytes, self.scope)
        self.slots[var] = slot
        return slot
