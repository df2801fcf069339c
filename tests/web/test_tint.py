"""Chromium's compiler, Tint, takes every shader: those of the samples, of all primitives.

It takes one in sixteen; `python -m tests.web.test_tint` all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import volta_fn as vf
from tests.samples import all_samples
from tests.samples.sample import Sample
from tests.web.chromium import Chromium
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

#: What core WebGPU does not have.
WIDE = frozenset({"float64", "complex128", "int64", "uint64"})

#: One sample of so many is compiled.
EVERY = 16

COMPILE = """async texts => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  device.onuncapturederror = () => {};
  const found = [];
  for (const code of texts) {
    device.pushErrorScope('validation');
    const {messages} = await device.createShaderModule({code}).getCompilationInfo();
    await device.popErrorScope();
    found.push(messages.filter(m => m.type === 'error').map(m => `line ${m.lineNum}: ${m.message}`));
  }
  return found;
}"""


def narrow_samples() -> list[tuple[Sample, str]]:
    """Return all samples with each of their dtypes that WebGPU has."""
    return [(sample, name) for sample in all_samples() for name in sample.dtypes if name not in WIDE]


def shaders_of(cases: Sequence[tuple[Sample, str]]) -> Iterator[str]:
    """Yield the shaders of samples, on a device with nothing but what every WebGPU device has."""
    target, routines = WgslTarget(TargetCapabilities(subnormals=False)), RoutineCache()
    for sample, name in cases:
        avals = [vf.ShapeDtypeStruct(arg.shape, arg.dtype or name) for arg in sample.args]
        closed = vf.jit(sample.function).lower(*avals).jaxpr
        if not any(aval.dtype.name in WIDE for aval in (*closed.in_avals, *closed.out_avals)):
            yield from sorted(plan_program(closed, (), pipeline, target, routines).shaders())


def refused(texts: Sequence[str]) -> list[str]:
    """Return what Tint says of the shaders that it refuses."""
    results: list[str] = []
    with Chromium() as browser:
        browser.open("file:///")
        for start in range(0, len(texts), 200):
            some = texts[start : start + 200]
            results += [f"{m[0]}\n{text}" for text, m in zip(some, browser.run(COMPILE, some), strict=True) if m]
    return results


def test_tint_compiles_the_shaders_of_samples() -> None:
    cases = narrow_samples()
    linalg = [case for case in cases if {*case[0].primitives} & {"eigh", "svd", "qr", "lu", "cholesky"}][::4]
    texts = list(dict.fromkeys(shaders_of([*cases[::EVERY], *linalg])))
    assert len(texts) > 100
    assert refused(texts) == []


def main() -> int:
    """Compile all of them."""
    texts = list(dict.fromkeys(shaders_of(narrow_samples())))
    faults = refused(texts)
    print(f"{len(texts)} shaders, {len(faults)} refused", *faults[:5], sep="\n")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
