"""Values of traced programs: `debug.print`, `debug.callback`, `debug.breakpoint`."""

from __future__ import annotations

import builtins
import cmd
import linecache
import logging
import string
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

from volta_fn.core.refs import Ref
from volta_fn.errors import ArgumentError, ArgumentTypeError, CallbackError
from volta_fn.primitives.array_operations.ref_views import RefView
from volta_fn.primitives.callbacks import debug_callback
from volta_fn.source import is_internal

# `debug.print` and `debug.callback`: values of a traced program, when it runs.


def callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call ``callback(*args, **kwargs)`` with the arrays' values at run time.

    See `volta_fn.primitives.callbacks.debug_callback`.

    >>> import volta_fn as vf
    >>> seen = []
    >>> _ = vf.jit(lambda x: vf.debug.callback(seen.append, x) or x * 2)(1.0)
    >>> seen
    [Array(1., dtype=float32)]
    """
    debug_callback(callback, *args, ordered=ordered, **kwargs)


def print(fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any) -> None:
    """Print ``fmt.format(*args, **kwargs)`` with the arrays' values at run time.

    Of a reference its value is printed. `partitioned` is accepted: an array is printed whole, wherever its parts lie. Raises
    `ArgumentError` if `fmt` names missing arguments, or does not use all arguments, `ArgumentTypeError` if it is not a string.

    >>> import volta_fn as vf
    >>> _ = vf.jit(lambda x: vf.debug.print("x = {}", x) or x)(1.5)
    x = 1.5
    """
    _check_format(fmt, args, kwargs)
    arguments = [x[...] if isinstance(x, (Ref, RefView)) else x for x in args]
    named = {name: x[...] if isinstance(x, (Ref, RefView)) else x for name, x in kwargs.items()}
    debug_callback(lambda *values, **named: builtins.print(fmt.format(*values, **named)), *arguments, ordered=ordered, **named)


def _check_format(fmt: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `ArgumentError` unless a format uses all arguments, and names no others."""
    if not isinstance(fmt, str):
        raise ArgumentTypeError(f"debug.print: the first argument is a format, as in debug.print('x = {{}}', x), got {type(fmt).__name__}")
    checker = _Checker()
    try:
        checker.format(fmt, *args, **kwargs)
    except IndexError:
        raise ArgumentError(f"debug.print: the format {fmt!r} names more values than the {len(args)} that follow it") from None
    except (KeyError, AttributeError) as error:
        raise ArgumentError(f"debug.print: the format {fmt!r} names an argument that is not given: {error}") from None
    if checker.unused:
        raise ArgumentError(
            f"debug.print: the format {fmt!r} does not use the arguments {checker.unused}. Name each of them in braces; "
            "an f-string would format them before they have values."
        )


class DebugEffect:
    """The kind of the effects that printing has, by JAX's name."""

    def __str__(self) -> str:
        return "Debug"


class OrderedDebugEffect(DebugEffect):
    """The kind of the effects of ordered printing."""

    def __str__(self) -> str:
        return "OrderedDebug"


_logger = logging.getLogger("volta_fn.debug")


def log(fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any) -> None:
    """Log a message of arrays' values at run time, as `print` prints one.

    The logger is "volta_fn.debug", the level INFO.
    """
    _check_format(fmt, args, kwargs)
    debug_callback(lambda *values, **named: _logger.info(fmt.format(*values, **named)), *args, ordered=ordered, **kwargs)


class _Checker(string.Formatter):
    """Looks up the arguments that a format names; their values may be unknown yet."""

    def __init__(self) -> None:
        self.unused: list[Any] = []

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value

    def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
        self.unused = [name for name in (*range(len(args)), *kwargs) if name not in used_args]


# `debug.breakpoint`: look at a traced function's values while its program runs.


def breakpoint(*, stdin: TextIO | None = None, stdout: TextIO | None = None, **values: Any) -> None:
    """Stop a program here when it runs, and prompt for commands.

    The variables of the calling function and the keyword arguments are available with their values at run time. The commands are ``p``
    (an expression), ``a`` (all variables), ``l`` (the source), ``c`` (go on) and ``q`` (end the program with `CallbackError`).

    Args:
        stdin, stdout: where commands come from and answers go; by default the terminal.

    >>> import io, volta_fn as vf
    >>> answers = io.StringIO()
    >>> def f(x):
    ...     vf.debug.breakpoint(stdin=io.StringIO("p x + 1"), stdout=answers, x=x)
    ...     return x
    >>> _ = vf.jit(f)(3.0)
    >>> "4.0" in answers.getvalue()
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    variables = {} if frame is None else {**frame.f_locals}
    variables.update(values)
    where = ("", 0, "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
    seen = {} if frame is None else {**frame.f_globals}

    def stop(**now: Any) -> None:
        console = _Console(now, seen, where, stdin, stdout or sys.stdout)
        console.cmdloop(f"stopped at {where[0]}:{where[1]} in {where[2]}")
        if console.ended:
            raise CallbackError("debug.breakpoint: the program was ended by the command q")

    debug_callback(stop, **variables)


class _Console(cmd.Cmd):
    """The commands of a breakpoint."""

    prompt = "(volta_fn) "

    def __init__(
        self, variables: dict[str, Any], seen: dict[str, Any], where: tuple[str, int, str], stdin: TextIO | None, stdout: TextIO
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.variables, self.seen, self.where = variables, seen, where
        self.ended = False

    def do_p(self, text: str) -> None:
        """Print an expression of the variables."""
        try:
            shown = str(eval(text, self.seen, self.variables)) if text else ""
        except Exception as error:
            shown = f"{type(error).__name__}: {error}"
        self._write(shown)

    def do_a(self, text: str) -> None:
        """Print all variables."""
        for name, value in self.variables.items():
            self._write(f"{name} = {value!r:.400}")

    def do_l(self, text: str) -> None:
        """Print the lines around the breakpoint."""
        file, lineno, _ = self.where
        for number in range(lineno - 4, lineno + 5):
            if source := linecache.getline(file, number):
                self._write(f"{'->' if number == lineno else '  '} {number:5d} {source.rstrip()}")

    def do_c(self, text: str) -> bool:
        """Go on."""
        return True

    def do_q(self, text: str) -> bool:
        """End the program."""
        self.ended = True
        return True

    def do_EOF(self, text: str) -> bool:
        """Go on, as there are no more commands."""
        return True

    def default(self, text: str) -> None:
        """Print an expression, as `p` does."""
        self.do_p(text)

    def _write(self, text: str) -> None:
        self.stdout.write(f"{text}\n")
