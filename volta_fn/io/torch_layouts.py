"""From PyTorch's names and layouts to ours, by the types of the modules.

The shapes of arrays play no role. Most names and layouts are the same, except for these:

    Linear, recurrent cells          matrices are transposed: (in, out) here, (out, in) there. Embeddings are not.
    BatchNorm1d/2d/3d                running_mean, running_var and num_batches_tracked are the layer's state: mean, var, batches
    RNN, LSTM, GRU                   weight_ih_l0_reverse is reverse_cells.0.weight_ih
    MultiHeadAttention               in_proj_weight and in_proj_bias hold those of q_proj, k_proj and v_proj, one after the other
    TransformerEncoder/DecoderLayer  linear1 and linear2 are those of feed_forward; multihead_attn is cross_attn
    WeightNorm                       weight_v and weight_g are the layer's weight and magnitude
    SpectralNorm                     weight_orig is the layer's weight; weight_u and weight_v are the layer's state
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from volta_fn import nn, tree
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentTypeError
from volta_fn.io.arrays import castable
from volta_fn.io.mapper import Rule, StateDictMapper, unique
from volta_fn.io.names import Prefixes, children_by_name, joined, leaves_by_name, matching_children
from volta_fn.nn.recurrent.cells import Cell
from volta_fn.nn.recurrent.layers import RecurrentLayer

Convert = Callable[[Any], Any]
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
#: Names in PyTorch of children of a transformer's layer, unless they have their own names there.
_RENAMED = {"feed_forward": "", "cross_attn": "multihead_attn"}


def from_torch(template: Any) -> StateDictMapper:
    """Return the mapper from a PyTorch module's names and layouts to a model's here.

    Its result fits ``load_state_dict(template, …)``. It takes arrays, and PyTorch's tensors, of which it makes copies. The types of the
    modules tell which arrays are transposed, split or renamed. Layers of a `Sequential` may have numbers in PyTorch and names here. Batch
    norms count their batches from 0 if the file has no count (before PyTorch 0.4.1). Arrays that the model does not know keep their names,
    and loading reports them.

    Args:
        template: a model, or a pair ``(model, state)`` as from `init`, of arrays or `ShapeDtypeStruct`.

    >>> import volta_fn as vf
    >>> model, state = vf.nn.Sequential.init(fc=vf.nn.Linear.init(vf.random.key(0), 3, 2), norm=vf.nn.BatchNorm1d.init(2))
    >>> ones = vf.numpy.ones(2)
    >>> saved = {"0.weight": vf.numpy.ones((2, 3)), "0.bias": ones, "1.weight": ones, "1.bias": ones,
    ...          "1.running_mean": ones, "1.running_var": ones, "1.num_batches_tracked": vf.numpy.array(7)}
    >>> mapper = vf.io.from_torch((model, state))
    >>> model, state = vf.io.load_state_dict((model, state), mapper(saved))
    >>> model.fc.weight.shape, state["norm"].batches
    ((3, 2), Array(7, dtype=int32))
    """
    if any(map(_is_tensor, tree.leaves(template))):
        raise ArgumentTypeError(
            "from_torch takes the model here, and returns a mapper for PyTorch's state dict: "
            "load_state_dict(model, from_torch(model)(torch_model.state_dict()))"
        )
    description = "from_torch(...)"

    def function(given: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: _copied(value) if _is_tensor(value) else value for name, value in given.items()}
        sources = _sources(template, given)
        found = [(name, source.of(given)) for name, source in sources.items() if source.is_in(given)]
        used = {source.theirs for source in sources.values()}
        rest = [(name, value) for name, value in given.items() if name not in used]
        return unique(description, [*found, *rest])

    return StateDictMapper((Rule(description, function),))


def _is_tensor(value: Any) -> bool:
    """Return True for a tensor of PyTorch, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "torch"


def _copied(tensor: Any) -> Any:
    return vnp.from_dlpack(tensor.detach().cpu().clone())


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Source:
    """An array's name in PyTorch, its conversion, and its default if it is missing."""

    theirs: str
    convert: Convert
    default: Callable[[], Any] | None = None

    def is_in(self, given: Mapping[str, Any]) -> bool:
        return self.theirs in given or self.default is not None

    def of(self, given: Mapping[str, Any]) -> Any:
        return self.default() if self.default is not None and self.theirs not in given else self.convert(given[self.theirs])


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
    """The names and prefixes in PyTorch's state dict, and the sources found so far."""

    known: Prefixes
    sources: dict[str, _Source] = field(default_factory=dict)

    def take(self, ours: str, theirs: str, convert: Convert = _same, default: Callable[[], Any] | None = None) -> None:
        self.sources[ours] = _Source(theirs, convert, default)

    def first_known(self, *names: str) -> str:
        """Return the first of the names that exists, else the last."""
        return next((name for name in names if name in self.known), names[-1])


def _sources(template: Any, given: Mapping[str, Any]) -> dict[str, _Source]:
    search = _Search(Prefixes(given))
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
    """Find the arrays of a container, or of a module that is the same in PyTorch."""
    children = matching_children(node, at.theirs, search.known)
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
                search.take(joined(at.ours, f"{group}.{level}.{name}"), theirs, _transposed if name.startswith("weight") else _same)


@_visit.register(nn.MultiHeadAttention)
def _visit_attention(node: nn.MultiHeadAttention, at: _Location, search: _Search) -> None:
    names = {name: joined(at.theirs, name) for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight")}
    if not any(name in search.known for name in names.values()):
        _visit.dispatch(object)(node, at, search)
        return
    start = 0
    for name in _PROJECTIONS:
        projection, below = getattr(node, name), at.child(name)
        rows = slice(start, start + projection.weight.shape[1])
        start = rows.stop
        if names["in_proj_weight"] in search.known:
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
        if name in _RENAMED and below.theirs not in search.known:
            other = _RENAMED[name]
            below = replace(below, theirs=joined(at.theirs, other) if other else at.theirs)
        _visit(child, below, search)


@_visit.register(nn.WeightNorm)
def _visit_weight_norm(node: nn.WeightNorm, at: _Location, search: _Search) -> None:
    weight = _visit_wrapped(node, at, search)
    prefix = joined(at.theirs, "parametrizations." + node.name)
    old = joined(at.theirs, node.name)
    search.sources[weight] = source = replace(search.sources[weight], theirs=search.first_known(f"{prefix}.original1", f"{old}_v"))
    search.take(joined(at.ours, "magnitude"), search.first_known(f"{prefix}.original0", f"{old}_g"), source.convert)


@_visit.register(nn.SpectralNorm)
def _visit_spectral_norm(node: nn.SpectralNorm, at: _Location, search: _Search) -> None:
    state = at.state
    inner = replace(at, state_name=joined(at.state_name, "layer"), state=None if state is None else state.layer)
    weight = _visit_wrapped(node, inner, search)
    prefix = joined(at.theirs, "parametrizations." + node.name)
    old = joined(at.theirs, node.name)
    search.sources[weight] = replace(search.sources[weight], theirs=search.first_known(f"{prefix}.original", f"{old}_orig"))
    for name in () if state is None else ("u", "v"):
        search.take(joined(at.state_name, name), search.first_known(f"{prefix}.0._{name}", f"{old}_{name}"))


def _visit_wrapped(node: nn.WeightNorm | nn.SpectralNorm, at: _Location, search: _Search) -> str:
    """Find the arrays of a wrapped layer; return the name of the weight here."""
    inner = replace(at, ours=joined(at.ours, "layer"))
    _visit(node.layer, inner, search)
    return joined(inner.ours, node.name)


def _transposed(value: Any, rows: slice = slice(None)) -> Any:
    """Transpose some rows of a matrix; loading reports other arrays as mismatched."""
    return value[rows].transpose((1, 0)) if value.ndim == 2 else value
