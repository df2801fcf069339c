"""Types and functions of JAX that raise an error or change nothing here.

These are the types of hijax, memory layouts, and the filter of tracebacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from volta_fn.compat.extend.interpreters import instantiate_zeros, is_undefined_primal
from volta_fn.core.aval import ShapedArray as AbstractValue
from volta_fn.core.primitive import Zero
from volta_fn.errors import UnsupportedError

__all__ = [
    "AbstractValue",
    "AvalMutableQDD",
    "AvalQDD",
    "HiPrimitive",
    "HiType",
    "MutableHiType",
    "Zero",
    "aval_method",
    "aval_property",
    "control_flow_allowed_effects",
    "instantiate_zeros",
    "is_undefined_primal",
    "register_hitype",
]


# ------------------------------------------------------------------------------
# Types and primitives by the names of `jax.experimental.hijax`.
#
# Libraries may define some; to use them raises `UnsupportedError`, as programs hold arrays alone.
# ------------------------------------------------------------------------------

_ADVICE = "high-level types are not supported: make the class a pytree instead (volta_fn.tree.register_pytree_node)"


class HiType:
    """The base of types that are not arrays."""


class MutableHiType(HiType):
    """The base of types whose values change."""


class AvalQDD:
    """A type with a state; there are none here."""

    def __init__(self, *args: Any) -> None:
        raise UnsupportedError(_ADVICE)


class AvalMutableQDD(AvalQDD):
    """A type with a changing state; there are none here."""


class HiPrimitive:
    """A primitive of high-level values."""

    multiple_results: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(f"{self.name}: {_ADVICE}")


class aval_property(property):  # JAX's name
    """A property that values have through their type."""


class aval_method:
    """A method that values have through their type."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun


class _Effects:
    """The effects that loops may have."""

    def __init__(self) -> None:
        self.types: set[type] = set()

    def add_type(self, effect: type) -> None:
        """Add a type of effects."""
        self.types.add(effect)


control_flow_allowed_effects = _Effects()


def register_hitype(value_type: type, typeof: Any) -> None:
    """Accept a type, whose values no function here takes."""


# ------------------------------------------------------------------------------
# Memory layouts, as in `jax.experimental.layout`, which targets alone choose.
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The order of an array's dimensions in memory."""

    major_to_minor: tuple[int, ...]
    tiling: Any = None
    #: Lets the target choose, as it does anyway.
    AUTO: ClassVar[Any] = None


@dataclass(frozen=True)
class Format:
    """A layout and a sharding of an array."""

    layout: Layout | None = None
    sharding: Any = None


def with_layout_constraint(x: Any, layout: Layout) -> Any:
    """Return `x`: targets choose layouts, and no value depends on them.

    >>> import volta_fn as vf
    >>> with_layout_constraint(vf.numpy.ones(2), Layout((0,)))
    Array([1., 1.], dtype=float32)
    """
    return x


# ------------------------------------------------------------------------------
# Which frames tracebacks show: all, so that these functions change nothing.
# ------------------------------------------------------------------------------


def register_exclusion(path: str) -> None:
    """Accept a file whose frames JAX leaves out of tracebacks."""


def include_frame(frame: Any) -> bool:
    """Return True: every frame is shown."""
    return True


def api_boundary(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Mark a function as one of a library's interface; it is returned as it is."""
    return fun
