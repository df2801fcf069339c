"""Functions that are compiled in the background once they have been called twice.

Compiling takes longer than most calls, and much of what runs eagerly runs once. So a `Repeated` function does its first two calls as it is.
The second one has it compiled by the background thread, and the third one waits for what is left of that. When the compiled function takes
over thus depends on the number of calls and not on time, so a program that is run again gives the same bits.

What a function calls during its first two calls is part of it, and is not counted by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.lazy_imports import deferred
from volta_fn.runtime.compiling import included
from volta_fn.runtime.threads import AwaitedCall, Background

#: Returns the compiled function, or None if the function is to stay as it is.
Make = Callable[[], Callable[..., Any] | None]


class _Inside(threading.local):
    """Whether this thread is in one of the first calls of a repeated function."""

    now = False


_inside = _Inside()
_background = Background()
#: Call a function that a thread waits for: compilations in the background begin after it.
urgent = _background.urgent


def shares_memory(result: Any, operands: Sequence[Any]) -> bool:
    """Return True if a NumPy array is a view of another one: nothing was computed."""
    return isinstance(result, np.ndarray) and any(np.may_share_memory(result, operand) for operand in operands)


class Repeated:
    """A function that is compiled once it has been called twice; see the module.

    `pays` tells, by the second call's result and arguments, whether it is worth compiling. `then` is given what does all later calls: the
    compiled function or, if there is none, the function itself. It may have the caller use that from then on.
    """

    __slots__ = ("_first", "_job", "_make", "_pays", "run", "then")

    def __init__(self, first: Callable[..., Any], make: Make, pays: Callable[..., bool] = lambda result, *args: True) -> None:
        self._first, self._make, self._pays = first, make, pays
        #: The compilation.
        self._job: AwaitedCall | None = None
        #: What a call does now.
        self.run: Callable[..., Any] = self._once
        self.then: Callable[[Callable[..., Any]], None] = lambda function: None

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.run(*args)

    def _once(self, *args: Any) -> Any:
        if not _inside.now:
            self.run = self._twice
        return self._uncompiled(args)

    def _twice(self, *args: Any) -> Any:
        result = self._uncompiled(args)
        if not _inside.now:
            if self._pays(result, *args):
                self._job = _background.submit(self._made)
                self.run = self._compiled
            else:
                self._settle(self._first)
        return result

    def _made(self) -> Callable[..., Any] | None:
        """Return the compiled function, or None if the process ends anyway."""
        return included(self._make) if threading.main_thread().is_alive() else None

    def _compiled(self, *args: Any) -> Any:
        job = self._job
        assert job is not None
        try:
            made = _background.result(job) if job.process == os.getpid() or job.done() else self._make()
        except Exception:
            deferred("logging").getLogger("volta_fn").debug("an eager function stays uncompiled", exc_info=True)
            made = None
        self._settle(made or self._first)
        return self.run(*args)

    def _settle(self, function: Callable[..., Any]) -> None:
        self.run = function
        self.then(function)

    def _uncompiled(self, args: tuple[Any, ...]) -> Any:
        before, _inside.now = _inside.now, True
        try:
            return self._first(*args)
        finally:
            _inside.now = before
