"""Kernels for NVIDIA's GPUs on the CPU: special registers and intrinsics are replaced, invocations run in turn.

An invocation is a context of its own (POSIX's `swapcontext`) that runs until it waits: at a barrier for its workgroup, in a shuffle or a
vote for its subgroup. Workgroup memory is full of `_FILLING` before a workgroup runs. Indices are checked.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.runtime.llvm.machine import compile_object, load_objects
from volta_fn.targets.nvidia.translation import translate

_FILLING = 0xA5
_SUBGROUP = 32
_STACK, _CONTEXT = 1 << 18, 1 << 13

#: Special registers, in the order in which they are stored, and the number of the invocation in its workgroup.
_REGISTERS = [*[f"{name}.{axis}" for name in ("tid", "ctaid", "nctaid") for axis in "xyz"], "laneid", "index"]
#: The states of an invocation.
_READY, _AT_BARRIER, _IN_SUBGROUP, _DONE = range(4)

_CONVERSIONS = {
    f"{source}2{target}.rz": (f"fpto{'u' if 'u' in target else 's'}i.sat.{integer}.{'f64' if source == 'd' else 'f32'}", integer, float_)
    for source, float_ in (("f", "float"), ("d", "double"))
    for target, integer in (("i", "i32"), ("ui", "i32"), ("ll", "i64"), ("ull", "i64"))
}

_PRELUDE = """
@host.registers = global [{registers} x i32] zeroinitializer
@host.state = global i32 0
@host.faults = global i32 0
@host.scheduler = global ptr null
@host.current = global ptr null
@host.arguments = global [80 x i64] zeroinitializer
@host.slots = global [1024 x i32] zeroinitializer
declare i32 @swapcontext(ptr, ptr)
define void @host.wait(i32 %state) noinline {{
  store volatile i32 %state, ptr @host.state
  %current = load volatile ptr, ptr @host.current
  %scheduler = load volatile ptr, ptr @host.scheduler
  %status = call i32 @swapcontext(ptr %current, ptr %scheduler)
  ret void
}}
define void @host.trap() noinline {{
  store volatile i32 1, ptr @host.faults
  call void @host.wait(i32 {done})
  ret void
}}
define void @host.put(i32 %value) noinline {{
  %index = call i32 @host.register.index()
  %slot = getelementptr i32, ptr @host.slots, i32 %index
  store volatile i32 %value, ptr %slot
  call void @host.wait(i32 {in_subgroup})
  ret void
}}
define i32 @host.get(i32 %lane) noinline {{
  %index = call i32 @host.register.index()
  %first = and i32 %index, -32
  %from = add i32 %first, %lane
  %slot = getelementptr i32, ptr @host.slots, i32 %from
  %value = load volatile i32, ptr %slot
  ret i32 %value
}}
define i32 @host.exchange(i32 %value, i32 %lane) noinline {{
  call void @host.put(i32 %value)
  %result = call i32 @host.get(i32 %lane)
  call void @host.wait(i32 {in_subgroup})
  ret i32 %result
}}
define void @host.barrier.cta.sync.aligned.all(i32 %number) {{
  call void @host.wait(i32 {at_barrier})
  ret void
}}
define i32 @host.shfl.sync.idx.i32(i32 %mask, i32 %value, i32 %by, i32 %clamp) {{
  %lane = and i32 %by, 31
  %result = call i32 @host.exchange(i32 %value, i32 %lane)
  ret i32 %result
}}
define i32 @host.shfl.sync.bfly.i32(i32 %mask, i32 %value, i32 %by, i32 %clamp) {{
  %own = call i32 @host.register.laneid()
  %lane = xor i32 %own, %by
  %result = call i32 @host.exchange(i32 %value, i32 %lane)
  ret i32 %result
}}
define i32 @host.shfl.sync.up.i32(i32 %mask, i32 %value, i32 %by, i32 %clamp) {{
  %own = call i32 @host.register.laneid()
  %moved = sub i32 %own, %by
  %is_outside = icmp slt i32 %moved, 0
  %lane = select i1 %is_outside, i32 %own, i32 %moved
  %result = call i32 @host.exchange(i32 %value, i32 %lane)
  ret i32 %result
}}
define i32 @host.shfl.sync.down.i32(i32 %mask, i32 %value, i32 %by, i32 %clamp) {{
  %own = call i32 @host.register.laneid()
  %moved = add i32 %own, %by
  %is_outside = icmp sgt i32 %moved, 31
  %lane = select i1 %is_outside, i32 %own, i32 %moved
  %result = call i32 @host.exchange(i32 %value, i32 %lane)
  ret i32 %result
}}
define i32 @host.vote.ballot.sync(i32 %mask, i1 %vote) noinline {{
entry:
  %word = zext i1 %vote to i32
  call void @host.put(i32 %word)
  br label %next
next:
  %lane = phi i32 [0, %entry], [%following, %next]
  %votes = phi i32 [0, %entry], [%more, %next]
  %one = call i32 @host.get(i32 %lane)
  %bit = shl i32 %one, %lane
  %more = or i32 %votes, %bit
  %following = add i32 %lane, 1
  %is_last = icmp eq i32 %following, 32
  br i1 %is_last, label %end, label %next
end:
  call void @host.wait(i32 {in_subgroup})
  %result = and i32 %more, %mask
  ret i32 %result
}}
define i1 @host.vote.any.sync(i32 %mask, i1 %vote) {{
  %votes = call i32 @host.vote.ballot.sync(i32 %mask, i1 %vote)
  %result = icmp ne i32 %votes, 0
  ret i1 %result
}}
define i1 @host.vote.all.sync(i32 %mask, i1 %vote) {{
  %votes = call i32 @host.vote.ballot.sync(i32 %mask, i1 %vote)
  %result = icmp eq i32 %votes, %mask
  ret i1 %result
}}
define float @host.rsqrt.approx.f(float %x) {{
  %root = call float @llvm.sqrt.f32(float %x)
  %result = fdiv float 1.0, %root
  ret float %result
}}
"""


def _unary(name: str, intrinsic: str, source: str, result: str) -> str:
    call = f"%result = call {result} @llvm.{intrinsic}({source} %x)"
    return (
        f"declare {result} @llvm.{intrinsic}({source})\ndefine {result} @host.{name}({source} %x) {{\n  {call}\n  ret {result} %result\n}}"
    )


def _support() -> str:
    """Return the functions that stand for registers and intrinsics."""
    parts = [_PRELUDE.format(registers=len(_REGISTERS), in_subgroup=_IN_SUBGROUP, at_barrier=_AT_BARRIER, done=_DONE)]
    for number, name in enumerate(_REGISTERS):
        load = f"%value = load volatile i32, ptr getelementptr (i32, ptr @host.registers, i32 {number})"
        parts.append(f"define i32 @host.register.{name}() noinline {{\n  {load}\n  ret i32 %value\n}}")
    parts += [_conversion(name, intrinsic, float_, integer) for name, (intrinsic, integer, float_) in _CONVERSIONS.items()]
    functions = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos"}
    parts += [_unary(f"{name}.approx.f", f"{function}.f32", "float", "float") for name, function in functions.items()]
    return "\n".join(parts)


def _conversion(name: str, intrinsic: str, float_: str, integer: str) -> str:
    """Return a conversion as PTX has it: NaN sets the highest bit, unless both types have 32 bits."""
    of_nan = 0 if (float_, integer) == ("float", "i32") else 1 << (int(integer[1:]) - 1)
    return f"""
declare {integer} @llvm.{intrinsic}({float_})
define {integer} @host.{name}({float_} %x) {{
  %number = call {integer} @llvm.{intrinsic}({float_} %x)
  %is_nan = fcmp uno {float_} %x, 0.0
  %result = select i1 %is_nan, {integer} {of_nan}, {integer} %number
  ret {integer} %result
}}"""


def _on_host(text: str) -> tuple[str, list[str]]:
    """Return a kernel's module for the CPU, and the names of its variables in workgroup memory."""
    support = _support()
    text = re.sub(r"^(target triple|attributes) .*$|^declare .*@llvm\.nvvm\..*$| #0(?= \{)", "", text, flags=re.MULTILINE)
    text = text.replace("declare void @llvm.trap()", "").replace("@llvm.trap()", "@host.trap()").replace("ptx_kernel ", "")
    text = text.replace("@llvm.nvvm.read.ptx.sreg.", "@host.register.").replace("@llvm.nvvm.", "@host.")
    text = re.sub(r"(@w\.\w+ =) internal", r"\1", text)
    declared = set(re.findall(r"^declare .*?@([\w.]+)", text, flags=re.MULTILINE))
    lines = [line for line in support.splitlines() if not (line.startswith("declare") and re.findall(r"@([\w.]+)", line)[0] in declared)]
    if "llvm.sqrt.f32" not in declared:
        lines.append("declare float @llvm.sqrt.f32(float)")
    variables = re.findall(r"^@(w\.\w+) = addrspace\(3\) global (.*) undef", text, flags=re.MULTILINE)
    for name, type_ in variables:
        lines.append(f"@size.{name} = global i64 ptrtoint (ptr getelementptr ({type_}, ptr null, i32 1) to i64)")
    parameters = re.findall(r"define void @main\((.*)\)", text)[0].split(", ")
    lines.append("define void @host.entry() {")
    arguments = []
    for number, parameter in enumerate(parameters):
        type_ = "i64" if parameter.startswith("i64") else "ptr addrspace(1)"
        lines.append(f"  %a{number} = load {type_}, ptr getelementptr (i64, ptr @host.arguments, i32 {number})")
        arguments.append(f"{type_} %a{number}")
    lines += [f"  call void @main({', '.join(arguments)})", f"  store volatile i32 {_DONE}, ptr @host.state", "  ret void", "}"]
    return "\n".join([*lines, text]), [name for name, _ in variables]


class Kernel:
    """A shader, ready to run."""

    def __init__(self, source: str) -> None:
        shader = translate(source, is_checked=True)
        self.threads = shader.threads
        text, self._variables = _on_host(shader.llvm_ir)
        names = [f"host.{name}" for name in ("entry", "registers", "state", "faults", "scheduler", "current", "arguments")]
        names += [f"{prefix}{name}" for name in self._variables for prefix in ("", "size.")]
        self._code = load_objects([compile_object(text)], names)
        self._addresses = dict(zip(names, self._code.addresses, strict=True))
        self._entry = self._addresses["host.entry"]
        self._registers = (ctypes.c_uint32 * len(_REGISTERS)).from_address(self._addresses["host.registers"])
        self._faults = ctypes.c_uint32.from_address(self._addresses["host.faults"])
        self._state = ctypes.c_uint32.from_address(self._addresses["host.state"])

    def run(self, groups: Sequence[int], addresses: Sequence[int], sizes: Sequence[int], grid: int = 0) -> None:
        """Run a dispatch on memory at some addresses; `grid` is the address of an indirect grid."""
        arguments = [*addresses, *sizes, grid]
        (ctypes.c_int64 * len(arguments)).from_address(self._addresses["host.arguments"])[:] = arguments
        self._registers[6:9] = groups
        for z, y, x in itertools.product(*[range(n) for n in reversed(groups)]):
            self._registers[3:6] = [x, y, z]
            for name in self._variables:
                size = ctypes.c_int64.from_address(self._addresses[f"size.{name}"]).value
                ctypes.memset(self._addresses[name], _FILLING, size)
            self._run_workgroup()
        faults, self._faults.value = self._faults.value, 0
        assert not faults, "an index is out of range"

    def _select(self, index: int) -> None:
        """Set the registers of an invocation."""
        x, y, _ = self.threads
        self._registers[0:3] = [index % x, index // x % y, index // (x * y)]
        self._registers[9:11] = [index % _SUBGROUP, index]

    def _run_workgroup(self) -> None:
        count = int(np.prod(self.threads))
        contexts = _contexts(count)
        for context in contexts[1:]:
            context.start(self._entry, contexts[0])
        scheduler, current = [ctypes.c_void_p.from_address(self._addresses[f"host.{name}"]) for name in ("scheduler", "current")]
        scheduler.value = contexts[0].address
        states = [_READY] * count
        while any(state != _DONE for state in states):
            for index in [index for index, state in enumerate(states) if state == _READY]:
                self._select(index)
                current.value = contexts[index + 1].address
                _library().swapcontext(ctypes.c_void_p(contexts[0].address), ctypes.c_void_p(contexts[index + 1].address))
                states[index] = self._state.value
            self._release(states)

    @staticmethod
    def _release(states: list[int]) -> None:
        """Let those invocations run for which all others wait."""
        if {*states} <= {_AT_BARRIER, _DONE}:
            states[:] = [_DONE if state == _DONE else _READY for state in states]
            return
        for first in range(0, len(states), _SUBGROUP):
            some = states[first : first + _SUBGROUP]
            if {*some} <= {_IN_SUBGROUP, _DONE}:
                states[first : first + _SUBGROUP] = [_DONE if state == _DONE else _READY for state in some]
        assert _READY in states or {*states} == {_DONE}, "invocations wait for each other in different places"


class _Context:
    """A stack and the registers of an invocation."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_CONTEXT)
        self._stack = np.empty(_STACK, np.uint8)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64

    def start(self, entry: int, following: _Context) -> None:
        """Have it begin with a function, after which another context goes on."""
        _library().getcontext(ctypes.c_void_p(self.address))
        fields = (ctypes.c_uint64 * 5).from_address(self.address)  # flags, link, stack: address, flags, size
        fields[1], fields[2], fields[4] = following.address, self._stack.ctypes.data, _STACK
        _library().makecontext(ctypes.c_void_p(self.address), ctypes.c_void_p(entry), 0)


@functools.cache
def _library() -> Any:
    return ctypes.PyDLL(None)


_pool: list[_Context] = []


def _contexts(count: int) -> list[_Context]:
    """Return the scheduler's context and those of invocations."""
    while len(_pool) <= count:
        _pool.append(_Context())
    return _pool[: count + 1]


@functools.lru_cache(maxsize=256)
def kernel(source: str) -> Kernel:
    """Return the kernel of a shader."""
    return Kernel(source)


def run(source: str, groups: Sequence[int], arrays: Sequence[np.ndarray], grid: np.ndarray | None = None) -> None:
    """Run a shader on arrays, which it writes to."""
    assert all(array.flags.c_contiguous for array in arrays)
    addresses, sizes = [array.ctypes.data for array in arrays], [array.nbytes for array in arrays]
    kernel(source).run(groups, addresses, sizes, 0 if grid is None else grid.ctypes.data)
