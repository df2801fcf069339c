"""L-BFGS and its line searches: against Optax step by step, on Rosenbrock's function, under jit and vmap, and where searches fail."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim
from volta_fn.errors import ArgumentError, ArgumentTypeError


def rosenbrock(w):
    """Zero at (1, …, 1), at the end of a curved valley."""
    return ((1 - w[:-1]) ** 2 + 100 * (w[1:] - w[:-1] ** 2) ** 2).sum()


def minimise(library, optimizer, value_and_grad, jit, w, steps, loss=rosenbrock):
    """Return the losses on the way, the parameters at the end and the state."""

    @jit
    def step(w, state):
        value, grad = value_and_grad(loss)(w)
        updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=loss)
        return library.apply_updates(w, updates), state, value

    state, values = optimizer.init(w), []
    for _ in range(steps):
        w, state, value = step(w, state)
        values.append(float(value))
    return np.asarray(values), np.asarray(w), state


SEARCHES = {
    "zoom": lambda o: o.lbfgs(),
    "zoom, other settings": lambda o: o.lbfgs(
        memory_size=2,
        linesearch=o.scale_by_zoom_linesearch(4, max_learning_rate=0.8, curv_rtol=0.1, approx_dec_rtol=None),
    ),
    "backtracking": lambda o: o.lbfgs(linesearch=o.scale_by_backtracking_linesearch(20, store_grad=True)),
    "gradient descent": lambda o: o.chain(o.sgd(1.0), o.scale_by_backtracking_linesearch(12, increase_factor=np.inf)),
    "no search": lambda o: o.lbfgs(0.002, scale_init_precond=False, linesearch=None),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", SEARCHES)
def test_agrees_with_optax(name):
    """In float64: the searches take the same decisions."""
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    start = np.array([-1.2, 1.0, 0.5])
    with jax.enable_x64(True):
        theirs = minimise(optax, SEARCHES[name](optax), jax.value_and_grad, jax.jit, jax.numpy.asarray(start), 12)
        tried = np.asarray(theirs[2][-1].info.num_linesearch_steps) if name != "no search" else None
    ours = minimise(optim, SEARCHES[name](optim), vf.value_and_grad, vf.jit, vf.numpy.asarray(start), 12)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-7)
    if tried is not None:
        np.testing.assert_array_equal(ours[2][-1].info.num_linesearch_steps, tried)


@pytest.mark.parametrize(("dtype", "goal"), [("float32", 1e-10), ("float64", 1e-20)])
@pytest.mark.parametrize("name", ["zoom", "backtracking"])
def test_minimises_rosenbrock(name, dtype, goal):
    start = vf.numpy.array([-1.2, 1.0, -0.5, 2.0], dtype)
    values, w, state = minimise(optim, SEARCHES[name](optim), vf.value_and_grad, vf.jit, start, 80)
    assert values[-1] < goal
    assert np.all(np.diff(values) <= 1e-6 * values[:-1])  # each search lowers the loss
    np.testing.assert_allclose(w, 1, atol=1e-4)
    assert w.dtype == np.dtype(dtype) == state[2].value.dtype


def test_searches_reuse_their_results():
    optimizer, calls = optim.lbfgs(), []

    def counted(w):
        calls.append(1)
        return rosenbrock(w)

    w = vf.numpy.array([-1.2, 1.0])
    state = optimizer.init(w)
    from_state = optim.value_and_grad_from_state(counted)
    for step in range(3):
        calls.clear()
        value, grad = from_state(w, state=state)
        assert len(calls) == (step == 0)
        np.testing.assert_allclose((value, *grad), (rosenbrock(w), *vf.grad(rosenbrock)(w)), rtol=1e-5)
        updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=rosenbrock)
        w = optim.apply_updates(w, updates)
    with pytest.raises(ArgumentError):
        from_state(w, state=optim.sgd(0.1).init(w))
    with pytest.raises(ArgumentError, match="store_grad"):
        from_state(w, state=optim.scale_by_backtracking_linesearch(5).init(w))
    named = optim.named_chain(("step", optim.sgd(1.0)), ("search", optim.scale_by_backtracking_linesearch(5, store_grad=True)))
    value, grad = optim.value_and_grad_from_state(lambda w, scale: scale * rosenbrock(w))(w, 2.0, state=named.init(w))
    np.testing.assert_allclose(value, 2 * rosenbrock(w), rtol=1e-6)


def test_trees_of_several_dtypes_and_extra_arguments():
    target = {"a": np.array([1.0, -2.0], "float16"), "b": np.float32(3.0), "none": None}

    def loss(p, power):
        return vf.numpy.sum((p["a"] - target["a"]).astype("float32") ** power) + (p["b"] - target["b"]) ** power

    optimizer = optim.lbfgs()
    p = {"a": vf.numpy.zeros(2, "float16"), "b": vf.numpy.zeros(()), "none": None}
    state = optimizer.init(p)
    before = [x.aval for x in vf.tree.leaves(state)]
    for _ in range(8):
        value, grad = vf.value_and_grad(loss)(p, 2)
        updates, state = optimizer.update(grad, state, p, value=value, grad=grad, value_fn=loss, power=2)
        p = optim.apply_updates(p, updates)
    assert float(loss(p, 2)) < 1e-4
    assert [x.aval for x in vf.tree.leaves(state)] == before
    with pytest.raises(ArgumentTypeError, match="exponent"):
        optimizer.update(grad, state, p, value=value, grad=grad, value_fn=loss, exponent=2)


@pytest.mark.parametrize("name", ["zoom", "backtracking"])
def test_complex_parameters(name):
    loss = lambda z: vf.numpy.sum(vf.numpy.abs(z - (1 + 2j)) ** 2)
    optimizer = SEARCHES[name](optim)
    z = vf.numpy.zeros(2, "complex64")
    state = optimizer.init(z)
    for _ in range(6):
        value, grad = vf.value_and_grad(loss)(z)
        descent = vf.numpy.conj(grad)  # the gradient's conjugate is the direction of ascent
        updates, state = optimizer.update(descent, state, z, value=value, grad=grad, value_fn=loss)
        z = optim.apply_updates(z, updates)
    np.testing.assert_allclose(z, 1 + 2j, rtol=1e-3)


@pytest.mark.parametrize("name", ["zoom", "backtracking"])
def test_vmap_minimises_from_many_starts(name):
    optimizer = SEARCHES[name](optim)

    def step(w, state):
        value, grad = vf.value_and_grad(rosenbrock)(w)
        updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=rosenbrock)
        return optim.apply_updates(w, updates), state

    starts = vf.numpy.array([[-1.2, 1.0], [0.0, 0.0]])
    many, states = starts, vf.vmap(optimizer.init)(starts)
    one, state = starts[1], optimizer.init(starts[1])
    for _ in range(4):
        many, states = vf.jit(vf.vmap(step))(many, states)
        one, state = vf.jit(step)(one, state)
    np.testing.assert_allclose(many[1], one, rtol=1e-4)


@pytest.mark.parametrize("name", ["zoom", "backtracking"])
def test_a_search_that_leaves_the_domain_stays(name):
    """Nowhere along the line is the loss finite: no step is taken, and the loss is computed anew."""
    loss = lambda w: vf.numpy.where(w[0] == 1.0, 0.5, vf.numpy.nan)
    optimizer = SEARCHES[name](optim)
    w = vf.numpy.array([1.0])
    updates, state = optimizer.update(w, optimizer.init(w), w, value=0.5, grad=w, value_fn=loss)
    np.testing.assert_array_equal(updates, [0.0])
    value, _ = optim.value_and_grad_from_state(loss)(w, state=state)
    assert float(value) == 0.5


def test_impossible_settings_are_refused():
    with pytest.raises(ArgumentError):
        optim.scale_by_lbfgs(memory_size=0)
    with pytest.raises(ArgumentError):
        optim.scale_by_zoom_linesearch(5, initial_guess_strategy="two")
    with pytest.raises(ArgumentError, match="parameters"):
        optim.scale_by_lbfgs().update(vf.numpy.ones(1), optim.scale_by_lbfgs().init(vf.numpy.ones(1)))
