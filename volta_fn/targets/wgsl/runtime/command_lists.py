"""Command lists, recorded and replayed, and copies on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.compiling import compile_exclusively
from volta_fn.runtime.llvm.host import may_compile
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.targets.wgsl.routine import grid
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Loop, Run, While, uninterrupted
from volta_fn.targets.wgsl.runtime.device.adapter import native
from volta_fn.targets.wgsl.runtime.queue import Queue
from volta_fn.targets.wgsl.shader import Binding, ShaderModule, hand_written

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.queue import Queue


# ------------------------------------------------------------------------------
# Write dispatches to the queue: from Python, or by machine code if packed.
#
# From Python a dispatch takes three calls of C functions, some 2 to 3 µs; a compiled loop of the same calls takes a fraction of that. It
# needs llvmlite; without it, Python replays recordings.
# ------------------------------------------------------------------------------

#: The 64-bit words of a packed step: pipeline, bind group, the buffer with the grid or 0, and the grid or its offset.
WORDS = 6

#: Dispatches that are written between checks whether the batch is full.
AT_A_TIME = 256

#: A function ``(pass, first step, number of steps)``.
Replay = Callable[[Any, int, int], None]


class Step(NamedTuple):
    """A dispatch to be written; an indirect one reads its grid in the buffer `grids`."""

    pipeline: Any
    group: Any
    groups: tuple[int, int, int]
    grids: Any = None
    offset: int = 0


def play(queue: Queue, steps: Sequence[Step]) -> None:
    """Write steps to the queue.

    Call it under the queue's lock, since bind groups may be released otherwise.
    """
    lib, null = queue.lib, queue.ffi.NULL
    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch, indirect = lib.wgpuComputePassEncoderDispatchWorkgroups, lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect
    for start in range(0, len(steps), AT_A_TIME):
        some = steps[start : start + AT_A_TIME]
        with queue.watched:
            compute_pass = queue.begin()
            for pipeline, group, (x, y, z), grids, offset in some:
                set_pipeline(compute_pass, pipeline)
                set_group(compute_pass, 0, group, 0, null)
                if grids is None:
                    dispatch(compute_pass, x, y, z)
                else:
                    indirect(compute_pass, grids, offset)
        queue.wrote(len(some))


def packed(steps: Sequence[Step]) -> np.ndarray:
    """Pack steps into a table of 64-bit words for `compiled`."""
    ffi = native().ffi
    table = np.empty((len(steps), WORDS), np.uint64)

    def address(handle: Any) -> int:
        return 0 if handle is None else int(ffi.cast("uintptr_t", handle))

    for row, (pipeline, group, groups, grids, offset) in zip(table, steps, strict=True):
        row[:] = address(pipeline), address(group), address(grids), *(groups if grids is None else (offset, 0, 0))
    return table


@functools.cache
def compiled() -> Replay | None:
    """Return code that writes packed steps without the GIL; None without a compiler."""
    if not may_compile():
        return None
    ffi, lib = native().ffi, native().lib
    names = "SetPipeline", "SetBindGroup", "DispatchWorkgroups", "DispatchWorkgroupsIndirect"
    functions = [int(ffi.cast("uintptr_t", getattr(lib, f"wgpuComputePassEncoder{name}"))) for name in names]
    (address,) = compile_exclusively(lambda: load_object(compile_object(_text(*functions)), ["volta_fn_replay"]))
    call = ffi.cast("void (*)(WGPUComputePassEncoder, uintptr_t, size_t)", address)
    return lambda compute_pass, first, count: call(compute_pass, first, count)


#: The loop that writes steps to a pass. It does not set a pipeline that is already set.
_LOOP = """
define void @volta_fn_replay(ptr %pass, ptr %first, i64 %count) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %end, label %begin
begin:
  %step = phi ptr [ %first, %entry ], [ %after, %next ]
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %known = phi i64 [ 0, %entry ], [ %w0, %next ]
LOADS
  %same = icmp eq i64 %w0, %known
  br i1 %same, label %bind, label %change
change:
  %pipeline = inttoptr i64 %w0 to ptr
  SET_PIPELINE(ptr %pass, ptr %pipeline)
  br label %bind
bind:
  %group = inttoptr i64 %w1 to ptr
  SET_GROUP(ptr %pass, i32 0, ptr %group, i64 0, ptr null)
  %direct = icmp eq i64 %w2, 0
  br i1 %direct, label %direct_grid, label %indirect_grid
direct_grid:
  DISPATCH(ptr %pass, i32 %n3, i32 %n4, i32 %n5)
  br label %next
indirect_grid:
  %grids = inttoptr i64 %w2 to ptr
  INDIRECT(ptr %pass, ptr %grids, i64 %w3)
  br label %next
next:
  %after = getelementptr i64, ptr %step, i64 WORDS
  %following = add i64 %number, 1
  %done = icmp eq i64 %following, %count
  br i1 %done, label %end, label %begin
end:
  ret void
}
"""

#: Loads a word of a step, and truncates it to 32 bits.
_LOAD = """\
  %p{i} = getelementptr i64, ptr %step, i64 {i}
  %w{i} = load i64, ptr %p{i}
  %n{i} = trunc i64 %w{i} to i32"""


def _text(set_pipeline: int, set_group: int, dispatch: int, indirect: int) -> str:
    """Return the LLVM IR of the loop, with the addresses of the functions it calls."""
    text = _LOOP.replace("LOADS", "\n".join([_LOAD.format(i=i) for i in range(WORDS)])).replace("WORDS", str(WORDS))
    for name, function in (("SET_PIPELINE", set_pipeline), ("SET_GROUP", set_group), ("DISPATCH", dispatch), ("INDIRECT", indirect)):
        text = text.replace(name, f"call void inttoptr (i64 {function} to ptr)")
    return text


# ------------------------------------------------------------------------------
# Copy bytes on the device: arrays, and rows at offsets that cannot be bound.
#
# A row's index is read from a word of the *index constants*, an array that holds 0, 1, 2, … at offsets that can be bound.
# ------------------------------------------------------------------------------

_THREADS = 64

_COPY = f"""\
  let i = id.x + id.y * groups.x * {_THREADS}u;
  if (i < arrayLength(&target_)) {{ target_[i] = source[i]; }}
"""

_BYTE = """\
fn byte(i: u32) -> u32 {
  return (ARRAY[i / 4u] >> (8u * (i % 4u))) & 255u;
}
"""

_TAKE = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i >= WORDSu) { return; }
  let first = index[0] * SIZEu + 4u * i;
  if (SIZEu % 4u == 0u) { row[i] = all[first / 4u]; return; }
  var word = 0u;
  for (var k = 0u; k < 4u; k++) {
    if (4u * i + k < SIZEu) { word |= byte(first + k) << (8u * k); }
  }
  row[i] = word;
"""

_PUT = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i > WORDSu) { return; }
  let first = index[0] * SIZEu;
  let word = first / 4u + i;
  if (SIZEu % 4u == 0u) {
    if (i < WORDSu) { all[word] = row[i]; }
    return;
  }
  if (4u * word >= first + SIZEu) { return; }
  var value = all[word];
  for (var k = 0u; k < 4u; k++) {
    let at = 4u * word + k;
    if (at >= first && at < first + SIZEu) {
      value = (value & ~(255u << (8u * k))) | (byte(at - first) << (8u * k));
    }
  }
  all[word] = value;
"""


def copy(to: BufferRange, source: BufferRange, capabilities: TargetCapabilities) -> Run:
    """Copy an array."""
    shader = _shader(("target_", "source"), _COPY)
    return Run(shader, frozenset([0]), (to, source), grid(-(-to.size // (4 * _THREADS)), capabilities.groups))


def take_row(row: BufferRange, all_: BufferRange, index: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes out of an array; `index` is the word with its number."""
    shader = _shader(("row", "all", "index"), _of_size(_TAKE, size), _BYTE.replace("ARRAY", "all"))
    return Run(shader, frozenset([0]), (row, all_, index), grid(-(-row.size // (4 * _THREADS)), capabilities.groups))


def put_row(all_: BufferRange, row: BufferRange, index: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes into an array; `index` is the word with its number."""
    shader = _shader(("all", "row", "index"), _of_size(_PUT, size), _BYTE.replace("ARRAY", "row"))
    return Run(shader, frozenset([0]), (all_, row, index), grid(row.size // (4 * _THREADS) + 1, capabilities.groups))


def _of_size(body: str, size: int) -> str:
    return body.replace("THREADS", str(_THREADS)).replace("WORDS", str(-(-size // 4))).replace("SIZE", str(size))


def _shader(names: tuple[str, ...], body: str, functions: str = "") -> ShaderModule:
    """Make a shader that writes the first of some arrays of words."""
    bindings = tuple([Binding(name, "u32", written=not number) for number, name in enumerate(names)])
    builtins = {"global_invocation_id": ("id", "vec3<u32>"), "num_workgroups": ("groups", "vec3<u32>")}
    return hand_written(bindings, body, builtins, _THREADS, functions)


# ------------------------------------------------------------------------------
# Record and replay command lists: the work of the GPU between steps of the host.
#
# The commands of a program between two steps that need the host are a *command list*. When it is first written to the queue, it is kept as
# a *recording*: pipelines, bind groups and grids, which can be written again as long as the blocks of memory are the same. They often are,
# since blocks are leased in a fixed order.
# ------------------------------------------------------------------------------

#: The most recordings of a command list.
_RECORDINGS = 8

#: Bytes of a step in a packed recording.
_STEP = 8 * WORDS


class Recording:
    """The dispatches that a command list wrote to the queue."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        #: The packed steps, made when it is first replayed, and their address.
        self.table: np.ndarray | None = None
        self.first = 0

    def replay(self, queue: Queue) -> bool:
        """Write the recording to the queue by machine code.

        Returns False without a compiler. Errors are reported when the pass is finished.
        """
        write = compiled()
        if write is None:
            return False
        if self.table is None:
            self.table = packed(self.steps)
            self.first = self.table.ctypes.data
        for start in range(0, len(self.steps), AT_A_TIME):
            count = min(AT_A_TIME, len(self.steps) - start)
            write(queue.begin(), self.first + start * _STEP, count)
            queue.wrote(count)
        return True


class CommandList:
    """Commands that run without the host."""

    def __init__(self, commands: list[Command]) -> None:
        self.commands = commands
        #: By the blocks of a call and the iterations of the loops around the list.
        self.recordings: dict[Any, Recording] = {}
        self.trims = -1

    def recording(self, key: tuple[Any, ...], trims: int) -> Recording | None:
        """Return the recording for some blocks and iterations.

        None if there is none, or if blocks were released since.
        """
        if self.trims != trims:
            self.recordings.clear()
            self.trims = trims
        return self.recordings.get(key)

    def keep(self, key: tuple[Any, ...], steps: list[Step]) -> None:
        """Store the steps that were written for some blocks and iterations as a recording."""
        if len(self.recordings) >= _RECORDINGS:
            self.recordings.clear()
        self.recordings[key] = Recording(steps)


def command_lists(commands: Sequence[Command]) -> list[Any]:
    """Group consecutive commands that need no host into command lists."""
    groups: list[Any] = []
    pending: list[Command] = []
    for command in [*commands, None]:
        if command is not None and uninterrupted(command):
            pending.append(command)
            continue
        if pending:
            groups.append(CommandList(pending))
            pending = []
        if isinstance(command, Loop):
            groups.append(Loop(command.number, command.iterations, command_lists(command.body)))
        elif isinstance(command, While):
            groups.append(While(command.flag, command_lists(command.body)))
        elif command is not None:
            groups.append(command)
    return groups
