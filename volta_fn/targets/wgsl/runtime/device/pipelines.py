"""Cache pipelines by the text of their shaders, and bind groups by their buffers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, PriorityQueue
from typing import Any, NamedTuple

from volta_fn.core.interned import Interned, Left
from volta_fn.errors import DeviceError
from volta_fn.runtime.recent import Recent
from volta_fn.targets.wgsl.runtime.device.selftest import ALL
from volta_fn.targets.wgsl.runtime.device.tiered import Upgrades
from volta_fn.targets.wgsl.runtime.device.wgpu_ffi import Watched, native

#: Bind groups that are kept before all are released.
_MOST_GROUPS = 1 << 14

#: Pipelines that are kept though no program uses them: those that were used last.
_MOST = 128

#: Threads that compile, at most, and how many of them start only when all shaders are generated, which needs a core as well.
_THREADS, _LEFT = 16, 1

#: The key of a pipeline: its WGSL, the number of bindings, and which of them are written.
Key = tuple[str, int, frozenset[int]]


class Pipeline:
    """A compiled shader and the layout of its bind group."""

    __slots__ = ("__weakref__", "handles", "has_better", "layout")

    def __init__(self, handle: Any, layout: Any) -> None:
        #: The last one is in use; recordings may still hold those that it replaced.
        self.handles = [handle]
        self.layout = layout
        #: Whether a faster one was requested.
        self.has_better = False

    @property
    def handle(self) -> Any:
        """The driver's object."""
        return self.handles[-1]


class BoundRange(NamedTuple):
    """A range of bytes of a block."""

    block: Any
    offset: int
    size: int


class Pipelines:
    """The compiled shaders of a device, with the checks that its driver needs.

    Programs keep the pipelines that they use; others are released, but for the last ones.
    """

    def __init__(self, device: Any, watched: Watched) -> None:
        library = native()
        self.lib, self.ffi = library.lib, library.ffi
        self.device = device
        self.watched = watched
        self.checks = ALL
        self._found: Interned[Key, Pipeline] = Interned()
        self._recent: Recent[Pipeline] = Recent(_MOST)
        #: The handles of pipelines that nothing uses any more.
        self._dropped: Left[list[Any]] = Left()
        self._layouts: dict[tuple[int, frozenset[int]], tuple[Any, Any]] = {}
        self._groups: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        #: How often bind groups were released.
        self.drops = 0
        #: Compiles faster shaders in the background.
        self.upgrades = Upgrades(self)

    def find(self, source: str, count: int, written: frozenset[int]) -> Pipeline:
        """Return the pipeline of a module with `count` bindings, some of them written."""
        key = (source, count, written)
        found = self._found.get(key)
        if found is None:
            made = self.make(source, count, written, self.checks)
            with self._lock:
                found = self._found.get(key)
                if found is None:
                    self._found.add(key, made)
                    found = self._recent.setdefault(key, made)
        return found

    def replace(self, key: Key, source: str) -> None:
        """Compile a pipeline anew, from another text with the same results.

        Nothing is compiled if no program uses it any more.
        """
        pipeline = self._found.get(key)
        if pipeline is not None:
            pipeline.handles.append(self.make(source, *key[1:], self.checks).handles.pop())

    @contextmanager
    def ahead(self, pipelines: list[Pipeline]) -> Iterator[Callable[[str, int, frozenset[int]], None]]:
        """Compile pipelines on other threads.

        ``with ahead(pipelines) as begin:`` yields a function that starts one. At the end of the block all are compiled, and in the list.
        """
        begun: set[Key] = set()
        #: Keys that no thread has started, longest texts first, since they take longest.
        waiting: PriorityQueue[tuple[int, int, Key]] = PriorityQueue()
        work: list[Future[None]] = []
        most = min(os.cpu_count() or 1, _THREADS)

        def one() -> None:
            with suppress(Empty):  # another thread has taken it
                pipelines.append(self.find(*waiting.get_nowait()[2]))

        with ThreadPoolExecutor(max(most - _LEFT, 1)) as threads, ThreadPoolExecutor(_LEFT) as more:

            def begin(source: str, count: int, written: frozenset[int]) -> None:
                key = (source, count, written)
                if key in begun:
                    return
                begun.add(key)
                pipeline = self._found.get(key)
                if pipeline is not None:
                    pipelines.append(self._recent.setdefault(key, pipeline))
                    return
                waiting.put((-len(source), len(begun), key))
                work.append(threads.submit(one))

            yield begin
            work += [more.submit(one) for _ in range(waiting.qsize())]
        for done in work:
            done.result()

    def prepare(self, wanted: Iterable[Key]) -> list[Pipeline]:
        """Compile missing pipelines on several threads, and return all."""
        pipelines: list[Pipeline] = []
        with self.ahead(pipelines) as begin:
            for key in wanted:
                begin(*key)
        return pipelines

    def make(self, source: str, count: int, written: frozenset[int], checks: int) -> Pipeline:
        """Compile a pipeline.

        Raises `DeviceError` if the shader is refused or the device is lost.
        """
        self._release_dropped()
        with self._lock:
            if (count, written) not in self._layouts:
                self._layouts[count, written] = self._layout(count, written)
            layout, pipeline_layout = self._layouts[count, written]
        ffi, watched = self.ffi, self.watched
        try:
            with watched:
                module = self._module(source, checks)
            with watched:
                entry = ffi.new("char[]", b"main")
                descriptor = ffi.new("WGPUComputePipelineDescriptor *", {"layout": pipeline_layout._internal})
                descriptor.compute.module = module
                descriptor.compute.entryPoint.data = entry
                descriptor.compute.entryPoint.length = 4
                handle = self.lib.wgpuDeviceCreateComputePipeline(self.device._internal, descriptor)
        except DeviceError as error:
            if watched.lost:
                raise
            raise DeviceError(f"a shader cannot be compiled: {error.message}\n{source}") from None
        self.lib.wgpuShaderModuleRelease(module)
        pipeline = Pipeline(handle, layout._internal)
        self._dropped.leave(pipeline, pipeline.handles)
        return pipeline

    def _release_dropped(self) -> None:
        for handles in self._dropped.take():
            for handle in handles:
                self.lib.wgpuComputePipelineRelease(handle)

    def _module(self, source: str, checks: int) -> Any:
        ffi, text = self.ffi, source.encode()
        characters = ffi.new("char[]", text)
        code = ffi.new("WGPUShaderSourceWGSL *")
        code.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        code.code.data, code.code.length = characters, len(text)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *", {"nextInChain": ffi.addressof(code, "chain")})
        if checks == ALL:
            return self.lib.wgpuDeviceCreateShaderModule(self.device._internal, descriptor)
        return self.lib.wgpuDeviceCreateShaderModuleTrusted(self.device._internal, descriptor, checks)

    def _layout(self, count: int, written: frozenset[int]) -> tuple[Any, Any]:
        """Create the layouts of a bind group and of a pipeline with one."""
        entries = [
            {"binding": i, "visibility": 4, "buffer": {"type": "storage" if i in written else "read-only-storage"}} for i in range(count)
        ]
        with self.watched.classes():
            layout = self.device.create_bind_group_layout(entries=entries)
            return layout, self.device.create_pipeline_layout(bind_group_layouts=[layout])

    def group(self, pipeline: Pipeline, bindings: tuple[BoundRange, ...]) -> Any:
        """Return the bind group of some ranges of blocks."""
        key = (pipeline.layout, *[(b.block.number, b.offset, b.size) for b in bindings])
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._new_group(pipeline, bindings)
        return found

    def _new_group(self, pipeline: Pipeline, bindings: tuple[BoundRange, ...]) -> Any:
        entries = self.ffi.new("WGPUBindGroupEntry[]", len(bindings))
        for number, (block, offset, size) in enumerate(bindings):
            entry = entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, block.handle, offset, size
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = pipeline.layout, len(bindings), entries
        return self.lib.wgpuDeviceCreateBindGroup(self.device._internal, descriptor)

    def drop_groups(self) -> None:
        """Release all bind groups if there are too many. None may be pending in the queue."""
        if len(self._groups) < _MOST_GROUPS:
            return
        self.drops += 1
        self._release_groups()

    def _release_groups(self) -> None:
        for group in self._groups.values():
            self.lib.wgpuBindGroupRelease(group)
        self._groups.clear()

    def release(self) -> None:
        """Release all pipelines and bind groups; nothing uses the device any more."""
        self._release_groups()
        self._recent.clear()
        self._release_dropped()
