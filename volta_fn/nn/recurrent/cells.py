"""Recurrent cells: one step of a recurrent network.

A *carry* is what a cell hands from step to step: the hidden features h, for an LSTM the pair (h, c) of them and the cell's memory. A cell
has several *gates*, each a linear function of the input and h; their weights lie side by side, in PyTorch's order. Matrices are stored
(in, out), as `Linear` does, so they are PyTorch's transposed:

    weight_ih   (input_size, gates * hidden_size)
    weight_hh   (hidden_size, gates * hidden_size)
    bias_ih     (gates * hidden_size,), or None
    bias_hh     likewise
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import result_type
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import relu, sigmoid, tanh
from volta_fn.nn.layers.common import check_features, check_sizes, uniform_by_fan
from volta_fn.nn.module import Module, static

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class Cell(Module):
    """What the cells share: weights, their initial values, and the product of the input with its weights.

    That product depends on no earlier step, so `project` makes it for all steps of a sequence at once, and `step` does the rest.
    """

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array | None = None
    bias_hh: Array | None = None

    gates: ClassVar[int] = 1
    #: How many arrays of shape (…, hidden_size) a carry holds; one stands for itself, several are a tuple.
    parts: ClassVar[int] = 1

    @classmethod
    def init(cls, key: Any, input_size: int, hidden_size: int, *, bias: bool = True, dtype: Any = "float32") -> Self:
        """Weights and biases uniform between ±1/√hidden_size. Raises `ArgumentError` for sizes that are no natural numbers."""
        check_sizes(cls.__name__, input_size=input_size, hidden_size=hidden_size)
        width = cls.gates * hidden_size
        shapes: list[tuple[int, ...]] = [(input_size, width), (hidden_size, width)] + [(width,)] * (2 * bias)
        keys = random.split(key, 4)
        return cls(*[uniform_by_fan(k, shape, hidden_size, dtype) for k, shape in zip(keys, shapes, strict=False)])

    @property
    def input_size(self) -> int:
        """The features of a step's input."""
        return self.weight_ih.shape[0]

    @property
    def hidden_size(self) -> int:
        """The features of a step's output."""
        return self.weight_hh.shape[0]

    def __call__(self, x: Any, carry: Any = None) -> Any:
        """One step: the new carry.

        Args:
            x: the input, shape (…, input_size).
            carry: what the last step returned (default: zeros), of shape (…, hidden_size) each.

        Raises:
            ShapeError: the shapes do not fit.
        """
        value = as_value(x)
        check_features(type(self).__name__, value, self.input_size)
        projected, parts = self.begin(self.project(value), carry, (*value.shape[:-1], self.hidden_size))
        return self.joined(self.step(projected, parts))

    def project(self, x: Array) -> Array:
        """The input's share of the gates, shape (…, gates * hidden_size)."""
        product = vnp.matmul(x, self.weight_ih)
        return product if self.bias_ih is None else product + self.bias_ih

    @abstractmethod
    def step(self, projected: Array, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        """The next carry's parts, of which the first is the output, from the projected input and the carry's."""

    def begin(self, projected: Array, carry: Any, shape: tuple[int, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The projected input and the parts of the first carry, each of that shape, in one dtype."""
        given = self.checked_parts(carry, shape)
        dtype = result_type(projected, self.weight_hh, *given)
        parts = given or [vnp.zeros(shape, dtype)] * self.parts
        return projected.astype(dtype), tuple([part.astype(dtype) for part in parts])

    @classmethod
    def checked_parts(cls, carry: Any, shape: tuple[int, ...]) -> list[Array]:
        """The parts of a carry, none if it is None. Raises `ShapeError` if they are not as many as the cell has, of that shape."""
        if carry is None:
            return []
        several = isinstance(carry, (tuple, list))
        parts = [as_value(part) for part in carry] if several else [as_value(carry)]
        if several != (cls.parts > 1) or len(parts) != cls.parts or any(part.shape != shape for part in parts):
            given = tuple([part.shape for part in parts]) if several else parts[0].shape
            wanted = (shape,) * cls.parts if cls.parts > 1 else shape
            raise ShapeError(f"{cls.__name__}: the carry needs shape {wanted}, got {given}")
        return parts

    @staticmethod
    def joined(parts: tuple[Array, ...]) -> Any:
        """A carry as users see it."""
        return parts if len(parts) > 1 else parts[0]

    def _recurrent(self, h: Array) -> Array:
        product = vnp.matmul(h, self.weight_hh)
        return product if self.bias_hh is None else product + self.bias_hh


class RNNCell(Cell):
    """h' = tanh(x weight_ih + bias_ih + h weight_hh + bias_hh), or relu in place of tanh (Elman 1990).

    >>> import volta_fn as vf
    >>> cell = vf.nn.RNNCell.init(vf.random.key(0), 3, 4)
    >>> h = cell(vf.numpy.ones((2, 3)))
    >>> cell(vf.numpy.ones((2, 3)), h).shape
    (2, 4)
    """

    nonlinearity: str = static(default="tanh")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"{type(self).__name__}: nonlinearity is 'tanh' or 'relu', got {self.nonlinearity!r}")

    @classmethod
    def init(
        cls, key: Any, input_size: int, hidden_size: int, *, bias: bool = True, nonlinearity: str = "tanh", dtype: Any = "float32"
    ) -> Self:
        """Weights and biases uniform between ±1/√hidden_size; `nonlinearity` is "tanh" or "relu".

        Raises:
            ArgumentError: a size is no natural number, or the nonlinearity another.
        """
        plain = super().init(key, input_size, hidden_size, bias=bias, dtype=dtype)
        return plain.replace(nonlinearity=nonlinearity)

    def step(self, projected: Array, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        """The next h."""
        function = tanh if self.nonlinearity == "tanh" else relu
        return (function(projected + self._recurrent(parts[0])),)


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, Gers et al. 2000). The carry is the pair (h, c).

    With the gates i, f, g, o in this order along the weights' last axis:

        i, f, o = sigmoid(…)    g = tanh(…)    of x weight_ih + bias_ih + h weight_hh + bias_hh
        c' = f c + i g
        h' = o tanh(c')

    >>> import volta_fn as vf
    >>> cell = vf.nn.LSTMCell.init(vf.random.key(0), 3, 4)
    >>> h, c = cell(vf.numpy.ones((2, 3)))
    >>> h, c = cell(vf.numpy.ones((2, 3)), (h, c))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4
    parts = 2

    def step(self, projected: Array, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        """The next h and c."""
        h, c = parts
        i, f, g, o = lax.split(projected + self._recurrent(h), [self.hidden_size] * 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c


class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014), with the reset gate after the product, as PyTorch and cuDNN have it.

    With the gates r, z, n in this order along the weights' last axis:

        r = sigmoid(x W_ir + b_ir + h W_hr + b_hr)
        z = sigmoid(x W_iz + b_iz + h W_hz + b_hz)
        n = tanh(x W_in + b_in + r (h W_hn + b_hn))
        h' = (1 - z) n + z h

    >>> import volta_fn as vf
    >>> cell = vf.nn.GRUCell.init(vf.random.key(0), 3, 4)
    >>> h = cell(vf.numpy.ones((2, 3)))
    >>> cell(vf.numpy.ones((2, 3)), h).shape
    (2, 4)
    """

    gates = 3

    def step(self, projected: Array, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        """The next h."""
        (h,) = parts
        sizes = [self.hidden_size] * 3
        (x_r, x_z, x_n), (h_r, h_z, h_n) = lax.split(projected, sizes, -1), lax.split(self._recurrent(h), sizes, -1)
        z = sigmoid(x_z + h_z)
        n = tanh(x_n + sigmoid(x_r + h_r) * h_n)
        return (n + z * (h - n),)
