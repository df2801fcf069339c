"""Every workload of the benchmarks runs at its tiny size, and gives what JAX and PyTorch give."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness import WrongResultError, check
from benchmarks.worker import Bench
from benchmarks.workloads import WORKLOADS, large, named
from benchmarks.workloads.case import Case, Workload, arrays_in, competes, contestant, library, map_arrays
from benchmarks.workloads.language import weight
from volta_fn import nn

# Of linear algebra one shape: all are the same at the tiny size.
NAMES = [workload.name for workload in WORKLOADS if not workload.name.startswith("linalg/") or workload.name.endswith(" 32×32")]

# Of the GPU's those that are not the same functions at other sizes.
LARGE = ["gpu train/resnet-18", *(w.name for w in large.WORKLOADS if "attention" in w.name or "Adam" in w.name)]
LARGE += [w.name for w in large.WORKLOADS if w.name.startswith("gpu linalg/") and w.name.endswith(" 256×256")]

# JAX takes long to compile even tiny programs, and shares its definitions with volta_fn: a few show that these are JAX's language too.
FOR_JAX = [
    "train/mlp",
    "train/hessian",
    "op/cumsum 2048×2048",
    "product/64×64×64",
    "conv/transposed 4×4 forward",
    "linalg/svd gradient 32×32",
    "llm/decode smollm2-135m bfloat16",
    "llm/decode smollm2-135m int8",
    "llm/int8 product 512",
    "call/jitted add",
]


def results(workload: Workload, framework: str) -> list[object]:
    """Return the results of three calls at the tiny size."""
    call = contestant(framework, workload.case(quick=True)).call
    return [map_arrays(np.array, arrays_in(call())) for _ in range(3)]


def test_names_differ_and_have_groups() -> None:
    assert len(set(NAMES)) == len(NAMES) > 70
    assert {name.split("/")[0] for name in NAMES} == {"train", "op", "product", "conv", "conv size", "linalg", "llm", "call"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.hessian imports a module that uses it
@pytest.mark.parametrize("name", NAMES + LARGE)
def test_it_runs_and_agrees_with_torch(name: str) -> None:
    workload = named(name)
    ours = results(workload, "volta_fn")
    arrays = arrays_in(ours)
    dtype = np.int32 if "int8 product" in name else np.float32
    assert arrays and all(array.dtype == dtype and np.isfinite(array).all() for array in arrays)
    case = workload.case(quick=True)
    if competes("torch", case):
        pytest.importorskip("torch")
        check(name, {"volta_fn": ours, "torch": results(workload, "torch")}, case)


@pytest.mark.parametrize("name", FOR_JAX)
def test_it_agrees_with_jax(name: str) -> None:
    pytest.importorskip("jax")
    workload = named(name)
    check(name, {"volta_fn": results(workload, "volta_fn"), "jax": results(workload, "jax")}, workload.case(quick=True))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("train/") and name != "train/hessian"])
def test_training_steps_go_from_state_to_state(name: str) -> None:
    first, second, third = (arrays_in(result)[0] for result in results(named(name), "volta_fn"))
    assert first != second != third


def test_workloads_of_similar_names_are_told() -> None:
    assert named("gpu train/gpt medium@bfloat16").precision == "bfloat16"
    with pytest.raises(ValueError, match="'train/gpt medium@bfloat16'; did you mean 'gpu train/gpt medium@bfloat16'"):
        named("train/gpt medium@bfloat16")
    with pytest.raises(ValueError, match=r"no workload is called 'x'$"):
        named("x")


def test_inputs_are_the_same_every_time() -> None:
    for workload in WORKLOADS:
        one, other = (arrays_in(workload.case(quick=True).inputs) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_wrong_result_is_found() -> None:
    case = Case((), lambda lib: lambda: None, None, tolerance=1e-4)
    right = np.array([1.0, 100.0], np.float32)
    check("right", {"volta_fn": right, "jax": right + np.float32(5e-3)}, case)
    for wrong in (right + np.float32(0.02), right[:1], right.astype(np.float64), right * np.float32(np.nan)):
        with pytest.raises(WrongResultError, match="volta_fn"):
            check("wrong", {"volta_fn": right, "jax": wrong}, case)


def test_libraries_have_the_modules_that_workloads_use() -> None:
    lib = library("volta_fn")
    assert lib.jax.__name__ == "volta_fn" and lib.jnp.__name__ == "volta_fn.numpy"


def test_onnxruntime_multiplies_the_same_integers() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    workload = named("llm/int8 product 512")
    assert competes("onnxruntime", workload.case(quick=True))
    check(workload.name, {framework: results(workload, framework) for framework in ("volta_fn", "onnxruntime")}, workload.case(quick=True))


@pytest.mark.parametrize("columns", [32, 96])
def test_codes_of_4_bits_are_stored_as_documented(columns: int) -> None:
    """The layout that the benchmark writes for all frameworks is the one that `nn.QuantizedArray` reads."""
    packed = weight(np.random.default_rng(0), 3, columns, "int4", 1.0)["codes"]
    array = nn.QuantizedArray(packed, np.ones((3, 1), np.float32), None, "int4", (columns,), columns)
    halves = packed.reshape(3, columns // 32, 16)
    expected = np.stack([halves & 15, halves >> 4], 2).reshape(3, columns).astype(np.float32) - 8
    np.testing.assert_array_equal(array.dequantize(), expected)


@pytest.mark.parametrize("framework", ["volta_fn", "jax"])
def test_plans_of_workloads(framework: str) -> None:
    """The gradient of a loss needs memory; the least is a number for each logit."""
    pytest.importorskip(framework)
    assert Bench(framework).plan("llm/cross-entropy gradient 4096×50257", True) >= 4 * 5 * 17
