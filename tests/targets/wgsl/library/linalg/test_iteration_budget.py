"""Loops of many turns: drivers in software end them before their end, so such loops are kept short, or the host does what they would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.targets.reference import reference
from tests.targets.wgsl.library.checking import check, least_capabilities, results, routine_of
from volta_fn import lax
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl import writer
from volta_fn.targets.wgsl.library import ROUTINES
from volta_fn.targets.wgsl.library.linalg import rotations
from volta_fn.targets.wgsl.library.linalg.rotations import SWEEPS

GPU = vf.devices("gpu")[0]
RNG = np.random.default_rng(0)

#: What Mesa's drivers allow.
TURNS = 65535


def near_one(*shape: int) -> np.ndarray:
    return RNG.uniform(0.9999, 1.0001, shape).astype(np.float32)


@pytest.mark.parametrize(("shape", "reverse"), [((70_001,), False), ((33_000, 2), True)])
def test_products_of_long_lines(shape: tuple[int, ...], reverse: bool) -> None:
    check("cumprod", [near_one(*shape)], {"axis": 0, "reverse": reverse}, exact=False)


@pytest.mark.parametrize("reduced", [lax.add, lax.max])
def test_windows_of_very_many_elements(reduced: Callable[..., Any]) -> None:
    x = RNG.integers(-9, 9, 70_003).astype(np.float32)
    start = 0.0 if reduced is lax.add else -np.inf
    with vf.default_device(GPU):
        actual = lax.reduce_window(x, start, reduced, (70_000,), (1,), "VALID")
    wanted = [(np.sum if reduced is lax.add else np.max)(x[k : k + 70_000]) for k in range(4)]
    np.testing.assert_array_equal(np.asarray(actual), wanted)


#: Parameters of factorisations of square matrices, and which of their results are determined by the matrix.
FACTORISATIONS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "lu": ({}, (0, 1, 2)),
    "qr": ({"full_matrices": True, "compute_q": True}, (0, 1)),
    "eigh": ({"lower": True, "sort_eigenvalues": True}, (1,)),
    "svd": ({"full_matrices": True, "compute_uv": True}, (0,)),
}


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_the_largest_matrix_that_is_factored_in_so_many_turns(name: str) -> None:
    params, determined = FACTORISATIONS[name]
    limited = least_capabilities()._replace(iterations=TURNS)
    sizes = range(8, 128, 4)  # larger ones take a driver in software long
    n = max(n for n in sizes if ROUTINES[name]((ShapedArray((n, n), np.dtype(np.float32)),), params, limited) is not None)
    assert n >= 32
    x = RNG.normal(size=(n, n)).astype(np.float32)
    x = x @ x.T / n + np.eye(n, dtype=np.float32)
    expected = reference(name, [x], params)
    actual = results(name, [x], params, limited, expected)
    for number in determined:
        scale = np.abs(expected[number]).max()
        # Sums of up to n products in another order, in float32; seen: a third of what is allowed.
        np.testing.assert_allclose(actual[number], expected[number], rtol=2e-5, atol=2e-5 * scale)


def test_larger_matrices_are_factored_all_the_same() -> None:
    """By a dispatch for each sweep: one for all would take more turns than drivers in software allow."""
    x = RNG.normal(size=(150, 150)).astype(np.float32)
    before = GPU.backend.gpu.host_steps["svd"]
    with vf.default_device(GPU):
        actual = np.asarray(vf.numpy.linalg.svd(x, compute_uv=False))
    assert GPU.backend.gpu.host_steps["svd"] == before  # NumPy had no part in it
    expected = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    # Of 1500 rotations of each element, most by small angles, few may be seen. Seen: a tenth of it, and 1.4e-5 by products with cosines.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4e-6 * expected[0])


@pytest.mark.parametrize("shape", [(70, 70), (90, 67)])
def test_vectors_of_matrices_that_many_invocations_share(shape: tuple[int, int]) -> None:
    """As many as the device has, of whose lanes the last rows are not those of all."""
    x = RNG.normal(size=shape).astype(np.float32)
    with vf.default_device(GPU):
        if shape[0] == shape[1]:
            values, v = map(np.asarray, vf.numpy.linalg.eigh(x + x.T))
            product, bases, x = (v * values) @ v.T, [v], x + x.T
        else:
            u, values, vt = map(np.asarray, vf.numpy.linalg.svd(x, full_matrices=False))
            product, bases = (u * values) @ vt, [u, vt.T]
    # Sums of up to 90 products in float32, and some 600 rotations of each element. Seen: 4e-7 of the largest value, and 7e-7.
    np.testing.assert_allclose(product, x, rtol=0, atol=4e-6 * np.abs(values).max())
    for basis in bases:
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), rtol=0, atol=4e-6)


@pytest.mark.parametrize(("name", "n"), [("eigh", 34), ("svd", 9)])
def test_sweeps_by_themselves_give_what_they_give_together(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matrices that take several sweeps, of one that takes none, and of one that is not finite.

    Together, columns of svd are in workgroup memory, where sums of 9 products have another order.
    """
    x = RNG.normal(size=(4, n, n)).astype(np.float32)
    x[1], x[2, 3, 4] = 0, np.nan
    params = FACTORISATIONS[name][0]
    together = results(name, [x], params, least_capabilities(), expected := reference(name, [x], params))
    monkeypatch.setattr(rotations, "_BUDGET_MANY", 0)
    assert len(routine_of(name, [x], params, least_capabilities()).dispatches) == SWEEPS + 2
    apart = results(name, [x], params, least_capabilities(), expected)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if name == "eigh" else 4e-6)


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_very_many_matrices_are_long_work(name: str) -> None:
    """So that the runtime shares them out to several dispatches, each of which is over soon."""
    many, few = (
        ROUTINES[name]((ShapedArray((n, 200, 200), np.dtype(np.float32)),), FACTORISATIONS[name][0], TargetCapabilities())
        for n in (20_000, 3)
    )
    assert many and few
    assert all(d.work > writer.MOST_WORK for d in many.dispatches) and all(d.work <= writer.MOST_WORK for d in few.dispatches)
