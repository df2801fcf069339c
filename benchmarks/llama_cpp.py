"""Decode a GGUF model here and with llama.cpp, by turns.

    npm install --prefix FOLDER node-llama-cpp
    python -m benchmarks.llama_cpp MODEL.gguf --node FOLDER                # the file as it is, on one thread
    python -m benchmarks.llama_cpp MODEL.gguf --node FOLDER --formats Q4_0 Q4_K Q8_0 --threads 2

With `--formats` the model is written to new files, all matrices in that format (in Q4_1 where rows are no whole blocks of a K format). Both
read the same file: first a prompt of 512 tokens, then one token at a time. Times are the least of several turns: processor time on one
thread, wall time on more, which needs a machine that does nothing else. Without `--node` only this package is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import limit_threads

PROGRAM = Path(__file__).with_suffix(".mjs")
PROMPT = 512


def rewritten(source: Path, kind: str, folder: str) -> Path:
    """Write a GGUF file with all matrices in another format; return its path."""
    from volta_fn import io, nn

    file = io.open_gguf(source)
    tensors = {name: x.dequantize("float32") if isinstance(x, nn.QuantizedArray) else x for name, x in file.items()}
    whole = lambda x: not kind.endswith("_K") or x.shape[-1] % 256 == 0
    formats = {name: kind if whole(x) else "Q4_1" for name, x in tensors.items() if x.ndim == 2}
    dropped = ("general.file_type", "general.quantization_version")
    metadata = {name: value for name, value in file.metadata.items() if not name.startswith(dropped)}
    path = Path(folder) / f"{kind}.gguf"
    io.save_gguf(path, tensors, metadata, formats=formats)
    return path


def ours(path: Path, threads: int) -> dict[str, Callable[[], float]]:
    """Return calls that read a prompt and a token; each returns its milliseconds."""
    from benchmarks.language import Ours
    from volta_fn import io

    clock = time.process_time if threads == 1 else time.perf_counter
    model: Any = io.load_pretrained(path, dtype="bfloat16")  # llama.cpp's cache has 16 bits, too
    runner = Ours(model, np.random.default_rng(1).integers(0, model.config.vocab_size, (1, PROMPT)).astype(np.int32))

    def timed(run: Callable[[], Any]) -> float:
        start = clock()
        run()
        return (clock() - start) * 1e3

    return {"prefill": lambda: timed(runner.prefill), "decode": lambda: timed(runner.decode)}


def theirs(path: Path, folder: str, threads: int) -> tuple[dict[str, Callable[[], float]], subprocess.Popen[str]]:
    """Return the same of llama.cpp, and its process."""
    command = ["node", str(PROGRAM), str(Path(folder).resolve()), str(path), str(threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(count: int) -> float:
        assert process.stdin and process.stdout
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return {"prefill": lambda: ask(PROMPT), "decode": lambda: ask(1)}, process


def by_turns(runners: dict[str, dict[str, Callable[[], float]]], turns: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return the least milliseconds of each task of each runner."""
    best = {name: dict.fromkeys(turns, float("inf")) for name in runners}
    for task, count in turns.items():
        for runner in runners.values():
            runner[task]()  # compiles
        for _ in range(count):
            for name, runner in runners.items():
                best[name][task] = min(best[name][task], runner[task]())
    return best


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--node", metavar="FOLDER", help="where node-llama-cpp is installed")
    parser.add_argument("--formats", nargs="*", default=[], help="write the model in these formats of GGUF first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=40, help="tokens that are decoded (default %(default)s)")
    options = parser.parse_args(argv)
    limit_threads(options.threads)
    os.environ["VOLTA_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        for path in [rewritten(options.model, kind, folder) for kind in options.formats] or [options.model]:
            runners, process = {"volta_fn": ours(path, options.threads)}, None
            if options.node:
                runners["llama.cpp"], process = theirs(path, options.node, options.threads)
            times = by_turns(runners, {"prefill": 3, "decode": options.turns})
            if process and process.stdin:
                process.stdin.close()
                process.wait()
            rows = [f"{name} {', '.join(f'{task} {ms:.2f} ms' for task, ms in row.items())}" for name, row in times.items()]
            ratios = [f"{task} {times['volta_fn'][task] / times['llama.cpp'][task]:.2f}" for task in times["volta_fn"]] if process else []
            text = f"; ratios: {', '.join(ratios)}" if ratios else ""
            print(f"{path.stem}, {path.stat().st_size / 1e6:.0f} MB, threads: {options.threads}: {'; '.join(rows)}{text}", flush=True)


if __name__ == "__main__":
    main()
