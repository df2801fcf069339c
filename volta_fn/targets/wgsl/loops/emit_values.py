"""Steps of kernels, and the values of their nodes in shaders, each emitted once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.loops import Scope
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, PendingStores, Position
from volta_fn.targets.wgsl.routine import Shader, ShaderArray
from volta_fn.targets.wgsl.scalars import Number, apply, constant, opaque_float, wgsl_type
from volta_fn.targets.wgsl.scalars.number import opaque_count
from volta_fn.targets.wgsl.scalars.operations import convert, is_long

# Several axes of a kernel walked as one, by elements or groups of *lanes*.

#: Neighbours that an invocation processes at a time: as many as a vector has numbers, and a word bytes. Of narrow numbers it may process
#: more, a vector of words.
LANES = 4

#: Texts of u32 expressions that are cheap to repeat: one for all lanes, or one for each.
Texts = tuple[str, ...]

#: The pseudo-axis that stands in an `Affine` for the index of a group of lanes: along the span or, if no group crosses the end of a row of
#: its last axis (`is_aligned`), along that axis.
GROUP = -1


class AxisSpan(NamedTuple):
    """Axes in the order in which they are walked, the last one fastest."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    lanes: int = 1

    @property
    def total(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def lane_groups(self) -> int:
        """The number of groups of lanes."""
        return -(-self.total // self.lanes)

    @property
    def is_aligned(self) -> bool:
        """True if the lanes of a group differ in the last axis only."""
        return self.lanes > 1 and bool(self.sizes) and self.sizes[-1] % self.lanes == 0

    @property
    def terms(self) -> dict[int, int]:
        """The number of an element as a sum over the axes: the factor of each."""
        return {a: math.prod(self.sizes[k + 1 :]) for k, a in enumerate(self.axes)}

    def bind(self, shader: Shader, group: str) -> dict[int, Texts]:
        """Emit the axes' indices in a group of lanes.

        The last group may repeat the last element.
        """
        if self.is_aligned:
            axes = shader.digits(group, (*self.sizes[:-1], self.sizes[-1] // self.lanes))
            last = shader.let("u32", f"{axes[-1]} * {self.lanes}u")
            lanes = (last, *[f"({last} + {k}u)" for k in range(1, self.lanes)])
            return {**{a: (text,) for a, text in zip(self.axes[:-1], axes, strict=False)}, self.axes[-1]: lanes, GROUP: (axes[-1],)}
        if self.lanes == 1:
            return {a: (text,) for a, text in zip(self.axes, shader.digits(group, self.sizes), strict=True)}
        elements = []
        for k in range(self.lanes):
            number = f"{group} * {self.lanes}u" + (f" + {k}u" if k else "")
            number = f"min({number}, {self.total - 1}u)" if k >= (self.total % self.lanes or self.lanes) else number
            elements.append(shader.digits(shader.let("u32", number), self.sizes))
        return {**{a: tuple([element[n] for element in elements]) for n, a in enumerate(self.axes)}, GROUP: (group,)}

    def vector(self, index: Affine) -> Affine | None:
        """Return the index of the vector that the lanes' elements form, or None."""
        rest = dict(index.terms)
        strides = {self.axes[-1]: 1} if self.is_aligned else self.terms
        if (
            self.lanes == 1
            or any(rest.pop(a, 0) != c for a, c in strides.items())
            or any(c % self.lanes for c in (*rest.values(), index.offset))
        ):
            return None
        if not self.is_aligned and rest.keys() & set(self.axes):
            return None
        return Affine(tuple(sorted([(GROUP, 1), *[(a, c // self.lanes) for a, c in rest.items()]])), index.offset // self.lanes)


# Steps: kernels that are one dispatch each; a kernel may become several.


class Buffers(NamedTuple):
    """The numbers of the buffers that a kernel's inputs and outputs are."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class KernelStep(NamedTuple):
    """A kernel to be run."""

    kernel: Kernel
    buffers: Buffers
    #: Iterations for which this does not hold are skipped.
    condition: Range | None = None
    #: The index of an element in its row, where that is not the row-major one.
    index_in_row: Affine | None = None

    @property
    def bindings(self) -> int:
        """The number of buffers that it binds."""
        read = {self.buffers.inputs[node.input] for node in self.kernel.nodes if isinstance(node, Load)}
        return len(read.union(self.buffers.outputs))


# The values of nodes in shaders, each emitted once.
#
# A span of axes may be bound by groups of lanes: nodes that differ between lanes have one value for each lane there, all others have one.

Numbers = tuple[Number, ...]
Terms = tuple[tuple[int, int], ...]

_WORD = 1 << 32


class LoopNest(NamedTuple):
    """State shared by all scopes of a kernel, whose buffers are bound in a shader."""

    shader: Shader
    analysis: KernelAnalysis
    inputs: Mapping[int, ShaderArray]
    outputs: Sequence[ShaderArray]
    pending: PendingStores


class LaneScope(Scope[Texts, Numbers]):
    """A scope of a shader; `span` is walked by groups of lanes, if there is one."""

    def __init__(self, nest: LoopNest, parent: LaneScope | None, axes: Mapping[int, Texts], span: AxisSpan | None = None) -> None:
        super().__init__(nest.analysis, [parent] if parent else [], axes)
        self.nest = nest
        self.parent = parent
        self.span: AxisSpan | None = span if span and span.lanes > 1 else parent.span if parent else None
        self._sums: dict[Terms, Texts] = {}
        self._conditions: dict[tuple[Range, ...], Texts] = {}

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self.span.lanes if self.span else 1

    def child(self, axes: Mapping[int, Texts], span: AxisSpan | None = None) -> LaneScope:
        """Return a scope further in."""
        return LaneScope(self.nest, self, axes, span)

    # values

    def spread(self, node: int) -> Numbers:
        """Return a node's value in every lane."""
        values = self.value(node)
        return values * self.lanes if len(values) == 1 else values

    def prepare_operands(self, node: int) -> None:
        """Emit the loop-invariant summand of a load's index."""
        if node in self.analysis.loads:
            self._prepare_sum(self.analysis.load_offsets[node])

    def _prepare_sum(self, affine: Affine) -> None:
        here = tuple([term for term in affine.terms if term[0] in self.axes])
        if here:
            self._sum(here)

    def emit(self, node_number: int) -> Numbers:
        """Emit a node's values: one, or one for each lane."""
        nest, node = self.nest, self.nest.analysis.kernel.nodes[node_number]
        if isinstance(node, Load):
            return self._loaded(node_number, node)
        if isinstance(node, Constant):
            return (constant(node.dtype, node.value),)
        if isinstance(node, Position):
            return self._position(node)
        if isinstance(node, Inside):
            return tuple([Number(node.dtype, nest.shader.named("bool", text)) for text in self.holds(node.ranges) or ("true",)])
        assert isinstance(node, Apply), "a reduction is known before it is asked for"
        read = [self.value(i) for i in node.operands]
        count = max([len(x) for x in read], default=1)
        if count > 1 and is_long(node.op, read[0][0].dtype):
            return self._in_loop(node, read, count)
        lanes = [[x[k % len(x)] for x in read] for k in range(count)]
        return tuple([apply(nest.shader, node.op, operands, node.dtype, dict(node.params)) for operands in lanes])

    def _in_loop(self, node: Apply, read: Sequence[Numbers], count: int) -> Numbers:
        """Emit a loop over lanes: compilers copy a function to wherever it is called."""
        shader = self.nest.shader

        def declare(dtype: np.dtype, values: str) -> str:
            return shader.var(type_ := f"array<{wgsl_type(dtype)}, {count}>", f"{type_}({values})")

        arrays = [declare(x[0].dtype, ", ".join(lane.text for lane in x)) if len(x) > 1 else "" for x in read]
        out = declare(node.dtype, "")
        with shader.loop(opaque_count(shader, count)) as k:
            lane = [
                Number(x[0].dtype, shader.let(wgsl_type(x[0].dtype), f"{array}[{k}]")) if array else x[0]
                for x, array in zip(read, arrays, strict=True)
            ]
            shader.emit(f"{out}[{k}] = {apply(shader, node.op, lane, node.dtype, dict(node.params)).text};")
        return tuple([Number(node.dtype, shader.let(wgsl_type(node.dtype), f"{out}[{k}u]")) for k in range(count)])

    def _position(self, node: Position) -> Numbers:
        unsigned = node.value.bounds(self.nest.analysis.kernel.sizes)[0] >= 0
        dtype, type_ = (np.dtype(np.uint32), "u32") if unsigned else (np.dtype(np.int32), "i32")
        shader = self.nest.shader
        texts = [text if unsigned else f"bitcast<i32>({text})" for text in self.affine(node.value)]
        return tuple([convert(shader, Number(dtype, shader.named(type_, text)), node.dtype) for text in texts])

    # loads and stores

    def _loaded(self, node_number: int, node: Load) -> Numbers:
        array = self.nest.inputs[node.input]
        holds = self.holds(node.mask)
        if holds is None:
            return self._read(node_number, array)
        fill = constant(node.dtype, node.fill.value)
        if holds == ("false",) or not self.nest.analysis.kernel.inputs[node.input].size:
            return (fill,)
        if holds == ("true",):
            return self._read(node_number, array)
        fill = opaque_float(self.nest.shader, fill)
        if len(holds) == 1:
            return self._read_if(holds[0], node_number, array, fill)
        return self._read_where(holds, node_number, array, fill)

    def _read(self, node_number: int, array: ShaderArray) -> Numbers:
        offset = self.nest.analysis.load_offsets[node_number]
        vector = self.vector(offset)
        if vector is not None:
            return tuple(array.load4(vector))
        node = self.nest.analysis.kernel.nodes[node_number]
        assert isinstance(node, Load)
        size = self.nest.analysis.kernel.inputs[node.input].size
        return tuple([array.load(_within(index, size)) for index in self.affine(offset)])

    def _read_if(self, condition: str, node: int, array: ShaderArray, fill: Number) -> Numbers:
        """Emit a load that reads memory only if a condition of all lanes holds."""
        shader, offset = self.nest.shader, self.nest.analysis.load_offsets[node]
        self._prepare_sum(offset)
        count = self.lanes if self.varies(offset) else 1
        names = [shader.var(wgsl_type(fill.dtype), fill.text) for _ in range(count)]
        with shader.block(f"if ({condition})"):
            inside = self.child({})
            for name, x in zip(names, inside._read(node, array), strict=True):
                shader.emit(f"{name} = {x.text};")
        return tuple([Number(fill.dtype, shader.let(wgsl_type(fill.dtype), name)) for name in names])

    def _read_where(self, holds: Texts, node: int, array: ShaderArray, fill: Number) -> Numbers:
        """Emit a load under each lane's condition."""
        # Where it fails, element 0 is loaded, and `fill` takes its place.
        shader, index = self.nest.shader, self.affine(self.nest.analysis.load_offsets[node])
        result = []
        for k, condition in enumerate(holds):
            where = shader.named("bool", condition)
            x = array.load(shader.let("u32", f"select(0u, {index[k % len(index)]}, {where})"))
            result.append(Number(fill.dtype, shader.let(wgsl_type(fill.dtype), f"select({fill.text}, {x.text}, {where})")))
        return tuple(result)

    def store(self, store: int) -> None:
        """Emit a store, executed only where the axes that it does not depend on are 0."""
        nest, array = self.nest, self.nest.outputs[store]
        nest.pending.discard(store)
        offset, values = nest.analysis.store_offsets[store], self.value(nest.analysis.kernel.stores[store].value)
        if is_store_in_fours(nest.analysis, self.span, store):
            vector = self.vector(offset)
            assert vector is not None
            array.store4(vector, values * self.lanes if len(values) == 1 else values)
            return
        absent = [a for a in self.axes if a >= 0 and a not in offset.axes and nest.analysis.kernel.sizes[a] > 1]
        index = self.affine(offset)
        conditions = self._conjunction([*[tuple([f"{text} == 0u" for text in self.axes[a]]) for a in absent], *self._within_span()])
        for k in range(max(len(index), len(values), len(conditions))):
            at, value = index[k % len(index)], values[k % len(values)]
            condition = conditions[k % len(conditions)] if conditions else "true"
            if condition == "true":
                array.store(at, value)
            else:
                with nest.shader.block(f"if ({condition})"):
                    array.store(at, value)

    def _within_span(self) -> list[Texts]:
        """Emit which lanes are within the span."""
        # Lanes beyond its end have the last index, but not its value if that is loaded in a vector: theirs follow in memory.
        span = self.span
        if span is None or span.is_aligned or span.total % span.lanes == 0:
            return []
        if all(span.vector(offset) is None for offset in self.nest.analysis.load_offsets.values()):
            return []
        (group,) = self.axes[GROUP]
        certain = span.total % span.lanes
        return [tuple(["true" if k < certain else f"{group} * {span.lanes}u + {k}u < {span.total}u" for k in range(span.lanes)])]

    # indices and conditions

    def varies(self, affine: Affine) -> bool:
        """Return True if a number differs between lanes."""
        return any(len(self.axes[a]) > 1 for a in affine.axes)

    def vector(self, offset: Affine) -> str | None:
        """Emit the number of the vector that holds the lanes' elements, if one does."""
        index = self.span.vector(offset) if self.span else None
        return None if index is None else self.affine(index)[0]

    def affine(self, affine: Affine) -> Texts:
        """Emit an affine number; negative ones are taken modulo 2³²."""
        if not affine.terms:
            return (f"{affine.offset % _WORD}u",)
        texts = self._sum(affine.terms)
        return texts if not affine.offset else tuple([f"({text} + {affine.offset % _WORD}u)" for text in texts])

    def _sum(self, terms: Terms) -> Texts:
        """Emit a sum of multiples of axes."""
        if len(terms) == 1 and terms[0][1] == 1:
            return self.axes[terms[0][0]]
        if (emitted := self.inherited("_sums", terms)) is not None:
            return emitted
        outer = tuple([t for t in terms if self.parent is not None and t[0] in self.parent.axes])
        outer_sum = self._sum(outer) if outer and len(outer) < len(terms) else None
        inner = [t for t in terms if outer_sum is None or t not in outer]
        count = max([len(outer_sum or ()), *[len(self.axes[a]) for a, _ in inner]])
        result: list[str] = []
        for k in range(count):
            if k and self.span is not None and self.span.is_aligned:
                result.append(f"({result[0]} + {k * coefficient(Affine(terms, 0), self.span.axes[-1]) % _WORD}u)")
                continue
            text = outer_sum[k % len(outer_sum)] if outer_sum else ""
            for a, c in inner:
                axis = self.axes[a][k % len(self.axes[a])]
                term = axis if abs(c) == 1 else f"{axis} * {abs(c)}u"
                text = f"{text} - {term}" if c < 0 and text else f"0u - {term}" if c < 0 else f"{text} + {term}" if text else term
            result.append(self.nest.shader.let("u32", text))
        self._sums[terms] = tuple(result)
        return self._sums[terms]

    def holds(self, ranges: Sequence[Range]) -> Texts | None:
        """Emit whether all conditions hold; None without conditions."""
        if not ranges:
            return None
        if (emitted := self.inherited("_conditions", tuple(ranges))) is not None:
            return emitted
        texts = self._conjunction([self._condition(r) for r in ranges])
        self._conditions[tuple(ranges)] = tuple([self.nest.shader.named("bool", text) for text in texts])
        return self._conditions[tuple(ranges)]

    @staticmethod
    def _conjunction(conditions: Sequence[Texts]) -> Texts:
        """Return the conjunction of conditions, lane by lane."""
        if ("false",) in conditions:
            return ("false",)
        distinct = list(dict.fromkeys([c for c in conditions if c != ("true",)]))
        if not distinct:
            return ("true",) if conditions else ()
        count = max(map(len, distinct))
        lanes = [[c[k % len(c)] for c in distinct] for k in range(count)]
        return tuple([terms[0] if len(terms) == 1 else " && ".join(f"({c})" for c in terms) for terms in lanes])

    def _condition(self, condition: Range) -> Texts:
        least, greatest = condition.value.bounds(self.nest.analysis.kernel.sizes)
        low, high = max(condition.low, least), min(condition.high, greatest + 1)
        if low >= high or (low <= least and high > greatest):
            return ("true",) if low < high else ("false",)
        value = Affine(condition.value.terms, condition.value.offset - low)
        texts = self.affine(value)
        if len(texts) > 1 and self._is_uniform(value, low > least, high - low if high <= greatest else None):
            texts = texts[:1]
        return tuple([f"{text} < {high - low}u" for text in texts])

    def _is_uniform(self, value: Affine, from_zero: bool, end: int | None) -> bool:
        """Return True if ``0 <= value < end`` is the same in all lanes."""
        vector = self.span.vector(Affine(value.terms, 0)) if self.span else None
        aligned = vector is not None and self.span is not None and self.span.is_aligned
        return aligned and (not from_zero or value.offset % self.lanes == 0) and (end is None or (value.offset - end) % self.lanes == 0)


def is_store_in_fours(analysis: KernelAnalysis, span: AxisSpan | None, store: int) -> bool:
    """Return True if a store writes full vectors."""
    if span is None or span.vector(analysis.store_offsets[store]) is None:
        return False
    walked = analysis.parallel_axes | (analysis.reduction_axes if analysis.store_axes(store) & analysis.reduction_axes else frozenset())
    return all(a in analysis.store_offsets[store].axes for a in walked if analysis.kernel.sizes[a] > 1)


def bind_kernel(
    shader: Shader, analysis: KernelAnalysis, spans: Sequence[AxisSpan], buffers: Buffers, absent: Collection[int] = ()
) -> LoopNest:
    """Bind a kernel's buffers in a shader, for accesses in fours where possible.

    Loads may be along any of the spans, stores are along the first.

    Inputs without loads are left out, and so are those in `absent`, whose values the caller provides.
    """
    kernel = analysis.kernel
    lanes = max([span.lanes for span in spans if span.lanes > 1], default=LANES)
    outputs: list[ShaderArray] = []
    by_number: dict[int, ShaderArray] = {}
    for s, (b, number) in enumerate(zip(kernel.outputs, buffers.outputs, strict=True)):
        size = b.size if is_store_in_fours(analysis, spans[0], s) else 0
        outputs.append(shader.buffer(number, b.dtype, written=True, size=size, lanes=lanes))
        by_number[number] = outputs[-1]
    fours = {node.input for n, node in analysis.loads.items() if any(span.vector(analysis.load_offsets[n]) is not None for span in spans)}
    present = {node.input for node in analysis.loads.values()}.difference(absent)
    for i in sorted(present):
        number, b = buffers.inputs[i], kernel.inputs[i]
        if number not in by_number:
            by_number[number] = shader.buffer(number, b.dtype, size=b.size if i in fours else 0, lanes=lanes)
    return LoopNest(shader, analysis, {i: by_number[buffers.inputs[i]] for i in present}, outputs, PendingStores(kernel))


def _within(index: str, size: int) -> str:
    """Return an index clamped to the array if it is a literal."""
    # A load that never happens may have a literal index outside, which translators refuse.
    return index if any(c.isalpha() and c != "u" for c in index) else f"min({index}, {size - 1}u)"
