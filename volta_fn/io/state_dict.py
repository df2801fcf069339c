"""State dicts: the arrays of a tree by name, saved, compared and loaded."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, array_spec, brief, from_host, library_name, wrap
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import current_default_device
from volta_fn.errors import ArgumentTypeError, StateDictError


def as_state_value(name: str, leaf: Any) -> Any:
    """Convert a leaf to a state dict's value; raise `ArgumentTypeError` if it is none."""
    if isinstance(leaf, Array):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        return from_host(np.asarray(leaf))
    raise ArgumentTypeError(
        f"state dict: {name!r} is not an array but {library_name(leaf)} {brief(leaf)}; convert a number with numpy.array, or save "
        "training states with io.Checkpointer"
    )


def is_array(value: Any) -> bool:
    """Return True if a value may be in a state dict."""
    return isinstance(value, (Array, np.ndarray, np.generic))


def on_host(value: Any) -> np.ndarray:
    """Return the elements of an array as a NumPy array in C order."""
    return np.asarray(value.host() if isinstance(value, ConcreteArray) else value, order="C")


def sharing(values: np.ndarray) -> Any:
    """Return an array on the default device; the CPU shares the memory of `values`.

    `values` must not be written to afterwards.
    """
    device = current_default_device()
    return wrap(device.backend.put(values), array_spec(ShapedArray(values.shape, values.dtype), device))


def type_of(name: str, leaf: Any) -> ShapedArray:
    """Return an array's or stand-in's shape and dtype, or raise `ArgumentTypeError`."""
    if not is_array(leaf) and not isinstance(leaf, ShapeDtypeStruct):
        raise ArgumentTypeError(f"{name!r} is neither an array nor a ShapeDtypeStruct but {type(leaf).__name__} {leaf!r:.60}")
    return ShapedArray(tuple(leaf.shape), np.dtype(leaf.dtype), bool(getattr(leaf, "weak_type", False)))


def castable(value: Any, dtype: np.dtype) -> bool:
    """Return True if a cast loses no imaginary part, fraction or large integer."""
    source = np.dtype(value.dtype)
    if _rank(source) > _rank(dtype):
        return False
    if _rank(source) != 1 or _rank(dtype) != 1 or not value.size:
        return True
    values, bounds = on_host(value), dtypes.iinfo(dtype)
    return int(bounds.min) <= int(values.min()) and int(values.max()) <= int(bounds.max)


def _rank(dtype: np.dtype) -> int:
    """Return 0 for booleans, 1 for integers, 2 for real and 3 for complex numbers."""
    kinds = (dtypes.BOOL, dtypes.INTEGERS | dtypes.STORAGE_INTEGERS, dtypes.FLOATS | dtypes.STORAGE_FLOATS)
    return next((rank for rank, kind in enumerate(kinds) if dtype in kind), 3)


def like(leaf: Any, value: Any, target: ShapedArray) -> Any:
    """Convert `value` to the dtype and the device of a template's leaf, if necessary."""
    device = leaf.device if isinstance(leaf, ConcreteArray) else None
    if isinstance(value, ConcreteArray) and value.aval == target and device in (None, value.device):
        return value
    return from_host(on_host(value).astype(target.dtype, copy=False), target.weak_type, device)


# Names of a tree's leaves: dotted paths such as `encoder.layers.0.weight`.


def leaves_by_name(node: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name; `StateDictError` for duplicate names."""
    leaves: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(node):
        name = dotted(path)
        if name in leaves:
            raise StateDictError(f"two leaves of the tree have the name {name!r}; keys of dicts should not contain dots")
        leaves[name] = leaf
    return leaves


def dotted(path: tree.KeyPath) -> str:
    """Return a leaf's name.

    >>> dotted((tree.GetAttrKey("layers"), tree.SequenceKey(0), tree.DictKey("weight")))
    'layers.0.weight'
    """
    return tree.keystr(path, simple=True, separator=".")


def joined(prefix: str, name: str) -> str:
    """Return the name of a child."""
    return f"{prefix}.{name}" if prefix else name


def children_by_name(node: Any) -> dict[str, Any] | None:
    """Return a node's children by name, in order; None for a leaf."""
    pairs = tree.leaves_with_path(node, is_leaf=lambda value: value is not node)
    if len(pairs) == 1 and not pairs[0][0]:
        return None
    return {dotted(path): child for path, child in pairs}


def corresponding(template: Any, available: Iterable[str]) -> dict[str, str]:
    """Map the name of each leaf of the template to its name in `available`.

    The names are the same, except that a child whose name does not occur may be named by its position in its parent: a `Sequential`
    with names takes parameters of one without.

    >>> corresponding({"encoder": 1, "decoder": {"w": 2}}, ["encoder", "0.w"])
    {'decoder.w': '0.w', 'encoder': 'encoder'}
    """
    prefixes = Prefixes(available)
    names: dict[str, str] = {}

    def visit(node: Any, ours: str, theirs: str) -> None:
        children = matching_children(node, theirs, prefixes)
        if children is None:
            names[ours] = theirs
            return
        for name, other, child in children:
            visit(child, joined(ours, name), other)

    visit(template, "", "")
    return names


def matching_children(node: Any, prefix: str, prefixes: Container[str]) -> list[tuple[str, str, Any]] | None:
    """Return the names and values of a node's children; None for a leaf.

    Each entry has the child's name, its full name below `prefix` in the other tree (see `corresponding`), and the child.
    """
    children = children_by_name(node)
    if children is None:
        return None
    taken = children.keys()
    matches = []
    for position, (name, child) in enumerate(children.items()):
        by_name, by_position = joined(prefix, name), joined(prefix, str(position))
        numbered = by_name not in prefixes and by_position in prefixes and str(position) not in taken
        matches.append((name, by_position if numbered else by_name, child))
    return matches


class Prefixes:
    """Some names, and all their prefixes that end before a dot.

    They are found by search, not stored: a name of n dots has prefixes of n² characters.

    >>> [prefix in Prefixes(["a.b.c", "a.bc"]) for prefix in ("a", "a.b", "a.b.c", "a.bc", "a.", "b")]
    [True, True, True, True, False, False]
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def __contains__(self, prefix: object) -> bool:
        return (
            isinstance(prefix, str)
            and prefix != ""
            and (self._begins(prefix) == prefix or self._begins(f"{prefix}.").startswith(f"{prefix}."))
        )

    def _begins(self, start: str) -> str:
        """Return the first name in order that is not before `start`, or nothing."""
        position = bisect_left(self._names, start)
        return self._names[position] if position < len(self._names) else ""


# State dicts: the arrays of a tree by name, saved, compared and loaded.


def state_dict(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by name: the dotted paths to them.

    NumPy arrays are converted to arrays. Raises `ArgumentTypeError` for a leaf that is not an array, and `StateDictError` if two leaves
    have the same name.

    >>> model = vf.nn.Sequential(encoder=vf.nn.Linear.init(vf.random.key(0), 4, 2), act=vf.nn.relu)
    >>> {name: array.shape for name, array in vf.io.state_dict(model).items()}
    {'encoder.weight': (4, 2), 'encoder.bias': (2,)}
    """
    leaves = leaves_by_name(dict(tree) if isinstance(tree, Mapping) else tree)
    return {name: as_state_value(name, leaf) for name, leaf in leaves.items()}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An array whose shape or dtype differs from the tree's, as in `f32[2,3]`."""

    name: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.actual}"


@dataclass(frozen=True, slots=True)
class StateDictDiff:
    """The missing, unexpected and mismatched arrays of a state dict.

    >>> print(StateDictDiff(missing=("weight",), unexpected=("w",)))
    1 missing:
      weight
    1 unexpected:
      w
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()

    def __bool__(self) -> bool:
        """Return True if there is any difference."""
        return bool(self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        groups = {"missing": self.missing, "unexpected": self.unexpected, "mismatched": self.mismatched}
        rows = [row for title, items in groups.items() if items for row in (f"{len(items)} {title}:", *[f"  {item}" for item in items])]
        return "\n".join(rows) or "no differences"


def diff_state_dict(template: Any, state: Mapping[str, Any], *, cast: bool = False) -> StateDictDiff:
    """Return the differences for which `load_state_dict` would fail.

    >>> model = vf.nn.Linear.init(vf.random.key(0), 4, 2)
    >>> print(diff_state_dict(model, {"weight": vf.numpy.ones((2, 4)), "scale": vf.numpy.ones(2)}))
    1 missing:
      bias
    1 unexpected:
      scale
    1 mismatched:
      weight: expected f32[4,2], found f32[2,4]
    """
    return _compare(template, state, cast)[0]


@overload
def load_state_dict(template: Any, state: Mapping[str, Any], *, strict: Literal[True] = True, cast: bool = False) -> Any: ...


@overload
def load_state_dict(
    template: Any, state: Mapping[str, Any], *, strict: Literal[False], cast: bool = False
) -> tuple[Any, StateDictDiff]: ...


def load_state_dict(template: Any, state: Mapping[str, Any], *, strict: bool = True, cast: bool = False) -> Any:
    """Return a tree like the template with the arrays of a state dict.

    A child whose name is not in the state dict is looked up by its position in its parent, so that a `Sequential` with names loads
    parameters of one without. Arrays go to the devices of the template's. The template stays as it is.

    Args:
        template: a tree of arrays or of `ShapeDtypeStruct`, as `eval_shape` of a model's `init` gives.
        state: arrays by name, as from `load_safetensors`.
        strict: whether all arrays must fit. If not, the template's arrays remain where none fits.
        cast: whether arrays are converted to the template's dtypes. Complex numbers do not become real ones, nor fractions integers,
            and integers only change to dtypes that can hold them.

    Returns:
        The tree; with ``strict=False`` the pair of the tree and a `StateDictDiff` of what was not loaded.

    Raises:
        StateDictError: an array does not fit; the message has the full report. Without `strict`: a leaf is missing for which the
            template has no array.
        ArgumentTypeError: a leaf of the template is not an array.

    >>> model = vf.nn.Linear.init(vf.random.key(0), 1, 2)
    >>> load_state_dict(model, {"weight": vf.numpy.ones((1, 2)), "bias": vf.numpy.zeros(2)}).weight
    Array([[1., 1.]], dtype=float32)
    >>> model, diff = load_state_dict(model, {"bias": vf.numpy.ones(2)}, strict=False)
    >>> diff.missing
    ('weight',)
    """
    if not isinstance(state, Mapping):
        mapper = " Call the mapper with a state dict first: load_state_dict(model, mapper(state))." if callable(state) else ""
        if isinstance(state, (str, os.PathLike)):
            mapper = f" io.load_safetensors({os.fspath(state)!r}) reads one from a file."
        raise ArgumentTypeError(f"load_state_dict: the state is a dict of arrays by name, got {type(state).__name__}.{mapper}")
    diff, fitting = _compare(template, state, cast)
    if strict and diff:
        raise StateDictError(f"the state dict does not fit; {_in_words(diff)}\n{diff}")

    def load(path: tree.KeyPath, leaf: Any) -> Any:
        name = dotted(path)
        return like(leaf, fitting[name], type_of(name, leaf)) if name in fitting else _template_array(name, leaf)

    loaded = tree.map_with_path(load, template)
    return loaded if strict else (loaded, diff)


def _compare(template: Any, state: Mapping[str, Any], cast: bool) -> tuple[StateDictDiff, dict[str, Any]]:
    """Return the differences, and the arrays that fit, by the template's names."""
    names = corresponding(template, state)
    fitting: dict[str, Any] = {}
    mismatched = []
    for name, leaf in leaves_by_name(template).items():
        expected = type_of(name, leaf)
        if (other := names[name]) not in state:
            continue
        value = state[other]
        actual = _type_of_value(other, value)
        if actual.shape == expected.shape and (actual.dtype == expected.dtype or (cast and castable(value, expected.dtype))):
            fitting[name] = value
        else:
            mismatched.append(Mismatch(other, _short(expected), _short(actual)))
    missing = tuple([other for other in names.values() if other not in state])
    unexpected = tuple(sorted(set(state) - set(names.values())))
    return StateDictDiff(missing, unexpected, tuple(mismatched)), fitting


def _type_of_value(name: str, value: Any) -> ShapedArray:
    if not is_array(value):
        kind = library_name(value)
        remedy = "; PyTorch's pass through io.from_torch(model) before" if kind.startswith("torch.") else ""
        raise ArgumentTypeError(f"state dict: {name!r} is not an array but {kind} {brief(value)}{remedy}")
    return type_of(name, value)


def _template_array(name: str, leaf: Any) -> Any:
    if isinstance(leaf, ShapeDtypeStruct):
        raise StateDictError(f"the state dict has no fitting array for {name!r}, and neither has the template, which knows only {leaf}")
    return leaf


def _short(aval: ShapedArray) -> str:
    return f"{dtypes.short_name(aval.dtype)}[{','.join(map(str, aval.shape))}]"


def _common_prefix(diff: StateDictDiff) -> str | None:
    """Return the prefix without which unexpected names are the missing ones."""
    unexpected = set(diff.unexpected)
    ends = [name.removesuffix(f".{diff.missing[0]}") for name in diff.unexpected if name.endswith(f".{diff.missing[0]}")]
    return next((prefix for prefix in ends if unexpected.issuperset([joined(prefix, name) for name in diff.missing])), None)


def _in_words(diff: StateDictDiff) -> str:
    """Return advice about differences."""
    if diff.missing and diff.unexpected:
        if (prefix := _common_prefix(diff)) is not None:
            return f"its names begin with {prefix!r}: load_state_dict(model, io.StateDictMapper().strip_prefix({prefix!r})(state))"
        return "rename its arrays with io.StateDictMapper (io.from_torch for PyTorch's names), or load what fits with strict=False."
    if diff.mismatched:
        return "arrays of other dtypes are converted with cast=True, other layouts are mapped with io.StateDictMapper."
    return "load what fits with strict=False."
