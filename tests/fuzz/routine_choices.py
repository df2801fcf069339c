"""All choices that the targets make about routines, to be forced.

A target chooses by functions (which algorithm, which schedule) and by constants (from which size on, in chunks of how many elements). A
*choice* replaces some of these while a routine is generated: a function by one that gives the k-th of its alternatives, a constant by
values on either side of what problems meet. So the compiler has nothing to do for it. `routines` gives all routines of a problem.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch


class Exhausted(Exception):
    """There are fewer alternatives than the number of the one that is asked for."""


class Choice(NamedTuple):
    """What is replaced, by the names "module:attribute"; a `Replacement` is made of the module."""

    label: str
    changes: dict[str, Any]

    @contextlib.contextmanager
    def applied(self, target: str) -> Iterator[None]:
        """Replace attributes of modules of a target."""
        with contextlib.ExitStack() as stack:
            for name, value in self.changes.items():
                module, attribute = name.split(":")
                owner = importlib.import_module(f"volta_fn.targets.{target}.{module}")
                stack.enter_context(patch.object(owner, attribute, value.build(owner) if isinstance(value, Replacement) else value))
            yield


class Replacement(NamedTuple):
    """A replacement that is made of the module."""

    build: Callable[[Any], Any]


class Counted(NamedTuple):
    """Choices whose number depends on the problem: the k-th raises `Exhausted` as it is used, if there are fewer."""

    choice: Callable[[int], Choice]


Choices = Sequence[Choice | Counted]

DEFAULT = Choice("as chosen", {})


def each(module: str, **constants: Sequence[Any]) -> list[Choice]:
    """Return the choices of each value of each constant of a module, the other constants being what they are."""
    short = module.rpartition(".")[2]
    return [Choice(f"{short}.{name}={value}", {f"{module}:{name}": value}) for name, some in constants.items() for value in some]


def together(label: str, *others: dict[str, Any], **modules: dict[str, Any]) -> Choice:
    """Return a choice of several constants, by module; underscores between words of a module's path are dots if they are double."""
    changes = {f"{module.replace('__', '.')}:{name}": value for module, some in modules.items() for name, value in some.items()}
    return Choice(label, {k: v for other in others for k, v in other.items()} | changes)


def nth(label: str, k: int, name: str, options: Callable[..., Sequence[Any]], others: dict[str, Any]) -> Choice:
    """Return the choice in which a function gives the k-th of some options, which are made of its arguments, and `others`."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        chosen.consulted = True  # type: ignore[attr-defined]
        some = options(*args, **kwargs)
        if k >= len(some):
            raise Exhausted
        return some[k]

    return Choice(f"{label} {k}", {**others, name: chosen})


def constant(value: Any) -> Callable[..., Any]:
    """Return a function that gives the same whatever its arguments are."""
    return lambda *args, **kwargs: value


def alternatives(choices: Choices, routines_for: Callable[[Choice], list[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Yield the routines that choices make, equal ones once; an exception in place of one that cannot be generated."""
    seen: set[Any] = set()
    for entry in [DEFAULT, *choices]:
        for choice in [entry] if isinstance(entry, Choice) else map(entry.choice, itertools.count()):
            try:
                routines = routines_for(choice)
            except Exhausted:
                break
            except Exception as error:  # whatever a generator raises is its fault
                yield choice.label, error
                break
            for label, routine in routines:
                if routine not in seen:
                    seen.add(routine)
                    yield label, routine
            if isinstance(entry, Counted) and not any(getattr(value, "consulted", False) for value in choice.changes.values()):
                break


def forced(families: dict[str, Choices]) -> set[str]:
    """Return the attributes that some choice replaces."""
    some = [c if isinstance(c, Choice) else c.choice(0) for choices in families.values() for c in choices]
    return {name for choice in some for name in choice.changes}


def constants(target: str, folders: Sequence[str]) -> set[str]:
    """Return the numbers that modules in some folders of a target name, as choices do."""
    root = Path(importlib.import_module(f"volta_fn.targets.{target}").__file__ or "").parent
    results = set()
    for path in sorted(path for folder in folders for path in [*root.glob(f"{folder}.py"), *(root / folder).rglob("*.py")]):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and _is_number(node.value):
                names = [name for target in node.targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
                results.update(f"{module}:{name.id}" for name in names if isinstance(name, ast.Name) and name.id.isupper())
    return results


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


#: The families of primitives.
FAMILY_OF = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), "cumulative"),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), "window"),
    **dict.fromkeys(("select_and_gather_add", "select_and_scatter_add"), "window"),
    **dict.fromkeys(("gather", "wrapped_gather"), "gather"),
    **dict.fromkeys(("scatter", "scatter_add", "wrapped_scatter_add", "scatter_mul", "scatter_min", "scatter_max"), "scatter"),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice"), "dynamic_slice"),
    **dict.fromkeys(("cholesky", "cholesky_panel", "triangular_solve", "lu", "qr", "eigh", "svd"), "linalg"),
    **dict.fromkeys(("attention_routine", "attention_gradient_routine"), "attention"),
    "sort": "sort",
    "top_k": "top_k",
    "dot_general": "product",
    "conv_general_dilated": "convolution",
    **dict.fromkeys(("eig", "hessenberg", "schur", "tridiagonal", "householder_product", "tridiagonal_solve"), "condensed"),
    "fft": "fourier",
    "pad": "pad",
    "quantized_dot": "quantized",
}
