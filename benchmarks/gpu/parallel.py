"""Ways to split a training step over the GPUs of one process.

Each function returns a call that makes a step of a workload of `benchmarks.workloads` and returns its loss, which is that of one GPU with
all examples. Plain data parallelism is in `benchmarks.gpu.collectives`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.collectives import Call, Gpus, averaging, in_precision, stepping, with_value_and_grad
from benchmarks.workloads.case import Workload, library, map_arrays
from benchmarks.workloads.training import ADAM_RATE, BETA1, BETA2, EPSILON, adam
from volta_fn import P, lax, nn, optim, tree


def _on_gpus(step: Callable[..., Any], state: Any, specs: Any, data: Sequence[Any], data_spec: Any, gpus: Gpus) -> Call:
    """Return a call of each GPU's step, whose state is split by specs."""
    places = tree.map(lambda x, spec: vf.device_put(x, vf.NamedSharding(gpus.mesh, spec)), state, specs)
    in_specs = (specs, *[data_spec] * len(data))
    mapped = vf.shard_map(step, mesh=gpus.mesh, in_specs=in_specs, out_specs=(specs, P()), check_vma=False)
    return stepping(vf.jit(mapped, donate_argnums=0), places, gpus.put(tuple(data), data_spec))


def _without_axes(spec: Any, x: np.ndarray) -> Any:
    return spec if x.ndim else P()


# One GPU.


def one_call(workload: Workload) -> Call:
    """Return the training step of one GPU."""
    case = in_precision(workload, workload.size["batch"])
    state, *data = map_arrays(vnp.asarray, case.inputs)
    return stepping(vf.jit(case.functional(library("volta_fn")), donate_argnums=0), state, data)


def groups_call(workload: Workload, n: int, examples: int) -> Call:
    """Return the step of one GPU that has the examples of n GPUs, in n groups.

    Gradients are averaged over the groups, and batch normalisation takes the statistics of a group.
    """
    local, whole = (in_precision(workload, batch) for batch in (examples, n * examples))
    state, *data = map_arrays(vnp.asarray, whole.inputs)
    step = local.functional(with_value_and_grad(averaging))
    groups = [x.reshape(n, -1, *x.shape[1:]) for x in data]
    together = vf.vmap(step, (None, *[0] * len(data)), None, axis_name="i", axis_size=n)
    return stepping(vf.jit(together, donate_argnums=0), state, groups)


# Rows of parameters and states (ZeRO).


def rows_of(x: np.ndarray, count: int) -> np.ndarray:
    """Return the elements of an array in rows, one for each GPU, padded with zeros."""
    length = -(-x.size // count)
    return np.pad(x.ravel(), (0, count * length - x.size)).reshape(count, length)


def gathered(row: Any, shape: Sequence[int]) -> Any:
    """Return the array in bfloat16 of which each GPU has a row."""
    flat = lax.all_gather(row.ravel().astype("bfloat16"), "i", tiled=True)
    return flat[: math.prod(shape)].reshape(shape)


#: The key of all parameters with fewer elements than the limit: they share a row, as each gather takes longer than its bytes.
_SHORT, _SHORT_LIMIT = "short", 1 << 19


def _packed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of which the short ones are joined."""
    long = {name: x for name, x in arrays.items() if x.size >= _SHORT_LIMIT}
    short = [x.ravel() for name, x in arrays.items() if name not in long]
    return long | ({_SHORT: np.concatenate(short)} if short else {})


def _unpacked(rows: dict[str, Any], shapes: dict[str, Sequence[int]]) -> dict[str, Any]:
    """Return the arrays in bfloat16 of which each GPU has rows."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items() if name not in rows}
    result = {name: gathered(row, shapes[name]) for name, row in rows.items() if name != _SHORT}
    if sizes:
        flat, begin = gathered(rows[_SHORT], (sum(sizes.values()),)), 0
        for name, size in sizes.items():
            result[name] = flat[begin : begin + size].reshape(shapes[name])
            begin += size
    return result


def of_rows(shapes: Any, n: int) -> Callable[..., Any]:
    """Return `value_and_grad` of rows, for the mean over all GPUs."""

    def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(rows: Any) -> Any:
            value, grads = vf.value_and_grad(lambda rows: function(_unpacked(rows, shapes)))(rows)
            return lax.pmean(value, "i"), tree.map(lambda g: g / n, grads)

        return call

    return value_and_grad


def split_call(workload: Workload, gpus: Gpus, examples: int) -> Call:
    """Return the step whose parameters and states are split.

    That is ZeRO-3 (Rajbhandari et al. 2020), or FSDP.
    """
    n = gpus.size
    local, whole = (in_precision(workload, batch) for batch in (examples, n * examples))
    (params, moments), *data = whole.inputs
    shapes = {key: x.shape for key, x in params.items()}
    state = _packed(params), tuple([_packed(x) if isinstance(x, dict) else x for x in moments])
    rows = map_arrays(lambda x: rows_of(x, n) if x.ndim else x, state)
    specs = map_arrays(lambda x: _without_axes(P("i"), x), state)
    return _on_gpus(local.functional(with_value_and_grad(of_rows(shapes, n))), rows, specs, data, P("i"), gpus)


def states_call(workload: Workload, gpus: Gpus, examples: int) -> Call:
    """Return the step by Adam whose states are split (ZeRO-1)."""
    n = gpus.size
    local, whole = (in_precision(workload, batch) for batch in (examples, n * examples))
    (params, _), *data = whole.inputs
    inner = optim.adam(ADAM_RATE, BETA1, BETA2, EPSILON)
    optimizer = optim.shard_states(inner, "i")
    assert local.loss is not None, "the workload is a training step"
    loss = local.loss(library("volta_fn"))

    def step(state: Any, *batch: Any) -> Any:
        params, moments = state
        value, grads = vf.value_and_grad(loss)(params, *batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optim.apply_updates(params, updates), moments), lax.pmean(value, "i")

    moments = inner.init({name: vnp.zeros(n * -(-x.size // n)) for name, x in params.items()})
    specs = tree.map(lambda x: _without_axes(P("i"), x), moments)
    return _on_gpus(step, (params, moments), (map_arrays(lambda x: P(), params), specs), data, P("i"), gpus)


# A transformer whose layers, or products, are split.


@functools.partial(vf.custom_vjp)
def shared(x: Any) -> Any:
    """Return x, equal on all GPUs; its cotangent is the sum of theirs."""
    return x


shared.defvjp(lambda x: (x, None), lambda _, ct: (lax.psum(ct, "i"),))


@functools.partial(vf.custom_vjp)
def total(x: Any) -> Any:
    """Return the sum over GPUs, whose cotangent is the same on all of them."""
    return lax.psum(x, "i")


total.defvjp(lambda x: (lax.psum(x, "i"), None), lambda _, ct: (ct,))


def _same(x: Any) -> Any:
    return x


def _norm(w: dict[str, Any], name: str, x: Any) -> Any:
    centred = x - vnp.mean(x, -1, keepdims=True)
    variance = vnp.mean(centred**2, -1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * w[name + "scale"] + w[name + "shift"]


def _block(w: dict[str, Any], x: Any, enter: Callable[[Any], Any] = _same, leave: Callable[[Any], Any] = _same) -> Any:
    """Return a layer of the workload's GPT.

    `w` may have some of its heads and hidden units. `enter` is applied before the products with columns, `leave` after those with rows.
    """
    width, _, heads, size = w["qkv"].shape
    products = vnp.split(enter(_norm(w, "before", x)) @ w["qkv"].reshape(width, -1), 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], heads, size) for part in products)
    attended = nn.dot_product_attention(q, k, v, is_causal=True).reshape(*x.shape[:2], -1)
    x = x + leave(attended @ w["out"])
    hidden = nn.gelu(enter(_norm(w, "between", x)) @ w["up"] + w["upb"])
    return x + leave(hidden @ w["down"]) + w["downb"]


_NAMES = ("qkv", "out", "up", "upb", "down", "downb", "beforescale", "beforeshift", "betweenscale", "betweenshift")


def _layers(params: dict[str, np.ndarray], count: int, heads: int) -> list[dict[str, np.ndarray]]:
    """Return the parameters of each layer, those of queries, keys and values by heads."""

    def parameter(name: str, i: int) -> np.ndarray:
        norm = next((kind for kind in ("scale", "shift") if name.endswith(kind)), "")
        x = params[f"{name.removesuffix(norm)}{i}{norm}"]
        return x.reshape(len(x), 3, heads, -1) if name == "qkv" else x

    return [{name: parameter(name, i) for name in _NAMES} for i in range(count)]


def _ends(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters before and after the layers."""
    return {name: params[name] for name in ("tokens", "positions", "head", "lastscale", "lastshift")}


def _halves(params: Any) -> Any:
    return tree.map(lambda x: x.astype("bfloat16"), params)


def _with_moments(params: Any, specs: Any) -> tuple[Any, Any]:
    """Return the state of Adam from its beginning, and how it is split."""
    zeros = lambda: tree.map(np.zeros_like, params)
    return (params, (zeros(), zeros(), np.float32(0))), (specs, (specs, specs, P()))


def tensor_call(workload: Workload, gpus: Gpus) -> Call:
    """Return the step of a GPT whose products and vocabulary are split.

    The first product of a pair is split by columns, the second by rows (Megatron, Shoeybi et al. 2019).
    """
    case, size = in_precision(workload, workload.size["batch"]), workload.size
    (params, _), *data = case.inputs
    columns = {"qkv": P(None, None, "i"), "up": P(None, "i"), "upb": P("i"), "out": P("i"), "down": P("i"), "head": P(None, "i")}
    whole = {**_ends(params), "layers": _layers(params, size["layers"], size["heads"])}
    specs = vf.tree_util.tree_map_with_path(lambda path, x: (columns | {"tokens": P("i")}).get(path[-1].key, P()), whole)

    def loss(params: Any, x: Any, labels: Any) -> Any:
        w = _halves(params)
        x = total(_row_of(w["tokens"], x)) + w["positions"]
        for layer in w["layers"]:
            x = _block(layer, x, shared, total)
        logits = (shared(_norm(w, "last", x)) @ w["head"]).astype("float32")
        most = lax.pmax(lax.stop_gradient(vnp.max(logits, -1)), "i")
        exponentials = total(vnp.sum(vnp.exp(logits - most[..., None]), -1))
        return vnp.mean(vnp.log(exponentials) + most - total(_row_of(logits, labels, -1)))

    def step(state: Any, *batch: Any) -> Any:
        params, moments = state
        value, grads = vf.value_and_grad(loss)(params, *batch)
        return adam(library("volta_fn"), params, grads, moments), value

    state, state_specs = _with_moments(whole, specs)
    return _on_gpus(step, state, state_specs, data, P(), gpus)


def _row_of(table: Any, numbers: Any, axis: int = 0) -> Any:
    """Return rows of a table, or an element of each of its rows.

    Each GPU has a share of the table along the axis; what others have is zeros.
    """
    count = table.shape[axis]
    local = numbers - lax.axis_index("i") * count
    inside, local = (local >= 0) & (local < count), vnp.clip(local, 0, count - 1)
    if axis == 0:
        return vnp.where(inside[..., None], table[local], 0)
    return vnp.where(inside, vnp.take_along_axis(table, local[..., None], axis)[..., 0], 0)


def pipeline_call(workload: Workload, gpus: Gpus, batches: int) -> Call:
    """Return the step of a GPT whose layers are split (GPipe, Huang et al. 2019).

    The examples are so many micro-batches, of whose results each GPU computes a share of the losses.
    """
    case, size, n = in_precision(workload, workload.size["batch"]), workload.size, gpus.size
    (params, _), *data = case.inputs
    layers = _layers(params, size["layers"], size["heads"])
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in _NAMES}
    whole = {"ends": _ends(params), "layers": stacked}
    specs = {"ends": map_arrays(lambda x: P(), whole["ends"]), "layers": map_arrays(lambda x: P("i"), stacked)}
    onward = [(i, i + 1) for i in range(n - 1)]

    def stage(layers: Any, x: Any) -> Any:
        for number in range(size["layers"] // n):
            x = _block({name: w[number] for name, w in layers.items()}, x)
        return x

    def results(layers: Any, entering: Any) -> Any:
        """Return the last stage's results; on other GPUs zeros."""
        position = lax.axis_index("i")

        def step(arriving: Any, x: Any) -> Any:
            out = stage(layers, vnp.where(position == 0, x, arriving))
            return lax.ppermute(out, "i", onward), out

        behind = vnp.zeros((n - 1, *entering.shape[1:]), entering.dtype)
        outs = lax.scan(step, vnp.zeros_like(entering[0]), vnp.concatenate([entering, behind]))[1]
        return vnp.where(position == n - 1, outs[n - 1 :], 0)

    def loss(params: Any, x: Any, labels: Any) -> Any:
        """Return this GPU's part of the mean loss."""
        w = _halves(params)
        ends = w["ends"]
        entering = (ends["tokens"][x] + ends["positions"]).reshape(batches, -1, *x.shape[1:], ends["tokens"].shape[1])
        out = lax.psum_scatter(results(w["layers"], entering), "i", tiled=True)
        logits = (_norm(ends, "last", out) @ ends["head"]).astype("float32")
        share = lax.dynamic_slice_in_dim(labels.reshape(batches, -1, *x.shape[1:]), lax.axis_index("i") * (batches // n), batches // n)
        return -vnp.mean(vnp.take_along_axis(nn.log_softmax(logits), share[..., None], -1)) / n

    def step(state: Any, *batch: Any) -> Any:
        params, moments = state
        value, grads = vf.value_and_grad(loss)(params, *batch)
        grads["ends"] = lax.psum(grads["ends"], "i")
        return adam(library("volta_fn"), params, grads, moments), lax.psum(value, "i")

    state, state_specs = _with_moments(whole, specs)
    return _on_gpus(step, state, state_specs, data, P(), gpus)
