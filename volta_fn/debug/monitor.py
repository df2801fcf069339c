"""Watch a device and look at arrays: state, work, NaN and infinities, placement."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

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
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ShapeError
from volta_fn.jit.cache import clear_caches
from volta_fn.nn.module import unfolding
from volta_fn.settings import current

# Blocks in which NaN, infinities and indices out of range raise where they arise.


@contextmanager
def nans(*, infs: bool = False) -> Iterator[None]:
    """Raise `NonFiniteError` for the first NaN in a block, and with `infs` infinity.

    The message has the primitive, the line of the forward computation, the operands' ranges, the iterations of loops, the example that
    `vmap` maps, and what to do. Programs run one equation at a time meanwhile, on their device; other threads' as well.

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
    >>> visualize_array_sharding(vf.numpy.ones(3))
    +-------+
    | CPU 0 |
    +-------+
    """
    visualize_sharding(np.shape(arr), _sharding(arr), **options)


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call a function with an array's sharding: at once, also while tracing.

    >>> import volta_fn as vf
    >>> inspect_array_sharding(vf.numpy.ones(3), callback=print)
    SingleDeviceSharding(device=CpuDevice(id=0))
    """
    callback(_sharding(value))


def _sharding(value: Any) -> Sharding:
    array = as_value(value)
    return known_sharding(array) or SingleDeviceSharding(array.device if isinstance(array, ConcreteArray) else "cpu")
