"""The user's code: lines of equations and errors, signatures of functions.

A *user frame* is the innermost Python frame that belongs neither to this package nor to the machinery between it and the
user (optree, functools, contextlib, the start of a thread). Every traced equation and every error records one, so finding it must
cost about a microsecond: `user_code_position` returns the raw code object and line, from which a `SourceLocation` is built when asked
for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

_INTERNAL = frozenset({"volta_fn", "optree", "functools", "contextlib", "threading", "concurrent"})
#: Whether a module belongs to one of these, memoised: tracing asks ten times for each equation.
_is_internal: dict[str, bool] = {}


#: A raw position: the code object, the line, and in blocks (`named_scope`) their names, joined by slashes.
Position: TypeAlias = tuple[CodeType, int] | tuple[CodeType, int, str]


class SourceLocation(NamedTuple):
    """A line of the user's program: file, line number, qualified function name.

    >>> str(SourceLocation("train.py", 12, "loss"))
    'train.py:12 (loss)'
    """

    file: str
    lineno: int
    function: str
    #: The names of the blocks (`named_scope`) that it ran in, joined by slashes.
    scope: str = ""

    def __str__(self) -> str:
        scope = f" in {self.scope}" if self.scope else ""
        return f"{self.place} ({self.function}){scope}"

    @property
    def place(self) -> str:
        """File and line, ``train.py:12``, or those of a notebook, ``cell 8, line 1``.

        >>> SourceLocation("train.py", 12, "loss").place
        'train.py:12'
        """
        cell = _cell_number(self.file)
        return f"{self.file}:{self.lineno}" if cell is None else f"cell {cell}, line {self.lineno}"

    @classmethod
    def of(cls, position: Position) -> SourceLocation:
        """Return the location of a raw position from `user_code_position`."""
        code, lineno, *scope = position
        return cls(code.co_filename, lineno, code.co_qualname, *scope)


class NameStack(NamedTuple):
    """The names of enclosing scopes, the outermost first.

    >>> str(NameStack().extend("layer").transform("jvp"))
    'jvp(layer)'
    """

    stack: tuple[str, ...] = ()

    def extend(self, name: str) -> NameStack:
        """Return the stack with a scope more."""
        return NameStack((*self.stack, name))

    def transform(self, transform_name: str) -> NameStack:
        """Return the stack of a transform of what the scopes hold."""
        return NameStack((f"{transform_name}({self})",))

    def __add__(self, other: NameStack) -> NameStack:  # type: ignore[override]  # of names, as JAX's
        return NameStack(self.stack + other.stack)

    def __str__(self) -> str:
        return "/".join(self.stack)


class SourceInfo(NamedTuple):
    """A place in the user's source, and the scopes around it."""

    traceback: Any
    name_stack: NameStack

    def replace(self, **changes: Any) -> SourceInfo:
        """Return another `traceback` or `name_stack` with the rest."""
        return self._replace(**changes)


def ipython() -> Any:
    """Return the shell of IPython that this process runs in, or None."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def in_notebook() -> bool:
    """Return True in a notebook, whose cells show HTML."""
    return getattr(ipython(), "kernel", None) is not None


def _cell_number(file: str) -> str | None:
    """Return the number of the notebook's cell that has this name of a file."""
    name_of_code = getattr(getattr(ipython(), "compile", None), "format_code_name", lambda name: None)
    kind, label = name_of_code(file) or ("", "")
    return label.removeprefix("In[").removesuffix("]") if kind == "Cell" else None


class CodeName(NamedTuple):
    """The names of a code object, which stand for it in pickled positions."""

    co_filename: str
    co_qualname: str


def portable(position: Position | None) -> Any:
    """Return a raw position without its code object."""
    if position is None:
        return None
    code, lineno, *scope = position
    return CodeName(code.co_filename, code.co_qualname), lineno, *scope


#: The names of the blocks that run, joined by slashes.
current_scope: ContextVar[str] = ContextVar("current_scope", default="")


def in_scope(position: Position, scope: str) -> Position:
    """Return a raw position in some blocks; it stays in those that it is in."""
    return position if len(position) > _UNSCOPED else (position[0], position[1], scope)


#: The number of entries of a position outside of blocks.
_UNSCOPED = 2


def is_internal(module: str) -> bool:
    """Return True for a module between the user and the code that an error is in."""
    internal = _is_internal.get(module)
    if internal is None:
        internal = _is_internal[module] = module.partition(".")[0] in _INTERNAL
    return internal


def user_code_position() -> tuple[CodeType, int] | None:
    """Return the innermost user frame's code and line number, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        internal = _is_internal.get(module)
        if internal is None:
            internal = is_internal(module)
        if not internal:
            observer = frame_observer.get()
            if observer is not None:
                observer(frame)
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


#: Called with each user frame whose position is asked for, such as by `lint`.
frame_observer: ContextVar[Callable[[FrameType], None] | None] = ContextVar("frame_observer", default=None)


def is_called_by_user(through: Container[str]) -> bool:
    """Return True if user code calls, directly or through these packages of volta_fn."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if package != "volta_fn":
            return True
        if rest.partition(".")[0] not in through:
            return False
        frame = frame.f_back
    return False


def user_location() -> SourceLocation | None:
    """Return the line of the user's program that runs now, or None."""
    position = user_code_position()
    return None if position is None else SourceLocation.of(position)


# Signatures of functions whose annotations may name what is not defined yet.
#
# From Python 3.14 on, annotations are evaluated when they are read (PEP 649). They may then name a class that is defined later, or that is
# imported for type checkers alone, and reading them as `inspect` does by default raises `NameError`. A name that is not defined stays a
# `ForwardRef` here: the package reads the names and kinds of parameters, hardly their types.

if sys.version_info >= (3, 14):
    import annotationlib

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function.

        Raises `TypeError` or `ValueError` for a function without one.
        """
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

    def has_annotations(cls: type) -> bool:
        """Return True if a class, its bases aside, has annotations."""
        return bool(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))

else:

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function.

        Raises `TypeError` or `ValueError` for a function without one.
        """
        return inspect.signature(function)

    def has_annotations(cls: type) -> bool:
        """Return True if a class, its bases aside, has annotations."""
        return bool(inspect.get_annotations(cls))


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None if it has none.

    >>> print(signature_of(lambda x, *, axis=0: x))
    (x, *, axis=0)
    """
    try:
        return signature(function)
    except (TypeError, ValueError):
        return None


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters; none if it has no signature.

    >>> parameter_names(lambda x, *, axis=0: x)
    ['x', 'axis']
    """
    declared = signature_of(function)
    return [] if declared is None else list(declared.parameters)
