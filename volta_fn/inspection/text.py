"""An explanation as text for terminals, and numbers with units."""

from __future__ import annotations

from pathlib import Path

from volta_fn.inspection.explanation import Explanation, Step, aligned
from volta_fn.source import SourceLocation

_BARS = "▁▂▃▄▅▆▇█"
#: Columns of the memory timeline, and characters of a name.
_COLUMNS, _NAME = 60, 40


def text_of(found: Explanation) -> str:
    """Return an explanation as text."""
    rows = [
        f"{found.name} on {found.device} ({found.target}): {len(found.steps)} kernels",
        *_summary(found),
        "",
        "passes",
        *[f"  {change}" for change in found.passes if change.difference or change.before != change.after],
        "",
        "kernels",
        *[f"  {row}" for row in _table(found)],
        "",
        "memory",
        f"  {_timeline(found)}",
        f"  peak {size(found.memory.peak)}: arguments {size(found.memory.memory.arguments)}, results {size(found.memory.memory.results)}, "
        f"values in between {size(found.memory.memory.temporaries)}",
    ]
    return "\n".join(rows)


def _summary(found: Explanation) -> list[str]:
    flops, moved = (sum(getattr(s, name) * s.runs for s in found.steps if s.kind != "control flow") for name in ("flops", "bytes"))
    rows = [f"{quantity(flops)}FLOP, {size(moved)} moved by kernels"]
    if found.seconds is not None:
        rows.append(f"a call takes {duration(found.seconds)}, its kernels {duration(found.kernel_seconds)}")
    if found.roofline is not None:
        rates = ", ".join(f"{size(int(rate))}/s up to {size(limit)}" for limit, rate in found.roofline.bandwidths)
        rows.append(f"the device computes {quantity(found.roofline.flops)}FLOP/s and moves {rates}")
    return rows


def _table(found: Explanation) -> list[str]:
    head = ("#", "kernel", "time", "share", "roofline", "FLOP", "bytes", "runs", "lines")
    return aligned([head, *[_row(found, step) for step in found.steps]], right=(0, 2, 3, 4, 5, 6, 7))


def _row(found: Explanation, step: Step) -> tuple[str, ...]:
    share = "" if step.seconds is None else f"{step.seconds / max(found.kernel_seconds, 1e-12):.1%}"
    return (
        str(step.number),
        f"{'  ' * step.depth}{step.name:.{_NAME}}",
        "" if step.seconds is None else duration(step.seconds),
        share,
        "" if step.fraction is None else f"{step.fraction:.0%}",
        quantity(step.flops),
        size(step.bytes),
        str(step.runs),
        ", ".join(short(at) for at in step.user_lines[:3]) + (", …" if len(step.user_lines) > 3 else ""),
    )


def _timeline(found: Explanation) -> str:
    values = found.memory.temporaries
    if not values or not max(values):
        return "no values in between"
    step = max(1, -(-len(values) // _COLUMNS))
    highest = [max(values[i : i + step]) for i in range(0, len(values), step)]
    return "".join(_BARS[round(value / max(values) * (len(_BARS) - 1))] for value in highest)


def short(at: SourceLocation) -> str:
    """Return a line without the folders of its file."""
    return f"{Path(at.file).name}:{at.lineno}"


def duration(seconds: float) -> str:
    """Return seconds with a unit.

    >>> duration(0.00123)
    '1.23 ms'
    """
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def size(count: float) -> str:
    """Return bytes with a unit.

    >>> size(2048)
    '2 KiB'
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}"
    return f"{count:g} B"


def quantity(count: float) -> str:
    """Return a number with a prefix.

    >>> quantity(12_000)
    '12 k'
    """
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {prefix}"
    return f"{count:g} "
