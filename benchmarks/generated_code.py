"""Compare the code that two versions of volta_fn generate.

`python -m benchmarks.generated_code cpu FILE` writes the LLVM IR of all programs to a JSON file, `gpu` the WGSL that an NVIDIA H200 would
get; that needs a GPU of any kind, but compiles no shader. `nvidia` writes the LLVM IR that NVIDIA's driver would have compiled for an H200,
on any machine. Run it in two versions, then compare the files: `python -m benchmarks.generated_code compare BEFORE AFTER`. Programs are the
benchmark's workloads and the samples of all primitives.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
from benchmarks.workloads import WORKLOADS, large
from benchmarks.workloads.case import library, map_arrays
from tests.samples import all_samples

#: The dtypes in which a sample is compiled: the first few of these that it has.
DTYPES, MOST_DTYPES = ("float32", "bfloat16", "complex64", "int32", "uint8", "bool", "float64"), 4

#: Capabilities of an NVIDIA H200, whose tuned schedules come with the package.
H200: dict[str, Any] = {
    "float16": True,
    "float64": True,
    "int64": True,
    "subgroups": True,
    "subgroup_least": 32,
    "subgroup_most": 32,
    "buffers": 1 << 19,
    "binding": (1 << 32) - 4,
    "workgroup_memory": 49152,
    "invocations": 1024,
    "alignment": 16,
    "adapter": "NVIDIA H200",
}

Texts = dict[str, list[str]]


def _compile(function: Any, args: Sequence[Any]) -> None:
    function.lower(*args).compile()


def workloads(target: str, only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names of jitted workloads, and functions that compile them.

    The names have a match of the regular expression `only`.
    """
    for workload in [*WORKLOADS, *(large.WORKLOADS if target != "cpu" else [])]:
        case = workload.case() if re.search(only, f"bench/{workload.name}") else None  # which draws its operands
        if case is not None and case.jit:
            with vf.default_device("cpu"):
                args = map_arrays(partial(_type_of, case.dtype), case.inputs)
            function = vf.jit(case.functional(library("volta_fn")), donate_argnums=(0,) if case.stateful else ())
            yield f"bench/{workload.name}", partial(_compile, function, args)


def _type_of(dtype: str | None, array: np.ndarray) -> vf.ShapeDtypeStruct:
    """Return the type of an operand of a case.

    If a dtype is given, floats are converted to it.
    """
    converted = dtype if dtype is not None and array.dtype == np.float32 else vf.numpy.asarray(array).dtype
    return vf.ShapeDtypeStruct(array.shape, converted)


def samples(only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the registry's samples in several dtypes, as `workloads` does."""
    for sample in all_samples():
        for dtype in [d for d in DTYPES if d in sample.dtypes][:MOST_DTYPES]:
            args = [vf.ShapeDtypeStruct(a.shape, a.dtype or dtype) for a in sample.args]
            name = f"sample/{'-'.join(sample.primitives)}/{sample.label}/{dtype}"
            if re.search(only, name):
                yield name, partial(_compile, vf.jit(sample.function), args)


def record_llvm(texts: list[str]) -> tuple[vf.Device, Callable[[], None]]:
    """Record the LLVM IR of all modules in `texts`.

    Returns the device, and a function that forgets what has been compiled.
    """
    from volta_fn.runtime.llvm import machine
    from volta_fn.targets.cpu.runtime import compile as compilation

    compile_object = machine.compile_object

    def recorded(text: str, *arguments: Any, **options: Any) -> bytes:
        texts.append(text)
        return compile_object(text, *arguments, **options)

    setattr(compilation, "compile_object", recorded)  # noqa: B010  # a replacement that the type checker need not know

    def forget() -> None:
        compilation.CODE_CACHE.__init__()  # type: ignore[misc]

    return vf.devices("cpu")[0], forget


def record_wgsl(texts: list[str]) -> tuple[vf.Device, Callable[[], None]]:
    """Record the WGSL of all shaders in `texts`.

    Returns a device with the capabilities of an H200, and a function that forgets its pipelines.
    """
    from benchmarks.gpu.device import opened_gpu
    from volta_fn.targets.wgpu import WgpuAdapter, WgpuDriver

    open_adapter = WgpuAdapter.open

    def as_h200(self: WgpuAdapter) -> WgpuDriver:
        driver = open_adapter(self)
        capabilities = driver.description.capabilities._replace(**H200)
        driver.description = driver.description._replace(capabilities=capabilities, kind="discrete")
        return driver

    setattr(WgpuAdapter, "open", as_h200)  # noqa: B010
    pipelines = opened_gpu().pipelines
    _record_sources(texts.append)
    return vf.devices("gpu")[0], pipelines._recent.clear


def record_nvidia(texts: list[str]) -> tuple[vf.Device, Callable[[], None]]:
    """Record the LLVM IR of all kernels, and of translated shaders, in `texts`.

    Returns an H200 that is emulated, and a function that forgets its pipelines.
    """
    from pytest import MonkeyPatch

    from tests.targets.nvidia.emulated_gpu import device
    from volta_fn.targets.nvidia.kernel import header_of
    from volta_fn.targets.nvidia.translation import translate

    gpu = device(MonkeyPatch(), H200["adapter"], (9, 0))
    pipelines = gpu.backend.gpu.pipelines  # opening it runs shaders
    _record_sources(lambda source: texts.append(source if header_of(source) else translate(source).llvm_ir))
    return gpu, pipelines._recent.clear


def _record_sources(record: Callable[[str], None]) -> None:
    """Have GPUs record the sources of pipelines instead of compiling them."""
    from volta_fn.targets.gpu.pipelines import Pipeline, Pipelines

    def make(self: Pipelines, source: str, *rest: Any, **options: Any) -> Pipeline:
        record(source)
        return Pipeline(None, None)

    def compiled(self: Pipelines, source: str, *rest: Any) -> tuple[Any, Any]:
        record(source)
        return None, None

    setattr(Pipelines, "make", make)  # noqa: B010
    setattr(Pipelines, "_compiled", compiled)  # noqa: B010


RECORDERS = {"cpu": record_llvm, "gpu": record_wgsl, "nvidia": record_nvidia}


def generated(target: str, only: str) -> Texts:
    """Compile the programs whose names match `only`, and return the code of each."""
    os.environ["VOLTA_CACHE_DIR"] = ""
    texts: list[str] = []
    device, forget = RECORDERS[target](texts)
    results: Texts = {}
    with vf.default_device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, compile_program in chain(workloads(target, only), samples(only)):
            texts.clear()
            forget()
            compile_program()
            results[name] = sorted({*results.get(name, ()), *texts})
    return results


def compare(before: Texts, after: Texts) -> int:
    """Print which programs have other code, and how; return their number."""
    both = [name for name in before if name in after]
    changed = [name for name in both if _without_blanks(before[name]) != _without_blanks(after[name])]
    print(f"{len(both)} programs in both, {len(changed)} with other code; {len(before) + len(after) - 2 * len(both)} in one of them only")
    for name in changed:
        print(f"  {name}")
    for name in changed[:3]:
        old, new = [[t for t in x[name] if t not in y[name]] for x, y in ((before, after), (after, before))]
        for a, b in list(zip(old, new, strict=False))[:1]:
            print(f"== {name}", *list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=1))[:60], sep="\n")
    return len(changed)


def _without_blanks(texts: list[str]) -> list[list[str]]:
    """Return the lines of texts without blank ones."""
    return sorted([list(filter(str.strip, text.splitlines())) for text in texts])


def main() -> int:
    """Record or compare, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generated_code", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=(*RECORDERS, "compare"), metavar=f"{{{','.join(RECORDERS)},compare}}")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression: only programs whose names contain a match")
    options = parser.parse_args()
    if options.mode == "compare":
        return min(1, compare(*[json.loads(path.read_text()) for path in options.files]))
    result = generated(options.mode, options.only)
    options.files[0].write_text(json.dumps(result))
    print(f"{len(result)} programs, {sum(map(len, result.values()))} texts")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
