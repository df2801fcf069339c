"""Profile programs, by JAX's names: timed events of the host and of devices.

>>> import tempfile, volta_fn as vf
>>> step = vf.jit(lambda x: vf.numpy.tanh(x) * 2)
>>> with tempfile.TemporaryDirectory() as folder:
...     with vf.profiler.trace(folder) as recording:
...         with vf.profiler.StepTraceAnnotation("train", step_num=1):
...             y = step(vf.numpy.ones(4))
>>> [event.name for event in recording.events if event.kind == "step"]
['train 1']

A trace is written as JSON that Perfetto (ui.perfetto.dev) and Chrome's ``chrome://tracing`` open; `print` shows a table. While none is
recorded, programs run exactly as they would without this module.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from volta_fn.core.devices.device import available_devices, local_devices
from volta_fn.errors import ArgumentError, UnsupportedError
from volta_fn.inspection.measure import Recording, current, start, stop

F = TypeVar("F", bound=Callable[..., Any])


class TraceAnnotation(ContextDecorator):
    """Give a block a name in traces (a context manager or decorator).

    `metadata` is shown with it. While no trace is recorded, it does nothing.
    """

    _kind = "annotation"

    def __init__(self, name: str, **metadata: Any) -> None:
        self.name, self.metadata = name, metadata
        self._begins: list[int] = []

    def __enter__(self) -> None:
        self._begins.append(time.perf_counter_ns() if current() is not None else 0)

    def __exit__(self, *exception: object) -> None:
        begin, recording = self._begins.pop(), current()
        if recording is not None and begin:
            recording.add(self._title(), self._kind, begin, time.perf_counter_ns(), self.metadata)

    def _title(self) -> str:
        return self.name

    @staticmethod
    def is_enabled() -> bool:
        """Return True if a trace is being recorded."""
        return current() is not None

    def set_metadata(self, **metadata: Any) -> None:
        """Add to what is shown with the name."""
        self.metadata = {**self.metadata, **metadata}


class StepTraceAnnotation(TraceAnnotation):
    """Give a step of training a name and a number in traces.

    `step_num` among the metadata is its number.
    """

    _kind = "step"

    def _title(self) -> str:
        number = self.metadata.get("step_num")
        return self.name if number is None else f"{self.name} {number}"


def annotate_function(func: F, name: str | None = None, **metadata: Any) -> F:
    """Return a function whose calls have a name in traces, by default `func`'s own."""

    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return func(*args, **kwargs)
        with TraceAnnotation(name or str(getattr(func, "__qualname__", "function")), **metadata):
            return func(*args, **kwargs)

    return annotated  # type: ignore[return-value]


def start_trace(
    log_dir: str | Path, create_perfetto_link: bool = False, create_perfetto_trace: bool = False, profiler_options: Any = None
) -> Recording:
    """Begin to record the events of programs, until `stop_trace`.

    Args:
        log_dir: the folder for the trace; it is created if it does not exist.
        create_perfetto_link, create_perfetto_trace, profiler_options: accepted for compatibility; the trace is always for Perfetto.

    Returns:
        the recording, to which events are added.

    Raises:
        ArgumentError: a trace is being recorded already.
    """
    return start(Path(log_dir))


def stop_trace() -> Path:
    """End the trace, write it to its folder, and return the file's path.

    Raises `ArgumentError` if none is recorded.
    """
    recording = stop()
    if recording is None:
        raise ArgumentError("profiler.stop_trace: no trace is being recorded; start_trace begins one")
    return recording.write()


@contextmanager
def trace(
    log_dir: str | Path, create_perfetto_link: bool = False, create_perfetto_trace: bool = False, profiler_options: Any = None
) -> Iterator[Recording]:
    """Record the events of programs while a block runs; see `start_trace`.

    The block gets the recording, which prints as a table of where the time went.
    """
    recording = start_trace(log_dir)
    try:
        yield recording
    finally:
        stop_trace()


@dataclass
class ProfileOptions:
    """Options of JAX's profiler, which have no effect.

    Events of the host and of devices are always recorded, those of Python never.
    """

    host_tracer_level: int = 2
    device_tracer_level: int = 1
    python_tracer_level: int = 1
    include_dataset_ops: bool = True
    enable_hlo_proto: bool = True
    raise_error_on_start_failure: bool = False
    start_timestamp_ns: int = 0
    duration_ms: int = 0
    repository_path: str = ""
    session_id: str = ""
    advanced_configuration: dict[str, Any] = field(default_factory=dict)


def start_server(port: int, requires_backend: bool = True) -> NoReturn:
    """Raise `UnsupportedError`: traces are written to files, without a server."""
    raise UnsupportedError("profiler.start_server: traces are written to files; use profiler.trace(folder) in the program")


def device_memory_profile(backend: str | None = None) -> bytes:
    """Return the memory of the devices of this process as text, in UTF-8.

    Each row has a device, the bytes in use, the peak, the bytes held, and the limit. `backend` selects a platform, "cpu" or "gpu".

    >>> import volta_fn as vf
    >>> vf.profiler.device_memory_profile("cpu").decode().splitlines()[0]
    'device...'
    """
    rows = ["device\tin use\tpeak\theld\tlimit"]
    for device in available_devices() if backend is None else local_devices(backend=backend):
        memory = device.backend.memory()
        rows.append("\t".join(map(str, (repr(device), memory.in_use, memory.peak, memory.held, memory.limit))))
    return "\n".join(rows).encode()


def save_device_memory_profile(filename: str | Path, backend: str | None = None) -> None:
    """Write the result of `device_memory_profile` to a file."""
    Path(filename).write_bytes(device_memory_profile(backend))
