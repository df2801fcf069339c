"""The first few of long rows, by one look at each element.

A workgroup goes through a chunk of a row and keeps, in its own memory, what comes before a threshold: the last of the wanted that it has
seen so far. When there is no room for more, what is kept is sorted, and all but the wanted is dropped. As elements are kept in the order of
the chunk, equal ones stay in their order. The first threshold comes from a look through the beginning, so that little is kept of numbers in
random order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.index_arith import plus, times
from volta_fn.targets.wgsl.library.sorting import LAST, Emit
from volta_fn.targets.wgsl.library.tile_sort import Tile, exclusive, sort_tile
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Shader

_TILE = Tile(256, 4)

#: Fours that an invocation looks at together: two, as the counts of both share a word.
_FOURS = 2

#: Elements that a workgroup looks at together.
CHUNK = 4 * _FOURS * _TILE.invocations

#: The first threshold is found in the first of so many chunks' shares: about nine times what is wanted is kept.
_SAMPLED_SHARE = 8

#: The most that can be wanted.
MOST = _TILE.size // 4

#: ``fours(shader)`` binds buffers and gives ``read(chunk, number)``: four neighbours' keys, some key where there is none.
Fours = Callable[[Shader], Callable[[str, str], list[str]]]

#: ``numbers(shader)`` binds buffers and gives ``number(chunk, position)``, what goes with the key of an element.
Numbers = Callable[[Shader], Callable[[str, str], str]]


class Sieving(NamedTuple):
    """A search for the first elements of chunks.

    Attributes:
        chunks: the number of chunks.
        size: the text of the number of elements of one.
        wanted: how many are to be found in each; what is missing has the last key.
        keys, numbers: the chunks' elements.
        emit: where the found ones go, in order.
    """

    chunks: int
    size: Callable[[str], str]
    wanted: int
    keys: Fours
    numbers: Numbers
    emit: Emit


def sieve(sieving: Sieving, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that finds the first elements of each chunk."""
    return _Sieve(sieving, device).dispatch()


class _Sieve:
    """The shader of a search; `scratch` has the keys kept, then their numbers.

    Sorting uses `scratch`, too.
    """

    def __init__(self, sieving: Sieving, device: TargetCapabilities) -> None:
        self.sieving, self.shader = sieving, Shader(device, _TILE.invocations)
        shader = self.shader
        self.size = shader.let("u32", sieving.size(shader.group))
        self.read, self.number = sieving.keys(shader), sieving.numbers(shader)
        #: How many are kept; and the threshold that an element must come before, or may equal as long as not enough are kept.
        self.kept, self.bar, self.few = shader.var("u32", "0u"), shader.var("u32", LAST), shader.var("bool", "true")
        shader.workgroup("scratch", "u32", _TILE.room)

    def dispatch(self) -> Dispatch:
        shader, wanted = self.shader, self.sieving.wanted
        self._first_bar()
        with shader.loop(self.size, 0, CHUNK) as start:
            keys, positions = self._chunk(start)
            rest = shader.var("u32", " | ".join(f"select(0u, {1 << k}u, {at} < {self.size})" for k, at in enumerate(positions)))
            with shader.block("loop"):
                total = self._keep(keys, positions, rest)
                with shader.block(f"if ({total} <= {_TILE.size}u && {start} + {CHUNK}u < {self.size})"):
                    shader.emit(f"{self.kept} = {total};")
                    shader.emit("break;")
                self._forget(total)
                shader.emit(f"if ({total} <= {_TILE.size}u) {{ break; }}")
        write = self.sieving.emit(shader)
        with shader.block(f"if ({shader.local} < {wanted}u)"):
            key, number = (shader.let("u32", f"scratch[{shader.local} + {n}u]") for n in (0, _TILE.size))
            write(shader.group, shader.local, key, number)
        return shader.dispatch(self.sieving.chunks)

    def _chunk(self, start: str) -> tuple[list[str], list[str]]:
        """Emit an invocation's keys of a stretch, and their numbers in the chunk."""
        shader = self.shader
        firsts = [shader.let("u32", f"{start} + {shader.local} * 4u + {k * 4 * _TILE.invocations}u") for k in range(_FOURS)]
        keys = [key for first in firsts for key in self.read(shader.group, first)]
        return keys, [f"({first} + {c}u)" for first in firsts for c in range(4)]

    def _first_bar(self) -> None:
        """Emit the first threshold, which as many as are wanted pass.

        Groups of invocations find the first keys in their shares of the chunk's beginning.
        """
        shader, wanted = self.shader, self.sieving.wanted
        groups = max(64, 1 << (2 * wanted - 1).bit_length())
        if groups > _TILE.invocations:
            return
        best = shader.var("u32", LAST)
        with shader.loop(f"max(1u, {self.size} / {_SAMPLED_SHARE}u)", 0, CHUNK) as start:
            keys, positions = self._chunk(start)
            for key, at in zip(keys, positions, strict=True):
                shader.emit(f"{best} = min({best}, select({LAST}, {key}, {at} < {self.size}));")
        shader.emit(f"scratch[{shader.local}] = {best};")
        shader.workgroup("agreed", "u32")
        shader.emit("workgroupBarrier();")
        with shader.block(f"if ({shader.local} < {groups}u)"):
            for k in range(groups, _TILE.invocations, groups):
                shader.emit(f"{best} = min({best}, scratch[{shader.local} + {k}u]);")
            shader.emit(f"scratch[{shader.local}] = {best};")
        shader.emit("workgroupBarrier();")
        with shader.block(f"if ({shader.local} < {groups}u)"):
            before = shader.var("u32", "0u")
            with shader.loop(groups) as j:
                other = shader.let("u32", f"scratch[{j}]")
                shader.emit(f"{before} += select(0u, 1u, {other} < {best} || ({other} == {best} && {j} < {shader.local}));")
            shader.emit(f"if ({before} == {wanted - 1}u) {{ agreed = {best}; }}")
        shader.emit(f"{self.bar} = workgroupUniformLoad(&agreed);")

    def _keep(self, keys: list[str], positions: list[str], rest: str) -> str:
        """Keep elements while there is room, and leave the others in `rest`.

        Return how many there would be.
        """
        shader = self.shader
        passing = " | ".join(
            f"select(0u, {1 << k}u, {key} < {self.bar} || ({self.few} && {key} == {self.bar}))" for k, key in enumerate(keys)
        )
        shader.emit(f"{rest} &= {passing};")
        halves = (f"countOneBits({rest} & 15u)", f"countOneBits({rest} >> 4u)")
        sums = exclusive(shader, f"({halves[0]} | ({halves[1]} << 16u))")
        first = shader.let("u32", f"{self.kept} + ({sums}.x & 0xffffu)")
        second = shader.let("u32", f"{self.kept} + ({sums}.y & 0xffffu) + ({sums}.x >> 16u)")
        found = shader.let("u32", rest)
        for k, (key, at) in enumerate(zip(keys, positions, strict=True)):
            base, mask = (first, (1 << k) - 1) if k < 4 else (second, (1 << k) - 16)
            with shader.block(f"if (({found} & {1 << k}u) != 0u)"):
                position = shader.let("u32", f"{base} + countOneBits({found} & {mask}u)")
                with shader.block(f"if ({position} < {_TILE.size}u)"):
                    shader.emit(f"scratch[{position}] = {key};")
                    shader.emit(f"scratch[{position} + {_TILE.size}u] = {self.number(shader.group, at)};")
                    shader.emit(f"{rest} &= {~(1 << k) & 0xFF}u;")
        shader.workgroup("agreed", "u32")
        shader.emit(f"if ({shader.local} == 0u) {{ agreed = {self.kept} + ({sums}.y & 0xffffu) + ({sums}.y >> 16u); }}")
        return shader.let("u32", "workgroupUniformLoad(&agreed)")

    def _forget(self, total: str) -> None:
        """Keep only what is wanted of so many, in order."""
        shader, wanted = self.shader, self.sieving.wanted
        positions = [shader.let("u32", plus(times(shader.local, _TILE.each), f"{k}u")) for k in range(_TILE.each)]
        keys = [shader.var("u32", f"select({LAST}, scratch[{at}], {at} < {total})") for at in positions]
        values = [shader.var("u32", f"scratch[{at} + {_TILE.size}u]") for at in positions]
        shader.emit("workgroupBarrier();")
        sort_tile(shader, _TILE, keys, values, str, "0u", "32u")
        for at, key, value in zip(positions, keys, values, strict=True):
            with shader.block(f"if ({at} < {wanted}u)"):
                shader.emit(f"scratch[{at}] = {key};")
                shader.emit(f"scratch[{at} + {_TILE.size}u] = {value};")
        shader.emit("workgroupBarrier();")
        shader.emit(f"{self.kept} = min({total}, {wanted}u);")
        shader.emit(f"{self.few} = {total} < {wanted}u;")
        shader.emit(f"if (!{self.few}) {{ {self.bar} = scratch[{wanted - 1}u]; }}")
