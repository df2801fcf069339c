"""RNN, GRU and LSTM, as scans over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import lax, nn
from volta_fn import numpy as vnp
from volta_fn.errors import OnnxError
from volta_fn.onnx.operators.registry import Node, as_array, operator

_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "affine": lambda x, a, b: a * x + b,
    "elu": lambda x, a, b: vnp.where(x > 0, x, a * vnp.expm1(vnp.minimum(x, 0))),
    "hardsigmoid": lambda x, a, b: vnp.clip(a * x + b, 0, 1),
    "leakyrelu": lambda x, a, b: vnp.where(x >= 0, x, a * x),
    "relu": lambda x, a, b: nn.relu(x),
    "scaledtanh": lambda x, a, b: a * vnp.tanh(b * x),
    "sigmoid": lambda x, a, b: nn.sigmoid(x),
    "softplus": lambda x, a, b: nn.softplus(x),
    "softsign": lambda x, a, b: x / (1 + abs(x)),
    "tanh": lambda x, a, b: vnp.tanh(x),
    "thresholdedrelu": lambda x, a, b: vnp.where(x > a, x, 0),
}
_DEFAULTS = {
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, 0.0),
    "elu": (1.0, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
}

Cell = Callable[..., tuple[Any, ...]]


class Layer:
    """What the three have in common: activations, weights, directions, lengths."""

    def __init__(self, node: Node, gates: int, defaults: list[str]) -> None:
        self.node, self.gates = node, gates
        self.hidden: int = node.get("hidden_size")
        self.direction = node.get("direction", "forward")
        self.directions = 2 if self.direction == "bidirectional" else 1
        names = [str(n).lower() for n in node.get("activations") or defaults * self.directions]
        if unknown := [n for n in names if n not in _ACTIVATIONS]:
            raise OnnxError(f"{node}: unknown activations {unknown}")
        self.functions = self._functions(names)
        self.per_direction = len(defaults)

    def _functions(self, names: list[str]) -> list[Callable[[Any], Any]]:
        alphas, betas = list(self.node.get("activation_alpha") or []), list(self.node.get("activation_beta") or [])
        made = []
        for name in names:
            a, b = _DEFAULTS.get(name, (1.0, 0.0))
            a = alphas.pop(0) if alphas and name in _DEFAULTS else a
            b = betas.pop(0) if betas and name in ("hardsigmoid", "scaledtanh", "affine") else b
            made.append(self._clipped(_ACTIVATIONS[name], a, b))
        return made

    def _clipped(self, function: Callable[..., Any], a: float, b: float) -> Callable[[Any], Any]:
        limit = self.node.get("clip")
        return (lambda x: function(x, a, b)) if limit is None else (lambda x: function(vnp.clip(x, -limit, limit), a, b))

    def run(self, cell: Cell, x: Any, lengths: Any, states: list[Any], weights: list[Any]) -> tuple[Any, list[Any]]:
        """Run all directions; return the outputs, and the last states.

        Their axes are (time, directions, batch, hidden), without the first for states.
        """
        x = as_array(x)
        if self.node.get("layout", 0):
            x = x.swapaxes(0, 1)
            states = [None if s is None else as_array(s).swapaxes(0, 1) for s in states]
        batch = x.shape[1]
        initial = [vnp.zeros((self.directions, batch, self.hidden), x.dtype) if s is None else as_array(s) for s in states]
        outputs, lasts = [], []
        for d in range(self.directions):
            chosen = [None if w is None else as_array(w)[d] for w in weights]
            functions = self.functions[d * self.per_direction : (d + 1) * self.per_direction]
            backward = self.direction == "reverse" or d == 1
            one, last = _scanned(cell, functions, x, lengths, tuple([s[d] for s in initial]), chosen, backward)
            outputs.append(one)
            lasts.append(last)
        stacked = [vnp.stack(column) for column in zip(*lasts, strict=True)]
        result = vnp.stack(outputs, 1)
        if self.node.get("layout", 0):
            result, stacked = result.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in stacked]
        return result, stacked


def _scanned(
    cell: Cell, functions: Any, x: Any, lengths: Any, start: tuple[Any, ...], weights: list[Any], backward: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Run one direction; where a sequence has ended, states stay and outputs are zero."""

    def step(states: tuple[Any, ...], given: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
        time, now = given
        new = cell(functions, now, states, *weights)
        if lengths is None:
            return new, new[0]
        alive = (time < as_array(lengths))[:, None]
        return tuple([vnp.where(alive, n, s) for n, s in zip(new, states, strict=True)]), vnp.where(alive, new[0], 0)

    last, outputs = lax.scan(step, start, (vnp.arange(x.shape[0], dtype=np.int32), x), reverse=backward)
    return outputs, last


def _bias(bias: Any, gates: int, hidden: int, like: Any) -> tuple[Any, Any]:
    """Return the biases of the input and of the recurrence."""
    if bias is None:
        zeros = vnp.zeros(gates * hidden, like.dtype)
        return zeros, zeros
    return bias[: gates * hidden], bias[gates * hidden :]


@operator("RNN")
def rnn(node: Node, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, initial: Any = None) -> tuple[Any, ...]:
    """Run simple recurrent layers."""
    layer = Layer(node, 1, ["Tanh"])

    def cell(functions: Any, now: Any, states: tuple[Any, ...], w: Any, r: Any, b: Any) -> tuple[Any, ...]:
        (h,), (on_input, on_state) = states, _bias(b, 1, layer.hidden, now)
        return (functions[0](now @ w.T + on_input + h @ r.T + on_state),)

    result, (last,) = layer.run(cell, x, lengths, [initial], [w, r, bias])
    return result, last


@operator("GRU")
def gru(node: Node, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, initial: Any = None) -> tuple[Any, ...]:
    """Run gated recurrent units."""
    layer = Layer(node, 3, ["Sigmoid", "Tanh"])
    linear_first = bool(node.get("linear_before_reset", 0))

    def cell(functions: Any, now: Any, states: tuple[Any, ...], w: Any, r: Any, b: Any) -> tuple[Any, ...]:
        (h,), (on_input, on_state) = states, _bias(b, 3, layer.hidden, now)
        n = layer.hidden
        f, g = functions
        inputs, moved = now @ w.T + on_input, h @ r[: 2 * n].T + on_state[: 2 * n]
        update, reset = f(inputs[:, :n] + moved[:, :n]), f(inputs[:, n : 2 * n] + moved[:, n:])
        if linear_first:
            new = reset * (h @ r[2 * n :].T + on_state[2 * n :])
        else:
            new = (reset * h) @ r[2 * n :].T + on_state[2 * n :]
        return ((1 - update) * g(inputs[:, 2 * n :] + new) + update * h,)

    result, (last,) = layer.run(cell, x, lengths, [initial], [w, r, bias])
    return result, last


@operator("LSTM")
def lstm(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    initial: Any = None,
    initial_cell: Any = None,
    peepholes: Any = None,
) -> tuple[Any, ...]:
    """Run long short-term memories."""
    layer = Layer(node, 4, ["Sigmoid", "Tanh", "Tanh"])
    coupled = bool(node.get("input_forget", 0))

    def cell(functions: Any, now: Any, states: tuple[Any, ...], w: Any, r: Any, b: Any, p: Any) -> tuple[Any, ...]:
        (h, c), (on_input, on_state), n = states, _bias(b, 4, layer.hidden, now), layer.hidden
        f, g, last = functions
        gates = now @ w.T + on_input + h @ r.T + on_state
        seen = vnp.zeros(3 * n, now.dtype) if p is None else p
        opened = f(gates[:, :n] + seen[:n] * c)
        kept = 1 - opened if coupled else f(gates[:, 2 * n : 3 * n] + seen[2 * n :] * c)
        new = kept * c + opened * g(gates[:, 3 * n :])
        shown = f(gates[:, n : 2 * n] + seen[n : 2 * n] * new)
        return shown * last(new), new

    result, (last, last_cell) = layer.run(cell, x, lengths, [initial, initial_cell], [w, r, bias, peepholes])
    return result, last, last_cell
