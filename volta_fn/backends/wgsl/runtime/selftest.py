"""What a device is asked when it is opened: which checks its shaders need, and whether its `fma` rounds once.

The translator of shaders can guard every access to memory and count the turns of every loop. Ours are in range by construction and end,
so both are left out, but not before a shader has given without them what it gives with them: drivers have compiled such loops wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from volta_fn.errors import DeviceError

if TYPE_CHECKING:
    from volta_fn.backends.wgsl.runtime.gpu import Gpu

#: The library's flags: none, the turns of loops, all checks.
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


_FMA = f"""
@group(0) @binding(0) var<storage, read> given: array<vec3<f32>>;
@group(0) @binding(1) var<storage, read_write> made: array<f32>;
@compute @workgroup_size({_WIDTH})
fn main(@builtin(local_invocation_index) i: u32) {{
  made[i] = fma(given[i].x, given[i].y, given[i].z);
}}
"""


def fuses(gpu: Gpu) -> bool:
    """Whether fma gives what products lose when they are rounded."""
    x, y = np.random.default_rng(0).uniform(1, 2, (2, _WIDTH)).astype(np.float32)
    given = np.stack([x, y, -(x * y), np.zeros_like(x)], 1)  # a vec3 takes the room of four numbers
    made = gpu.put(np.zeros(_WIDTH, np.float32))
    gpu.dispatch(_FMA, [gpu.put(given), made], frozenset([1]), ALL)
    return np.array_equal(gpu.get(made), (x.astype(np.float64) * y - x * y).astype(np.float32))


def needed_checks(gpu: Gpu) -> int:
    """The fewest checks with which a shader gives what it gives with all of them."""
    expected = _run(gpu, ALL)
    for checks in (NONE, LOOPS):
        try:
            if np.array_equal(_run(gpu, checks), expected):
                return checks
        except DeviceError:
            continue
    return ALL


def _run(gpu: Gpu, checks: int) -> np.ndarray:
    given = gpu.put(np.random.default_rng(0).integers(0, 1 << 32, _WIDTH, np.uint32))
    made = gpu.put(np.zeros(_WIDTH, np.uint32))
    gpu.dispatch(_SHADER, [given, made], frozenset([1]), checks)
    return gpu.get(made)
