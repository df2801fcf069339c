"""Products by instructions that sum groups: exact for integers, as near as float32 sums of exact products for bfloat16."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.targets.cpu.matmul.products import native
from volta_fn import lax
from volta_fn.compiler.contractions import problem_of
from volta_fn.runtime.llvm.host import Host, host, llvm
from volta_fn.targets.cpu import matmul
from volta_fn.targets.cpu.matmul import micro_kernel
from volta_fn.targets.cpu.matmul.micro_kernel import grouped_type

RNG = np.random.default_rng(0)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Contracted axes of (left, right): matrices as they are, and either or both transposed.
DIMS = [(((1 - lhs,), (rhs,)), ((), ())) for lhs in (0, 1) for rhs in (0, 1)]
#: Few rows along either axis, whole and cut tiles, several panels and blocks of k, of which tasks share packed panels; k of any remainder
#: by a group and by a vector; rows in place that share sets of a cache.
SIZES = [
    (1, 70, 65),
    (2, 300, 33),
    (3, 129, 200),
    (5, 64, 51),
    (8, 257, 130),
    (17, 20, 7),
    (40, 35, 64),
    (33, 97, 2),
    (20, 18, 1),
    (31, 150, 905),
    (300, 50, 1603),
    (40, 20, 2048),
]
#: A row by large matrices, whose rows are read side by side: whole and cut tiles, either operand, rows that share sets of a cache.
LARGE = [(1, 1337, 100), (1337, 1, 98), (1, 300, 512), (1, 260, 1024)]
PAIRS = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]


def operand(dtype: Any, rows: int, columns: int, *, transposed: bool) -> np.ndarray:
    """Numbers of a whole dtype, its extremes among them."""
    shape = (columns, rows) if transposed else (rows, columns)
    kind = np.dtype(dtype)
    if kind == BFLOAT16:
        return RNG.normal(size=shape).astype(kind)
    limits = np.iinfo(kind)
    x = RNG.integers(limits.min, limits.max + 1, shape).astype(kind)
    x.flat[: x.size // 3] = RNG.choice([limits.min, limits.max], x.size // 3)
    return x


def operands(lhs: Any, rhs: Any, size: tuple[int, int, int], dims: Any) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = size
    ((x_axis,), (y_axis,)), _ = dims
    return operand(lhs, m, k, transposed=x_axis == 0), operand(rhs, k, n, transposed=y_axis == 1)


def wide_product(x: np.ndarray, y: np.ndarray, dims: Any, dtype: Any) -> np.ndarray:
    ((x_axis,), (y_axis,)), _ = dims
    return np.tensordot(x.astype(dtype), y.astype(dtype), ((x_axis,), (y_axis,)))


@functools.cache
def machine_has(dtype: str) -> bool:
    """Return True if this machine sums groups of a dtype."""
    kind, sums = (BFLOAT16, np.float32) if dtype == "bfloat16" else (np.dtype(dtype), np.int32)
    return grouped_type(problem_of((9, 9), (9, 9), DIMS[0], (kind, kind, np.dtype(sums)))) is not None


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("size", [*SIZES, *LARGE])
@pytest.mark.parametrize("result", [None, "float32"])
def test_products_of_bfloat16_sum_in_float32(size: tuple[int, int, int], dims: Any, result: str | None) -> None:
    """Each of k sums of pairs rounds twice, whatever the order: by 2^-24 of at most the sum of absolute products."""
    x, y = operands(BFLOAT16, BFLOAT16, size, dims)
    out = native(x, y, dims, result, chunks=2)
    exact, absolute = wide_product(x, y, dims, np.float64), wide_product(abs(x), abs(y), dims, np.float64)
    bound = absolute * size[2] * 2.0**-24 + (0 if result else abs(exact) * 2.0**-8)
    assert (abs(out.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pair", PAIRS)
def test_products_of_bytes_are_exact(size: tuple[int, int, int], dims: Any, pair: tuple[str, str]) -> None:
    x, y = operands(*pair, size, dims)
    exact = wide_product(x, y, dims, np.int64)
    np.testing.assert_array_equal(native(x, y, dims, "int32" if "int8" in pair else "uint32", chunks=2), exact)
    if pair[0] == pair[1]:
        np.testing.assert_array_equal(native(x, y, dims), exact.astype(pair[0]))


def test_extremes_of_bytes_in_every_lane() -> None:
    for a in (-128, -1, 0, 127):
        for b in (-128, -1, 0, 127):
            x, y = np.full((9, 300), a, np.int8), np.full((300, 40), b, np.int8)
            assert (native(x, y, DIMS[0], "int32") == 300 * a * b).all()
            assert (native(x[:2], y, DIMS[0], "int32") == 300 * a * b).all()


def test_sums_wrap_around() -> None:
    terms = 140_000  # of 127 * 127: past 2^31
    x, y = np.full((3, terms), 127, np.int8), np.full((terms, 4), 127, np.int8)
    expected = np.int64(terms * 127 * 127).astype(np.int32)
    assert expected < 0
    for dims, right in ((DIMS[0], y), (DIMS[1], np.ascontiguousarray(y.T))):
        assert (native(x, right, dims, "int32") == expected).all()
        assert (native(np.repeat(x, 5, 0), right, dims, "int32") == expected).all()


@pytest.mark.parametrize("pair", PAIRS)
def test_operands_that_a_program_widens_itself(pair: tuple[str, str]) -> None:
    x, y = operands(*pair, (20, 70, 133), DIMS[0])
    product = vf.jit(lambda x, y: x.astype("int32") @ y.astype("int32"))
    np.testing.assert_array_equal(product(x, y), x.astype(np.int64) @ y.astype(np.int64))
    assert product.lower(x, y).memory().temporaries == 0


@pytest.mark.parametrize("rows", [2, 30])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_stacks_bias_and_activation(rows: int, dtype: str) -> None:
    x, y = (
        operand(dtype, 3 * rows, 50, transposed=False).reshape(3, rows, 50),
        operand(dtype, 3 * 50, 70, transposed=False).reshape(3, 50, 70),
    )
    sums = "float32" if dtype == "bfloat16" else "int32"
    bias = RNG.integers(-9, 9, 70).astype(sums)
    layer = vf.jit(lambda x, y, b: jnp.maximum(jnp.matmul(x, y, preferred_element_type=sums) + b, 0).transpose(2, 0, 1))
    exact = np.maximum(np.matmul(x.astype(np.float64), y.astype(np.float64)) + bias, 0).transpose(2, 0, 1)
    np.testing.assert_allclose(layer(x, y, bias), exact, rtol=1e-5, atol=1e-4 if dtype == "bfloat16" else 0)


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_nan_and_infinity_of_bfloat16(rows: int) -> None:
    for dims in DIMS:
        x, y = operands(BFLOAT16, BFLOAT16, (rows, 40, 21), dims)
        x, y = (a if transposed else a.T for a, transposed in ((x, dims[0][0][0] == 0), (y, dims[0][1][0] == 0)))  # k first
        x[20, 0], x[3, -1], y[7, 5], y[20, 9] = np.nan, np.inf, -np.inf, np.inf
        with np.errstate(invalid="ignore"):
            expected = x.astype(np.float32).T @ y.astype(np.float32)
        lhs, rhs = np.ascontiguousarray(x if dims[0][0][0] == 0 else x.T), np.ascontiguousarray(y if dims[0][1][0] == 0 else y.T)
        out = native(lhs, rhs, dims, "float32")
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(out[~finite], expected[~finite])
        assert np.isfinite(out[finite]).all()


def test_subnormal_numbers_count_as_zero_or_as_themselves() -> None:
    """A sum loses at most the operands and sums below the least normal number, 2^-126, which the instruction takes for 0."""
    least = 2.0**-126
    x = np.array([[least / 4, 1.0, least * 2, -least / 2]], BFLOAT16).repeat(10, 0)
    y = np.array([[1.0], [least / 8], [0.5], [1.0]], BFLOAT16).repeat(20, 1)
    for rows in (1, 10):
        out = native(x[:rows], y, DIMS[0], "float32").astype(np.float64)
        assert (abs(out - wide_product(x[:rows], y, DIMS[0], np.float64)) <= 4 * least).all()


def test_float32_operands_keep_subnormal_numbers() -> None:
    """Products of bfloat16 that a program widens compute in float32."""
    x, y = np.full((10, 4), 2.0**-130, BFLOAT16), np.ones((4, 20), BFLOAT16)
    for rows in (1, 10):
        product = vf.jit(lambda x, y: x.astype("float32") @ y.astype("float32"))(x[:rows], y)
        np.testing.assert_array_equal(product, np.full((rows, 20), 2.0**-128, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_groups_are_what_the_machine_has(dtype: str) -> None:
    features = {"bfloat16": {64: "avx512bf16"}, "int8": {64: "avx512vnni", 32: "avxvnni"}}[dtype]
    if host().triple.startswith("x86"):
        feature = features.get(host().vector_bytes)
        assert machine_has(dtype) == (feature is not None and host().has(feature))
    else:
        assert machine_has(dtype) == host().has({"bfloat16": "bf16", "int8": "dotprod"}[dtype])


ARM = Host("aarch64-unknown-linux-gnu", "neoverse-v1", "+neon,+bf16,+dotprod", 16, 32)
X86 = Host("x86_64-unknown-linux-gnu", "znver4", "+avx512bf16,+avx512vnni,+avx512f,+avx512bw,+avx512vl,+fma,+f16c", 64, 32)
X86_NARROW = Host("x86_64-unknown-linux-gnu", "alderlake", "+avxvnni,+avx2,+fma,+f16c", 32, 16)


@pytest.mark.parametrize(
    ("machine", "dtype", "instruction"),
    [
        (ARM, "bfloat16", "bfdot"),
        (ARM, "int8", "sdot"),
        (X86, "bfloat16", "vdpbf16ps"),
        (X86, "int8", "vpdpbusd"),
        (X86_NARROW, "int8", "vpdpbusd"),
    ],
)
def test_instructions_of_other_machines(machine: Host, dtype: str, instruction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-kernel assembles for them, if LLVM has the target here; it does not run."""
    monkeypatch.setattr(micro_kernel, "host", lambda: machine)
    kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    sums = np.dtype("float32" if dtype == "bfloat16" else "int32")
    work = grouped_type(problem_of((9, 9), (9, 9), DIMS[0], (kind, kind, sums)))
    assert work is not None and work.lanes == machine.vector_bytes // 4
    kernel = micro_kernel.micro_kernel.__wrapped__(micro_kernel.MicroKernel(work, 3, 2 * work.lanes, 3, 4, 2 * work.lanes, True))
    binding = llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple(machine.triple)
    except RuntimeError:
        pytest.skip(f"this LLVM has no {machine.triple}")
    module = binding.parse_assembly(kernel.text)
    module.triple = machine.triple
    assembly = target.create_target_machine(cpu=machine.cpu, features=machine.features).emit_assembly(module)
    assert instruction in assembly


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("k", [3, 70])
def test_rows_of_several_axes(dtype: str, k: int) -> None:
    x, y = operand(dtype, 2 * 12, k, transposed=False).reshape(2, 12, k), operand(dtype, k, 20, transposed=False)
    sums = "float32" if dtype == "bfloat16" else "int32"
    product = vf.jit(lambda x, y: jnp.einsum("abk,kn->bna", x, y, preferred_element_type=sums))
    exact = np.einsum("abk,kn->bna", x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(product(x, y), exact, rtol=1e-5, atol=1e-4 if dtype == "bfloat16" else 0)


def test_operands_of_several_axes_are_left_to_others() -> None:
    """A sum over axes that are no single stride of an operand, whose groups are not adjacent."""
    x, y = RNG.normal(size=(6, 4, 9)).astype(BFLOAT16), RNG.normal(size=(4, 6, 7)).astype(BFLOAT16)
    numbers = (((0, 1), (1, 0)), ((), ()))
    out = vf.jit(lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=np.float32))(x, y)
    np.testing.assert_allclose(out, np.einsum("abi,baj->ij", x.astype(np.float64), y.astype(np.float64)), rtol=1e-5, atol=1e-5)
    assert matmul.grouped_type(problem_of(x.shape, y.shape, numbers, (BFLOAT16, BFLOAT16, np.dtype(np.float32)))) is None


@pytest.mark.parametrize("terms", [1, 4, 8, 16, 32, 64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (2, 1), (8, 1)])
def test_short_products_of_bytes(rows: int, columns: int, terms: int) -> None:
    """A single column is contiguous along k, but what corrects the sums of signed bytes needs it packed."""
    x, y = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((rows, terms), (terms, columns)))
    product = vf.jit(lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32))
    np.testing.assert_array_equal(product(x, y), x.astype(np.int64) @ y)
