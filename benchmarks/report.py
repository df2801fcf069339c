"""Results as text and as a chart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.machine import FRAMEWORKS

NAME = 42
MEBIBYTE = 2**20


def duration(seconds: float | None) -> str:
    """Format seconds in the unit that suits them."""
    if seconds is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size(count: float | None) -> str:
    """Format bytes in MiB."""
    return "-" if count is None else f"{count / MEBIBYTE:.1f} MiB"


def table_row(name: str, cells: Iterable[str]) -> str:
    """Format a row of a table."""
    return f"{name:{NAME}s}" + "".join(f"{cell:>12s}" for cell in cells)


def ratio(value: float | None) -> str:
    """Format our time over a peer's."""
    return "-" if value is None else f"{value:.2f}"


def time_heading() -> str:
    """Format the heading of `time_row`."""
    return table_row("time of a call, and of the first one", [*FRAMEWORKS, "ratio", *(f"1st {name[:5]}" for name in FRAMEWORKS)])


def time_row(row: dict[str, Any]) -> str:
    """Format a workload's medians, our time over the faster peer's, and first calls."""
    seconds, first = ([duration(row[key].get(name)) for name in FRAMEWORKS] for key in ("seconds", "first_call"))
    return table_row(row["name"], [*seconds, ratio(row["ratio"]), *first])


def gpu_heading() -> str:
    """Format the heading of `gpu_row`."""
    return time_heading() + "".join(f"  {cell:>12s}" for cell in ("our rate", "of ceiling", "dispatches"))


def gpu_row(row: dict[str, Any]) -> str:
    """Format `time_row`, our rate, its fraction of the ceiling, and dispatches."""
    return time_row(row) + "".join(f"  {cell:>12s}" for cell in (row["rate"], ratio(row["of_ceiling"]), str(row["dispatches"])))


def plan_heading() -> str:
    """Format the heading of `plan_row`."""
    return table_row("memory beside arguments and results", ["volta_fn", "jax", "over jax"])


def plan_row(row: dict[str, Any]) -> str:
    """Format what compiled programs need, and ours over JAX's."""
    ours, theirs = (row["bytes"].get(name) for name in ("volta_fn", "jax"))
    return table_row(row["name"], [size(ours), size(theirs), ratio(ours / theirs if theirs else None)])


def peak_heading() -> str:
    """Format the heading of `peak_row`."""
    return table_row("peak memory of training steps", [*FRAMEWORKS, "over jax", *(f"all {name[:5]}" for name in FRAMEWORKS)])


def peak_row(row: dict[str, Any]) -> str:
    """Format a workload's peaks in steps, ours over JAX's, and with compilation."""
    steps, everything = ([size(row[key].get(name)) for name in FRAMEWORKS] for key in ("steps", "with_compilation"))
    return table_row(row["name"], [*steps, ratio(row["ratio"]), *everything])


def durations_row(title: str, seconds: dict[str, float]) -> str:
    """Format some durations by name."""
    return f"{title:{NAME}s}  " + "   ".join(f"{name} {duration(value)}" for name, value in seconds.items())


def target_row(judged: dict[str, Any]) -> str:
    """Format what a target asks, what was found, and the verdict."""
    verdict = {True: "met", False: "NOT MET", None: "not measured"}[judged["met"]]
    value = "-" if judged["value"] is None else f"{judged['value']:.3g}"
    return f"{judged['text']:62s}{value:>8s}  of at most {judged['limit']:<6g}{verdict}"


def draw(results: dict[str, Any], path: Path) -> bool:
    """Draw our time over the faster peer's; return False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = [row for row in results["times"] if row["ratio"]][::-1]
    figure = Figure(figsize=(11, 2 + 0.24 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    ratios = [row["ratio"] for row in rows]
    colours = ["#2a7f4f" if value <= 1 else "#b5483a" for value in ratios]
    axes.barh([row["name"] for row in rows], [value - 1 for value in ratios], left=1, color=colours, height=0.7)
    for position, row in enumerate(rows):
        words = f" {row['ratio']:.2f} of {row['peer']}'s time, {duration(row['seconds']['volta_fn'])} "
        axes.text(max(row["ratio"], 1), position, words, va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(min(0.1, *ratios) / 1.5, max(10, *ratios) * 8)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("volta_fn's time over the faster of JAX and PyTorch (left of 1: volta_fn is faster)")
    machine, mean = results["machine"], results["geometric_mean"]
    settings = ("machine code" if machine["machine_code"] else "NumPy alone") + (", tiny sizes" if results["quick"] else "")
    axes.set_title(f"{machine['processor']}, threads: {machine['threads']}, {settings}; geometric mean {mean:.2f}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True
