"""Calls of `volta_fn.optim`: losses, projections, schedules, arithmetic on trees, and one update of each optimizer.

Their values are compared with Optax's in `tests/optim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.catalogue.call import Call, Calls, at, numbers
from tests.catalogue.numpy_calls import SPD, B, P, V, X, Y
from tests.optim.losses.test_losses import ROWS as LOSSES
from tests.optim.losses.test_losses import arrays
from volta_fn import optim

PARAMS, GRADS = {"w": numbers((3, 4)), "b": numbers((4,))}, {"w": numbers((3, 4)), "b": numbers((4,))}
KEY = np.array([0, 42], np.uint32)
STEP = np.float32([3.25])


def plain(*args: Any, **options: Any) -> Call:
    """Return a call whose values `tests/optim` compares with Optax's."""
    return Call(args, theirs=None, **options)


def updates(*args: Any, extra: Any = None, grad: bool = True, **options: Any) -> Call:
    """Return the first update of an optimizer made with some options."""

    def through(make: Callable[..., Any]) -> Callable[..., Any]:
        def first(params: Any, grads: Any) -> Any:
            optimizer = optim.with_extra_args_support(make(*args, **options))
            return optimizer.update(grads, optimizer.init(params), params, **(extra or {}))[0]

        return first

    return plain(PARAMS, GRADS, through=through, grad=grad)


#: The root of a squared distance, which is 0 at first, has no derivative there.
AT_REST = {"grad": False}


def each_update(names: str, *args: Any, grad: bool = True, **options: Any) -> Calls:
    """Return the same update of several optimizers."""
    return {name: updates(*args, grad=grad, **options) for name in names.split()}


def scheduled(*args: Any, grad: bool = True, **options: Any) -> Call:
    """Return the value of a schedule at a step between two others."""
    return plain(STEP, through=lambda make: make(*args, **options), grad=grad)


def doubled_state(map_params: Callable[..., Any]) -> Callable[..., Any]:
    """Return a state whose arrays of the shapes of parameters are mapped."""
    adam = optim.adam(0.1)
    return lambda params: map_params(adam, lambda leaf: 2 * leaf + 1, adam.init(params))


OPTIMIZERS: Calls = (
    each_update("adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw", 0.1)
    | each_update("novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi", 0.1)
    | {"lbfgs": updates(0.1, linesearch=None), "polyak_sgd": updates(0.1, extra={"value": 2.0}), "noisy_sgd": updates(0.1, key=0)}
)
SCALES: Calls = (
    each_update("scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad scale_by_belief scale_by_lion scale_by_novograd")
    | each_update("scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms scale_by_radam scale_by_rms")
    | each_update("scale_by_rss scale_by_sign scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi scale_by_adadelta")
    | each_update("scale_by_factored_rms scale_by_lbfgs centralize normalize_by_update_norm set_to_zero")
    | each_update("scale scale_by_learning_rate", 0.1)
    | each_update("identity")
    | each_update("scale_by_distance_over_gradients", **AT_REST)
    | {name: updates(lambda gradient, param: gradient) for name in ("stateless", "stateless_with_tree_map")}
    | {"with_extra_args_support": updates(optim.sgd(0.1))}
    | {"apply_every": updates(1), "scale_by_rprop": updates(0.1), "scale_by_schedule": updates(lambda step: 0.1)}
    | {"scale_by_polyak": updates(extra={"value": 2.0}), "multi_transform": updates({"a": optim.sgd(0.1)}, "a")}
)
TRANSFORMS: Calls = (
    each_update("adaptive_grad_clip clip clip_by_block_rms clip_by_global_norm", 0.5)
    | each_update("add_decayed_weights ema trace", 0.9)
    | each_update("keep_params_nonnegative zero_nans")
    | {"add_noise": updates(0.1, 0.5, 0), "apply_if_finite": updates(optim.sgd(0.1), 2), "chain": updates(optim.sgd(0.1), optim.scale(2.0))}
    | {"conditionally_mask": updates(optim.sgd(0.1), lambda step: step > 1), "flatten": updates(optim.adam(0.1))}
    | {"conditionally_transform": updates(optim.sgd(0.1), lambda step: step > 1), "freeze": updates({"w": True, "b": False})}
    | {"masked": updates(optim.sgd(0.1), {"w": True, "b": False}), "named_chain": updates(("a", optim.sgd(0.1)))}
    | {
        "partition": updates({"a": optim.sgd(0.1)}, "a"),
        "selective_transform": updates(optim.sgd(0.1), freeze_mask={"w": True, "b": False}),
    }
    | {"unitwise_norm": plain(X), "unitwise_clip": plain(P, P + 1, X), "per_example_layer_norm_clip": plain([X], 0.5)}
    | {"per_example_global_norm_clip": plain([X], 0.5)}
)
CONTRIB: Calls = (
    each_update("acprop ademamix adopt dadapt_adamw galore madgrad muon simplified_ademamix", 0.1)
    | each_update("cocob dowg prodigy normalize scale_by_acprop scale_by_ademamix scale_by_adopt scale_by_cocob")
    | each_update("scale_by_simplified_ademamix")
    | {"dog": updates(**AT_REST), "scale_by_muon": replace(updates(), args=(X, Y))}
    | {"scale_by_galore": updates(2), "scale_by_madgrad": updates(0.1), "momo": updates(0.1, extra={"value": 2.0})}
    | {
        "momo_adam": updates(0.1, extra={"value": 2.0}),
        "mechanize": updates(optim.sgd(0.1), **AT_REST),
        "split_real_and_imaginary": updates(optim.sgd(0.1)),
    }
    | {"schedule_free": updates(optim.sgd(0.1), 0.1), "schedule_free_adamw": updates(0.1), "schedule_free_sgd": updates(0.1)}
    | {"reduce_on_plateau": updates(extra={"value": 2.0}), "sam": updates(optim.sgd(0.1), optim.sgd(0.2))}
)
FUNCTIONS: Calls = (
    {"apply_updates": plain(PARAMS, GRADS), "incremental_update": plain(PARAMS, GRADS, 0.1), "periodic_update": plain(PARAMS, GRADS, 4, 2)}
    | {"global_norm": plain(PARAMS), "safe_norm": plain(X, 0.1), "safe_root_mean_squares": plain(X, 0.1)}
    | {"safe_increment": plain(np.int32([3]), grad=False), "safe_int32_increment": plain(np.int32([3]), grad=False)}
    | {"update_moment": plain(PARAMS, GRADS, 0.9, 2), "update_infinity_moment": plain(PARAMS, GRADS, 0.9, 1e-3)}
    | {"update_moment_per_elem_norm": plain(PARAMS, GRADS, 0.9, 2), "bias_correction": plain(PARAMS, 0.9, 3)}
    | {"power_iteration": plain(SPD, alike=True, grad=False), "matrix_inverse_pth_root": plain(SPD, 2, alike=True, grad=False)}
    | {"tree_map_params": plain(PARAMS, through=doubled_state, grad=False)}
    | {"nnls": plain(numbers((5, 3)), V, 20, grad=False, alike=True), "scale_gradient": plain(X, 1.0)}
)
TREES: Calls = (
    {name: plain(PARAMS, GRADS) for name in "add sub mul div vdot".split()}
    | {name: plain(PARAMS) for name in "conj real sum max min norm".split()}
    | {name: plain(PARAMS, grad=False) for name in "zeros_like ones_like".split()}
    | {"add_scale": plain(PARAMS, 2.0, GRADS), "allclose": plain(PARAMS, GRADS, grad=False), "scale": plain(2.0, PARAMS)}
    | {"clip": plain(PARAMS, -1.0, 1.0), "cast": plain(PARAMS, "float16", grad=False), "where": plain(B, X, Y)}
    | {"bias_correction": plain(PARAMS, 0.9, 3), "full_like": plain(PARAMS, 2.0, grad=False), "batch_shape": plain(PARAMS, (2,))}
    | {"update_moment": plain(PARAMS, GRADS, 0.9, 2), "update_infinity_moment": plain(PARAMS, GRADS, 0.9, 1e-3)}
    | {"update_moment_per_elem_norm": plain(PARAMS, GRADS, 0.9, 2), "cast_like": plain(PARAMS, GRADS)}
    | {"random_like": plain(KEY, PARAMS, grad=False), "size": plain(PARAMS, grad=False, jit=False)}
)
SCHEDULES: Calls = {
    "constant_schedule": scheduled(0.3, grad=False),
    "cosine_decay_schedule": scheduled(1.0, 25),
    "cosine_onecycle_schedule": scheduled(30, 1.0),
    "exponential_decay": scheduled(1.0, 7, 0.6),
    "join_schedules": scheduled([lambda step: step, lambda step: 2 * step], [2]),
    "linear_onecycle_schedule": scheduled(30, 1.0),
    "linear_schedule": scheduled(0.1, 1.0, 10),
    "piecewise_constant_schedule": scheduled(1.0, {5: 0.5}, grad=False),
    "piecewise_interpolate_schedule": scheduled("linear", 1.0, {5: 0.5}),
    "polynomial_schedule": scheduled(1.0, 0.1, 2.5, 20),
    "sgdr_schedule": scheduled([{"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 12}]),
    "warmup_constant_schedule": scheduled(0.1, 1.0, 7),
    "warmup_cosine_decay_schedule": scheduled(0.1, 1.0, 2, 30),
    "warmup_exponential_decay_schedule": scheduled(0.1, 1.0, 2, 10, 0.5),
    "inject_stateful_hyperparams": plain(
        PARAMS, GRADS, through=lambda inject: updates().through(lambda: inject(optim.sgd)(learning_rate=0.1))
    ),
    "inject_hyperparams": plain(PARAMS, GRADS, through=lambda inject: updates().through(lambda: inject(optim.sgd)(learning_rate=0.1))),
}


def loss(name: str) -> Call:
    """Return the call of a loss from its table of tests: a function of the predictions."""
    _, values, options = LOSSES[name]
    first, *others = arrays(values, "float32")
    return plain(first, through=lambda function: lambda x: function(x, *others, **options))


LABELS: Calls = {
    "softmax_cross_entropy_with_integer_labels": loss("integer labels"),
    "smooth_labels": plain(P, 0.1),
    "make_fenchel_young_loss": plain(X, Y, through=lambda make: make(lambda x: (x**2).sum())),
}


PROJECTIONS: Calls = (
    {name: plain(PARAMS) for name in "projection_non_negative projection_hypercube projection_simplex projection_linf_ball".split()}
    | {f"projection_{norm}_{kind}": plain(PARAMS) for norm in ("l1", "l2") for kind in ("sphere", "ball")}
    | {"projection_vector": plain(PARAMS, GRADS), "projection_box": plain(PARAMS, -1.0, 2.0)}
    | {f"projection_{name}": plain(PARAMS, GRADS, -3.0) for name in ("hyperplane", "halfspace")}
)

CALLS: Calls = (
    at("optim", OPTIMIZERS, SCALES, FUNCTIONS)
    | at("optim.transforms", TRANSFORMS)
    | at("optim.contrib", CONTRIB)
    | at("optim.losses", {name: loss(name) for name in LOSSES if hasattr(optim.losses, name)}, LABELS)
    | at("optim.projections", PROJECTIONS)
    | at("optim.schedules", SCHEDULES)
    | at("optim.tree", TREES)
    | at("optim.assignment", {name: plain(X, grad=False) for name in ("hungarian_algorithm", "base_hungarian_algorithm")})
)
