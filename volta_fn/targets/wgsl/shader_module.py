"""Represent compute shaders as objects, which print their WGSL at the very end.

A module lists its declarations in the order in which they are printed: bindings (numbered in that order), workgroup variables, and
functions and constants as WGSL. The functions of `transforms` take modules and return modules; inside statements they work on `tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from volta_fn.targets.wgsl.tokens import declared_names, declares_types

#: The function that returns a float32 by its bits. Infinities and NaN are made by it, since WGSL forbids constant expressions that are not
#: finite. Modules that call it declare it when they are printed, under a name that no transformation changes.
BITS_F32 = "bits_f32"
_BITS_F32 = f"fn {BITS_F32}(bits: u32) -> f32 {{ return bitcast<f32>(bits); }}\n"


class Binding(NamedTuple):
    """A storage buffer, an array of `element`."""

    name: str
    element: str
    written: bool = False

    def printed(self, number: int) -> str:
        """Return the declaration, as the binding of that number."""
        access = "read_write" if self.written else "read"
        return f"@group(0) @binding({number}) var<storage, {access}> {self.name}: array<{self.element}>;\n"


class WorkgroupVariable(NamedTuple):
    """A variable in workgroup memory: an array, or one element if `length` is 0."""

    name: str
    element: str
    length: int = 0

    @property
    def printed(self) -> str:
        """The declaration."""
        return f"var<workgroup> {self.name}: {f'array<{self.element}, {self.length}>' if self.length else self.element};\n"

    @property
    def bytes(self) -> int:
        """An upper bound of its size in bytes: vectors count as four components."""
        component = 8 if "64" in self.element else 4
        return component * (4 if self.element.startswith("vec") else 1) * (self.length or 1)


class Builtin(NamedTuple):
    """A parameter of the entry point that holds a built-in value."""

    value: str
    parameter: str
    type: str


Declaration = Binding | WorkgroupVariable | str


@dataclass(frozen=True, eq=False)
class ShaderModule:
    """A WGSL module with the entry point `main`. Modules are equal if their texts are."""

    declarations: tuple[Declaration, ...]
    invocations: int
    builtins: tuple[Builtin, ...]
    #: The statements of the entry point, as indented lines.
    body: str
    #: The expression of the workgroup's index in the dispatch, if the body begins by computing it from the grid; see `partial_dispatch`.
    group: str | None = None
    #: The statements before it.
    prologue: str = ""

    @cached_property
    def text(self) -> str:
        """The WGSL."""
        parameters = ", ".join([f"@builtin({value}) {parameter}: {type_}" for value, parameter, type_ in self.builtins])
        return "".join(
            [*self._printed(), f"@compute @workgroup_size({self.invocations}) fn main({parameters}) {{\n", self.statements, "}\n"]
        )

    def _printed(self) -> Iterator[str]:
        if any(BITS_F32 in text for text in (self.statements, *[d for d in self.declarations if isinstance(d, str)])):
            yield _BITS_F32
        number = 0
        for declaration in self.declarations:
            if isinstance(declaration, Binding):
                yield declaration.printed(number)
                number += 1
            else:
                yield declaration if isinstance(declaration, str) else declaration.printed

    @property
    def statements(self) -> str:
        """All statements of the entry point."""
        group = f"  let group = {self.group};\n" if self.group is not None else ""
        return f"{self.prologue}{group}{self.body}"

    @property
    def bindings(self) -> list[Binding]:
        """The storage buffers, by their numbers."""
        return [d for d in self.declarations if isinstance(d, Binding)]

    @property
    def workgroup_variables(self) -> list[WorkgroupVariable]:
        """The variables in workgroup memory."""
        return [d for d in self.declarations if isinstance(d, WorkgroupVariable)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the module declares outside of functions."""
        found: list[str] = []
        for declaration in self.declarations:
            found += declared_names(declaration) if isinstance(declaration, str) else [declaration.name]
        return tuple(found)

    @cached_property
    def has_types(self) -> bool:
        """Whether it declares structures or aliases."""
        return any(declares_types(d) for d in self.declarations if isinstance(d, str))

    @cached_property
    def synchronises(self) -> bool:
        """Whether invocations wait for each other or exchange values."""
        return any(word in self.text for word in ("Barrier", "subgroup"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShaderModule) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def hand_written(
    bindings: tuple[Binding, ...], body: str, builtins: Mapping[str, tuple[str, str]], invocations: int, functions: str = ""
) -> ShaderModule:
    """Make a module of WGSL written by hand.

    `builtins` maps built-in values to names and types of parameters.
    """
    parameters = tuple([Builtin(value, *parameter) for value, parameter in builtins.items()])
    return ShaderModule((*bindings, *([functions] if functions else [])), invocations, parameters, body)
