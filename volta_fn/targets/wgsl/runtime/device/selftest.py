"""Test a device when it is opened.

The tests tell which checks its shaders need, whether its `fma` rounds once, whether it keeps subnormal numbers, and, if it is software, how
many iterations its loops run. The translator of shaders can guard every access to memory and count the iterations of every loop. Our
accesses are in range by construction, and our loops end, so both checks are disabled; but only after a shader has given the same result
with and without them, since drivers have compiled such loops wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.device.memory import Buffer


class ShaderRunner(Protocol):
    """What the tests use of a device: buffers, and shaders of one workgroup."""

    @property
    def capabilities(self) -> TargetCapabilities:
        """What the device offers."""

    def put(self, values: np.ndarray) -> Buffer:
        """Return a buffer with an array's elements."""

    def get(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of a buffer."""

    def dispatch(self, source: str, buffers: Sequence[Buffer], written: frozenset[int], checks: int) -> None:
        """Run one workgroup of a shader by itself."""


#: The library's flags for checks in shaders: none, bounds of loops, all.
NONE, LOOPS, ALL = 0, 2, 3

_WIDTH = 64

_SHADER = f"""
@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> made: array<u32>;
var<workgroup> together: array<u32, {_WIDTH}>;
@compute @workgroup_size({_WIDTH})
fn main(@builtin(local_invocation_index) i: u32) {{
  var total = 1u;
  for (var k = 0u; k < i % 7u + 1u; k++) {{
    if (given[(i + k) % {_WIDTH}u] % 5u == 0u) {{ continue; }}
    var n = given[(i * 3u + k) % {_WIDTH}u] % 1024u;
    loop {{
      if (n == 0u) {{ break; }}
      total = total * 31u + n;
      if (total > 4000000000u) {{ break; }}
      n = n / 2u;
    }}
  }}
  together[i] = total;
  workgroupBarrier();
  for (var s = {_WIDTH // 2}u; s > 0u; s = s >> 1u) {{
    if (i < s) {{ together[i] = (together[i] ^ together[i + s]) * 17u; }}
    workgroupBarrier();
  }}
  var own: array<u32, 8>;
  for (var k = 0u; k < 8u; k++) {{ own[k] = given[i] * k + total; }}
  var sum = together[0];
  for (var k = i % 8u; k < 8u; k++) {{ sum = sum * 3u + own[k]; }}
  made[i] = sum;
}}
"""


_TERNARY = """
@group(0) @binding(0) var<storage, read> given: array<{type}>;
@group(0) @binding(1) var<storage, read_write> made: array<{type}>;
@compute @workgroup_size({width})
fn main(@builtin(local_invocation_index) i: u32) {{
  let x = given[i];
  let y = given[i + {width}u];
  let z = given[i + {twice}u];
  made[i] = {made};
}}
"""


def _ternary(gpu: ShaderRunner, made: str, *operands: np.ndarray) -> np.ndarray:
    """Evaluate an expression of x, y and z on the device."""
    dtype = operands[0].dtype
    result = gpu.put(np.zeros(_WIDTH, dtype))
    source = _TERNARY.format(type=f"f{8 * dtype.itemsize}", width=_WIDTH, twice=2 * _WIDTH, made=made)
    gpu.dispatch(source, [gpu.put(np.concatenate(operands)), result], frozenset([1]), ALL)
    return gpu.get(result)


def fuses(gpu: ShaderRunner) -> bool:
    """Return whether fma rounds once: whether it recovers rounding errors of products."""
    x, y = np.random.default_rng(0).uniform(1, 2, (2, _WIDTH))
    for dtype in (np.float32, np.float64) if gpu.capabilities.float64 else (np.float32,):
        a, b = x.astype(dtype), y.astype(dtype)
        if not np.array_equal(_ternary(gpu, "fma(x, y, z)", a, b, -(a * b)), _lost(a, b)):
            return False
    return True


def _lost(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the rounding errors of products, exactly."""
    pairs = zip(x.tolist(), y.tolist(), (x * y).tolist(), strict=True)
    return np.array([float(Fraction(a) * Fraction(b) - Fraction(product)) for a, b, product in pairs], x.dtype)


def keeps_subnormals(gpu: ShaderRunner) -> bool:
    """Return whether float32 arithmetic reads and gives subnormal numbers."""
    least = np.finfo(np.float32).smallest_subnormal
    x, y = np.arange(1, _WIDTH + 1, dtype=np.float32) * least, np.full(_WIDTH, 2, np.float32)
    return np.array_equal(_ternary(gpu, "x * y + z", x, y, x), x * 3)


_LOOP = """
@group(0) @binding(0) var<storage, read> wanted: array<u32>;
@group(0) @binding(1) var<storage, read_write> done: array<u32>;
@compute @workgroup_size(1)
fn main() {
  var mixed = wanted[1];
  var iterations = 0u;
  for (; iterations < wanted[0]; iterations++) { mixed = mixed * 1664525u + iterations; }
  done[0] = iterations;
  done[1] = mixed;
}
"""

#: Iterations of the loop that is tried.
_ITERATIONS = 1 << 18


def loop_iterations(gpu: ShaderRunner) -> int:
    """Return how many iterations loops may take: Mesa ends them after 65,535."""
    done = gpu.put(np.zeros(_WIDTH, np.uint32))
    gpu.dispatch(_LOOP, [gpu.put(np.full(_WIDTH, _ITERATIONS, np.uint32)), done], frozenset([1]), ALL)
    iterations = int(gpu.get(done)[0])
    return iterations if iterations < _ITERATIONS else TargetCapabilities().iterations


def needed_checks(gpu: ShaderRunner) -> int:
    """Return the fewest checks that give the same result as all of them."""
    expected = _run(gpu, ALL)
    for checks in (NONE, LOOPS):
        try:
            if np.array_equal(_run(gpu, checks), expected):
                return checks
        except DeviceError:
            continue
    return ALL


def _run(gpu: ShaderRunner, checks: int) -> np.ndarray:
    given = gpu.put(np.random.default_rng(0).integers(0, 1 << 32, _WIDTH, np.uint32))
    made = gpu.put(np.zeros(_WIDTH, np.uint32))
    gpu.dispatch(_SHADER, [given, made], frozenset([1]), checks)
    return gpu.get(made)
