"""The values of nodes as machine code, each emitted once.

One axis of a `VectorScope` may be bound as a vector: to as many neighbouring indices as there are lanes. Nodes that depend on that axis are
vectors there, all others are scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from volta_fn.codegen.loops import Scope
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Load, PendingStores, Position
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.scalars import Number, apply, constant, load, position, shuffled, splat, store

Key = tuple[str, int]

#: Operations that are long chains of dependent instructions: several vectors go through one of them together.
CHAINS = frozenset({"threefry2x32_word"})

#: The distance of prefetches in bytes: half a page, as the hardware by itself does not prefetch beyond a page.
_AHEAD = 2048


class VectorAxis(NamedTuple):
    """The axis bound as a vector, and its lanes, of which `valid` exist (None: all)."""

    axis: int
    lanes: int
    valid: Value | None = None


class SpillSlot(NamedTuple):
    """Memory in which a pass over a row keeps a node's values for a later pass."""

    memory: Value
    #: The offset of a value, in units of as many elements as a vector of rows has (1 where lanes are elements of one row).
    offset: Affine
    unit: int


class LoopNest(NamedTuple):
    """State shared by all scopes of a loop nest."""

    f: Function
    analysis: KernelAnalysis
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    #: The spill slots of nodes, and the nodes whose values are in theirs.
    spills: dict[int, SpillSlot]
    in_memory: set[int]
    pending: PendingStores
    #: Loads that read long arrays in order, and are prefetched.
    streams: frozenset[int] = frozenset()


class VectorScope(Scope[Value, Number]):
    """A scope of machine code, in which an axis may be a vector."""

    def __init__(self, nest: LoopNest, parents: Sequence[VectorScope], axes: Mapping[int, Value], vector_axis: VectorAxis | None) -> None:
        super().__init__(nest.analysis, parents, axes)
        self.nest = nest
        self.buffered = nest.in_memory
        inherited_axes = [parent.vector_axis for parent in parents if parent.vector_axis is not None]
        self.vector_axis: VectorAxis | None = vector_axis or (inherited_axes[0] if inherited_axes else None)
        #: Conditions that are constant in this scope.
        self.decided: dict[Range, bool] = {}
        #: The scope of which this is an unrolled copy, and its distance from there along the vectors' axis.
        self.unrolled_from: tuple[VectorScope, int] | None = None
        self.spreads: dict[int, Number] = {}
        self.pointers: dict[Key, Value] = {}
        self.conditions: dict[Range, Value] = {}
        for parent in parents:
            self.decided.update(parent.decided)

    def child(self, axes: Mapping[int, Value], vector_axis: VectorAxis | None = None, shared: Sequence[VectorScope] = ()) -> VectorScope:
        """Return a scope further in."""
        return VectorScope(self.nest, (self, *shared), axes, vector_axis)

    def vectors(
        self, vector_axis: VectorAxis, offset: Value, count: int, decided: Mapping[Range, bool], shared: Sequence[VectorScope | None] = ()
    ) -> list[VectorScope]:
        """Return the scopes of `count` consecutive vectors from a position on.

        Each may share the values of another scope.
        """
        result: list[VectorScope] = []
        for k, other in enumerate(shared or [None] * count):
            at = self.nest.f.plus(offset, i64(k * vector_axis.lanes))
            scope = self.child({vector_axis.axis: at}, vector_axis, () if other is None else (other,))
            scope.decided.update(decided)
            scope.unrolled_from = (result[0], k * vector_axis.lanes) if result else None
            result.append(scope)
        return result

    @property
    def lanes(self) -> int:
        """The number of lanes of vectors."""
        return self.vector_axis.lanes if self.vector_axis else 1

    @property
    def count(self) -> Value | None:
        """The number of lanes that exist, if that is not all of them."""
        return self.vector_axis.valid if self.vector_axis else None

    def is_vector(self, axes: frozenset[int]) -> bool:
        """Return True if what depends on these axes is a vector."""
        return self.vector_axis is not None and self.vector_axis.lanes > 1 and self.vector_axis.axis in axes

    # values

    def operands(self, node: int) -> tuple[int, ...]:
        """Return the nodes that a node reads where conditions are decided."""
        return self.analysis.operands(node, self.decided)

    def spread(self, node_number: int) -> Number:
        """Return a node's value in every lane."""
        node = self.nest.analysis.kernel.nodes[node_number]
        if isinstance(node, Constant):
            return constant(self.nest.f, node.value, self.lanes)
        value = self.value(node_number)
        if self.lanes == 1 or self.is_vector(self.nest.analysis.depends[node_number]):
            return value
        if node_number not in self.spreads:
            self.spreads[node_number] = splat(self.nest.f, value, self.lanes)
        return self.spreads[node_number]

    def emit(self, node_number: int) -> Number:
        """Emit a node, as a vector if it differs between lanes."""
        nest, node = self.nest, self.nest.analysis.kernel.nodes[node_number]
        lanes = self.lanes if self.is_vector(nest.analysis.depends[node_number]) else 1
        if node_number in nest.in_memory:
            return load(nest.f, node.dtype, self.pointer(("slot", node_number)), lanes, count=self.count if lanes > 1 else None)
        if isinstance(node, Load):
            return self._loaded(node_number, node, lanes)
        if isinstance(node, Constant):
            return constant(nest.f, node.value, lanes)
        if isinstance(node, Position):
            step = coefficient(node.value, self.vector_axis.axis) if self.vector_axis else 0
            return position(nest.f, self.affine(node.value), step, node.dtype, lanes)
        if isinstance(node, Inside):
            return splat(nest.f, Number(node.dtype, (self.holds(node.ranges) or Value("i1", "true"),)), lanes)
        assert isinstance(node, Apply), "a reduction is known before it is asked for"
        read = [self.spread(i) if lanes > 1 else self.value(i) for i in self.operands(node_number)]
        if len(read) < len(node.operands):
            return read[0]
        return apply(nest.f, node.op, read, node.dtype, dict(node.params))

    def _loaded(self, node_number: int, node: Load, lanes: int) -> Number:
        f = self.nest.f
        step = coefficient(self.nest.analysis.load_offsets[node_number], self.vector_axis.axis) if self.vector_axis else 0
        if lanes > 1 and not step:  # only its conditions differ along the vector's axis
            return splat(f, self._loaded(node_number, node, 1), lanes)
        holds = self.holds(node.mask)
        if holds is not None and holds.name == "false":
            return constant(f, node.fill.value, lanes)
        pointer = self.pointer(("load", node_number))
        if holds is None or holds.name == "true":
            if lanes > 1 and step == 1 and self.count is None and node_number in self.nest.streams:
                fetch_ahead(f, pointer, _AHEAD)
            if lanes == 1:
                return load(f, node.dtype, pointer, lanes)
            if step < 2 or node.mask:
                return load(f, node.dtype, pointer, lanes, count=self.count, stride=step)
            near = self.nest.analysis.neighbours(node_number, step)
            pointer, last = self.pointer(("load", min(near, key=near.__getitem__))), max(near.values())
            return load(f, node.dtype, pointer, lanes, count=self.count, stride=step, first=near[node_number], last=last)
        if lanes == 1 or (step == 1 and lanes <= self.nest.analysis.kernel.inputs[node.input].size):
            # Where the condition fails, the first element is read instead.
            address = f.select(holds, pointer, self.nest.inputs[node.input])
            value = load(f, node.dtype, address, lanes, count=self.count if lanes > 1 else None)
        else:
            count = f.select(holds, self.count or i64(lanes), i64(0))
            value = load(f, node.dtype, pointer, lanes, count=count, stride=step)
            if not any(node.fill.bits):
                return value
        fill = constant(f, node.fill.value, lanes)
        components = [f.select(holds, x, y) for x, y in zip(value.components, fill.components, strict=True)]
        return Number(node.dtype, tuple(components))

    # indices and conditions

    def affine(self, affine: Affine) -> Value:
        """Emit an affine number; of a vector, the first lane's."""
        total = i64(affine.offset)
        for axis, c in affine.terms:
            total = self.nest.f.plus(total, self.nest.f.times(self.axes[axis], c))
        return total

    def holds(self, ranges: Sequence[Range]) -> Value | None:
        """Emit whether all conditions hold, as an i1; None without conditions.

        The constants `true` and `false` are known results.
        """
        f, result = self.nest.f, None
        for condition in ranges:
            decision = self.decided.get(condition)
            if decision is False:
                return Value("i1", "false")
            if decision is None:
                flag = self.condition(condition)
                result = flag if result is None else f.binary("and", result, flag)
        return result if result is not None or not ranges else Value("i1", "true")

    def condition(self, condition: Range) -> Value:
        """Emit whether a condition holds."""
        flag = self.inherited("conditions", condition)
        if flag is None:
            assert not self.is_vector(condition.value.axes), "what holds in some lanes only is decided before"
            f, value = self.nest.f, self.affine(condition.value)
            above = f.binary("sub nsw", value, i64(condition.low))
            flag = self.conditions[condition] = f.compare("icmp ult", above, i64(max(condition.high - condition.low, 0)))
        return flag

    # memory

    def pointer(self, key: Key) -> Value:
        """Emit the address of a load's, store's or slot's element (the first lane's)."""
        if key not in self.pointers:
            self.pointers[key] = self._pointer(key) if self.unrolled_from is None else self._pointer_from(key, *self.unrolled_from)
        return self.pointers[key]

    def _pointer(self, key: Key) -> Value:
        f, (base, offset, size) = self.nest.f, self._memory(*key)
        index, bound = i64(offset.offset), self.axes
        if (enclosing := self._enclosing_pointer(key)) is not None:
            base, axes = enclosing
            index, bound = i64(0), {a: v for a, v in self.axes.items() if a not in axes}
        for axis, c in offset.terms:
            if axis in bound:
                index = f.plus(index, f.times(bound[axis], c))
        return base if index.name == "0" else f.let("ptr", f"getelementptr [{size} x i8], {base}, {index}")

    def _pointer_from(self, key: Key, first: VectorScope, distance: int) -> Value:
        """Return the address at a constant distance from another one, which costs nothing."""
        assert self.vector_axis is not None
        _, offset, size = self._memory(*key)
        step, base = coefficient(offset, self.vector_axis.axis) * distance, first.pointer(key)
        return self.nest.f.let("ptr", f"getelementptr [{size} x i8], {base}, i64 {step}") if step else base

    def _enclosing_pointer(self, key: Key) -> tuple[Value, Mapping[int, Value]] | None:
        """Return the address in the nearest enclosing scope, and the axes bound there."""
        if key in self.pointers:
            return self.pointers[key], self.axes
        return self.parents[0]._enclosing_pointer(key) if self.parents else None

    def _memory(self, kind: str, number: int) -> tuple[Value, Affine, int]:
        nest, kernel = self.nest, self.nest.analysis.kernel
        if kind == "load":
            node = kernel.nodes[number]
            assert isinstance(node, Load)
            return nest.inputs[node.input], nest.analysis.load_offsets[number], node.dtype.itemsize
        if kind == "store":
            return nest.outputs[number], nest.analysis.store_offsets[number], kernel.nodes[kernel.stores[number].value].dtype.itemsize
        slot = nest.spills[number]
        return slot.memory, slot.offset, slot.unit * kernel.nodes[number].dtype.itemsize

    def keep(self, node: int) -> None:
        """Emit the store of a node's value in its slot."""
        store(self.nest.f, self.spread(node), self.pointer(("slot", node)), count=self.count)

    def store(self, index: int) -> None:
        """Emit a store."""
        analysis = self.nest.analysis
        value, offset = analysis.kernel.stores[index].value, analysis.store_offsets[index]
        self.nest.pending.discard(index)
        pointer = self.pointer(("store", index))
        if self.is_vector(offset.axes):
            assert self.vector_axis is not None
            store(self.nest.f, self.spread(value), pointer, count=self.count, stride=coefficient(offset, self.vector_axis.axis))
        else:
            store(self.nest.f, shuffled(self.nest.f, self.value(value), [0]), pointer)  # all lanes have the same number

    # hoisting

    def prepare(self, targets: Iterable[int], stores: Iterable[int] = (), keeps: Iterable[int] = ()) -> None:
        """Emit the values and addresses of inner loops that this scope determines."""
        kernel = self.analysis.kernel
        self.hoist([*targets, *[kernel.stores[s].value for s in stores], *keeps])
        for s in stores:
            self.pointer(("store", s))
        for node in keeps:
            self.pointer(("slot", node))

    def prepare_operands(self, node: int) -> None:
        """Emit a node's address, and its conditions that do not depend on inner loops."""
        if node in self.buffered:
            self.pointer(("slot", node))
            return
        if isinstance(self.analysis.kernel.nodes[node], Load):
            self.pointer(("load", node))
        for condition in self.analysis.ranges(node):
            if condition.value.axes <= self.axes.keys() and condition not in self.decided:
                self.condition(condition)


def emit_unrolled(scopes: Sequence[VectorScope], node_number: int) -> None:
    """Emit a node's value in scopes that differ only along the vectors' axis."""
    nest = scopes[0].nest
    node = nest.analysis.kernel.nodes[node_number]
    chained = isinstance(node, Apply) and node.op in CHAINS and node_number not in nest.in_memory
    if not chained or len(scopes) not in (2, 4, 8) or not scopes[0].is_vector(nest.analysis.depends[node_number]):
        for scope in scopes:
            scope.value(node_number)
        return
    assert isinstance(node, Apply)
    read = [_joined(nest.f, [scope.spread(i) for scope in scopes]) for i in node.operands]
    full = apply(nest.f, node.op, read, node.dtype, dict(node.params))
    for k, scope in enumerate(scopes):
        scope.values[node_number] = shuffled(nest.f, full, range(k * scope.lanes, (k + 1) * scope.lanes))


def _joined(f: Function, numbers: Sequence[Number]) -> Number:
    """Emit the concatenation of the lanes of several numbers (two, four, …)."""
    while len(numbers) > 1:
        order = range(2 * numbers[0].lanes)
        pairs = [zip(x.components, y.components, strict=True) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        numbers = [Number(numbers[0].dtype, tuple([f.shuffle(a, order, b) for a, b in pair])) for pair in pairs]
    return numbers[0]


def fetch_ahead(f: Function, pointer: Value, distance: int) -> None:
    """Emit a prefetch of memory `distance` bytes ahead."""
    offset = f.let("ptr", f"getelementptr i8, {pointer}, i64 {distance}")
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.run("llvm.prefetch.p0", offset, Value("i32", "0"), Value("i32", "3"), Value("i32", "1"))
