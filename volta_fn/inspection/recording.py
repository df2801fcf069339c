"""Traces of a profiler: events of the host and of devices.

While a trace is recorded, jitted functions are traced again and run as programs that note the time of each kernel; at its end those are
dropped. So programs that are not profiled run as they always do.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.compiler.program import Item, LoweredProgram
from volta_fn.core.device import Device
from volta_fn.errors import ArgumentError, DeviceError
from volta_fn.inspection.attribution import Attribution, locations_of
from volta_fn.inspection.costs import describe
from volta_fn.inspection.explanation import aligned
from volta_fn.inspection.measure import Span
from volta_fn.inspection.text import duration
from volta_fn.jit import compile as compilation
from volta_fn.jit.cache import clear_caches
from volta_fn.jit.eager import PIPELINE


class Event(NamedTuple):
    """What happened from `begin` to `end`, in nanoseconds, on the host or on a device.

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
        """How long it took."""
        return (self.end - self.begin) / 1e9


#: Events of a trace, at most; later ones are counted only.
_MOST = 1_000_000


class Recording:
    """The events of a trace; `str` gives a table of where the time went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Calls of programs: their begin, and what gives the spans of their kernels, which are made when they are asked for.
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
        if len(self._events) >= _MOST:
            self.lost += 1
            return
        self._events.append(Event(name, kind, begin, end, thread or threading.current_thread().name, details or {}))

    def totals(self) -> list[tuple[str, str, int, float]]:
        """Return kind, name, number and seconds of events of one name, longest first."""
        found: dict[tuple[str, str], tuple[int, float]] = {}
        for event in self.events:
            count, seconds = found.get((event.kind, event.name), (0, 0.0))
            found[event.kind, event.name] = count + 1, seconds + event.seconds
        rows = [(kind, name, count, seconds) for (kind, name), (count, seconds) in found.items()]
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        rows = [(kind, name[:60], f"{count:,}", duration(seconds)) for kind, name, count, seconds in self.totals()[:40]]
        lost = [f"{self.lost:,} more events were not kept"] if self.lost else []
        return "\n".join([*aligned([("kind", "name", "calls", "time"), *rows], right=(2, 3)), *lost])

    __repr__ = __str__

    def write(self) -> Path:
        """Write the events as JSON for Perfetto and Chrome, and return the file's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, found = self.folder / "volta_fn.trace.json", self.events
        threads = {name: number for number, name in enumerate(dict.fromkeys([e.thread for e in found]))}
        named = [
            {"ph": "M", "name": "thread_name", "pid": _process(name), "tid": number, "args": {"name": name}}
            for name, number in threads.items()
        ]
        processes = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in ((0, "host"), (1, "devices"))]
        events = [
            {
                "ph": "X", "name": e.name, "cat": e.kind, "pid": _process(e.thread), "tid": threads[e.thread],
                "ts": (e.begin - self.begin) / 1e3, "dur": (e.end - e.begin) / 1e3,
                "args": {key: str(value) for key, value in e.details.items()},
            }
            for e in found
        ]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": [*processes, *named, *events], "displayTimeUnit": "ns"}), encoding="utf-8")
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
        compilation.set_observer(_ObservedProgram)
    clear_caches()  # so that calls find the observed programs
    return _current


def stop() -> Recording | None:
    """End the trace and return it; None if there is none."""
    global _current
    with _lock:
        found, _current = _current, None
        compilation.set_observer(None)
    clear_caches()
    return found


class _ObservedProgram:
    """A program that notes when it runs, and when each of its kernels does."""

    def __init__(self, traced: compilation.TracedProgram, device: Device) -> None:
        self.name, self.device = traced.name or "a program", f"{_DEVICE}{device!r}"
        begin = time.perf_counter_ns()
        self._timed = _timed(traced, device)
        self._run: Callable[..., Any] = self._timed or device.backend.compile(traced.jaxpr, traced.donated, PIPELINE)
        if (recording := current()) is not None:
            recording.add(f"compile {self.name}", "compile", begin, time.perf_counter_ns())
        self._lock = threading.Lock()
        self._names: list[tuple[str, str]] = []

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        """Run the program on buffers."""
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
            self._names = _names_of(self._timed.items)
        offset = begin if self._timed.device == "gpu" else 0  # its clock is another one
        return [
            Event(self._title(numbers), "kernel", offset + a, offset + b, self.device, {"lines": self._names[numbers[0]][1]})
            for numbers, a, b in spans
            if numbers != (0,)
        ]

    def _title(self, numbers: Sequence[int]) -> str:
        return " | ".join([self._names[n][0] for n in numbers])


def _timed(traced: compilation.TracedProgram, device: Device) -> Any:
    try:
        return device.backend.timed(traced.jaxpr, traced.donated, PIPELINE)
    except DeviceError:  # a GPU without timestamp queries
        return None


def _names_of(items: Sequence[tuple[LoweredProgram, Item] | None]) -> list[tuple[str, str]]:
    """Return the name and the user's lines of each item."""
    known: dict[int, Attribution] = {}
    found = [("", "")]
    for program, item in filter(None, items):
        attribution = known.setdefault(id(program), Attribution(program))
        equations = attribution.equations(item)
        found.append((describe(item, equations), ", ".join(map(str, locations_of(equations)[:4]))))
    return found
