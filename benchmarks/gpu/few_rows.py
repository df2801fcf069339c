"""Check and time products of few rows.

Run `python -m benchmarks.gpu.few_rows`. Matrices are of floats and of quantised weights.

First it compares products of several sizes, dtypes and schemes with those in float64. Then it times products of decoders by chains of
dispatches, with as many matrices as exceed the GPU's cache, and prints the bytes of a matrix a second beside what a copy moves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.chains import chain
from volta_fn import nn

#: The largest error of results relative to the largest, by their dtype: that of rounding them.
TOLERANCES = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-6}

#: Schemes with the numbers of a group, and whether they are symmetric; None for floats.
FORMATS: dict[str, tuple[str, int | None, bool] | None] = {
    "floats": None, "int8": ("int8", None, True), "int8 with offsets": ("int8", 64, False), "int4": ("int4", 64, True),
    "int4 of 32 with offsets": ("int4", 32, False), "int4 of 128": ("int4", 128, True), "fp8": ("fp8", None, True),
}  # fmt: skip

#: Outputs and terms of decoders' products: SmolLM2-135M's, Qwen2.5-0.5B's, and one of an 8B model.
SHAPES = [(576, 576), (1536, 576), (576, 1536), (49152, 576), (896, 896), (4864, 896), (896, 4864), (151936, 896), (14336, 4096)]

#: Bytes of matrices in a chain: more than the cache has.
ALL_BYTES = 200e6


def weight(values: Any, name: str) -> Any:
    """Return numbers in a format."""
    how = FORMATS[name]
    if how is None:
        return values
    return nn.quantize_array(values, how[0], group_size=how[1], symmetric=how[2])  # type: ignore[arg-type]


def check(rows: int, outputs: int, terms: int, dtype: str, name: str) -> bool:
    """Compare a product with that in float64; print and return whether it is right."""
    rng = np.random.default_rng(outputs + terms)
    x = rng.standard_normal((rows, terms)).astype(vf.dtypes.as_dtype(dtype))
    w = weight(vnp.asarray(rng.standard_normal((outputs, terms), np.float32)).astype(dtype), name)
    actual = np.asarray(vf.jit(lambda x, w: x @ w.T)(vnp.asarray(x), w)).astype(np.float64)
    floats = np.asarray(w.dequantize("float32") if name != "floats" else w).astype(np.float64)
    expected = x.astype(np.float64) @ floats.T
    error = float(np.abs(actual - expected).max() / np.abs(expected).max())
    right = error < TOLERANCES[dtype]
    print(f"{rows:3d}x{outputs}x{terms} {dtype:9s} {name:24s} error {error:.1e}{'' if right else '  FAILED'}", flush=True)
    return right


def time_product(rows: int, outputs: int, terms: int, name: str, bandwidth: float) -> None:
    """Time products by different matrices, which depend on each other."""
    key = vf.random.key(0)
    one = weight(vf.random.normal(key, (outputs, terms), "bfloat16"), name)
    size = sum(leaf.nbytes for leaf in vf.tree.leaves(one))
    count = int(min(64, max(2, ALL_BYTES // size)))
    matrices = [vf.tree.map(lambda a: vnp.array(a, copy=True), one) for _ in range(count)]
    x = vf.random.normal(key, (rows, terms), "bfloat16")

    def program(x: Any, matrices: Any) -> Any:
        return [x @ w.T for w in matrices]

    compiled = vf.jit(program)
    seconds = chain(lambda: compiled(x, matrices), 2)() / count
    rate = size / seconds
    print(f"{rows:3d}x{outputs}x{terms} {name:10s} {seconds * 1e6:8.2f} us {rate / 1e9:6.0f} GB/s {rate / bandwidth:4.0%}", flush=True)


def copy_bandwidth() -> float:
    """Return the bytes a second that a copy of 256 MB reads and writes."""
    x = vnp.ones(1 << 26, "float32")
    add: Callable[[Any], Any] = vf.jit(lambda x: x + 1)
    return 2 * x.nbytes / chain(lambda: add(x), 4)()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.few_rows", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--no-checks", action="store_true", help="only times")
    options = parser.parse_args(arguments)
    failures = 0
    sizes = [(1, 576, 576), (3, 100, 1536), (8, 136, 4864), (16, 72, 896), (2, 1001, 264)]
    for rows, outputs, terms in [] if options.no_checks else sizes:
        for dtype in ("bfloat16", "float16", "float32"):
            for name in FORMATS:
                if dtype != "float32" or name != "floats":  # whose products are not of this kind
                    failures += not check(rows, outputs, terms, dtype, name)
    bandwidth = copy_bandwidth()
    print(f"a copy moves {bandwidth / 1e9:.0f} GB/s")
    for rows in options.rows:
        for outputs, terms in SHAPES:
            for name in ("floats", "int8", "int4", "fp8"):
                time_product(rows, outputs, terms, name, bandwidth)
    print(f"{failures} checks failed" if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
