"""Statements, memory and functions of kernels, and what their parameters mean."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.targets.nvidia.translation.running import ON_CARD, run
from volta_fn.errors import CompilerError
from volta_fn.targets.nvidia.translation import translate

COUNT = 64

_KERNEL = """
@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;
{declarations}
@compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let i = id.x;
  var r = 0u;
  {body}
  results[i] = r;
}}
"""
NUMBERS = np.random.default_rng(3).integers(0, 1000, COUNT, np.uint32)


def results_of(body: str, declarations: str = "") -> list[int]:
    """Return what a body leaves in `r`, of which `given[i]` is a number."""
    results = np.zeros(COUNT, np.uint32)
    run(_KERNEL.format(body=body, declarations=declarations), (COUNT // 32, 1, 1), [NUMBERS, results])
    return [int(x) for x in results]


def expected(function: object) -> list[int]:
    """Return the same by a function of the number and its place."""
    return [function(int(x), i) & 0xFFFFFFFF for i, x in enumerate(NUMBERS)]  # type: ignore[operator]


# Loops and branches.


def test_a_loop_may_go_on_and_end_early() -> None:
    body = "for (var k = 0u; k < given[i]; k++) { if (k % 3u == 1u) { continue; } if (k > 20u) { break; } r += k; }"
    assert results_of(body) == expected(lambda x, i: sum(k for k in range(min(x, 21)) if k % 3 != 1))


def test_a_loop_without_any_of_its_parts() -> None:
    assert results_of("var k = 0u; for (;;) { if (k == 5u) { break; } k += 1u; r += 2u; }") == [10] * COUNT


def test_while() -> None:
    assert results_of("var x = given[i]; while (x > 1u) { x = x / 2u; r++; }") == expected(lambda x, i: max(x.bit_length() - 1, 0))


def test_the_update_of_a_loop_sees_no_variables_of_the_body() -> None:
    body = "for (var k = 0u; k < given[i] % 5u; k++) { var k = 2u; k += 5u; r += k; if (r > 100u) { break; } }"
    assert results_of(body) == expected(lambda x, i: 7 * (x % 5))


def test_a_loop_ends_by_break() -> None:
    body = "var k = 0u; loop { if (k == given[i] % 7u) { break; } r += k; k++; }"
    assert results_of(body) == expected(lambda x, i: sum(range(x % 7)))


def test_switch() -> None:
    body = """
    switch (given[i] % 6u) {
      case 0u: { r = 10u; }
      case 1u, 2u: { if (i % 2u == 0u) { break; } r = 20u; }
      default { r = 30u; }
      case 4u { r = 40u; }
    }"""
    table = {0: lambda i: 10, 1: lambda i: 20 * (i % 2), 2: lambda i: 20 * (i % 2), 4: lambda i: 40}
    assert results_of(body) == expected(lambda x, i: table.get(x % 6, lambda i: 30)(i))


def test_switch_without_a_default_and_continue_within() -> None:
    body = "for (var k = 0; k < 6; k++) { switch k { case 2: { continue; } case -1, 4: { r += 100u; } default: {} } r += u32(k); }"
    assert results_of(body) == [100 + 0 + 1 + 3 + 4 + 5] * COUNT


def test_else_if() -> None:
    body = "let x = given[i]; if (x < 100u) { r = 1u; } else if (x < 500u) { r = 2u; } else { r = 3u; }"
    assert results_of(body) == expected(lambda x, i: 1 if x < 100 else 2 if x < 500 else 3)


def test_statements_after_a_return_are_allowed() -> None:
    body = "r = late(given[i]);"
    declarations = "fn late(x: u32) -> u32 { if (x > 500u) { return 1u; } else { return 2u; } return 3u; }"
    assert results_of(body, declarations) == expected(lambda x, i: 1 if x > 500 else 2)


def test_the_right_side_is_evaluated_only_if_it_matters() -> None:
    declarations = "fn count(place: u32, x: bool) -> bool { results[place] += 1u; return x; }"
    body = "let i_ = i; if (count(i_, given[i] < 500u) && count(i_, given[i] < 100u) || count(i_, false)) { r = 100u; } r += results[i];"
    assert results_of(body, declarations) == expected(lambda x, i: (100 + 2) if x < 100 else 3 if x < 500 else 2)


def test_scopes_end_with_their_blocks() -> None:
    assert results_of("let x = 1u; { let x = 2u; r += x; } if (true) { let x = 4u; r += x; } r += x;") == [7] * COUNT


# Memory.


def test_arrays_of_a_function() -> None:
    body = """
    var a: array<array<u32, 3>, 4>;
    for (var k = 0u; k < 12u; k++) { a[k / 3u][k % 3u] = k * given[i]; }
    let copy = a;
    a[1][2] = 0u;
    r = copy[given[i] % 4u][given[i] % 3u] + a[1][2];"""
    assert results_of(body) == expected(lambda x, i: (x % 4 * 3 + x % 3) * x)


def test_variables_begin_with_zero() -> None:
    declarations = "struct S { a: u32, b: vec2<u32> } var<private> p: array<u32, 4>; var<private> q: u32 = 3u;"
    body = "var x: u32; var v: vec3<u32>; var s: S; p[i % 4u] += 1u; q += 1u; r = x + v.y + s.b.y + p[0] + p[1] + p[2] + p[3] + q;"
    assert results_of(body, declarations) == [5] * COUNT


def test_components_by_number_and_by_name() -> None:
    body = """
    var v = vec4<u32>(1u, 2u, 3u, 4u);
    v[given[i] % 4u] = 10u;
    v.z += 5u;
    let w = v.wzyx;
    r = v[i % 4u] * 1000u + w.x * 100u + dot(w.yz, vec2(1u, 2u));"""

    def reference(x: int, i: int) -> int:
        v = [1, 2, 3, 4]
        v[x % 4] = 10
        v[2] += 5
        return v[i % 4] * 1000 + v[3] * 100 + v[2] + 2 * v[1]

    assert results_of(body) == expected(reference)


def test_structures_are_values_and_variables() -> None:
    declarations = """
    struct Inner { x: f32, n: vec3<u32> }
    struct Outer { a: Inner, b: array<Inner, 2>, c: u32 }
    fn grown(o: Outer) -> Outer { var p = o; p.b[1].n.y += o.c; p.a.x *= 2.0f; return p; }"""
    body = """
    let zero = Inner();
    var o = Outer(Inner(1.5f, vec3<u32>(i)), array<Inner, 2>(zero, Inner(0.0f, vec3<u32>(1u, 2u, 3u))), given[i]);
    o = grown(grown(o));
    r = o.b[1].n.y + u32(o.a.x) * 10000u + o.b[i % 2u].n.z * 100000u;"""
    assert results_of(body, declarations) == expected(lambda x, i: 2 + 2 * x + 60000 + (300000 if i % 2 else 0))


def test_vectors_of_truth_values() -> None:
    body = """
    var a: array<vec3<bool>, 4>;
    a[i % 4u] = vec3<bool>(given[i] > 500u, true, i > 9u);
    a[(i + 1u) % 4u].y = !a[i % 4u].x;
    let c = a[i % 4u];
    let b = a[(i + 1u) % 4u] | vec3(false, false, c.x && c.y && c.z);
    r = select(0u, 1u, b.y) + select(0u, 2u, b.z) + select(0u, 4u, a[(i + 2u) % 4u].x)
      + dot(select(vec3(0u), vec3(8u, 16u, 32u), vec3(given[i]) < vec3(100u, 300u, 900u)), vec3(1u));"""

    def reference(x: int, i: int) -> int:
        return (x <= 500) + 2 * (x > 500 and i > 9) + 8 * (x < 100) + 16 * (x < 300) + 32 * (x < 900)

    assert results_of(body) == expected(reference)


def test_vectors_of_truth_values_in_workgroup_memory() -> None:
    """A component has an address there, which must be that of the whole vector's component."""
    declarations = "var<workgroup> flags: array<vec4<bool>, 32>;"
    body = """
    let k = i % 32u;
    flags[k] = vec4<bool>(given[i] > 500u, true, i > 9u, false);
    let j = (k + i / 32u) % 4u;
    r = select(0u, 1u, flags[k][j]);
    flags[k].y = false;
    flags[k][(j + 3u) % 4u] = true;
    r += select(0u, 2u, flags[k].x) + dot(select(vec4(0u), vec4(4u, 8u, 16u, 32u), flags[k]), vec4(1u));"""

    def reference(x: int, i: int) -> int:
        flags, k = [x > 500, True, i > 9, False], i % 32
        j = (k + i // 32) % 4
        r = int(flags[j])
        flags[1] = False
        flags[(j + 3) % 4] = True
        return r + 2 * flags[0] + sum(4 << n for n, flag in enumerate(flags) if flag)

    assert results_of(body, declarations) == expected(reference)


def test_layout_in_storage_is_that_of_wgsl() -> None:
    source = """
    struct S { a: u32, b: vec3<f32>, c: f32, d: u64, e: array<vec3<u32>, 2>, f: f16 }
    @group(0) @binding(0) var<storage, read_write> all: array<S>;
    @compute @workgroup_size(1) fn main() {
      let s = all[1];
      all[0].c = s.c + f32(s.f);
      all[0].b = s.b * 2.0f;
      all[0].d = s.d + u64(s.a);
      all[0].e[1].z = s.e[1].y;
      all[0].f = f16(s.e[0].x);
    }"""
    offsets = {"a": 0, "b": 16, "c": 28, "d": 32, "e": 48, "f": 80}
    formats = ["<u4", ("<f4", 3), "<f4", "<u8", [("v", "<u4", 3), ("", "V4")], "<f2"]
    formats[4] = np.dtype((np.dtype([("v", "<u4", 3), ("pad", "V4")]), 2))
    layout = np.dtype({"names": list(offsets), "formats": formats, "offsets": list(offsets.values()), "itemsize": 96})
    memory = np.zeros(2, layout)
    memory[1]["a"], memory[1]["b"], memory[1]["c"], memory[1]["d"], memory[1]["f"] = 7, (1, 2, 3), 0.25, 1 << 40, 0.5
    memory[1]["e"]["v"] = [[5, 6, 7], [8, 9, 10]]
    run(source, (1, 1, 1), [memory.view(np.uint8)])
    first = memory[0]
    assert (first["c"], first["d"], first["f"]) == (0.75, (1 << 40) + 7, 5.0)
    assert first["b"].tolist() == [2, 4, 6]
    assert first["e"]["v"].tolist() == [[0, 0, 0], [0, 0, 9]]


def test_atomics_of_storage_and_workgroups() -> None:
    source = """
    @group(0) @binding(0) var<storage, read_write> cells: array<atomic<u32>, 8>;
    @group(0) @binding(1) var<storage, read_write> signed: array<atomic<i32>, 2>;
    var<workgroup> total: atomic<u32>;
    @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32, @builtin(workgroup_id) group: vec3<u32>) {
      if (i == 0u) { atomicStore(&total, 0u); }
      workgroupBarrier();
      atomicAdd(&total, i);
      workgroupBarrier();
      if (i == 0u) { atomicAdd(&cells[0], atomicLoad(&total)); }
      atomicMax(&cells[1], i * (group.x + 1u));
      atomicMin(&cells[2], i + 5u);
      atomicOr(&cells[3], 1u << (i % 32u));
      atomicAnd(&cells[4], ~(1u << (i % 4u)));
      atomicXor(&cells[5], i);
      atomicSub(&cells[6], 1u);
      let old = atomicExchange(&cells[7], i);
      atomicMin(&signed[0], -i32(i));
      atomicMax(&signed[1], -i32(i));
    }"""
    cells = np.array([0, 0, 100, 0, 0xFF, 0, 1000, 0], np.uint32)
    signed = np.array([0, -100], np.int32)
    run(source, (2, 1, 1), [cells, signed])
    *others, last = cells.tolist()
    assert others == [2 * 2016, 126, 5, 0xFFFFFFFF, 0xF0, 0, 1000 - 128]
    assert last < 64  # invocations exchange in any order
    assert signed.tolist() == [-63, 0]


def test_barriers_order_workgroup_memory() -> None:
    source = """
    @group(0) @binding(0) var<storage, read_write> values: array<f32>;
    var<workgroup> line: array<f32, 128>;
    var<workgroup> chosen: u32;
    fn sync() { storageBarrier(); workgroupBarrier(); }
    @compute @workgroup_size(128) fn main(@builtin(local_invocation_index) i: u32) {
      line[i] = values[i];
      if (i == 77u) { chosen = 5u; }
      let by = workgroupUniformLoad(&chosen);
      for (var s = 64u; s > 0u; s >>= 1u) {
        if (i < s) { line[i] += line[i + s]; }
        workgroupBarrier();
      }
      let other = values[127u - i];
      sync();
      values[i] = line[0] + other * f32(by);
    }"""
    values = np.arange(128, dtype=np.float32)
    run(source, (1, 1, 1), [values])
    assert values.tolist() == [8128 + 5 * (127 - i) for i in range(128)]


def test_tables_are_constants() -> None:
    declarations = """
    const size = 4u;
    const digits = array<u32, size>(3u, 1u, 4u, 1u);
    const offset: u32 = 2u * size;
    var<private> table: array<u32, 4> = digits;
    var<private> floats: array<vec2<f32>, 2> = array<vec2<f32>, 2>(vec2<f32>((-0.5f), 1.0f), vec2<f32>(2.0f, -4.0f));"""
    body = "r = table[given[i] % size] + digits[i % 4u] * 10u + offset * 100u + u32(i32(floats[i % 2u].y) + 5) * 10000u;"
    digits = [3, 1, 4, 1]
    assert results_of(body, declarations) == expected(lambda x, i: digits[x % 4] + 10 * digits[i % 4] + 800 + (60000, 10000)[i % 2])


# Functions and parameters.


def test_functions_use_bindings_and_private_variables() -> None:
    declarations = """
    var<private> one: u32;
    var<private> calls: u32;
    fn twice(k: u32) -> u32 { calls += one; return 2u * load(k); }
    fn load(k: u32) -> u32 { return given[min(k, arrayLength(&given) - one)]; }"""
    body = "one = 1u; r = twice(i + 1u) + load(i) + 10000u * calls + arrayLength(&results) * 100000u;"
    following = [*NUMBERS[1:].tolist(), int(NUMBERS[-1])]
    assert results_of(body, declarations) == expected(lambda x, i: 2 * following[i] + x + 10000 + 6400000)


def test_a_compound_assignment_reads_its_variable_first() -> None:
    """WGSL: `x op= y` is `x = x op (y)`, whose operands are evaluated from left to right."""
    declarations = """
    var<private> p: u32;
    var<private> v: vec4<u32>;
    fn five() -> u32 { p = 100u; v = vec4(100u); return 5u; }"""
    body = "p = given[i]; p += five(); r = p; v.y = given[i]; v.y *= five(); r += v.y * 10u + v.x * 10000u; p = 7u; p = p - five(); r += p;"
    assert results_of(body, declarations) == expected(lambda x, i: x + 5 + 50 * x + 1000000 + 2)


def test_pointers_are_places() -> None:
    declarations = "var<private> p: u32; var<workgroup> w: array<u32, 32>;"
    body = """
    var a = array<u32, 4>(1u, 2u, 3u, 4u);
    let element = &a[i % 4u];
    let whole = &p;
    let shared = &w[i % 32u];
    p = 1u;
    a[i % 4u] = given[i];
    *element += 1u;
    *whole += 2u;
    *shared = p;
    r = a[i % 4u] + *element + p * 10000u + w[i % 32u] * 100000u;"""
    assert results_of(body, declarations) == expected(lambda x, i: 2 * (x + 1) + 330000)


def test_arrays_take_the_type_of_all_their_elements() -> None:
    body = "let a = array(1, 2.5); let b = array(2, given[i]); r = u32(a[1] * 2.0f) + u32(a[0]) * 10u + b[0] * 100u + b[1] * 1000u;"
    assert results_of(body) == expected(lambda x, i: 215 + 1000 * x)


def test_long_functions_of_long_kernels_are_not_inlined() -> None:
    steps = "".join(f"  x = (x ^ {k}u) * 31u + (x >> {k % 31}u);\n" for k in range(40))
    declarations = f"var<private> seed: u32;\nfn mixed(y: u32) -> u32 {{ var x = y + seed + given[0];\n{steps} return x; }}"
    declarations += "fn more(y: u32) -> u32 { return " + " ^ ".join(f"mixed(y + {k}u)" for k in range(40)) + "; }"
    body = "seed = 5u; r = more(given[i]) + more(i);"

    def mixed(y: int) -> int:
        x = (y + 5 + int(NUMBERS[0])) & 0xFFFFFFFF
        for k in range(40):
            x = ((x ^ k) * 31 + (x >> (k % 31))) & 0xFFFFFFFF
        return x

    def more(y: int) -> int:
        result = 0
        for k in range(40):
            result ^= mixed(y + k)
        return result

    assert results_of(body, declarations) == expected(lambda x, i: more(x) + more(i))
    assert " noinline " in translate(_KERNEL.format(body=body, declarations=declarations)).llvm_ir
    assert " noinline " not in translate(_KERNEL.format(body="r = mixed(i);", declarations=declarations)).llvm_ir


def test_built_in_values_of_three_dimensions() -> None:
    source = """
    @group(0) @binding(0) var<storage, read_write> results: array<vec4<u32>>;
    @compute @workgroup_size(4, 2, 3) fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>,
        @builtin(local_invocation_index) index: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
      let place = (group.x + groups.x * (group.y + groups.y * group.z)) * 24u + index;
      results[place] = vec4<u32>(id, local.x + 10u * local.y + 100u * local.z);
    }"""
    assert translate(source).threads == (4, 2, 3)
    results = np.zeros((2, 3, 2, 3, 2, 4, 4), np.uint32)
    run(source, (2, 3, 2), [results])
    for (gz, gy, gx, z, y, x), _ in np.ndenumerate(results[..., 0]):
        assert results[gz, gy, gx, z, y, x].tolist() == [gx * 4 + x, gy * 2 + y, gz * 3 + z, x + 10 * y + 100 * z]


def test_an_empty_indirect_grid_does_nothing() -> None:
    source = _KERNEL.format(body="r = 1u;", declarations="")
    for words, count in (([0, 0, 0], 0), ([1, 1, 1], COUNT)):
        results = np.zeros(COUNT, np.uint32)
        run(source, (COUNT // 32, 1, 1), [NUMBERS, results], np.array(words, np.uint32))
        assert results.sum() == count


def test_parameters_follow_the_numbers_of_bindings() -> None:
    source = """
    @group(0) @binding(1) var<storage, read_write> second: array<u32>;
    @group(0) @binding(0) var<storage, read> first: array<u32>;
    @compute @workgroup_size(1) fn main() { second[0] = first[0] + arrayLength(&first) + 100u * arrayLength(&second); }"""
    second = np.zeros(3, np.uint32)
    run(source, (1, 1, 1), [np.array([7, 0], np.uint32), second])
    assert second[0] == 309
    ir = translate(source).llvm_ir
    head = next(line for line in ir.splitlines() if line.startswith("define ptx_kernel"))
    types = [parameter.split(" ")[0] for parameter in head.partition("(")[2].partition(") #0")[0].split(", ")]
    assert types == ["ptr", "ptr", "i64", "i64", "ptr"]
    llvm.parse_assembly(ir).verify()


@pytest.mark.parametrize("index", ["i + 1u", "i - 1u", "-1", "i * 4000000000u"])
@pytest.mark.parametrize("array", ["given", "results", "own", "shared_"])
def test_indices_out_of_range_end_a_checked_kernel(array: str, index: str) -> None:
    declarations = "var<workgroup> shared_: array<u32, 64>;"
    unreached = "if (i == 99u) { shared_[0] = own[1]; own[given[0]] = 1u; }"
    body = f"var own: array<u32, 64>; {unreached} let k = {index}; r = {array}[k];"
    if not ON_CARD:
        with pytest.raises(AssertionError, match="out of range"):
            results_of(body, declarations)
    results_of(body.replace(f"let k = {index}", "let k = i"), declarations)
    source = _KERNEL.format(body=body, declarations=declarations)
    assert "trap" in translate(source, is_checked=True).llvm_ir
    assert "trap" not in translate(source).llvm_ir


@pytest.mark.parametrize(("size", "residents"), [(256, 1), (512, 2), (1024, 1)])
def test_workgroups_of_512_leave_registers_for_another_one(size: int, residents: int) -> None:
    source = f"@group(0) @binding(0) var<storage, read_write> r: array<u32>; @compute @workgroup_size({size}) fn main() {{ r[0] = 1u; }}"
    assert f'"nvvm.minctasm"="{residents}"' in translate(source).llvm_ir


def test_the_same_text_gives_the_same_module() -> None:
    source = _KERNEL.format(
        body="r = f(given[i]) + g(i);", declarations="fn f(x: u32) -> u32 { return g(x); } fn g(x: u32) -> u32 { return x; }"
    )
    assert translate(source) == translate(source)


# Subgroups.

_SUBGROUP = """
@group(0) @binding(0) var<storage, read> given: array<{type}>;
@group(0) @binding(1) var<storage, read_write> results: array<{type}>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) group: u32, @builtin(subgroup_size) size: u32, @builtin(num_subgroups) groups: u32) {{
  let x = given[i];
  results[i] = {expression};
}}
"""


@pytest.mark.parametrize("type_", ["u32", "i32", "f32", "u64", "f64", "f16"])
def test_shuffles(type_: str) -> None:
    dtype = np.dtype({"u": "uint", "i": "int", "f": "float"}[type_[0]] + type_[1:])
    x = np.random.default_rng(1).integers(0, 100, 64).astype(dtype)
    halves, lanes = x.reshape(2, 32), np.arange(32)
    places = {
        "subgroupShuffleXor(x, 5u)": lanes ^ 5,
        "subgroupShuffle(x, (lane * 7u) % 32u)": lanes * 7 % 32,
    }
    for expression, place in places.items():
        results = np.zeros(64, dtype)
        run(_SUBGROUP.format(type=type_, expression=expression), (1, 1, 1), [x, results])
        assert results.tolist() == halves[:, place].reshape(-1).tolist(), expression


@pytest.mark.parametrize("type_", ["u32", "f32", "i64"])
def test_sums_of_subgroups(type_: str) -> None:
    dtype = np.dtype({"u": "uint", "i": "int", "f": "float"}[type_[0]] + type_[1:])
    x = np.random.default_rng(2).integers(1, 9, 64).astype(dtype)
    halves = x.reshape(2, 32)
    cases = {
        "subgroupAdd(x)": np.repeat(halves.sum(1), 32),
        "subgroupExclusiveAdd(x)": (halves.cumsum(1) - halves).reshape(-1),
    }
    for expression, wanted in cases.items():
        results = np.zeros(64, dtype)
        run(_SUBGROUP.format(type=type_, expression=expression), (1, 1, 1), [x, results])
        assert results.tolist() == wanted.tolist(), expression


def test_votes_and_numbers_of_subgroups() -> None:
    x = np.random.default_rng(2).integers(0, 2, 64).astype(np.uint32)
    x[32:] = 1
    words = [int(sum(int(v) << k for k, v in enumerate(half))) for half in x.reshape(2, 32)]
    cases = {
        "subgroupBallot(x == 1u).x": [words[k // 32] for k in range(64)],
        "lane + 100u * group + 1000u * size + 100000u * groups": [k % 32 + 100 * (k // 32) + 32000 + 200000 for k in range(64)],
    }
    for expression, wanted in cases.items():
        results = np.zeros(64, np.uint32)
        run(_SUBGROUP.format(type="u32", expression=expression), (1, 1, 1), [x, results])
        assert results.tolist() == wanted, expression


def test_vectors_and_truth_values_are_shuffled() -> None:
    x = np.arange(64, dtype=np.uint32)
    results = np.zeros(64, np.uint32)
    expression = "subgroupShuffleXor(vec2<u32>(x, 2u * x), 1u).y + select(0u, 1000u, subgroupShuffleXor(x == 4u, 1u))"
    run(_SUBGROUP.format(type="u32", expression=expression), (1, 1, 1), [x, results])
    assert results.tolist() == [2 * (k ^ 1) + (1000 if k == 5 else 0) for k in range(64)]


# Text beyond the subset.


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("r = unknown;", "the name unknown"),
        ("r = textureLoad(i);", "the function textureLoad"),
        ("r = i + 1.5f;", "operands of types u32, f32"),
        ("r = 1.5f;", "cannot be assigned"),
        ("let v: mat2x2<f32> = 1;", "the type mat2x2"),
        ("if (i) { }", "a condition of type"),
        ("break;", "break outside of a loop"),
        ("r = vec2<u32>(1u, 2u).z;", "has no member z"),
        ("r = f64(1.0); ", "cannot be assigned"),
        ("let x = exp(1.0lf);", "approximations"),
        ("r == 2u;", "no statement"),
        ("r = f(1.0f);", "an argument of type float"),
        ("r = f(1u, 2u);", "f has 1 parameters"),
        ("let p = given;", "an array without a length"),
        ("r = 1u", "expected ';'"),
        ("r = 1u $ 2u;", "begins no token"),
    ],
)
def test_errors_say_the_line_and_the_problem(body: str, problem: str) -> None:
    with pytest.raises(CompilerError, match="line ") as caught:
        translate(_KERNEL.format(body=body, declarations="fn f(x: u32) -> u32 { return x; }"))
    assert problem in str(caught.value)
    assert "WGSL" in caught.value.stage


def test_an_error_names_its_line() -> None:
    with pytest.raises(CompilerError, match="line 8"):
        translate(_KERNEL.format(body="r = unknown;", declarations=""))


@pytest.mark.parametrize(("expression", "threads"), [("subgroupAdd(1u)", 24), ("subgroupBallot(true).x", 48), ("subgroupHalf(1u)", 32)])
def test_subgroups_are_whole(expression: str, threads: int) -> None:
    source = f"@compute @workgroup_size({threads}) fn main() {{ let x = {expression}; }}"
    with pytest.raises(CompilerError, match="line 1: "):
        translate(source)


def test_a_module_needs_an_entry_point() -> None:
    with pytest.raises(CompilerError, match="entry point"):
        translate("fn f() {}")
