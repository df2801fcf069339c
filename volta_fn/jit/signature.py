"""The type of a jitted function, for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

if TYPE_CHECKING:
    from volta_fn.jit.function import CacheInfo
    from volta_fn.jit.lowered import Lowered

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R_co = TypeVar("R_co", covariant=True)


class Jitted(Protocol[P, R_co]):
    """A function with the parameters and the result of the one that was jitted."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the program for arguments of these types; compile it first if needed."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments like these (arrays or `ShapeDtypeStruct`)."""

    def cache_info(self) -> CacheInfo:
        """Return the number of programs and of traces."""

    def clear_cache(self) -> None:
        """Forget all programs."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self: Jitted[Concatenate[Any, Rest], R_co], instance: object, owner: type | None = None) -> Callable[Rest, R_co]: ...
