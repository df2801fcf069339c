"""Horizontal fusion of shaders: several dispatches as one, in which each has some of the workgroups.

A dispatch of few workgroups leaves much of a GPU idle, and WebGPU runs the dispatches of a pass one after the other where memory that was
used before is written, even if they are independent. So independent dispatches become one shader.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from volta_fn.targets.wgsl.rewriting.buffer_switch import may_choose, with_one_of
from volta_fn.targets.wgsl.shader_layout import BOUND, BUILTIN, ENTRY, bound, entry

_SHARED = re.compile(r"^var<workgroup> (\w+): (?:array<(.*), (\d+)>|(.*));\n", re.MULTILINE)
_DECLARED = re.compile(r"^(?:@group\(0\) @binding\(\d+\) )?(?:var(?:<[^>]*>)?|fn|const) (\w+)", re.MULTILINE)
_TOGETHER = re.compile(r"Barrier|subgroup")
_TYPES = re.compile(r"^(?:struct|alias) ", re.MULTILINE)

#: What a shader may know of its place in the grid.
_GROUP = "workgroup_id"
_LOCAL = "local_invocation_index"
_KNOWN = frozenset({_GROUP, _LOCAL, "subgroup_id", "subgroup_size", "subgroup_invocation_id", "num_subgroups"})


class _Parts(NamedTuple):
    """A shader as it is written (see `form`): declarations, and the entry point."""

    invocations: int
    #: Names of built-in values, the parameters that hold them, and types.
    builtins: tuple[tuple[str, str, str], ...]
    declarations: str
    body: str
    #: What workgroups share: names, elements' types and lengths of arrays, types of what is no array.
    shared: tuple[tuple[str, str, str, str], ...]
    #: Whether invocations wait for each other.
    waits: bool


@functools.lru_cache(maxsize=4096)
def _parts(source: str) -> _Parts | None:
    main = ENTRY.search(source)
    if main is None or not source.endswith("}\n"):
        return None
    builtins = tuple(BUILTIN.findall(main[2]))
    declarations = source[: main.start()]
    if not {name for name, _, _ in builtins} <= _KNOWN or _TYPES.search(declarations):
        return None
    body = source[main.end() : -2]
    return _Parts(int(main[1]), builtins, declarations, body, tuple(_SHARED.findall(declarations)), bool(_TOGETHER.search(source)))


def _known(source: str) -> _Parts:
    parts = _parts(source)
    assert parts is not None, "a shader that is fused was found to be fusible by `fused_size`"
    return parts


def fused_size(sources: Sequence[str]) -> int:
    """The invocations of a workgroup of the fused shader; 0 if shaders cannot be fused.

    Where a shader has fewer, the rest of a workgroup is idle there. So that shader must have no barriers.
    """
    found = [_parts(source) for source in sources]
    size = max([0 if parts is None else parts.invocations for parts in found])
    return size if all(parts is not None and (parts.invocations == size or not parts.waits) for parts in found) else 0


def fused_memory(sources: Sequence[str]) -> int:
    """The bytes of workgroup memory of the fused shader."""
    memory = _Memory()
    for source in sources:
        memory.names(_known(source))
    return memory.size


@functools.lru_cache(maxsize=1024)
def fused(sources: Sequence[str], counts: Sequence[int]) -> str:
    """One shader for shaders that each have a grid of `counts` workgroups along x. Their buffers follow each other."""
    bindings, first = 0, 0
    memory = _Memory()
    size = fused_size(sources)
    texts, builtins, branches = [], {_GROUP: "vec3<u32>", _LOCAL: "u32"}, []
    for number, (source, count, times) in enumerate(_repeated(sources, counts)):
        parts = _known(source)
        names = {name: f"p{number}_{name}" for name in _DECLARED.findall(parts.declarations)} | memory.names(parts)
        names |= {name: f"p{number}_{kind}" if kind == _GROUP else f"_{kind}" for kind, name, _ in parts.builtins}
        builtins |= {kind: type_ for kind, _, type_ in parts.builtins}
        declarations, body = [_renamed(text, names) for text in (_SHARED.sub("", parts.declarations), parts.body)]
        own = f"let p{number}_{_GROUP} = _{_GROUP} - vec3<u32>({first}u, 0u, 0u);"
        if times > 1:
            which = f"p{number}_which"
            declarations, body = with_one_of(times, which, declarations, body)
            own = f"let p{number}_{_GROUP} = vec3<u32>((_{_GROUP}.x - {first}u) % {count}u, 0u, 0u);"
            own += f"\n  {which} = (_{_GROUP}.x - {first}u) / {count}u;"
        texts.append(_bound_from(bindings, declarations))
        bindings += len(BOUND.findall(declarations))
        first += count * times
        if parts.invocations < size:
            body = f"  if (_{_LOCAL} < {parts.invocations}u) {{\n{body}  }}\n"
        branches.append(f"if (_{_GROUP}.x < {first}u) {{\n  {own}\n{body}}}")
    return "".join([*texts, *memory.declarations(), entry(size, builtins), " else ".join(branches), "\n}\n"])


def _repeated(sources: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Each shader with its count and how often it comes, one after the other; those whose text cannot be shared come once each."""
    for (source, count), same in itertools.groupby(zip(sources, counts, strict=True)):
        times = len([*same])
        if times > 1 and may_choose(source):
            yield source, count, times
        else:
            yield from [(source, count, 1)] * times


class _Memory:
    """Workgroup memory. As only one of the shaders runs in each workgroup, all of them use the same memory, made large enough."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.types: dict[str, str] = {}

    def names(self, parts: _Parts) -> dict[str, str]:
        """New names for what one shader declares."""
        names: dict[str, str] = {}
        for name, element, length, single in parts.shared:
            kind = re.sub(r"\W", "_", f"{element}s" if element else single)
            room = next(r for k in itertools.count() if (r := f"shared{k}_{kind}") not in names.values())
            self.types[room] = element or single
            self.lengths[room] = max(self.lengths.get(room, 0), int(length or 0))
            names[name] = room
        return names

    @property
    def size(self) -> int:
        """Bytes of all of it, at most."""
        return sum(_bytes(type_) * (self.lengths[room] or 1) for room, type_ in self.types.items())

    def declarations(self) -> list[str]:
        """The text that declares all of it."""
        types = {room: f"array<{type_}, {self.lengths[room]}>" if self.lengths[room] else type_ for room, type_ in self.types.items()}
        return [f"var<workgroup> {room}: {type_};\n" for room, type_ in types.items()]


def _bytes(type_: str) -> int:
    """The bytes of a number, or of a vector of numbers, at most."""
    lanes = re.match(r"vec(\d)", type_)
    return (8 if "64" in type_ else 4) * (4 if lanes else 1)


def _renamed(text: str, names: dict[str, str]) -> str:
    """The text with names exchanged, wherever they are no members of something."""
    return re.sub(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w)", lambda found: names[found[0]], text)


def _bound_from(first: int, text: str) -> str:
    """Declarations with buffers numbered from another number on."""
    return BOUND.sub(lambda found: bound(first + int(found[1]), *found.groups()[1:]), text)
