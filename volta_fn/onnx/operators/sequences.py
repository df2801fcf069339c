"""Sequences of arrays, which are Python tuples here."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, operator


@operator("SequenceEmpty")
def sequence_empty(node: Node) -> Any:
    """Return a sequence of nothing."""
    return ((),)


@operator("SequenceConstruct")
def sequence_construct(node: Node, *inputs: Any) -> Any:
    """Return a sequence of the inputs."""
    return (inputs,)


@operator("SequenceLength")
def sequence_length(node: Node, sequence: Any) -> Any:
    """Count the arrays of a sequence."""
    return np.array(len(sequence), np.int64)


@operator("SequenceAt")
def sequence_at(node: Node, sequence: Any, position: Any) -> Any:
    """Return one array of a sequence."""
    return sequence[node.ints(position, "position")[0]]


@operator("SequenceInsert")
def sequence_insert(node: Node, sequence: Any, value: Any, position: Any = None) -> Any:
    """Insert an array, at the end by default."""
    at = len(sequence) if position is None else node.ints(position, "position")[0]
    at += len(sequence) * (at < 0)
    return ((*sequence[:at], value, *sequence[at:]),)


@operator("SequenceErase")
def sequence_erase(node: Node, sequence: Any, position: Any = None) -> Any:
    """Remove an array, the last by default."""
    at = (-1 if position is None else node.ints(position, "position")[0]) % len(sequence)
    return ((*sequence[:at], *sequence[at + 1 :]),)


@operator("SplitToSequence")
def split_to_sequence(node: Node, x: Any, split: Any = None) -> Any:
    """Split an array to a sequence, by sizes or into chunks of one size."""
    axis = node.get("axis", 0)
    count = x.shape[axis]
    if split is None:
        chunks = [1] * count
    elif np.ndim(split) == 0:
        size = node.ints(split, "split")[0]
        chunks = [min(size, count - start) for start in range(0, count, size)]
    else:
        chunks = node.ints(split, "split")
    found = node.xp.split(x, np.cumsum(chunks)[:-1].tolist(), axis)
    if split is None and not node.get("keepdims", 1):
        found = [node.xp.squeeze(chunk, axis) for chunk in found]
    return (tuple(found),)


@operator("ConcatFromSequence")
def concat_from_sequence(node: Node, sequence: Any) -> Any:
    """Join the arrays of a sequence, along a new axis if asked for."""
    join = vnp.stack if node.get("new_axis", 0) else vnp.concatenate
    return join([as_array(v) for v in sequence], axis=node.get("axis"))
