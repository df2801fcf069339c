"""Gram matrices of what the weights of a model are multiplied by.

An `ObservedArray` takes the place of a weight W. Beside x Wᵀ its product has a derivative xᵀ x, by an array of zeros that the result does
not depend on. So the Gram matrices of all layers are the gradient of a model by those arrays, whatever transforms and control flow it
consists of, and nothing is recorded on the side. Compiled, all of the gradient but these products is dead code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.errors import ArgumentError
from volta_fn.jit.function import jit
from volta_fn.nn.quantization.quantized_array import WeightArray
from volta_fn.transforms.custom_derivatives import custom_vjp
from volta_fn.transforms.grad import grad

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedArray(WeightArray):
    """A weight whose products have the Gram matrix of their input as a derivative.

    Attributes:
        rows: the weight, of shape (…, out, in).
        gram: zeros of shape (…, in, in), float32.
        rows_last: whether the shape is (…, in, out), as of `Linear`.
    """

    rows: Any
    gram: Any
    rows_last: bool = False

    @property
    def aval(self) -> ShapedArray:
        """The shape and dtype of the weight."""
        *lead, out, size = self.rows.shape
        return ShapedArray((*lead, size, out) if self.rows_last else (*lead, out, size), self.rows.dtype)

    @property
    def T(self) -> Self:
        """The transpose, which is observed by the same array."""
        return dataclasses.replace(self, rows_last=not self.rows_last)

    mT = T

    def dequantize(self, dtype: Any = None) -> Array:
        """Return the weight, whose products are not observed."""
        value = as_value(self.rows)
        return (vnp.swapaxes(value, -1, -2) if self.rows_last else value).astype(value.dtype if dtype is None else dtype)

    def take(self, indices: Any) -> Array:
        """Return entries along the first axis."""
        return vnp.take(self.dequantize(), indices, axis=0)

    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``; where it sums over the axis `in`, it is observed."""
        x, rows = as_value(other), as_value(self.rows)
        return _observed_product(x, rows, as_value(self.gram)) if self.rows_last else vnp.matmul(x, rows)


tree.register_dataclass(ObservedArray, data_fields=["rows", "gram"], meta_fields=["rows_last"])


@custom_vjp
def _observed_product(x: Array, rows: Array, gram: Array) -> Array:
    return vnp.matmul(x, vnp.swapaxes(rows, -1, -2))


def _forward(x: Array, rows: Array, gram: Array) -> tuple[Array, tuple[Array, Array]]:
    return _observed_product(x, rows, gram), (x, rows)


def _backward(residuals: tuple[Array, Array], ct: Array) -> tuple[Array, None, Array]:
    x, rows = residuals
    inputs = x if rows.ndim > 2 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))
    shared = tuple(range(rows.ndim - 2))
    numbers = (((inputs.ndim - 2,), (inputs.ndim - 2,)), (shared, shared))
    gram = lax.dot_general(inputs, inputs, numbers, preferred_element_type=dtypes.accumulator(x.dtype))
    return vnp.matmul(ct, rows).astype(x.dtype), None, gram.astype("float32")


_observed_product.defvjp(_forward, _backward)


def gram_matrices(
    observe: Callable[[T, Mapping[str, Array]], T],
    model: T,
    sizes: Mapping[str, tuple[int, ...]],
    batches: Iterable[Any],
    call: Callable[[T, Any], Any],
) -> dict[str, Array]:
    """Return the sum of xᵀ x for each observed weight, over all batches.

    Args:
        observe: puts `ObservedArray` into a model, of zeros by name.
        model: the model.
        sizes: the shape of each array of zeros by name.
        batches: inputs.
        call: calls a model with one of them.

    Raises `ArgumentError` if there are no batches, or the model returns no floats.
    """

    def total(zeros: dict[str, Array], model: T, batch: Any) -> Array:
        floats = [leaf for leaf in map(as_value, tree.leaves(call(observe(model, zeros), batch))) if leaf.dtype in dtypes.FLOATS]
        if not floats:
            raise ArgumentError("gptq: calls of the model return no floats; give a `call` that returns its output")
        return sum([leaf.astype("float32").sum() for leaf in floats], start=vnp.zeros(()))

    def add(sums: dict[str, Array], model: T, batch: Any) -> dict[str, Array]:
        matrices: dict[str, Array] = grad(total)(tree.map(vnp.zeros_like, sums), model, batch)
        return tree.map(vnp.add, sums, matrices)

    step = jit(add, donate_argnums=0)
    sums = {name: vnp.zeros(shape) for name, shape in sizes.items()}
    count = 0
    for batch in batches:
        sums = step(sums, model, batch)
        count += 1
    if not count:
        raise ArgumentError("gptq: at least one batch of inputs is needed; quantize() needs none")
    return sums
