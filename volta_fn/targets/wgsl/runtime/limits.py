"""Split dispatches that exceed a limit: large arrays, and long work.

A device limits the bytes of one binding, to 128 MiB by default, though its buffers may be larger: such a buffer is bound several times. And
drivers reset a GPU that is busy with one dispatch for seconds, 2 of them on Windows: a dispatch with very many multiplications becomes
several, each with some of its workgroups and submitted by itself. They share a shader, which reads the number of its portion from a ladder
(see `copying`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import OutOfMemoryError
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Run
from volta_fn.targets.wgsl.transforms.partial_dispatch import can_run_in_portions, portion
from volta_fn.targets.wgsl.transforms.split_bindings import split_bindings

#: Multiplications in a portion: half a second on a GPU of 0.5 Tflop/s, a few milliseconds on a large one. Portions are large, so that
#: waiting for the last workgroup of each costs little.
MOST = 1 << 38


#: The most elements of an array: shaders index them, and the invocations of all workgroups, in 32 bits.
ELEMENTS = (1 << 32) - (1 << 17)


def check_elements(counts: Iterable[int]) -> None:
    """Raise `OutOfMemoryError` for arrays that 32-bit indices cannot address."""
    if (most := max(counts, default=0)) > ELEMENTS:
        raise OutOfMemoryError(f"an array of {most} elements is more than a GPU's shader can number, {ELEMENTS}; split it")


def in_sections(run: Run, capabilities: TargetCapabilities) -> Run:
    """Bind large arrays of a dispatch in sections.

    Raises `OutOfMemoryError` if that takes more bindings than the device has.
    """
    size = capabilities.binding // capabilities.alignment * capabilities.alignment
    counts = [max(-(-p.size // size), 1) for p in run.ranges]
    if max(counts) == 1:
        return run
    if sum(counts) > capabilities.buffers:
        raise OutOfMemoryError(
            f"an array of {max(p.size for p in run.ranges)} bytes is larger than a shader of this GPU can see: "
            f"{capabilities.binding} bytes at once, {capabilities.buffers} times, and this step needs "
            f"{sum(counts)} times. Split it, for example into smaller batches"
        )
    ranges, written = list[BufferRange](), set[int]()
    for number, (span, count) in enumerate(zip(run.ranges, counts, strict=True)):
        if number in run.written:
            written.update(range(len(ranges), len(ranges) + count))
        ranges += [span._replace(offset=span.offset + k * size, size=min(size, span.size - k * size)) for k in range(count)]
    changed = functools.partial(split_bindings, counts=tuple(counts), size=size)
    return replace(run.changed(changed), ranges=tuple(ranges), written=frozenset(written))


def in_portions(run: Run, work: int, rung: Callable[[int, int], BufferRange], capabilities: TargetCapabilities) -> list[Run]:
    """Split a dispatch into portions of its workgroups.

    ``rung(k, n)`` is the range of a word that holds k, less than n.
    """
    across, down, _ = run.groups
    length, each = (down, across) if down > 1 else (across, 1)
    size = -(-length // -(-work // MOST)) if work > MOST else length
    if size == length or len(run.ranges) == capabilities.buffers or not can_run_in_portions(run.shader):
        return [run]
    run = run.changed(functools.partial(portion, groups=size * each))
    count = -(-length // size)
    lengths = [min(size, length - k * size) for k in range(count)]
    groups = [(across, n, 1) if down > 1 else (n, 1, 1) for n in lengths]
    return [replace(run, ranges=(*run.ranges, rung(k, count)), groups=g) for k, g in enumerate(groups)]
