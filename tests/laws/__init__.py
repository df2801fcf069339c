"""Laws that hold for every primitive: functions of a sample that assert them."""

from __future__ import annotations

from collections.abc import Callable

from tests.laws.batching import vmap_is_a_loop, vmap_of_derivatives_is_a_loop
from tests.laws.derivatives import derivatives_keep_dtypes, first_derivatives_hold, second_derivatives_hold
from tests.laws.staging import derived_jaxprs_are_true, gradient_under_jit_is_eager, jaxpr_is_true, jit_is_eager
from tests.laws.transposition import transpose_is_adjoint
from tests.laws.values import values_agree
from tests.samples.sample import Sample
from volta_fn import dtypes
from volta_fn.core.primitive import Primitive, evaluation_of
from volta_fn.targets.numpy.backend import STRUCTURED
from volta_fn.transforms.differentiation import jvp_rules
from volta_fn.transforms.vmap import batching_rules

Law = Callable[[Sample], None]


def missing(primitive: Primitive, covered: set[str]) -> list[str]:
    """List the rules that a primitive lacks, and samples if it is not in `covered`."""
    lacks = []
    if evaluation_of(primitive) is None and not _evaluated_otherwise(primitive):
        lacks.append("an evaluation rule")
    if jvp_rules.get(primitive, primitive.jvp) is None:
        lacks.append("a derivative rule (jvp)")
    if batching_rules.get(primitive, primitive.batch) is None:
        lacks.append("a batching rule (batch)")
    if primitive.name not in covered:
        lacks.append("samples in tests/samples")
    return lacks


def _evaluated_otherwise(primitive: Primitive) -> bool:
    """Return True for calls, compiled by their program, and control flow."""
    return primitive.call_param is not None or primitive in STRUCTURED


def laws_for(sample: Sample) -> list[Law]:
    """Return the laws that a sample is subject to."""
    laws: list[Law] = [values_agree, jit_is_eager, jaxpr_is_true, derived_jaxprs_are_true]
    differentiable = sample.wrt and any(dtypes.as_dtype(d) in dtypes.INEXACT for d in sample.dtypes)
    if sample.vmap and sample.args:
        laws.append(vmap_is_a_loop)
    if differentiable:
        laws += [first_derivatives_hold, derivatives_keep_dtypes, gradient_under_jit_is_eager]
    if differentiable and sample.second_order:
        laws.append(second_derivatives_hold)
    if differentiable and sample.vmap:
        laws.append(vmap_of_derivatives_is_a_loop)
    if sample.linear:
        laws.append(transpose_is_adjoint)
    return laws
