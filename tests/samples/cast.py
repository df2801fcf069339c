"""Samples of convert_element_type and bitcast_convert_type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.laws.integers import extremes
from tests.samples.sample import ALL, FLOATS, INEXACT, INTEGERS, Arg, Sample, normal, uniform
from volta_fn import dtypes, lax


def _converted(x: np.ndarray, target: np.dtype) -> np.ndarray:
    """Convert by Python numbers: floats toward zero, within bounds, complex to real."""
    if target in dtypes.INTEGERS and x.dtype in dtypes.INEXACT:
        info = np.iinfo(target)
        held = [min(max(v, info.min), info.max) if v == v else 0 for v in np.ravel(x.real).astype(np.float64).tolist()]
        truncated = [int(v) for v in held]
        return np.array(truncated, target).reshape(x.shape)
    if x.dtype in dtypes.COMPLEX and target not in dtypes.COMPLEX and target != np.bool_:
        x = x.real
    return x.astype(target)


def _quarters(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw multiples of 1/4, which every floating dtype holds exactly."""
    return (uniform(-12, 12)(rng, shape, np.dtype(np.int32)) / 4 + (0.25j if dtype in dtypes.COMPLEX else 0)).astype(dtype)


def _odd_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw what does not fit: NaN, infinities, values beyond bounds, negative zero."""
    with np.errstate(over="ignore"):
        return np.array([np.nan, np.inf, -np.inf, 300.7, -300.7, 4e9, -4e9, 2.0**31, 2.0**63, -(2.0**63), 1e30, -0.0]).astype(dtype)


def _conversions() -> Iterator[Sample]:
    """Yield conversions to every dtype, from inexact ones, odd values and integers."""
    for name in ALL:
        target = dtypes.as_dtype(name)
        wide = name in ("float64", "complex128")
        # In a narrow dtype finite differences see steps, so there the transpose alone is compared.
        slopes = {"differentiable": None if wide else (), "linear": (0,) if name in INEXACT else ()}
        yield _conversion(target, Arg((2, 3), _quarters), INEXACT, "", slopes)
        yield _conversion(target, Arg((12,), _odd_values), FLOATS, "odd-", {"differentiable": ()})
        yield _conversion(target, Arg((2, 3), extremes), ("bool", *INTEGERS), "whole-", {})


def _conversion(target: np.dtype, arg: Arg, names: tuple[str, ...], label: str, options: dict[str, Any]) -> Sample:
    return Sample(
        "convert_element_type",
        lambda x: lax.convert_element_type(x, target),
        (arg,),
        lambda x: _converted(x, target),
        dtypes=[d for d in names if d != target.name],
        result_dtype=lambda d: target,
        exact=True,
        label=f"{label}to-{target.name}",
        **options,
    )


def _bits(target: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return NumPy's reading of the same bytes, the last axis split or joined."""

    def reference(x: np.ndarray) -> np.ndarray:
        dtype, shape = dtypes.as_dtype(target), x.shape
        if dtype.itemsize < x.dtype.itemsize:
            shape = (*shape, x.dtype.itemsize // dtype.itemsize)
        elif dtype.itemsize > x.dtype.itemsize:
            shape = shape[:-1]
        return np.frombuffer(x.tobytes(), dtype).reshape(shape)

    return reference


def _bitcast(target: str, names: tuple[str, ...], shape: tuple[int, ...], label: str) -> Sample:
    return Sample(
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, target),
        (Arg(shape, normal()),),
        _bits(target),
        dtypes=names,
        result_dtype=lambda d: target,
        exact=True,
        differentiable=(),
        label=label,
    )


SAMPLES = [
    *_conversions(),
    Sample(
        "convert_element_type",
        lambda x: lax.convert_element_type(x, "float32"),
        (Arg((2, 3), _quarters),),
        lambda x: x.astype(np.float32),
        dtypes=("float64",),
        result_dtype=lambda d: np.float32,
        exact=True,
        derivative_tolerance=1e-2,
        second_order=False,
        reverse=False,
        why="finite differences of float32 results see its steps",
        label="derivative",
    ),
    Sample(
        "convert_element_type",
        lambda x: lax.convert_element_type(x, "int32"),
        (Arg((0, 2)),),
        lambda x: x.astype(np.int32),
        dtypes=FLOATS,
        result_dtype=lambda d: np.int32,
        label="empty",
    ),
    *[
        _bitcast(f"uint{n}", names, (2, 3), f"same-{n}")
        for n, names in ((8, ("int8",)), (16, ("int16", "float16", "bfloat16")), (32, ("int32", "float32")), (64, ("float64",)))
    ],
    *[
        _bitcast(to, (of,), (2, 3), f"{of}-to-{to}")
        for to, of in (("float16", "int16"), ("bfloat16", "uint16"), ("float32", "uint32"), ("float64", "int64"))
    ],
    _bitcast("uint8", ("int16", "float32", "float64"), (2, 3), "narrower"),
    _bitcast("uint32", ("float64",), (), "narrower-0d"),
    _bitcast("float64", ("int32", "float32"), (3, 2), "wider"),
    _bitcast("uint32", ("uint8",), (4,), "wider-to-0d"),
    _bitcast("uint32", ("float32",), (0, 2), "empty"),
]
