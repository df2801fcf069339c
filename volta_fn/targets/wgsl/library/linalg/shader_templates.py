"""Shaders that factor real and complex matrices by the same WGSL.

A workgroup has a matrix. `T` is the type of the numbers and `R` that of their real parts. Storage that a workgroup writes is read by its
other invocations after `sync()`. Loops have bounds that all invocations share.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.scalars import Shader, constant, is_supported, wgsl_type
from volta_fn.targets.wgsl.scalars.number import literal

#: The greatest number, in real parts of each dtype: what compares otherwise is not finite. (Not all devices' comparisons with NaN are to be
#: trusted; those with a bound are.)
HUGE = {"float32": literal("f32", np.finfo(np.float32).max), "float64": literal("f64", np.finfo(np.float64).max)}

_REAL = """fn times(a: T, b: T) -> T { return a * b; }
fn over(a: T, b: T) -> T { return a / b; }
fn conjugate(a: T) -> T { return a; }
fn real(a: T) -> R { return a; }
fn imaginary(a: T) -> R { return R(0); }
fn number(a: R) -> T { return a; }
fn size(a: T) -> R { return abs(a); }"""

_COMPLEX = """fn times(a: T, b: T) -> T { return T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
fn over(a: T, b: T) -> T {
  let scale = max(abs(b.x), abs(b.y));
  let c = b / scale;
  let d = c.x * c.x + c.y * c.y;
  return T((a.x * c.x + a.y * c.y) / d, (a.y * c.x - a.x * c.y) / d) / scale;
}
fn conjugate(a: T) -> T { return T(a.x, -a.y); }
fn real(a: T) -> R { return a.x; }
fn imaginary(a: T) -> R { return a.y; }
fn number(a: R) -> T { return T(a, R(0)); }
fn size(a: T) -> R { return abs(a.x) + abs(a.y); }"""

_COMMON = """fn zero() -> T { return number(R(0)); }
fn square(a: T) -> R { return real(a) * real(a) + imaginary(a) * imaginary(a); }
fn sync() { storageBarrier(); workgroupBarrier(); }"""

#: Sums and maxima of what the invocations have, which all of them get. The uniform load has a barrier before it and one after it, and lets
#: results decide on control flow with barriers.
_TOGETHER = """fn {name}(x: R, local: u32) -> R {{
  part[local] = x;
  for (var reach = {half}u; reach > 0u; reach >>= 1u) {{
    workgroupBarrier();
    if (local < reach) {{ part[local] = {combined}; }}
  }}
  return workgroupUniformLoad(&part[0]);
}}"""

#: The index of the greatest, the first of equals.
_GREATEST = """fn greatest(x: R, at: u32, local: u32) -> u32 {{
  part[local] = x;
  places[local] = at;
  for (var reach = {half}u; reach > 0u; reach >>= 1u) {{
    workgroupBarrier();
    if (local < reach) {{
      let a = part[local];
      let b = part[local + reach];
      if (b > a || (b == a && places[local + reach] < places[local])) {{
        part[local] = b;
        places[local] = places[local + reach];
      }}
    }}
  }}
  return workgroupUniformLoad(&places[0]);
}}"""


def is_field(dtype: np.dtype, device: TargetCapabilities, iterations: int) -> bool:
    """Return True if the device factors such matrices, in so many loop iterations."""
    return is_supported(dtype, device) and iterations <= device.iterations


def real_part(dtype: np.dtype) -> np.dtype:
    """Return the dtype of real parts."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def invocations(work: int) -> int:
    """Return the size of a workgroup that has so much to do in parallel."""
    return 64 if work <= 64 else 256


def field_shader(device: TargetCapabilities, dtype: np.dtype, count: int) -> Shader:
    """Return a shader with these functions, for workgroups of so many invocations."""
    shader = Shader(device, count)
    real = wgsl_type(real_part(dtype))
    shader.helper("types", f"alias T = {wgsl_type(dtype)};\nalias R = {real};")
    shader.helper("field", (_COMPLEX if dtype.kind == "c" else _REAL) + "\n" + _COMMON)
    shader.workgroup("part", "R", count)
    shader.workgroup("places", "u32", count)
    half = count // 2
    shader.helper("sum", _TOGETHER.format(name="sum_all", half=half, combined="part[local] + part[local + reach]"))
    shader.helper("max", _TOGETHER.format(name="max_all", half=half, combined="max(part[local], part[local + reach])"))
    shader.helper("greatest", _GREATEST.format(half=half))
    shader.helper("nan", f"fn nan() -> T {{ return {constant(dtype, np.nan + 0j if dtype.kind == 'c' else np.nan).text}; }}")
    return shader


def written(shader: Shader, text: str) -> None:
    """Add WGSL to a shader, in which STEP is the number of invocations."""
    for statement in text.replace("STEP", f"{shader.invocations}u").strip().splitlines():
        shader.emit(statement)
