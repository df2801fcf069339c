"""Products with quantised weights: bytes, errors and times beside PyTorch's.

    python -m benchmarks.quantization              # 4096 × 4096 numbers, 1 to 128 rows
    python -m benchmarks.quantization --quick      # small, a few repetitions: everything runs

Times are processor time of one thread, the least of several calls, all kinds of weights by turns; printed are ratios to bfloat16's product
in the same run. Errors are those of products of random normal numbers, relative to the root mean square of the results.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import numpy as vnp
from volta_fn.lazy_imports import is_installed

#: Schemes with their options, by the name in the table.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8": ("int8", {}),
    "int8, groups of 64, offsets": ("int8", {"group_size": 64, "symmetric": False}),
    "fp8": ("fp8", {}),
    "int4, groups of 32": ("int4", {"group_size": 32}),
    "int4, groups of 64": ("int4", {}),
    "int4, groups of 64, offsets": ("int4", {"symmetric": False}),
    "nf4, groups of 64": ("nf4", {}),
}


def least_times(calls: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Return the least processor time of each call in seconds, all called by turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def torch_calls(rows: int, size: int) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's products of the same sizes; none without PyTorch."""
    if not is_installed("torch"):
        return {}
    import torch

    torch.set_num_threads(1)
    x, dense = torch.randn(rows, size).bfloat16(), torch.randn(size, size).bfloat16()
    codes, scales = torch.randint(-127, 128, (size, size), dtype=torch.int8), torch.ones(size, dtype=torch.bfloat16)
    return {"PyTorch bfloat16": lambda: x @ dense.T, "PyTorch _weight_int8pack_mm": lambda: torch._weight_int8pack_mm(x, codes, scales)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    size, rows, repetitions = (256, [1, 9], 2) if arguments.quick else (arguments.size, arguments.rows, arguments.repetitions)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    rng = np.random.default_rng(0)
    dense = vnp.asarray(rng.normal(size=(size, size)).astype(np.float32)).astype("bfloat16")
    weights = {name: vf.nn.quantize_array(dense, scheme, **options) for name, (scheme, options) in KINDS.items()}
    columns: list[dict[str, float]] = []
    errors: dict[str, float] = {}
    for count in rows:
        product = vf.jit(lambda x, w: x @ w.T)
        x = vnp.asarray(rng.normal(size=(count, size)).astype(np.float32)).astype("bfloat16")
        calls: dict[str, Callable[[], Any]] = {
            name: partial(lambda product, x, w: product(x, w).block_until_ready(), product, x, w)
            for name, w in {"bfloat16": dense, **weights}.items()
        }
        columns.append(least_times(calls | torch_calls(count, size), repetitions))
        exact = np.asarray(x.astype("float32")) @ np.asarray(dense.astype("float32")).T
        for name, w in weights.items():
            difference = np.asarray(vnp.matmul(x.astype("float32"), w.dequantize("float32").T)) - exact
            errors[name] = float(np.sqrt((difference**2).mean() / (exact**2).mean()))
    headings = " | ".join("1 row" if count == 1 else f"{count} rows" for count in rows)
    print(f"| weights | bits a number | error | {headings} |")
    print(f"| --- | --- | --- | {' | '.join('---' for _ in rows)} |")
    for name in columns[0]:
        bits = 8 * weights[name].nbytes / size**2 if name in weights else 8 if "int8" in name else 16
        ratios = [f"{column[name] / column['bfloat16']:.2f}" for column in columns]
        print(f"| {name} | {bits:.2f} | {f'{100 * errors[name]:.2f} %' if name in errors else ''} | {' | '.join(ratios)} |")
    print("\nbfloat16: " + ", ".join(f"{1e3 * column['bfloat16']:.2f} ms" for column in columns))


if __name__ == "__main__":
    main()
