"""If, Loop and Scan: Python's where the host knows the way, else `lax`'s."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.trace import Tracer
from volta_fn.errors import OnnxError
from volta_fn.onnx.operators.registry import Node, as_array, operator

#: A loop of at most so many iterations, whose number is known, is unrolled: its shapes and integers stay on the host.
_UNROLLED = 16


@operator("If")
def conditional(node: Node, condition: Any) -> Any:
    """Run one of two graphs."""
    then, otherwise = node.get("then_branch"), node.get("else_branch")
    if not isinstance(condition, Tracer):
        return tuple(node.run(then if bool(np.asarray(condition).reshape(())) else otherwise))
    branches = [lambda graph=graph: [as_array(v) for v in node.run(graph)] for graph in (then, otherwise)]
    return tuple(lax.cond(condition.reshape(()), branches[0], branches[1]))


@operator("Loop")
def loop(node: Node, count: Any, condition: Any, *carried: Any) -> Any:
    """Repeat a graph while a condition holds, at most `count` times."""
    body = node.get("body")
    outputs = len(carried)
    known = count is None or not isinstance(count, Tracer)
    limit = np.iinfo(np.int64).max if count is None else int(np.asarray(count).reshape(())) if known else None
    if limit is None or isinstance(condition, Tracer):
        return _while(node, body, count, condition, carried)
    if _UNROLLED < limit < 2**31 and (condition is None or bool(np.asarray(condition))) and _always(node, body, carried):
        return _scan(node, body, limit, carried)
    values, rows = list(carried), list[list[Any]]()
    going, step = condition is None or bool(np.asarray(condition).reshape(())), 0
    while going and step < limit:
        again, *found = node.run(body, np.array(step, np.int64), np.array(True), *values)
        if isinstance(again, Tracer):
            if rows or step or len(found) > outputs:
                raise OnnxError(f"{node}: it stops by a traced condition and collects results, whose number is then unknown")
            return _while(node, body, count, condition, carried)
        values, collected = found[:outputs], found[outputs:]
        rows.append(collected)
        going, step = bool(np.asarray(again).reshape(())), step + 1
    stacked = [vnp.stack([as_array(v) for v in column]) for column in zip(*rows, strict=True)]
    return *values, *(stacked or [vnp.zeros((0,)) for _ in range(node.outputs - outputs)])


def _always(node: Node, body: Any, carried: tuple[Any, ...]) -> bool:
    """Return True if a body keeps its condition true, and its carry's types."""
    again, *found = node.run(body, np.array(0, np.int64), np.array(True), *carried)
    same = [(v.shape, v.dtype) == (f.shape, f.dtype) for v, f in zip(carried, found, strict=False)]
    return isinstance(again, np.ndarray) and bool(again) and all(same)


def _scan(node: Node, body: Any, count: int, carried: tuple[Any, ...]) -> Any:
    def step(values: list[Any], number: Any) -> tuple[list[Any], list[Any]]:
        _, *found = node.run(body, number, np.array(True), *values)
        arrays = [as_array(v) for v in found]
        return arrays[: len(values)], arrays[len(values) :]

    last, collected = lax.scan(step, [as_array(v) for v in carried], vnp.arange(count, dtype=np.int64))
    return *last, *collected


def _while(node: Node, body: Any, count: Any, condition: Any, carried: tuple[Any, ...]) -> Any:
    limit = vnp.asarray(np.iinfo(np.int64).max if count is None else count, dtype=np.int64).reshape(())

    def going(state: Any) -> Any:
        return (state[0] < limit) & state[1]

    def step(state: Any) -> Any:
        again, *found = node.run(body, state[0], state[1], *state[2])
        if len(found) > len(carried):
            raise OnnxError(f"{node}: it stops by a traced condition and collects results, whose number is then unknown")
        return state[0] + 1, as_array(again).reshape(()).astype(bool), [as_array(v) for v in found]

    first = vnp.asarray(True) if condition is None else as_array(condition).reshape(())
    return tuple(lax.while_loop(going, step, (vnp.asarray(np.int64(0)), first, [as_array(v) for v in carried]))[2])


@operator("Scan")
def scan(node: Node, *inputs: Any) -> Any:
    """Run a graph over the slices of arrays."""
    body, count = node.get("body"), node.get("num_scan_inputs")
    if node.opset < 9:
        return _batched_scan(node, body, count, inputs[1:])
    return _scanned(node, body, inputs[: len(inputs) - count], inputs[len(inputs) - count :])


def _scanned(node: Node, body: Any, states: Any, sequences: Any) -> Any:
    axes = node.get("scan_input_axes") or [0] * len(sequences)
    backward = node.get("scan_input_directions", node.get("directions")) or [0] * len(sequences)
    rows = [_turned(vnp.moveaxis(as_array(s), a, 0), b) for s, a, b in zip(sequences, axes, backward, strict=True)]

    def step(values: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
        found = [as_array(v) for v in node.run(body, *values, *given)]
        return found[: len(values)], found[len(values) :]

    last, collected = lax.scan(step, [as_array(s) for s in states], rows)
    out_axes = node.get("scan_output_axes") or [0] * len(collected)
    flags = node.get("scan_output_directions") or [0] * len(collected)
    moved = [vnp.moveaxis(_turned(c, f), 0, a) for c, a, f in zip(collected, out_axes, flags, strict=True)]
    return *last, *moved


def _turned(x: Any, backward: int) -> Any:
    return vnp.flip(x, 0) if backward else x


def _batched_scan(node: Node, body: Any, count: int, inputs: Any) -> Any:
    """Run version 8, whose first axis is the batch and whose second is time."""
    batch = inputs[0].shape[0]
    split = len(inputs) - count
    results = [_scanned(node, body, [v[i] for v in inputs[:split]], [v[i] for v in inputs[split:]]) for i in range(batch)]
    return tuple([vnp.stack(column) for column in zip(*results, strict=True)])
