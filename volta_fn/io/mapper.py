"""Mappings between state dicts of different origins: chains of rules that rename, choose and change arrays."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volta_fn.errors import ArgumentError
from volta_fn.io.rules import Rule, changing, choosing, renaming, transposed


@dataclass(frozen=True, slots=True, repr=False)
class StateDictMapper:
    """A chain of rules that makes one state dict out of another. Each method returns a longer chain; calling it applies the rules.

    Mappers are immutable and may be shared. ``first | second`` applies one after the other. *Prefixes* are whole parts of dotted names,
    with or without the dot at their end; *patterns* are those of file names, in which ``*`` stands for any text (dots, too) and ``?`` for
    one character, so that a name is a pattern for itself.

    A rule that finds nothing to do is a mistake, and so are two arrays that get the same name: both raise `StateDictError`. With
    ``optional=True`` a rule need not find anything.

    >>> import volta_fn as vf
    >>> mapper = vf.io.StateDictMapper().strip_prefix("model").rename_prefix("fc", "linear").transpose("linear.weight")
    >>> state = mapper({"model.fc.weight": vf.numpy.ones((2, 3)), "model.fc.bias": vf.numpy.ones(2)})
    >>> {name: array.shape for name, array in state.items()}
    {'linear.weight': (3, 2), 'linear.bias': (2,)}
    """

    rules: tuple[Rule, ...] = ()

    def __call__(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The new state dict. The old one, which may be a file that is open, stays as it is.

        Raises `StateDictError` where a rule does not fit, and `ArgumentTypeError` for values to change that are no arrays.
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
        """The mapper that applies several, the first one first.

        >>> StateDictMapper.compose(StateDictMapper().rename("a", "b"), StateDictMapper().add_prefix("x"))
        StateDictMapper().rename('a', 'b').add_prefix('x')
        """
        return cls(tuple([rule for mapper in mappers for rule in mapper.rules]))

    def rename(self, old: str, new: str, *, optional: bool = False) -> StateDictMapper:
        """Give one array another name."""
        return self._and(renaming(f"rename({old!r}, {new!r})", {old: new}.get, optional, [old]))

    def rename_keys(self, names: Mapping[str, str], *, optional: bool = False) -> StateDictMapper:
        """Give several arrays other names, all at once, so that names may be exchanged. Each must be there, unless `optional`.

        >>> import volta_fn as vf
        >>> StateDictMapper().rename_keys({"a": "b", "b": "a"})({"a": vf.numpy.zeros(1), "b": vf.numpy.ones(1)})
        {'b': Array([0.], dtype=float32), 'a': Array([1.], dtype=float32)}
        """
        table = dict(names)
        return self._and(renaming(f"rename_keys({table!r})", table.get, optional or not table, table))

    def rename_prefix(self, old: str, new: str, *, optional: bool = False) -> StateDictMapper:
        """Put other parts of a name in the place of the first ones: `old.x` becomes `new.x`."""
        return self._and(renaming(f"rename_prefix({old!r}, {new!r})", _prefix_changer(old, _with_dot(new)), optional))

    def strip_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Take a prefix off the names that have it; others stay. `select_prefix` drops them."""
        return self._and(renaming(f"strip_prefix({prefix!r})", _prefix_changer(prefix, ""), optional))

    def add_prefix(self, prefix: str) -> StateDictMapper:
        """Put a prefix before all names."""
        before = _with_dot(prefix)
        return self._and(renaming(f"add_prefix({prefix!r})", lambda name: before + name, optional=True))

    def rename_regex(self, pattern: str, replacement: str, *, optional: bool = False) -> StateDictMapper:
        r"""Replace what a regular expression finds in names, as `re.sub` does. Raises `ArgumentError` for an invalid one.

        >>> import volta_fn as vf
        >>> StateDictMapper().rename_regex(r"block(\d+)", r"blocks.\1")({"block3.w": vf.numpy.ones(1)})
        {'blocks.3.w': Array([1.], dtype=float32)}
        """
        text = f"rename_regex({pattern!r}, {replacement!r})"
        try:
            compiled = re.compile(pattern)
            compiled.sub(replacement, "")  # finds faults in the replacement, even where nothing is found
        except (re.error, IndexError) as error:
            raise ArgumentError(f"{text}: no valid regular expression: {error}") from error
        return self._and(renaming(text, lambda name: compiled.sub(replacement, name) if compiled.search(name) else None, optional))

    def select_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Keep only the arrays whose names match one of the patterns. Each pattern must match something, unless `optional`."""
        return self._and(choosing(_call("select_keys", patterns), patterns, True, optional))

    def exclude_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Drop the arrays whose names match one of the patterns. Each pattern must match something, unless `optional`."""
        return self._and(choosing(_call("exclude_keys", patterns), patterns, False, optional))

    def select_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Keep only the arrays below a prefix, without it: the part of a checkpoint that belongs to one part of a model.

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
        """Transpose the arrays whose names match a pattern. Without `axes` they must be matrices."""
        text = _call("transpose_pattern", [pattern], axes)
        return self._and(changing(text, [pattern], lambda name, x: transposed(text, name, x, axes), optional))

    def transform(self, function: Callable[[str, Any], Any], pattern: str = "*", *, optional: bool = False) -> StateDictMapper:
        """Put ``function(name, array)`` in the place of each array whose name matches.

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
    """A call as it reads in the program."""
    given = [*map(repr, arguments)] + ([] if axes is None else [f"axes={tuple(axes)}"])
    return f"{method}({', '.join(given)})"
