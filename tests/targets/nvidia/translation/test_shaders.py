"""The shaders that the package writes: all are translated, LLVM has instructions for them, and they compute what NumPy does.

The tests take one sample in so many. `python -m tests.targets.nvidia.translation.test_shaders` translates the shaders of all samples, runs
them on the CPU, makes PTX of them, and has `ptxas` assemble it if VOLTA_PTXAS names that program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.laws.common import ROUNDING, arrays, assert_close, draw, host
from tests.laws.staging import programs_of
from tests.samples import all_samples, samples_of_code
from tests.samples.sample import Sample
from tests.targets.nvidia.translation.programs import CARD, execute, plan_of, shaders_of
from tests.targets.nvidia.translation.ptx import ptx_of
from tests.targets.nvidia.translation.running import run
from volta_fn import dtypes, grad, lax, nn, random
from volta_fn import numpy as jnp
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.gpu import pipelines
from volta_fn.targets.nvidia.translation import translate
from volta_fn.targets.wgsl import commands
from volta_fn.targets.wgsl.commands import BufferRange

#: One sample in so many is translated, computed, and compiled.
EVERY_TEXT, EVERY_RESULT, EVERY_PTX = 16, 24, 96

#: The least that a device has.
LEAST = TargetCapabilities(subnormals=False)
#: What it lacks.
WIDE = frozenset({"float64", "complex128", "int64", "uint64"})


def cases_of(samples: Iterator[Sample]) -> list[tuple[Sample, str]]:
    """Samples with each of their dtypes."""
    return [(sample, name) for sample in samples for name in sample.dtypes]


def texts_of(cases: Sequence[tuple[Sample, str]], capabilities: TargetCapabilities = CARD) -> Iterator[str]:
    """Yield the shaders of samples."""
    for sample, name in cases:
        inputs = draw(sample, dtypes.as_dtype(name))
        if capabilities is CARD or not any(x.dtype.name in WIDE for x in inputs):
            yield from shaders_of(plan_of(sample.function, inputs, capabilities))


def verify(text: str) -> None:
    """Translate a shader, and have LLVM verify the module."""
    module = llvm.parse_assembly(translate(text).llvm_ir)
    module.verify()


@pytest.mark.parametrize("capabilities", [CARD, LEAST], ids=["card", "least"])
def test_shaders_of_samples_are_translated(capabilities: TargetCapabilities) -> None:
    cases = cases_of(all_samples())
    if capabilities is LEAST:
        cases = [case for case in cases if case[1] not in WIDE]
    texts = dict.fromkeys(texts_of(cases[::EVERY_TEXT], capabilities))
    assert len(texts) > 100
    for text in texts:
        verify(text)


def compute(sample: Sample, name: str) -> None:
    """Compare a sample in a program with NumPy."""
    inputs = draw(sample, dtypes.as_dtype(name))
    function = programs_of(sample)[-1]
    expected = host(function(*arrays(inputs)))
    actual = execute(plan_of(function, inputs), inputs)
    for result, reference in zip(actual, expected, strict=True):
        assert_close(result, reference, 16 * ROUNDING.get(name, 0.0), f"{sample} in {name}")


@pytest.mark.parametrize(("sample", "name"), cases_of(samples_of_code())[::EVERY_RESULT], ids=str)
def test_samples_compute_what_numpy_does(sample: Sample, name: str) -> None:
    compute(sample, name)


#: Programs that are large enough for tiles, several workgroups, subgroups, and algorithms in passes.
LARGER: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (lambda x, y: x @ y, ((70, 130), (130, 66))),
    "products": (lambda x, y: jnp.tanh(x @ y), ((3, 64, 64), (3, 64, 64))),
    "product of long rows": (lambda x, y: x @ y, ((4, 3000), (3000, 4))),
    "softmax": (lambda x: nn.softmax(x, axis=-1), ((5, 3000),)),
    "sums of columns": (lambda x: (x.sum(0), x.max(1), jnp.argmax(x, 1)), ((300, 70),)),
    "sort": (lambda x: jnp.sort(x), ((5000,),)),
    "sort of rows": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), ((7, 300),)),
    "top k": (lambda x: lax.top_k(x, 20), ((3, 4000),)),
    "cumulative": (lambda x: (jnp.cumsum(x), lax.cummax(x)), ((6000,),)),
    "scatter": (lambda x, y: jnp.zeros(40).at[(jnp.abs(x) * 20).astype("int32") % 40].add(y), ((2000,), (2000,))),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        ((2, 17, 19, 8), (3, 3, 8, 16)),
    ),
    "attention": (lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), ((1, 70, 2, 32),) * 3),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x @ x.T), ((40, 40),)),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), ((40, 30),)),
    "triangular": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), ((50, 34),)),
    "solution": (lambda x, y: jnp.linalg.solve(x + 9 * jnp.eye(60), y), ((60, 60), (60, 3))),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(70)), ((70, 70),)),
    "transform": (lambda x: jnp.abs(jnp.fft.fft(x)), ((3, 512),)),
    "while": (lambda x: lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, jnp.sin(s[1]) + s[1]), (0, x)), ((300,),)),
    "gradient": (lambda x, w: grad(lambda w: jnp.mean(nn.relu(x @ w) ** 2))(w), ((128, 64), (64, 96))),
    "random": (lambda x: random.normal(random.key(3), (3000,)) + x, ((1,),)),
}


@pytest.mark.parametrize("name", LARGER)
def test_larger_programs_compute_what_numpy_does(name: str) -> None:
    function, shapes = LARGER[name]
    inputs = [np.random.default_rng(k).normal(size=shape).astype(np.float32) for k, shape in enumerate(shapes)]
    expected = host(function(*arrays(inputs)))
    for result, reference in zip(execute(plan_of(function, inputs), inputs), expected, strict=True):
        assert_close(result, reference, 2e-5, name)


def test_llvm_has_instructions_for_shaders_and_contracts_nothing() -> None:
    texts = list(dict.fromkeys(texts_of(cases_of(all_samples())[::EVERY_PTX])))
    for text, ptx in zip(texts, ptx_of(texts), strict=True):
        assert ".visible .entry main(" in ptx
        check_rounding(text, ptx)


def check_rounding(text: str, ptx: str) -> None:
    """Assert that sums and products round by themselves, and that no instruction flushes or approximates unless the shader says so."""
    assert not re.findall(r"\b(?:add|sub|mul|fma)\.(?!rn)[\w.]*f(?:16|32|64)", ptx), text
    assert not re.findall(r"\.ftz|div\.(?:full|approx)|sqrt\.approx", ptx), text
    assert "fma(" in text or "fma.rn" not in ptx, text


# Shaders that exist at run time alone: copies, rows, and the tests of a device.


def test_copies_and_rows() -> None:
    rng = np.random.default_rng(0)
    span = BufferRange(None, 0, 0, ())  # type: ignore[arg-type]
    source, target = rng.integers(0, 99, 1000, np.uint32), np.zeros(1000, np.uint32)
    dispatch = commands.copy(span._replace(size=4000), span._replace(size=4000), CARD)
    run(dispatch.source, dispatch.workgroups, [target, source])
    assert np.array_equal(source, target)
    for size in (8, 7, 5):
        rows = rng.integers(0, 255, (6, size), np.uint8)
        memory = np.zeros(64, np.uint8)
        memory[: rows.size] = rows.reshape(-1)
        words = -(-size // 4)
        row = np.zeros(words, np.uint32)
        dispatch = commands.take_row(span._replace(size=4 * words), span, span, size, CARD)
        run(dispatch.source, dispatch.workgroups, [row, memory.view(np.uint32), np.array([3], np.uint32)])
        assert np.array_equal(row.view(np.uint8)[:size], rows[3])
        dispatch = commands.put_row(span, span._replace(size=4 * words), span, size, CARD)
        run(dispatch.source, dispatch.workgroups, [memory.view(np.uint32), row, np.array([1], np.uint32)])
        rows[1] = rows[3]
        assert np.array_equal(memory[: rows.size], rows.reshape(-1)) and not memory[rows.size :].any()


class _Emulated:
    """A device for `pipelines.ShaderRunner`."""

    capabilities = CARD

    def put(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def get(self, buffer: np.ndarray) -> np.ndarray:
        return buffer

    def dispatch(self, source: str, buffers: Sequence[np.ndarray], written: frozenset[int], checks: int) -> None:
        run(source, (1, 1, 1), buffers)


def test_tests_of_a_device_find_nothing_wrong() -> None:
    device = _Emulated()
    assert pipelines.fma_rounds_once(device)  # type: ignore[arg-type]
    assert pipelines.keeps_subnormals(device)  # type: ignore[arg-type]
    assert pipelines.loop_iterations(device) == TargetCapabilities().iterations  # type: ignore[arg-type]
    assert pipelines.needed_checks(device) == pipelines.NONE  # type: ignore[arg-type]


def main() -> int:
    """Translate, compute and compile everything."""
    cases, faults = cases_of(all_samples()), 0
    texts = list(dict.fromkeys([*texts_of(cases), *texts_of([c for c in cases if c[1] not in WIDE], LEAST)]))
    for text in texts:
        verify(text)
    print(f"{len(texts)} shaders are translated", flush=True)
    for sample, name in cases_of(samples_of_code()):
        try:
            compute(sample, name)
        except AssertionError as error:
            faults += 1
            print(error, flush=True)
    print(f"{faults} samples compute something else", flush=True)
    assembler = os.environ.get("VOLTA_PTXAS")
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(texts), 100):
            some = texts[start : start + 100]
            for text, ptx in zip(some, ptx_of(some), strict=True):
                check_rounding(text, ptx)
                if assembler:
                    path = Path(folder, "shader.ptx")
                    path.write_text(ptx)
                    faults += subprocess.run([assembler, "-arch=sm_80", path, "-o", os.devnull], check=False).returncode != 0
            print(f"{start + len(some)} shaders are compiled", flush=True)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
