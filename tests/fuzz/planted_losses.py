"""Devices that are lost at chosen points."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from volta_fn.targets.gpu.queue import Queue
from volta_fn.targets.wgpu import WgpuDriver

#: What a device may be lost at: a method, and how to find the driver.
POINTS: dict[str, tuple[type, str, Callable[[Any], WgpuDriver]]] = {
    "dispatch": (WgpuDriver, "open_pass", lambda driver: driver),
    "batch": (Queue, "submit", lambda queue: queue.driver),
    "readback": (Queue, "take", lambda queue: queue.driver),
    "upload": (Queue, "write", lambda queue: queue.driver),
    "allocation": (WgpuDriver, "create", lambda driver: driver),
    "compile": (WgpuDriver, "compile", lambda driver: driver),
}


class Points:
    """A count of the points passed, and of the losses among them."""

    def __init__(self, losses: Collection[int], kinds: Collection[str]) -> None:
        self.chosen = frozenset(losses)
        self.kinds = kinds
        self.passed = 0
        #: Points passed by kind.
        self.counts = dict.fromkeys(POINTS, 0)
        self.losses = 0

    def wrap(self, kind: str, method: Callable[..., Any], driver: Callable[[Any], WgpuDriver]) -> Callable[..., Any]:
        """Return the method, before which a device may be lost."""

        def passing(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts[kind] += 1
            if kind in self.kinds:
                if self.passed in self.chosen:
                    self.losses += 1
                    driver(self_).destroy()
                self.passed += 1
            return method(self_, *args, **kwargs)

        return passing


@contextmanager
def planted(losses: Collection[int], kinds: Collection[str] = tuple(POINTS)) -> Iterator[Points]:
    """Lose the device when points of some kinds with these numbers are passed."""
    points = Points(losses, kinds)
    with _patched(points, list(POINTS.items())):
        yield points


@contextmanager
def _patched(points: Points, left: list[tuple[str, tuple[type, str, Callable[[Any], WgpuDriver]]]]) -> Iterator[None]:
    if not left:
        yield
        return
    kind, (owner, name, driver) = left[0]
    with patch.object(owner, name, points.wrap(kind, getattr(owner, name), driver)), _patched(points, left[1:]):
        yield
