"""Types of an exported function, and what arguments fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.dimension import Dimension
from volta_fn.errors import ArgumentTypeError
from volta_fn.export.reading import dimension_of
from volta_fn.export.structures import leaf_count, unflatten
from volta_fn.export.values import dtype_named
from volta_fn.primitives.elementwise.cast import convert_element_type


def structure_of(form: Any) -> tree.TreeDef:
    """Return the structure that a file describes."""
    return tree.structure(unflatten(form, iter(range(leaf_count(form)))))


def struct_of(kind: Sequence[Any]) -> ShapeDtypeStruct:
    """Return the type that a file describes, with symbolic sizes."""
    dtype, shape, *weak = kind
    sizes: Any = tuple([dimension_of(size["dim"]) if isinstance(size, dict) else size for size in shape])
    return ShapeDtypeStruct(sizes, dtype_named(dtype), weak_type=bool(weak))


def output_types(program: Mapping[str, Any], constants: Sequence[Any]) -> list[Any]:
    """Return the types of a program's results."""
    bound = [constants[i] for i in program["constants"]] + program["inputs"]
    for _, _, types, _ in program["equations"]:
        bound += types
    return [output["literal"][0] if isinstance(output, dict) else bound[output] for output in program["outputs"]]


def converted(value: Array, wanted: ShapeDtypeStruct, name: str) -> Array:
    """Return an argument in its wanted type; Python numbers take any dtype of a kind."""
    if value.dtype == wanted.dtype and value.aval.weak_type == wanted.weak_type:
        return value
    if value.dtype != wanted.dtype and not value.aval.weak_type:
        raise ArgumentTypeError(
            f"{name} must be {ShapedArray((), wanted.dtype)} of shape {wanted.shape}, got {value.aval}; convert it by astype"
        )
    return convert_element_type(value, wanted.dtype, weak_type=wanted.weak_type)


def solution(dimension: Dimension, size: int, known: Mapping[str, int]) -> dict[str, int]:
    """Return the variable that a size determines, if the others are known."""
    unknown = [name for name in dimension.variables if name not in known]
    if len(unknown) != 1:
        return {}
    (name,) = unknown
    at = [dimension.evaluate({**known, name: n}) for n in (0, 1, 2)]
    slope = at[1] - at[0]
    if at[2] - at[1] != slope or not slope:
        return {}
    found = (Fraction(size) - at[0]) / slope
    return {name: int(found)} if found.denominator == 1 else {}
