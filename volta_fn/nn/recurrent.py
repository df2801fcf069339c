"""Recurrent networks: cells make one step, layers run them over sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.dtypes import INTEGERS, result_type
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.activations import relu, sigmoid, tanh
from volta_fn.nn.layers.arguments import check_features, check_sizes, split_key, uniform_by_fan
from volta_fn.nn.layers.containers import Dropout
from volta_fn.nn.module import Module, static

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


# Recurrent cells: one step of a recurrent network.
#
# A *carry* is the value that a cell passes from step to step: the hidden features h, for an LSTM the pair (h, c) of them and the cell's
# memory. A cell has several *gates*, each a linear function of the input and h; their weights are concatenated in PyTorch's order.
# Matrices are stored as (in, out), as in `Linear`, so they are the transposes of PyTorch's:
#
# weight_ih   (input_size, gates * hidden_size)
# weight_hh   (hidden_size, gates * hidden_size)
# bias_ih     (gates * hidden_size,), or None
# bias_hh     likewise


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
        initial = self.checked_carry(carry, shape)
        dtype = result_type(projected, self.weight_hh, *initial)
        arrays = initial or [vnp.zeros(shape, dtype)] * self.carry_length
        return projected.astype(dtype), tuple([array.astype(dtype) for array in arrays])

    @classmethod
    def checked_carry(cls, carry: Any, shape: tuple[int, ...]) -> list[Array]:
        """Return the arrays of a carry, after a check of their number and shape."""
        if carry is None:
            return []
        several = isinstance(carry, (tuple, list))
        arrays = [as_value(array) for array in carry] if several else [as_value(carry)]
        if several != (cls.carry_length > 1) or len(arrays) != cls.carry_length or any(array.shape != shape for array in arrays):
            actual = tuple([array.shape for array in arrays]) if several else arrays[0].shape
            expected = (shape,) * cls.carry_length if cls.carry_length > 1 else shape
            raise ShapeError(f"{cls.__name__}: the carry needs shape {expected}, got {actual}")
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
        check_option(self.nonlinearity, f"{type(self).__name__}: nonlinearity", ("tanh", "relu"))

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


# Recurrent layers: stacked, optionally bidirectional cells over sequences.


class RecurrentLayer(Module):
    """Base of recurrent layers; see `LSTM`."""

    cells: tuple[Cell, ...]
    reverse_cells: tuple[Cell, ...] = ()
    dropout: Dropout = Dropout(0.0)
    batch_first: bool = static(default=True)

    cell: ClassVar[type[Cell]]

    @classmethod
    def init(
        cls,
        key: Any,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        dtype: Any = "float32",
        **options: Any,
    ) -> Self:
        """Create cells with weights and biases uniform between ±1/√hidden_size.

        Args:
            key: of the random weights.
            input_size: features of the input.
            hidden_size: features of the output, per direction.
            num_layers: the number of stacked layers, each of which reads the outputs of the previous one.
            bidirectional: whether each layer has a second cell that reads the sequence from its end.
            dropout: the probability of dropping an output of any layer but the last, in training.
            bias: whether the cells have biases.
            batch_first: whether sequences are (batch, time, features), or (time, batch, features), PyTorch's default.
            dtype: of the parameters.
            options: other arguments of the cell's `init` (`nonlinearity` of an `RNN`).

        Raises:
            ArgumentError: a size is negative or no integer, there are no layers, or there is dropout but no second layer.
        """
        check_sizes(cls.__name__, num_layers=num_layers)
        if num_layers == 0 or (dropout and num_layers == 1):
            raise ArgumentError(
                f"{cls.__name__}: num_layers is at least 1, and 2 with dropout, which acts between layers; got {num_layers}"
            )
        directions = 1 + bidirectional
        inputs = [input_size] + [hidden_size * directions] * (num_layers - 1)
        keys = random.split(key, (directions, num_layers))
        options |= {"bias": bias, "dtype": dtype}
        rows = [tuple([cls.cell.init(k, size, hidden_size, **options) for k, size in zip(row, inputs, strict=True)]) for row in keys]
        return cls(rows[0], rows[1] if bidirectional else (), Dropout.init(dropout), batch_first)

    def __call__(self, x: Any, carry: Any = None, lengths: Any = None, *, key: Any = None, training: bool = False) -> tuple[Array, Any]:
        """Return the last layer's outputs at every step, and the last carry.

        Args:
            x: sequences of shape (batch, time, input_size), without `batch_first` (time, batch, input_size), or one (time, input_size).
            carry: the initial carry (default: zeros), of the form returned: arrays of shape (layers * directions, batch, hidden_size), the
                two directions of a layer one after another; without `batch` for one sequence.
            lengths: the number of steps of each sequence, integers of shape (batch,). Later steps are padding: their output is 0 and they
                leave the carry unchanged, so that the backward direction starts at the last step that counts.
            key: of the dropout; needed if there is dropout, in training.
            training: whether to drop.

        Returns:
            The pair of outputs, shaped like `x` with directions * hidden_size features, and carry.

        Raises:
            ShapeError, DTypeError: the arguments have other shapes, or `lengths` is not of integers. ArgumentTypeError: the key is missing.
        """
        value = as_value(x)
        name, batched = type(self).__name__, value.ndim == 3
        if value.ndim not in (2, 3):
            axes = "batch and time and features" if self.batch_first else "time and batch and features"
            raise ShapeError(f"{name}: sequences have 3 axes, {axes}, or 2 without batch; got shape {value.shape}")
        check_features(name, value, self.cells[0].input_size)
        swapped = batched and self.batch_first
        y = value.swapaxes(0, 1) if swapped else value
        counts = None if lengths is None else self._counting(lengths, y.shape[:-1])
        y = y if counts is None else vnp.where(counts, y, 0)  # NaN in the padding must not reach the gradients
        directions = [self.cells, self.reverse_cells] if self.reverse_cells else [self.cells]
        starts = self._split_carry(carry, y.shape[1:-1], len(directions))
        keys = split_key(key, len(self.cells))
        ends: list[tuple[Array, ...]] = []
        for level, pair in enumerate(zip(*directions, strict=True)):
            if level:
                y = self.dropout(y, key=keys[level], training=training)
            runs = [_run(cell, y, starts[level][i], counts, reverse=i == 1) for i, cell in enumerate(pair)]
            y = vnp.concatenate([out for out, _ in runs], -1) if len(runs) > 1 else runs[0][0]
            ends += [end for _, end in runs]
        last = self.cell.joined(tuple([vnp.stack(array) for array in zip(*ends, strict=True)]))
        return (y.swapaxes(0, 1) if swapped else y), last

    def _counting(self, lengths: Any, shape: tuple[int, ...]) -> Array:
        """Return a mask of the steps that count, of shape (time, batch, 1)."""
        numbers = as_value(lengths)
        if numbers.dtype not in INTEGERS:
            raise DTypeError(f"{type(self).__name__}: lengths are integers, got {numbers.aval}")
        if numbers.shape != shape[1:]:
            raise ShapeError(f"{type(self).__name__}: lengths need shape {shape[1:]}, one for each sequence, got {numbers.shape}")
        steps = vnp.arange(shape[0]).reshape(-1, *[1] * len(shape))
        return steps < numbers[..., None]

    def _split_carry(self, carry: Any, batch: tuple[int, ...], directions: int) -> list[list[Any]]:
        """Return each layer's and direction's carry, None for zeros."""
        layers = len(self.cells)
        if carry is None:
            return [[None] * directions] * layers
        hidden_size = self.cells[0].hidden_size
        arrays = self.cell.checked_carry(carry, (layers * directions, *batch, hidden_size))
        starts = [self.cell.joined(tuple(rows)) for rows in zip(*arrays, strict=True)]
        return [starts[level * directions : (level + 1) * directions] for level in range(layers)]


def _run(cell: Cell, x: Array, carry: Any, counts: Array | None, reverse: bool) -> tuple[Array, tuple[Array, ...]]:
    """Run a cell over the leading axis of `x`; return outputs and the last carry."""
    projected, start = cell.begin(cell.project(x), carry, (*x.shape[1:-1], cell.hidden_size))

    def step(arrays: tuple[Array, ...], row: Sequence[Array]) -> tuple[tuple[Array, ...], Array]:
        new = cell.step(row[0], arrays)
        return new, new[0]

    def padded_step(arrays: tuple[Array, ...], row: Sequence[Array]) -> tuple[tuple[Array, ...], Array]:
        now, count = row
        new = cell.step(now, arrays)
        return tuple([vnp.where(count, n, old) for n, old in zip(new, arrays, strict=True)]), vnp.where(count, new[0], 0)

    body, rows = (step, (projected,)) if counts is None else (padded_step, (projected, counts))
    end, out = lax.scan(body, start, rows, reverse=reverse)
    return out, end


class RNN(RecurrentLayer):
    """Elman's network (1990): `RNNCell` over sequences.

    It is created and called like `LSTM`; the carry is one array h.

    >>> rnn = vf.nn.RNN.init(vf.random.key(0), 3, 4, nonlinearity="relu")
    >>> y, h = rnn(vf.numpy.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    cell = RNNCell


class LSTM(RecurrentLayer):
    """Long short-term memory (Hochreiter & Schmidhuber 1997) over sequences.

    It runs `LSTMCell` at every step; the carry is the pair (h, c). Sequences are (batch, time, features), as in attention; with
    ``batch_first=False`` they are (time, batch, features), as by default in PyTorch. `cells` holds the cells of the layers, `reverse_cells`
    those that read from the end, if it is bidirectional, so PyTorch's `weight_ih_l1` is the transpose of `cells.1.weight_ih`, its
    `weight_ih_l1_reverse` that of `reverse_cells.1.weight_ih`; biases are the same.

    A call returns a pair, which `Sequential` would pass on as it is: write a module that selects what the next layer needs.

    >>> lstm = vf.nn.LSTM.init(vf.random.key(0), 3, 4, num_layers=2, bidirectional=True)
    >>> y, (h, c) = lstm(vf.numpy.ones((2, 5, 3)), lengths=vf.numpy.array([5, 3]))
    >>> y.shape, h.shape, c.shape
    ((2, 5, 8), (4, 2, 4), (4, 2, 4))
    >>> y, carry = lstm(vf.numpy.ones((2, 7, 3)), (h, c))
    """

    cell = LSTMCell


class GRU(RecurrentLayer):
    """Gated recurrent units (Cho et al. 2014): `GRUCell` over sequences.

    It is created and called like `LSTM`; the carry is one array h.

    >>> gru = vf.nn.GRU.init(vf.random.key(0), 3, 4)
    >>> gru
    GRU(  # 108 parameters
      cells: [
        0: GRUCell(weight_ih: f32[3,12], weight_hh: f32[4,12], bias_ih: f32[12], bias_hh: f32[12])  # 108
      ]
      reverse_cells: ()
      dropout: Dropout(p=0.0)
      batch_first=True
    )
    >>> y, h = gru(vf.numpy.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    cell = GRUCell
