"""Scales and norms before rounds of blocks, and the order of results after them."""

from __future__ import annotations

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.linalg import iteration_budget
from volta_fn.targets.wgsl.library.linalg.block_rotations import MARK, SWEEPS, Blocks
from volta_fn.targets.wgsl.library.linalg.blocks import repeated
from volta_fn.targets.wgsl.library.linalg.shader_templates import HUGE, field_shader, real_part, written
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Shader

#: Elements of an invocation whose loads are under way together.
_TOGETHER = 8


def many_invocations(device: TargetCapabilities, needed: int) -> int:
    """Return the invocations of a workgroup that has a matrix for itself.

    Each needs so many bytes of workgroup memory.
    """
    return 1024 if device.invocations >= 1024 and 1024 * needed + 4096 <= device.workgroup_memory else 256


def scale_dispatch(a: ShapedArray, blocks: Blocks, device: TargetCapabilities, weight: str) -> Dispatch:
    """Return the dispatch that finds the scale and the norm of each matrix.

    The norm is that of scaled numbers. Nothing is marked yet. The scale is the largest number, or zero if some number is not finite.
    `weight` is how often an element i counts, 0, 1 or 2.
    """
    count, real = a.shape[-2] * a.shape[-1], real_part(a.dtype)
    shader = field_shader(device, a.dtype, many_invocations(device, real.itemsize + 4))
    source = shader.buffer(0, a.dtype).name
    state = shader.buffer(blocks.state, real, written=True).name
    marks = shader.atomics(blocks.marks, MARK).name
    written(
        shader,
        f"""
let base = group * {count}u;
var most = R(0);
var finite = true;
{_over_all(shader, count, source, weight, f"most = max(most, size(value)); finite = finite & (size(value) <= {HUGE[real.name]});")}
let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
var squared = R(0);
{_over_all(shader, count, source, weight, "squared += square(value / scale) * times_counted;")}
let norm = sqrt(sum_all(squared, local));
if (local == 0u) {{
  {state}[group * 2u] = select(scale, R(0), bad);
  {state}[group * 2u + 1u] = norm;
}}
for (var i = local; i < {SWEEPS}u; i += STEP) {{ atomicStore(&{marks}[2u + group * {SWEEPS}u + i], 0u); }}
if (group == 0u && local < 2u) {{ atomicStore(&{marks}[local], 0u); }}""",
    )
    return shader.dispatch(blocks.batch, iteration_budget.work(blocks.batch, count))


def _over_all(shader: Shader, count: int, source: str, weight: str, statements: str) -> str:
    """Return statements for each `value` of a matrix, several at a time."""
    step = shader.invocations
    numbers = range(_TOGETHER)
    loads = "\n".join([f"let i{k} = start + {k * step}u;\nlet value_{k} = {source}[base + min(i{k}, {count - 1}u)];" for k in numbers])
    uses = "\n".join(
        [
            f"if (i{k} < {count}u) {{ let i = i{k}; let times_counted = R({weight}); var value = value_{k};"
            f" if (times_counted == R(0)) {{ value = zero(); }} {statements} }}"
            for k in numbers
        ]
    )
    return f"for (var start = local; start < {count}u; start += {_TOGETHER * step}u) {{\n{loads}\n{uses}\n}}"


def ranked(n: int, keys: str, comes_first: str) -> str:
    """Return statements that find where key number i comes in the order.

    There are n keys, in an array with padding to a multiple of eight. Of two keys, the one that `comes_first` is `other` if that holds
    for it and `mine`; of equal ones, the first.
    """
    compared = f"let other = {keys}[t]; place += select(0u, 1u, ({comes_first}) | ((other == mine) & (t < i)));"
    return f"let mine = {keys}[i];\nvar place = 0u;\n{repeated(padded(n), compared, 8)}"


def padded(n: int) -> int:
    """Return the length of an array of n keys for `ranked`."""
    return -(-n // 8) * 8
