"""ONNX's own tests of operators: run those in scope, and count.

``python -m tests.onnx.node_tests [--every N] [--offset K]`` runs them all, or every Nth, and prints those that fail.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import volta_fn.onnx
from volta_fn import numpy as vnp

#: What arrays do not have: tests with these in their names are out of scope.
_OUTSIDE = (
    "float8",
    "float4",
    "int4",
    "int2",
    "float6",
    "e8m0",
    "e4m3",
    "e5m2",
    "string",
    "sequence",
    "optional",
    "ai_onnx_ml",
    "training",
)
#: Results of 16 bits are within a few of their own units of those in the tests.
_WIDER = 30


def in_scope(name: str) -> bool:
    """Return True for tests whose dtypes and kinds of values arrays have."""
    lowered = name.lower()
    if "training" in lowered:
        return "batchnorm" in lowered
    return not any(word in lowered for word in _OUTSIDE if word != "training")


def cases() -> Iterator[Any]:
    """Yield the tests in scope."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = load_model_tests(kind="node")
    for case in result:
        if in_scope(case.name) and _has_arrays(case):
            yield case


def _has_arrays(case: Any) -> bool:
    values = [*case.data_sets[0][0], *case.data_sets[0][1]]
    return all(_is_array(v) for v in values)


def _is_array(value: Any) -> bool:
    return isinstance(value, onnx.TensorProto) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSU")


def run(case: Any) -> None:
    """Run a test; raise what it raises, or AssertionError."""
    function, params = volta_fn.onnx.load(case.model.SerializeToString())
    arguments, wanted = [[_as_numpy(v) for v in values] for values in case.data_sets[0]]
    names = [i.name for i in case.model.graph.input]
    actual = function(params, **dict(zip(names, arguments, strict=False)))
    compare(actual, wanted, case.rtol, case.atol)


def compare(actual: Any, wanted: list[np.ndarray], rtol: float, atol: float) -> None:
    """Assert that results have the dtypes and numbers of those in a test."""
    results = actual if isinstance(actual, tuple) else (actual,)
    for result, want in zip(results, wanted, strict=False):
        got = np.asarray(result)
        assert got.dtype == want.dtype, f"dtype {got.dtype} instead of {want.dtype}"
        assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
        if want.dtype.kind == "O":
            assert got.tolist() == want.tolist()
        elif want.dtype.kind in "biuc":
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        else:
            factor = _WIDER if want.dtype.itemsize == 2 else 1
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol * factor, atol=max(atol, 1e-5))


def _as_numpy(value: Any) -> Any:
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array if array.dtype.kind in "iub" else vnp.asarray(array)


def sweep(every: int, offset: int = 0) -> tuple[int, dict[str, str]]:
    """Run every Nth test; return how many passed, and the messages of the others."""
    passed, failed = 0, {}
    for number, case in enumerate(cases()):
        if number % every != offset:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(case)
            passed += 1
        except Exception as error:  # whatever a test raises is its result
            failed[case.name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}"
    return passed, failed


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    options = parser.parse_args()
    passed, failed = sweep(options.every, options.offset)
    for name, message in failed.items():
        print(f"{name}: {message}")
    kinds = collections.Counter(name.removeprefix("test_").partition("_")[0] for name in failed)
    print(f"{passed} of {passed + len(failed)} tests pass; the others by kind: {dict(kinds.most_common())}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
