"""Why a function is compiled again: a warning, and what `log_compiles` logs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from volta_fn.core.flatten import argument_labels, function_name
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import RecompilationWarning
from volta_fn.jit.arguments import Request
from volta_fn.settings import current as settings
from volta_fn.source import user_location

_LOG = logging.getLogger("volta_fn")

_EXAMPLES = 4


def warn_of_programs(request: Request, keys: Sequence[Any]) -> None:
    """Warn that a user's function has many programs, given the keys of `Cache.traced`."""
    if str(getattr(request.fun, "__module__", "")).startswith("volta_fn."):
        return
    name = function_name(request.fun)
    reasons = "; ".join(_reasons(request, keys)) or "the named axes or the default device differ"
    message = (
        f"{name} has been compiled {len(keys)} times, once for each kind of arguments: {reasons}. Each takes far longer than a call. Give "
        "arrays of few shapes (pad or batch them), and numbers that change as arrays, not as static arguments. This warning is given once "
        "per function."
    )
    where = user_location()
    warnings.warn_explicit(message, RecompilationWarning, where.file if where else "", where.lineno if where else 0)


def log_trace(request: Request, key: Any, keys: Sequence[Any], program: ClosedJaxpr) -> None:
    """Log that a function is traced, and why none of its programs would do."""
    name, where = function_name(request.fun), user_location()
    at = "" if where is None else f" at {where}"
    if settings.log_compiles:
        types = ", ".join(map(str, key[1])) or "no arrays"
        _LOG.warning("compiling %s for %s: %d equations, called%s", name, types, len(program.eqns), at)
    if not settings.explain_cache_misses:
        return
    if not keys:
        _LOG.warning("cache miss of %s%s: its first call, or the first of a function that is made anew each time", name, at)
        return
    closest = min(keys, key=lambda other: _distance(key, other))
    reasons = "; ".join(_reasons(request, [closest, key])) or "the named axes, the default device or a static argument differ"
    _LOG.warning("cache miss of %s%s: compared with the closest of %d programs, %s", name, at, len(keys), reasons)


def _distance(key: Any, other: Any) -> tuple[int, int]:
    """Return how many entries of two keys differ, and how much their types do."""
    pairs = zip(key[1], other[1], strict=False)
    types = sum((a.shape != b.shape) + (a.dtype != b.dtype) + (a.weak_type != b.weak_type) for a, b in pairs)
    types += 3 * abs(len(key[1]) - len(other[1]))
    return sum(a != b for a, b in zip(key[0], other[0], strict=True)), types


def _reasons(request: Request, keys: Sequence[Any]) -> Iterator[str]:
    """Yield what differs among the keys, in words."""
    structures = {key[0][0] for key in keys}
    if len(structures) > 1:
        yield f"the arguments have {len(structures)} structures, such as {_some(structures)}"
    alike = [key for key in keys if key[0][0] == request.in_tree]
    labels = argument_labels(request.function, request.in_tree, len(request.leaves))
    for label, *avals in zip(labels, *[key[1] for key in alike], strict=True):
        types = dict.fromkeys(avals)
        if len(types) > 1:
            yield f"{label} has {len(types)} types, such as {_some([f'weak {a}' if a.weak_type else str(a) for a in types])}"
    yield from _statics(alike)


def _statics(keys: Sequence[Any]) -> Iterator[str]:
    values: dict[Any, dict[str, None]] = {}
    for key in keys:
        for static, _, value in (*key[0][1], *key[0][2]):
            values.setdefault(static, {})[f"{value!r:.40}"] = None
    for static, found in values.items():
        if len(found) > 1:
            yield f"the static argument {static!r} has {len(found)} values, such as {_some(found)}"


def _some(values: Iterable[Any]) -> str:
    """Return the last of some values, in words."""
    return ", ".join(f"{v!s:.80}" for v in list(values)[-_EXAMPLES:])
