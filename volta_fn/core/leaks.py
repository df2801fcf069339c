"""Find traced values that outlive their trace, as `checking_leaks` asks for."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import FrameType
from typing import Any

from volta_fn.core.trace import Trace, Tracer
from volta_fn.errors import LeakedTracerError


def check_leaks(trace: Trace) -> None:
    """Raise `LeakedTracerError` if something refers to a tracer of a finished trace."""
    found = _tracers(trace)
    if found:
        gc.collect()  # what only a cycle holds is no leak
        found = _tracers(trace)
    if not found:
        return
    first, several = found[0], len(found) > 1
    holders = [_describe(holder) for holder in gc.get_referrers(first) if holder is not found]
    values = f"{len(found)} traced values" if several else "a traced value"
    raise LeakedTracerError(
        f"checking_leaks: {values} of {trace.name or 'a function'} outlive{'s' * (not several)} its trace, {'the first ' * several}"
        f"of type {first.aval}: it is {first.origin()}, and is held by {_listed(holders)}. "
        "Return such values from the function; do not store them in globals, attributes, lists or closures."
    )


def _tracers(trace: Trace) -> list[Tracer]:
    return [value for value in gc.get_referrers(trace) if isinstance(value, Tracer)]


def _listed(holders: Sequence[str]) -> str:
    return ", ".join(filter(None, dict.fromkeys(holders))) or "something outside of Python"


def _describe(holder: Any) -> str:
    if isinstance(holder, FrameType):
        return "" if holder.f_globals.get("__name__", "").startswith("volta_fn") else f"a variable of {holder.f_code.co_qualname}"
    return f"a {type(holder).__name__}"
