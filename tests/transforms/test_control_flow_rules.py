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


def test_what_a_mapped_loop_does_not_change_stays_unmapped() -> None:
    def f(w: Any, x: Any, count: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < count + 0 * c[3][0], lambda c: (c[0] + 1, times(c[2], c[1]), c[2], c[3]), (0, x, w, H))[1:3]

    xs, counts = XS[:4], np.array([0, 3, 1, 2])
    mapped = vf.vmap(f, (None, 0, 0), (0, None))
    expected = np.stack([np.linalg.matrix_power(W, n) @ x for x, n in zip(xs, counts, strict=True)])
    for g in (mapped, vf.jit(mapped)):
        values, w = g(W, xs, counts)
        np.testing.assert_allclose(values, expected, rtol=1e-4)
        np.testing.assert_array_equal(w, W)
    one_by_one = lambda w: np.stack(
        [vf.jvp(lambda w, x=x, n=n: f(w, x, n)[0], (w,), (XS[:WIDTH],))[1] for x, n in zip(xs, counts, strict=True)]
    )
    np.testing.assert_allclose(vf.jvp(lambda w: mapped(w, xs, counts)[0], (W,), (XS[:WIDTH],))[1], one_by_one(W), rtol=1e-4)
    program = vf.make_jaxpr(mapped)(W, xs, counts)
    (eqn,) = [e for e in program.eqns if e.primitive.name == "while"]
    assert (WIDTH, WIDTH) in [v.aval.shape for v in eqn.invars]
    assert (4, WIDTH, WIDTH) not in [v.aval.shape for v in eqn.outvars]
    # A loop that changes nothing, and whose condition alone is mapped.
    assert vf.vmap(lambda n, c: lax.while_loop(lambda c: c < n, lambda c: c, c), (0, None), None)(-np.arange(3.0), 5.0) == 5.0


def test_what_mapped_branches_forward_stays_unmapped() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        branches = [lambda x, y, z: (2 * x, y, x, y, 1.0), lambda x, y, z: (3 * x, y, x, z, 1.0), lambda x, y, z: (x, y, x, y, 1.0)]
        return lax.switch(x, branches, x, y, z)

    mapped = vf.vmap(f, (0, None, None), (0, None, 0, 0, 0))
    for g in (mapped, vf.jit(mapped)):
        products, same, xs, either, _ = g(np.arange(3), H + 1, H)
        assert products.tolist() == [0, 3, 2]
        assert xs.tolist() == [0, 1, 2]
        np.testing.assert_array_equal(same, H + 1)
        np.testing.assert_array_equal(either, np.stack([H + 1, H, H + 1]))
    by_y = vf.grad(lambda y: sum(o.sum() for o in mapped(np.arange(3), y, H)[1:4:2]))(H + 1)
    np.testing.assert_array_equal(by_y, np.full(WIDTH, 3.0))


def test_derived_programs_are_kept() -> None:
    """Check that differentiating and mapping a function again derives nothing new."""

    def step(c: Any, x: Any) -> Any:
        return lax.sin(c) * x, c

    def run(h: Any) -> Any:
        return lax.reduce_sum(lax.scan(step, h, XS)[1], (0, 1))

    first, second = [scans(vf.vmap(vf.grad(run)), np.stack([H, H])) for _ in range(2)]
    assert [e.params["jaxpr"] for e in first] == [e.params["jaxpr"] for e in second]
