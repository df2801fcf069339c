"""The samples of all primitives run in Chromium as in NumPy, on its GPU and as WebAssembly.

Tests take one in sixteen, and one in 64 as WebAssembly; `python -m tests.web.test_conformance`, with `--wasm` for WebAssembly, all that
need no host and no 64-bit dtype.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tests.laws.common import ROUNDING, arrays, assert_close, draw, host
from tests.samples.sample import Sample
from tests.web.chromium import FAST, Chromium
from tests.web.pages import open_application, results_of
from tests.web.test_tint import EVERY, WIDE, narrow_samples
from volta_fn import dtypes, tree
from volta_fn.errors import ExportError
from volta_fn.jit.stages import WEBGPU
from volta_fn.web.export import Function, make_manifest

#: Functions in one application.
_TOGETHER = 60


class Case:
    """A sample as a function of a page, with what NumPy gives."""

    def __init__(self, sample: Sample, name: str) -> None:
        self.label, self.dtype = f"{sample} in {name}", name
        self.arguments = arrays(draw(sample, dtypes.as_dtype(name)))
        flat = lambda *args: tuple(tree.leaves(sample.function(*args)))
        self.expected = host(sample.function(*self.arguments))
        self.function = Function(flat, self.arguments, [f"r{k}" for k in range(len(self.expected))])

    @property
    def is_wide(self) -> bool:
        """Whether an argument or a result is of a dtype that WebGPU lacks."""
        return any(np.asarray(a).dtype.name in WIDE for a in (*self.arguments, *self.expected))

    def fault(self, actual: Sequence[np.ndarray] | str) -> str:
        """Return how a result differs, if it does."""
        if isinstance(actual, str):
            return f"{self.label}: {actual}"
        try:
            for result, wanted in zip(actual, self.expected, strict=True):
                assert_close(result, wanted, 16 * ROUNDING.get(self.dtype, ROUNDING["float32"]), self.label)
        except AssertionError as error:
            return str(error)[:500]
        return ""


def prepared(samples: Sequence[tuple[Sample, str]], left_out: Counter[str], faults: list[str], wasm: bool) -> Iterator[Case]:
    """Yield the cases that a page can run; count the others by the reason, which is a fault if pages should run them."""
    for sample, name in samples:
        case = Case(sample, name)
        if case.is_wide:
            left_out["64 bits"] += 1
            continue
        try:
            make_manifest({}, {"f": case.function}, WEBGPU, "float32", wasm)
        except ExportError as error:
            if not any(text in str(error) for text in ("runs on the host", "WebGPU has no", "a page has no Python")):
                faults.append(f"{case.label}: {error}")
            left_out["host" if "host" in str(error) else "64 bits"] += 1
            continue
        yield case


def compared(samples: Sequence[tuple[Sample, str]], wasm: bool = False) -> tuple[int, list[str], Counter[str]]:
    """Return how many samples ran, what was wrong, and what was left out."""
    left_out: Counter[str] = Counter()
    faults = list[str]()
    cases = list(prepared(samples, left_out, faults, wasm))
    with Chromium(FAST) as browser:
        for start in range(0, len(cases), _TOGETHER):
            some = {f"f{k}": case for k, case in enumerate(cases[start : start + _TOGETHER])}
            manifest = open_application(browser, {}, {name: case.function for name, case in some.items()}, wasm=wasm)
            result = results_of(browser, manifest, list(some))
            faults += filter(None, [case.fault(result[name]) for name, case in some.items()])
    return len(cases), faults, left_out


def test_samples_run_in_chromium_as_in_numpy() -> None:
    count, faults, _ = compared(narrow_samples()[5::EVERY])
    assert count > 100
    assert faults == []


def test_samples_run_as_webassembly_as_in_numpy() -> None:
    count, faults, _ = compared(narrow_samples()[11 :: 4 * EVERY], wasm=True)
    assert count > 30
    assert faults == []


def main() -> int:
    """Run all of them."""
    count, faults, left_out = compared(narrow_samples(), "--wasm" in sys.argv)
    print(f"{count} ran, {len(faults)} wrong, left out: {dict(left_out)}", *faults, sep="\n")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
