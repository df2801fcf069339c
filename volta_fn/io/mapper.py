"""Mappings between state dicts: rules that rename, select and change arrays."""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from volta_fn.errors import ArgumentError, ArgumentTypeError, StateDictError
from volta_fn.io.arrays import is_array

StateDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A function from state dict to state dict, and the call that describes it."""

    description: str
    function: Callable[[StateDict], StateDict]


@dataclass(frozen=True, slots=True, repr=False)
class StateDictMapper:
    """A chain of rules that maps a state dict to another.

    Each method returns a longer chain; calling the mapper applies the rules.

    Mappers are immutable and may be shared. ``first | second`` applies one after the other. A *prefix* ends at a dot of the name, which may
    be left out; a *pattern* is one of file names: ``*`` matches any text (also dots), ``?`` one character, and a name matches itself.

    A rule that applies to no array raises `StateDictError`, unless it is ``optional=True``; so do two arrays of the same name.

    >>> import volta_fn as vf
    >>> mapper = vf.io.StateDictMapper().strip_prefix("model").rename_prefix("fc", "linear").transpose("linear.weight")
    >>> state = mapper({"model.fc.weight": vf.numpy.ones((2, 3)), "model.fc.bias": vf.numpy.ones(2)})
    >>> {name: array.shape for name, array in state.items()}
    {'linear.weight': (3, 2), 'linear.bias': (2,)}
    """

    rules: tuple[Rule, ...] = ()

    def __call__(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new state dict; the old one (maybe an open file) stays unchanged.

        Raises `StateDictError` if a rule does not apply, and `ArgumentTypeError` if it should change something other than an array.
        """
        current = dict(state)
        for rule in self.rules:
            current = rule.function(current)
        return current

    def __or__(self, other: object) -> StateDictMapper:
        return StateDictMapper.compose(self, other) if isinstance(other, StateDictMapper) else NotImplemented

    def __repr__(self) -> str:
        return ".".join(["StateDictMapper()", *[rule.description for rule in self.rules]])

    @classmethod
    def compose(cls, *mappers: StateDictMapper) -> StateDictMapper:
        """Chain several mappers, the first one first.

        >>> StateDictMapper.compose(StateDictMapper().rename("a", "b"), StateDictMapper().add_prefix("x"))
        StateDictMapper().rename('a', 'b').add_prefix('x')
        """
        return cls(tuple([rule for mapper in mappers for rule in mapper.rules]))

    def rename(self, old: str, new: str, *, optional: bool = False) -> StateDictMapper:
        """Rename one array."""
        return self._and(renaming(f"rename({old!r}, {new!r})", {old: new}.get, optional, [old]))

    def rename_keys(self, names: Mapping[str, str], *, optional: bool = False) -> StateDictMapper:
        """Rename several arrays at once, so that names may be exchanged.

        Each must exist, unless `optional`.

        >>> import volta_fn as vf
        >>> StateDictMapper().rename_keys({"a": "b", "b": "a"})({"a": vf.numpy.zeros(1), "b": vf.numpy.ones(1)})
        {'b': Array([0.], dtype=float32), 'a': Array([1.], dtype=float32)}
        """
        table = dict(names)
        return self._and(renaming(f"rename_keys({table!r})", table.get, optional or not table, table))

    def rename_prefix(self, old: str, new: str, *, optional: bool = False) -> StateDictMapper:
        """Replace the prefix of names: `old.x` becomes `new.x`."""
        return self._and(renaming(f"rename_prefix({old!r}, {new!r})", _prefix_changer(old, _with_dot(new)), optional))

    def strip_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Remove a prefix from the names that have it; `select_prefix` drops the others."""
        return self._and(renaming(f"strip_prefix({prefix!r})", _prefix_changer(prefix, ""), optional))

    def add_prefix(self, prefix: str) -> StateDictMapper:
        """Add a prefix to all names."""
        before = _with_dot(prefix)
        return self._and(renaming(f"add_prefix({prefix!r})", lambda name: before + name, optional=True))

    def rename_regex(self, pattern: str, replacement: str, *, optional: bool = False) -> StateDictMapper:
        r"""Replace matches of a regular expression in names, as `re.sub` does.

        Raises `ArgumentError` for an invalid expression or replacement.

        >>> import volta_fn as vf
        >>> StateDictMapper().rename_regex(r"block(\d+)", r"blocks.\1")({"block3.w": vf.numpy.ones(1)})
        {'blocks.3.w': Array([1.], dtype=float32)}
        """
        text = f"rename_regex({pattern!r}, {replacement!r})"
        try:
            compiled = re.compile(pattern)
            compiled.sub(replacement, "")  # raises for an invalid replacement, even without a match
        except (re.error, IndexError) as error:
            raise ArgumentError(f"{text}: not a valid regular expression: {error}") from error
        return self._and(renaming(text, lambda name: compiled.sub(replacement, name) if compiled.search(name) else None, optional))

    def select_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Keep the arrays that match a pattern; each must match one, unless `optional`."""
        return self._and(choosing(_call("select_keys", patterns), patterns, True, optional))

    def exclude_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Drop the arrays that match a pattern; each must match one, unless `optional`."""
        return self._and(choosing(_call("exclude_keys", patterns), patterns, False, optional))

    def select_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Keep only the arrays below a prefix, and remove it.

        It selects the arrays of one submodule of a model.

        >>> import volta_fn as vf
        >>> list(StateDictMapper().select_prefix("encoder")({"encoder.w": vf.numpy.ones(1), "head.w": vf.numpy.ones(1)}))
        ['w']
        """
        below = glob.escape(_with_dot(prefix)) + "*"
        return self.select_keys(below, optional=optional).strip_prefix(prefix, optional=optional)

    def transpose(self, *names: str, axes: Sequence[int] | None = None, optional: bool = False) -> StateDictMapper:
        """Transpose the arrays of those names. Without `axes` they must be matrices."""
        text = _call("transpose", names, axes)
        return self._and(changing(text, [*map(glob.escape, names)], lambda name, x: transposed(text, name, x, axes), optional))

    def transpose_pattern(self, pattern: str, *, axes: Sequence[int] | None = None, optional: bool = False) -> StateDictMapper:
        """Transpose the arrays whose names match; without `axes` they must be matrices."""
        text = _call("transpose_pattern", [pattern], axes)
        return self._and(changing(text, [pattern], lambda name, x: transposed(text, name, x, axes), optional))

    def transform(self, function: Callable[[str, Any], Any], pattern: str = "*", *, optional: bool = False) -> StateDictMapper:
        """Replace each array whose name matches by ``function(name, array)``.

        >>> import volta_fn as vf
        >>> halved = StateDictMapper().transform(lambda name, array: array / 2, "*.weight")
        >>> halved({"fc.weight": vf.numpy.ones(1), "fc.bias": vf.numpy.ones(1)})
        {'fc.weight': Array([0.5], dtype=float32), 'fc.bias': Array([1.], dtype=float32)}
        """
        text = f"transform({getattr(function, '__name__', repr(function))}, {pattern!r})"
        return self._and(changing(text, [pattern], function, optional or pattern == "*"))

    def _and(self, rule: Rule) -> StateDictMapper:
        return StateDictMapper((*self.rules, rule))


def _with_dot(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


def _prefix_changer(old: str, new: str) -> Callable[[str], str | None]:
    before = _with_dot(old)
    return lambda name: new + name.removeprefix(before) if name.startswith(before) else None


def _call(method: str, arguments: Sequence[str], axes: Sequence[int] | None = None) -> str:
    """Return a call as it reads in the program."""
    given = [*map(repr, arguments)] + ([] if axes is None else [f"axes={tuple(axes)}"])
    return f"{method}({', '.join(given)})"


# The rules.


def renaming(description: str, renamed: Callable[[str], str | None], optional: bool, required: Collection[str] = ()) -> Rule:
    """Rename the arrays for which `renamed` returns a name.

    The `required` names, or at least one, must exist, unless `optional`.
    """

    def function(state: StateDict) -> StateDict:
        new = {name: renamed(name) for name in state}
        absent = [name for name in required if name not in state]
        if not optional and (absent or all(name is None for name in new.values())):
            raise StateDictError(_nothing_found(description, absent, state))
        return unique(description, [(name if other is None else other, state[name]) for name, other in new.items()])

    return Rule(description, function)


def choosing(description: str, patterns: Sequence[str], keep: bool, optional: bool) -> Rule:
    """Keep the arrays whose names match a pattern (or, without `keep`, do not)."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: value for name, value in state.items() if _matches(name, patterns) == keep}

    return Rule(description, function)


def changing(description: str, patterns: Sequence[str], change: Callable[[str, Any], Any], optional: bool) -> Rule:
    """Replace each array whose name matches by ``change(name, array)``."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: _changed(description, name, value, change) if _matches(name, patterns) else value for name, value in state.items()}

    return Rule(description, function)


def unique(description: str, pairs: Iterable[tuple[str, Any]]) -> StateDict:
    """Return the state dict of these pairs; `StateDictError` for duplicate names."""
    found: StateDict = {}
    for name, value in pairs:
        if name in found:
            raise StateDictError(f"{description}: two arrays get the name {name!r}")
        found[name] = value
    return found


def transposed(description: str, name: str, value: Any, axes: Sequence[int] | None) -> Any:
    """Transpose an array by `axes`, or a matrix."""
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


def _check_array(description: str, subject: str, value: Any) -> None:
    if not is_array(value):
        raise ArgumentTypeError(f"{description}: {subject} not an array but {type(value).__name__}")


def _nothing_found(description: str, absent: Sequence[str], state: Mapping[str, Any]) -> str:
    wanted = "names like " + ", ".join(map(repr, absent)) if absent else "a name that fits"
    close = [name for other in absent for name in difflib.get_close_matches(other, state, 3)]
    known = list(dict.fromkeys([*close, *state]))
    shown = ", ".join(known[:6]) + (", …" if len(known) > 6 else "")
    return f"{description}: there is no array with {wanted}; there are {len(state)}: {shown}. optional=True allows this."
