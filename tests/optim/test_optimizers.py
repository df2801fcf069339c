"""Every optimizer against Optax over several steps on trees of several shapes: updates, states and parameters."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import FLOAT
from tests.optim.oracle import MORE_SHAPES, assert_close, gradients, ours_and_theirs, random_tree, run
from volta_fn import optim, tree
from volta_fn.optim import optimizers

#: Relative errors allowed. Corrections for the start of averages lose digits in Optax's float32: 1 - 0.999 has four.
RTOL = {"float32": 1e-5, "float64": 1e-10}


def no_vectors(library: Any) -> Any:
    """Return a mask as a function: matrices and kernels only."""
    map_ = tree.map if library is optim else __import__("jax").tree.map
    return lambda params: map_(lambda p: p.ndim > 1, params)


def slowly(library: Any) -> Any:
    """Return a schedule of numbers that have no rounding error: Optax computes schedules in float32."""
    return library.piecewise_constant_schedule(0.125, {2: 0.5, 4: 0.5})


OPTIMIZERS = {
    "sgd": lambda o: o.sgd(0.1),
    "sgd momentum": lambda o: o.sgd(0.1, momentum=0.9),
    "sgd nesterov": lambda o: o.sgd(0.1, momentum=0.9, nesterov=True),
    "sgd schedule": lambda o: o.sgd(slowly(o), momentum=0.9),
    "adam": lambda o: o.adam(0.1),
    "adam eps_root": lambda o: o.adam(0.1, b1=0.8, b2=0.95, eps=1e-4, eps_root=1e-3),
    "adamw": lambda o: o.adamw(slowly(o), weight_decay=0.1),
    "adamw mask": lambda o: o.adamw(0.1, weight_decay=0.1, mask=no_vectors(o)),
    "adamw schedule of decay": lambda o: o.adamw(0.1, weight_decay=slowly(o)),
    "nadam": lambda o: o.nadam(0.1),
    "nadamw": lambda o: o.nadamw(0.1, weight_decay=0.1),
    "amsgrad": lambda o: o.amsgrad(0.1),
    "amsgrad uncorrected": lambda o: o.amsgrad(0.1, bias_correction_mu=False, bias_correction_nu=False),
    "adamax": lambda o: o.adamax(0.1),
    "adamaxw": lambda o: o.adamaxw(0.1, weight_decay=0.1),
    "radam": lambda o: o.radam(0.1, b2=0.9, threshold=4.5),
    "radam nesterov": lambda o: o.radam(0.1, b2=0.9, nesterov=True),
    "adabelief": lambda o: o.adabelief(0.1),
    "adabelief nesterov": lambda o: o.adabelief(0.1, nesterov=True),
    "yogi": lambda o: o.yogi(0.1),
    "adan": lambda o: o.adan(0.1, weight_decay=0.1),
    "novograd": lambda o: o.novograd(0.1, weight_decay=0.1),
    "lamb": lambda o: o.lamb(0.1, weight_decay=0.1),
    "lars": lambda o: o.lars(0.1, weight_decay=0.1, trust_ratio_mask=no_vectors(o)),
    "lion": lambda o: o.lion(0.1, weight_decay=0.1),
    "lion smooth": lambda o: o.chain(o.scale_by_lion(mode="smooth", smooth_beta=2.0), o.scale(-1.0)),
    "lion refined": lambda o: o.chain(o.scale_by_lion(mode="refined"), o.scale(-1.0)),
    "rmsprop": lambda o: o.rmsprop(0.1),
    "rmsprop centered": lambda o: o.rmsprop(0.1, centered=True, momentum=0.9, initial_scale=1.0),
    "rmsprop corrected": lambda o: o.rmsprop(0.1, eps_in_sqrt=False, bias_correction=True, momentum=0.9, nesterov=True),
    "rmsprop centered corrected": lambda o: o.rmsprop(0.1, centered=True, bias_correction=True, initial_scale=1.0, eps=0.1),
    "adagrad": lambda o: o.adagrad(0.1),
    "adadelta": lambda o: o.adadelta(1.0, weight_decay=0.1),
    "fromage": lambda o: o.fromage(0.1),
    "sign_sgd": lambda o: o.sign_sgd(0.1),
    "signum": lambda o: o.signum(0.1),
    "optimistic": lambda o: o.optimistic_gradient_descent(0.1, alpha=0.5),
    "optimistic adam": lambda o: o.optimistic_adam_v2(0.1),
    "ema": lambda o: o.chain(o.ema(0.9), o.scale(-0.1)),
    "ema biased": lambda o: o.chain(o.ema(0.9, debias=False), o.scale(-0.1)),
    "apply_every": lambda o: o.chain(o.apply_every(3), o.scale(-0.1)),
    "multi_steps": lambda o: o.MultiSteps(o.adam(0.1), every_k_schedule=2, accumulator_dtype=FLOAT).gradient_transformation(),
    "multi_steps sum": lambda o: o.MultiSteps(
        o.sgd(0.1), every_k_schedule=3, use_grad_mean=False, accumulator_dtype=FLOAT
    ).gradient_transformation(),
    "clip": lambda o: o.chain(o.clip(0.5), o.scale(-0.1)),
    "clip_by_global_norm": lambda o: o.chain(o.clip_by_global_norm(1.0), o.scale(-0.1)),
    "clip_by_global_norm idle": lambda o: o.chain(o.clip_by_global_norm(1e3), o.scale(-0.1)),
    "clip_by_block_rms": lambda o: o.chain(o.clip_by_block_rms(0.5), o.scale(-0.1)),
    "adaptive_grad_clip": lambda o: o.chain(o.adaptive_grad_clip(0.1), o.scale(-0.1)),
    "add_decayed_weights": lambda o: o.chain(o.add_decayed_weights(0.1, no_vectors(o)), o.scale(-0.1)),
    "scale_by_param_block_norm": lambda o: o.chain(o.scale_by_param_block_norm(), o.scale(-0.1)),
    "scale_by_param_block_rms": lambda o: o.chain(o.scale_by_param_block_rms(), o.scale(-0.1)),
    "trust ratio": lambda o: o.chain(o.scale_by_trust_ratio(min_norm=0.3, trust_coefficient=0.5, eps=0.1), o.scale(-0.1)),
    "normalize": lambda o: o.chain(o.normalize_by_update_norm(2.0), o.scale(-0.1)),
    "centralize": lambda o: o.chain(o.centralize(), o.scale(-0.1)),
    "nonnegative": lambda o: o.chain(o.sgd(0.3), o.keep_params_nonnegative()),
    "named_chain": lambda o: o.named_chain(("second", o.trace(0.9)), ("first", o.scale(-0.1))),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 2),
    "conditionally_mask": lambda o: o.conditionally_mask(o.adam(0.1), lambda step: step % 2 == 0),
    "conditionally_transform": lambda o: o.conditionally_transform(o.scale(-0.1), lambda step: step > 2),
    "masked": lambda o: o.masked(o.adam(0.1), {"matrix": True, "deep": False}),
    "freeze": lambda o: o.chain(o.sgd(0.1), o.freeze({"matrix": True, "deep": False})),
    "inject_hyperparams": lambda o: o.inject_hyperparams(o.adam)(learning_rate=slowly(o), b1=0.8),
    "acprop": lambda o: o.contrib.acprop(0.1, weight_decay=0.1),
    "ademamix": lambda o: o.contrib.ademamix(0.1, b3=0.9, alpha=slowly(o), weight_decay=0.1),
    "simplified_ademamix": lambda o: o.contrib.simplified_ademamix(0.1, alpha=2.0),
    "adopt": lambda o: o.contrib.adopt(0.1),
    "adopt nesterov": lambda o: o.contrib.adopt(0.1, b2=0.9, nesterov=True, use_clipping=False),
    "cocob": lambda o: o.contrib.cocob(weight_decay=0.1),
    "dadapt_adamw": lambda o: o.contrib.dadapt_adamw(slowly(o), weight_decay=0.1),
    "dog": lambda o: o.contrib.dog(weight_decay=0.1),
    "dog distance": lambda o: o.contrib.dog(init_step=("distance", 0.5)),
    "dog learning rate": lambda o: o.contrib.dog(init_step=("learning_rate", 0.5)),
    "dowg": lambda o: o.contrib.dowg(init_estim_sq_dist=0.5),
    "madgrad": lambda o: o.contrib.madgrad(slowly(o), weight_decay=0.1),
    "mechanize": lambda o: o.contrib.mechanize(o.sgd(0.1), s_init=0.1),
    "prodigy": lambda o: o.contrib.prodigy(estim_lr0=0.1, weight_decay=0.1),
    "prodigy warm-up": lambda o: o.contrib.prodigy(slowly(o), estim_lr0=0.1, safeguard_warmup=True),
    "sam": lambda o: o.contrib.sam(o.adam(0.1), o.chain(o.contrib.normalize(), o.sgd(0.1))),
    "sam period": lambda o: o.contrib.sam(o.sgd(0.1), o.adam(0.1), sync_period=3, reset_state=False),
    "schedule_free": lambda o: o.contrib.schedule_free(o.adam(0.1, b1=0.0), slowly(o), weight_lr_power=1.0),
    "schedule_free_adamw": lambda o: o.contrib.schedule_free_adamw(0.125, warmup_steps=2, weight_decay=0.1),
    "schedule_free_sgd": lambda o: o.contrib.schedule_free_sgd(0.1, weight_decay=0.1),
    "split_real_and_imaginary": lambda o: o.contrib.split_real_and_imaginary(o.adam(0.1)),
    "scale_by_distance": lambda o: o.chain(o.scale_by_distance_over_gradients(0.1, param_dtype=None), o.scale(-1.0)),
    "flatten": lambda o: o.flatten(o.adam(0.1)),
    "scale_by_schedule": lambda o: o.scale_by_schedule(lambda count: -0.125 * (count + 1)),
}
#: Optimizers whose branches JAX would compile at every step.
BRANCHING = ("multi_steps", "multi_steps sum", "apply_if_finite", "conditionally_mask", "conditionally_transform")
STRUCTURAL = ("named_chain", "masked", "freeze", "multi_transform", "scale_by_schedule", "add_decayed_weights", "adamw schedule of decay")
#: What others do with their states: arrange them differently, or keep more or less there.
OTHER_STATES = {
    "inject_hyperparams": "counts in one place",
    "multi_steps": "the sum is held back before it is cast",
    "scale_by_distance": "vectors of one element",
}


#: Larger relative errors: Optax takes roots of counters in float32, and Prodigy's estimate is a quotient of sums that cancel.
LOOSE = {("madgrad", "float64"): 1e-5, ("prodigy", "float32"): 1e-3}


def partitioned(library: Any) -> Any:
    """Return an optimizer of two groups by labels, one of them frozen."""
    transforms = {"a": library.adam(0.1), "b": library.sgd(0.3), "frozen": library.set_to_zero()}
    return library.multi_transform(transforms, {"matrix": "a", "deep": {"bias": "b", "gap": None}})


OPTIMIZERS["multi_transform"] = partitioned


#: What only calls others does so in one dtype as in another, and so do variants of an optimizer, whose names have two words.
IN_BOTH = [
    (name, dtype) for name in OPTIMIZERS for dtype in RTOL if dtype == "float64" or not (name in (*BRANCHING, *STRUCTURAL) or " " in name)
]


@pytest.mark.parametrize(("name", "dtype"), IN_BOTH)
def test_agrees_with_optax(name, dtype):
    updates, state, params = ours_and_theirs(OPTIMIZERS[name], dtype, compiled=name in BRANCHING)
    rtol = LOOSE.get((name, dtype), RTOL[dtype])
    assert_close(*updates, rtol=rtol, atol=0.1 * rtol)
    assert_close(*params, rtol=rtol)
    if name not in OTHER_STATES:
        assert_close(*state, rtol=rtol)
    assert all(leaf.dtype == np.dtype(dtype) for leaf in (*updates[0], *params[0]))


@pytest.mark.parametrize("name", ["adaptive_grad_clip", "centralize", "adafactor", "lamb", "clip_by_block_rms"])
def test_other_shapes_agree_with_optax(name):
    updates, _, params = ours_and_theirs((OPTIMIZERS | ALSO)[name], "float32", 2, MORE_SHAPES, compiled=True)
    assert_close(*updates, rtol=1e-5)
    assert_close(*params, rtol=1e-5)


@pytest.mark.parametrize("name", ["polyak_sgd", "polyak_sgd plus"])
@pytest.mark.parametrize("dtype", RTOL)
def test_polyak_agrees_with_optax(name, dtype):
    variant = "sps+" if name.endswith("plus") else "sps"
    make = lambda o: o.polyak_sgd(max_learning_rate=0.05, f_min=0.5, variant=variant)
    for pair in ours_and_theirs(make, dtype, value=np.asarray(1.2 - 0.3 * np.arange(4), dtype)):
        assert_close(*pair, rtol=RTOL[dtype])


ADAFACTORS = {
    "plain": {"learning_rate": 0.1},
    "small factors": {"learning_rate": 0.1, "min_dim_size_to_factor": 2},
    "momentum": {"momentum": 0.9, "weight_decay_rate": 0.1, "clipping_threshold": None, "multiply_by_parameter_scale": False},
}


@pytest.mark.parametrize("options", ADAFACTORS.values(), ids=ADAFACTORS)
def test_adafactor_agrees_with_optax(options):
    updates, _, params = ours_and_theirs(lambda o: o.adafactor(**options), "float32")
    assert_close(*updates, rtol=1e-5)
    assert_close(*params, rtol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("smallest", [2, 3])
def test_factored_rms_agrees_with_optax(smallest):
    decay = lambda step, rate: 1 - 1.0 / (step + 1.0 + rate)  # Optax's own computes in float32
    make = lambda o: o.chain(o.scale_by_factored_rms(min_dim_size_to_factor=smallest, decay_rate_fn=decay), o.scale(-0.1))
    for pair in ours_and_theirs(make, "float64"):
        assert_close(*pair, rtol=1e-10)


@pytest.mark.parametrize("name", ["adam", "amsgrad", "lion", "adagrad", "clip_by_global_norm", "split_real_and_imaginary", "ademamix"])
def test_complex_numbers_agree_with_optax(name):
    updates, _, params = ours_and_theirs(OPTIMIZERS[name], "complex64", 2)
    assert_close(*updates, rtol=1e-5)
    assert_close(*params, rtol=1e-5)
    assert all(leaf.dtype == np.complex64 for leaf in updates[0])


@pytest.mark.wide
@pytest.mark.parametrize("numbers", [None, ((1, 2), 0), (-1, (0, 1))])
def test_galore_agrees_with_optax(numbers):
    """Of trees without None, which Optax does not take; signs of singular vectors cancel."""
    arguments = lambda o: None if numbers is None else o.contrib.GaLoreDimensionNumbers(*numbers)
    shapes = {"vector": (3,), "cube": (2, 3, 2)} if numbers else {"vector": (3,), "tall": (4, 3), "wide": (2, 5)}
    make = lambda o: o.contrib.galore(0.1, rank=2, update_proj_gap=2, scale=0.5, weight_decay=0.1, weight_dimension_numbers=arguments(o))
    if numbers:
        shapes.pop("vector")
    updates, _, params = ours_and_theirs(make, "float64", shapes=shapes)
    assert_close(*updates, rtol=1e-5)  # Optax decomposes in float32
    assert_close(*params, rtol=1e-5)


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("adapt", [False, True])
@pytest.mark.parametrize("name", ["momo", "momo_adam"])
def test_momo_agrees_with_optax(name, adapt, dtype):
    make = lambda o: getattr(o.contrib, name)(slowly(o), lower_bound=-0.5, weight_decay=0.1, adapt_lower_bound=adapt)
    rtol = {"float32": 1e-4, "float64": 1e-7}[dtype]  # Optax corrects averages in float32; losses and inner products cancel
    for pair in ours_and_theirs(make, dtype, value=np.asarray(1.2 - 0.3 * np.arange(4), dtype)):
        assert_close(*pair, rtol=rtol)


@pytest.mark.wide
@pytest.mark.parametrize("limit", [1.0, None])
def test_sophia_agrees_with_optax(limit):
    """With the same random signs, and a Hessian that is not diagonal."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    results = []
    for library, numpy, grad, key in ((optim, vf.numpy, vf.grad, vf.random.key(3)), (optax, jax.numpy, jax.grad, jax.random.key(3))):
        loss = lambda w, numpy=numpy: numpy.sum(w["a"] ** 4) * numpy.sum(numpy.sin(w["b"]))
        hessian = library.contrib.hutchinson_estimator_diag_hessian(key)
        optimizer = library.contrib.sophia(0.01, eps=0.1, update_interval=2, gamma=1.0, clip_threshold=limit, hessian_diagonal_fn=hessian)
        params = {"a": numpy.asarray([0.5, -1.0], "float32"), "b": numpy.asarray([[0.3], [0.7]], "float32")}
        state = optimizer.init(params)
        jit = vf.jit if library is optim else jax.jit
        step = jit(lambda p, s, optimizer=optimizer, loss=loss, grad=grad: optimizer.update(grad(loss)(p), s, p, obj_fn=loss))
        with jax.threefry_partitionable(True):
            for _ in range(3):
                updates, state = step(params, state)
                params = library.apply_updates(params, updates)
        results.append([np.asarray(x) for x in (*params.values(), *updates.values())])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_opaque_sam_agrees_with_optax():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    results = []
    for library, numpy in ((optim, vf.numpy), (optax, jax.numpy)):
        climb = library.chain(library.contrib.normalize(), library.sgd(0.1))
        optimizer = library.contrib.sam(library.adam(0.1), climb, sync_period=3, opaque_mode=True)
        w = numpy.asarray([1.0, -2.0, 0.5])
        state = optimizer.init(w)
        for _ in range(3):
            updates, state = optimizer.update(w**3, state, w, grad_fn=lambda params, i: params**3 + i)
            w = library.apply_updates(w, updates)
        results.append(np.asarray(w))
    np.testing.assert_allclose(*results, rtol=RTOL["float32"])


@pytest.mark.wide
def test_sm3_agrees_with_optax():
    """Of arrays; scalars, which Optax does not take, are arrays of one element."""
    for dtype in RTOL:
        for pair in ours_and_theirs(lambda o: o.sm3(0.1), dtype):
            assert_close(*pair, rtol=RTOL[dtype])
    scalar, one = vf.numpy.array(2.0), vf.numpy.array([2.0])
    optimizer = optim.sm3(0.1)
    assert optimizer.update(scalar, optimizer.init(scalar))[0] == optimizer.update(one, optimizer.init(one))[0][0]


def test_fromage_takes_schedules():
    for pair in ours_and_theirs(lambda o: o.fromage(slowly(o)), "float32"):
        assert_close(*pair, rtol=1e-5)


#: The optimizers of the tests below, which need no oracle: some of those above, and those in `ALSO`, which Optax lacks or computes
#: otherwise.
NAMED = """sgd nesterov, adam, adamw mask, amsgrad, radam, lion, rmsprop centered, adagrad, adadelta, lamb, lars, novograd, multi_steps,
    multi_transform, apply_if_finite, inject_hyperparams, conditionally_mask, dog, mechanize, prodigy, sam,
    schedule_free_adamw"""
ALSO = {
    "sm3": lambda o: o.sm3(0.1),
    "rprop": lambda o: o.rprop(0.1),
    "adafactor": lambda o: o.adafactor(0.1, min_dim_size_to_factor=2),
    "muon": lambda o: o.muon(0.1),
    "galore": lambda o: o.contrib.galore(0.1, rank=2, update_proj_gap=2, weight_decay=0.1),
    "loss_scaled": lambda o: o.loss_scaled(o.adam(0.1)),
}
MAKERS = {name.strip(): OPTIMIZERS[name.strip()] for name in NAMED.split(",")} | ALSO


#: Optimizers with tests of their own: random numbers, gradients of single examples, line searches, the loss as an argument.
ELSEWHERE = {"dpsgd", "noisy_sgd", "lbfgs", "polyak_sgd", "hutchinson_estimator_diag_hessian", "momo", "momo_adam", "sophia"}
ELSEWHERE |= {"schedule_free_eval_params"}


def test_every_optimizer_has_a_row():
    modules = [optimizers, *filter(inspect.ismodule, vars(optim.contrib).values())]
    names = {name for module in modules for name in getattr(module, "__all__", ()) if name.islower() and not name.startswith("scale_by")}
    used = {name for make in (OPTIMIZERS | ALSO).values() for name in make.__code__.co_names}
    assert names - ELSEWHERE <= used, "add a row to OPTIMIZERS, or to ALSO if Optax has no such optimizer"


@functools.cache
def few_steps(name: str, dtype: str) -> Any:
    return run(MAKERS[name](optim), dtype, 3)


@pytest.mark.parametrize("name", MAKERS)
def test_jitted_scanned_and_repeated_steps_are_the_same(name):
    optimizer = MAKERS[name](optim)
    params = tree.map(vf.numpy.asarray, random_tree(7))
    grads = gradients("float32", 3)

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optim.apply_updates(params, updates), state), updates

    jitted, carry = vf.jit(step), (params, optimizer.init(params))
    for gradient in grads:
        carry, updates = jitted(carry, gradient)
    stacked = tree.map(lambda *xs: vf.numpy.stack(xs), *grads)
    scanned, many = vf.lax.scan(step, (params, optimizer.init(params)), stacked)
    eager = few_steps(name, "float32")
    for one, two in ((carry, scanned), (updates, tree.map(lambda u: u[-1], many)), ((eager[2], eager[1]), carry), (eager[0], updates)):
        assert tree.structure(one) == tree.structure(two)
        for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    again = run(MAKERS[name](optim), "float32", 3)
    for a, b in zip(tree.leaves(again), tree.leaves(eager), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MAKERS)
def test_half_precision_is_float32_rounded(name, dtype):
    updates, state, params = few_steps(name, dtype)
    assert all(leaf.dtype == vf.dtypes.as_dtype(dtype) for leaf in (*tree.leaves(updates), *tree.leaves(params)))
    assert all(np.all(np.isfinite(np.asarray(leaf, "float64"))) for leaf in tree.leaves((updates, state, params)))
    if name not in ("lion", "sm3", "muon"):  # signs flip, and polynomials of high degree amplify, small differences
        exact = few_steps(name, "float32")[2]
        for a, b in zip(tree.leaves(params), tree.leaves(exact), strict=True):
            np.testing.assert_allclose(np.asarray(a, "float32"), b, atol=5e-2 if dtype == "bfloat16" else 6e-3)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_states_keep_their_types(name, dtype):
    optimizer = MAKERS[name](optim)
    params = tree.map(vf.numpy.asarray, random_tree(7, dtype))
    before, after = optimizer.init(params), few_steps(name, dtype)[1]
    assert tree.structure(before) == tree.structure(after)
    assert [x.aval for x in tree.leaves(before)] == [x.aval for x in tree.leaves(after)]


@pytest.mark.parametrize("name", MAKERS)
def test_empty_trees_and_arrays(name):
    optimizer = MAKERS[name](optim)
    if name == "multi_transform":
        optimizer = optim.multi_transform({"a": optim.adam(0.1)}, lambda params: tree.map(lambda p: "a", params))
    for params in ({}, {"nothing": None}, {"w": vf.numpy.zeros((0, 3)), "b": vf.numpy.zeros(0)}):
        updates, _state = optimizer.update(params, optimizer.init(params), params)
        assert tree.structure(updates) == tree.structure(params)
        assert [u.shape for u in tree.leaves(updates)] == [p.shape for p in tree.leaves(params)]


def test_learning_rates_may_be_traced_arrays():
    w, g = vf.numpy.ones(3), vf.numpy.full(3, 2.0)

    def loss_after(rate):
        optimizer = optim.chain(optim.trace(0.9), optim.scale_by_learning_rate(rate))
        return vf.numpy.sum(optim.apply_updates(w, optimizer.update(g, optimizer.init(w), w)[0]))

    assert float(vf.jit(loss_after)(0.5)) == 0.0
    assert float(vf.grad(loss_after)(0.5)) == -6.0
    np.testing.assert_allclose(vf.vmap(loss_after)(vf.numpy.array([0.0, 0.5])), [3.0, 0.0])
    half = optim.sgd(np.float64(0.5)).update(w.astype("float16"), (optim.EmptyState(), optim.EmptyState()))[0]
    assert half.dtype == np.float16


def test_vmap_trains_many_models_at_once():
    optimizer = optim.adam(0.1)
    grads = vf.numpy.array(np.random.default_rng(0).normal(size=(4, 3)), FLOAT)
    params = vf.numpy.zeros((4, 3))
    states = vf.vmap(optimizer.init)(params)
    many, _ = vf.vmap(optimizer.update)(grads, states, params)
    one, _ = optimizer.update(grads[1], optimizer.init(params[1]), params[1])
    np.testing.assert_allclose(many[1], one, rtol=1e-6)


@pytest.mark.wide
def test_first_moments_are_kept_in_the_dtype_asked_for():
    params = {"w": vf.numpy.ones(3)}
    for make in (optim.adam, optim.adamw, optim.amsgrad, optim.lion, optim.muon):
        optimizer = make(0.1, mu_dtype="bfloat16")
        state = optimizer.init(params)
        updates, after = optimizer.update(params, state, params)
        assert "bfloat16" in {x.dtype.name for x in tree.leaves(state)}
        assert [x.aval for x in tree.leaves(state)] == [x.aval for x in tree.leaves(after)]
        assert updates["w"].dtype == np.float32
    assert optim.sgd(0.1, momentum=0.9, accumulator_dtype="float64").init(params)[0].trace["w"].dtype == np.float64


def test_small_gradients_move_half_precision_parameters():
    """In float16 the square of 1e-4 and Adam's eps are zero; the second moment is kept in float32."""
    w, g = vf.numpy.ones(2, "float16"), vf.numpy.full(2, 1e-4, "float16")
    optimizer = optim.adam(0.125)
    updates, _ = optimizer.update(g, optimizer.init(w), w)
    np.testing.assert_allclose(np.asarray(updates, "float32"), -0.125, rtol=1e-2)


@pytest.mark.wide
def test_updates_can_be_differentiated():
    """Through a step of Adam, as learning to learn needs it."""
    optimizer = optim.adam(0.1, eps_root=1e-8)

    def loss(w0):
        updates, _ = optimizer.update(2 * w0, optimizer.init(w0), w0)
        return vf.numpy.sum(optim.apply_updates(w0, updates) ** 2)

    w = vf.numpy.array([1.0, 2.0], "float64")
    slope = vf.grad(loss)(w)
    nearby = [float(loss(w.at[0].add(h)) - loss(w.at[0].add(-h))) / (2 * h) for h in (1e-5,)]
    np.testing.assert_allclose(slope[0], nearby[0], rtol=1e-6)


def test_sam_that_never_climbs_is_its_optimizer():
    """Optax's takes each step back in the next one."""
    ours, plain = optim.contrib.sam(optim.sgd(0.1, 0.9), optim.sgd(0.5), sync_period=1), optim.sgd(0.1, 0.9)
    results = []
    for optimizer in (ours, plain):
        w = vf.numpy.asarray([1.0, -2.0])
        state = optimizer.init(w)
        for _ in range(4):
            updates, state = optimizer.update(w**3, state, w)
            w = optim.apply_updates(w, updates)
        results.append(w)
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_galore_projects_complex_gradients(shape):
    """A projection of full rank is the identity, and of a lower one is orthogonal to what it leaves out."""
    rng = np.random.default_rng(0)
    gradient = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    for rank in (4, 2):
        transform = optim.contrib.scale_by_galore(rank, base_optimizer=optim.identity())
        projected = np.asarray(transform.update(gradient, transform.init(gradient))[0])
        left, values, right = np.linalg.svd(gradient, full_matrices=False)
        np.testing.assert_allclose(projected, (left[:, :rank] * values[:rank]) @ right[:rank], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rates_are_estimated_for_half_precision(dtype):
    """Sums that weigh gradients by an estimate of 1e-6 are too small for float16."""

    def rate_after(optimizer, dtype):
        w = vf.numpy.asarray([1.0, -2.0], dtype)
        step = vf.jit(lambda state, w: optimizer.update(2 * w, state, w))
        state = optimizer.init(w)
        for _ in range(60):
            updates, state = step(state, w)
            w = optim.apply_updates(w, updates)
        assert updates.dtype == w.dtype
        return float(state.estim_lr)

    half, wide = [rate_after(optim.contrib.dadapt_adamw(), d) for d in (dtype, "float32")]
    assert wide > 1e-5 and half == pytest.approx(wide, rel=0.1)
    half, wide = [rate_after(optim.contrib.prodigy(estim_lr0=2e-3), d) for d in (dtype, "float32")]
    assert wide > 5e-3 and half > 5e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["prodigy", "mechanize"])
def test_parameters_of_16_bits_learn_from_a_first_step_that_they_do_not_take(name, dtype):
    """A step of a millionth is rounded away, and the estimate grows by the distance from the start."""
    optimizer = optim.contrib.prodigy() if name == "prodigy" else optim.contrib.mechanize(optim.sgd(1.0))
    target = np.array([3.0, -1.0, 0.25], np.float32)

    def last(dtype):
        w = vf.numpy.asarray([1.0, -2.0, 1.5], dtype)
        step = vf.jit(lambda state, w: optimizer.update(2 * (w - target.astype(w.dtype)), state, w))
        state, first = optimizer.init(w), w
        for _ in range(300):
            updates, state = step(state, w)
            assert updates.dtype == w.dtype
            w = optim.apply_updates(w, updates)
        return np.abs(np.asarray(w, np.float32) - target).max(), np.abs(np.asarray(w - first, np.float32)).max()

    (half, moved), (wide, _) = last(dtype), last("float32")
    assert moved > 0.5
    assert half < max(2 * wide, 0.1)
