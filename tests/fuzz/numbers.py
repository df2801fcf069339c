"""The calls of the catalogue with other numbers: ends of dtypes, infinities, NaN, zeros of both signs, other dtypes, empty arrays.

    python -m tests.fuzz numbers --count 20000

A call is tried with a share of its numbers replaced by the edges of a dtype: eagerly, as a jitted program and, where it has an oracle, by
that in float64, rounded to the dtype. `--path` tries the functions whose path contains a text. Functions of integers, of complex numbers,
of `numpy.fft` and `numpy.linalg`, whose domains are no single numbers, are tried with arguments of their own (`DOMAINS`).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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
#: Whose oracle follows its dtype, has other quotients of infinities (`floor_divide`, `divmod`, as the Array API prefers), is NaN at
#: infinity (`i0`), has no padding, which here counts as zeros times infinity, or rounds pi (`sinc`), or edges of bins
#: (`histogram2d`), and whose products vanish in the dtype before they meet infinities.
_ORACLE_DIFFERS = {f"numpy.{name}" for name in "spacing nextafter i0 polymul convolve correlate floor_divide sinc cumprod prod".split()} | {
    f"numpy.{name}" for name in "divmod histogram2d nanprod nancumprod cumulative_prod corrcoef".split()
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
    actual: Any
    wanted: Any

    def __str__(self) -> str:
        operands = ", ".join(f"{a.dtype.name}{a.tolist()!r:.160}" for a in self.arrays)
        text = f"{self.path}({operands}): {self.what}: {str(self.actual)[:200]}, not {str(self.wanted)[:200]}"
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


def close(actual: np.ndarray, wanted: np.ndarray, tolerance: float, least: float) -> bool:
    """Return whether results are alike: NaN and infinities in the same elements, and numbers up to a relative error."""
    if actual.shape != wanted.shape:
        return False
    if actual.dtype.kind == "c" or wanted.dtype.kind == "c":
        return close(actual.real, wanted.real, tolerance, least) and close(actual.imag, wanted.imag, tolerance, least)
    if actual.dtype.kind in "biu" and wanted.dtype.kind in "biu":
        return bool(np.array_equal(actual, wanted))
    with np.errstate(all="ignore"):
        x, y = _wide(actual), _wide(wanted)
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


@dataclass(frozen=True)
class Domain:
    """Functions of `volta_fn.numpy` with arguments of their own: how to draw these, and how far apart results may be."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    draw: Callable[[np.random.Generator, np.dtype, str], list[Any]]
    is_close: Callable[[np.ndarray, np.ndarray, np.dtype], bool]


def _integers(rng: np.random.Generator, dtype: np.dtype, name: str) -> list[Any]:
    """Return integers of which many are at the ends of a dtype; divisors are not zero, and shifts less than the number of bits."""
    info, shape = np.iinfo(dtype), ((), (1,), (17,), (3, 0))[int(rng.integers(4))]
    ends = np.array(
        [info.min, info.min + 1, info.min // 2, 0, 1, 2, 3, 7, info.max // 2, info.max - 1, info.max, *([-1, -2] * (info.min < 0))], object
    )

    def numbers() -> np.ndarray:
        some = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.6, rng.choice(ends, shape), some).astype(dtype)

    first, second = numbers(), numbers()
    if name in ("floor_divide", "remainder", "fmod"):
        second = np.where(second == 0, np.asarray(3, dtype), second).astype(dtype)
    if name.endswith("shift"):
        second = rng.integers(0, info.bits, shape).astype(dtype)
    if name == "power":
        second = rng.integers(0, 9, shape).astype(dtype)
    if name == "lcm":  # whose results are in the range
        first, second = first // (1 << info.bits // 2), second // (1 << info.bits // 2)
    return [first] if getattr(np, name).nin == 1 else [first, second]


def _same(actual: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> bool:
    return actual.shape == wanted.shape and bool((actual == wanted).all())


def _complex_numbers(rng: np.random.Generator, dtype: np.dtype, name: str) -> list[Any]:
    """Return finite complex numbers, with parts at the ends of the range unless the function is one of two numbers."""
    count, real = getattr(np, name).nin, np.finfo(dtype).dtype
    values = edges(real, count == 1 and name != "exp2")  # whose phase is its argument's times a rounded number
    part = lambda: np.where(rng.random(9) < 0.6, rng.choice(values[np.isfinite(values)], 9), rng.standard_normal(9) * 3).astype(real)
    numbers = [(part() + 1j * part()).astype(dtype) for _ in range(count)]
    if name == "divide":  # by subnormal numbers NumPy's quotients are infinite, too
        numbers[1] = np.where(np.abs(numbers[1]) < 1e-30, numbers[1].dtype.type(3 - 1j), numbers[1])
    return numbers


def _near(actual: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether numbers are alike relative to their absolute values; those beyond the range of a dtype are infinite or NaN."""
    if actual.shape != wanted.shape:
        return False
    real = np.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.abs(wanted.astype(np.complex128))
        error = np.abs(actual.astype(np.complex128) - wanted)
    representable = np.isfinite(size) & (size < float(real.max) / 4)
    return bool(np.all(~representable | (error <= 40 * float(real.eps) * size + 4 * float(real.tiny))))


def _signals(rng: np.random.Generator, dtype: np.dtype, name: str) -> list[Any]:
    length = int(rng.choice([1, 2, 3, 5, 8, 16, 31, 64, 97, 120, 128, 257, 500]))
    shape = ((length,), (3, length), (length, 2, 4))[int(rng.integers(3))]
    shape = shape if len(shape) > 1 or not name.endswith(("2", "n")) else (3, *shape)
    x = rng.standard_normal(shape)
    if dtype.kind == "c" and name not in ("rfft", "rfft2", "rfftn", "ihfft"):
        x = x + 1j * rng.standard_normal(shape)
    return [(x * float(rng.choice([1e-25, 1.0, 1e25]))).astype(np.finfo(dtype).dtype if x.dtype.kind == "f" else dtype)]


def _near_in_norm(actual: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether arrays are alike relative to the largest number."""
    if actual.shape != wanted.shape:
        return False
    most = float(np.max(np.abs(wanted), initial=0.0))
    return bool(np.all(np.abs(actual - wanted) <= 400 * float(np.finfo(dtype).eps) * most))


def _matrices(rng: np.random.Generator, dtype: np.dtype, name: str) -> list[Any]:
    """Return well-conditioned matrices, of any size and scale; positive definite ones where they must be."""
    size = int(rng.choice([0, 1, 2, 3, 5, 8, 17]))
    batch = ((), (0,), (2, 3))[int(rng.integers(3))]

    def gaussian(*shape: int) -> np.ndarray:
        x = rng.standard_normal((*batch, *shape))
        return x + 1j * rng.standard_normal(x.shape) if dtype.kind == "c" else x

    x = gaussian(size, size)
    q = np.linalg.qr(x)[0] if x.size else x
    other = np.linalg.qr(gaussian(size, size))[0] if x.size else x
    if name in ("cholesky", "eigvalsh"):
        other = np.conj(np.swapaxes(q, -1, -2))
    spectrum = rng.uniform(0.5, 4.0, (*batch, 1, size)) * (rng.choice([-1, 1], (*batch, 1, size)) if name == "eigvalsh" else 1)
    scale = 1.0 if name in ("det", "matrix_rank", "cond") else float(rng.choice([1e-12, 1.0, 1e12]))
    x = ((q * spectrum) @ other * scale).astype(dtype)
    return [x, gaussian(size, 2).astype(dtype)] if name == "solve" else [x]


_COMPLEX = "complex64", "complex128"
DOMAINS = {
    "integers": Domain(
        tuple(
            "add subtract multiply floor_divide remainder fmod power left_shift right_shift bitwise_and bitwise_or bitwise_xor invert "
            "gcd lcm "
            "absolute negative positive sign square minimum maximum bitwise_count equal less less_equal logical_not".split()
        ),
        ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        _integers,
        _same,
    ),
    "complex": Domain(
        tuple(
            "exp log sqrt square reciprocal sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh log2 log10 "
            "absolute conjugate negative exp2 expm1 log1p add subtract multiply divide".split()
        ),
        ("complex64",),
        _complex_numbers,
        _near,
    ),
    "fft": Domain(
        tuple(f"fft.{name}" for name in "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()),
        _COMPLEX,
        _signals,
        _near_in_norm,
    ),
    "linalg": Domain(
        tuple(
            f"linalg.{name}" for name in "inv solve det cholesky eigvalsh svdvals norm matrix_norm pinv cond matrix_rank slogdet".split()
        ),
        ("float32", "float64", *_COMPLEX),
        _matrices,
        _near_in_norm,
    ),
}


def try_domain(rng: np.random.Generator, kind: str, name: str) -> Iterator[Difference]:
    """Yield how a function of a domain differs from NumPy's in float64 or complex128, called eagerly and as a jitted program."""
    domain = DOMAINS[kind]
    dtype = np.dtype(str(rng.choice(domain.dtypes)))
    arrays = domain.draw(rng, dtype, name.rpartition(".")[2])
    ours, theirs = vf.numpy, np
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wanted = laws.results(theirs(*map(_wide, arrays)))  # type: ignore[operator]  # a function
        except (TypeError, ValueError, np.linalg.LinAlgError):  # empty arrays, mostly
            return
        for way, function in (("eager", ours), ("jit", vf.jit(ours))):
            for got, want in zip(laws.results(function(*arrays)), wanted, strict=True):
                if not domain.is_close(got, want, dtype):
                    yield Difference(f"numpy.{name}", f"{way}, {dtype}", arrays, got, want)


def differences(seed: int, count: int, path: str = "", seconds: float = np.inf) -> Iterator[Difference]:
    """Yield differences of a number of calls, or until some time has passed."""
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    calls = [name for name in CALLS if path in name]
    others = [(kind, name) for kind, domain in DOMAINS.items() for name in domain.names if path in f"numpy.{name}"]
    for _ in range(count):
        if time.monotonic() > end:
            return
        number = int(rng.integers(len(calls) + len(others)))
        if number >= len(calls):
            yield from try_domain(rng, *others[number - len(calls)])
            continue
        name = calls[number]
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
