"""Reductions in shaders: accumulators, subgroups, workgroups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen.loops import BaseAccumulator
from volta_fn.compiler.ir.kernel import Apply, Kernel, Node, Reduce
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import reduction_of
from volta_fn.errors import OutOfMemoryError
from volta_fn.targets.wgsl.routine import Shader
from volta_fn.targets.wgsl.scalars import Number, combine, combine_indexed, constant, wgsl_type
from volta_fn.targets.wgsl.shader import Function

# Reductions of narrow numbers made reductions of wide ones.
#
# Sums and products of float16 and bfloat16 are accumulated in float32. Other reductions of numbers of one or two bytes give the same
# either way, as do integers that wrap; in 32 bits, partial results are words of memory, and there are fewer kinds of them.

INT32 = np.dtype(np.int32)


def widened(kernel: Kernel) -> Kernel:
    """Return the kernel with reductions of at least four bytes and int32 indices.

    Raises `OutOfMemoryError` if those cannot number the elements of a row.
    """
    reduced = [node for node in kernel.nodes if isinstance(node, Reduce)]
    count = math.prod(kernel.sizes[kernel.parallel :])
    if count > np.iinfo(INT32).max and any(node.is_index for node in reduced):
        raise OutOfMemoryError(
            f"the position of an extremum among {count} elements does not fit the 32 bits that a GPU's shader has; split it"
        )
    if not any(node.is_index or kernel.nodes[node.operand].dtype.itemsize < 4 for node in reduced):
        return kernel
    nodes: list[Node] = []
    new: list[int] = []

    def converted(node: int, dtype: np.dtype) -> int:
        if nodes[node].dtype == dtype:
            return node
        nodes.append(Apply(dtype, "convert_element_type", (node,), (("new_dtype", dtype), ("weak_type", False))))
        return len(nodes) - 1

    for node in kernel.nodes:
        if isinstance(node, Apply):
            node = replace(node, operands=tuple([new[i] for i in node.operands]))
        if isinstance(node, Reduce):
            wide = wide_dtype(nodes[new[node.operand]].dtype)
            operand = converted(new[node.operand], wide)
            nodes.append(Reduce(INT32 if node.is_index else wide, node.op, operand))
            new.append(converted(len(nodes) - 1, node.dtype))
        else:
            nodes.append(node)
            new.append(len(nodes) - 1)
    return replace(kernel, nodes=tuple(nodes), stores=tuple([replace(s, value=new[s.value]) for s in kernel.stores]))


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of at least 32 bits in which numbers of a dtype are combined."""
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if dtype in dtypes.FLOATS else np.int32 if dtype in dtypes.SIGNED else np.uint32)


# Reductions in shaders, by the accumulators of `codegen.loops`.

State = tuple[Number, ...]

#: Steps that are one operator, for most dtypes; others are functions of the module.
_OPERATORS = ("add", "mul", "and", "or", "xor")

#: Steps for which WGSL has functions, if neither number is NaN.
_EXTREMA = ("max", "min")


@dataclass(frozen=True)
class Accumulator(BaseAccumulator[State]):
    """One reduction, in a shader being written."""

    shader: Shader

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtypes of the state."""
        return (self.dtype, INT32) if self.node.is_index else (self.dtype,)

    @property
    def start(self) -> State:
        """The state before the first element.

        The index is 0: a maximum that equals the identity is at the row's beginning.
        """
        first = constant(self.dtype, self.node.reduction.start(self.dtype))
        return (first, constant(INT32, 0)) if self.node.is_index else (first,)

    def merge(self, x: State, y: State) -> State:
        """Emit the combination of two states."""
        if self.node.reduction.step in _OPERATORS:
            return (combine(self.shader, self.node.reduction, x[0], y[0]),)
        name = self.shader.module.define(f"{self.node.op}_{self.dtype.name}", self._merging)
        both = ", ".join(number.text for number in (*x, *y))
        if not self.node.is_index:
            return (Number(self.dtype, self.shader.let(wgsl_type(self.dtype), f"{name}({both})")),)
        state = self.shader.let(f"{name}_state", f"{name}({both})")
        return Number(self.dtype, f"{state}.value"), Number(INT32, f"{state}.place")

    def _merging(self) -> str:
        f, name, type_ = Function(self.shader.module), f"{self.node.op}_{self.dtype.name}", wgsl_type(self.dtype)
        x, y = Number(self.dtype, "x"), Number(self.dtype, "y")
        if not self.node.is_index:
            answer = combine(f, self.node.reduction, x, y).text
            return "\n".join([f"fn {name}(x: {type_}, y: {type_}) -> {type_} {{", *f.statements, f"  return {answer};", "}"])
        value, index = combine_indexed(f, self.node.reduction, (x, Number(INT32, "i")), (y, Number(INT32, "j")))
        return "\n".join(
            [
                f"struct {name}_state {{ value: {type_}, place: i32 }}",
                f"fn {name}(x: {type_}, i: i32, y: {type_}, j: i32) -> {name}_state {{",
                *f.statements,
                f"  return {name}_state({value.text}, {index.text});",
                "}",
            ]
        )

    def merged(self, states: Sequence[State]) -> State:
        """Emit the combination of several states, by a tree."""
        if len(states) > 2 and self.dtype == np.float32 and not self.node.is_index and self.node.reduction.step in _EXTREMA:
            return (self._extremum([x.text for (x,) in states]),)
        return super().merged(states)

    def _extremum(self, texts: Sequence[str]) -> Number:
        """Emit the extremum of numbers by operations that may ignore NaN."""
        # A NaN is found by the sum of the numbers' magnitudes.
        shader = self.shader
        best = _by_tree(texts, lambda x, y: shader.let("f32", f"{self.node.reduction.step}({x}, {y})"))
        total = _by_tree([f"abs({x})" for x in texts], lambda x, y: shader.let("f32", f"{x} + {y}"))
        is_nan = f"(bitcast<u32>({total}) & 0x7fffffffu) > 0x7f800000u"
        return Number(self.dtype, shader.let("f32", f"select({best}, {total}, {is_nan})"))

    def where(self, condition: str | None, state: State) -> State:
        """Emit the state if the condition holds, else the identity."""
        if condition is None:
            return state
        chosen = [f"select({none.text}, {x.text}, {condition})" for x, none in zip(state, self.start, strict=True)]
        return tuple([Number(x.dtype, self.shader.let(x.type, text)) for x, text in zip(state, chosen, strict=True)])

    def variables(self) -> list[str]:
        """Declare variables that hold the identity."""
        return [self.shader.var(wgsl_type(x.dtype), x.text) for x in self.start]

    def read(self, variables: Sequence[str]) -> State:
        """Emit the state that variables hold."""
        return tuple([Number(d, self.shader.let(wgsl_type(d), name)) for d, name in zip(self.dtypes, variables, strict=True)])

    def add(self, variables: Sequence[str], state: State) -> None:
        """Emit the accumulation of a state in variables."""
        held = tuple([Number(d, name) for d, name in zip(self.dtypes, variables, strict=True)])
        for name, x in zip(variables, self.merge(held, state), strict=True):
            self.shader.emit(f"{name} = {x.text};")

    def result(self, state: State) -> Number:
        """Return the reduction's value."""
        return state[-1]


def _by_tree(texts: Sequence[str], both: Callable[[str, str], str]) -> str:
    if len(texts) == 1:
        return texts[0]
    half = (len(texts) + 1) // 2
    return both(_by_tree(texts[:half], both), _by_tree(texts[half:], both))


# Reductions over subgroups of any width, by exchanges with nearer neighbours.
#
# WGSL's own reductions are not used: a driver (NVIDIA's 580, on an H200) had `subgroupAdd` of integers add up only those invocations
# that had gone the same way at the last branch, though all of them had converged again after it, and had waited for each other. Its
# exchanges and its scans include all invocations.

#: Integers that are ordered as floats are, NaN beyond all others; and back.
_KEY = """fn {name}(x: f32) -> i32 {{
  let bits = bitcast<i32>(x);
  return select(bits ^ ((bits >> 31u) & 0x7fffffff), {nan}, (bits & 0x7fffffff) > 0x7f800000);
}}"""
_UNKEY = """fn float_of_key(key: i32) -> f32 {
  return bitcast<f32>(key ^ ((key >> 31u) & 0x7fffffff));
}"""
_NAN_KEYS = {"max": "0x7fffffff", "min": "bitcast<i32>(0x80000000u)"}


def can_shuffle(accumulator: Accumulator) -> bool:
    """Return True if invocations can exchange a reduction's state."""
    return not accumulator.node.is_index and accumulator.dtype in (np.float32, np.int32, np.uint32)


def fits_subgroups(capabilities: TargetCapabilities, per_row: int, invocations: int) -> bool:
    """Return True if `per_row` neighbours in a workgroup are always in one subgroup."""
    width = capabilities.subgroup_most
    return capabilities.subgroups and capabilities.subgroup_least == width and 1 < per_row <= width and invocations % width == 0


def over_subgroup(shader: Shader, accumulator: Accumulator, x: Number, per_row: int | None = None) -> Number:
    """Emit a number combined over the subgroup, or over `per_row` neighbours in it.

    All of them get the same bits.
    """
    op, step = accumulator.node.op, accumulator.node.reduction.step
    if x.dtype != np.float32 or step not in _NAN_KEYS:
        return _exchanged(shader, op, x, per_row)
    # Extrema of floats take several operations, because of NaN; those of integers, one.
    key = shader.helper(f"key_{op}", _KEY.format(name=f"key_{op}", nan=_NAN_KEYS[step]))
    best = _exchanged(shader, op, Number(INT32, f"{key}({x.text})"), per_row)
    return Number(x.dtype, shader.let("f32", f"{shader.helper('float_of_key', _UNKEY)}({best.text})"))


def _exchanged(shader: Shader, op: str, x: Number, per_row: int | None) -> Number:
    capabilities = shader.module.capabilities
    if per_row is None and capabilities.subgroup_least == capabilities.subgroup_most:
        per_row = capabilities.subgroup_most

    def write(f: Function) -> tuple[str, str]:
        total = Number(x.dtype, f.var(x.type, "a0"))

        def exchange(reach: str) -> None:
            other = Number(x.dtype, f.let(x.type, f"subgroupShuffleXor({total.text}, {reach})"))
            f.emit(f"{total.text} = {combine(f, reduction_of(op), total, other).text};")

        if per_row is not None:
            for power in reversed(range(per_row.bit_length() - 1)):
                exchange(f"{1 << power}u")
        else:
            with f.block("for (var reach = a1 / 2u; reach > 0u; reach /= 2u)"):
                exchange("reach")
        return x.type, total.text

    is_fixed = per_row is not None
    name = shader.function(f"subgroup_{op}_{x.dtype.name}_{per_row or 'all'}", (x.type,) if is_fixed else (x.type, "u32"), write)
    size = "" if is_fixed else f", {shader.builtin('subgroup_size')}"
    return Number(x.dtype, shader.let(x.type, f"{name}({x.text}{size})"))


# Workgroup reductions: the states of a workgroup's invocations combined.
#
# Each writes its state to workgroup memory; after a barrier all invocations read all states, or some combine several of them first. Two
# areas of memory alternate, so that one barrier is enough between writing an area, reading it, and writing it again.

#: The most states that every invocation combines in one step.
_ONCE = 16


class Team(NamedTuple):
    """The invocations of a workgroup: `per_row` for each of `rows_per_workgroup` rows.

    `rank` is an invocation's number in its row, `row_index` the index of the row: neighbours are in one row, or, if `by_columns`, have
    the same rank in neighbouring rows.
    """

    per_row: int
    rows_per_workgroup: int
    by_columns: bool
    rank: str
    row_index: str

    @property
    def invocations(self) -> int:
        """The size of a workgroup."""
        return self.per_row * self.rows_per_workgroup

    def slot(self, rank: str) -> str:
        """Return the index in workgroup memory of a rank of this invocation's row."""
        if self.rows_per_workgroup == 1:
            return rank
        return (
            f"({rank}) * {self.rows_per_workgroup}u + {self.row_index}"
            if self.by_columns
            else f"{self.row_index} * {self.per_row}u + {rank}"
        )


def team(shader: Shader, per_row: int, rows_per_workgroup: int, by_columns: bool) -> Team:
    """Return the team of an invocation; both numbers are powers of two."""
    if rows_per_workgroup > 1 and not by_columns and fits_subgroups(shader.module.capabilities, per_row, per_row * rows_per_workgroup):
        shader.number_by_subgroups()
    local = shader.local
    if per_row == 1 or rows_per_workgroup == 1:
        return Team(per_row, rows_per_workgroup, by_columns, "0u" if per_row == 1 else local, "0u" if rows_per_workgroup == 1 else local)
    fast = rows_per_workgroup if by_columns else per_row
    low, high = shader.let("u32", f"{local} & {fast - 1}u"), shader.let("u32", f"{local} >> {fast.bit_length() - 1}u")
    return Team(per_row, rows_per_workgroup, by_columns, high if by_columns else low, low if by_columns else high)


class WorkgroupReduction:
    """The combination of the states of a workgroup's invocations."""

    def __init__(self, shader: Shader, team: Team) -> None:
        self.shader = shader
        self.team = team
        self._area = 0

    def combined(self, accumulator: Accumulator, states: list[State]) -> list[State]:
        """Emit the combination of all states of a row, known to all its invocations.

        `states` has one for each lane.
        """
        partial, per_row = states, self.team.per_row
        if len(states) == 1 and can_shuffle(accumulator):
            ((x,),) = states
            if self._is_in_subgroup:
                return [(over_subgroup(self.shader, accumulator, x, per_row),)]
            if self._has_subgroups:
                return [(self._over_subgroups(accumulator, x),)]
        while per_row > 1:
            rest = 1 if per_row <= _ONCE else 1 << (per_row.bit_length() - 1) // 2
            partial = self._combine_to(accumulator, partial, per_row, rest)
            per_row = rest
        return partial

    @property
    def _is_in_subgroup(self) -> bool:
        """True if the invocations of each row are neighbours in one subgroup."""
        return not self.team.by_columns and fits_subgroups(self.shader.module.capabilities, self.team.per_row, self.team.invocations)

    @property
    def _has_subgroups(self) -> bool:
        """True if the workgroup is one row of full subgroups."""
        capabilities = self.shader.module.capabilities
        return capabilities.subgroups and self.team.rows_per_workgroup == 1 and self.team.per_row % capabilities.subgroup_most == 0

    def _over_subgroups(self, accumulator: Accumulator, x: Number) -> Number:
        """Emit the combination of each subgroup, and then that of all."""
        # Every subgroup computes the latter.
        shader, capabilities = self.shader, self.shader.module.capabilities
        self._area ^= 1
        lane, count = shader.builtin("subgroup_invocation_id"), shader.builtin("num_subgroups")
        x = over_subgroup(shader, accumulator, x)
        memory = self._memory(x.dtype, "0_0")
        shader.emit(f"if ({lane} == 0u) {{ {memory}[{shader.builtin('subgroup_id')}] = {x.text}; }}")
        shader.emit("workgroupBarrier();")
        total = shader.var(x.type, accumulator.start[0].text)

        def add(number: str) -> None:
            exists = shader.let("bool", f"{number} < {count}")
            value = Number(x.dtype, shader.let(x.type, f"{memory}[min({number}, {count} - 1u)]"))
            accumulator.add([total], accumulator.where(exists, (value,)))

        if self.team.per_row <= capabilities.subgroup_least**2:  # there are no more subgroups than one has invocations
            add(lane)
        else:
            with shader.loop(count, 0, shader.builtin("subgroup_size")) as i:
                add(f"{i} + {lane}")
        return over_subgroup(shader, accumulator, Number(x.dtype, total))

    def _combine_to(self, accumulator: Accumulator, states: list[State], per_row: int, rest: int) -> list[State]:
        """Emit the combination of `per_row` states to `rest`.

        The first invocations have one each.
        """
        shader, team = self.shader, self.team
        self._area ^= 1
        names = [[self._memory(d, f"{k}_{n}") for n, d in enumerate(accumulator.dtypes)] for k in range(len(states))]
        if per_row < team.per_row:
            with shader.block(f"if ({team.rank} < {per_row}u)"):
                self._write(names, states)
        else:
            self._write(names, states)
        shader.emit("workgroupBarrier();")
        first = shader.let("u32", f"{team.rank} & {rest - 1}u") if rest > 1 else "0u"
        slots = [team.slot(f"{first} + {k * rest}u" if rest > 1 else f"{k}u") for k in range(per_row // rest)]
        if len(states) == 1 and not accumulator.node.is_index:
            return [accumulator.merged([self._read(accumulator, names[0], slot) for slot in slots])]
        # The same for several lanes, with less text.
        totals = [accumulator.variables() for _ in names]
        with self.shader.loop(per_row, first, rest) as i:
            for lane, total in zip(names, totals, strict=True):
                accumulator.add(total, self._read(accumulator, lane, self.team.slot(i)))
        return [accumulator.read(total) for total in totals]

    def _read(self, accumulator: Accumulator, names: list[str], slot: str) -> State:
        texts = [self.shader.let(wgsl_type(d), f"{n}[{slot}]") for d, n in zip(accumulator.dtypes, names, strict=True)]
        return tuple([Number(d, text) for d, text in zip(accumulator.dtypes, texts, strict=True)])

    def _write(self, names: list[list[str]], states: list[State]) -> None:
        for lane, state in zip(names, states, strict=True):
            for name, x in zip(lane, state, strict=True):
                self.shader.emit(f"{name}[{self.team.slot(self.team.rank)}] = {x.text};")

    def _memory(self, dtype: np.dtype, suffix: str) -> str:
        type_ = wgsl_type(dtype)
        name = f"shared_{''.join(c for c in type_ if c.isalnum())}_{suffix}_{self._area}"
        return self.shader.workgroup(name, type_, self.team.invocations)
