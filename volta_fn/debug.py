"""Inspect running programs, pytrees and the state of devices."""

from __future__ import annotations

import builtins
import cmd
import linecache
import logging
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple, TextIO

import numpy as np

from volta_fn import tree
from volta_fn.compat import config
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, aval_of
from volta_fn.core.arrays.html import statistics
from volta_fn.core.devices.device import (
    Device,
    MemoryStats,
    WorkStats,
    current_default_device,
    device_memory_stats,
    device_work_stats,
    find_device,
)
from volta_fn.core.devices.placement import group_of, indices_of, known_sharding
from volta_fn.core.devices.sharding import Sharding, SingleDeviceSharding
from volta_fn.core.refs import Ref
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, CallbackError, ShapeError
from volta_fn.jit.cache import clear_caches
from volta_fn.nn.module import unfolding
from volta_fn.primitives.array_operations.ref_views import RefView
from volta_fn.primitives.call import debug_callback
from volta_fn.settings import current
from volta_fn.source import is_internal

# `debug.print` and `debug.callback`: values of a traced program, when it runs.


def callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call ``callback(*args, **kwargs)`` with the arrays' values at run time.

    See `volta_fn.primitives.call.debug_callback`.

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

    >>> import io
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


# Blocks in which NaN, infinities and indices out of range raise where they arise.


@contextmanager
def nans(*, infs: bool = False) -> Iterator[None]:
    """Raise `NonFiniteError` for the first NaN in a block, and with `infs` infinity.

    The message has the primitive, the line of the forward computation, the operands' ranges, the iterations of loops, the example that
    `vmap` maps, and what to do. Programs run one equation at a time meanwhile, on their device; other threads' as well.

    >>> with vf.debug.nans():
    ...     vf.jit(lambda x: vf.numpy.log(x - 1))(0.5)
    Traceback (most recent call last):
    volta_fn.errors.NonFiniteError: invalid value (nan) encountered in log...
    """
    with ExitStack() as stack:
        stack.enter_context(config.debug_nans(True))
        if infs:
            stack.enter_context(config.debug_infs(True))
        yield


@contextmanager
def indices() -> Iterator[None]:
    """Raise `OutOfBoundsError` for an index out of range in a block, in programs too.

    Programs are traced again in the block, and call back to Python with each index.

    >>> with vf.debug.indices():
    ...     vf.jit(lambda x, i: vf.numpy.take(x, i))(vf.numpy.arange(3.0), 5)
    Traceback (most recent call last):
    volta_fn.errors.OutOfBoundsError: ...
    """
    before = current.check_indices
    try:
        current.check_indices = True
        clear_caches()
        yield
    finally:
        current.check_indices = before
        clear_caches()


# Watch a device: its state now (`debug.health`), and its work (`debug.Monitor`).

#: Fractions of the memory limit from which on the status is "warning" and "critical".
_WARNING, _CRITICAL = 0.7, 0.9


class Health(NamedTuple):
    """The state of a device.

    `status` is "healthy", "warning", "critical", or "unknown" if its memory has no known limit; `reasons` say why.
    """

    status: str
    reasons: tuple[str, ...]
    memory: MemoryStats
    work: WorkStats


def health(device: str | Device | None = None) -> Health:
    """Return the state of a device: its memory, its limit, and time-outs.

    Not every system tells how much memory a GPU has; `volta_fn.set_memory_limit` sets a limit. See also
    `volta_fn.errors.MemoryGrowthWarning`, which is issued when memory grows from step to step.

    >>> vf.debug.health("cpu").status
    'unknown'
    """
    memory, work = device_memory_stats(device), device_work_stats(device)
    if memory.limit is None:
        status, reasons = "unknown", ["no limit of memory is known; volta_fn.set_memory_limit sets one"]
    else:
        used = memory.in_use / max(memory.limit, 1)
        status = "critical" if used >= _CRITICAL else "warning" if used >= _WARNING else "healthy"
        reasons = [] if status == "healthy" else [f"{used:.0%} of the memory's limit is in use"]
    if work.timeouts:
        status = "critical" if status == "critical" else "warning"
        reasons.append(f"{work.timeouts} of {work.waits} waits ended with a time-out")
    return Health(status, tuple(reasons), memory, work)


class Checkpoint(NamedTuple):
    """A moment: a label, seconds since the start, and the device's memory and work."""

    label: str
    seconds: float
    memory: MemoryStats
    work: WorkStats


class MonitorStats(NamedTuple):
    """Seconds, peak memory at checkpoints, and differences of `WorkStats`."""

    seconds: float
    peak: int
    dispatches: int
    batches: int
    reads: int
    waits: int
    waited: float
    timeouts: int

    @property
    def dispatches_per_second(self) -> float:
        """Kernels dispatched per second."""
        return self.dispatches / self.seconds if self.seconds else 0.0


class Monitor:
    """Records a device's work; a ``with`` block starts and ends with a checkpoint.

    >>> with vf.debug.Monitor("cpu") as monitor:
    ...     x = vf.numpy.arange(3.0).sum()
    ...     _ = monitor.checkpoint("summed")
    >>> [c.label for c in monitor.checkpoints], monitor.stats().dispatches
    (['begin', 'summed', 'end'], 0)
    """

    def __init__(self, device: str | Device | None = None) -> None:
        self.device = current_default_device() if device is None else find_device(device)
        self.checkpoints: list[Checkpoint] = []
        self.reset()

    def reset(self) -> None:
        """Drop all checkpoints and start again."""
        self._start = time.perf_counter()
        self.checkpoints.clear()
        self.checkpoint("begin")

    def checkpoint(self, label: str) -> Checkpoint:
        """Record the device's state, without waiting for it."""
        seconds = time.perf_counter() - self._start
        checkpoint = Checkpoint(label, seconds, device_memory_stats(self.device), device_work_stats(self.device))
        self.checkpoints.append(checkpoint)
        return checkpoint

    def stats(self) -> MonitorStats:
        """Return the differences between the first checkpoint and the last."""
        first, last = self.checkpoints[0], self.checkpoints[-1]
        done = {name: getattr(last.work, name) - getattr(first.work, name) for name in MonitorStats._fields[2:]}
        return MonitorStats(last.seconds, max(c.memory.in_use for c in self.checkpoints), **done)

    def __enter__(self) -> Monitor:
        self.reset()
        return self

    def __exit__(self, *error: Any) -> None:
        self.checkpoint("end")


# Trees of arrays as text, and in notebooks as HTML that unfolds.


class View:
    """The result of `view`: a tree that is shown leaf by leaf."""

    __slots__ = ("tree",)

    def __init__(self, shown: Any) -> None:
        self.tree = shown

    def __repr__(self) -> str:
        leaves = tree.leaves_with_path(self.tree)
        names = [tree.keystr(path) or "the tree" for path, _ in leaves]
        width = max(map(len, names), default=0)
        return "\n".join(f"{name:{width}}  {_describe_leaf(leaf)}".rstrip() for name, (_, leaf) in zip(names, leaves, strict=True))

    def _repr_html_(self) -> str:
        return unfolding(self.tree, type(self.tree).__name__)


def view(shown: Any) -> View:
    """Return a view of a pytree that prints type, range, mean and NaN of each array.

    Notebooks show a tree that unfolds, down to the elements; elsewhere there is a line for each leaf.

    >>> params = {"w": vf.numpy.arange(4.0), "layers": [vf.numpy.ones((2, 3))], "name": "net"}
    >>> vf.debug.view(params)
    ['layers'][0]  f32[2,3]  all 1
    ['name']       'net'
    ['w']          f32[4]  0 … 3, mean 1.5 █▁▁▁▁█▁▁▁▁█▁▁▁▁█
    """
    return View(shown)


def _describe_leaf(leaf: Any) -> str:
    if not isinstance(leaf, Array):
        return repr(leaf) if getattr(leaf, "dtype", None) is None else repr(aval_of(leaf))
    if not is_concrete(leaf) or leaf.is_deleted():
        return repr(leaf.aval)
    return f"{leaf.aval!r}  {statistics(leaf.host())}".rstrip()


# The shardings of arrays as text.


def visualize_sharding(shape: Sequence[int], sharding: Sharding, **options: Any) -> None:
    """Print which devices hold which part of an array of this shape.

    Options, of colours and widths, are accepted for compatibility. Raises `ShapeError` for other than one or two dimensions.

    >>> visualize_sharding((4, 2), vf.sharding.SingleDeviceSharding("cpu"))
    +-------+
    | CPU 0 |
    +-------+
    """
    if len(shape) not in (1, 2):
        raise ShapeError(f"visualize_sharding: an array of one or two dimensions can be shown, not one of shape {tuple(shape)}")
    cells: dict[tuple[int, ...], list[int]] = {}
    for device, index in indices_of(sharding, shape).items():
        cells.setdefault(tuple([s.start or 0 for s in index]), []).append(device.id)
    rows = sorted({at[0] if len(shape) == 2 else 0 for at in cells})
    columns = sorted({at[-1] for at in cells})
    platform = group_of(sharding).platform.upper()
    table = [[cells[(r, c) if len(shape) == 2 else (c,)] for c in columns] for r in rows]
    texts = [[f"{platform} {','.join(map(str, sorted(ids)))}" for ids in row] for row in table]
    width = max(len(text) for row in texts for text in row)
    border = "+" + "+".join(["-" * (width + 2)] * len(columns)) + "+"
    shown = [border]
    for row in texts:
        shown += ["|" + "|".join(f" {text:^{width}} " for text in row) + "|", border]
    builtins.print("\n".join(shown))


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """Print which devices hold which part of an array.

    In a function that is being traced, as far as it is known. Raises `ShapeError` for other than one or two dimensions.

    >>> visualize_array_sharding(vf.numpy.ones(3))
    +-------+
    | CPU 0 |
    +-------+
    """
    visualize_sharding(np.shape(arr), _sharding(arr), **options)


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call a function with an array's sharding: at once, also while tracing.

    >>> shardings = []
    >>> inspect_array_sharding(vf.numpy.ones(3), callback=shardings.append)
    >>> shardings
    [SingleDeviceSharding(device=CpuDevice(id=0))]
    """
    callback(_sharding(value))


def _sharding(value: Any) -> Sharding:
    array = as_value(value)
    return known_sharding(array) or SingleDeviceSharding(array.device if isinstance(array, ConcreteArray) else "cpu")
