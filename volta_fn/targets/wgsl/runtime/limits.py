"""What exceeds one dispatch: arrays larger than a binding, and work that takes too long.

A device limits the bytes of one binding, to 128 MiB by default, though its buffers may be larger: such a buffer is bound several times. And
drivers reset a GPU that is busy with one dispatch for seconds, 2 of them on Windows: a dispatch with very many multiplications becomes
several, each with some of its workgroups, and each is submitted by itself. They share a shader, which reads the number of its portion
from a word of a *ladder* (see `copying`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import OutOfMemoryError
from volta_fn.targets.wgsl.runtime.commands import Place, Run
from volta_fn.targets.wgsl.transforms.partial_dispatch import can_run_in_portions, portion
from volta_fn.targets.wgsl.transforms.split_bindings import split_bindings

#: Multiplications in a portion: half a second on a small GPU, which does half of 10^12 of them in one second; a few milliseconds on a
#: large one. Portions are large, so that waiting for the last workgroup of each costs little.
MOST = 1 << 38


#: Elements of an array: shaders number them, and the invocations of all workgroups, in 32 bits.
ELEMENTS = (1 << 32) - (1 << 17)


def check_elements(counts: Iterable[int]) -> None:
    """Raise `OutOfMemoryError` if an array has more elements than can be numbered."""
    if (most := max(counts, default=0)) > ELEMENTS:
        raise OutOfMemoryError(f"an array of {most} elements is more than a GPU's shader can number, {ELEMENTS}; split it")


def in_sections(run: Run, facts: TargetCapabilities) -> Run:
    """A dispatch with large arrays bound in sections. Raises `OutOfMemoryError` if that takes more bindings than the device has."""
    size = facts.binding // facts.alignment * facts.alignment
    counts = [max(-(-p.size // size), 1) for p in run.places]
    if max(counts) == 1:
        return run
    if sum(counts) > facts.buffers:
        raise OutOfMemoryError(
            f"an array of {max(p.size for p in run.places)} bytes is larger than a shader of this GPU can see: {facts.binding} bytes "
            f"at once, {facts.buffers} times, and this step needs {sum(counts)} times. Split it, for example into smaller batches"
        )
    places, written = list[Place](), set[int]()
    for number, (place, count) in enumerate(zip(run.places, counts, strict=True)):
        if number in run.written:
            written.update(range(len(places), len(places) + count))
        places += [place._replace(offset=place.offset + k * size, size=min(size, place.size - k * size)) for k in range(count)]
    changed = functools.partial(split_bindings, counts=tuple(counts), size=size)
    return replace(run.changed(changed), places=tuple(places), written=frozenset(written))


def in_portions(run: Run, work: int, rung: Callable[[int, int], Place], facts: TargetCapabilities) -> list[Run]:
    """A dispatch as portions of its workgroups. ``rung(k, n)`` is the place of a word that holds k, less than n."""
    across, down, _ = run.groups
    length, each = (down, across) if down > 1 else (across, 1)
    size = -(-length // -(-work // MOST)) if work > MOST else length
    if size == length or len(run.places) == facts.buffers or not can_run_in_portions(run.shader):
        return [run]
    run = run.changed(functools.partial(portion, groups=size * each))
    count = -(-length // size)
    lengths = [min(size, length - k * size) for k in range(count)]
    groups = [(across, n, 1) if down > 1 else (n, 1, 1) for n in lengths]
    return [replace(run, places=(*run.places, rung(k, count)), groups=g) for k, g in enumerate(groups)]
