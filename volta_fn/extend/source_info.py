"""Lines of source and stacks of names, as `jax.extend.source_info_util` has them.

Equations of programs keep the user's line. A name stack is what blocks of `extend_name_stack` and `set_name_stack` make of it for the code
inside; it is not kept with equations, whose stack has the names of `named_scope`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from volta_fn.source import NameStack, SourceInfo, user_location

_NO_NAMES = NameStack()
_stack: ContextVar[NameStack] = ContextVar("name_stack", default=_NO_NAMES)


def current_name_stack() -> NameStack:
    """Return the names of the scopes around the caller.

    >>> with extend_name_stack("block"):
    ...     str(current_name_stack())
    'block'
    """
    return _stack.get()


def new_name_stack(name: str = "") -> NameStack:
    """Return a stack of one name, or of none."""
    return NameStack((name,) if name else ())


def current() -> SourceInfo:
    """Return the user's line that calls, and the scopes around it."""
    return SourceInfo(user_location(), current_name_stack())


def new_source_info() -> SourceInfo:
    """Return a place that is unknown."""
    return SourceInfo(None, NameStack())


def summarize(source_info: SourceInfo, num_frames: int = 1) -> str:
    """Return a place as text: the file, the line and the function."""
    return "unknown" if source_info.traceback is None else str(source_info.traceback)


@contextlib.contextmanager
def set_name_stack(name_stack: NameStack) -> Iterator[None]:
    """Make a stack the current one while a block runs."""
    token = _stack.set(name_stack)
    try:
        yield
    finally:
        _stack.reset(token)


def extend_name_stack(name: str) -> Any:
    """Add a scope to the current stack while a block runs."""
    return set_name_stack(current_name_stack().extend(name) if name else current_name_stack())


def transform_name_stack(name: str) -> Any:
    """Make the current stack that of a transform while a block runs."""
    return set_name_stack(current_name_stack().transform(name))


def reset_name_stack() -> Any:
    """Make the empty stack the current one while a block runs."""
    return set_name_stack(NameStack())


def user_context(traceback: Any, *, name_stack: NameStack | None = None) -> Any:
    """Run a block with a stack of names; errors show the lines that raise them."""
    return set_name_stack(current_name_stack() if name_stack is None else name_stack)
