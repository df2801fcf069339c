"""Compute shaders as objects, which print their WGSL at the very end.

A `Function` writes statements, and adds declarations to its `Module`. A `ShaderModule` is made of both, which transformations change.
Tokens of WGSL and index arithmetic serve these, and everything that writes shaders.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from volta_fn.codegen.scalars import IndexArithmetic
from volta_fn.compiler.target import TargetCapabilities

# Split WGSL into tokens: as much of a lexer as the transformations need.

#: Identifiers and keywords, numbers (with their suffixes), white space, and single characters of anything else.
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


@functools.lru_cache(maxsize=4096)
def tokenize(text: str) -> tuple[str, ...]:
    """Split WGSL into tokens, whose concatenation is the text."""
    return tuple(_TOKEN.findall(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Rename identifiers, except members of structures and vectors (``x.name``)."""
    output, before = [], ""
    for token in tokenize(text):
        output.append(names.get(token, token) if before != "." else token)
        before = token
    return "".join(output)


def closing(tokens: Sequence[str], start: int, depth: int = 0) -> int:
    """Return the position of the bracket that closes the one at `start`.

    If `depth` brackets are open before `start`, it is the outermost of them.
    """
    for position in range(start, len(tokens)):
        depth += (tokens[position] in _OPENING) - (tokens[position] in _CLOSING)
        if not depth:
            return position
    raise ValueError(f"a bracket is not closed: {''.join(tokens[start : start + 40])}")


def accesses(tokens: Sequence[str], position: int) -> bool:
    """Return whether the name at a position is indexed, or its address taken.

    That is not so for a local variable of a buffer's name.
    """
    before, after = tokens[max(position - 1, 0)], tokens[min(position + 1, len(tokens) - 1)]
    return before == "&" or after == "["


def skip_space(tokens: Sequence[str], position: int) -> int:
    """Return the position of the next token that is no white space."""
    while position < len(tokens) and tokens[position].isspace():
        position += 1
    return position


def _module_scope(text: str) -> list[str]:
    """Return the tokens outside of all braces, without white space."""
    tokens, depth = [], 0
    for token in tokenize(text):
        depth += (token == "{") - (token == "}")
        if not depth and not token.isspace():
            tokens.append(token)
    return tokens


def declared_names(text: str) -> list[str]:
    """Return the functions, constants and variables declared at module scope."""
    tokens, names = _module_scope(text), []
    for position, token in enumerate(tokens):
        if token in ("fn", "const"):
            names.append(tokens[position + 1])
        elif token == "var":
            following = position + 1
            if tokens[following] == "<":
                following = tokens.index(">", following) + 1
            names.append(tokens[following])
    return names


def declares_types(text: str) -> bool:
    """Return whether WGSL declares structures or aliases."""
    return not {"struct", "alias"}.isdisjoint(_module_scope(text))


# Represent compute shaders as objects, which print their WGSL at the very end.
#
# A module lists its declarations in the order in which they are printed: bindings (numbered in that order), workgroup variables, and
# functions and constants as WGSL. The functions of `transforms` take modules and return modules; inside statements they work on `tokens`.

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
    #: The expression of the workgroup's index in the dispatch, if the body begins by computing it from the grid (`portion`).
    group: str | None = None
    #: The statements before the one that computes this index (``let group = …``).
    prologue: str = ""
    #: The text of a module without statements, which nothing transforms: it is not WGSL, or it is from the disk and finished.
    final_text: str = ""

    @property
    def is_rewritable(self) -> bool:
        """Whether it is WGSL that transformations may rewrite."""
        return not self.final_text

    @cached_property
    def text(self) -> str:
        """The WGSL, or the text that was given."""
        if self.final_text:
            return self.final_text
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
        names: list[str] = []
        for declaration in self.declarations:
            names += declared_names(declaration) if isinstance(declaration, str) else [declaration.name]
        return tuple(names)

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


# Index arithmetic in shaders, as texts of type u32.
#
# It needs no function, so that it can be written wherever texts are.


class IndexText(IndexArithmetic[str]):
    """Index arithmetic printed as expressions."""

    def index(self, number: int) -> str:
        """Return a literal, modulo 2**32."""
        return f"{number % 2**32}u"

    def known(self, x: str) -> int | None:
        """Return 0 for its literal; all others are left to the compilers of shaders."""
        return 0 if x == "0u" else None

    def print_index(self, operator: str, x: str, y: str) -> str:
        """Return the expression of an operation."""
        return f"({x} {operator} {y})"

    def sum(self, terms: Iterable[str]) -> str:
        """Return the sum of all terms that are not 0."""
        nonzero = [x for x in terms if x != "0u"]
        return nonzero[0] if len(nonzero) == 1 else f"({' + '.join(nonzero)})" if nonzero else "0u"


#: Index arithmetic without a function.
TEXT = IndexText()
plus, times, quotient, remainder, dotted = TEXT.plus, TEXT.times, TEXT.quotient, TEXT.remainder, TEXT.dotted


# Write WGSL: modules of functions, whose statements are lines of text.


class Module:
    """Declarations and functions for a device, each added once."""

    def __init__(self, capabilities: TargetCapabilities) -> None:
        self.capabilities = capabilities
        self._declared: dict[str, str | WorkgroupVariable] = {}

    def declare(self, name: str, declaration: str | WorkgroupVariable) -> str:
        """Add a declaration or a function, unless the name is declared; return the name."""
        self._declared.setdefault(name, declaration)
        return name

    def define(self, name: str, write: Callable[[], str]) -> str:
        """Add the WGSL that `write` returns under a name, unless that is declared."""
        if name not in self._declared:
            self._declared[name] = ""  # functions may refer to each other
            self._declared[name] = write()
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._declared

    @property
    def declarations(self) -> list[str | WorkgroupVariable]:
        """All declarations in the order in which they were added, as printed."""
        return [d if isinstance(d, WorkgroupVariable) else f"{d}\n" for d in self._declared.values()]


class Function(IndexText):
    """The body of a function being written: statements, in nested blocks."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.statements: list[str] = []
        #: The terms of the values that are sums, and the factors of products, by name.
        self.terms: dict[str, frozenset[str]] = {}
        self.factors: dict[str, frozenset[str]] = {}
        self._depth = 1
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        if self._count in (16, 32, 64):
            self._count += 1  # i32 is a type
        return f"{prefix}{self._count}"

    def emit(self, text: str) -> None:
        """Add a statement (with its semicolon)."""
        self.statements.append("  " * self._depth + text)

    def let(self, type_: str, expression: str) -> str:
        """Name a value in the current block."""
        name = self.fresh("v")
        self.emit(f"let {name}: {type_} = {expression};")
        return name

    def named(self, type_: str, expression: str) -> str:
        """Name a value, unless it is a name or a literal."""
        return expression if expression.isalnum() else self.let(type_, expression)

    def named_index(self, x: str) -> str:
        """Return a name for an index; of a name or a literal, itself."""
        return self.named("u32", x)

    def digits(self, index: str, sizes: Sequence[int]) -> list[str]:
        """Split an index into its digits for an array of these sizes.

        The first digit is not reduced.
        """
        digits: list[str] = []
        for size in reversed(sizes[1:]):
            if index == "0u" or size == 1:
                digits.append("0u")
                continue
            quotient = self.let("u32", f"{index} / {size}u")
            digits.append(self.let("u32", f"{index} - {quotient} * {size}u"))
            index = quotient
        return [*([index] if sizes else []), *reversed(digits)]

    def var(self, type_: str, expression: str) -> str:
        """Declare a variable with its initial value in the current block."""
        name = self.fresh("x")
        self.emit(f"var {name}: {type_} = {expression};")
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Enclose the statements written within ``with`` in braces after `head`.

        `head` is ``if (…)``, ``else``, ``for (…; …; …)``, …
        """
        self.emit(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.emit("}")

    @contextmanager
    def loop(self, end: int | str, start: int | str = 0, step: int | str = 1) -> Iterator[str]:
        """Write a loop over u32: ``with f.loop(8) as i``.

        It counts from `start` to `end` (exclusive) by `step`.
        """
        index = self.fresh("i")
        start, end, step = [f"{n}u" if isinstance(n, int) else n for n in (start, end, step)]
        with self.block(f"for (var {index} = {start}; {index} < {end}; {index} += {step})"):
            yield index

    def function(self, name: str, types: Sequence[str], write: Callable[[Function], tuple[str, str]]) -> str:
        """Add a function of parameters a0, a1, … to the module, once.

        `write` writes its body and returns the result's type and text.
        """

        def define() -> str:
            inner = Function(self.module)
            type_, result = write(inner)
            parameters = ", ".join(f"a{k}: {t}" for k, t in enumerate(types))
            return "\n".join([f"fn {name}({parameters}) -> {type_} {{", *inner.statements, f"  return {result};", "}"])

        return self.module.define(name, define)

    def helper(self, name: str, text: str) -> str:
        """Add a function to the module, once, and return its name."""
        return self.module.declare(name, text)
