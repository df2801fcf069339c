"""Updates of some rows: against those of a whole gradient, PyTorch's SparseAdam, and in the memory of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import optim
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(11, 3)).astype(np.float32)
INDICES = [np.int32([[4, 0, 4], [-1, 10, 4]]), np.int32([2]), np.zeros((0,), np.int32), np.arange(11, dtype=np.uint8)]


SGD = optim.sgd(0.1)


def slopes(indices: np.ndarray) -> np.ndarray:
    return RNG.normal(size=(*indices.shape, 3)).astype(np.float32)


def whole(indices: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return the gradient by the table."""
    total = np.zeros(TABLE.shape, np.float64)
    np.add.at(total, indices.astype(np.int64), gradients)
    return total.astype(np.float32)


@pytest.mark.parametrize("indices", INDICES, ids=["repeated", "one", "none", "all"])
@pytest.mark.parametrize("run", [lambda f: f, vf.jit], ids=["eager", "jit"])
def test_without_momentum_it_is_the_whole_gradient(indices: np.ndarray, run: Any) -> None:
    for optimizer in (optim.sgd(0.3), optim.chain(optim.clip_by_global_norm(0.5), optim.rmsprop(0.1))):
        gradients = slopes(indices)
        state = optimizer.init(TABLE)
        table, _ = run(lambda t, s, i, g, o=optimizer: optim.update_rows(o, t, s, i, g))(TABLE, state, indices, gradients)
        updates, _ = optimizer.update(whole(indices, gradients), state, TABLE)
        np.testing.assert_allclose(table, TABLE + updates, rtol=1e-5, atol=1e-6)


def test_matches_sparse_adam_of_torch() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor(TABLE))
    theirs = torch.optim.SparseAdam([parameter], lr=0.1)
    optimizer = optim.adam(0.1)
    table, state = vnp.asarray(TABLE), optimizer.init(vnp.asarray(TABLE))
    step = vf.jit(lambda t, s, i, g: optim.update_rows(optimizer, t, s, i, g), donate_argnums=(0, 1))
    for indices in (np.int32([4, 0, 4]), np.int32([1, 0, 9]), np.int32([4, 4, 4])):
        gradients = slopes(indices)
        parameter.grad = torch.sparse_coo_tensor(torch.tensor(indices[None]), torch.tensor(gradients), TABLE.shape, check_invariants=True)
        theirs.step()
        table, state = step(table, state, indices, gradients)
        np.testing.assert_allclose(table, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_other_rows_keep_their_bits_and_moments() -> None:
    optimizer = optim.adamw(0.1, weight_decay=0.1)
    state = optimizer.init(TABLE)
    table, new = optim.update_rows(optimizer, TABLE, state, np.int32([3, 5]), np.ones((2, 3), np.float32))
    others = np.delete(np.arange(11), [3, 5])
    np.testing.assert_array_equal(np.asarray(table)[others], TABLE[others])
    moments = optim.tree_utils.tree_get(new, "mu")
    assert not np.asarray(moments)[others].any() and np.asarray(moments)[[3, 5]].all()
    assert optim.tree_utils.tree_get(new, "count") == 1


def test_no_array_of_the_size_of_the_table() -> None:
    optimizer = optim.adam(0.1)
    table, ids = vf.ShapeDtypeStruct((100_000, 64), "float32"), vf.ShapeDtypeStruct((512,), "int32")

    def step(table: Any, state: Any, ids: Any) -> Any:
        return optim.update_rows(optimizer, table, state, ids, vf.grad(lambda rows: (rows**2).sum())(table[ids]))

    state = vf.eval_shape(optimizer.init, table)
    assert vf.jit(step, donate_argnums=(0, 1)).lower(table, state, ids).memory().temporaries < 100_000 * 64 * 4 // 20


@pytest.mark.parametrize(
    "call, error, words",
    [
        (
            lambda: optim.update_rows(SGD, TABLE, SGD.init(TABLE), np.float32([0.5]), TABLE[:1]),
            DTypeError,
            "integers",
        ),
        (
            lambda: optim.update_rows(SGD, TABLE, SGD.init(TABLE), np.int32([0, 1]), TABLE[:1]),
            ShapeError,
            r"\(2, 3\)",
        ),
        (
            lambda: optim.update_rows(optim.adafactor(0.1, 1), TABLE, optim.adafactor(0.1, 1).init(TABLE), np.int32([0]), TABLE[:1]),
            ArgumentError,
            "each element by itself",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("optimizer", [SGD, optim.adam(0.1)], ids=["sgd", "adam"])
def test_indices_of_every_dtype_in_a_table_of_more_rows(dtype: str, optimizer: Any) -> None:
    table, numbers = RNG.normal(size=(300, 3)).astype(np.float32), np.array([44, 7, 7, 0])
    gradients = slopes(numbers)
    expected = optim.update_rows(optimizer, table, optimizer.init(table), numbers.astype(np.int32), gradients)[0]
    actual, _ = optim.update_rows(optimizer, table, optimizer.init(table), numbers.astype(dtype), gradients)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "outside", [np.int32([-12, 11]), np.int64([2**40, -(2**40)]), np.uint32([2**32 - 1, 2**31]), np.uint64([2**64 - 1, 11])]
)
def test_indices_outside_change_no_row(outside: np.ndarray) -> None:
    table, _ = optim.update_rows(SGD, TABLE, SGD.init(TABLE), outside, slopes(outside))
    np.testing.assert_array_equal(table, TABLE)
