"""Dispatches that move bytes: whole arrays, and rows of arrays that cannot be bound where they begin.

A row's number is read from a word of a *ladder*, a constant that holds 0, 1, 2, … one binding's alignment apart.
"""

from __future__ import annotations

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import grid
from volta_fn.targets.wgsl.runtime.commands import Place, Run

_THREADS = 64

_WHOLE = f"""
@group(0) @binding(0) var<storage, read_write> target_: array<u32>;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@compute @workgroup_size({_THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
  let i = id.x + id.y * groups.x * {_THREADS}u;
  if (i < arrayLength(&target_)) {{ target_[i] = source[i]; }}
}}
"""

_TAKE = """
@group(0) @binding(0) var<storage, read_write> row: array<u32>;
@group(0) @binding(1) var<storage, read> all: array<u32>;
@group(0) @binding(2) var<storage, read> ladder: array<u32>;
fn byte(i: u32) -> u32 {
  return (all[i / 4u] >> (8u * (i % 4u))) & 255u;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let i = id.x + id.y * groups.x * THREADSu;
  if (i >= WORDSu) { return; }
  let first = ladder[0] * SIZEu + 4u * i;
  if (SIZEu % 4u == 0u) { row[i] = all[first / 4u]; return; }
  var word = 0u;
  for (var k = 0u; k < 4u; k++) {
    if (4u * i + k < SIZEu) { word |= byte(first + k) << (8u * k); }
  }
  row[i] = word;
}
"""

_PUT = """
@group(0) @binding(0) var<storage, read_write> all: array<u32>;
@group(0) @binding(1) var<storage, read> row: array<u32>;
@group(0) @binding(2) var<storage, read> ladder: array<u32>;
fn byte(i: u32) -> u32 {
  return (row[i / 4u] >> (8u * (i % 4u))) & 255u;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
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
    let place = 4u * word + k;
    if (place >= first && place < first + SIZEu) {
      value = (value & ~(255u << (8u * k))) | (byte(place - first) << (8u * k));
    }
  }
  all[word] = value;
}
"""


def whole(to: Place, source: Place, facts: TargetCapabilities) -> Run:
    """Copy an array."""
    return Run(_WHOLE, frozenset([0]), (to, source), grid(-(-to.size // (4 * _THREADS)), facts.groups))


def take(row: Place, all_: Place, ladder: Place, size: int, facts: TargetCapabilities) -> Run:
    """Copy a row of so many bytes out of an array."""
    return Run(_text(_TAKE, size), frozenset([0]), (row, all_, ladder), grid(-(-row.size // (4 * _THREADS)), facts.groups))


def put(all_: Place, row: Place, ladder: Place, size: int, facts: TargetCapabilities) -> Run:
    """Copy a row of so many bytes into an array."""
    return Run(_text(_PUT, size), frozenset([0]), (all_, row, ladder), grid(row.size // (4 * _THREADS) + 1, facts.groups))


def _text(template: str, size: int) -> str:
    words = -(-size // 4)
    return template.replace("THREADS", str(_THREADS)).replace("WORDS", str(words)).replace("SIZE", str(size))
