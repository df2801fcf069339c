"""Scans of recurrent layers as one kernel, by the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.emulation import Emulator
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE
from volta_fn import lax
from volta_fn.compiler.passes.loops import pass_constants
from volta_fn.compiler.pipeline import optimize
from volta_fn.config import default_matmul_precision
from volta_fn.core.jaxpr import Equation
from volta_fn.core.staging import eval_jaxpr
from volta_fn.targets.nvidia.recurrence import Recurrence, Tiling, choose, loop_key, recurrence_of, routine

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCES = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 3e-3}


def scans_of(f: Callable[..., Any], *arrays: Any) -> list[tuple[Equation, list[np.ndarray], list[np.ndarray]]]:
    """Return the scans of a function's program, each with its operands and its results by NumPy on the CPU."""
    closed = pass_constants(optimize(vf.jit(f).lower(*arrays).jaxpr))
    scans = [eqn for eqn in closed.eqns if eqn.primitive.name == "scan"]
    variables = [v for eqn in scans for v in (*eqn.invars, *eqn.outvars)]
    values = iter(eval_jaxpr(closed.replace(outvars=variables), *[vnp.asarray(x) for x in vf.tree.leaves(arrays)]))
    return [(eqn, [np.asarray(next(values)) for _ in eqn.invars], [np.asarray(next(values)) for _ in eqn.outvars]) for eqn in scans]


def run(eqn: Equation, operands: list[np.ndarray], tiling: Tiling | None = None) -> list[np.ndarray]:
    """Run the kernel of a scan; its results hold something else before."""
    r = recurrence_of(eqn)
    assert r is not None
    tiling = tiling or choose(r, HOPPER)
    assert tiling is not None
    recurrence = routine(r, tiling, len(eqn.invars), HOPPER)
    results = [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    for result in results:
        result.reshape(-1).view(np.uint8)[:] = 0xAB
    workspaces = [np.full(size, 0 if not number else 0xAB, np.uint8) for number, size in enumerate(recurrence.workspaces)]
    buffers = [*[np.ascontiguousarray(x) for x in operands], *results, *workspaces]
    dispatch = recurrence.dispatches[-1]
    Emulator(dispatch.source).run([buffers[number] for number in dispatch.buffers], dispatch.workgroups[0])
    return results


def check(f: Callable[..., Any], *arrays: Any, tiling: Tiling | None = None, count: int = 1) -> None:
    """Compare all scans of a function's program with the CPU."""
    scans = scans_of(f, *arrays)
    assert len(scans) == count
    for eqn, operands, expected in scans:
        for result, right in zip(run(eqn, operands, tiling), expected, strict=True):
            scale = max(1.0, float(np.abs(right.astype(np.float64)).max(initial=0)))
            tolerance = TOLERANCES[result.dtype.name] * scale if result.dtype.name in TOLERANCES else 0
            np.testing.assert_allclose(result.astype(np.float64), right.astype(np.float64), rtol=0, atol=tolerance)


def normal(seed: int, *shape: int, dtype: Any = "bfloat16", scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def lstm(w: Any, b: Any, h: Any, c: Any, xs: Any, *, reverse: bool = False) -> Any:
    """Return an LSTM whose inputs are multiplied already."""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = vnp.split(x + h @ w + b, 4, -1)
        c = vf.nn.sigmoid(f) * c + vf.nn.sigmoid(i) * vnp.tanh(g)
        h = vf.nn.sigmoid(o) * vnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, c), xs, reverse=reverse)


def lstm_arrays(batch: int, units: int, steps: int, dtype: Any = "bfloat16") -> tuple[np.ndarray, ...]:
    shapes = (units, 4 * units), (4 * units,), (batch, units), (batch, units), (steps, batch, 4 * units)
    return tuple([normal(n, *shape, dtype=dtype, scale=0.5) for n, shape in enumerate(shapes)])


def by_numpy(w: Any, b: Any, h: Any, c: Any, xs: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the LSTM in float64."""
    w, b, h, c, xs = [x.astype(np.float64) for x in (w, b, h, c, xs)]
    sigmoid, hidden = (lambda x: 1 / (1 + np.exp(-x))), []
    for x in xs:
        i, f, g, o = np.split(x + h @ w + b, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hidden.append(h)
    return h, c, np.array(hidden)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("batch", "units", "steps"), [(3, 32, 3), (20, 16, 2), (1, 48, 4)])
def test_lstm_beside_float64(batch: int, units: int, steps: int, dtype: str) -> None:
    arrays = lstm_arrays(batch, units, steps, dtype)
    with default_matmul_precision("tensorfloat32"):
        ((eqn, operands, _),) = scans_of(lstm, *arrays)
    for result, right in zip(run(eqn, operands), by_numpy(*arrays), strict=True):
        np.testing.assert_allclose(result.astype(np.float64), right, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("tiling", [Tiling(16, 8, 2), Tiling(16, 16, 1, ahead=1), Tiling(32, 8, 2, ahead=1)], ids=str)
def test_tilings(tiling: Tiling) -> None:
    check(lstm, *lstm_arrays(37, 32, 3), tiling=tiling)


def test_backwards_in_time() -> None:
    check(lambda *arrays: lstm(*arrays, reverse=True), *lstm_arrays(4, 16, 5))


def test_a_scan_of_one_iteration() -> None:
    check(lstm, *lstm_arrays(2, 16, 1))


# The layers of `nn`, and their gradients.


def layer(cls: type, dtype: str, **options: Any) -> Any:
    return cls.init(vf.random.key(0), 32, 32, dtype=dtype, **options)


LAYERS = {
    "LSTM": (vf.nn.LSTM, {}),
    "GRU": (vf.nn.GRU, {}),
    "RNN": (vf.nn.RNN, {}),
    "relu": (vf.nn.RNN, {"nonlinearity": "relu"}),
    "no bias": (vf.nn.LSTM, {"bias": False}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients(name: str, dtype: str) -> None:
    cls, options = LAYERS[name]

    def loss(layer: Any, x: Any) -> Any:
        y, _ = layer(x)
        return vnp.sum((y * y).astype("float32"))

    with default_matmul_precision("tensorfloat32"):
        check(vf.grad(loss, argnums=(0, 1)), layer(cls, dtype, **options), normal(9, 3, 4, 32, dtype=dtype), count=2)


def test_both_directions_and_two_layers() -> None:
    check(lambda layer, x: layer(x), layer(vf.nn.GRU, "bfloat16", num_layers=2, bidirectional=True), normal(9, 2, 3, 32), count=4)


def test_sequences_of_different_lengths() -> None:
    lengths = np.array([2, 4, 1], np.int32)
    check(lambda layer, x, n: layer(x, lengths=n), layer(vf.nn.LSTM, "bfloat16"), normal(9, 3, 4, 32), lengths)


def test_a_sequence_without_a_batch() -> None:
    w, b, h, c, xs = lstm_arrays(1, 32, 3)
    check(lstm, w, b, h[0], c[0], xs[:, 0])


# Bodies of other forms.


def test_carries_without_units() -> None:
    """A counter, a number for each row, and one for each unit."""

    def step(carry: Any, x: Any) -> Any:
        h, count, total, mean = carry
        h = vnp.tanh(h @ W + x[:, None] * vnp.astype(count, h.dtype))
        return (h, count + 1, total + x, mean * 2), (count, total, mean, h[:, :16])

    W = normal(1, 16, 16)
    carry = normal(2, 5, 16), np.int32(3), normal(3, 5), normal(4, 16)
    check(lambda carry, xs: lax.scan(step, carry, xs), carry, normal(5, 4, 5))


def test_two_products_one_after_another() -> None:
    """The reset gate of a GRU before the product (Cho et al. 2014)."""

    def step(h: Any, x: Any) -> Any:
        r = vf.nn.sigmoid(x + h @ U)
        return vnp.tanh(x + (r * h) @ V.T), r

    U, V = normal(1, 32, 32), normal(2, 32, 32)
    check(lambda h, xs: lax.scan(step, h, xs), normal(3, 3, 32), normal(4, 3, 3, 32))


def test_two_products_at_once() -> None:
    def step(h: Any, x: Any) -> Any:
        return vnp.tanh(x + h @ U) * vnp.cos((2 * h) @ V), h

    U, V = normal(1, 32, 32), normal(2, 32, 32)
    check(lambda h, xs: lax.scan(step, h, xs), normal(3, 3, 32), normal(4, 3, 3, 32))


def test_products_in_less_than_the_carrys_precision() -> None:
    def step(h: Any, x: Any) -> Any:
        return vnp.tanh(x + lax.dot_general(h.astype(BFLOAT16), W, (((1,), (0,)), ((), ())), preferred_element_type="float32")), None

    W = normal(1, 32, 32)
    check(lambda h, xs: lax.scan(step, h, xs), normal(3, 3, 32, dtype="float32"), normal(4, 3, 3, 32, dtype="float32"))


# Other scans.


def recurrence(f: Callable[..., Any], *arrays: Any) -> Recurrence | None:
    ((eqn, _, _),) = scans_of(f, *arrays)
    return recurrence_of(eqn)


def test_other_scans_are_left_alone() -> None:
    assert recurrence(lstm, *lstm_arrays(3, 24, 2)) is None  # units that are no multiple of 16
    assert recurrence(lstm, *lstm_arrays(3, 16, 2, "float32")) is None  # true float32
    W = normal(1, 16, 16)
    bodies = [
        lambda h, x: (h + x, None),  # without a product
        lambda h, x: (vnp.tanh(h @ W - h.mean(0)), None),  # rows that depend on each other
        lambda h, x: (vnp.tanh(h @ W - h[:, ::-1]), None),  # units that do, other than by products
        lambda h, x: (vnp.tanh(h @ (W + x[:, :1])), None),  # a matrix that changes
        lambda h, x: (vnp.tanh(W.T @ h), None),  # with units in rows
    ]
    for body in bodies:
        assert recurrence(lambda h, xs, body=body: lax.scan(body, h, xs), normal(2, 16, 16), normal(3, 2, 16, 16)) is None


def test_when_a_kernel_is_chosen() -> None:
    ((eqn, _, _),) = scans_of(lstm, *lstm_arrays(3, 64, 2))
    assert loop_key(eqn, HOPPER) is not None
    assert loop_key(eqn, AMPERE) is not None
    assert loop_key(eqn, NONE) is None
    assert loop_key(eqn, HOPPER._replace(processors=1)) is None  # not all blocks would run at once
    r = recurrence_of(eqn)
    assert r is not None
    assert choose(r._replace(length=1 << 24), HOPPER) is not None
    assert choose(r._replace(length=1 << 30), HOPPER) is None  # counters of arrivals would wrap around


@pytest.mark.parametrize(
    ("batch", "units", "dtype", "tiling"),
    [
        (32, 256, "bfloat16", Tiling(16, 8, 8)),
        (128, 256, "bfloat16", Tiling(16, 16, 8)),
        (16, 1024, "bfloat16", Tiling(16, 8, 8)),
        (1024, 1024, "bfloat16", None),
        (8, 2048, "bfloat16", None),
    ],
)
def test_tilings_that_are_chosen(batch: int, units: int, dtype: str, tiling: Tiling | None) -> None:
    w, b, h, c, xs = [vf.ShapeDtypeStruct(x.shape, x.dtype) for x in lstm_arrays(1, units, 1, dtype)]
    h = c = vf.ShapeDtypeStruct((batch, units), dtype)
    xs = vf.ShapeDtypeStruct((8, batch, 4 * units), dtype)
    (eqn,) = optimize(vf.jit(lstm).lower(w, b, h, c, xs).jaxpr).eqns
    r = recurrence_of(eqn)
    assert r is not None
    assert choose(r, HOPPER) == tiling
