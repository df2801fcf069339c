"""Blocks of logits: what queries see of keys, biases, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.attention import Attention, LogitWalk
from volta_fn.runtime.llvm.text import Function, Value, counting, greatest, i64, least, vector_of
from volta_fn.targets.cpu.attention.blocks import BlockSizes, Left, Packed, PanelOperand, Product, at, multiply, number, read, rounded_up
from volta_fn.targets.cpu.scalars import Number, apply, load
from volta_fn.targets.cpu.scalars.values import Lanes

#: The first of the operands after q, k and v.
_EXTRA = 3
#: How much greater than the logits of hidden keys a query's largest one is if their weights are 0 in float32 and float64.
_HIDDEN = {"float": 110.0, "double": 750.0}
#: Writes what is done to a vector of a row: (its offset in the block, its column, carried values) -> carried values.
VectorBody = Callable[[Value, Value, list[Value]], list[Value]]
_TRUE, _FALSE = Value("i1", "true"), Value("i1", "false")


class LogitArray(NamedTuple):
    """A mask or bias of one head."""

    walk: LogitWalk
    base: Value

    def vector(self, f: Function, b: BlockSizes, query: Value, key: Value, keys: int) -> Value:
        """Emit the elements of a query, from a key on.

        Those beyond the last key are arbitrary.
        """
        lanes, itemsize = b.work.lanes, self.walk.dtype.itemsize
        start = at(f, self.base, itemsize, f.plus(f.times(query, self.walk.query), f.times(key, self.walk.key)))
        if not self.walk.key:
            return f.splat(self._load(f, b, start, 1, None), lanes)
        if keys % b.panel == 0:  # or else a panel's last vector may begin beyond the last key
            return self._load(f, b, start, lanes, None)
        rest = f.minus(i64(keys), key)
        whole = f.compare("icmp sge", rest, i64(lanes))
        return f.branch(
            whole,
            lambda: [self._load(f, b, start, lanes, None)],
            lambda: [self._load(f, b, start, lanes, greatest(f, rest, i64(0)))],
        )[0]

    def _load(self, f: Function, b: BlockSizes, start: Value, lanes: int, count: Value | None) -> Value:
        if self.walk.dtype == np.bool_:
            return load(f, self.walk.dtype, start, lanes, count=count).value
        x = read(f, self.walk.dtype, start, lanes, count)
        return f.cast("fpext", x, vector_of(b.work.type, lanes))


class LogitBlock(NamedTuple):
    """The block of logits of some queries and keys of a head.

    Attributes:
        a, b: the problem and the sizes of blocks.
        bias: of the head, if there is one.
        masks: of the head.
        query: the first query.
        key: the first key.
        width: the number of keys, up to that of a block.
    """

    a: Attention
    b: BlockSizes
    bias: LogitArray | None
    masks: tuple[LogitArray, ...]
    query: Value
    key: Value
    width: Value

    def panels(self, f: Function) -> Value:
        """Emit the number of panels that have the keys."""
        return rounded_up(f, self.width, self.b.panel)

    def each_vector(
        self, f: Function, row: Value, carried: list[Value], body: Callable[[Value, Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """Emit ``carried = body(offset, column, carried)`` for a row's vectors.

        The offset is that of the vector in the block.
        """
        lanes, panel = self.b.work.lanes, self.b.panel

        def panel_of(column: Value, values: list[Value]) -> list[Value]:
            for start in range(0, panel, lanes):
                here = f.plus(column, i64(start))
                values = body(f.plus(f.times(row, self.b.pitch), here), here, values)
            return values

        return f.loop(i64(0), f.times(self.panels(f), panel), panel, carried, panel_of, nonempty=True)

    # what queries see

    def is_partial(self, f: Function) -> Value:
        """Emit whether some logits differ from the scaled products."""
        a, b = self.a, self.b
        if self.bias is not None or self.masks or a.softcap:
            return _TRUE
        ragged = a.keys % b.panel > 0
        is_ragged = f.compare("icmp sgt", f.plus(self.key, i64(b.panel - 1), self.width), i64(a.keys)) if ragged else _FALSE
        return f.binary("or", is_ragged, self.hides(f))

    def hides(self, f: Function) -> Value:
        """Emit whether queries of the block may not see keys of it."""
        a, b = self.a, self.b
        if self.masks:
            return _TRUE
        conditions = []
        if a.window.after is not None:
            last_key = f.plus(self.key, f.times(self.panels(f), b.panel))
            conditions.append(f.compare("icmp sgt", last_key, f.plus(self.query, i64(a.window.after + 1))))
        if a.window.before is not None:
            conditions.append(f.compare("icmp slt", f.plus(self.key, i64(a.window.before)), f.plus(self.query, i64(b.queries - 1))))
        return _any(f, conditions)

    def is_seen(self, f: Function) -> Value:
        """Emit whether a query of the block sees a key of it."""
        a, b = self.a, self.b
        last = least(f, f.plus(self.query, i64(b.queries - 1)), i64(a.queries - 1))
        conditions = []
        if a.window.after is not None:
            conditions.append(f.compare("icmp sle", self.key, f.plus(last, i64(a.window.after))))
        if a.window.before is not None:
            end = f.plus(self.key, self.width, i64(a.window.before - 1))
            conditions.append(f.compare("icmp sge", end, self.query))
        by_position = _all(f, conditions)
        if not self.masks:
            return by_position
        return f.branch(by_position, lambda: [self._is_seen_by_masks(f)], lambda: [_FALSE])[0]

    def _is_seen_by_masks(self, f: Function) -> Value:
        """Emit whether all masks let some query see some key."""
        b, varies = self.b, any(mask.walk.query for mask in self.masks)
        lanes = b.work.lanes
        rows = least(f, i64(b.queries), f.minus(i64(self.a.queries), self.query)) if varies else i64(1)
        none = f.splat(_FALSE, lanes)

        def row_of(row: Value, carried: list[Value]) -> list[Value]:
            def vector(_: Value, column: Value, values: list[Value]) -> list[Value]:
                return [f.binary("or", values[0], f.binary("and", self._masked(f, row, column), self._is_key(f, column)))]

            return self.each_vector(f, i64(0), carried, vector)

        (seen,) = f.loop(i64(0), rows, 1, [none], row_of, nonempty=True)
        return Lanes(f, seen).any()

    def _is_key(self, f: Function, column: Value) -> Value:
        """Emit the lanes whose keys belong to the block."""
        lanes = self.b.work.lanes
        return f.compare("icmp slt", f.binary("add", f.splat(column, lanes), counting(lanes)), f.splat(self.width, lanes))

    def _masked(self, f: Function, row: Value, column: Value) -> Value:
        """Emit where all masks let a query see keys."""
        query, key = self._position(f, row, column)
        vectors = [mask.vector(f, self.b, query, key, self.a.keys) for mask in self.masks]
        result = vectors[0]
        for vector in vectors[1:]:
            result = f.binary("and", result, vector)
        return result

    def _position(self, f: Function, row: Value, column: Value) -> tuple[Value, Value]:
        return least(f, f.plus(self.query, row), i64(self.a.queries - 1)), f.plus(self.key, column)

    def visible(self, f: Function, row: Value, column: Value) -> Value | None:
        """Emit where a query sees keys; None if it sees all."""
        a, lanes = self.a, self.b.work.lanes
        conditions = [self._masked(f, row, column)] if self.masks else []
        window = a.window
        if window.before is not None or window.after is not None:
            ahead = f.minus(f.plus(self.key, column), f.plus(self.query, row))  # of the first lane
            numbers = f.binary("add", f.splat(ahead, lanes), counting(lanes))
            if window.after is not None:
                conditions.append(f.compare("icmp sle", numbers, f.splat(i64(window.after), lanes)))
            if window.before is not None:
                conditions.append(f.compare("icmp sge", numbers, f.splat(i64(-window.before), lanes)))
        return _all(f, conditions) if conditions else None

    # logits

    def multiply(self, f: Function, queries: Value, packed: Packed, base: Value, result: Value) -> None:
        """Emit the products of rows, of width `packed.rows.width`, with the block's keys."""
        b = self.b
        right: PanelOperand = packed.panels_from(f, b, base, self.key)
        left = Left(queries, b.padded(packed.rows.width), 1)
        product = Product(result, b.pitch, i64(b.queries // b.tile))
        multiply(f, b, left, right, i64(packed.rows.width), product, panels=self.panels(f))

    def finish(self, f: Function, logits: Value, bends: Value | None = None) -> None:
        """Emit logits in place of scaled products.

        `bends` get the derivatives of bounded ones by these. Logits are `a.unseen` where a query does not see a key, and -inf beyond the
        last key.
        """
        a, b = self.a, self.b
        work = b.work
        lanes = work.lanes

        def row_of(row: Value, _: list[Value]) -> None:
            def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                address = f.at(logits, work.type, offset)
                x = f.load(work.vector, address, work.itemsize)
                if a.softcap:
                    x = self._bounded(f, x, None if bends is None else f.at(bends, work.type, offset))
                if self.bias is not None:
                    x = f.binary("fadd", x, self.bias.vector(f, b, *self._position(f, row, column), a.keys))
                if (seen := self.visible(f, row, column)) is not None:
                    x = f.select(seen, x, f.splat(number(work, a.unseen), lanes))
                if a.keys % b.panel:
                    keys = f.binary("add", f.splat(f.plus(self.key, column), lanes), counting(lanes))
                    x = f.select(f.compare("icmp slt", keys, f.splat(i64(a.keys), lanes)), x, f.splat(number(work, -np.inf), lanes))
                f.store(x, address, work.itemsize)
                return values

            self.each_vector(f, row, [], vector)

        f.branch(self.is_partial(f), lambda: _rows(f, b, row_of))

    def _bounded(self, f: Function, x: Value, bend: Value | None) -> Value:
        """Emit a bounded product, and the store of its derivative."""
        work, dtype = self.b.work, np.dtype("float32" if self.b.work.type == "float" else "float64")
        cap = f.splat(number(work, self.a.softcap), work.lanes)
        ratio = f.binary("fmul", x, f.splat(number(work, 1 / self.a.softcap), work.lanes))
        bounded = apply(f, "tanh", (Number(dtype, (ratio,)),), dtype, {}).value
        if bend is not None:
            one = f.splat(number(work, 1.0), work.lanes)
            f.store(f.binary("fsub", one, f.binary("fmul", bounded, bounded)), bend, work.itemsize)
        return f.binary("fmul", bounded, cap)


def _rows(f: Function, b: BlockSizes, body: Callable[[Value, list[Value]], None]) -> None:
    f.loop(i64(0), i64(b.queries), 1, [], body, nonempty=True)


def may_be_blind(f: Function, a: Attention, b: BlockSizes, largest: Value) -> Value:
    """Emit whether hidden keys may have weights besides a query's largest logit."""
    return f.compare("fcmp ole", largest, number(b.work, a.unseen + _HIDDEN[b.work.type]))


def _all(f: Function, conditions: list[Value]) -> Value:
    result = conditions[0] if conditions else _TRUE
    for condition in conditions[1:]:
        result = f.binary("and", result, condition)
    return result


def _any(f: Function, conditions: list[Value]) -> Value:
    result = conditions[0] if conditions else _FALSE
    for condition in conditions[1:]:
        result = f.binary("or", result, condition)
    return result


def logit_arrays(f: Function, a: Attention, pointers: list[Value], head: Value) -> tuple[LogitArray | None, tuple[LogitArray, ...]]:
    """Emit the addresses of the bias and the masks of a head."""
    arrays = []
    for pointer, walk in zip(pointers[_EXTRA:], [*([] if a.bias is None else [a.bias]), *a.masks], strict=False):
        offset = f.dotted(f.coordinates(head, walk.heads.sizes), walk.heads.strides)
        arrays.append(LogitArray(walk, at(f, pointer, walk.dtype.itemsize, offset)))
    return (None, tuple(arrays)) if a.bias is None else (arrays[0], tuple(arrays[1:]))
