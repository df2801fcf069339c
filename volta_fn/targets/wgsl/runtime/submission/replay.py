"""Write dispatches to the queue: from Python, or by machine code if packed.

From Python a dispatch takes three calls of C functions, some 2 to 3 µs; a compiled loop that makes the same calls takes a small some of
that. It needs llvmlite; without it, Python replays recordings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn.runtime.compiling import undisturbed
from volta_fn.runtime.llvm.host import may_compile
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.targets.wgsl.runtime.device.wgpu_ffi import native

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.submission.queue import Queue

#: The 64-bit words of a packed step: pipeline, bind group, the buffer with the grid or 0, and the grid or its offset.
WORDS = 6

#: Dispatches that are written between checks whether the batch is full.
AT_A_TIME = 256

#: A function ``(pass, first step, number of steps)``.
Replay = Callable[[Any, int, int], None]


class Step(NamedTuple):
    """A dispatch ready to be written.

    An indirect one reads its grid at an offset in the buffer `grids`.
    """

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
            run = queue.begin()
            for pipeline, group, (x, y, z), grids, offset in some:
                set_pipeline(run, pipeline)
                set_group(run, 0, group, 0, null)
                if grids is None:
                    dispatch(run, x, y, z)
                else:
                    indirect(run, grids, offset)
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
    """Return machine code that writes packed steps to a compute pass without the GIL.

    None without a compiler.
    """
    if not may_compile():
        return None
    ffi, lib = native().ffi, native().lib
    names = "SetPipeline", "SetBindGroup", "DispatchWorkgroups", "DispatchWorkgroupsIndirect"
    functions = [int(ffi.cast("uintptr_t", getattr(lib, f"wgpuComputePassEncoder{name}"))) for name in names]
    (address,) = undisturbed(lambda: load_object(compile_object(_text(*functions)), ["volta_fn_replay"]))
    call = ffi.cast("void (*)(WGPUComputePassEncoder, uintptr_t, size_t)", address)
    return lambda run, first, count: call(run, first, count)


#: The loop that writes steps to a pass. It skips setting the pipeline that is set.
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
