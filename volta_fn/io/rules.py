"""The steps of a state-dict mapper: functions from state dict to state dict that know how to say what they did not find."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from volta_fn.errors import ArgumentTypeError, StateDictError
from volta_fn.io.arrays import is_array

StateDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A step: what it does, as its call reads, and the function that does it."""

    description: str
    function: Callable[[StateDict], StateDict]


def renaming(description: str, renamed: Callable[[str], str | None], optional: bool, required: Collection[str] = ()) -> Rule:
    """The names for which `renamed` gives another get that. Those `required` must be there, or at least one, unless `optional`."""

    def function(state: StateDict) -> StateDict:
        new = {name: renamed(name) for name in state}
        absent = [name for name in required if name not in state]
        if not optional and (absent or all(name is None for name in new.values())):
            raise StateDictError(_nothing_found(description, absent, state))
        return unique(description, [(name if other is None else other, state[name]) for name, other in new.items()])

    return Rule(description, function)


def choosing(description: str, patterns: Sequence[str], keep: bool, optional: bool) -> Rule:
    """Only the arrays whose names match (or, without `keep`, do not match) one of the patterns stay."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: value for name, value in state.items() if _matches(name, patterns) == keep}

    return Rule(description, function)


def changing(description: str, patterns: Sequence[str], change: Callable[[str, Any], Any], optional: bool) -> Rule:
    """Each array whose name matches gives way to ``change(name, array)``."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: _changed(description, name, value, change) if _matches(name, patterns) else value for name, value in state.items()}

    return Rule(description, function)


def unique(description: str, pairs: Iterable[tuple[str, Any]]) -> StateDict:
    """The state dict of those pairs. Raises `StateDictError` if a name comes twice."""
    found: StateDict = {}
    for name, value in pairs:
        if name in found:
            raise StateDictError(f"{description}: two arrays get the name {name!r}")
        found[name] = value
    return found


def transposed(description: str, name: str, value: Any, axes: Sequence[int] | None) -> Any:
    """An array with its axes in another order, by default a matrix's transpose."""
    order = (1, 0) if axes is None else tuple(axes)
    if sorted(order) != list(range(value.ndim)):
        wanted = "only matrices are transposed without axes" if axes is None else f"axes {order} are not those of the array"
        raise StateDictError(f"{description}: {name!r} has shape {tuple(value.shape)}; {wanted}")
    return value.transpose(order)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_matched(description: str, patterns: Sequence[str], state: Mapping[str, Any], optional: bool) -> None:
    absent = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in state)]
    if absent and not optional:
        raise StateDictError(_nothing_found(description, absent, state))


def _changed(description: str, name: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    _check_array(description, f"{name!r} is", value)
    new = change(name, value)
    _check_array(description, f"{name!r} became", new)
    return new


def _check_array(description: str, what: str, value: Any) -> None:
    if not is_array(value):
        raise ArgumentTypeError(f"{description}: {what} no array but {type(value).__name__}")


def _nothing_found(description: str, absent: Sequence[str], state: Mapping[str, Any]) -> str:
    what = "names like " + ", ".join(map(repr, absent)) if absent else "a name that fits"
    close = [name for wanted in absent for name in difflib.get_close_matches(wanted, state, 3)]
    known = list(dict.fromkeys([*close, *state]))
    shown = ", ".join(known[:6]) + (", …" if len(known) > 6 else "")
    return f"{description}: there is no array with {what}; there are {len(state)}: {shown}. With optional=True that is allowed."
