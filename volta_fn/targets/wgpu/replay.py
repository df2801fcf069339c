"""Machine code that writes recorded dispatches to a compute pass.

A compiled loop of the calls that `WgpuDriver.play` makes takes a fraction of its time. It needs llvmlite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.runtime.compiling import compile_uninterrupted, may_compile
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.targets.gpu.device.driver import Step
from volta_fn.targets.wgpu.library import native

#: The 64-bit words of a packed step: pipeline, bind group, the buffer with the grid or 0, and the grid or its offset.
WORDS = 6

#: A function ``(pass, first step, number of steps)``.
Replay = Callable[[Any, int, int], None]


def packed(steps: Sequence[Step]) -> np.ndarray:
    """Pack steps into a table of 64-bit words for `compiled_replay`."""
    ffi = native().ffi
    table = np.empty((len(steps), WORDS), np.uint64)

    def address(handle: Any) -> int:
        return 0 if handle is None else int(ffi.cast("uintptr_t", handle))

    for row, (pipeline, bind_group, workgroups, grid_buffer, grid_offset) in zip(table, steps, strict=True):
        grid = workgroups if grid_buffer is None else (grid_offset, 0, 0)
        row[:] = address(pipeline), address(bind_group), address(grid_buffer), *grid
    return table


@functools.cache
def compiled_replay() -> Replay | None:
    """Return machine code that writes packed steps to a compute pass without the GIL.

    None without a compiler.
    """
    if not may_compile():
        return None
    ffi, lib = native().ffi, native().lib
    names = "SetPipeline", "SetBindGroup", "DispatchWorkgroups", "DispatchWorkgroupsIndirect"
    functions = [int(ffi.cast("uintptr_t", getattr(lib, f"wgpuComputePassEncoder{name}"))) for name in names]
    (address,) = compile_uninterrupted(lambda: load_object(compile_object(_replay_text(*functions)), ["volta_fn_replay"]))
    call = ffi.cast("void (*)(WGPUComputePassEncoder, uintptr_t, size_t)", address)
    return lambda compute_pass, first, count: call(compute_pass, first, count)


#: The loop that writes steps to a pass. It does not set a pipeline that is already set.
_REPLAY_LOOP = """
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


def _replay_text(set_pipeline: int, set_group: int, dispatch: int, indirect: int) -> str:
    """Return the LLVM IR of the loop, with the addresses of the functions it calls."""
    text = _REPLAY_LOOP.replace("LOADS", "\n".join([_LOAD.format(i=i) for i in range(WORDS)])).replace("WORDS", str(WORDS))
    for name, function in (("SET_PIPELINE", set_pipeline), ("SET_GROUP", set_group), ("DISPATCH", dispatch), ("INDIRECT", indirect)):
        text = text.replace(name, f"call void inttoptr (i64 {function} to ptr)")
    return text
