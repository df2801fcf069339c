"""What each call is checked for: values, tracing, batching, derivatives, other dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

import volta_fn as vf
from tests.catalogue.call import Call
from tests.catalogue.names import resolve
from volta_fn import dtypes, tree
from volta_fn.errors import VoltaError
from volta_fn.test_util import check_grads


def traced(function: Callable[..., Any], call: Call) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """Return the call as a function of its arrays alone, and these."""
    structure = tree.structure(call.args)
    leaves = tree.leaves(call.args)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]

    def run(*operands: Any) -> Any:
        remaining = iter(operands)
        args = [next(remaining) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        return function(*tree.unflatten(structure, args), **call.kwargs)

    return run, arrays


#: Keywords that JAX's functions have, and NumPy's of the same name lack.
_JAX_ONLY = {"size", "fill_value", "length", "inplace"}


def oracle(path: str, call: Call) -> Callable[..., Any] | None:
    """Return what a call's values are compared with: NumPy's or SciPy's function of the same name, which compile nothing, or JAX's."""
    if call.theirs is None or callable(call.theirs):
        return call.theirs
    library, _, rest = path.partition(".")
    if call.theirs == "jax" or library not in ("numpy", "scipy") or not _JAX_ONLY.isdisjoint(call.kwargs):
        return call.through(resolve("jax", path))
    return call.through(resolve(library, rest))


def ours(path: str, call: Call) -> Callable[..., Any]:
    """Return the function of this package that is called."""
    return call.through(resolve("volta_fn", path))


def results(value: Any) -> list[np.ndarray]:
    """Return a result's arrays."""
    return [np.asarray(leaf) for leaf in tree.leaves(value)]


def assert_same(actual: Any, expected: Sequence[np.ndarray], tolerance: float) -> None:
    """Compare results, floats relative to the largest of them."""
    arrays = results(actual)
    assert len(arrays) == len(expected)
    for got, want in zip(arrays, expected, strict=True):
        assert got.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
            continue
        finite = np.abs(want[np.isfinite(want)].astype(np.complex128))
        scale = float(finite.max()) if finite.size else 1.0
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance * scale)


def check_values(path: str, call: Call) -> None:
    """Compare an eager and a jitted call with the oracle."""
    function, theirs = ours(path, call), oracle(path, call)
    eager = function(*call.args, **call.kwargs)
    if theirs is not None:
        with np.errstate(all="ignore"):
            assert_same(eager, results(theirs(*call.args, **call.kwargs)), call.tolerance)
    if call.jit:
        run, arrays = traced(function, call)
        assert_same(vf.jit(run)(*arrays), results(eager), call.tolerance)


def check_repeated(path: str, call: Call) -> None:
    """Compare eager calls of the same arrays with the first, which later ones may become programs of."""
    run, arrays = traced(ours(path, call), call)
    operands = [vf.numpy.asarray(a) for a in arrays]
    first = run(*operands)
    for _ in range(3):
        again = run(*operands)
        assert tree.structure(again) == tree.structure(first)
        assert_same(again, results(first), 0.0 if path.startswith("random.") else call.tolerance)


def check_on_another_device(path: str, call: Call, device: Any) -> None:
    """Compare a call with arrays on a device that is not the default with that on the default."""
    run, arrays = traced(ours(path, call), call)
    expected = results(run(*map(vf.numpy.asarray, arrays)))
    assert_same(run(*[vf.device_put(a, device) for a in arrays]), expected, 0.0 if path.startswith("random.") else call.tolerance)


def check_batch(path: str, call: Call) -> None:
    """Compare a call that is mapped over examples with a loop over them."""
    run, arrays = traced(ours(path, call), call)
    others = [a if call.alike else a.reshape(-1)[::-1].reshape(a.shape) for a in arrays]
    both = [np.stack(pair) for pair in zip(arrays, others, strict=True)]
    one_by_one = [results(run(*example)) for example in (arrays, others)]
    expected = [np.stack(pair) for pair in zip(*one_by_one, strict=True)]
    assert_same(vf.vmap(run)(*both), expected, 10 * call.tolerance)


def check_derivatives(path: str, call: Call) -> None:
    """Compare derivatives in float64 with differences."""
    run, arrays = traced(ours(path, call), call)
    wide = {"f": np.float64, "c": np.complex128}
    check_grads(run, [a.astype(wide.get(a.dtype.kind, a.dtype)) for a in arrays], 1)


def check_other_dtypes(path: str, call: Call) -> None:
    """Call with arrays of other dtypes, which gives results or an error of this package."""
    function = ours(path, call)
    for dtype in ("bfloat16", "uint8", "complex64"):
        leaves = [convert(leaf, dtype) for leaf in tree.leaves(call.args)]
        with suppress(VoltaError):
            function(*tree.unflatten(tree.structure(call.args), leaves), **call.kwargs)


def check_storage_dtypes(path: str, call: Call) -> None:
    """Call with arrays of dtypes of storage: an error of this package, or the results that converted numbers give."""
    function, structure = ours(path, call), tree.structure(call.args)
    for dtype, wide in (("int4", "int8"), ("uint4", "uint8"), ("float8_e4m3fn", "float32"), ("float4_e2m1fn", "float32")):
        numbers = [convert(leaf, dtype) for leaf in tree.leaves(call.args)]
        args = [
            [vf.numpy.asarray(x, as_dtype) if isinstance(x, np.ndarray) and x.dtype == dtypes.as_dtype(dtype) else x for x in numbers]
            for as_dtype in (dtype, wide)
        ]
        with suppress(VoltaError):
            actual, expected = (results(function(*tree.unflatten(structure, leaves), **call.kwargs)) for leaves in args)
            for got, want in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(got.astype(want.dtype), want)


def dtypes_of(library: str, path: str, call: Call, dtype: str) -> list[np.dtype]:
    """Return the dtypes of the results of a library's function, for arrays of another dtype."""
    jax = resolve(library, "")
    run, arrays = traced(call.through(resolve(library, path)), Call(tree.map(lambda leaf: convert(leaf, dtype), call.args), call.kwargs))
    return [result.dtype for result in tree.leaves(jax.eval_shape(run, *arrays) if call.jit else run(*arrays))]


def convert(leaf: Any, dtype: str) -> Any:
    """Return an array of float32 in another dtype, and all else as it is."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype != np.float32:
        return leaf
    with np.errstate(invalid="ignore"):
        return leaf.astype(dtypes.as_dtype(dtype))
