"""Profile programs, by JAX's names: timed events, and listeners to events.

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
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from volta_fn.core.devices.device import Device, available_devices, local_devices
from volta_fn.errors import ArgumentError, DeviceError, UnsupportedError
from volta_fn.inspection.explain import Span
from volta_fn.inspection.explanation import Attribution, aligned, describe, locations_of
from volta_fn.inspection.report import duration
from volta_fn.jit import compile as compilation
from volta_fn.jit.cache import clear_caches
from volta_fn.jit.compile import TracedProgram
from volta_fn.jit.eager import PIPELINE

__all__ = [
    "ProfileOptions", "StepTraceAnnotation", "TraceAnnotation", "annotate_function", "device_memory_profile", "save_device_memory_profile",
    "start_server", "start_trace", "stop_trace", "trace",
]  # fmt: skip


# Events of a trace.
#
# While a trace is recorded, jitted functions are traced again and run as programs that note the time of each kernel; at its end those are
# dropped. So programs that are not profiled run as they always do.


class Event(NamedTuple):
    """An activity of the host or of a device, from `begin` to `end` in nanoseconds.

    `kind` is "annotation", "step", "program", "kernel" or "compile"; `thread` is the host's thread, or the device's name.
    """

    name: str
    kind: str
    begin: int
    end: int
    thread: str
    details: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end - self.begin) / 1e9


#: Events of a trace, at most; later ones are counted only.
_MOST_EVENTS = 1_000_000


class Recording:
    """The events of a trace; `str` gives a table of where the time went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Calls of programs: their begin, and a function that returns the spans of their kernels.
        self.kernels: list[tuple[_ObservedProgram, int, Callable[[], Sequence[Span]]]] = []
        self.lost = 0
        self._events: list[Event] = []
        self.begin = time.perf_counter_ns()

    @property
    def events(self) -> list[Event]:
        """All events so far: those of the host, then the kernels."""
        return [*self._events, *[event for program, begin, spans in self.kernels for event in program.events(begin, spans())]]

    def add(self, name: str, kind: str, begin: int, end: int, details: dict[str, Any] | None = None, thread: str = "") -> None:
        """Add an event; without a thread, of the host's thread that calls."""
        if len(self._events) >= _MOST_EVENTS:
            self.lost += 1
            return
        self._events.append(Event(name, kind, begin, end, thread or threading.current_thread().name, details or {}))

    def totals(self) -> list[tuple[str, str, int, float]]:
        """Return kind, name, number and seconds of events of one name, longest first."""
        totals: dict[tuple[str, str], tuple[int, float]] = {}
        for event in self.events:
            count, seconds = totals.get((event.kind, event.name), (0, 0.0))
            totals[event.kind, event.name] = count + 1, seconds + event.seconds
        rows = [(kind, name, count, seconds) for (kind, name), (count, seconds) in totals.items()]
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        rows = [(kind, name[:60], f"{count:,}", duration(seconds)) for kind, name, count, seconds in self.totals()[:40]]
        lost = [f"{self.lost:,} more events were not kept"] if self.lost else []
        return "\n".join([*aligned([("kind", "name", "calls", "time"), *rows], right=(2, 3)), *lost])

    __repr__ = __str__

    def write(self) -> Path:
        """Write the events as JSON for Perfetto and Chrome, and return the file's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, events = self.folder / "volta_fn.trace.json", self.events
        threads = {name: number for number, name in enumerate(dict.fromkeys([e.thread for e in events]))}
        named = [
            {"ph": "M", "name": "thread_name", "pid": _process(name), "tid": number, "args": {"name": name}}
            for name, number in threads.items()
        ]
        processes = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in ((0, "host"), (1, "devices"))]
        entries = [
            {
                "ph": "X", "name": e.name, "cat": e.kind, "pid": _process(e.thread), "tid": threads[e.thread],
                "ts": (e.begin - self.begin) / 1e3, "dur": (e.end - e.begin) / 1e3,
                "args": {key: str(value) for key, value in e.details.items()},
            }
            for e in events
        ]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": [*processes, *named, *entries], "displayTimeUnit": "ns"}), encoding="utf-8")
        return path


def _process(thread: str) -> int:
    return 1 if thread.startswith(_DEVICE) else 0


_DEVICE = "device "
_lock = threading.Lock()
_current: Recording | None = None


def current() -> Recording | None:
    """Return the trace that is being recorded, or None."""
    return _current


def start(folder: Path) -> Recording:
    """Begin a trace; raise `ArgumentError` if there is one."""
    global _current
    with _lock:
        if _current is not None:
            raise ArgumentError("profiler.start_trace: a trace is being recorded already; stop_trace ends it")
        _current = Recording(folder)
        compilation.set_compile_hook(_ObservedProgram)
    clear_caches()  # so that calls find the observed programs
    return _current


def stop() -> Recording | None:
    """End the trace and return it; None if there is none."""
    global _current
    with _lock:
        recording, _current = _current, None
        compilation.set_compile_hook(None)
    clear_caches()
    return recording


class _ObservedProgram:
    """A program that records when it and each of its kernels run."""

    def __init__(self, traced: TracedProgram, device: Device) -> None:
        self.name, self.device = traced.name or "a program", f"{_DEVICE}{device!r}"
        begin = time.perf_counter_ns()
        self._timed = _timed_event(traced, device)
        self._run: Callable[..., Any] = self._timed or device.backend.compile(traced.jaxpr, traced.donated, PIPELINE).run
        if (recording := current()) is not None:
            recording.add(f"compile {self.name}", "compile", begin, time.perf_counter_ns())
        self._lock = threading.Lock()
        self._names: list[tuple[str, str]] = []

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        recording = current()
        if recording is None:
            return self._run(donate, *buffers)
        with self._lock:  # the log is one for all calls
            begin = time.perf_counter_ns()
            results = self._run(donate, *buffers)
            spans = None if self._timed is None else self._timed.noted()
            end = time.perf_counter_ns()
        recording.add(self.name, "program", begin, end, {"device": self.device})
        if spans is not None:
            recording.kernels.append((self, begin, spans))
        return results

    def events(self, begin: int, spans: Sequence[Span]) -> list[Event]:
        """Return the events of a call's kernels, which began at `begin`."""
        if not spans or self._timed is None:
            return []
        if not self._names:
            attributions: dict[int, Attribution] = {}
            names = [("", "")]
            for program, item in filter(None, self._timed.items):
                attribution = attributions.setdefault(id(program), Attribution(program))
                equations = attribution.equations(item)
                names.append((describe(item, equations), ", ".join(map(str, locations_of(equations)[:4]))))
            self._names = names
        offset = begin if self._timed.device == "gpu" else 0  # its clock is another one
        return [
            Event(self._title(numbers), "kernel", offset + a, offset + b, self.device, {"lines": self._names[numbers[0]][1]})
            for numbers, a, b in spans
            if numbers != (0,)
        ]

    def _title(self, numbers: Sequence[int]) -> str:
        return " | ".join([self._names[n][0] for n in numbers])


def _timed_event(traced: TracedProgram, device: Device) -> Any:
    try:
        return device.backend.timed(traced.jaxpr, traced.donated, PIPELINE)
    except DeviceError:  # a GPU without timestamp queries
        return None


# Traces and annotations.

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


# Events that libraries record, and listeners to them: `volta_fn.monitoring`.

Listener = Callable[..., None]

_LISTENERS: dict[str, list[Listener]] = {"event": [], "duration": [], "scalar": [], "time_span": []}


def _notify(kind: str, /, *event: Any, **metadata: Any) -> None:
    for listener in _LISTENERS[kind]:
        listener(*event, **metadata)


def _unregister(kind: str, callback: Listener) -> None:
    _LISTENERS[kind].remove(callback)


def record_event(event: str, **metadata: Any) -> None:
    """Tell the listeners that an event happened.

    >>> heard = []
    >>> register_event_listener(lambda event, **_: heard.append(event))
    >>> record_event("/step")
    >>> clear_event_listeners()
    >>> heard
    ['/step']
    """
    _notify("event", event, **metadata)


def record_event_duration_secs(event: str, duration: float, **metadata: Any) -> None:
    """Tell the listeners how many seconds something took."""
    _notify("duration", event, duration, **metadata)


def record_scalar(event: str, value: float, **metadata: Any) -> None:
    """Tell the listeners a number."""
    _notify("scalar", event, value, **metadata)


def record_event_time_span(event: str, start_time: float, end_time: float, **metadata: Any) -> None:
    """Tell the listeners when something began and ended, in seconds."""
    _notify("time_span", event, start_time, end_time, **metadata)


def register_event_listener(callback: Listener) -> None:
    """Call `callback(event, **metadata)` for events."""
    _LISTENERS["event"].append(callback)


def register_event_duration_secs_listener(callback: Listener) -> None:
    """Call `callback(event, seconds, **metadata)` for durations."""
    _LISTENERS["duration"].append(callback)


def register_scalar_listener(callback: Listener) -> None:
    """Call `callback(event, value, **metadata)` for numbers."""
    _LISTENERS["scalar"].append(callback)


def register_event_time_span_listener(callback: Listener) -> None:
    """Call `callback(event, start, end, **metadata)` for spans of time."""
    _LISTENERS["time_span"].append(callback)


def unregister_event_listener(callback: Listener) -> None:
    """Stop calling a listener of events; raise `ValueError` if it is none."""
    _unregister("event", callback)


def unregister_event_duration_listener(callback: Listener) -> None:
    """Stop calling a listener of durations; raise `ValueError` if it is none."""
    _unregister("duration", callback)


def unregister_scalar_listener(callback: Listener) -> None:
    """Stop calling a listener of numbers; raise `ValueError` if it is none."""
    _unregister("scalar", callback)


def unregister_event_time_span_listener(callback: Listener) -> None:
    """Stop calling a listener of spans of time; raise `ValueError` if it is none."""
    _unregister("time_span", callback)


def clear_event_listeners() -> None:
    """Forget all listeners."""
    for listeners in _LISTENERS.values():
        listeners.clear()
