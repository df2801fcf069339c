"""Compute pipelines by shader, faster ones in the background, device tests."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from queue import Empty, PriorityQueue
from typing import Any, Protocol

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.caches import Finalized, Interned, LruCache
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.targets.gpu.driver import BoundRange, Driver, log, with_memory
from volta_fn.targets.gpu.memory import Buffer
from volta_fn.targets.wgsl.shader import ShaderModule

# Cache pipelines by the text of their shaders, and bind groups by their buffers.

#: The most bind groups in the cache: beyond this, all are released.
_MOST_GROUPS = 1 << 14

#: The most unused pipelines in the cache of recent ones.
_MOST_UNUSED = 128

#: Threads that compile, at most, and how many of them start only when all shaders are generated, which needs a core as well.
_THREADS, _LATE_THREADS = 16, 1

#: The key of a pipeline: the text of its shader, the number of bindings, which of them are written, and whether its indices are checked.
Key = tuple[str, int, frozenset[int], bool]


class Pipeline:
    """A compiled shader and the layout of its bind group."""

    __slots__ = ("__weakref__", "handles", "layout", "upgrade_requested")

    def __init__(self, handle: Any, layout: Any) -> None:
        #: The last one is in use; recordings may still hold those that it replaced.
        self.handles = [handle]
        self.layout = layout
        #: Whether a faster shader was requested.
        self.upgrade_requested = False

    @property
    def handle(self) -> Any:
        """The driver's object."""
        return self.handles[-1]


class Pipelines:
    """The compiled shaders of a device, with the checks that its driver needs.

    Programs own the pipelines that they use. Others are released, except for the most recently used ones.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.checks = ALL
        self._pipelines: Interned[Key, Pipeline] = Interned()
        self._recent: LruCache[Pipeline] = LruCache(_MOST_UNUSED)
        #: The handles of pipelines that nothing uses any more.
        self._dropped: Finalized[list[Any]] = Finalized()
        self._groups: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        #: How often bind groups were released.
        self.group_releases = 0
        #: Compiles faster shaders in the background.
        self.upgrades = Upgrades(self)

    def find(self, source: str, count: int, written: frozenset[int], is_checked: bool = False) -> Pipeline:
        """Return the pipeline of a module with `count` bindings, some of them written."""
        key = (source, count, written, is_checked)
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            compiled = self.make(source, count, written, self.checks, is_checked=is_checked)
            with self._lock:
                pipeline = self._pipelines.get(key)
                if pipeline is None:
                    self._pipelines.add(key, compiled)
                    pipeline = self._recent.setdefault(key, compiled)
        return pipeline

    def replace(self, key: Key, source: str) -> None:
        """Compile a pipeline anew, from another text with the same results.

        Nothing is compiled if no program uses it any more.
        """
        pipeline = self._pipelines.get(key)
        if pipeline is not None:
            _, count, written, is_checked = key
            handle, _ = self._compiled(source, count, written, self.checks, is_checked)
            pipeline.handles.append(handle)

    @contextmanager
    def compile_ahead(self, pipelines: list[Pipeline]) -> Iterator[Callable[..., None]]:
        """Compile pipelines on other threads.

        ``with compile_ahead(pipelines) as start_compiling:`` yields a function that starts compiling one. The block ends when all are
        compiled and appended to the list.
        """
        begun: set[Key] = set()
        #: Keys that no thread has started, longest texts first, since they take longest.
        waiting: PriorityQueue[tuple[int, int, Key]] = PriorityQueue()
        work: list[Future[None]] = []
        most = min(os.cpu_count() or 1, _THREADS)

        def compile_next() -> None:
            with suppress(Empty):  # another thread has taken it
                pipelines.append(self.find(*waiting.get_nowait()[2]))

        with ThreadPoolExecutor(max(most - _LATE_THREADS, 1)) as threads, ThreadPoolExecutor(_LATE_THREADS) as more:

            def start_compiling(source: str, count: int, written: frozenset[int], is_checked: bool = False) -> None:
                key = (source, count, written, is_checked)
                if key in begun:
                    return
                begun.add(key)
                pipeline = self._pipelines.get(key)
                if pipeline is not None:
                    pipelines.append(self._recent.setdefault(key, pipeline))
                    return
                waiting.put((-len(source), len(begun), key))
                work.append(threads.submit(compile_next))

            yield start_compiling
            work += [more.submit(compile_next) for _ in range(waiting.qsize())]
        for done in work:
            done.result()

    def prepare(self, keys: Iterable[Key]) -> list[Pipeline]:
        """Compile missing pipelines on several threads, and return all."""
        pipelines: list[Pipeline] = []
        with self.compile_ahead(pipelines) as start_compiling:
            for key in keys:
                start_compiling(*key)
        return pipelines

    def make(self, source: str, count: int, written: frozenset[int], checks: int, *, is_checked: bool = False) -> Pipeline:
        """Compile a pipeline; raise `DeviceError` if it is refused or the device is lost."""
        pipeline = Pipeline(*self._compiled(source, count, written, checks, is_checked))
        self._dropped.add(pipeline, pipeline.handles)
        return pipeline

    def _compiled(self, source: str, count: int, written: frozenset[int], checks: int, is_checked: bool) -> tuple[Any, Any]:
        """Return the driver's pipeline of a shader, and its layout."""
        self._release_dropped()
        try:
            return with_memory(partial(self.driver.compile, source, count, written, checks, is_checked=is_checked), self.driver)
        except DeviceError as error:
            if self.driver.errors.device_lost:
                raise
            raise DeviceError(f"a shader cannot be compiled: {error.message}\n{source}") from None

    def _release_dropped(self) -> None:
        for handles in self._dropped.drain():
            for handle in handles:
                self.driver.release_pipeline(handle)

    def group(self, pipeline: Pipeline, bindings: tuple[BoundRange, ...]) -> Any:
        """Return the bind group of some ranges of blocks."""
        key = (pipeline.layout, *[(b.block.number, b.offset, b.size) for b in bindings])
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self.driver.bind(pipeline.layout, bindings)
        return group

    def limit_groups(self) -> None:
        """Release all bind groups if there are too many.

        Dispatches that are written to a pass keep theirs, also before they are submitted. Groups that were looked up but not yet written,
        those of `BoundDispatch`s, must not exist; recordings with such steps become invalid.
        """
        if len(self._groups) < _MOST_GROUPS:
            return
        self.group_releases += 1
        self._release_groups()

    def _release_groups(self) -> None:
        for group in self._groups.values():
            self.driver.release_group(group)
        self._groups.clear()

    def release(self) -> None:
        """Release all pipelines and bind groups; nothing uses the device any more."""
        self._release_groups()
        self._recent.clear()
        self._release_dropped()


# Compile shaders in tiers: faster ones in the background while others run.
#
# A program starts with shaders that compile quickly. A faster one with the same bits replaces such a shader once it is compiled. Programs
# that are called only once request none.

#: Threads that compile, at most, and as a fraction of the CPUs: the others belong to the program.
_TIER_THREADS, _CPU_FRACTION = 8, 2


class Upgrades:
    """The faster shaders to be compiled, and the threads that compile them."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        #: How often all requested shaders were compiled: recordings with the slower ones are dropped then, once for all.
        self.rounds = 0

    def request(self, modules: Iterable[tuple[Key, Callable[[], ShaderModule]]], then: Callable[[], None] | None = None) -> None:
        """Compile faster shaders for existing pipelines, unless requested before.

        `then` is called on one of the threads.
        """
        with self._changed:
            for key, faster in modules:
                pipeline = self._pipelines.find(*key)
                if not pipeline.upgrade_requested:
                    pipeline.upgrade_requested = True
                    self._waiting.append(partial(self._upgrade, key, faster))
            if then is not None:
                self._waiting.append(then)
            for _ in range(min(len(self._waiting), _TIER_THREADS, max(1, (os.cpu_count() or 1) // _CPU_FRACTION)) - self._threads):
                try:
                    threading.Thread(target=self._work, name="volta_fn compiles").start()
                except RuntimeError as error:  # there is no room for one, or the process ends: the slower ones remain
                    log.debug("no thread that compiles faster shaders can be started: %s", error)
                    break
                self._threads += 1

    def settle(self) -> None:
        """Wait until no shader is being compiled."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)

    def _work(self) -> None:
        """Work until no request is left or the main thread has ended."""
        while True:
            with self._changed:
                if not self._waiting or not threading.main_thread().is_alive():
                    self._end_thread()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except (DeviceError, OutOfMemoryError) as error:  # the slower one remains
                log.warning("a faster shader cannot be compiled: %s", error)
            except BaseException:  # Python prints it as the thread ends; `settle` must not wait for this thread any longer
                with self._changed:
                    self._end_thread()
                raise

    def _upgrade(self, key: Key, faster: Callable[[], ShaderModule]) -> None:
        self._pipelines.replace(key, faster().text)

    def _end_thread(self) -> None:
        """Record that the current thread ends; the caller holds the lock."""
        self._threads -= 1
        self.rounds += not self._threads
        self._changed.notify_all()


# Test a device when it is opened.
#
# The tests tell which checks its shaders need, whether its `fma` rounds once, whether it keeps subnormal numbers, and, if it is
# software, how many iterations its loops run. The translator of shaders can guard every access to memory and count the iterations of
# every loop. Our accesses are in range by construction, and our loops end, so both checks are disabled; but only after a shader has
# given the same result with and without them, since drivers have compiled such loops wrongly.


class ShaderRunner(Protocol):
    """The methods of a device for tests: buffers, and shaders of one workgroup."""

    @property
    def capabilities(self) -> TargetCapabilities:
        """The device's capabilities."""

    def put(self, values: np.ndarray) -> Buffer:
        """Return a buffer with an array's elements."""

    def get(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of a buffer."""

    def dispatch(self, source: str, buffers: Sequence[Buffer], written: frozenset[int], checks: int) -> None:
        """Run one workgroup of a shader by itself."""


#: The library's flags for checks in shaders: none, limits on loop iterations, all.
NONE, LOOPS, ALL = 0, 2, 3

_WIDTH = 64

_SHADER = f"""
@group(0) @binding(0) var<storage, read> numbers: array<u32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;
var<workgroup> together: array<u32, {_WIDTH}>;
@compute @workgroup_size({_WIDTH})
fn main(@builtin(local_invocation_index) i: u32) {{
  var total = 1u;
  for (var k = 0u; k < i % 7u + 1u; k++) {{
    if (numbers[(i + k) % {_WIDTH}u] % 5u == 0u) {{ continue; }}
    var n = numbers[(i * 3u + k) % {_WIDTH}u] % 1024u;
    loop {{
      if (n == 0u) {{ break; }}
      total = total * 31u + n;
      if (total > 4000000000u) {{ break; }}
      n = n / 2u;
    }}
  }}
  together[i] = total;
  workgroupBarrier();
  for (var s = {_WIDTH // 2}u; s > 0u; s = s >> 1u) {{
    if (i < s) {{ together[i] = (together[i] ^ together[i + s]) * 17u; }}
    workgroupBarrier();
  }}
  var multiples: array<u32, 8>;
  for (var k = 0u; k < 8u; k++) {{ multiples[k] = numbers[i] * k + total; }}
  var sum = together[0];
  for (var k = i % 8u; k < 8u; k++) {{ sum = sum * 3u + multiples[k]; }}
  results[i] = sum;
}}
"""


_TERNARY = """
@group(0) @binding(0) var<storage, read> operands: array<{type}>;
@group(0) @binding(1) var<storage, read_write> results: array<{type}>;
@compute @workgroup_size({width})
fn main(@builtin(local_invocation_index) i: u32) {{
  let x = operands[i];
  let y = operands[i + {width}u];
  let z = operands[i + {twice}u];
  results[i] = {expression};
}}
"""


def _ternary(gpu: ShaderRunner, expression: str, *operands: np.ndarray) -> np.ndarray:
    """Evaluate an expression of x, y and z on the device."""
    dtype = operands[0].dtype
    result = gpu.put(np.zeros(_WIDTH, dtype))
    source = _TERNARY.format(type=f"f{8 * dtype.itemsize}", width=_WIDTH, twice=2 * _WIDTH, expression=expression)
    gpu.dispatch(source, [gpu.put(np.concatenate(operands)), result], frozenset([1]), ALL)
    return gpu.get(result)


def fma_rounds_once(gpu: ShaderRunner) -> bool:
    """Return whether fma rounds once: whether it recovers rounding errors of products."""
    x, y = np.random.default_rng(0).uniform(1, 2, (2, _WIDTH))
    for dtype in (np.float32, np.float64) if gpu.capabilities.float64 else (np.float32,):
        a, b = x.astype(dtype), y.astype(dtype)
        if not np.array_equal(_ternary(gpu, "fma(x, y, z)", a, b, -(a * b)), _rounding_errors(a, b)):
            return False
    return True


def _rounding_errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the rounding errors of products, exactly."""
    pairs = zip(x.tolist(), y.tolist(), (x * y).tolist(), strict=True)
    return np.array([float(Fraction(a) * Fraction(b) - Fraction(product)) for a, b, product in pairs], x.dtype)


def keeps_subnormals(gpu: ShaderRunner) -> bool:
    """Return whether float32 arithmetic reads and gives subnormal numbers."""
    least = np.finfo(np.float32).smallest_subnormal
    x, y = np.arange(1, _WIDTH + 1, dtype=np.float32) * least, np.full(_WIDTH, 2, np.float32)
    return np.array_equal(_ternary(gpu, "x * y + z", x, y, x), x * 3)


_LOOP = """
@group(0) @binding(0) var<storage, read> wanted: array<u32>;
@group(0) @binding(1) var<storage, read_write> done: array<u32>;
@compute @workgroup_size(1)
fn main() {
  var mixed = wanted[1];
  var iterations = 0u;
  for (; iterations < wanted[0]; iterations++) { mixed = mixed * 1664525u + iterations; }
  done[0] = iterations;
  done[1] = mixed;
}
"""

#: Iterations of the loop that is tried.
_ITERATIONS = 1 << 18


def loop_iterations(gpu: ShaderRunner) -> int:
    """Return the most iterations of a loop: Mesa ends loops after 65,535."""
    done = gpu.put(np.zeros(_WIDTH, np.uint32))
    gpu.dispatch(_LOOP, [gpu.put(np.full(_WIDTH, _ITERATIONS, np.uint32)), done], frozenset([1]), ALL)
    iterations = int(gpu.get(done)[0])
    return iterations if iterations < _ITERATIONS else TargetCapabilities().iterations


def needed_checks(gpu: ShaderRunner) -> int:
    """Return the fewest checks that give the same result as all of them."""
    expected = _run_selftest(gpu, ALL)
    for checks in (NONE, LOOPS):
        try:
            if np.array_equal(_run_selftest(gpu, checks), expected):
                return checks
        except DeviceError:
            continue
    return ALL


def _run_selftest(gpu: ShaderRunner, checks: int) -> np.ndarray:
    numbers = gpu.put(np.random.default_rng(0).integers(0, 1 << 32, _WIDTH, np.uint32))
    results = gpu.put(np.zeros(_WIDTH, np.uint32))
    gpu.dispatch(_SHADER, [numbers, results], frozenset([1]), checks)
    return gpu.get(results)
