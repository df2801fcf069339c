"""A lowered program as text: its kernels, or the code that a target runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import format_kernel
from volta_fn.compiler.ir.program import KernelCall
from volta_fn.compiler.target import HostStep, Item, LoweredProgram, TargetCapabilities
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import ArgumentError
from volta_fn.lazy_imports import load
from volta_fn.targets.wgsl.target import WgslTarget

DIALECTS = ("jaxpr", "kernels", "llvm", "wgsl")


def code_of(closed: ClosedJaxpr, dialect: str, device: Device) -> str:
    """Return a program in a dialect other than "jaxpr".

    "kernels" is as the device's target has it, or the CPU's if NumPy runs programs there. "llvm" is for this CPU, "wgsl" for the device if
    it is a GPU, else for one with what every WebGPU device has.

    Raises `ArgumentError` for an unknown dialect.
    """
    if dialect not in DIALECTS:
        raise ArgumentError(f"as_text: the dialects are {', '.join(map(repr, DIALECTS))}, got {dialect!r}")
    program = pipeline.lower(closed, _target(dialect, device))
    if dialect == "kernels":
        return "\n\n".join([item_text(item) for _, item in needed_items(program)])
    comment = ";" if dialect == "llvm" else "//"
    texts = [text for owner, item in needed_items(program) for text in _code(owner, item, comment)]
    return "\n\n".join([f"{comment} {number} of {len(texts)}\n{text}" for number, text in enumerate(texts, 1)])


def _target(dialect: str, device: Device) -> Any:
    if dialect == "wgsl" and device.platform != "gpu":
        return WgslTarget(TargetCapabilities())
    if dialect == "llvm" or device.backend.target is None:
        return load("volta_fn.targets.cpu.target").TARGET
    return device.backend.target


def needed_items(program: LoweredProgram) -> Iterator[tuple[LoweredProgram, Item]]:
    """Yield the items that do something, those of nested programs after their own."""
    for item in program.items:
        if item.is_needed:
            yield program, item
        for nested in item.programs:
            yield from needed_items(nested)


def item_text(item: Item) -> str:
    """Return a kernel, or an equation that a target has another routine for."""
    if isinstance(item.node, KernelCall):
        return format_kernel(item.node.kernel)
    operands = " ".join(str(v.aval) for v in item.operands)
    results = " ".join(str(v.aval) for v in item.results)
    return f"{item.node.primitive} {operands} -> {results}".rstrip()


def item_code(program: LoweredProgram, item: Item) -> str:
    """Return the LLVM IR or WGSL of an item; of what runs on the host, why it does."""
    return "\n\n".join(_code(program, item, "//" if program.target.name == "wgsl" else ";"))


def _code(program: LoweredProgram, item: Item, comment: str) -> list[str]:
    """Return the modules of an item, or a comment that says why it has none."""
    reason = program.target.host_reason(item)
    if reason is not None:
        return [f"{comment} {HostStep.of(item, reason)}"]
    routine = None if item.key is None else item.key.make()
    if routine is None:
        return []
    return [routine.text] if hasattr(routine, "text") else [dispatch.source for dispatch in routine.dispatches]
