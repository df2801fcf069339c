"""Copy bytes on the device: arrays, and rows at offsets that cannot be bound.

A row's index is read from a word of a *ladder*, a constant that holds 0, 1, 2, … at offsets that can be bound.
"""

from __future__ import annotations

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import grid
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Run
from volta_fn.targets.wgsl.shader_module import Binding, ShaderModule, hand_written

_THREADS = 64

_COPY = f"""\
  let i = id.x + id.y * groups.x * {_THREADS}u;
  if (i < arrayLength(&target_)) {{ target_[i] = source[i]; }}
"""

_BYTE = """\
fn byte(i: u32) -> u32 {
  return (ARRAY[i / 4u] >> (8u * (i % 4u))) & 255u;
}
"""

_TAKE = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i >= WORDSu) { return; }
  let first = ladder[0] * SIZEu + 4u * i;
  if (SIZEu % 4u == 0u) { row[i] = all[first / 4u]; return; }
  var word = 0u;
  for (var k = 0u; k < 4u; k++) {
    if (4u * i + k < SIZEu) { word |= byte(first + k) << (8u * k); }
  }
  row[i] = word;
"""

_PUT = """\
  let i = id.x + id.y * groups.x * THREADSu;
  if (i > WORDSu) { return; }
  let first = ladder[0] * SIZEu;
  let word = first / 4u + i;
  if (SIZEu % 4u == 0u) {
    if (i < WORDSu) { all[word] = row[i]; }
    return;
  }
  if (4u * word >= first + SIZEu) { return; }
  var value = all[word];
  for (var k = 0u; k < 4u; k++) {
    let at = 4u * word + k;
    if (at >= first && at < first + SIZEu) {
      value = (value & ~(255u << (8u * k))) | (byte(at - first) << (8u * k));
    }
  }
  all[word] = value;
"""


def copy(to: BufferRange, source: BufferRange, capabilities: TargetCapabilities) -> Run:
    """Copy an array."""
    shader = _shader(("target_", "source"), _COPY)
    return Run(shader, frozenset([0]), (to, source), grid(-(-to.size // (4 * _THREADS)), capabilities.groups))


def take(row: BufferRange, all_: BufferRange, ladder: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes out of an array."""
    shader = _shader(("row", "all", "ladder"), _of_size(_TAKE, size), _BYTE.replace("ARRAY", "all"))
    return Run(shader, frozenset([0]), (row, all_, ladder), grid(-(-row.size // (4 * _THREADS)), capabilities.groups))


def put(all_: BufferRange, row: BufferRange, ladder: BufferRange, size: int, capabilities: TargetCapabilities) -> Run:
    """Copy a row of `size` bytes into an array."""
    shader = _shader(("all", "row", "ladder"), _of_size(_PUT, size), _BYTE.replace("ARRAY", "row"))
    return Run(shader, frozenset([0]), (all_, row, ladder), grid(row.size // (4 * _THREADS) + 1, capabilities.groups))


def _of_size(body: str, size: int) -> str:
    return body.replace("THREADS", str(_THREADS)).replace("WORDS", str(-(-size // 4))).replace("SIZE", str(size))


def _shader(names: tuple[str, ...], body: str, functions: str = "") -> ShaderModule:
    """Make a shader that writes the first of some arrays of words."""
    bindings = tuple([Binding(name, "u32", written=not number) for number, name in enumerate(names)])
    builtins = {"global_invocation_id": ("id", "vec3<u32>"), "num_workgroups": ("groups", "vec3<u32>")}
    return hand_written(bindings, body, builtins, _THREADS, functions)
