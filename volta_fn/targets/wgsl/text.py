"""Write WGSL: modules of functions, whose statements are lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.index_arith import IndexText
from volta_fn.targets.wgsl.shader_module import WorkgroupVariable


class Module:
    """Declarations and functions for a device, each added once."""

    def __init__(self, device: TargetCapabilities) -> None:
        self.device = device
        self._declared: dict[str, str | WorkgroupVariable] = {}

    def declare(self, name: str, declaration: str | WorkgroupVariable) -> str:
        """Add a declaration or a function by name, unless it is there; return the name."""
        self._declared.setdefault(name, declaration)
        return name

    def define(self, name: str, write: Callable[[], str]) -> str:
        """Add the WGSL that `write` returns under a name, unless it is there."""
        if name not in self._declared:
            self._declared[name] = ""  # so that functions may refer to each other
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

    def var(self, type_: str, expression: str) -> str:
        """Declare a variable with its initial value in the current block."""
        name = self.fresh("x")
        self.emit(f"var {name}: {type_} = {expression};")
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Enclose what is written within ``with`` in braces after `head`.

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
