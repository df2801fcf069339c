"""Losses of papers as one writes them for PyTorch, compiled in float32: beside float64, operation by operation, and differences.

Each program draws weights and a batch of `n` examples, and defines a loss of both. The empty batch, too, has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax, nn
from volta_fn import numpy as jnp

Loss = Callable[[Any, Any], vf.Array]
Program = Callable[["Draw", int], tuple[Any, Any, Loss]]
PROGRAMS: dict[str, Program] = {}


class Draw:
    """Draws weights and data in float64, and integers in int32."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        return self.generator.normal(size=shape)

    def uniform(self, *shape: int) -> np.ndarray:
        return self.generator.uniform(0.1, 0.9, size=shape)

    def integers(self, high: int, *shape: int) -> np.ndarray:
        return self.generator.integers(0, high, size=shape).astype("int32")

    def weight(self, *shape: int) -> np.ndarray:
        """Normal numbers whose products with as many inputs, all but the last axis, have deviation 1."""
        return self.normal(*shape) / math.sqrt(math.prod(shape[:-1]))


def program(function: Program) -> Program:
    """Add a program to the table."""
    PROGRAMS[function.__name__] = function
    return function


def convolve(x: Any, weight: Any, padding: Any = "SAME", **options: Any) -> Any:
    return lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


def layer_norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def group_norm(x: Any, groups: int, scale: Any) -> Any:
    n, height, width, channels = x.shape
    grouped = x.reshape(n, height, width, groups, channels // groups)
    mean, variance = grouped.mean((1, 2, 4), keepdims=True), grouped.var((1, 2, 4), keepdims=True)
    return ((grouped - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * scale


@program
def unet(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Skip connections, group norm, pooling, transposed convolution; Dice loss and cross-entropy (Ronneberger et al. 2015)."""
    shapes = {"down": (3, 3, 1, 4), "deep": (3, 3, 4, 8), "up": (2, 2, 8, 4), "join": (3, 3, 8, 4), "out": (1, 1, 4, 1)}
    weights = {name: d.weight(*shape) for name, shape in shapes.items()} | {"scales": [d.normal(c) for c in (4, 8, 4)]}
    data = {"x": d.normal(n, 6, 6, 1), "mask": np.floor(d.uniform(n, 6, 6, 1) * 2)}

    def loss(w: Any, data: Any) -> vf.Array:
        skipped = nn.silu(group_norm(convolve(data["x"], w["down"]), 2, w["scales"][0]))
        pooled = lax.reduce_window(skipped, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        deep = nn.silu(group_norm(convolve(pooled, w["deep"], rhs_dilation=(2, 2)), 2, w["scales"][1]))
        upper = lax.conv_transpose(deep, w["up"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        joined = convolve(jnp.concatenate([upper, skipped], -1), w["join"])
        logits = convolve(nn.silu(group_norm(joined, 2, w["scales"][2])), w["out"])
        shares = nn.sigmoid(logits)
        overlap = (shares * data["mask"]).sum((1, 2, 3))
        dice = 1 - (2 * overlap + 1) / ((shares + data["mask"]).sum((1, 2, 3)) + 1)
        return dice.mean() + nn.binary_cross_entropy_with_logits(logits, data["mask"])

    return weights, data, loss


@program
def convnext(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A block with depthwise convolution, global response norm and stochastic depth (Woo et al. 2023)."""
    shapes = {"depthwise": (7, 7, 1, 5), "scale": (5,), "wide": (5, 20), "narrow": (20, 5), "response": (20,)}
    data = {"x": d.normal(n, 5, 5, 5), "kept": np.round(d.uniform(n))}

    def loss(w: Any, data: Any) -> vf.Array:
        x = data["x"]
        hidden = convolve(x, w["depthwise"], feature_group_count=5)
        hidden = nn.gelu(layer_norm(hidden, w["scale"]) @ w["wide"], approximate=False)
        norms = jnp.sqrt((hidden**2).sum((1, 2), keepdims=True) + 1e-6)
        hidden = hidden + w["response"] * hidden * norms / (norms.mean(-1, keepdims=True) + 1e-6)
        y = x + hidden @ w["narrow"] * (data["kept"] / 0.8)[:, None, None, None]
        return (jnp.tanh(y) ** 2).mean() + y.mean((1, 2)).max(1).sum()

    return {name: d.weight(*shape) for name, shape in shapes.items()}, data, loss


@program
def gradient_penalty(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """WGAN-GP: a loss of the norms of a critic's gradients by examples (Gulrajani et al. 2017)."""
    shapes = {"first": (7, 16), "bias": (16,), "second": (16, 16), "out": (16, 1)}

    def critic(w: Any, x: Any) -> vf.Array:
        return (nn.softplus(jnp.tanh(x @ w["first"] + w["bias"]) @ w["second"]) @ w["out"])[..., 0]

    def loss(w: Any, data: Any) -> vf.Array:
        between = data["share"] * data["real"] + (1 - data["share"]) * data["fake"]
        slopes = vf.vmap(vf.grad(critic, 1), (None, 0))(w, between)
        penalty = ((jnp.sqrt((slopes**2).sum(-1) + 1e-12) - 1) ** 2).mean()
        return critic(w, data["fake"]).mean() - critic(w, data["real"]).mean() + 10 * penalty

    data = {"real": d.normal(n, 7), "fake": d.normal(n, 7), "share": d.uniform(n, 1)}
    return {name: d.weight(*shape) for name, shape in shapes.items()}, data, loss


@program
def transformer_xl(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Segments in a scan, with a memory and relative positions by a shift (Dai et al. 2019)."""
    length, memory, heads, size = 5, 3, 2, 4
    width = heads * size
    weights = {name: d.weight(width, width) for name in ("queries", "keys", "values", "positions", "out")}
    weights |= {"content": d.normal(heads, size), "place": d.normal(heads, size), "scale": d.normal(width)}

    def loss(w: Any, data: Any) -> vf.Array:
        def segment(remembered: Any, x: Any) -> tuple[Any, Any]:
            context = jnp.concatenate([lax.stop_gradient(remembered), x], 1)
            query = (x @ w["queries"]).reshape(n, length, heads, size)
            key, value = ((context @ w[name]).reshape(n, memory + length, heads, size) for name in ("keys", "values"))
            angles = jnp.arange(memory + length - 1, -1, -1)[:, None] / 10.0 ** jnp.arange(width // 2)
            waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(x.dtype)
            relative = (waves @ w["positions"]).reshape(memory + length, heads, size)
            by_place = jnp.einsum("nihd,jhd->nhij", query + w["place"], relative)
            shifted = jnp.pad(by_place, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(n, heads, memory + length + 1, length)[:, :, 1:]
            scores = jnp.einsum("nihd,njhd->nhij", query + w["content"], key) + shifted.reshape(by_place.shape)
            visible = jnp.arange(memory + length) <= jnp.arange(length)[:, None] + memory
            shares = nn.softmax(jnp.where(visible, scores / math.sqrt(size), -jnp.inf), -1)
            y = layer_norm(x + jnp.einsum("nhij,njhd->nihd", shares, value).reshape(x.shape) @ w["out"], w["scale"])
            return context[:, length:], y

        remembered, outs = lax.scan(segment, data["memory"], data["x"])
        return (jnp.sin(outs) ** 2).mean() + (lax.stop_gradient(remembered) ** 2).mean()

    return weights, {"x": d.normal(3, n, length, width), "memory": d.normal(n, memory, width)}, loss


@program
def gru_d(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A recurrent network for missing values, whose inputs and state decay with time (Che et al. 2018)."""
    features, hidden = 3, 8
    shapes = {"input_decay": (features,), "state_decay": (features, hidden), "inputs": (2 * features, 3 * hidden)}
    shapes |= {"state": (hidden, 3 * hidden), "bias": (3 * hidden,), "out": (hidden, 1), "mean": (features,)}

    def loss(w: Any, data: Any) -> vf.Array:
        def step(carry: Any, rows: Any) -> tuple[Any, Any]:
            (state, last), (x, seen, elapsed) = carry, rows
            decay = jnp.exp(-nn.relu(w["input_decay"] * elapsed))
            filled = seen * x + (1 - seen) * (decay * last + (1 - decay) * w["mean"])
            state = state * jnp.exp(-nn.relu(elapsed @ w["state_decay"]))
            reset, update, new = jnp.split(jnp.concatenate([filled, seen], -1) @ w["inputs"] + w["bias"], 3, -1)
            of_reset, of_update, of_new = jnp.split(state @ w["state"], 3, -1)
            update_gate = nn.sigmoid(update + of_update)
            state = update_gate * state + (1 - update_gate) * jnp.tanh(new + nn.sigmoid(reset + of_reset) * of_new)
            return (state, jnp.where(seen > 0, x, last)), (state @ w["out"])[:, 0]

        start = jnp.zeros((n, hidden), data["x"].dtype), jnp.broadcast_to(w["mean"], (n, features))
        _, logits = lax.scan(step, start, (data["x"], data["seen"], data["elapsed"]))
        return nn.binary_cross_entropy_with_logits(logits[-1], data["label"]) + 0.1 * (logits**2).mean()

    data = {"x": d.normal(4, n, features), "seen": np.round(d.uniform(4, n, features)), "elapsed": d.uniform(4, n, features)}
    return {name: d.weight(*shape) for name, shape in shapes.items()}, data | {"label": np.round(d.uniform(n))}, loss


@program
def turing_machine(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A controller that reads and writes a memory by content and by shifts (Graves et al. 2014), one example at a time under vmap."""
    slots, size, features, hidden = 7, 3, 3, 5
    weights = {"inputs": d.weight(features + size, hidden), "state": d.weight(hidden, hidden), "memory": d.normal(slots, size)}
    weights |= {"head": d.weight(hidden, 3 * size + 6), "out": d.weight(hidden + size, features)}

    def address(head: Any, memory: Any, shares: Any) -> Any:
        key, (strength, gate, sharpness), shifts = head[:size], head[size : size + 3], nn.softmax(head[size + 3 :])
        similarity = memory @ key / (jnp.linalg.norm(memory, axis=1) * jnp.linalg.norm(key) + 1e-6)
        mixed = nn.sigmoid(gate) * nn.softmax(nn.softplus(strength) * similarity) + (1 - nn.sigmoid(gate)) * shares
        shifted = sum(share * jnp.roll(mixed, offset) for share, offset in zip(shifts, (1, 0, -1), strict=True))
        sharp = shifted ** (1 + nn.softplus(sharpness))
        return sharp / sharp.sum()

    def loss(w: Any, data: Any) -> vf.Array:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            state, memory, shares, read = carry
            state = jnp.tanh(jnp.concatenate([x, read]) @ w["inputs"] + state @ w["state"])
            head = state @ w["head"]
            shares = address(head[: size + 6], memory, shares)
            erased, added = nn.sigmoid(head[size + 6 : 2 * size + 6]), jnp.tanh(head[2 * size + 6 :])
            read = shares @ memory
            memory = memory * (1 - jnp.outer(shares, erased)) + jnp.outer(shares, added)
            return (state, memory, shares, read), jnp.concatenate([state, read]) @ w["out"]

        zeros = lambda count: jnp.zeros(count, data["x"].dtype)
        run = lambda x: lax.scan(step, (zeros(hidden), w["memory"], zeros(slots) + 1 / slots, zeros(size)), x)[1]
        return nn.binary_cross_entropy_with_logits(vf.vmap(run)(data["x"]), data["label"])

    return weights, {"x": d.normal(n, 4, features), "label": np.round(d.uniform(n, 4, features))}, loss


@program
def normalizing_flow(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Affine couplings and products with matrices, by their determinants (Dinh et al. 2017, Kingma and Dhariwal 2018)."""
    weights = [{"mix": d.weight(6, 6) + 2 * np.eye(6), "hidden": d.weight(3, 9), "affine": d.weight(9, 6)} for _ in range(2)]

    def loss(w: Any, data: Any) -> vf.Array:
        x, volume = data["x"], jnp.zeros(n, data["x"].dtype)
        for layer in w:
            fixed, changed = jnp.split(x @ layer["mix"], 2, -1)
            scale, shift = jnp.split(nn.relu(fixed @ layer["hidden"]) @ layer["affine"], 2, -1)
            volume = volume + jnp.linalg.slogdet(layer["mix"])[1] + jnp.tanh(scale).sum(-1)
            x = jnp.concatenate([changed * jnp.exp(jnp.tanh(scale)) + shift, fixed], -1)
        return (0.5 * (x**2).sum(-1) - volume).mean()

    return weights, {"x": d.normal(n, 6)}, loss


@program
def radiance_field(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Positional encoding, and colours by the transmittance along rays (Mildenhall et al. 2020)."""
    samples = 8
    weights = {"hidden": d.weight(21, 16), "density": d.weight(16, 1), "colour": d.weight(19, 3)}

    def loss(w: Any, data: Any) -> vf.Array:
        depths = jnp.sort(data["depths"], -1)
        points = data["origin"][:, None] + depths[..., None] * data["ray"][:, None]
        angles = jnp.concatenate([points * scale for scale in (1.0, 2.0, 4.0)], -1)
        hidden = nn.relu(jnp.concatenate([points, jnp.sin(angles), jnp.cos(angles)], -1) @ w["hidden"])
        rays = jnp.broadcast_to(data["ray"][:, None], points.shape)
        colours = nn.sigmoid(jnp.concatenate([hidden, rays], -1) @ w["colour"])
        gaps = jnp.concatenate([jnp.diff(depths), jnp.full_like(depths[:, :1], 1e3)], -1)
        opacity = 1 - jnp.exp(-nn.softplus((hidden @ w["density"])[..., 0]) * gaps)
        clear = jnp.cumprod(jnp.concatenate([jnp.ones_like(depths[:, :1]), 1 - opacity + 1e-10], -1), -1)[:, :-1]
        shares = opacity * clear
        seen = (shares[..., None] * colours).sum(1) + 1 - shares.sum(-1, keepdims=True)
        return ((seen - data["colour"]) ** 2).mean() + 0.01 * (shares * depths).sum(-1).mean()

    data = {"origin": d.normal(n, 3), "ray": d.normal(n, 3), "depths": d.uniform(n, samples), "colour": d.uniform(n, 3)}
    return weights, data, loss


@program
def sine_network(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A loss of the Laplacian and the gradient of a network of sines (Sitzmann et al. 2020)."""
    weights = {"first": 2 * d.weight(2, 8), "second": d.weight(8, 8), "out": d.weight(8, 1)}

    def network(w: Any, x: Any) -> vf.Array:
        return (jnp.sin(jnp.sin(x @ w["first"]) @ w["second"]) @ w["out"])[0]

    def loss(w: Any, data: Any) -> vf.Array:
        laplacians = vf.vmap(lambda x: jnp.trace(vf.hessian(network, 1)(w, x)))(data["x"])
        slopes = vf.vmap(vf.grad(network, 1), (None, 0))(w, data["x"])
        return ((laplacians - data["y"]) ** 2).mean() + ((jnp.linalg.norm(slopes, axis=-1) - 1) ** 2).mean()

    return weights, {"x": d.normal(n, 2), "y": d.normal(n)}, loss


@program
def adapted_weights(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Steps of gradient descent per task, with a rate that is learned as well (MAML, Finn et al. 2017)."""
    weights = {"net": {"first": d.weight(1, 8), "bias": d.normal(8), "out": d.weight(8, 1)}, "rate": np.array(0.05)}

    def error(net: Any, x: Any, y: Any) -> vf.Array:
        return ((jnp.tanh(x @ net["first"] + net["bias"]) @ net["out"] - y) ** 2).mean()

    def loss(w: Any, data: Any) -> vf.Array:
        def task(x: Any, y: Any) -> vf.Array:
            def step(net: Any, _: None) -> tuple[Any, None]:
                return vf.tree.map(lambda weight, slope: weight - w["rate"] * slope, net, vf.grad(error)(net, x[0], y[0])), None

            return error(lax.scan(step, w["net"], None, length=3)[0], x[1], y[1])

        return vf.vmap(task)(data["x"], data["y"]).mean()

    return weights, {"x": d.normal(n, 2, 5, 1), "y": d.normal(n, 2, 5, 1)}, loss


@program
def categorical_values(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A distribution of returns, projected to fixed atoms by sums at computed indices (Bellemare et al. 2017)."""
    atoms, actions = 11, 3
    weights = {"hidden": d.weight(4, 8), "out": d.weight(8, actions * atoms)}

    def loss(w: Any, data: Any) -> vf.Array:
        logits = lambda w, x: (nn.relu(x @ w["hidden"]) @ w["out"]).reshape(n, actions, atoms)
        support, examples = jnp.linspace(-2.0, 2.0, atoms).astype(data["x"].dtype), jnp.arange(n)
        shares = nn.softmax(logits(lax.stop_gradient(w), data["next"]), -1)
        best = shares[examples, (shares * support).sum(-1).argmax(-1)]
        places = (jnp.clip(data["reward"][:, None] + 0.9 * support, -2, 2) + 2) / 4 * (atoms - 1)
        lower = jnp.clip(jnp.floor(places).astype("int32"), 0, atoms - 2)
        projected = jnp.zeros((n, atoms), places.dtype).at[examples[:, None], lower].add(best * (1 - (places - lower)))
        projected = projected.at[examples[:, None], lower + 1].add(best * (places - lower))
        chosen = jnp.take_along_axis(nn.log_softmax(logits(w, data["x"]), -1), data["action"][:, None, None], 1)[:, 0]
        return -(lax.stop_gradient(projected) * chosen).sum(-1).mean()

    data = {"x": d.normal(n, 4), "next": d.normal(n, 4), "reward": d.normal(n), "action": d.integers(actions, n)}
    return weights, data, loss


@program
def selective_states(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """A state space model with inputs that select, by an associative scan and step by step (Gu and Dao 2023)."""
    size, states = 4, 3
    shapes = {"inputs": (size, 2 * size), "taps": (4, 1, size), "parameters": (size, size + 2 * states), "decay": (size, states)}

    def loss(w: Any, data: Any) -> vf.Array:
        x, gate = jnp.split(data["x"] @ w["inputs"], 2, -1)
        taps: dict[str, Any] = {"feature_group_count": size, "dimension_numbers": ("NHC", "HIO", "NHC")}
        x = nn.silu(lax.conv_general_dilated(x, w["taps"], (1,), [(3, 0)], **taps))
        steps, entries, exits = jnp.split(x @ w["parameters"], [size, size + states], -1)
        steps = nn.softplus(steps)[..., None]
        factors, terms = jnp.exp(-steps * jnp.exp(w["decay"])), steps * entries[:, :, None] * x[..., None]
        _, parallel = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (factors, terms), axis=1)
        rows = vf.tree.map(lambda array: array.swapaxes(0, 1), (factors, terms))
        _, stepwise = lax.scan(lambda h, row: (row[0] * h + row[1],) * 2, jnp.zeros_like(rows[0][0]), rows)
        y = ((parallel + stepwise.swapaxes(0, 1)) * exits[:, :, None]).sum(-1) * nn.silu(gate)
        return (jnp.cos(y) * data["y"]).mean()

    weights = {name: d.weight(*shape) for name, shape in shapes.items()}
    return weights, {"x": d.normal(n, 9, size), "y": d.normal(n, 9, size)}, loss


@program
def tree_of_cells(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Nodes in topological order, which gather their children from an array that a scan writes (Tai et al. 2015)."""
    nodes, features, hidden = 7, 3, 4
    weights = {"inputs": d.weight(features, 5 * hidden), "children": d.weight(2 * hidden, 5 * hidden), "out": d.weight(hidden, 2)}
    children = [d.generator.integers(0, node, (n, 2)) if node > 2 else np.full((n, 2), nodes) for node in range(nodes)]

    def loss(w: Any, data: Any) -> vf.Array:
        def tree(x: Any, children: Any) -> vf.Array:
            def node(carry: Any, number: Any) -> tuple[Any, Any]:
                outs, cells = carry
                pair = children[number]
                gates = outs[pair].reshape(-1) @ w["children"] + x[number] @ w["inputs"]
                enter, left, right, leave, new = jnp.split(gates, 5)
                carry_over = nn.sigmoid(left) * cells[pair[0]] + nn.sigmoid(right) * cells[pair[1]]
                cell = nn.sigmoid(enter) * jnp.tanh(new) + carry_over
                out = nn.sigmoid(leave) * jnp.tanh(cell)
                return (outs.at[number].set(out), cells.at[number].set(cell)), out @ w["out"]

            zeros = jnp.zeros((nodes + 1, hidden), x.dtype)
            return lax.scan(node, (zeros, zeros), jnp.arange(nodes))[1]

        return nn.cross_entropy(vf.vmap(tree)(data["x"], data["children"]), data["label"], axis=-1)

    data = {"x": d.normal(n, nodes, features), "children": np.stack(children, 1).astype("int32")}
    return weights, data | {"label": d.integers(2, n, nodes)}, loss


@program
def queue_of_keys(d: Draw, n: int) -> tuple[Any, Any, Loss]:
    """Contrast with a queue that a scan writes in place, and keys of a moving average of weights (He et al. 2020)."""
    size = 13
    weights = {"w": d.weight(5, 4), "b": d.normal(4)}

    def embed(w: Any, x: Any) -> vf.Array:
        out = jnp.tanh(x @ w["w"] + w["b"])
        return out / jnp.sqrt((out**2).sum(-1, keepdims=True) + 1e-6)

    def loss(w: Any, data: Any) -> vf.Array:
        def step(carry: Any, pair: Any) -> tuple[Any, Any]:
            queue, place, average = carry
            query, key = embed(w, pair[0]), lax.stop_gradient(embed(average, pair[1]))
            logits = jnp.concatenate([(query * key).sum(-1, keepdims=True), query @ queue.T], 1) / 0.2
            cost = nn.cross_entropy(logits, jnp.zeros(n, "int32"))
            average = vf.tree.map(lambda old, new: 0.9 * old + 0.1 * lax.stop_gradient(new), average, w)
            return (lax.dynamic_update_slice(queue, key, (place, 0)), (place + n) % (size - n + 1), average), cost

        return lax.scan(step, (data["queue"], 0, lax.stop_gradient(w)), (data["x"], data["y"]))[1].mean()

    return weights, {"x": d.normal(3, n, 5), "y": d.normal(3, n, 5), "queue": d.normal(size, 4)}, loss


#: Programs whose gradients are no slopes of their losses, as these stop gradients of what depends on the weights.
STOPPED = {"categorical_values", "queue_of_keys"}


def arguments(name: str, n: int, dtype: str) -> tuple[Any, Any, Loss]:
    """Return a program's weights, data and loss; floats are of the dtype."""
    weights, data, loss = PROGRAMS[name](Draw(len(name)), n)
    cast = lambda array: jnp.asarray(array, dtype if array.dtype.kind == "f" else array.dtype)
    return vf.tree.map(cast, weights), vf.tree.map(cast, data), loss


def reference(function: Callable[..., Any], name: str, n: int) -> Any:
    """Return a function's results in float64, operation by operation on the CPU."""
    with vf.default_device(vf.devices("cpu")[0]):
        return vf.tree.map(np.asarray, function(*arguments(name, n, "float64")))


def assert_near(results: Any, expected: Any) -> None:
    """Raise AssertionError for arrays that differ by more than float32's rounding does, of the largest number of all."""
    scale = max((np.abs(array).max(initial=0) for array in vf.tree.leaves(expected)), default=0)
    for result, array in zip(vf.tree.leaves(results), vf.tree.leaves(expected), strict=True):
        assert np.shape(result) == array.shape
        np.testing.assert_allclose(np.asarray(result, "float64"), array, rtol=2e-4, atol=2e-5 * (scale if np.isfinite(scale) else 1))


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_and_gradients(name: str, n: int) -> None:
    """An empty batch has a loss of NaN where it is a mean, and gradients of zero or NaN, of the weights' shapes."""
    expected = reference(lambda w, data, loss: vf.value_and_grad(loss)(w, data), name, n)
    weights, data, loss = arguments(name, n, "float32")
    assert_near(vf.jit(vf.value_and_grad(loss))(weights, data), expected)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in STOPPED])
def test_gradients_are_slopes(name: str) -> None:
    """Central differences along a random direction, in float64."""

    def differences(weights: Any, data: Any, loss: Loss) -> tuple[Any, ...]:
        draw, h = np.random.default_rng(1), 1e-6
        direction = vf.tree.map(lambda array: draw.normal(size=array.shape), weights)
        near = [loss(vf.tree.map(lambda array, by: array + step * by, weights, direction), data) for step in (h, -h)]
        slopes = vf.tree.map(lambda slope, by: (slope * by).sum(), vf.grad(loss)(weights, data), direction)
        return sum(vf.tree.leaves(slopes)), (near[0] - near[1]) / (2 * h)

    slope, difference = reference(differences, name, 3)
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)


def descend(loss: Loss, weights: Any, data: Any) -> tuple[Any, Any]:
    """Return the weights after a step of gradient descent, and the loss before."""
    value, slopes = vf.value_and_grad(loss)(weights, data)
    return vf.tree.map(lambda weight, slope: weight - 0.01 * slope, weights, slopes), value


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_of_several_seeds_in_a_loop(name: str) -> None:
    """A scan over steps of a vmap over weights, on donated memory, beside Python's loops."""
    factors = (1.0, 0.9)

    def one_by_one(weights: Any, data: Any, loss: Loss) -> Any:
        runs = []
        for factor in factors:
            current, values = vf.tree.map(lambda array: array * factor, weights), []
            for _ in range(3):
                current, value = descend(loss, current, data)
                values.append(value)
            runs.append((current, jnp.stack(values)))
        return vf.tree.map(lambda *arrays: jnp.stack(arrays), *runs)

    weights, data, loss = arguments(name, 3, "float32")
    step = vf.vmap(lambda weights: descend(loss, weights, data))
    train = vf.jit(lambda weights: lax.scan(lambda weights, _: step(weights), weights, None, length=3), donate_argnums=0)
    trained, values = train(vf.tree.map(lambda array: jnp.stack([array * factor for factor in factors]), weights))
    assert_near((trained, values.T), reference(one_by_one, name, 3))
