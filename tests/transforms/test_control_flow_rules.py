"""The programs that scan's rules derive: residuals, invariants, the carry."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr, Equation

LENGTH, WIDTH = 11, 5
W = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)
XS = np.random.default_rng(1).normal(size=(LENGTH, WIDTH)).astype(np.float32)
H = np.zeros(WIDTH, np.float32)


def scans(f: Any, *args: Any) -> list[Equation]:
    program: ClosedJaxpr = vf.jit(f).lower(*args).jaxpr
    return [e for e in program.eqns if e.primitive.name == "scan"]


def times(matrix: Any, vector: Any) -> Any:
    return lax.reduce_sum(matrix * vector, (1,))


def cell(w: Any, h: Any, x: Any) -> Any:
    return lax.tanh(times(lax.sin(w), h) + x)


def final(step: Any) -> Any:
    return lambda w: lax.reduce_sum(lax.scan(lambda h, x: (step(w, h, x), None), H, XS)[0], (0,))


def stacked_shapes(eqn: Equation) -> list[tuple[int, ...]]:
    return [v.aval.shape for v in eqn.outvars[eqn.params["num_carry"] :]]


def test_what_is_the_same_in_every_step_is_not_stacked() -> None:
    """Check the residuals: sin(w) and cos(w) once, and two vectors per iteration.

    The backward loop sums w's cotangent in the carry.
    """
    for step in (cell, vf.jit(cell)):
        forward, backward = scans(vf.grad(final(step)), W)
        assert all(shape == (LENGTH, WIDTH) for shape in stacked_shapes(forward))
        assert len(stacked_shapes(forward)) == 2
        assert backward.params["reverse"] and backward.params["length"] == LENGTH
        assert not stacked_shapes(backward)


def test_rows_are_not_copied() -> None:
    """Check that a residual that is a scanned row is read from the scanned array."""
    forward, backward = scans(vf.grad(lambda w: lax.scan(lambda c, x: (c + lax.reduce_sum(w * x, (0,)), None), np.float32(0), XS)[0]), H)
    assert not stacked_shapes(forward)
    assert any(v.aval.shape == (LENGTH, WIDTH) for v in backward.invars)


def test_only_what_changes_with_the_input_is_differentiated() -> None:
    """Check that carried values independent of the input have no tangents."""

    def f(w: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            count, fixed, h = carry
            return (count + 1, fixed * 0.9, h * w * fixed + count), None

        return lax.scan(step, (0, np.float32(1), np.float32(2)), None, length=4)[0][2]

    (pushed,) = scans(lambda w: vf.jvp(f, (w,), (w,)), np.float32(1))
    assert pushed.params["num_carry"] == 4
    forward, backward = scans(vf.grad(f), np.float32(1))
    assert (forward.params["num_carry"], backward.params["num_carry"]) == (3, 2)


def test_a_linear_scan_is_scanned_back_once() -> None:
    """Check that a running sum, which is linear, has no residuals."""
    slope = vf.grad(lambda xs: lax.reduce_sum(lax.scan(lambda c, x: (c + x, c + x), H, xs)[1] * XS, (0, 1)))
    np.testing.assert_allclose(slope(XS), XS[::-1].cumsum(0)[::-1], rtol=1e-5)
    assert sum(e.params["reverse"] for e in scans(slope, XS)) == 1


def test_unmapped_values_stay_unmapped() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: ((c[0] + 1, c[1] * row, c[2] + c[1] * x), c[0]), (0, H, x), XS)

    xs = np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    (eqn,) = scans(vf.vmap(f, out_axes=((None, None, 0), None)), xs)
    assert [v.aval.shape for v in eqn.outvars] == [(), (WIDTH,), (3, WIDTH), (LENGTH,)]


def test_derived_programs_are_kept() -> None:
    """Check that differentiating and mapping a function again derives nothing new."""

    def step(c: Any, x: Any) -> Any:
        return lax.sin(c) * x, c

    def run(h: Any) -> Any:
        return lax.reduce_sum(lax.scan(step, h, XS)[1], (0, 1))

    first, second = [scans(vf.vmap(vf.grad(run)), np.stack([H, H])) for _ in range(2)]
    assert [e.params["jaxpr"] for e in first] == [e.params["jaxpr"] for e in second]
