"""Mappings between state dicts, and from PyTorch's names and layouts."""

from __future__ import annotations

import difflib
import functools
import glob
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Never

from volta_fn import nn, tree
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, StateDictError
from volta_fn.io.state_dict import Prefixes, castable, children_by_name, is_array, joined, leaves_by_name, matching_children
from volta_fn.nn.recurrent import Cell, RecurrentLayer

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
        if not isinstance(state, Mapping):
            method = ": call its state_dict()" if hasattr(state, "state_dict") else ""
            raise ArgumentTypeError(f"StateDictMapper: it takes a state dict, arrays by name, got {type(state).__name__}{method}")
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
        return self._append(rename_rule(f"rename({old!r}, {new!r})", {old: new}.get, optional, [old]))

    def rename_keys(self, names: Mapping[str, str], *, optional: bool = False) -> StateDictMapper:
        """Rename several arrays at once, so that names may be exchanged.

        Each must exist, unless `optional`.

        >>> StateDictMapper().rename_keys({"a": "b", "b": "a"})({"a": vf.numpy.zeros(1), "b": vf.numpy.ones(1)})
        {'b': Array([0.], dtype=float32), 'a': Array([1.], dtype=float32)}
        """
        table = dict(names)
        return self._append(rename_rule(f"rename_keys({table!r})", table.get, optional or not table, table))

    def rename_prefix(self, old: str, new: str, *, optional: bool = False) -> StateDictMapper:
        """Replace the prefix of names: `old.x` becomes `new.x`."""
        return self._append(rename_rule(f"rename_prefix({old!r}, {new!r})", _prefix_changer(old, _with_dot(new)), optional))

    def strip_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Remove a prefix from the names that have it; `select_prefix` drops the others."""
        return self._append(rename_rule(f"strip_prefix({prefix!r})", _prefix_changer(prefix, ""), optional))

    def add_prefix(self, prefix: str) -> StateDictMapper:
        """Add a prefix to all names."""
        before = _with_dot(prefix)
        return self._append(rename_rule(f"add_prefix({prefix!r})", lambda name: before + name, optional=True))

    def rename_regex(self, pattern: str, replacement: str, *, optional: bool = False) -> StateDictMapper:
        r"""Replace matches of a regular expression in names, as `re.sub` does.

        Raises `ArgumentError` for an invalid expression or replacement.

        >>> StateDictMapper().rename_regex(r"block(\d+)", r"blocks.\1")({"block3.w": vf.numpy.ones(1)})
        {'blocks.3.w': Array([1.], dtype=float32)}
        """
        text = f"rename_regex({pattern!r}, {replacement!r})"
        try:
            compiled = re.compile(pattern)
            compiled.sub(replacement, "")  # raises for an invalid replacement, even without a match
        except (re.error, IndexError) as error:
            raise ArgumentError(f"{text}: not a valid regular expression: {error}") from error
        return self._append(rename_rule(text, lambda name: compiled.sub(replacement, name) if compiled.search(name) else None, optional))

    def select_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Keep the arrays that match a pattern; each must match one, unless `optional`."""
        return self._append(select_rule(_call("select_keys", patterns), patterns, True, optional))

    def exclude_keys(self, *patterns: str, optional: bool = False) -> StateDictMapper:
        """Drop the arrays that match a pattern; each must match one, unless `optional`."""
        return self._append(select_rule(_call("exclude_keys", patterns), patterns, False, optional))

    def select_prefix(self, prefix: str, *, optional: bool = False) -> StateDictMapper:
        """Keep only the arrays below a prefix, and remove it.

        It selects the arrays of one submodule of a model.

        >>> list(StateDictMapper().select_prefix("encoder")({"encoder.w": vf.numpy.ones(1), "head.w": vf.numpy.ones(1)}))
        ['w']
        """
        below = glob.escape(_with_dot(prefix)) + "*"
        return self.select_keys(below, optional=optional).strip_prefix(prefix, optional=optional)

    def transpose(self, *names: str, axes: Sequence[int] | None = None, optional: bool = False) -> StateDictMapper:
        """Transpose the arrays of those names. Without `axes` they must be matrices."""
        text = _call("transpose", names, axes)
        return self._append(transform_rule(text, [*map(glob.escape, names)], lambda name, x: transposed(text, name, x, axes), optional))

    def transpose_pattern(self, pattern: str, *, axes: Sequence[int] | None = None, optional: bool = False) -> StateDictMapper:
        """Transpose the arrays whose names match; without `axes` they must be matrices."""
        text = _call("transpose_pattern", [pattern], axes)
        return self._append(transform_rule(text, [pattern], lambda name, x: transposed(text, name, x, axes), optional))

    def transform(self, function: Callable[[str, Any], Any], pattern: str = "*", *, optional: bool = False) -> StateDictMapper:
        """Replace each array whose name matches by ``function(name, array)``.

        >>> halved = StateDictMapper().transform(lambda name, array: array / 2, "*.weight")
        >>> halved({"fc.weight": vf.numpy.ones(1), "fc.bias": vf.numpy.ones(1)})
        {'fc.weight': Array([0.5], dtype=float32), 'fc.bias': Array([1.], dtype=float32)}
        """
        text = f"transform({getattr(function, '__name__', repr(function))}, {pattern!r})"
        return self._append(transform_rule(text, [pattern], function, optional or pattern == "*"))

    def _append(self, rule: Rule) -> StateDictMapper:
        return StateDictMapper((*self.rules, rule))


def _with_dot(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


def _prefix_changer(old: str, new: str) -> Callable[[str], str | None]:
    before = _with_dot(old)
    return lambda name: new + name.removeprefix(before) if name.startswith(before) else None


def _call(method: str, arguments: Sequence[str], axes: Sequence[int] | None = None) -> str:
    """Return a call as it reads in the program."""
    texts = [*map(repr, arguments)] + ([] if axes is None else [f"axes={tuple(axes)}"])
    return f"{method}({', '.join(texts)})"


# The rules.


def rename_rule(description: str, renamed: Callable[[str], str | None], optional: bool, required: Collection[str] = ()) -> Rule:
    """Rename the arrays for which `renamed` returns a name.

    The `required` names, or at least one, must exist, unless `optional`.
    """

    def function(state: StateDict) -> StateDict:
        new = {name: renamed(name) for name in state}
        absent = [name for name in required if name not in state]
        if not optional and (absent or all(name is None for name in new.values())):
            raise StateDictError(_no_match(description, absent, state))
        return unique(description, [(name if other is None else other, state[name]) for name, other in new.items()])

    return Rule(description, function)


def select_rule(description: str, patterns: Sequence[str], keep: bool, optional: bool) -> Rule:
    """Keep the arrays whose names match a pattern (or, without `keep`, do not)."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: value for name, value in state.items() if _matches(name, patterns) == keep}

    return Rule(description, function)


def transform_rule(description: str, patterns: Sequence[str], change: Callable[[str, Any], Any], optional: bool) -> Rule:
    """Replace each array whose name matches by ``change(name, array)``."""

    def function(state: StateDict) -> StateDict:
        _check_matched(description, patterns, state, optional)
        return {name: _apply(description, name, value, change) if _matches(name, patterns) else value for name, value in state.items()}

    return Rule(description, function)


def unique(description: str, pairs: Iterable[tuple[str, Any]]) -> StateDict:
    """Return the state dict of these pairs; `StateDictError` for duplicate names."""
    state: StateDict = {}
    for name, value in pairs:
        if name in state:
            raise StateDictError(f"{description}: two arrays get the name {name!r}")
        state[name] = value
    return state


def transposed(description: str, name: str, value: Any, axes: Sequence[int] | None) -> Any:
    """Transpose an array by `axes`, or a matrix."""
    order = (1, 0) if axes is None else tuple(axes)
    if sorted(order) != list(range(value.ndim)):
        expected = "only matrices are transposed without axes" if axes is None else f"axes {order} are not those of the array"
        raise StateDictError(f"{description}: {name!r} has shape {tuple(value.shape)}; {expected}")
    return value.transpose(order)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_matched(description: str, patterns: Sequence[str], state: Mapping[str, Any], optional: bool) -> None:
    absent = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in state)]
    if absent and not optional:
        raise StateDictError(_no_match(description, absent, state))


def _apply(description: str, name: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    _check_array(description, f"{name!r} is", value)
    new = change(name, value)
    _check_array(description, f"{name!r} became", new)
    return new


def _check_array(description: str, subject: str, value: Any) -> None:
    if not is_array(value):
        raise ArgumentTypeError(f"{description}: {subject} not an array but {type(value).__name__}")


def _no_match(description: str, absent: Sequence[str], state: Mapping[str, Any]) -> str:
    expected = "names like " + ", ".join(map(repr, absent)) if absent else "a name that fits"
    close = [name for other in absent for name in difflib.get_close_matches(other, state, 3)]
    names = list(dict.fromkeys([*close, *state]))
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    return f"{description}: there is no array with {expected}; there are {len(state)}: {shown}. optional=True allows this."


# From PyTorch's names and layouts to ours, by the types of the modules.
#
# The shapes of arrays play no role. Most names and layouts are the same, except for these:
#
# Linear, recurrent cells          matrices are transposed: (in, out) here, (out, in) there. Embeddings are not.
# BatchNorm1d/2d/3d                running_mean, running_var and num_batches_tracked are the layer's state: mean, var, batches
# RNN, LSTM, GRU                   weight_ih_l0_reverse is reverse_cells.0.weight_ih
# MultiHeadAttention               in_proj_weight and in_proj_bias hold those of q_proj, k_proj and v_proj, one after the other
# TransformerEncoder/DecoderLayer  linear1 and linear2 are those of feed_forward; multihead_attn is cross_attn
# WeightNorm                       weight_v and weight_g are the layer's weight and magnitude
# SpectralNorm                     weight_orig is the layer's weight; weight_u and weight_v are the layer's state

Convert = Callable[[Any], Any]
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
#: Names in PyTorch of children of a transformer's layer, unless they have their own names there.
_RENAMED = {"feed_forward": "", "cross_attn": "multihead_attn"}


def from_torch(template: Any, *state_dicts: Never) -> StateDictMapper:
    """Return the mapper from a PyTorch module's names and layouts to a model's here.

    Its result fits ``load_state_dict(template, …)``. It takes arrays, and PyTorch's tensors, of which it makes copies. The types of the
    modules tell which arrays are transposed, split or renamed. Layers of a `Sequential` may have numbers in PyTorch and names here. Batch
    norms count their batches from 0 if the file has no count (before PyTorch 0.4.1). Arrays that the model does not know keep their names,
    and loading reports them.

    Args:
        template: a model, or a pair ``(model, state)`` as from `init`, of arrays or `ShapeDtypeStruct`.

    >>> model, state = vf.nn.Sequential.init(fc=vf.nn.Linear.init(vf.random.key(0), 3, 2), norm=vf.nn.BatchNorm1d.init(2))
    >>> ones = vf.numpy.ones(2)
    >>> saved = {"0.weight": vf.numpy.ones((2, 3)), "0.bias": ones, "1.weight": ones, "1.bias": ones,
    ...          "1.running_mean": ones, "1.running_var": ones, "1.num_batches_tracked": vf.numpy.array(7)}
    >>> mapper = vf.io.from_torch((model, state))
    >>> model, state = vf.io.load_state_dict((model, state), mapper(saved))
    >>> model.fc.weight.shape, state["norm"].batches
    ((3, 2), Array(7, dtype=int32))
    """
    if state_dicts or any(map(_is_tensor, tree.leaves(template))):
        raise ArgumentTypeError(
            "from_torch takes the model here alone, and returns a mapper for PyTorch's state dict: "
            "load_state_dict(model, from_torch(model)(torch_model.state_dict()))"
        )
    description = "from_torch(...)"

    def function(state: Mapping[str, Any]) -> dict[str, Any]:
        state = {name: vnp.from_dlpack(x.detach().cpu().clone()) if _is_tensor(x) else x for name, x in state.items()}
        sources = _sources(template, state)
        converted = [(name, source.of(state)) for name, source in sources.items() if source.is_in(state)]
        used = {source.theirs for source in sources.values()}
        rest = [(name, value) for name, value in state.items() if name not in used]
        return unique(description, [*converted, *rest])

    return StateDictMapper((Rule(description, function),))


def _is_tensor(value: Any) -> bool:
    """Return True for a tensor of PyTorch, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "torch"


def _identity(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Source:
    """An array's name in PyTorch, its conversion, and its default if it is missing."""

    theirs: str
    convert: Convert
    default: Callable[[], Any] | None = None

    def is_in(self, state: Mapping[str, Any]) -> bool:
        return self.theirs in state or self.default is not None

    def of(self, state: Mapping[str, Any]) -> Any:
        return self.default() if self.default is not None and self.theirs not in state else self.convert(state[self.theirs])


@dataclass(frozen=True, slots=True)
class _Location:
    """A module's name here and in PyTorch, and its state and the state's name."""

    ours: str
    theirs: str
    state_name: str = ""
    state: Any = None

    def child(self, name: str, theirs: str | None = None) -> _Location:
        """Return the location of a child, whose full name in PyTorch may be given."""
        states = children_by_name(self.state) or {}
        other = joined(self.theirs, name) if theirs is None else theirs
        return _Location(joined(self.ours, name), other, joined(self.state_name, name), states.get(name))


@dataclass(frozen=True, slots=True)
class _Search:
    """The prefixes of names in PyTorch's state dict, and the sources so far."""

    prefixes: Prefixes
    sources: dict[str, _Source] = field(default_factory=dict)

    def take(self, ours: str, theirs: str, convert: Convert = _identity, default: Callable[[], Any] | None = None) -> None:
        self.sources[ours] = _Source(theirs, convert, default)

    def first_existing(self, *names: str) -> str:
        """Return the first of the names that exists, else the last."""
        return next((name for name in names if name in self.prefixes), names[-1])


def _sources(template: Any, saved: Mapping[str, Any]) -> dict[str, _Source]:
    search = _Search(Prefixes(saved))
    if not _is_pair(template):
        _visit(template, _Location("", ""), search)
        return search.sources
    model, state = template
    _visit(model, _Location("0", "", "1", state), search)
    for name in leaves_by_name(state):  # state of users' modules: buffers of the same names
        if (ours := joined("1", name)) not in search.sources:
            search.take(ours, name)
    return search.sources


def _is_pair(template: Any) -> bool:
    match template:
        case (nn.Module(), state):
            return not isinstance(state, nn.Module)
    return False


@functools.singledispatch
def _visit(node: Any, at: _Location, search: _Search) -> None:
    """Add the sources of a container, or of a module that is the same in PyTorch."""
    children = matching_children(node, at.theirs, search.prefixes)
    if children is None:
        search.take(at.ours, at.theirs)
        return
    for name, theirs, child in children:
        _visit(child, at.child(name, theirs), search)


@_visit.register(nn.Linear)
@_visit.register(Cell)
def _visit_matrices(node: nn.Module, at: _Location, search: _Search) -> None:
    for name, child in node.children().items():
        below = at.child(name)
        if name.startswith("weight"):
            search.take(below.ours, below.theirs, _transposed)
        else:
            _visit(child, below, search)


@_visit.register(nn.BatchNorm1d)
@_visit.register(nn.BatchNorm2d)
@_visit.register(nn.BatchNorm3d)
def _visit_batch_norm(node: Any, at: _Location, search: _Search) -> None:
    for name, child in node.children().items():
        _visit(child, at.child(name), search)
    if at.state is None:
        return
    for ours, theirs in {"mean": "running_mean", "var": "running_var"}.items():
        search.take(joined(at.state_name, ours), joined(at.theirs, theirs))
    dtype = at.state.batches.dtype
    search.take(
        joined(at.state_name, "batches"),
        joined(at.theirs, "num_batches_tracked"),
        lambda value: vnp.asarray(value).astype(dtype) if castable(value, dtype) else value,
        lambda: vnp.zeros((), dtype),
    )


@_visit.register(RecurrentLayer)
def _visit_recurrent(node: RecurrentLayer, at: _Location, search: _Search) -> None:
    for group, suffix in {"cells": "", "reverse_cells": "_reverse"}.items():
        for level, cell in enumerate(getattr(node, group)):
            for name in leaves_by_name(cell):
                theirs = joined(at.theirs, f"{name}_l{level}{suffix}")
                search.take(joined(at.ours, f"{group}.{level}.{name}"), theirs, _transposed if name.startswith("weight") else _identity)


@_visit.register(nn.MultiHeadAttention)
def _visit_attention(node: nn.MultiHeadAttention, at: _Location, search: _Search) -> None:
    names = {name: joined(at.theirs, name) for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight")}
    if not any(name in search.prefixes for name in names.values()):
        _visit.dispatch(object)(node, at, search)
        return
    start = 0
    for name in _PROJECTIONS:
        projection, below = getattr(node, name), at.child(name)
        rows = slice(start, start + projection.weight.shape[1])
        start = rows.stop
        if names["in_proj_weight"] in search.prefixes:
            search.take(joined(below.ours, "weight"), names["in_proj_weight"], functools.partial(_transposed, rows=rows))
        else:
            search.take(joined(below.ours, "weight"), joined(at.theirs, f"{name}_weight"), _transposed)
        if projection.bias is not None:
            search.take(joined(below.ours, "bias"), names["in_proj_bias"], operator.itemgetter(rows))
    _visit(node.out_proj, at.child("out_proj"), search)


@_visit.register(nn.TransformerEncoderLayer)
@_visit.register(nn.TransformerDecoderLayer)
def _visit_transformer_layer(node: nn.Module, at: _Location, search: _Search) -> None:
    for name, child in node.children().items():
        below = at.child(name)
        if name in _RENAMED and below.theirs not in search.prefixes:
            other = _RENAMED[name]
            below = replace(below, theirs=joined(at.theirs, other) if other else at.theirs)
        _visit(child, below, search)


@_visit.register(nn.WeightNorm)
def _visit_weight_norm(node: nn.WeightNorm, at: _Location, search: _Search) -> None:
    weight = _visit_wrapped(node, at, search)
    prefix = joined(at.theirs, "parametrizations." + node.name)
    old = joined(at.theirs, node.name)
    search.sources[weight] = source = replace(search.sources[weight], theirs=search.first_existing(f"{prefix}.original1", f"{old}_v"))
    search.take(joined(at.ours, "magnitude"), search.first_existing(f"{prefix}.original0", f"{old}_g"), source.convert)


@_visit.register(nn.SpectralNorm)
def _visit_spectral_norm(node: nn.SpectralNorm, at: _Location, search: _Search) -> None:
    state = at.state
    inner = replace(at, state_name=joined(at.state_name, "layer"), state=None if state is None else state.layer)
    weight = _visit_wrapped(node, inner, search)
    prefix = joined(at.theirs, "parametrizations." + node.name)
    old = joined(at.theirs, node.name)
    search.sources[weight] = replace(search.sources[weight], theirs=search.first_existing(f"{prefix}.original", f"{old}_orig"))
    for name in () if state is None else ("u", "v"):
        search.take(joined(at.state_name, name), search.first_existing(f"{prefix}.0._{name}", f"{old}_{name}"))


def _visit_wrapped(node: nn.WeightNorm | nn.SpectralNorm, at: _Location, search: _Search) -> str:
    """Add the sources of a wrapped layer, and return the name of its weight here."""
    inner = replace(at, ours=joined(at.ours, "layer"))
    _visit(node.layer, inner, search)
    return joined(inner.ours, node.name)


def _transposed(value: Any, rows: slice = slice(None)) -> Any:
    """Transpose some rows of a matrix; loading reports other arrays as mismatched."""
    return value[rows].transpose((1, 0)) if value.ndim == 2 else value
