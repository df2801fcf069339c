"""Compare programs that were written for JAX under JAX and under volta_fn.

    python tools/jax_programs.py FOLDER [PROGRAM ...] [--keep FOLDER] [--device gpu] [--time] [--rounds 2] [--show]

FOLDER/programs.txt names one program a line, `path arguments … # note`, relative to FOLDER; `path` alone may also be given as PROGRAM.
What programs download by urllib is read from FOLDER/downloads, from the file whose name is the percent-encoded address, if there is one.
Each program runs in a copy of its folder, by `python` under JAX and by `python -m volta_fn.jax` under volta_fn, in fresh processes on the
CPU (volta_fn with --device gpu: on the GPU). The generators of NumPy and of Python that have no seed get one, and plots go nowhere.

A program is the *same* if it ends without an error, prints the same numbers, and leaves the same arrays in its global names and figures;
lines and names that speak of time, memory or files do not count, nor do programs that end with an error under JAX or leave nothing to
compare. The tolerance of a number is one unit of its last digit printed, 0.2 %, and a millionth of the largest one in its line (of an
array: 2e-4): float32 has 7 digits, of which training by some hundred steps loses half. With --keep, what JAX printed is kept there.

--time measures each function given to `jax.jit` in both: the seconds of the first call, and the median of the others, each until its
results are there. Calls are repeated, up to five, so that a function that a program calls once has a median, too. A program's *steady*
time is the sum over its functions of median times calls; its *first* time the sum of first calls. Both load their
compilers when `jax` is imported, so *import and first* is their sum in each. JAX and volta_fn run alternately for
--rounds rounds, and the least time counts; no compiled program is kept from one run to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import random
import re
import runpy
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import urllib.response
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
LIMIT = 120.0
REPEATS = 5
#: Other ways for XLA to compile, and so to round.
UNFUSED = "--xla_disable_hlo_passes=fusion,cpu-instruction-fusion --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
_TIMES = ("steady", "first", "import and first")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan\b|inf\b)")
_OF_TIME = re.compile(
    r"(?i)time|时间|second|\bsec|\bms\b|\d ?m?s\b|µs|elapsed|it/s|/s\b|speed|faster|slower|took|compil|jit:|^\d{7,}$"
    r"|memory|bytes|\bMB\b|0x[0-9a-f]{6}|\bID\b|\.py:\d"
)
_ARRAY_CLASSES = re.compile(r"\b(?:float|int|uint|bfloat|complex|f|i|u|c)(?:8|16|32|64|128)\b")


@dataclass
class Program:
    """A line of programs.txt."""

    path: str
    arguments: list[str] = field(default_factory=list)
    note: str = ""


@dataclass
class Outcome:
    """What a run of a program gave."""

    status: int | None
    output: str
    errors: str
    seconds: float
    functions: dict[str, list[float]] = field(default_factory=dict)
    arrays: dict[str, list[float]] = field(default_factory=dict)
    imported: float = 0.0

    def numbers(self) -> list[tuple[float, float]]:
        """Return the numbers printed, each with the error that it may have."""
        results = []
        for text in _joined(self.output.splitlines()):
            if not _OF_TIME.search(text):
                written = _NUMBER.findall(_ARRAY_CLASSES.sub("", text))
                values = [float(number) for number in written]
                largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
                together = [(v, _last_digit(t) + 2e-3 * abs(v) + 1e-6 * largest) for v, t in zip(values, written, strict=True)]
                results += sorted(together) if "{" in text else together  # jax.tree.map of JAX sorts a dictionary's keys
        return results


def _joined(rows: list[str]) -> list[str]:
    """Join the rows of a dictionary, in which JAX may have another order."""
    results: list[str] = []
    for row in rows:
        if results and results[-1].count("{") > results[-1].count("}"):
            results[-1] += " " + row
        else:
            results.append(row)
    return results


def _last_digit(text: str) -> float:
    """Return the value of one unit of the last digit of a number's text."""
    mantissa, _, exponent = text.lower().partition("e")
    if "." not in mantissa and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def read_programs(folder: Path) -> list[Program]:
    """Return the programs that a folder lists."""
    results = []
    for row in (folder / "programs.txt").read_text().splitlines():
        text, _, note = row.partition("#")
        if text.strip():
            path, *arguments = shlex.split(text)
            results.append(Program(path, arguments, note.strip()))
    return results


def run(folder: Path, program: Program, library: str, *, device: str = "cpu", timed: bool = False, xla_flags: str = "") -> Outcome:
    """Run a program in another process, in a copy of its folder."""
    with tempfile.TemporaryDirectory() as temporary:
        source = folder / program.path
        copy = Path(temporary) / source.parent.name
        shutil.copytree(source.parent, copy, ignore=shutil.ignore_patterns("*.ipynb", ".git"))
        report = Path(temporary) / "report.json"
        options = [library, "timed" if timed else "plain", str(report), str((folder / "downloads").resolve()), source.name]
        command = [sys.executable, str(HERE / "jax_programs.py"), "--inside", *options, *program.arguments]
        environment = {**os.environ, "MPLBACKEND": "Agg", "TQDM_DISABLE": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), temporary])}
        environment |= {"VOLTA_DEVICE": device} if library == "volta_fn" else {"JAX_PLATFORMS": "cpu"}
        environment |= {"XLA_FLAGS": xla_flags} if xla_flags else {}
        environment |= {"VOLTA_CACHE_DIR": str(Path(temporary) / "cache")} if timed else {}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, timeout=LIMIT, capture_output=True, text=True, errors="replace", check=False
            )
            status, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            status, output, errors = None, _text(late.stdout), _text(late.stderr)
        seconds = time.perf_counter() - start
        result = json.loads(report.read_text()) if report.exists() else {}
        return Outcome(status, output, errors[-4000:], seconds, **result)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def run_jax(folder: Path, program: Program, keep: Path | None) -> Outcome:
    """Run a program under JAX, or read what it gave before."""
    if keep is None:
        return run(folder, program, "jax")
    retained = keep / ("+".join([program.path.replace("/", "+"), *program.arguments]).replace("/", "+") + ".json")
    if not retained.exists():
        keep.mkdir(parents=True, exist_ok=True)
        retained.write_text(json.dumps(asdict(run(folder, program, "jax"))))
    return Outcome(**json.loads(retained.read_text()))


def compare(theirs: Outcome, ours: Outcome) -> str:
    """Return how a program went under volta_fn, given how it went under JAX."""
    if theirs.status:
        return "not counted: an error under JAX"
    if theirs.status is None:
        return "not counted: too long under JAX"
    if ours.status is None:
        return "too long"
    if ours.status:
        return f"an error: {ours.errors.strip().splitlines()[-2:-1]}"
    a, b = theirs.numbers(), ours.numbers()
    if not a and not theirs.arrays:
        return "not counted: nothing to compare"
    if len(a) != len(b):
        return f"differs: {len(b)} numbers, JAX's {len(a)}"
    wrong = [(x, y) for (x, allowed), (y, _) in zip(a, b, strict=True) if not _agree(x, y, allowed)]
    if wrong:
        return f"differs: {len(wrong)} of {len(a)} numbers, such as {wrong[0][1]} for {wrong[0][0]}"
    other = [name for name, values in theirs.arrays.items() if not _all_agree(name, values, ours.arrays.get(name, []))]
    return f"differs: the array {', '.join(other)}" if other else f"same ({len(a)} numbers, {len(theirs.arrays)} arrays)"


def _agree(x: float, y: float, allowed: float) -> bool:
    return x == y or abs(x - y) <= allowed or (math.isnan(x) and math.isnan(y))


def _all_agree(name: str, a: list[float], b: list[float]) -> bool:
    """Return True if arrays agree.

    Of booleans one in a hundred may differ: random draws whose threshold is a rounded number.
    """
    if name.endswith("(booleans)"):
        return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) <= len(a) / 100
    largest = max((abs(x) for x in a if math.isfinite(x)), default=0.0)
    return len(a) == len(b) and all(_agree(x, y, 2e-3 * abs(x) + 2e-4 * largest) for x, y in zip(a, b, strict=True))


def compare_with_control(folder: Path, program: Program, theirs: Outcome, ours: Outcome) -> str:
    """Return how a program went, given that rounding may decide what it prints.

    Where numbers differ, JAX runs it once more, with XLA's fusions off: if its numbers then differ from its own, the program is *unstable*.
    """
    result = compare(theirs, ours)
    if not result.startswith("differs"):
        return result
    again = compare(theirs, run(folder, program, "jax", xla_flags=UNFUSED))
    return f"unstable: {result}; JAX without fusions {again}" if again.startswith("differs") else result


def least_times(folder: Path, program: Program, rounds: int) -> dict[str, tuple[float, ...]]:
    """Return the times of `_TIMES` of JAX and volta_fn, in seconds."""
    least: dict[str, tuple[float, ...]] = {}
    for _ in range(rounds):
        for library in ("jax", "volta_fn"):
            completed = run(folder, program, library, timed=True)
            steady, first = summary(completed.functions)
            now = (steady, first, completed.imported + first)
            least[library] = tuple(map(min, now, least.get(library, now)))
    return least


def summary(functions: dict[str, list[float]]) -> tuple[float, float]:
    """Return the steady and the first seconds of all functions of a program."""
    steady = sum(statistics.median(times) * calls for calls, _, *times in functions.values() if times)
    return steady, sum(first for _, first, *_ in functions.values())


class Timer:
    """Replaces `jax.jit` by one that times its functions."""

    def __init__(self, jax: Any) -> None:
        self.jax, self.jit = jax, jax.jit
        self.functions: dict[str, list[float]] = {}
        self.inside = False

    def __call__(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        if function is None:
            return functools.partial(self, **options)
        compiled = self.jit(function, **options)
        name = f"{len(self.functions)} {getattr(function, '__qualname__', function)}"
        record = self.functions[name] = [0.0, 0.0]  # calls, seconds of the first, seconds of the others
        repeats = 0 if {"donate_argnums", "donate_argnames"} & options.keys() else REPEATS

        def call(*arguments: Any, **named: Any) -> Any:
            if self.inside:
                return compiled(*arguments, **named)
            self.inside = True
            try:
                return self.timed(compiled, record, repeats, arguments, named)
            finally:
                self.inside = False

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(call, function)
        for extra in ("lower", "trace", "eval_shape", "clear_cache"):
            setattr(call, extra, getattr(compiled, extra, None))
        return call

    def timed(self, compiled: Any, record: list[float], repeats: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function, and once more while it has few calls."""
        if any(isinstance(leaf, self.jax.core.Tracer) for leaf in self.jax.tree.leaves((arguments, named))):
            return compiled(*arguments, **named)
        self.jax.block_until_ready((arguments, named))
        begin = time.perf_counter()
        result = compiled(*arguments, **named)
        self.jax.block_until_ready(result)
        seconds = time.perf_counter() - begin
        record[0] += 1
        if record[0] == 1:
            record[1] = seconds
        else:
            record.append(seconds)
        while len(record) - 2 < repeats and sum(record[2:]) < 2:
            begin = time.perf_counter()
            self.jax.block_until_ready(compiled(*arguments, **named))
            record.append(time.perf_counter() - begin)
        return result


class Downloads(urllib.request.BaseHandler):
    """Answers requests of urllib from the files of a folder."""

    handler_order = 100  # before the protocols' own

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def default_open(self, request: urllib.request.Request) -> urllib.response.addinfourl | None:
        """Open the file of an address; None leaves it to the protocol."""
        file = self.folder / urllib.parse.quote(request.full_url, safe="")
        if not file.exists():
            return None
        answer = urllib.response.addinfourl(file.open("rb"), Message(), request.full_url, 200)
        answer.msg = "OK"  # type: ignore[attr-defined]
        return answer


def run_inside(library: str, timed: bool, report: Path, downloads: Path, arguments: list[str]) -> None:
    """Run a program in this process."""
    urllib.request.install_opener(urllib.request.build_opener(Downloads(downloads)))
    begin = time.perf_counter()
    if library == "volta_fn":
        importlib.import_module("volta_fn.jax").install()
    jax = importlib.import_module("jax")  # before the seeds: importing JAX draws numbers
    importlib.import_module("jax.numpy")
    imported = time.perf_counter() - begin
    random.seed(0)
    np.random.seed(0)
    default_rng, run_path = np.random.default_rng, runpy.run_path
    names: dict[str, Any] = {}
    np.random.default_rng = lambda seed=None: default_rng(0 if seed is None else seed)

    def keep_names(*arguments: Any, **options: Any) -> dict[str, Any]:
        names.update(run_path(*arguments, **options))
        return names

    runpy.run_path = keep_names
    program = importlib.import_module("volta_fn.jax.__main__").main if library == "volta_fn" else _run_under_jax
    timer = Timer(jax) if timed else None
    if timer:
        jax.jit = timer  # type: ignore[attr-defined]
    try:
        status = program(arguments)
    finally:
        functions = {name: record for name, record in timer.functions.items() if record[0]} if timer else {}
        report.write_text(json.dumps({"functions": functions, "arrays": {**_arrays(names), **_drawn()}, "imported": imported}))
    sys.exit(status)


def _arrays(names: dict[str, Any]) -> dict[str, list[float]]:
    """Return some elements of the arrays that a program leaves."""
    results = {}
    for name, value in names.items():
        with contextlib.suppress(Exception):  # keys, deleted arrays, and whatever calls itself an array
            host = np.asarray(value) if hasattr(value, "dtype") and hasattr(value, "shape") and not callable(value) else None
            if host is not None and host.dtype.kind in "biuf" and not _OF_TIME.search(name):
                name = f"{name} (booleans)" if host.dtype.kind == "b" else name
                results[name] = host.ravel()[:: max(1, host.size // 200)].astype(float).tolist()
    return results


def _drawn() -> dict[str, list[float]]:
    """Return some points of the lines and pictures of the figures that are open."""
    plots = sys.modules.get("matplotlib.pyplot")
    results = {}
    for figure in map(plots.figure, plots.get_fignums()) if plots else ():
        for i, axes in enumerate(figure.axes):
            values = {f"curve {j}": curve.get_ydata() for j, curve in enumerate(axes.lines)}
            values |= {f"image {j}": image.get_array() for j, image in enumerate(axes.images)}
            results.update(_arrays({f"figure {figure.number}, axes {i}, {name}": np.asarray(value) for name, value in values.items()}))
    return results


def _run_under_jax(arguments: list[str]) -> int:
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def ratio(ours: float, theirs: float) -> float:
    """Return ours / theirs, NaN where JAX has no time."""
    return ours / theirs if theirs and math.isfinite(theirs) else math.nan


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of those that are positive and finite."""
    logs = [math.log(v) for v in values if v > 0 and math.isfinite(v)]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def time_all(folder: Path, programs: list[Program], rounds: int, out: Path | None) -> None:
    """Print the ratios of each program, and keep its seconds in a file."""
    retained: dict[str, Any] = json.loads(out.read_text()) if out and out.exists() else {}
    for program in programs:
        result = least_times(folder, program, rounds)
        retained[program.path] = result
        ratios = [ratio(ours, theirs) for ours, theirs in zip(result["volta_fn"], result["jax"], strict=True)]
        print(f"{program.path:80} " + ", ".join(f"{name} {value:.2f}" for name, value in zip(_TIMES, ratios, strict=True)), flush=True)
        if out:
            out.write_text(json.dumps(retained))
    rows = list(retained.values())
    for index, name in enumerate(_TIMES):
        ratios = [ratio(row["volta_fn"][index], row["jax"][index]) for row in rows]
        ratios = [r for r in ratios if r > 0]
        print(f"{name}: geometric mean {geometric_mean(ratios):.3f} of {len(ratios)} programs, largest {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file that keeps the seconds")
    parser.add_argument("--show", action="store_true", help="show what programs that differ print")
    options = parser.parse_args()
    chosen = [p for p in read_programs(options.folder) if not options.programs or p.path in options.programs]
    if options.time:
        time_all(options.folder, chosen, options.rounds, options.out)
        return
    same = counted = 0
    for program in chosen:
        theirs, ours = run_jax(options.folder, program, options.keep), run(options.folder, program, "volta_fn", device=options.device)
        result = compare_with_control(options.folder, program, theirs, ours)
        same += result.startswith("same")
        counted += not result.startswith("not counted")
        print(f"{program.path:80} {result}; {theirs.seconds:.1f} s, {ours.seconds:.1f} s", flush=True)
        if options.show and not result.startswith("same"):
            print(f"--- JAX\n{theirs.output[-1500:]}{theirs.errors[-1500:]}\n--- volta_fn\n{ours.output[-1500:]}{ours.errors[-3000:]}")
    print(f"{same} of {counted} programs are the same")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _, _, which, how, written, downloaded, *rest = sys.argv
        run_inside(which, how == "timed", Path(written), Path(downloaded), rest)
    else:
        main()
