"""Positions in, and counts of, more elements than int32 holds: 64-bit indices, or an error before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax
from volta_fn.errors import IntegerOverflowError, ShapeError, VoltaError

N = 3_000_000_000
LARGE = vf.ShapeDtypeStruct((N,), "int8")
#: Functions of an array of N elements whose results are positions or counts, and which of its results are.
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "argmax": jnp.argmax,
    "argmin": lambda x: jnp.argmin(x, keepdims=True),
    "argmax of rows": lambda x: jnp.argmax(x.reshape(1, N), axis=1),
    "nanargmax": lambda x: jnp.nanargmax(x.astype("float16")),
    "argsort": jnp.argsort,
    "argsort descending": lambda x: jnp.argsort(x, descending=True),
    "lexsort": lambda x: jnp.lexsort((x, x)),
    "argpartition": lambda x: jnp.argpartition(x, 4),
    "smallest": lambda x: jnp.top_k(x, 3, mode="smallest")[1],
    "nonzero": lambda x: jnp.nonzero(x, size=3),
    "flatnonzero": lambda x: jnp.flatnonzero(x, size=3, fill_value=-1),
    "argwhere": lambda x: jnp.argwhere(x, size=3),
    "where": lambda x: jnp.where(x > 0, size=3),
    "count_nonzero": jnp.count_nonzero,
    "searchsorted": lambda x: jnp.searchsorted(x, x[:3]),
    "digitize": lambda x: jnp.digitize(x[:3], x),
    "unique": lambda x: jnp.unique(x, size=4, return_index=True, return_inverse=True, return_counts=True)[1:],
    "intersect1d": lambda x: jnp.intersect1d(x, x, size=3, return_indices=True)[1:],
    "bincount": lambda x: jnp.bincount(x, length=5),
    "indices": lambda x: jnp.indices((N,)),
    "diag_indices": lambda x: jnp.diag_indices(N),
    "permutation": lambda x: vf.random.permutation(vf.random.key(0), N),
    "ravel_multi_index": lambda x: jnp.ravel_multi_index((np.int32([4]), np.int32([1])), (N, 2), mode="clip"),
}
#: Functions that use such positions.
USES: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[jnp.argmax(x[:5])],
    "take": lambda x: jnp.take(x, jnp.argmax(x[:5])),
    "update": lambda x: x.at[jnp.argmax(x[:5])].set(1),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:5]),), (3,)),
    "median": jnp.median,
    "quantile": lambda x: jnp.quantile(x.astype("float32"), 0.5),
    "nanvar": lambda x: jnp.nanvar(x.astype("float32")),
    "mean": lambda x: jnp.mean(x, where=x > 0),
    "isin": lambda x: jnp.isin(x[:3], x),
    "setdiff1d": lambda x: jnp.setdiff1d(x, x, size=3),
    "interp": lambda x: jnp.interp(jnp.ones(1), x.astype("float32"), x.astype("float32")),
    "gradient": lambda x: jnp.gradient(x.astype("float32")),
    "choice": lambda x: vf.random.choice(vf.random.key(0), x, (3,)),
    "shuffled": lambda x: vf.random.permutation(vf.random.key(0), x, independent=True),
    "place": lambda x: jnp.place(x, x > 0, x[:3], inplace=False),
    "tri": lambda x: jnp.tri(1, N),
    "eye": lambda x: jnp.eye(1, N),
}


@pytest.fixture
def in_32_bits() -> Iterator[None]:
    """The dtypes of JAX's mode."""
    dtypes.set_width(32)
    yield
    dtypes.set_width(None)


def literals(jaxpr: Any) -> list[Any]:
    """Return the dtypes of all values of 32-bit integers that are as large as the array."""
    inner = [literals(p.jaxpr) for eqn in jaxpr.eqns for p in eqn.params.values() if hasattr(p, "jaxpr")]
    here = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "iota" and eqn.params["shape"][eqn.params["dimension"]] == N]
    return [eqn.params["dtype"] for eqn in here] + [dtype for result in inner for dtype in result]


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_have_64_bits(name: str) -> None:
    program = vf.make_jaxpr(POSITIONS[name])(LARGE)
    assert {aval.dtype.name for aval in program.out_avals} == {"int64"}
    assert all(dtype == np.int64 for dtype in literals(program.jaxpr))


@pytest.mark.parametrize("name", USES)
def test_what_uses_positions_computes_them_in_64_bits(name: str) -> None:
    assert all(dtype == np.int64 for dtype in literals(vf.make_jaxpr(USES[name])(LARGE).jaxpr))


@pytest.mark.parametrize("name", POSITIONS)
def test_32_bits_are_refused(name: str, in_32_bits: None) -> None:
    with pytest.raises(IntegerOverflowError, match=r"do not fit int32; set jax_enable_x64|the integer \d+ does not fit int32"):
        vf.make_jaxpr(POSITIONS[name])(LARGE)


@pytest.mark.parametrize("name", USES)
def test_uses_are_refused_or_need_no_positions_in_32_bits(name: str, in_32_bits: None) -> None:
    try:
        program = vf.make_jaxpr(USES[name])(LARGE)
    except VoltaError:
        return
    assert not literals(program.jaxpr)


@pytest.mark.parametrize(("size", "dtype"), [(300, "int8"), (257, "uint8"), (N, "int32"), (40_000, "int16"), (2 * N, "uint32")])
def test_an_index_dtype_holds_all_positions(size: int, dtype: str) -> None:
    for function in (lax.argmax, lax.argmin):
        with pytest.raises(ShapeError, match=f"positions along axis 0 of shape .*{size},.* do not fit {dtype}"):
            vf.make_jaxpr(lambda x, f=function: f(x, 0, dtype))(vf.ShapeDtypeStruct((size,), "float32"))
    greatest = vf.ShapeDtypeStruct((np.iinfo(dtype).max + 1,), "int8")
    assert vf.make_jaxpr(lambda x: lax.argmax(x, 0, dtype))(greatest).out_avals[0].dtype == dtype


def test_counting_numbers_have_64_bits() -> None:
    for size, dtype in ((N, "int32"), (2 * N, "uint32")):
        with pytest.raises(ShapeError, match=f"do not fit {dtype}; use int64"):
            vf.make_jaxpr(lambda n=size, d=dtype: lax.iota(d, n))()
    assert vf.make_jaxpr(lambda: jnp.arange(N))().out_avals[0].dtype == np.int64


def test_narrow_indices_are_joined_in_a_dtype_that_holds_the_result() -> None:
    result = jnp.ravel_multi_index((np.int8([99]), np.int8([9])), (100, 10))
    assert (result.dtype, result.tolist()) == (np.int32, [999])
    rows, columns = jnp.unravel_index(jnp.asarray([-1], "int32"), (N, 1))
    assert rows.dtype == np.int32
    del columns


def available_memory() -> int:
    """Bytes that processes may use without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.skipif(available_memory() < 8 << 30, reason="needs 5 GB")
@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
def test_elements_beyond_2_31_are_found(jitted: bool, on_cpu: None) -> None:
    host = np.zeros(2**31 + 9, np.int8)
    host[[1, -3, -1]] = 3, 2, 5
    x, last = jnp.asarray(host), 2**31 + 8

    def check(function: Callable[..., Any], wanted: Any, *arguments: Any) -> None:
        actual = (vf.jit(function) if jitted else function)(x, *arguments)
        np.testing.assert_array_equal(np.asarray(actual), wanted)

    check(jnp.argmax, last)
    check(lambda a: jnp.argmax(a == 2), last - 2)
    if jitted and vf.devices("cpu")[0].backend.native:  # else the truth values become 64-bit numbers first, of 16 GiB
        check(jnp.count_nonzero, 3)
        check(lambda a: jnp.count_nonzero(a > -1), host.size)
    check(lambda a, i: a[i], [5, 3, 2], np.array([last, 1, -3]))
    check(lambda a, i: a[i], [5, 2], np.array([-1, -3], np.int32))
    check(lambda a, i: lax.dynamic_slice(a, (i,), (3,)), [2, 0, 5], np.int64(last - 2))
    if not jitted:
        np.testing.assert_array_equal(jnp.flatnonzero(x), [1, last - 2, last])
    check(lambda a: jnp.roll(a, 2)[jnp.array([1, 3, -1])], [5, 3, 2])
    check(lambda a: jnp.concatenate([a[-4:], a])[jnp.array([3, 5, -1])], [5, 3, 5])
    check(lambda a, i: a.at[i].add(1)[i], [1, 4], np.array([last - 1, 1]))
