"""Optimizers whose meaning PyTorch shares, against PyTorch, which corrects averages in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim
from volta_fn.optim.transforms.second_moments import average_length

PAIRS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "sgd": (lambda: optim.sgd(0.1, momentum=0.9, nesterov=True), "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd decay": (
        lambda: optim.chain(optim.add_decayed_weights(0.1), optim.sgd(0.1)),
        "SGD",
        {"lr": 0.1, "weight_decay": 0.1},
    ),
    "adam": (lambda: optim.adam(0.1), "Adam", {"lr": 0.1}),
    "adamw": (lambda: optim.adamw(0.1, weight_decay=0.01), "AdamW", {"lr": 0.1, "weight_decay": 0.01}),
    "adamax": (lambda: optim.adamax(0.1), "Adamax", {"lr": 0.1}),
    "radam": (lambda: optim.radam(0.1, eps=1e-15), "RAdam", {"lr": 0.1, "eps": 1e-15}),  # PyTorch adds eps before the correction
    "rmsprop": (
        lambda: optim.rmsprop(0.1, decay=0.99, eps_in_sqrt=False, momentum=0.9),
        "RMSprop",
        {"lr": 0.1, "momentum": 0.9},
    ),
    "rmsprop centered": (
        lambda: optim.rmsprop(0.1, decay=0.99, eps_in_sqrt=False, centered=True),
        "RMSprop",
        {"lr": 0.1, "centered": True},
    ),
    "adadelta": (lambda: optim.adadelta(1.0), "Adadelta", {"lr": 1.0}),
    "rprop": (lambda: optim.rprop(0.1), "Rprop", {"lr": 0.1}),
}


def steps_of_both(name: str, dtype: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Parameters after some steps on the same gradients."""
    torch = pytest.importorskip("torch")
    make, other, settings = PAIRS[name]
    rng = np.random.default_rng(3)
    start, grads = rng.normal(size=(4, 3)).astype(dtype), rng.normal(size=(steps, 4, 3)).astype(dtype)
    theirs = torch.nn.Parameter(torch.tensor(start))
    optimizer, ours = getattr(torch.optim, other)([theirs], **settings), vf.numpy.asarray(start)
    transform = make()
    state, update = transform.init(ours), vf.jit(transform.update)
    for gradient in grads:
        theirs.grad = torch.tensor(gradient)
        optimizer.step()
        updates, state = update(gradient, state, ours)
        ours = optim.apply_updates(ours, updates)
    return np.asarray(ours), theirs.detach().numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_torch(name, dtype):
    ours, theirs = steps_of_both(name, dtype, 12)
    assert ours.dtype == np.dtype(dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())


@pytest.mark.wide
def test_rectification_is_exact_from_the_first_step_on():
    """In float32, where the textbook formula has no more than two digits: against Python's own arithmetic."""
    for step in (1, 2, 5, 6, 100, 5000, 10**6):
        exact = 2 / 0.001 - 1 - 2 * step * 0.999**step / -math.expm1(step * math.log(0.999))
        got = average_length(0.999, vf.numpy.int32(step), np.dtype("float32"))
        np.testing.assert_allclose(got, exact, rtol=2e-6)
        np.testing.assert_allclose(average_length(0.999, vf.numpy.int32(step), np.dtype("float64")), exact, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_lbfgs_agrees_with_torch(dtype, search):
    """The minimum of a quadratic function, from the same start."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    root = rng.normal(size=(6, 6))
    matrix, target = (root @ root.T + np.eye(6)).astype(dtype), rng.normal(size=6).astype(dtype)
    theirs = torch.nn.Parameter(torch.zeros(6, dtype=getattr(torch, dtype)))
    optimizer = torch.optim.LBFGS([theirs], max_iter=60, line_search_fn=search, tolerance_grad=0, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        loss = 0.5 * theirs @ torch.tensor(matrix) @ theirs - torch.tensor(target) @ theirs
        loss.backward()
        return loss

    optimizer.step(closure)
    ours = optim.lbfgs(linesearch=None if search is None else optim.scale_by_zoom_linesearch(20))
    loss = lambda w: 0.5 * w @ (matrix @ w) - target @ w

    @vf.jit
    def step(w, state):
        value, grad = vf.value_and_grad(loss)(w)
        updates, state = ours.update(grad, state, w, value=value, grad=grad, value_fn=loss)
        return optim.apply_updates(w, updates), state

    w = vf.numpy.zeros(6, dtype)
    state = ours.init(w)
    for _ in range(60):
        w, state = step(w, state)
    np.testing.assert_allclose(w, np.linalg.solve(matrix.astype("float64"), target), rtol=1e-3 if dtype == "float32" else 1e-8)
    np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=2e-3 if dtype == "float32" else 1e-7)
