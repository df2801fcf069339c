"""The parameters that a primitive in a file may have: names, and kinds of values.

The rules of primitives take them to be right, as those that made a program have checked them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import numpy as np

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive
from volta_fn.errors import CorruptFileError
from volta_fn.primitives.call import Form
from volta_fn.primitives.contraction import RaggedDotDimensionNumbers
from volta_fn.primitives.convolution import ConvDimensionNumbers
from volta_fn.primitives.data_movement.indexing import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.primitives.fourier import FftType

_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "compute_q compute_uv compute_vectors conjugate_a full_matrices is_stable left_side lower moved reverse sort_eigenvalues"),
    ((bool,), "transpose_a unique_indices unit_diagonal weak_type prevent_cse"),
    ((int,), "axes axis base_dilation batch_group_count bit_width body_nconsts broadcast_dimensions cond_nconsts dimension dimensions"),
    ((int,), "feature_group_count k length lhs_dilation limit_indices new_sizes num_captured num_carry num_consts num_keys padding"),
    ((int,), "padding_config permutation rhs_dilation shape slice_sizes start_indices window_dilation window_dimensions window_strides y"),
    ((int, bool), "donated unroll"),
    ((int, NoneType), "strides"),
    ((int, str), "word"),
    ((str,), "algorithm name select"),
    ((str, FftType), "kind"),
    ((ClosedJaxpr,), "body_jaxpr branches call_jaxpr cond_jaxpr matvec solve transpose_solve vecmat"),
    ((np.dtype,), "dtype index_dtype new_dtype"),
    ((np.dtype, NoneType), "preferred_element_type"),
    ((int, ConvDimensionNumbers, GatherDimensionNumbers, ScatterDimensionNumbers, RaggedDotDimensionNumbers), "dimension_numbers"),
    ((Form,), "form"),
    ((GatherScatterMode,), "mode"),
    ((bool, int, float, complex, np.generic, NoneType), "fill_value"),
)
#: The kinds of the values of parameters, and of what is in tuples, by the parameters' names.
KINDS: dict[str, tuple[type, ...]] = {name: kinds for kinds, names in _KINDS for name in names.split()}
#: Parameters with a value per axis of windows, and the primitives of windows; `conv_general_dilated` has others.
_PER_AXIS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation", "lhs_dilation", "rhs_dilation")
_WINDOWS = frozenset(_PER_AXIS[:5])
#: The parameters of primitives whose rules take any keywords.
_NAMES: dict[str, frozenset[str]] = {
    "conv_general_dilated": frozenset({"window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "algorithm"})
    | {"feature_group_count", "batch_group_count", "preferred_element_type"},
    "triangular_solve": frozenset({"left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"}),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _WINDOWS),
    **dict.fromkeys(("select_and_gather_add", "select_and_scatter_add"), _WINDOWS | {"select"}),
}
#: The most that a stride, a dilation, a padding or the size of a window may be.
_MOST = (1 << 31) - 1
#: Tuples that are one value.
_RECORDS = (Form, ConvDimensionNumbers, GatherDimensionNumbers, ScatterDimensionNumbers, RaggedDotDimensionNumbers)


def check_parameters(primitive: Primitive, params: Mapping[str, Any]) -> None:
    """Raise `CorruptFileError` unless a primitive takes these parameters."""
    names = _names(primitive)
    if names is not None and names != params.keys():
        raise CorruptFileError(f"the primitive {primitive} has the parameters {sorted(names)}, got {sorted(params)!r:.200}")
    for name, value in params.items():
        kinds = KINDS.get(name)
        wrong = [leaf for leaf in _leaves(value) if kinds is not None and not _is_of(leaf, kinds)]
        if wrong:
            raise CorruptFileError(f"the parameter {name} of the primitive {primitive} cannot be {wrong[0]!r:.80}")
    if primitive.name in _NAMES and not _is_well_formed(params):
        raise CorruptFileError(f"the parameters of the primitive {primitive} do not fit each other: {dict(params)!r:.300}")


def _is_well_formed(params: Mapping[str, Any]) -> bool:
    """Return whether parameters fit each other.

    Flags must be single values; windows and convolutions have positive numbers, one per axis.
    """
    if "left_side" in params:
        return all(type(value) is bool for value in params.values())
    columns = [params[name] for name in _PER_AXIS if name in params]
    axes = len(params["window_strides"])
    if any(type(column) is not tuple or len(column) != axes for column in columns) or params.get("select", "ge") not in ("ge", "le"):
        return False
    for name in _PER_AXIS:
        least = 0 if name == "window_dimensions" else 1
        for value in params.get(name, ()):
            pair = value if name == "padding" else (value,)
            if type(pair) is not tuple or len(pair) != (2 if name == "padding" else 1) or not all(type(n) is int for n in pair):
                return False
            if not all((-_MOST if name == "padding" else least) <= n <= _MOST for n in pair):
                return False
    if "dimension_numbers" not in params:
        return True
    groups = (params["feature_group_count"], params["batch_group_count"])
    orders = params["dimension_numbers"]
    return all(type(n) is int and n >= 1 for n in groups) and all(
        type(order) is tuple and all(type(n) is int for n in order) and sorted(order) == [*range(axes + 2)] for order in orders
    )


@functools.cache
def _names(primitive: Primitive) -> frozenset[str] | None:
    """Return the names of a primitive's parameters.

    They are those of its rule for types, or of its NumPy function; None where that rule itself refuses others.
    """
    if primitive.name in _NAMES:
        return _NAMES[primitive.name]
    for rule in (primitive.abstract, primitive.evaluate):
        if rule is None:
            continue
        if isinstance(rule, np.ufunc):
            return frozenset()
        rules = inspect.signature(rule).parameters.values()
        if all(p.kind is not p.VAR_KEYWORD for p in rules):
            return frozenset([p.name for p in rules if p.kind is p.KEYWORD_ONLY]) - {"out"}
    return None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, _RECORDS):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_of(leaf: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(leaf, kinds) and (type(leaf) is not bool or bool in kinds)
