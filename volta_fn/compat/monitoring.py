"""Events that libraries record, and listeners to them: `jax.monitoring`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
