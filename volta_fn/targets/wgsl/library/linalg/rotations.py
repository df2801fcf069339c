"""Jacobi's method: sweeps that rotate all pairs of columns, until none is left.

The pairs of a step have no column in common. One of them makes of the Hermitian matrix [[a, g], [ḡ, b]] a diagonal one.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.linalg.shader_templates import real_part
from volta_fn.targets.wgsl.scalars import Shader

#: Matrices up to this size: the time that a workgroup takes grows with the cube.
LARGEST = 256

#: Sweeps at most; some six to ten are enough.
SWEEPS = 24

#: Invocations for a large matrix, if there may be so many.
_MANY = 1024

#: Rows of a lane that are rotated side by side.
SEVERAL = 4

_REAL_ROTATION = """fn rotation_of(a: R, b: R, g: T) -> Rotation {
  if (g == R(0)) { return Rotation(R(0), R(0)); }
  let slope = (b - a) / (R(2) * g);
  let tangent = select(R(1), R(-1), slope < R(0)) / (abs(slope) + sqrt(R(1) + slope * slope));
  let root = sqrt(R(1) + tangent * tangent);
  return Rotation(tangent / root, tangent / (R(1) + root));
}"""

_ROTATION = """fn rotation_of(a: R, b: R, g: T) -> Rotation {
  let largest = size(g);
  if (largest == R(0)) { return Rotation(zero(), zero()); }
  let scaled = g / largest;
  let root = sqrt(square(scaled));
  let slope = (b - a) / (R(2) * largest * root);
  let tangent = select(R(1), R(-1), slope < R(0)) / (abs(slope) + sqrt(R(1) + slope * slope));
  let cosine = R(1) / sqrt(R(1) + tangent * tangent);
  let sine = scaled * (tangent * cosine / root);
  return Rotation(sine, sine / (R(1) + cosine));
}"""

#: `rotation_of` returns what rotates columns p and q; `rotation` stores it for all invocations.
_STORED = """struct Rotation { sine: T, tangent: T }
fn rotation(k: u32, a: R, b: R, g: T) {
  let made = rotation_of(a, b, g);
  sines[k] = made.sine;
  halves[k] = made.tangent;
}
"""


def declare_rotations(shader: Shader, n: int, dtype: np.dtype) -> None:
    """Declare ``pair(step, k)``, the k-th pair, and `rotation`, which stores its own.

    The lesser column of a pair is first. Columns p and q become ``c p - s̄ q`` and ``s p + c q``. With t = s / (1 + c) these are
    ``p - s̄ (q + t p)`` and ``q + s (p - t̄ q)``: for small angles, which most are, only what is added is rounded. With an odd number n of
    columns one has no partner, and its pair ends with n.
    """
    even = n + n % 2
    shader.workgroup("sines", "T", even // 2)
    shader.workgroup("halves", "T", even // 2)
    round_robin(shader, "pair", even)
    shader.helper("rotation", rotation(dtype))


def rotation(dtype: np.dtype) -> str:
    """Return the functions of the rotation number k of [[a, g], [ḡ, b]]."""
    return _STORED + (_ROTATION if dtype.kind == "c" else _REAL_ROTATION)


def round_robin(shader: Shader, name: str, even: int) -> None:
    """Declare a function for the k-th pair of a step.

    In one step less than the even number of things all of them meet.
    """
    period = max(even - 1, 1)
    shader.helper(
        name,
        f"""fn {name}(step: u32, k: u32) -> vec2<u32> {{
  let a = (step + k) % {period}u;
  let b = select((step + {period}u - k) % {period}u, {even - 1}u, k == 0u);
  return vec2<u32>(min(a, b), max(a, b));
}}""",
    )


def scaled(array: str, count: int) -> str:
    """Return statements that divide elements by the largest one, `scale`.

    Then squares do not overflow. Each invocation has found the largest of its own, `most`, and whether they are `finite`; if some are
    not, `bad` is true.
    """
    return f"""let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
for (var i = local; i < {count}u; i += STEP) {{ {array}[base + i] = {array}[base + i] / scale; }}
sync();"""


def rotate(array: str, p: str, q: str, conjugated: bool = False) -> str:
    """Return statements that rotate two elements by pair number k.

    They are of columns, or, `conjugated`, of rows.
    """
    s, t = (f"conjugate({name}[k])" if conjugated else f"{name}[k]" for name in ("sines", "halves"))
    return f"""let x = {array}[{p}];
    let y = {array}[{q}];
    let s = {s};
    let t = {t};
    {array}[{p}] = x - times(conjugate(s), y + times(t, x));
    {array}[{q}] = y + times(s, x - times(conjugate(t), y));"""


def workers(rows: int, n: int, dtype: np.dtype, device: TargetCapabilities) -> int:
    """Return the invocations for a matrix of n columns.

    For large ones they are as many as there may be and have workgroup memory.
    """
    if rows <= 64:
        return 64 if rows <= 16 else 128
    real = real_part(dtype).itemsize
    each, others = 2 * real + dtype.itemsize + 4, n * (real + dtype.itemsize + 4) + dtype.itemsize
    return _MANY if device.invocations >= _MANY and _MANY * each + others <= device.workgroup_memory else 256


def lanes(n: int, invocations: int) -> int:
    """Return how many invocations share a pair of n columns.

    They are few, as one of them adds up for all.
    """
    return min(invocations // max((n + 1) // 2, 1), 16)


def rotated(array: str, base: str, rows: int, n: int, lanes: int) -> str:
    """Return statements that rotate a lane's rows of pair number k, columns `at`.

    Some rows are loaded before one of them is stored: a GPU waits for memory once, and compilers do not know that rows are disjoint.
    """
    several = min(SEVERAL, -(-rows // lanes))
    full = rows % (several * lanes) == 0
    loads, stores = [], []
    for j in range(several):
        row = f"(row + {j * lanes}u)"
        offset = f"{base} + {row if full else f'min({row}, {rows - 1}u)'} * {n}u"
        loads.append(
            f"let p_{j} = {offset} + at.x;\nlet q_{j} = {offset} + at.y;\nlet x_{j} = {array}[p_{j}];\nlet y_{j} = {array}[q_{j}];"
        )
        store = f"""{array}[p_{j}] = x_{j} - times(conjugate(s), y_{j} + times(t, x_{j}));
        {array}[q_{j}] = y_{j} + times(s, x_{j} - times(conjugate(t), y_{j}));"""
        stores.append(store if full else f"if ({row} < {rows}u) {{ {store} }}")
    return f"""{{
      let s = sines[k];
      let t = halves[k];
      for (var row = lane; row < {rows}u; row += {several * lanes}u) {{
        {" ".join(loads)}
        {" ".join(stores)}
      }}
    }}"""


def tile_rotations(pairs: int, pitch: int, steps: str, pairing: str, *, all_work: bool = True) -> str:
    """Return statements that rotate a Hermitian `tile`, and columns of `turned`.

    Both are in workgroup memory, in rows with the `pitch`.

    Each of the `steps` rotates all `pairs` of columns. An invocation has the four elements of two pairs k and l; `pairing` sets their
    columns, `pair_k` and `pair_l`, in step `turned_by`. Invocations beyond those wait, unless `all_work`.
    """
    rotate = """{{
        let x = {p};
        let y = {q};
        {p} = x - times(conjugate({s}), y + times({t}, x));
        {q} = y + times({s}, x - times(conjugate({t}), y));
      }}"""
    columns = [rotate.format(p=f"e{i}0", q=f"e{i}1", s="s", t="t") for i in (0, 1)]
    rows = [rotate.format(p=f"e0{i}", q=f"e1{i}", s="s_row", t="t_row") for i in (0, 1)]
    bases = [rotate.format(p=f"turned[k{i} + pair_l.x]", q=f"turned[k{i} + pair_l.y]", s="s", t="t") for i in (0, 1)]
    elements = [(i, j, f"tile[pair_k.{'xy'[i]} * {pitch}u + pair_l.{'xy'[j]}]") for i in (0, 1) for j in (0, 1)]
    loads = "\n      ".join([f"var e{i}{j} = {element};" for i, j, element in elements])
    stores = "\n      ".join([f"{element} = e{i}{j};" for i, j, element in elements])
    newline = "\n      "
    return f"""let k = local / {pairs}u;
    let l = local % {pairs}u;
    for (var turned_by = 0u; turned_by < {steps}; turned_by++) {{
      var pair_k = vec2<u32>();
      var pair_l = vec2<u32>();
      {pairing}
      if (k == 0u) {{
        rotation(l, real(tile[pair_l.x * {pitch + 1}u]), real(tile[pair_l.y * {pitch + 1}u]), tile[pair_l.x * {pitch}u + pair_l.y]);
      }}
      workgroupBarrier();
      {"" if all_work else f"if (k < {pairs}u) {{"}
      let s = sines[l];
      let t = halves[l];
      let s_row = conjugate(sines[k]);
      let t_row = conjugate(halves[k]);
      {loads}
      {newline.join(columns)}
      {newline.join(rows)}
      if (k == l) {{
        e01 = zero();
        e10 = zero();
      }}
      {stores}
      let k0 = k * {pitch}u;
      let k1 = (k + {pairs}u) * {pitch}u;
      {newline.join(bases)}
      {"" if all_work else "}"}
      workgroupBarrier();
    }}"""
