"""Blocks of matrices, and rotations of their columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch, Shader
from volta_fn.targets.wgsl.scalars import constant, is_supported, wgsl_type
from volta_fn.targets.wgsl.scalars.number import literal

# Counters, sizes and copies of factorisations by blocks of columns.
#
# One workgroup per matrix factors each block of columns, and many update the later columns. The number of the block is in memory, so that
# all blocks have the same shaders: a dispatch reads one of two counters and writes the other.

#: Matrices up to this size have a workgroup each.
SMALL = 64

#: Invocations of workgroups that update columns.
INVOCATIONS = 256

#: Elements that a workgroup copies.
_COPIED = 4 * INVOCATIONS

_UINT32 = np.dtype(np.uint32)

#: Bytes of the two counters.
COUNTERS = 8


def repeated(count: int, statements: str, by: int = 4) -> str:
    """Return a loop over t from 0 to `count`, unrolled `by` times."""
    # Unrolling lets a GPU overlap the loads from workgroup memory of several iterations.
    by = min(by, count)
    numbers = "\n".join([f"{{ let t = start + {k}u;\n{statements} }}" for k in range(by)])
    return f"for (var start = 0u; start < {count}u; start += {by}u) {{\n{numbers}\n}}"


class Moved(NamedTuple):
    """Numbers that a workgroup moves together, by statements.

    `load` may assign element `i` to `value`, and `store` moves it.
    """

    numbers: int
    load: str
    store: str


def _staged(moved: Sequence[Moved], invocations: int) -> tuple[str, str, str]:
    """Return statements that declare, load and store an invocation's numbers."""
    declared, loads, stores = [], [], []
    for which, (count, load, store) in enumerate(moved):
        guard = f"if (i < {count}u) " if count % invocations else ""
        for k in range(-(-count // invocations)):
            name, number = f"ahead_{which}_{k}", f"let i = local + {k * invocations}u;"
            declared.append(f"var {name} = zero();")
            loads.append(f"{{ {number}\nvar value = zero();\n{guard}{{ {load} }}\n{name} = value; }}")
            stores.append(f"{{ {number}\nlet value = {name};\n{guard}{{ {store} }} }}")
    return "\n".join(declared), "\n".join(loads), "\n".join(stores)


def together(count: int, invocations: int, load: str, store: str) -> str:
    """Return statements that load numbers and then store them, as in `Moved`."""
    # All loads of an invocation are under way together.
    return "\n".join(["{", *_staged([Moved(count, load, store)], invocations), "}"])


def streamed(first: str, end: int, by: int, invocations: int, moved: Sequence[Moved], statements: str) -> str:
    """Return a loop over rows from `first` to `end`, by `by` rows from `begin` on.

    Their numbers are moved before the statements. Those of the next rows, zeros after the last, are loaded while the statements run.
    """
    declared, loads, stores = _staged(moved, invocations)
    return f"""{{
{declared}
{{ let begin = {first};
{loads} }}
for (var begin = {first}; begin < {end}u; begin += {by}u) {{
{stores}
workgroupBarrier();
let following = begin + {by}u;
{{ let begin = following;
{loads} }}
{statements}
workgroupBarrier();
}}
}}"""


def block_width(dtype: np.dtype) -> int:
    """Return the columns of a block."""
    # Three square tiles of this width fit in the least workgroup memory.
    return 32 if dtype.itemsize == 4 else 16


def count_blocks(shader: Shader, number: int, reads: int, added: int, atomic: bool = False) -> None:
    """Write statements that name a counter's value `step`.

    The other counter becomes that value and what is `added`. Both are the first words in the buffer of a number, which may be `atomic`.
    """
    shader.workgroup("counted", "u32")
    array = shader.atomics(number, _UINT32) if atomic else shader.buffer(number, _UINT32, written=True)
    old, new = (f"{array.name}[{k}u]" for k in (reads, 1 - reads))
    load, store = (f"atomicLoad(&{old})", f"atomicStore(&{new}, step + {added}u)") if atomic else (old, f"{new} = step + {added}u")
    written(
        shader,
        f"""
if (local == 0u) {{ counted = {load}; }}
let step = workgroupUniformLoad(&counted);
if (group == 0u && local == 0u) {{ {store}; }}""",
    )


def begin_count(shader: Shader, number: int) -> None:
    """Write statements that set both counters to zero."""
    counters = shader.buffer(number, _UINT32, written=True).name
    written(shader, f"if (group == 0u && local < 2u) {{ {counters}[local] = 0u; }}")


def element_shader(capabilities: TargetCapabilities, dtype: np.dtype, count: int) -> Shader:
    """Return a shader for `over_elements`, which names the matrix of a workgroup."""
    shader = field_shader(capabilities, dtype, INVOCATIONS)
    groups = max(-(-count // _COPIED), 1)
    written(shader, f"let matrix = group / {groups}u;\nlet first = (group % {groups}u) * {_COPIED}u;")
    return shader


def over_elements(shader: Shader, count: int, statements: str) -> None:
    """Write statements for each of the `count` elements `e` of a matrix."""
    written(shader, f"for (var e = first + local; e < min(first + {_COPIED}u, {count}u); e += STEP) {{\n{statements}\n}}")


def element_dispatch(shader: Shader, batch: int, count: int) -> Dispatch:
    """Return the dispatch of an `element_shader` for `count` elements of each matrix."""
    return shader.dispatch(batch * max(-(-count // _COPIED), 1), work(batch, count))


# Shaders that factor real and complex matrices by the same WGSL.
#
# A workgroup has a matrix. `T` is the type of the numbers and `R` that of their real parts. Storage that a workgroup writes is read by
# its other invocations after `sync()`. Loops have bounds that all invocations share.

#: The greatest number, in real parts of each dtype: magnitudes that are not at most this are not finite. (Comparisons with NaN are not
#: reliable on all devices; those with a bound are.)
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

#: Sums and maxima over the invocations, which all of them get. The uniform load has a barrier before it and one after it, and makes results
#: uniform, so that control flow with barriers may depend on them.
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


def is_field(dtype: np.dtype, capabilities: TargetCapabilities, iterations: int) -> bool:
    """Return True if the device supports the dtype and loops of so many iterations."""
    return is_supported(dtype, capabilities) and iterations <= capabilities.iterations


def real_part(dtype: np.dtype) -> np.dtype:
    """Return the dtype of real parts."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def invocations(work: int) -> int:
    """Return the size of a workgroup with `work` independent operations."""
    return 64 if work <= 64 else 256


def field_shader(capabilities: TargetCapabilities, dtype: np.dtype, count: int) -> Shader:
    """Return a shader with these functions, for workgroups of `count` invocations."""
    shader = Shader(capabilities, count)
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


# Methods that sweep over a matrix until nothing is left to do.
#
# A driver resets a GPU that is busy with one dispatch for seconds. One workgroup has a large matrix for itself, so each sweep over one is a
# dispatch. Between dispatches each matrix's `scale` (zero of a bad one) and the remainder after its last sweep are in memory: matrices that
# have converged have nothing to do.


class Method(NamedTuple):
    """The statements of an iterative method, for a shader that declares variables.

    Attributes:
        where: statements that name the offset of a matrix.
        before: those that load it, and name its `scale` and whether it is `bad`.
        sweep: those of a sweep, which name the remainder `left`.
        enough: the remainder at which sweeps end.
        after: statements that write the results.
    """

    where: str
    before: Callable[[Shader], str]
    sweep: Callable[[Shader], str]
    enough: str
    after: Callable[[Shader], str]


def swept(method: Method, new: Callable[[], Shader], batch: int, iterations: Iterations, state: tuple[int, np.dtype]) -> list[Dispatch]:
    """Return the dispatches of a method, with the shaders that `new` makes.

    `state` is the number of the workspace of `state_size`, and its dtype.
    """
    if iterations.are_many:
        return _swept_separately(method, new, batch, iterations, state)
    shader = new()
    before, sweep, after = method.before(shader), method.sweep(shader), method.after(shader)
    loop = f"for (var sweep = 0u; sweep < {SWEEPS}u; sweep++) {{\n{sweep}\nif (max_all(left, local) <= {method.enough}) {{ break; }}\n}}"
    written(shader, "\n".join([method.where, before, loop, after]))
    return [shader.dispatch(batch, work(batch, iterations.of_a_dispatch))]


def state_size(batch: int, iterations: Iterations, real: np.dtype) -> tuple[int, ...]:
    """Return the bytes of the workspace for the state between dispatches."""
    return (2 * batch * real.itemsize,) if iterations.are_many else ()


def _swept_separately(
    method: Method, new: Callable[[], Shader], batch: int, iterations: Iterations, state: tuple[int, np.dtype]
) -> list[Dispatch]:
    shaders = [new() for _ in range(3)]
    begin, sweep, end = shaders
    scale, unconverged = (f"{shaders[0].buffer(*state, written=True).name}[group * 2u + {k}u]" for k in (0, 1))
    for shader in (sweep, end):
        shader.buffer(*state, written=True)
    store = f"if (local == 0u) {{ {scale} = select(scale, R(0), bad); {unconverged} = select(R(1), R(0), bad); }}"
    written(begin, "\n".join([method.where, method.before(begin), store]))
    rest = f"let rest = max_all(left, local);\nif (local == 0u) {{ {unconverged} = rest; }}"
    head = f"if (max_all({unconverged}, local) > {method.enough}) {{"
    written(sweep, "\n".join([method.where, head, method.sweep(sweep), rest, "}"]))
    load = f"let scale = {scale};\nlet bad = scale == R(0);"
    written(end, "\n".join([method.where, load, method.after(end)]))
    return [shader.dispatch(batch, work(batch, iterations.of_a_dispatch)) for shader in (begin, *[sweep] * SWEEPS, end)]


# Jacobi's method: sweeps that rotate all pairs of columns, until none is left.
#
# The pairs of a step have no column in common. One of them makes of the Hermitian matrix [[a, g], [ḡ, b]] a diagonal one.

#: Matrices up to this size: the time that a workgroup takes grows with the cube.
LARGEST = 256

#: Sweeps at most; some six to ten are enough.
SWEEPS = 24

#: Invocations for a large matrix, if the device allows.
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

#: `rotation_of` returns the rotation of columns p and q; `rotation` stores it for all invocations.
_STORED = """struct Rotation { sine: T, tangent: T }
fn rotation(k: u32, a: R, b: R, g: T) {
  let result = rotation_of(a, b, g);
  sines[k] = result.sine;
  halves[k] = result.tangent;
}
"""


def declare_rotations(shader: Shader, n: int, dtype: np.dtype) -> None:
    """Declare ``pair(step, k)``, the k-th pair, and `rotation`, which stores its own."""
    # The lesser column of a pair is first. Columns p and q become `c p - s̄ q` and `s p + c q`. With t = s / (1 + c) these are
    # `p - s̄ (q + t p)` and `q + s (p - t̄ q)`: for small angles, which most are, only what is added is rounded. With an odd number n of
    # columns one has no partner, and its pair ends with n.
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

    In `even` - 1 steps each of the `even` indices meets every other one.
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

    Then squares do not overflow. Before, each invocation has set `most` to the largest of its elements, and `finite`; `bad` is true if some
    element is not finite.
    """
    return f"""let bad = max_all(select(R(1), R(0), finite), local) > R(0);
let largest = max_all(most, local);
let scale = select(largest, R(1), largest == R(0) || bad);
for (var i = local; i < {count}u; i += STEP) {{ {array}[base + i] = {array}[base + i] / scale; }}
sync();"""


def turned(p: str, q: str, x: str, y: str, s: str = "s", t: str = "t") -> str:
    """Return statements that rotate numbers x and y, and assign them to `p` and `q`."""
    return f"""{{
        let x = {x};
        let y = {y};
        {p} = x - times(conjugate({s}), y + times({t}, x));
        {q} = y + times({s}, x - times(conjugate({t}), y));
      }}"""


def workers(rows: int, n: int, dtype: np.dtype, capabilities: TargetCapabilities) -> int:
    """Return the invocations for a matrix of n columns."""
    # For large ones they are as many as the device and its workgroup memory allow.
    if rows <= 64:
        return 64 if rows <= 16 else 128
    real = real_part(dtype).itemsize
    each, others = 2 * real + dtype.itemsize + 4, n * (real + dtype.itemsize + 4) + dtype.itemsize
    return _MANY if capabilities.invocations >= _MANY and _MANY * each + others <= capabilities.workgroup_memory else 256


def lanes(n: int, invocations: int) -> int:
    """Return the number of invocations that share a pair of n columns."""
    # They are few, since one of them adds up the partial sums.
    return min(invocations // max((n + 1) // 2, 1), 16)


def rotated(array: str, base: str, rows: int, n: int, lanes: int) -> str:
    """Return statements that rotate a lane's rows of pair number k, columns `at`."""
    # Some rows are loaded before one of them is stored: a GPU waits for memory once, and compilers do not know that rows are disjoint.
    several = min(SEVERAL, -(-rows // lanes))
    full = rows % (several * lanes) == 0
    loads, stores = [], []
    for j in range(several):
        row = f"(row + {j * lanes}u)"
        offset = f"{base} + {row if full else f'min({row}, {rows - 1}u)'} * {n}u"
        loads.append(
            f"let p_{j} = {offset} + at.x;\nlet q_{j} = {offset} + at.y;\nlet x_{j} = {array}[p_{j}];\nlet y_{j} = {array}[q_{j}];"
        )
        store = turned(f"{array}[p_{j}]", f"{array}[q_{j}]", f"x_{j}", f"y_{j}")
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
    columns = [turned(p, q, p, q) for p, q in (("e00", "e01"), ("e10", "e11"))]
    rows = [turned(p, q, p, q, "s_row", "t_row") for p, q in (("e00", "e10"), ("e01", "e11"))]
    pairs_turned = [(f"turned[k{i} + pair_l.x]", f"turned[k{i} + pair_l.y]") for i in (0, 1)]
    bases = [turned(p, q, p, q) for p, q in pairs_turned]
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


# Upper bounds on an invocation's loop iterations in each factorisation.
#
# See `TargetCapabilities.iterations`. Loops that invocations divide have as many iterations as one of them gets (`_share`), and each loop
# that is begun has one more, in which it ends; sums over a triangle are half a square.

#: Multiplications that a GPU would do otherwise in an iteration of a workgroup, which mostly waits for memory.
_MULTIPLICATIONS = 1 << 14

#: Iterations of a reduction over a workgroup.
_BUDGET_TOGETHER = 11


def work(matrices: int, count: int) -> int:
    """Return iterations for each matrix as multiplications: see `Dispatch.work`."""
    return matrices * count * _MULTIPLICATIONS


def _share(count: int, work: int) -> int:
    return -(-count // invocations(work))


def of_triangular_solve(n: int, columns: int) -> int:
    """Return the bound for n unknowns, each eliminated from later ones."""
    work = n * columns
    return 3 * n + _share(work, work) * (1 + n // 2) + 2


def of_lu(m: int, n: int) -> int:
    """Return the bound for columns with pivots, each eliminated from later ones."""
    work, rank = max(m, n), min(m, n)
    column = 6 + _BUDGET_TOGETHER + 2 * _share(m, work) + _share(n, work)
    return _share(m * n, work) * (1 + rank // 2) + _share(m, work) + rank * column + 3


def of_qr(m: int, n: int, wide: int) -> int:
    """Return the bound for reflections of later columns and of Q's `wide` ones."""
    work, rank = max(m, n), min(m, n)
    column = 6 + 2 * _BUDGET_TOGETHER + 3 * _share(m, work)
    reflected = rank * (2 * m - rank + 4) * (_share(n, work) + _share(wide, work))
    return _share(m * (n + wide), work) + _share(wide * n, work) + rank * column + reflected + 6


#: Iterations from which on each sweep is a dispatch of its own.
_BUDGET_MANY = 1 << 15


class Iterations(NamedTuple):
    """The iterations before sweeps, of one sweep, and after them."""

    before: int
    sweep: int
    after: int

    @property
    def are_many(self) -> bool:
        """True if several dispatches should share them."""
        return self.before + SWEEPS * self.sweep + self.after > _BUDGET_MANY

    @property
    def of_a_dispatch(self) -> int:
        """The most iterations of one dispatch."""
        return max(self) + _BUDGET_TOGETHER if self.are_many else self.before + SWEEPS * self.sweep + self.after


def _of_sweep(n: int, step: int) -> int:
    return 2 + _BUDGET_TOGETHER + (n + n % 2) * (1 + step)


def _of_rotations(rows: int, shared: int) -> int:
    """Return the bound for a loop over the rows of two columns that lanes share."""
    several = max(min(SEVERAL, -(-rows // shared)), 1)
    return 1 + -(-rows // (shared * several))


def of_eigh(n: int) -> Iterations:
    """Return the bounds for rotations of rows and columns, and for sorting."""
    pairs = (n + 1) // 2
    sweep = _of_sweep(n, 1 + 2 * _of_rotations(n, lanes(n, invocations(n))) + _share(pairs * n, n))
    return Iterations(3 * _share(n * n, n) + 2 * _BUDGET_TOGETHER + 3, sweep, 2 * (n + 2) * _share(n, n) + 2)


def of_svd(m: int, n: int, wide: int) -> Iterations:
    """Return the bounds for rotations of n columns of at most m rows, and the rest.

    That is sorting the columns, and completing them to `wide` ones (0: no vectors).
    """
    shared = lanes(n, invocations(m))
    products = 2 + -(-m // shared) + shared
    sweep = _of_sweep(n, products + _of_rotations(m, shared) + _of_rotations(n, shared))
    column = 6 + 2 * _BUDGET_TOGETHER + (8 + 2 * wide) * _share(m, m) + (2 + m) * _share(wide, m)
    over = 3 * _share(m * max(n, wide), m)
    return Iterations(over + 2 * _BUDGET_TOGETHER + 4, sweep, over + (4 + m + n) * _share(n, m) + n + wide * column + 6)
