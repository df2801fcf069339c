"""Arrays bound in sections: every form in which shaders access storage is found. `runtime/test_large.py` runs whole programs so."""

from __future__ import annotations

from volta_fn.targets.wgsl.shader import Binding, hand_written
from volta_fn.targets.wgsl.transforms import split_bindings


def test_every_form_of_access() -> None:
    """Loads in indices of stores, components, operators, atomic operations, lengths."""
    body = """  if (a[i].x == a[u32(a[j][k])].y) { b1[0] = 1u; }
  let n = atomicAdd(&b[i + 1u], u32(a[0].x)); atomicStore(&b[n], 0u);
  let m = atomicLoad(&b[0]) + arrayLength(&a);
"""
    shader = hand_written((Binding("a", "vec4<f32>"), Binding("b", "atomic<u32>", written=True)), body, {}, 1)
    result = split_bindings(shader, (2, 3), 256).text
    assert "@binding(1) var<storage, read> a_1: array<vec4<f32>>;" in result
    assert "@binding(4) var<storage, read_write> b_2: array<atomic<u32>>;" in result
    assert "fn a_at(i: u32) -> vec4<f32> { if (i < 16u) { return a_0[i]; } return a_1[i - 16u]; }" in result
    assert "if (a_at(i).x == a_at(u32(a_at(j)[k])).y) { b1[0] = 1u; }" in result
    assert "let n = b_atomicAdd(i + 1u, u32(a_at(0).x)); b_atomicStore(n, 0u);" in result
    assert "let m = b_atomicLoad(0) + (arrayLength(&a_0) + arrayLength(&a_1));" in result
    assert "else if (i < 128u) { atomicStore(&b_1[i - 64u], value); } else { atomicStore(&b_2[i - 128u], value); }" in result


def test_compound_assignment() -> None:
    shader = hand_written((Binding("c", "f64", written=True),), "c[c[i]] += c[1] ;\n", {}, 1)
    assert split_bindings(shader, (2,), 256).body == (
        "{ let index_in_c = c_at(i); if (index_in_c < 32u) { c_0[index_in_c] += c_at(1) ; } else { c_1[index_in_c - 32u] += c_at(1) ; } }\n"
    )


def test_a_local_variable_of_the_same_name_stays() -> None:
    shader = hand_written((Binding("b0", "f32", written=True),), "let b0: f32 = x; b0[i] = b0 * 2.0;\n", {}, 1)
    assert split_bindings(shader, (1,), 256).body == shader.body
    assert "let b0: f32 = x;" in split_bindings(shader, (2,), 256).body
