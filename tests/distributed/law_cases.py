"""The laws of collectives between processes, with `vmap` as the oracle; every process runs this file.

    python -m volta_fn.launch -n 4 tests/distributed/law_cases.py [--every N] [--dtype float64]

Each case is a function of one position's array. `vmap` computes it for all positions on one process; `shard_map` does it on all.
`VOLTA_NATIVE=0` and `VOLTA_DEVICE=gpu` choose other targets.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import P, lax, tree

Case = Callable[[Any], Any]


def collectives(n: int) -> dict[str, tuple[Case, tuple[int, ...]]]:
    """Return every collective as a function of one array, with the array's shape; the first dimension divides by n.

    The large one is scaled: with sums of 90,000 larger terms, the sine of a derivative would lose most digits of a float32.
    """
    ring = [(i, (i + 1) % n) for i in range(n)]
    half = [list(range(n // 2)), list(range(n // 2, n))] if n > 1 else [[0]]
    apart = [list(range(0, n, 2)), list(range(1, n, 2))] if n > 1 else [[0]]
    part = len(half[0])
    result: dict[str, tuple[Case, tuple[int, ...]]] = {
        "psum": (lambda x: lax.psum(vnp.sin(x), "i"), (3, 2)),
        "psum of a tree": (lambda x: lax.psum({"a": x, "b": x.sum(), "c": 2}, "i"), (4,)),
        "psum of a large array": (lambda x: lax.psum(vnp.outer(x / 16, x), "i"), (300,)),
        "pmean": (lambda x: lax.pmean(x * x, "i"), (5,)),
        "all_gather": (lambda x: lax.all_gather(x, "i") * x[0], (2, 3)),
        "all_gather along another axis": (lambda x: lax.all_gather(x, "i", axis=1), (2, 3)),
        "all_gather tiled": (lambda x: lax.all_gather(x, "i", tiled=True), (2, 3)),
        "psum_scatter": (lambda x: lax.psum_scatter(x * x, "i"), (n, 3)),
        "psum_scatter tiled": (lambda x: lax.psum_scatter(x.T, "i", scatter_dimension=1, tiled=True), (2 * n, 3)),
        "ppermute": (lambda x: lax.ppermute(x * x, "i", ring), (3,)),
        "ppermute to some": (lambda x: lax.ppermute(x, "i", ring[:1]), (3,)),
        "pshuffle": (lambda x: lax.pshuffle(x, "i", list(reversed(range(n)))), (3,)),
        "all_to_all": (lambda x: lax.all_to_all(x, "i", 0, 1), (n, 3)),
        "all_to_all tiled": (lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True), (2 * n, 3)),
        "axis_index": (lambda x: x * lax.axis_index("i").astype(x.dtype), (3,)),
        "psum in groups": (lambda x: lax.psum(x * x, "i", axis_index_groups=half), (3,)),
        "pmean in groups apart": (lambda x: lax.pmean(x, "i", axis_index_groups=apart), (3,)),
        "all_gather in groups": (lambda x: lax.all_gather(x, "i", axis_index_groups=apart), (3,)),
        "psum_scatter in groups": (lambda x: lax.psum_scatter(x, "i", axis_index_groups=half, tiled=True), (2 * part,)),
        "all_to_all in groups": (lambda x: lax.all_to_all(x, "i", 0, 0, axis_index_groups=apart, tiled=True), (2 * part,)),
    }
    return result


def contexts() -> dict[str, Callable[[Case], Case]]:
    """Return ways to use a function: plain, derived, inside control flow."""
    total = lambda value: sum([vnp.sum(vnp.sin(leaf)) for leaf in tree.leaves(value)])
    average = lambda value: total(value) / sum([leaf.size for leaf in tree.leaves(value)])  # so that iterations stay small
    floats = lambda f: lambda x: [leaf for leaf in tree.leaves(f(x)) if not isinstance(leaf, int)]
    return {
        "value": lambda f: f,
        "jvp": lambda f: lambda x: vf.jvp(floats(f), (x,), (vnp.cos(x),)),
        "grad": lambda f: vf.grad(lambda x: total(floats(f)(x))),
        "vjp of jit": lambda f: lambda x: vf.vjp(vf.jit(floats(f)), x)[1](vf.jit(floats(f))(x))[0],
        "second derivative": lambda f: vf.grad(lambda x: total(vf.grad(lambda y: total(floats(f)(y)))(x))),
        "vmap": lambda f: lambda x: vf.vmap(floats(f))(vnp.stack([x, 2 * x])),
        "scan": lambda f: lambda x: lax.scan(lambda c, k: (c + 1, floats(f)(x * c * k)), 1.0, vnp.arange(1.0, 4.0))[1],
        "grad of scan": lambda f: vf.grad(lambda x: lax.scan(lambda c, k: (c + total(floats(f)(x * k)), c), 0.0, vnp.arange(1.0, 3.0))[0]),
        "cond": lambda f: lambda x: lax.cond(lax.psum(vnp.sum(x), "i") > 0, floats(f), lambda y: floats(f)(-2 * y), x),
        "while": lambda f: (
            lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5 + average(floats(f)(c[1]))), (0, x))
        ),
    }


EXTREMES: dict[str, Case] = {
    "pmax": lambda x: lax.pmax(x, "i"),
    "pmin of a tree": lambda x: lax.pmin([x, x[0]], "i"),
    "pmax of NaN": lambda x: lax.pmax(vnp.where(x > 1, vnp.nan, x), "i"),
    "while until all agree": lambda x: lax.while_loop(lambda s: lax.pmax(vnp.max(vnp.abs(s)), "i") > 0.1, lambda s: s * 0.7, x),
}
DTYPES = ("float16", "bfloat16", "float64", "int8", "int32", "uint32", "int64", "complex64", "bool")


def on_processes(function: Case, mesh: Any) -> Callable[[Any], Any]:
    """Return the function of all positions' arrays, of which this process gives and gets its own."""
    one = lambda x: tree.map(lambda out: vnp.asarray(out)[None], function(x[0]))
    return vf.jit(vf.shard_map(one, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False))


def check(name: str, function: Case, values: np.ndarray, mesh: Any, tolerance: float = 2e-5) -> None:
    """Compare a function on processes with that under `vmap`."""
    rank = vf.process_index()
    wanted = vf.vmap(function, axis_name="i")(values)
    actual = on_processes(function, mesh)(values[rank : rank + 1])
    assert tree.structure(wanted) == tree.structure(actual), name
    for want, have in zip(tree.leaves(wanted), tree.leaves(actual), strict=True):
        want, have = np.asarray(want)[rank], np.asarray(have)[0]
        assert (want.dtype, want.shape) == (have.dtype, have.shape), f"{name}: {want.dtype}{want.shape}, not {have.dtype}{have.shape}"
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        # Processes add in another order, so what cancels has errors like those of the largest numbers.
        largest = np.max(np.abs(want.astype(wide)), initial=1.0, where=np.isfinite(want.astype(wide)))
        np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance * largest, err_msg=name)


def check_compression(n: int) -> None:
    """Average gradients as bfloat16: small and large arrays, of lengths that n does not divide, in one call and in two."""
    rank, draw = vf.process_index(), np.random.default_rng(2)
    shapes = {"w": (301, 300), "b": (7,), "empty": (0, 3), "s": ()}
    every = {name: draw.normal(size=(n, *shape)).astype(np.float32) for name, shape in shapes.items()}
    short = lambda x: np.asarray(x, ml_dtypes.bfloat16).astype(np.float32)
    mean = lambda g: vf.optim.average_gradients(g, "i", compression="bfloat16")
    apart = lambda g: {"w": mean({"w": g["w"]})["w"], **mean({name: x for name, x in g.items() if name != "w"})}
    for function in (mean, apart):
        on_all = vf.jit(vf.shard_map(function, mesh=vf.make_mesh({"i": n}), in_specs=P("i"), out_specs=P()))
        actual = on_all({name: x[rank : rank + 1] for name, x in every.items()})
        for name, x in every.items():
            have = np.asarray(actual[name])
            assert have.dtype == np.float32, name
            # Each process's part is rounded once, and their float32 sum once more: at most a unit in the last place between orders.
            wanted = short(short(x).sum(0, keepdims=True)) / np.float32(n)
            np.testing.assert_allclose(have, wanted, rtol=2**-7, atol=1e-6, err_msg=f"bfloat16 mean of {name}")
            exact = x.mean(0, keepdims=True)
            np.testing.assert_allclose(have, exact, rtol=2**-7, atol=2**-7 * np.abs(x).max(initial=0), err_msg=f"mean of {name}")


def check_overlap(n: int, compression: str | None) -> None:
    """Average gradients of two layers: the sum of one is on its way while those of the other are computed."""
    rank, draw = vf.process_index(), np.random.default_rng(3)
    params = [draw.normal(size=(300, 300)).astype(np.float32) / 10 for _ in range(2)]
    every = draw.normal(size=(n, 64, 300)).astype(np.float32)
    gradients = vf.grad(lambda p, x: vnp.mean(vnp.tanh(vnp.tanh(x @ p[0]) @ p[1])))
    step = lambda p, x: vf.optim.average_gradients(gradients(p, x[0]), "i", compression=compression)
    on_all = vf.jit(vf.shard_map(step, mesh=vf.make_mesh({"i": n}), in_specs=(P(), P("i")), out_specs=P()))
    before = vf.distributed.statistics().sums
    actual = on_all(params, every[rank : rank + 1])
    if _driver() != "nvidia":  # whose GPUs sum by kernels
        assert vf.distributed.statistics().sums == before + (n > 1), "no sum was started before it was awaited"
    for have, wanted in zip(actual, vf.vmap(gradients, (None, 0))(params, every), strict=True):
        largest = float(np.abs(wanted).max())
        tolerance = 1e-5 if compression is None else 2**-7
        np.testing.assert_allclose(have, np.mean(wanted, 0), rtol=tolerance, atol=tolerance * largest, err_msg=f"overlap {compression}")


def check_pmap(n: int) -> None:
    """Map over processes by the old form: an axis of size 1 in each, another axis, an argument that all share, and a static one."""
    rank, values = vf.process_index(), np.random.default_rng(3).normal(size=(n, 4)).astype(np.float32)
    function = lambda x, y, scale: (x - lax.pmean(x, "i"), lax.psum(vnp.sum(x * y), "i") * scale, lax.axis_index("i"))
    shared = np.arange(4, dtype=np.float32)
    wanted = vf.vmap(lambda x: function(x, shared, 2.0), axis_name="i")(values)
    for axis in (0, 1):
        local_values = np.expand_dims(values[rank], axis)
        mapped = vf.pmap(function, axis_name="i", in_axes=(axis, None, None), static_broadcasted_argnums=2)
        for want, have in zip(wanted, mapped(local_values, shared, 2.0), strict=True):
            np.testing.assert_allclose(
                np.asarray(have), np.asarray(want)[rank : rank + 1], rtol=2e-5, atol=1e-5, err_msg=f"pmap along {axis}"
            )
    if n > 1:
        try:
            vf.pmap(lambda x: x)(np.ones((2, 3), np.float32))
        except vf.errors.DeviceError as error:
            assert "1" in str(error), error
        else:
            raise AssertionError("pmap took two rows for the one device of a process")


def _driver() -> str:
    """Return the driver of a GPU, or nothing for a CPU."""
    driver: str = vf.local_devices()[0].backend.hardware().driver
    return driver


def typed(dtype: str, n: int) -> np.ndarray:
    """Return numbers of a dtype for every position."""
    numbers = np.random.default_rng(1).integers(-3, 4, (n, 2 * n))
    return (numbers > 0) if dtype == "bool" else np.asarray(vnp.asarray(numbers).astype(dtype))


def cases(n: int, mesh: Any, dtype: str) -> list[Callable[[], None]]:
    """Return all checks; the laws are those of arrays of a dtype."""
    tolerance = {"float32": 2e-5, "float64": 1e-11}[dtype]
    draw = np.random.default_rng(0)
    results: list[Callable[[], None]] = []
    for (name, (function, shape)), (context, wrap) in itertools.product(collectives(n).items(), contexts().items()):
        values = draw.normal(size=(n, *shape)).astype(dtype)
        results.append(functools.partial(check, f"{context} of {name}", wrap(function), values, mesh, tolerance))
    for name, function in EXTREMES.items():
        values = draw.normal(size=(n, 5)).astype(np.float32)
        results.append(functools.partial(check, name, function, values, mesh))
    if _driver() != "wgpu":  # which has not all of these dtypes
        moves = lambda x: (lax.psum(x, "i"), lax.all_gather(x, "i"), lax.psum_scatter(x.astype(lax.psum(x, "i").dtype), "i", tiled=True))
        ends = lambda x: (lax.pmax(x, "i"), lax.pmin(x, "i"), lax.ppermute(x, "i", [(0, n - 1)]))
        for kind in DTYPES:
            results.append(functools.partial(check, f"sums of {kind}", moves, typed(kind, n), mesh, 1e-2))
            if kind != "complex64":
                results.append(functools.partial(check, f"extremes of {kind}", ends, typed(kind, n), mesh))
        results.append(lambda: check_compression(n))
        results.append(lambda: check_pmap(n))
    for compression in (None, "bfloat16"):
        results.append(functools.partial(check_overlap, n, compression))
    empty = lambda x: (lax.psum(x, "i"), lax.all_gather(x, "i"), lax.pmax(x, "i"), lax.ppermute(x, "i", [(0, 0)]))
    results.append(lambda: check("no elements", empty, np.zeros((n, 0, 2), np.float32), mesh))
    return results


def main() -> int:
    """Check the laws; the exit status is 1 if this process finds one broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="check one case in so many")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    options = parser.parse_args()
    vf.distributed.initialize()
    n = vf.process_count()
    checks = cases(n, vf.make_mesh({"i": n}), options.dtype)[:: options.every]
    broken = sum([not holds(one) for one in checks])
    if vf.process_index() == 0 and not broken:
        print(f"{len(checks)} laws hold at {n} processes", flush=True)
    return 1 if broken else 0


def holds(law: Callable[[], None]) -> bool:
    """Check a law; print what this process finds wrong, and go on, as the others do."""
    try:
        law()
    except AssertionError as error:
        print(f"BROKEN: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
