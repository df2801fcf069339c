"""Updates and parameters: what is added, what is refused, counters, norms and moments."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TreeError

PARAMS = {"w": vf.numpy.ones((2, 3)), "b": vf.numpy.zeros(3)}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_parameters_keep_their_dtypes(dtype):
    params = {"w": vf.numpy.ones(2, dtype), "none": None}
    for update_dtype in ("float16", "float32", "float64"):
        new = optim.apply_updates(params, {"w": vf.numpy.full(2, 0.5, update_dtype), "none": None})
        assert new["w"].dtype == vf.dtypes.as_dtype(dtype)
        np.testing.assert_array_equal(np.asarray(new["w"], "complex64"), 1.5)
    assert optim.apply_updates(params, {"w": None, "none": None})["w"] is params["w"]


def test_sums_are_rounded_once():
    """1 + 2^-12 + 2^-12 in float16 by way of a float32 update."""
    update = np.float32(2.0**-11 + 2.0**-20)
    assert float(optim.apply_updates(np.float16(1.0), update)) == 1 + 2.0**-10


@pytest.mark.wide
@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ({"w": np.ones(3), "b": np.ones(3)}, ShapeError),
        ({"w": np.ones((2, 3))}, TreeError),
        ({"w": np.ones((2, 3)), "b": [np.ones(3)]}, TreeError),
        ({"w": np.ones((2, 3)), "c": np.ones(3)}, TreeError),
        ({"w": np.ones((2, 3)), "b": "text"}, ArgumentTypeError),
    ],
)
def test_updates_that_do_not_fit_are_refused(updates, error):
    with pytest.raises(error):
        optim.apply_updates(PARAMS, updates)
    if error is not ArgumentTypeError:
        with pytest.raises(error):
            optim.apply_updates(updates, PARAMS)
    for optimizer in (optim.adam(0.1), optim.sgd(0.1, momentum=0.9), optim.lamb(0.1), optim.adafactor(0.1), optim.novograd(0.1)):
        with pytest.raises(error):
            optimizer.update(updates, optimizer.init(PARAMS), PARAMS)


@pytest.mark.wide
def test_messages_name_the_path():
    optimizer = optim.adam(0.1)
    with pytest.raises(ShapeError, match=r"\['b'\] has shape \(2,\).*\(3,\)"):
        optimizer.update({"w": np.ones((2, 3)), "b": np.ones(2)}, optimizer.init(PARAMS))
    with pytest.raises(DTypeError, match=r"\['step'\] is of dtype int32.*masked"):
        optimizer.init({"step": vf.numpy.zeros((), "int32")})
    with pytest.raises(ArgumentError, match="update\\(updates, state, params\\)"):
        optim.adamw(0.1).update(PARAMS, optim.adamw(0.1).init(PARAMS))
    with pytest.raises(ShapeError, match="scalar"):
        optim.sgd(np.ones(2)).update(PARAMS, optim.sgd(1.0).init(PARAMS))
    with pytest.raises(DTypeError):
        optim.sgd(0.1).update({"n": np.ones(3, int)}, optim.sgd(0.1).init(None))


def test_nan_gradients_are_not_hidden():
    bad = tree.map(lambda p: p * np.nan, PARAMS)
    for optimizer in (optim.sgd(0.1), optim.adam(0.1), optim.clip_by_global_norm(1.0), optim.clip(1.0), optim.adafactor(0.1)):
        updates, _ = optimizer.update(bad, optimizer.init(PARAMS), PARAMS)
        assert all(np.all(np.isnan(leaf)) for leaf in tree.leaves(updates))
    zeroed, state = optim.zero_nans().update(bad, optim.zero_nans().init(PARAMS))
    assert not np.any(zeroed["w"]) and bool(state.found_nan["w"])


@pytest.mark.wide
def test_counters_saturate():
    for dtype in ("int8", "int32", "uint16", "int64"):
        largest = vf.dtypes.iinfo(dtype).max
        assert int(optim.safe_increment(vf.numpy.array(largest - 1, dtype))) == largest
        assert int(optim.safe_int32_increment(vf.numpy.array(largest, dtype))) == largest
        assert optim.safe_increment(vf.numpy.array(0, dtype)).dtype == np.dtype(dtype)
    largest = np.finfo("float32").max
    assert float(optim.safe_increment(largest)) == largest
    with pytest.raises(DTypeError):
        optim.safe_increment(1j)
    optimizer = optim.adam(0.1)
    state = optimizer.init(PARAMS)
    late = (state[0]._replace(count=vf.numpy.int32(2**31 - 1)), state[1])
    updates, after = optimizer.update(PARAMS, late, PARAMS)
    assert int(after[0].count) == 2**31 - 1
    assert np.all(np.isfinite(updates["w"]))


@pytest.mark.wide
def test_norms():
    values = {"a": np.array([3.0, 0.0], "float16"), "b": vf.numpy.array([[4j]]), "none": None}
    assert float(optim.global_norm(values)) == 5.0
    assert optim.global_norm({}).dtype == np.float32 and float(optim.global_norm({})) == 0.0
    assert float(optim.global_norm(np.full(2, 6e4, "float16"))) == pytest.approx(6e4 * 2**0.5, rel=1e-3)
    assert optim.global_norm(np.ones(1)).dtype == np.float64
    zero = vf.numpy.zeros(3)
    for norm in (optim.safe_norm, optim.safe_root_mean_squares):
        assert float(norm(zero, 0.5)) == 0.5
        np.testing.assert_array_equal(vf.grad(lambda x, norm=norm: norm(x, 0.0))(zero), 0.0)
        assert float(norm(vf.numpy.full(4, 3.0), 0.5)) == (6.0 if norm is optim.safe_norm else 3.0)
    np.testing.assert_allclose(optim.safe_norm(np.eye(2), 0.0, axis=0, keepdims=True), [[1.0, 1.0]])
    np.testing.assert_allclose(optim.safe_norm(np.eye(2), 0.0, ord=1, axis=1), [1.0, 1.0])
    assert bool(optim.all_finite({})) and not bool(optim.all_finite([np.array([np.inf])]))


def test_moments_agree_with_optax():
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    g, m = np.array([1.0, -2.0], "float32"), np.array([0.5, 0.25], "float32")
    for name in ("update_moment", "update_moment_per_elem_norm"):
        for order in (1, 2, 3):
            ours, theirs = getattr(optim, name)({"x": g}, {"x": m}, 0.9, order), getattr(optax, name)({"x": g}, {"x": m}, 0.9, order)
            np.testing.assert_allclose(ours["x"], theirs["x"], rtol=1e-6)
    z = np.array([3 + 4j], "complex64")
    np.testing.assert_allclose(optim.update_moment_per_elem_norm(z, np.zeros(1, "float32"), 0.5, 3), [62.5], rtol=1e-6)
    np.testing.assert_allclose(optim.update_infinity_moment([g], [m], 0.9, 0.1)[0], optax.update_infinity_moment([g], [m], 0.9, 0.1)[0])
    theirs = optax.bias_correction({"x": jax.numpy.asarray(m)}, 0.9, 3)
    np.testing.assert_allclose(optim.bias_correction({"x": m}, 0.9, 3)["x"], theirs["x"], rtol=1e-6)
    np.testing.assert_array_equal(optim.bias_correction([m], 0, 1)[0], m)


def test_averages_of_parameters():
    new, old = {"w": np.float32(1.0), "none": None}, {"w": np.float16(0.0), "none": None}
    average = optim.incremental_update(new, old, vf.numpy.float32(0.25))
    assert (float(average["w"]), average["w"].dtype) == (0.25, np.float16)
    pick = vf.jit(lambda steps: optim.periodic_update(np.float32(1.0), np.float32(2.0), steps, 3))
    assert [float(pick(step)) for step in range(4)] == [1.0, 2.0, 2.0, 1.0]
    ema = optim.ema(0.5, accumulator_dtype="float32")
    params = {"w": np.float16(2.0)}
    for _ in range(3):
        averaged, state = ema.update(params, ema.init(params))
    assert float(averaged["w"]) == 2.0 and state.ema["w"].dtype == np.float32


def test_noise_is_optax_s():
    """The same keys give the same numbers."""
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    results = []
    for library, key in ((optim, vf.random.key(3)), (optax, jax.random.key(3))):
        tx = library.noisy_sgd(0.1, key=key)
        state = tx.init(PARAMS)
        with jax.threefry_partitionable(True):
            for _ in range(3):
                updates, state = tx.update(tree.map(np.asarray, PARAMS), state)
        results.append(updates)
    np.testing.assert_allclose(results[0]["w"], results[1]["w"], rtol=1e-5)
    seeded = optim.noisy_sgd(0.1, key=3)
    assert seeded.init(PARAMS)[0].rng_key == vf.random.key(3)


def test_custom_transformations():
    by_leaf = optim.stateless_with_tree_map(lambda u, p: u * 2 if p is None else u + p)
    assert by_leaf.update([1.0], by_leaf.init(None))[0] == [2.0]
    assert by_leaf.update([1.0], by_leaf.init(None), [3.0])[0] == [4.0]
    zero = optim.set_to_zero()
    assert not np.any(zero.update(PARAMS, zero.init(PARAMS))[0]["w"])
    with pytest.raises(ArgumentError):
        optim.apply_every(0)
    with pytest.raises(ArgumentError):
        optim.scale_by_lion(mode="soft")
    with pytest.raises(ArgumentError):
        optim.scale_by_polyak(variant="none")
    with pytest.raises(DTypeError):
        optim.sm3(0.1).init({"z": np.ones(2, "complex64")})
