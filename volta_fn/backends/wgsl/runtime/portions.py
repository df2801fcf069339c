"""Long work in portions: drivers take a GPU for hung that is busy with one thing for seconds, 2 of them on Windows.

A dispatch with very many multiplications becomes several, each with some of its workgroups, and each is submitted by itself. They share a
shader, which reads the number of the portion from a word of a *ladder*.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.runtime.commands import Place, Run

#: Multiplications in a portion: half a second of a small GPU's time, which does half of 10^12 of them in one; a few milliseconds of a large
#: one's, so that what cannot begin before the last workgroup ends costs little.
MOST = 1 << 38

_GROUP = re.compile(r"let group = _workgroup_id\.x")


def in_portions(run: Run, work: int, rung: Callable[[int, int], Place], facts: Facts) -> list[Run]:
    """A dispatch as portions of its workgroups. ``rung(k, n)`` is a word that holds k, of n such."""
    across, down, _ = run.groups
    length, each = (down, across) if down > 1 else (across, 1)
    size = -(-length // -(-work // MOST)) if work > MOST else length
    if size == length or len(run.places) == facts.buffers or not _GROUP.search(run.source):
        return [run]
    run = run.changed(functools.partial(_text, binding=len(run.places), groups=size * each))
    count = -(-length // size)
    lengths = [min(size, length - k * size) for k in range(count)]
    groups = [(across, n, 1) if down > 1 else (n, 1, 1) for n in lengths]
    return [replace(run, places=(*run.places, rung(k, count)), groups=g) for k, g in enumerate(groups)]


@functools.lru_cache(maxsize=64)
def _text(source: str, binding: int, groups: int) -> str:
    """A shader whose workgroups are numbered from a multiple of so many on."""
    declaration = f"@group(0) @binding({binding}) var<storage, read> portion: array<u32>;\n"
    return declaration + _GROUP.sub(f"let group = portion[0] * {groups}u + _workgroup_id.x", source)
