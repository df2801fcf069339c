"""What equations can be in kernels: by itself, so that programs which become none are planned without the modules that make kernels."""

from __future__ import annotations

from volta_fn.compiler.ir.views import is_view, reduces
from volta_fn.core.jaxpr import Equation


def is_lowered(eqn: Equation) -> bool:
    """Whether the equation can be part of a kernel (an index that turns out not to be affine apart)."""
    known = is_view(eqn) or reduces(eqn) or is_elementwise(eqn) or eqn.primitive.name in ("iota", "pad", "concatenate")
    return known and all(v.aval.dtype.itemsize for v in eqn.invars)  # float0 has no elements to compute


def is_product(eqn: Equation) -> bool:
    """Whether the equation sums products, which targets may have as kernels."""
    return eqn.primitive.name == "dot_general"


def is_elementwise(eqn: Equation) -> bool:
    """Whether each element of the result depends on the elements at the same place of operands that broadcast."""
    name = eqn.primitive.name
    if name == "bitcast_convert_type":
        return eqn.invars[0].aval.dtype.itemsize == eqn.params["new_dtype"].itemsize
    return bool(eqn.primitive.arity) or name in ("select_n", "convert_element_type")
