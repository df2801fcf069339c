"""The laws of derivatives: finite differences, forward and reverse mode agree.

Forward mode is compared with finite differences, reverse mode with forward mode, each again for the derivative as a function. Both hold for
complex arguments too. A forward derivative is the limit of (f(z + h t) - f(z)) / h for real h and complex t, whether or not f is
holomorphic. A reverse derivative pairs without conjugation: Re Σ c·J(t) = Re Σ vjp(c)·t for all c and t.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import volta_fn as vf
from tests.laws.common import C128, F64, ROUNDING, Function, arrays, assert_close, draw, host, random_like, restricted, wide
from tests.narrow_devices import has
from tests.samples.sample import Sample
from volta_fn import dtypes
from volta_fn.core.devices.device import current_default_device

#: Step of the five-point stencil, whose error is about 5e-17 times the fifth derivative, plus 1e-12 of rounding.
STEP = 2e-4
FINITE_DIFFERENCE = 2e-9
#: Two ways to compute one number in float64.
PAIRING = 1e-11


def finite_difference(function: Function, point: Sequence[np.ndarray], direction: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Differentiate along a direction by the five-point central stencil."""

    def at(multiple: int) -> list[np.ndarray]:
        return host(function(*arrays([x + multiple * STEP * t for x, t in zip(point, direction, strict=True)])))

    slopes = []
    with np.errstate(invalid="ignore"):
        for before_2, before, after, after_2 in zip(at(-2), at(-1), at(1), at(2), strict=True):
            slope = (8.0 * (after - before) - (after_2 - before_2)) / (12.0 * STEP)
            slopes.append(np.where(before_2 == after_2, 0.0, slope))  # where a result stays infinite its slope is none
    return slopes


def forward_holds(function: Function, point: Sequence[np.ndarray], label: str, rtol: float = FINITE_DIFFERENCE) -> None:
    """Assert that `jvp` gives the finite difference and the function's value.

    The arguments are float64 or complex128.
    """
    direction = _directions(point)
    values, rates = vf.jvp(function, tuple(arrays(point)), tuple(arrays(direction)))
    for actual, expected in zip(host(values), host(function(*arrays(point))), strict=True):
        assert_close(actual, expected, PAIRING, f"{label}: the value that jvp returns")
    for actual, expected in zip(host(rates), finite_difference(function, point, direction), strict=True):
        scale = max(1.0, np.max(np.abs(expected), initial=0.0))
        assert_close(actual, expected.astype(actual.dtype), rtol, f"{label}: jvp against finite differences", atol=rtol * scale)


def reverse_holds(function: Function, point: Sequence[np.ndarray], label: str, rtol: float = PAIRING) -> None:
    """Assert that `vjp` and `jvp`, paired with random numbers, give the same number."""
    rng = np.random.default_rng(7)
    direction = _directions(point)
    _, rates = vf.jvp(function, tuple(arrays(point)), tuple(arrays(direction)))
    values, pull_back = vf.vjp(function, *arrays(point))
    cotangents = [random_like(rng, v) for v in host(values)]
    pulled = host(pull_back(arrays(cotangents)))
    for argument, gradient in zip(point, pulled, strict=True):
        same = (argument.shape, argument.dtype) == (gradient.shape, gradient.dtype)
        assert same, f"{label}: a cotangent {gradient.dtype}{gradient.shape} of an argument {argument.dtype}{argument.shape}"
    forward, forward_size = _pairing(cotangents, host(rates))
    backward, backward_size = _pairing(pulled, direction)
    allowed = rtol * (1.0 + forward_size + backward_size)
    assert abs(forward - backward) <= allowed, f"{label}: vjp against jvp: {backward} where {forward} was expected"


def _directions(point: Sequence[np.ndarray]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [random_like(rng, x) for x in point]


def _pairing(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> tuple[float, float]:
    products = [wide(a) * wide(b) for a, b in zip(left, right, strict=True)]
    return sum(float(np.sum(p).real) for p in products), sum(float(np.sum(np.abs(p))) for p in products)


def _points(sample: Sample) -> list[tuple[np.dtype, list[np.ndarray]]]:
    """Yield the sample's arguments in the dtypes that derivatives are checked in."""
    wanted = [F64, C128] if sample.complex_derivative else [F64]
    names = {dtypes.as_dtype(name) for name in sample.dtypes}
    return [(d, draw(sample, d)) for d in wanted if d in names]


def first_derivatives_hold(sample: Sample) -> None:
    """Assert both modes, by all arguments at once and by each alone."""
    rtol = sample.derivative_tolerance or FINITE_DIFFERENCE
    each = [(i,) for i in sample.wrt] if len(sample.wrt) > 1 else []
    for dtype, inputs in _points(sample):
        for positions in [sample.wrt, *each]:
            function = restricted(sample.function, arrays(inputs), positions)
            point = [inputs[i] for i in positions]
            label = f"{sample} in {dtype.name} by arguments {positions}"
            forward_holds(function, point, label, rtol)
            if sample.reverse:
                reverse_holds(function, point, label)


def second_derivatives_hold(sample: Sample) -> None:
    """Assert the same for the derivative: both modes over forward, and over reverse."""
    rtol = sample.derivative_tolerance or FINITE_DIFFERENCE
    for dtype, inputs in _points(sample):
        function = restricted(sample.function, arrays(inputs), sample.wrt)
        point = [inputs[i] for i in sample.wrt]
        label = f"{sample} in {dtype.name}"
        along = arrays(_directions(point))
        forward = _pushed(function, along)
        forward_holds(forward, point, f"{label}, forward over forward", rtol)
        if not sample.reverse:
            continue
        reverse_holds(forward, point, f"{label}, reverse over forward")
        backward = _pulled(function, arrays(_directions(host(function(*arrays(point))))))
        forward_holds(backward, point, f"{label}, forward over reverse", rtol)
        reverse_holds(backward, point, f"{label}, reverse over reverse")


def _pushed(function: Function, tangents: Sequence[Any]) -> Function:
    """Return the function's derivative along fixed tangents."""
    return lambda *xs: vf.jvp(function, xs, tuple(tangents))[1]


def _pulled(function: Function, cotangents: Sequence[Any]) -> Function:
    """Return the function's pullback of fixed cotangents."""
    return lambda *xs: list(vf.vjp(function, *xs)[1](list(cotangents)))


def derivatives_keep_dtypes(sample: Sample) -> None:
    """Assert that tangents and cotangents have their primals' dtype, float64's value.

    A device that has no float64 is compared with the CPU.
    """
    for name in sample.dtypes:
        dtype = dtypes.as_dtype(name)
        if dtype not in dtypes.INEXACT or (dtype in dtypes.COMPLEX and not sample.complex_derivative):
            continue
        inputs = draw(sample, dtype)
        precise = [v.astype(C128 if dtype in dtypes.COMPLEX else F64) if i in sample.swept else v for i, v in enumerate(inputs)]
        direction = _directions([inputs[i] for i in sample.wrt])
        rates = _jvp_at(sample, inputs, direction)
        with vf.default_device(current_default_device() if has("float64") else "cpu"):
            expected = _jvp_at(sample, precise, [t.astype(precise[i].dtype) for i, t in zip(sample.wrt, direction, strict=True)])
        rtol = 20 * sample.tolerance.get(name, ROUNDING[name])
        outputs = restricted(sample.function, arrays(inputs), sample.wrt)(*arrays([inputs[i] for i in sample.wrt]))
        for output, rate, wanted in zip(outputs, rates, expected, strict=True):
            assert rate.dtype == output.dtype, f"{sample} in {name}: a tangent of dtype {rate.dtype} for a result of {output.dtype}"
            scale = np.max(np.abs(wanted), initial=1.0)
            assert_close(rate, wanted.astype(rate.dtype), rtol, f"{sample}: jvp in {name}", atol=rtol * scale)
        if sample.reverse:
            reverse_holds(
                restricted(sample.function, arrays(inputs), sample.wrt), [inputs[i] for i in sample.wrt], f"{sample} in {name}", rtol
            )


def _jvp_at(sample: Sample, inputs: Sequence[np.ndarray], direction: Sequence[np.ndarray]) -> list[np.ndarray]:
    function = restricted(sample.function, arrays(inputs), sample.wrt)
    point = tuple(arrays([inputs[i] for i in sample.wrt]))
    return host(vf.jvp(function, point, tuple(arrays(direction)))[1])
