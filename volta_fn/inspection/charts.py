"""The charts of a report, as SVG: the roofline, the memory, the graph of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from volta_fn.core.html import escaped
from volta_fn.inspection.explanation import Explanation, Step
from volta_fn.inspection.text import duration, quantity, size

_WIDTH, _HEIGHT, _MARGIN = 860, 320, 60
#: The height of a kernel in the graph, and the most kernels between two that an arc is drawn wide for.
_ROW = 16


def roofline_svg(found: Explanation) -> str:
    """Plot operations per second over operations per byte, with the limits."""
    roofline = found.roofline
    steps = [s for s in found.steps if s.seconds and s.flops and s.bytes]
    if roofline is None or not steps:
        return "<p>Nothing was measured, or no kernel computes.</p>"
    intensities = [s.flops / s.bytes for s in steps]
    rates = [s.flops * s.runs / (s.seconds or 1.0) for s in steps]
    bandwidths = sorted({rate for _, rate in roofline.bandwidths})
    x = _LogAxis(min(intensities) / 2, max(*intensities, roofline.flops / bandwidths[0]) * 2, _MARGIN, _WIDTH - 20)
    y = _LogAxis(min(rates) / 2, max(*rates, roofline.flops) * 2, _HEIGHT - 40, 15)
    drawn = [*_grid(x, y)]
    for rate in bandwidths:
        knee = roofline.flops / rate
        ends = [(x.low, x.low * rate), (knee, roofline.flops), (x.high, roofline.flops)]
        points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in ends if a >= x.low and b >= y.low)
        drawn.append(f"<polyline class='roof' points='{points}'><title>{escaped(size(rate))}/s</title></polyline>")
    total = max(found.kernel_seconds, 1e-12)
    for step, intensity, rate in zip(steps, intensities, rates, strict=True):
        radius = 3 + 18 * math.sqrt((step.seconds or 0.0) / total)
        title = f"#{step.number} {step.name}: {quantity(rate)}FLOP/s, {intensity:.3g} FLOP/byte, {duration(step.seconds or 0.0)}"
        drawn.append(
            f"<circle data-step='{step.number}' cx='{x.at(intensity):.1f}' cy='{y.at(rate):.1f}' r='{radius:.1f}'>"
            f"<title>{escaped(title)}</title></circle>"
        )
    drawn.append(f"<text x='{_WIDTH / 2}' y='{_HEIGHT - 5}' class='m'>operations per byte</text>")
    return _svg(_WIDTH, _HEIGHT, drawn)


class _LogAxis:
    """A logarithmic axis: `at` gives the coordinate of a value."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)

    def powers(self) -> Iterator[float]:
        """Yield the powers of ten on the axis."""
        for power in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1):
            yield 10.0**power


def _grid(x: _LogAxis, y: _LogAxis) -> Iterator[str]:
    for value in x.powers():
        at = f"{x.at(value):.1f}"
        yield f"<path class='grid' d='M{at} {y.start}V{y.end}'/><text x='{at}' y='{y.start + 15}' class='m'>{value:g}</text>"
    for value in y.powers():
        at = f"{y.at(value):.1f}"
        yield f"<path class='grid' d='M{x.start} {at}H{x.end}'/><text x='{x.start - 5}' y='{at}' class='e'>{quantity(value)}</text>"


def memory_svg(found: Explanation) -> str:
    """Plot the memory over the commands of a call, with its peak."""
    memory = found.memory
    count, height = len(memory.temporaries), _HEIGHT - 100
    if not count:
        return "<p>The program stores nothing in between.</p>"
    held = memory.memory.arguments + memory.memory.results
    most = max(memory.peak, 1)
    width = _WIDTH - _MARGIN - 20

    def at(command: float, bytes_: float) -> str:
        return f"{_MARGIN + width * command / count:.1f} {15 + height * (1 - bytes_ / most):.1f}"

    steps = "".join(f"L{at(i, held + v)}L{at(i + 1, held + v)}" for i, v in enumerate(memory.temporaries))
    busiest = memory.busiest
    top = memory.total(busiest)
    drawn = [
        f"<path class='area' d='M{at(0, 0)}{steps}L{at(count, 0)}Z'/>",
        f"<path class='held' d='M{at(0, 0)}L{at(0, held)}L{at(count, held)}L{at(count, 0)}Z'/>",
        f"<path class='roof' d='M{at(0, memory.peak)}L{at(count, memory.peak)}'/>",
        f"<text x='{_MARGIN + 5}' y='12' class='s'>reserved: {escaped(size(memory.peak))}</text>",
        f"<text x='{_MARGIN - 5}' y='{15 + height * (1 - held / most):.1f}' class='e'>{escaped(size(held))}</text>",
        f"<text x='{_MARGIN + 5}' y='{height + 32}' class='s'>arguments and results {escaped(size(held))}; most needed at command "
        f"{busiest}: {escaped(size(top))}</text>",
    ]
    return _svg(_WIDTH, height + 45, drawn)


def graph_svg(steps: Sequence[Step]) -> str:
    """Draw the kernels in order, with an arc from each to those that read its results."""
    width, left = _WIDTH, 420
    total = max(max([s.seconds or 0.0 for s in steps], default=0.0), 1e-12)
    drawn = []
    for step in steps:
        for before in step.after:
            start, end = _ROW * (before - 0.5), _ROW * (step.number - 0.5)
            reach = min(left + 20 + 6 * math.sqrt(end - start) * 2.2, width - 5)
            curve = f"M{left} {start}C{reach:.0f} {start} {reach:.0f} {end} {left} {end}"
            drawn.append(f"<path class='arc' data-from='{before}' data-to='{step.number}' d='{curve}'/>")
    for step in steps:
        heat = (step.seconds or 0.0) / total
        y = _ROW * (step.number - 1)
        color = f"hsl({220 - 220 * heat:.0f} 70% 50%)"
        drawn.append(
            f"<g data-step='{step.number}'><rect x='{left - 8}' y='{y + 3}' width='8' height='{_ROW - 6}' style='fill:{color}'/>"
            f"<text x='{left - 14}' y='{y + 12}' class='e'>{'› ' * step.depth}{step.number} {escaped(step.name)}</text>"
            f"<title>{escaped(step.shapes)}</title></g>"
        )
    return f"<div class='scroll'>{_svg(width, _ROW * len(steps) + 4, drawn)}</div>"


def _svg(width: float, height: float, drawn: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>{''.join(drawn)}</svg>"
    )
