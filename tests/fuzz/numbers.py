"""The calls of the catalogue with other numbers: ends of dtypes, infinities, NaN, zeros of both signs, other dtypes, empty arrays.

    python -m tests.fuzz numbers --count 20000

A call is tried with a share of its numbers replaced by the edges of a dtype: eagerly, as a jitted program and, where it has an oracle, by
that in float64, rounded to the dtype. `--path` tries the functions whose path contains a text.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import volta_fn as vf
from tests.catalogue import laws, lax_calls, nn_calls, numpy_calls
from tests.catalogue.call import Call
from volta_fn.dtypes import as_dtype
from volta_fn.errors import VoltaError

#: Functions whose results do not follow from numbers alone, or are tried with edges elsewhere.
_ELSEWHERE = (
    "random",
    "initializers",
    "rng",
    "bessel",
    "gamma",
    "erf",
    "polygamma",
    "zeta",
    "igamma",
    "betainc",
    "lax.linalg",
    "numpy.linalg",
    "roots",
    "polyfit",
)
#: Whose oracle follows its dtype, is NaN at infinity (`i0`), has no padding, which here counts as zeros times infinity, or rounds pi
#: (`sinc`), and whose products vanish in the dtype before they meet infinities.
_ORACLE_DIFFERS = {f"numpy.{name}" for name in "spacing nextafter i0 polymul convolve correlate floor_divide sinc cumprod prod".split()} | {
    f"numpy.{name}" for name in "nanprod nancumprod cumulative_prod corrcoef".split()
}
CALLS = {
    path: call
    for module in (numpy_calls, lax_calls, nn_calls)
    for path, call in module.CALLS.items()
    if call.jit and not call.alike and not any(word in path for word in _ELSEWHERE)
}
#: Those that map numbers one by one, which may be at the ends of the range.
_ELEMENTWISE = {*numpy_calls.ELEMENTWISE, *lax_calls.ELEMENTWISE, *nn_calls.NN} - {
    *"unwrap interp piecewise select choose where array_equiv softmax log_softmax logsumexp logmeanexp standardize".split(),
    "dot_product_attention",
}
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Difference:
    """A call whose results differ."""

    path: str
    what: str
    arrays: Sequence[np.ndarray]
    found: Any
    wanted: Any

    def __str__(self) -> str:
        operands = ", ".join(f"{a.dtype.name}{a.tolist()!r:.160}" for a in self.arrays)
        text = f"{self.path}({operands}): {self.what}: {str(self.found)[:200]}, not {str(self.wanted)[:200]}"
        return " ".join(text.split())


def edges(dtype: np.dtype, whole: bool) -> np.ndarray:
    """Return the numbers of a float dtype at which functions go wrong; without `whole`, none whose sums or products are beyond it."""
    info = vf.dtypes.finfo(dtype)
    least, most, eps = float(info.smallest_subnormal), float(info.max), float(info.eps)
    sizes = [
        0.0,
        least,
        3 * least,
        float(info.tiny),
        eps,
        1e-3,
        0.5,
        1 - eps / 2,
        1.0,
        1 + eps,
        1.5,
        2.0,
        3.0,
        7.0,
        *([most / 2, most] if whole else []),
    ]
    return np.array([s for size in sizes for s in (size, -size)] + [np.inf, -np.inf, np.nan], np.float64)


def drawn(rng: np.random.Generator, like: np.ndarray, dtype: np.dtype, share: float, whole: bool) -> np.ndarray:
    """Return an array like one of a call, with a share of its numbers at the edges."""
    special = rng.choice(edges(dtype, whole), like.shape)
    return np.where(rng.uniform(size=like.shape) < share, special, like.real).astype(dtype)


def reshaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of another shape with the same numbers, repeated."""
    return np.resize(array, shape)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64 if array.dtype.kind in "fV" else array.dtype)


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float, least: float) -> bool:
    """Return whether results are alike: NaN and infinities in the same elements, and numbers up to a relative error."""
    if found.shape != wanted.shape:
        return False
    if found.dtype.kind == "c" or wanted.dtype.kind == "c":
        return close(found.real, wanted.real, tolerance, least) and close(found.imag, wanted.imag, tolerance, least)
    if found.dtype.kind in "biu" and wanted.dtype.kind in "biu":
        return bool(np.array_equal(found, wanted))
    with np.errstate(all="ignore"):
        x, y = _wide(found), _wide(wanted)
        return bool(np.all((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * np.abs(y) + least)))


_DIGITS = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


def _least(wanted: np.ndarray, name: str, least: float, whole: bool) -> float:
    """Return the absolute error allowed: of sums, relative to the largest result."""
    sizes = np.abs(_wide(wanted)) if wanted.dtype.kind in "fcV" else np.zeros(0)
    finite = sizes[np.isfinite(sizes)]
    return least if whole or not finite.size else max(least, 10 * _DIGITS[name] * float(finite.max()))


def try_call(
    path: str, call: Call, rng: np.random.Generator, name: str, share: float, shape: tuple[int, ...] | None, whole: bool
) -> Iterator[Difference]:
    """Yield how results of a call with some numbers differ between ways to compute them."""
    dtype = as_dtype(name)
    function, arrays = laws.traced(laws.ours(path, call), call)
    if not any(a.dtype.kind in "fc" for a in arrays):
        return
    replaced = [drawn(rng, a if shape is None else reshaped(a, shape), dtype, share, whole) if a.dtype.kind in "fc" else a for a in arrays]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            eager = laws.results(function(*replaced))
        except VoltaError:  # which other tests look at
            return
        jitted = laws.results(vf.jit(function)(*replaced))
        least = 4 * float(vf.dtypes.finfo(dtype).smallest_subnormal)
        for got, want in zip(jitted, eager, strict=True):
            if not close(got, want, 10 * _DIGITS[name], _least(want, name, least, whole)):
                yield Difference(path, "jit", replaced, got, want)
        theirs = None if path in _ORACLE_DIFFERS or ".fft." in path else laws.oracle(path, call)
        if theirs is None or getattr(theirs, "__module__", "").startswith("jax"):
            return
        wide = laws.traced(theirs, call)[0]
        try:
            wanted = laws.results(wide(*[_wide(a) if a.dtype.kind in "fcV" else a for a in replaced]))
        except Exception:  # of a library that takes no such arrays
            return
        for got, want in zip(eager, wanted, strict=False):
            rounded = want.astype(got.dtype) if got.dtype.kind in "fcV" else want
            if not close(got, rounded, 10 * _DIGITS[name], _least(rounded, name, least, whole)):
                yield Difference(path, "oracle", replaced, got, rounded)


def differences(seed: int, count: int, path: str = "", seconds: float = np.inf) -> Iterator[Difference]:
    """Yield differences of a number of calls, or until some time has passed."""
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    names = [name for name in CALLS if path in name]
    for _ in range(count):
        if time.monotonic() > end:
            return
        name = str(rng.choice(names))
        call = CALLS[name]
        _, arrays = laws.traced(lambda *args: None, call)
        elementwise = len({a.shape for a in arrays}) == 1 and name.rpartition(".")[2] in _ELEMENTWISE
        shape = [None, (), (0,), (1,), (2, 0, 3), (17,)][int(rng.integers(6))] if elementwise else None
        yield from try_call(name, call, rng, str(rng.choice(DTYPES)), float(rng.choice([0.1, 0.4, 1.0])), shape, elementwise)


def main(argv: Sequence[str] | None = None) -> int:
    """Try calls, and print those whose results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf)
    parser.add_argument("--path", default="")
    options = parser.parse_args(argv)
    total = 0
    for difference in differences(options.seed, options.count, options.path, options.seconds):
        total += 1
        print(difference, flush=True)
    print(f"{options.count} calls, {total} differences")
    return 1 if total else 0


if __name__ == "__main__":
    raise SystemExit(main())
