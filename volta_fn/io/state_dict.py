"""State dicts: the arrays of a tree by name, saved, compared and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from volta_fn import dtypes, tree
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.errors import ArgumentTypeError, StateDictError
from volta_fn.io.arrays import as_state_value, castable, is_array, like, type_of
from volta_fn.io.names import corresponding, dotted, leaves_by_name


def state_dict(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by name: the dotted paths to them.

    NumPy arrays are converted to arrays, unless these do not support the dtype (float8). Raises `ArgumentTypeError` for a leaf that is not
    an array, and `StateDictError` if two leaves have the same name.

    >>> import volta_fn as vf
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
    found: str

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.found}"


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

    >>> import volta_fn as vf
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
        strict: whether all arrays must fit. If not, the template's arrays are kept where none fits.
        cast: whether arrays are converted to the template's dtypes. Complex numbers do not become real ones, nor fractions integers,
            and integers only change to dtypes that can hold them.

    Returns:
        The tree; with ``strict=False`` the pair of the tree and a `StateDictDiff` of what was not loaded.

    Raises:
        StateDictError: an array does not fit; the message has the full report. Without `strict`: a leaf is missing for which the
            template has no array.
        ArgumentTypeError: a leaf of the template is not an array.

    >>> import volta_fn as vf
    >>> model = vf.nn.Linear.init(vf.random.key(0), 1, 2)
    >>> load_state_dict(model, {"weight": vf.numpy.ones((1, 2)), "bias": vf.numpy.zeros(2)}).weight
    Array([[1., 1.]], dtype=float32)
    >>> model, diff = load_state_dict(model, {"bias": vf.numpy.ones(2)}, strict=False)
    >>> diff.missing
    ('weight',)
    """
    if not isinstance(state, Mapping):
        mapper = " Call the mapper with a state dict first: load_state_dict(model, mapper(state))." if callable(state) else ""
        raise ArgumentTypeError(f"load_state_dict: the state is a dict of arrays by name, got {type(state).__name__}.{mapper}")
    diff, fitting = _compare(template, state, cast)
    if strict and diff:
        raise StateDictError(f"the state dict does not fit; {_in_words(diff)}\n{diff}")

    def load(path: tree.KeyPath, leaf: Any) -> Any:
        name = dotted(path)
        return like(leaf, fitting[name], type_of(name, leaf)) if name in fitting else _kept(name, leaf)

    loaded = tree.map_with_path(load, template)
    return loaded if strict else (loaded, diff)


def _compare(template: Any, state: Mapping[str, Any], cast: bool) -> tuple[StateDictDiff, dict[str, Any]]:
    """Return the differences, and the arrays that fit, by the template's names."""
    names = corresponding(template, state)
    fitting: dict[str, Any] = {}
    mismatched = []
    for name, leaf in leaves_by_name(template).items():
        wanted = type_of(name, leaf)
        if (other := names[name]) not in state:
            continue
        value = state[other]
        found = _found_type(other, value)
        if found.shape == wanted.shape and (found.dtype == wanted.dtype or (cast and castable(value, wanted.dtype))):
            fitting[name] = value
        else:
            mismatched.append(Mismatch(other, _short(wanted), _short(found)))
    missing = tuple([other for other in names.values() if other not in state])
    unexpected = tuple(sorted(set(state) - set(names.values())))
    return StateDictDiff(missing, unexpected, tuple(mismatched)), fitting


def _found_type(name: str, value: Any) -> ShapedArray:
    if not is_array(value):
        raise ArgumentTypeError(f"state dict: {name!r} is not an array but {type(value).__name__} {value!r:.60}")
    return type_of(name, value)


def _kept(name: str, leaf: Any) -> Any:
    if isinstance(leaf, ShapeDtypeStruct):
        raise StateDictError(f"the state dict has no fitting array for {name!r}, and neither has the template, which knows only {leaf}")
    return leaf


def _short(aval: ShapedArray) -> str:
    return f"{dtypes.short_name(aval.dtype)}[{','.join(map(str, aval.shape))}]"


def _in_words(diff: StateDictDiff) -> str:
    """Say what to do about differences."""
    if diff.missing and diff.unexpected:
        return "rename its arrays with io.StateDictMapper (io.from_torch for PyTorch's names), or load what fits with strict=False."
    if diff.mismatched:
        return "arrays of other dtypes are converted with cast=True, other layouts are mapped with io.StateDictMapper."
    return "load what fits with strict=False."
