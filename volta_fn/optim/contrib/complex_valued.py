"""Complex parameters as pairs of real ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import dtypes, lax, tree
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, with_extra_args_support

__all__ = ["SplitRealAndImaginaryState", "split_real_and_imaginary"]


class SplitRealAndImaginaryArrays(NamedTuple):
    """The real and imaginary numbers of a complex array."""

    real: Array
    imaginary: Array


class SplitRealAndImaginaryState(NamedTuple):
    """The state of the inner transformation, of real arrays."""

    inner_state: OptState


def split_real_and_imaginary(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply `inner` to the real and imaginary numbers of complex leaves separately.

    So Adam, for one, adapts to the two instead of to the magnitude.

    >>> optimizer = optim.contrib.split_real_and_imaginary(optim.adam(0.1))
    >>> w = vf.numpy.array([1 + 2j])
    >>> optimizer.update(vf.numpy.array([3 - 4j]), optimizer.init(w), w)[0].round(3)
    Array([-0.1+0.1j], dtype=complex64)
    """
    inner = with_extra_args_support(inner)

    def split(values: Any) -> Any:
        return tree.map(_pair, values)

    def init(params: Any) -> SplitRealAndImaginaryState:
        return SplitRealAndImaginaryState(inner.init(split(params)))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        pairs, inner_state = inner.update(split(updates), state.inner_state, split(params), **extra_args)
        joined = tree.map(_joined, pairs, is_leaf=lambda node: isinstance(node, SplitRealAndImaginaryArrays))
        return joined, SplitRealAndImaginaryState(inner_state)

    return GradientTransformationExtraArgs(init, update)


def _pair(x: Any) -> Any:
    value = as_value(x)
    return SplitRealAndImaginaryArrays(lax.real(value), lax.imag(value)) if value.dtype in dtypes.COMPLEX else value


def _joined(node: Any) -> Any:
    return lax.complex(*node) if isinstance(node, SplitRealAndImaginaryArrays) else node
