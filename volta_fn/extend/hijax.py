"""Types and primitives by the names of `jax.experimental.hijax`.

Libraries may define some; to use them raises `UnsupportedError`, as programs hold arrays alone.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from volta_fn.core.aval import ShapedArray as AbstractValue
from volta_fn.core.primitive import Zero
from volta_fn.errors import UnsupportedError
from volta_fn.extend.ad import instantiate_zeros, is_undefined_primal

__all__ = [
    "AbstractValue", "AvalMutableQDD", "AvalQDD", "HiPrimitive", "HiType", "MutableHiType", "Zero", "aval_method", "aval_property",
    "control_flow_allowed_effects", "instantiate_zeros", "is_undefined_primal", "register_hitype",
]  # fmt: skip

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
