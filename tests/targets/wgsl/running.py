"""Running one routine by itself, through wgpu's ordinary calls, with every check that it has."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

import volta_fn as vf
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Routine, Shader

#: The features that shaders may use, and the names of their capabilities.
_FEATURES = {"shader-f16": "float16", "shader-f64": "float64", "shader-int64": "int64", "subgroup": "subgroups"}

#: What results and workspaces are full of before a routine runs, and operands have behind their ends: NaN in every dtype. And what results
#: and workspaces have behind theirs, so that a NaN that is written there shows.
_FILLING, _GUARD = 0xFF, 0xA5
_MARGIN = 64


@functools.cache
def device() -> Any:
    """Return the machine's GPU, or the software one."""
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    features = [name for name in _FEATURES if name in adapter.features]
    limits = {k: v for k, v in adapter.limits.items() if k.startswith("max-")}
    return adapter.request_device_sync(required_features=features, required_limits=limits)


@functools.cache
def capabilities() -> TargetCapabilities:
    """Return what that GPU can do; how it computes the backend has tried."""
    limits = device().limits
    features = {fact: name in device().features for name, fact in _FEATURES.items()}
    info = device().adapter.info
    tested = vf.devices("gpu")[0].backend.gpu.capabilities  # type: ignore[attr-defined]  # a GPU's
    return TargetCapabilities(
        **features,
        subgroup_least=info.get("subgroup_min_size", 4) or 4,
        subgroup_most=info.get("subgroup_max_size", 128) or 128,
        buffers=limits["max-storage-buffers-per-shader-stage"],
        binding=limits["max-storage-buffer-binding-size"],
        workgroup_memory=limits["max-compute-workgroup-storage-size"],
        invocations=limits["max-compute-invocations-per-workgroup"],
        groups=limits["max-compute-workgroups-per-dimension"],
        alignment=limits["min-storage-buffer-offset-alignment"],
        fma=tested.fma,
        subnormals=tested.subnormals,
    )


@functools.lru_cache(maxsize=1024)
def _pipeline(source: str, count: int, written: frozenset[int]) -> tuple[Any, Any]:
    """Return the layout of the bindings, some of which the shader may leave unread, and the pipeline."""
    kinds = ["storage" if binding in written else "read-only-storage" for binding in range(count)]
    visibility = wgpu.ShaderStage.COMPUTE
    entries = [{"binding": binding, "visibility": visibility, "buffer": {"type": kind}} for binding, kind in enumerate(kinds)]
    layout = device().create_bind_group_layout(entries=entries)
    module = device().create_shader_module(code=source)
    whole = device().create_pipeline_layout(bind_group_layouts=[layout])
    return layout, device().create_compute_pipeline(layout=whole, compute={"module": module, "entry_point": "main"})


def _padded(size: int) -> int:
    return max(-(-size // 4) * 4, 4)


class _Held:
    """A buffer with a margin that tells whether somebody wrote beyond its end."""

    def __init__(self, content: bytes, margin: int) -> None:
        self.size, self.margin = len(content), bytes([margin])
        data = content + self.margin * (_padded(self.size) - self.size + _MARGIN)
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffer = device().create_buffer_with_data(data=data, usage=usage)

    def content(self, what: str) -> bytes:
        """Return its bytes. Fail if the margin is not what it was."""
        data = bytes(device().queue.read_buffer(self.buffer))
        assert data[_padded(self.size) :] == self.margin * _MARGIN, f"{what}: written beyond its end"
        return data[: self.size]


def run_routine(
    routine: Routine,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[tuple[int, ...], Any]],
    *,
    margins: bool = True,
    place: int | None = None,
) -> list[np.ndarray]:
    """Return the results of a routine. Fail if an operand is changed, or memory behind results or workspaces, or if faster shaders differ.

    Shaders that ask for a buffer's length see the margin, too, unless there are none. The first result may be in the memory of the operand
    at a `place`: then it begins as that, and the first dispatch is left out.
    """
    result = _run(routine, [d.source for d in routine.dispatches], inputs, outputs, margins, place)
    if any(d.faster is not None for d in routine.dispatches):
        for x, y in zip(result, _run(routine, [d.fastest for d in routine.dispatches], inputs, outputs, margins, place), strict=True):
            assert x.tobytes() == y.tobytes(), "a faster shader gives other bits"
    return result


def _run(
    routine: Routine,
    texts: Sequence[str],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[tuple[int, ...], Any]],
    margins: bool,
    place: int | None,
) -> list[np.ndarray]:
    sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in outputs]
    contents = [np.ascontiguousarray(x).tobytes() for x in inputs]
    contents += [bytes([_FILLING]) * size for size in (*sizes, *routine.workspaces)]
    if place is not None:
        contents[len(inputs)] = contents[place]
    held = [_Held(c, _FILLING if number < len(inputs) else _GUARD) for number, c in enumerate(contents)]
    encoder = device().create_command_encoder()
    run = encoder.begin_compute_pass()
    for number, (dispatch, text) in enumerate(zip(routine.dispatches, texts, strict=True)):
        if place is not None and number == 0:
            continue
        assert place not in dispatch.buffers or place is None, f"dispatch {number} binds the operand whose memory is the result's"
        layout, pipeline = _pipeline(text, len(dispatch.buffers), frozenset(dispatch.written_bindings))
        entries = []
        for binding, buffer in enumerate(dispatch.buffers):
            size = held[buffer].buffer.size if margins else _padded(held[buffer].size)
            entries.append({"binding": binding, "resource": {"buffer": held[buffer].buffer, "offset": 0, "size": size}})
        run.set_pipeline(pipeline)
        run.set_bind_group(0, device().create_bind_group(layout=layout, entries=entries))
        run.dispatch_workgroups(*dispatch.workgroups)
    run.end()
    device().queue.submit([encoder.finish()])
    values = [h.content(f"buffer {number}") for number, h in enumerate(held)]
    for number, (x, data) in enumerate(zip(contents[: len(inputs)], values, strict=False)):
        assert x == data, f"operand {number} was changed"
    results = values[len(inputs) : len(inputs) + len(outputs)]
    return [np.frombuffer(data, dtype).reshape(shape).copy() for data, (shape, dtype) in zip(results, outputs, strict=True)]


@functools.cache
def known_width() -> TargetCapabilities:
    """Return what this GPU can do, with the one width that its subgroups have in workgroups of whole ones."""
    shader = Shader(capabilities(), 128)
    size = shader.builtin("subgroup_size")
    target = shader.buffer(0, np.dtype(np.uint32), written=True)
    shader.emit(f"{target.name}[{shader.local}] = {size};")
    (sizes,) = run_routine(Routine((shader.dispatch(1),)), [], [((128,), np.uint32)])
    assert len(np.unique(sizes)) == 1
    return capabilities()._replace(subgroup_least=int(sizes[0]), subgroup_most=int(sizes[0]))
