"""Recurrent layers: stacked, optionally bidirectional cells over sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import INTEGERS
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.layers.common import check_features, check_sizes, split_key
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.module import Module, static
from volta_fn.nn.recurrent.cells import Cell, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "RNN"]


class RecurrentLayer(Module):
    """Base of recurrent layers; see `LSTM`."""

    cells: tuple[Cell, ...]
    reverse_cells: tuple[Cell, ...] = ()
    dropout: Dropout = Dropout(0.0)
    batch_first: bool = static(default=False)

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
        batch_first: bool = False,
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
            batch_first: sequences are (batch, time, features) instead of (time, batch, features).
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
            x: sequences of shape (time, batch, input_size), with `batch_first` (batch, time, input_size), or one (time, input_size).
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
            raise ShapeError(f"{name}: sequences have 3 axes, time and batch and features, or 2 without batch; got shape {value.shape}")
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
    >>> y, h = rnn(vf.numpy.ones((5, 2, 3)))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    cell = RNNCell


class LSTM(RecurrentLayer):
    """Long short-term memory (Hochreiter & Schmidhuber 1997) over sequences.

    It runs `LSTMCell` at every step; the carry is the pair (h, c). Sequences are (time, batch, features), as in PyTorch, unless
    `batch_first` is set. `cells` holds the cells of the layers, `reverse_cells` those that read from the end, if it is bidirectional, so
    PyTorch's `weight_ih_l1` is the transpose of `cells.1.weight_ih`, its `weight_ih_l1_reverse` that of `reverse_cells.1.weight_ih`; biases
    are the same.

    A call returns a pair, which `Sequential` would pass on as it is: write a module that selects what the next layer needs.

    >>> lstm = vf.nn.LSTM.init(vf.random.key(0), 3, 4, num_layers=2, bidirectional=True)
    >>> y, (h, c) = lstm(vf.numpy.ones((5, 2, 3)), lengths=vf.numpy.array([5, 3]))
    >>> y.shape, h.shape, c.shape
    ((5, 2, 8), (4, 2, 4), (4, 2, 4))
    >>> y, carry = lstm(vf.numpy.ones((7, 2, 3)), (h, c))
    """

    cell = LSTMCell


class GRU(RecurrentLayer):
    """Gated recurrent units (Cho et al. 2014): `GRUCell` over sequences.

    It is created and called like `LSTM`; the carry is one array h.

    >>> gru = vf.nn.GRU.init(vf.random.key(0), 3, 4, batch_first=True)
    >>> y, h = gru(vf.numpy.ones((2, 5, 3)))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    cell = GRUCell
