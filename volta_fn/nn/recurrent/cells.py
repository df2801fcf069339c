"""Recurrent cells: one step of a recurrent network.

A *carry* is the value that a cell passes from step to step: the hidden features h, for an LSTM the pair (h, c) of them and the cell's
memory. A cell has several *gates*, each a linear function of the input and h; their weights are concatenated in PyTorch's order.
Matrices are stored as (in, out), as in `Linear`, so they are the transposes of PyTorch's:

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
    """Base of recurrent cells.

    The product of input and weights depends on no earlier step, so `project` computes it for all steps of a sequence at once, and `step`
    does the rest.
    """

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array | None = None
    bias_hh: Array | None = None

    gates: ClassVar[int] = 1
    #: The number of arrays of shape (…, hidden_size) in a carry; several are a tuple.
    carry_length: ClassVar[int] = 1

    @classmethod
    def init(cls, key: Any, input_size: int, hidden_size: int, *, bias: bool = True, dtype: Any = "float32") -> Self:
        """Create the cell with weights and biases uniform between ±1/√hidden_size.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
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
        """Make one step; return the new carry.

        Args:
            x: the input, shape (…, input_size).
            carry: the carry of the last step (default: zeros), each array of shape (…, hidden_size).

        Raises:
            ShapeError: the shapes do not fit.
        """
        value = as_value(x)
        check_features(type(self).__name__, value, self.input_size)
        projected, arrays = self.begin(self.project(value), carry, (*value.shape[:-1], self.hidden_size))
        return self.joined(self.step(projected, arrays))

    def project(self, x: Array) -> Array:
        """Return x weight_ih + bias_ih, of shape (…, gates * hidden_size)."""
        product = vnp.matmul(x, self.weight_ih)
        return product if self.bias_ih is None else product + self.bias_ih

    @abstractmethod
    def step(self, projected: Array, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the arrays of the next carry; the first one is the output."""

    def begin(self, projected: Array, carry: Any, shape: tuple[int, ...]) -> tuple[Array, tuple[Array, ...]]:
        """Return the projected input and the initial carry's arrays in one dtype."""
        given = self.checked_carry(carry, shape)
        dtype = result_type(projected, self.weight_hh, *given)
        arrays = given or [vnp.zeros(shape, dtype)] * self.carry_length
        return projected.astype(dtype), tuple([array.astype(dtype) for array in arrays])

    @classmethod
    def checked_carry(cls, carry: Any, shape: tuple[int, ...]) -> list[Array]:
        """Return the arrays of a carry, after a check of their number and shape."""
        if carry is None:
            return []
        several = isinstance(carry, (tuple, list))
        arrays = [as_value(array) for array in carry] if several else [as_value(carry)]
        if several != (cls.carry_length > 1) or len(arrays) != cls.carry_length or any(array.shape != shape for array in arrays):
            given = tuple([array.shape for array in arrays]) if several else arrays[0].shape
            wanted = (shape,) * cls.carry_length if cls.carry_length > 1 else shape
            raise ShapeError(f"{cls.__name__}: the carry needs shape {wanted}, got {given}")
        return arrays

    @staticmethod
    def joined(arrays: tuple[Array, ...]) -> Any:
        """Return a carry from its arrays: one array, or a tuple."""
        return arrays if len(arrays) > 1 else arrays[0]

    def _recurrent(self, h: Array) -> Array:
        product = vnp.matmul(h, self.weight_hh)
        return product if self.bias_hh is None else product + self.bias_hh


class RNNCell(Cell):
    """h' = tanh(x weight_ih + bias_ih + h weight_hh + bias_hh), or relu for tanh.

    See Elman (1990).

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
        """Create the cell with weights and biases uniform between ±1/√hidden_size.

        `nonlinearity` is "tanh" or "relu".

        Raises:
            ArgumentError: a size is negative or no integer, or the nonlinearity another.
        """
        plain = super().init(key, input_size, hidden_size, bias=bias, dtype=dtype)
        return plain.replace(nonlinearity=nonlinearity)

    def step(self, projected: Array, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the next h."""
        function = tanh if self.nonlinearity == "tanh" else relu
        return (function(projected + self._recurrent(arrays[0])),)


class LSTMCell(Cell):
    """Long short-term memory; the carry is the pair (h, c).

    See Hochreiter & Schmidhuber (1997) and Gers et al. (2000). With the gates i, f, g, o in this order along the weights' last axis:

        i, f, o = sigmoid(…)    g = tanh(…)    of x weight_ih + bias_ih + h weight_hh + bias_hh
        c' = f c + i g
        h' = o tanh(c')

    >>> cell = vf.nn.LSTMCell.init(vf.random.key(0), 3, 4)
    >>> h, c = cell(vf.numpy.ones((2, 3)))
    >>> h, c = cell(vf.numpy.ones((2, 3)), (h, c))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4
    carry_length = 2

    def step(self, projected: Array, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the next h and c."""
        h, c = arrays
        i, f, g, o = lax.split(projected + self._recurrent(h), [self.hidden_size] * 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c


class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014).

    The reset gate follows the product, as in PyTorch and cuDNN. With the gates r, z, n in this order along the weights' last axis:

        r = sigmoid(x W_ir + b_ir + h W_hr + b_hr)
        z = sigmoid(x W_iz + b_iz + h W_hz + b_hz)
        n = tanh(x W_in + b_in + r (h W_hn + b_hn))
        h' = (1 - z) n + z h

    >>> cell = vf.nn.GRUCell.init(vf.random.key(0), 3, 4)
    >>> h = cell(vf.numpy.ones((2, 3)))
    >>> cell(vf.numpy.ones((2, 3)), h).shape
    (2, 4)
    """

    gates = 3

    def step(self, projected: Array, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the next h."""
        (h,) = arrays
        sizes = [self.hidden_size] * 3
        (x_r, x_z, x_n), (h_r, h_z, h_n) = lax.split(projected, sizes, -1), lax.split(self._recurrent(h), sizes, -1)
        z = sigmoid(x_z + h_z)
        n = tanh(x_n + sigmoid(x_r + h_r) * h_n)
        return (n + z * (h - n),)
