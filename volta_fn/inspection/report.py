"""An explanation as text and as one HTML page, with charts."""

from __future__ import annotations

import base64
import gzip
import json
import linecache
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from volta_fn.core.arrays.html import escaped, folded, table
from volta_fn.inspection.explanation import Explanation, Step, aligned
from volta_fn.source import SourceLocation

_BARS = "▁▂▃▄▅▆▇█"
#: Columns of the memory timeline, and characters of a name.
_COLUMNS, _NAME = 60, 40
#: The most rows of a table of kernels or layers.
_ROWS = 20
#: The most kernels whose graph is shown unfolded.
_GRAPH = 40


def text_of(explanation: Explanation) -> str:
    """Return an explanation as text."""
    memory = explanation.memory.memory
    rows = [
        f"{explanation.name} on {explanation.device} ({explanation.target}): {len(explanation.steps)} kernels",
        *_summary(explanation),
        "",
        "passes",
        *[f"  {change}" for change in explanation.passes if change.difference or change.before != change.after],
        "",
        "kernels, the most expensive first",
        *[f"  {row}" for row in _table(explanation)],
        "",
        *_layers(explanation),
        "memory",
        f"  {_timeline(explanation)}",
        f"  peak {size(explanation.memory.peak)}: arguments {size(memory.arguments)}, results {size(memory.results)}, "
        f"values in between {size(memory.temporaries)}",
    ]
    return "\n".join(rows)


def _summary(explanation: Explanation) -> list[str]:
    flops, moved = (sum(getattr(s, name) * s.runs for s in explanation.steps if s.kind != "control flow") for name in ("flops", "bytes"))
    rows = [f"{quantity(flops)}FLOP, {size(moved)} moved by kernels"]
    if explanation.seconds is not None:
        rows.append(f"a call takes {duration(explanation.seconds)}, its kernels {duration(explanation.kernel_seconds)}")
    if explanation.roofline is not None:
        rates = ", ".join(f"{size(int(rate))}/s up to {size(limit)}" for limit, rate in explanation.roofline.bandwidths)
        rows.append(f"the device computes {quantity(explanation.roofline.flops)}FLOP/s and moves {rates}")
    return rows


def _table(explanation: Explanation) -> list[str]:
    head = ("#", "kernel", "time", "share", "roofline", "FLOP", "bytes", "runs", "lines")
    shown = explanation.slowest(_ROWS)
    rows = aligned([head, *[_text_row(explanation, step) for step in shown]], right=(0, 2, 3, 4, 5, 6, 7))
    rest = len(explanation.steps) - len(shown)
    if rest <= 0:
        return rows
    seconds = explanation.kernel_seconds - explanation.overhead - sum(step.seconds or 0.0 for step in shown)
    taken = "" if explanation.seconds is None else f", {duration(seconds)} ({seconds / max(explanation.kernel_seconds, 1e-12):.1%})"
    return [*rows, f"… and {rest:,} more{taken}; .steps has all, .html(path) shows them"]


def _layers(explanation: Explanation) -> list[str]:
    """Return the table of the layers as text, or nothing for a program without layers."""
    rows = layer_rows(explanation)
    return ["layers", *[f"  {row}" for row in aligned(rows, right=(1, 2, 3, 4, 5))], ""] if rows else []


def layer_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """Return the table of the layers with its head, nothing without layers."""
    costs = explanation.layers()
    if not any(cost.layer for cost in costs):
        return []
    total, head = max(explanation.kernel_seconds, 1e-12), ("layer", "time", "share", "kernels", "FLOP", "bytes")
    rest = len(costs) - _ROWS
    rows = [
        (
            (cost.layer or "(no layer)") + (f"  × {cost.copies}" if cost.copies > 1 else ""),
            "" if cost.seconds is None else duration(cost.seconds),
            "" if cost.seconds is None else f"{cost.seconds / total:.1%}",
            f"{cost.kernels:,}",
            quantity(cost.flops),
            size(cost.bytes),
        )
        for cost in costs[:_ROWS]
    ]
    return [head, *rows, *([(f"… and {rest:,} more", "", "", "", "", "")] if rest > 0 else [])]


def _text_row(explanation: Explanation, step: Step) -> tuple[str, ...]:
    share = "" if step.seconds is None else f"{step.seconds / max(explanation.kernel_seconds, 1e-12):.1%}"
    return (
        str(step.number),
        f"{step.name:.{_NAME}}",
        "" if step.seconds is None else duration(step.seconds),
        share,
        "" if step.fraction is None else f"{step.fraction:.0%}",
        quantity(step.flops),
        size(step.bytes),
        str(step.runs),
        _lines(step),
    )


def _lines(step: Step) -> str:
    """Return the first of the user's lines that a step comes from."""
    lines = list(dict.fromkeys(map(short, step.user_lines)))
    return ", ".join(lines[:3]) + (", …" if len(lines) > 3 else "")


def _timeline(explanation: Explanation) -> str:
    values = explanation.memory.temporaries
    if not values or not max(values):
        return "no values in between"
    step = max(1, -(-len(values) // _COLUMNS))
    highest = [max(values[i : i + step]) for i in range(0, len(values), step)]
    return "".join(_BARS[round(value / max(values) * (len(_BARS) - 1))] for value in highest)


def short(at: SourceLocation) -> str:
    """Return a line without the folders of its file."""
    return Path(at.place).name


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


# The charts of a report, as SVG: the roofline, the memory, the graph of kernels.

_WIDTH, _HEIGHT, _MARGIN = 860, 320, 60
#: The height of a kernel in the graph, and the most kernels between two that an arc is drawn wide for.
_ROW = 16


def roofline_svg(explanation: Explanation) -> str:
    """Plot operations per second over operations per byte, with the limits."""
    roofline = explanation.roofline
    steps = [s for s in explanation.steps if s.seconds and s.flops and s.bytes]
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
    total = max(explanation.kernel_seconds, 1e-12)
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
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)

    def powers(self) -> Iterator[float]:
        for power in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1):
            yield 10.0**power


def _grid(x: _LogAxis, y: _LogAxis) -> Iterator[str]:
    for value in x.powers():
        at = f"{x.at(value):.1f}"
        yield f"<path class='grid' d='M{at} {y.start}V{y.end}'/><text x='{at}' y='{y.start + 15}' class='m'>{value:g}</text>"
    for value in y.powers():
        at = f"{y.at(value):.1f}"
        yield f"<path class='grid' d='M{x.start} {at}H{x.end}'/><text x='{x.start - 5}' y='{at}' class='e'>{quantity(value)}</text>"


def memory_svg(explanation: Explanation) -> str:
    """Plot the memory over the commands of a call, with its peak."""
    memory = explanation.memory
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


#: The attributes of classes, for notebooks, which do not have the style sheet of the page; there it overrides them.
_ATTRIBUTES = {
    "m": "text-anchor='middle'",
    "e": "text-anchor='end'",
    "s": "text-anchor='start'",
    "grid": "stroke='currentColor' stroke-opacity='.2'",
    "roof": "fill='none' stroke='#d1242f' stroke-width='1.5'",
    "area": "fill='#0969da' fill-opacity='.5'",
    "held": "fill='#6a737d' fill-opacity='.5'",
    "arc": "fill='none' stroke='#6a737d' stroke-opacity='.35'",
}


def _svg(width: float, height: float, drawn: Sequence[str]) -> str:
    body = re.sub(r"class='(\w+)'", lambda match: f"{match[0]} {_ATTRIBUTES[match[1]]}", "".join(drawn))
    body = body.replace("<circle ", "<circle fill='#0969da' fill-opacity='.45' stroke='#0969da' ")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' fill='currentColor' "
        f"font-size='11' font-family='system-ui,sans-serif'>{body}</svg>"
    )


# The style and the script of reports.

STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--dim:#6a737d;--box:#f6f8fa;--edge:#d8dee4;--hot:#d1242f;--cool:#0969da}
@media(prefers-color-scheme:dark){:root{--fg:#e6edf3;
--bg:#0d1117;
--dim:#8b949e;
--box:#161b22;
--edge:#30363d;
--hot:#ff7b72;
--cool:#58a6ff}
}
*{box-sizing:border-box}
body{font:14px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;max-width:1500px;padding:0 24px 60px}
h1{font-size:22px;margin:20px 0 8px}
h2{font-size:17px;margin:30px 0 10px;border-bottom:1px solid var(--edge);padding-bottom:4px}
dl{display:flex;flex-wrap:wrap;gap:12px;margin:0}
dl div{background:var(--box);border:1px solid var(--edge);border-radius:6px;padding:6px 14px}
dt{color:var(--dim);font-size:12px}
dd{margin:0;font-size:18px}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:3px 10px;border-bottom:1px solid var(--edge);vertical-align:top}
#steps{display:block;max-height:460px;overflow:auto;border:1px solid var(--edge);border-radius:6px}
#steps thead th{position:sticky;top:0;background:var(--box);cursor:pointer}
#steps tbody,#steps thead{width:100%}
#steps td:nth-child(2){width:60%}
#steps tr[data-step]{cursor:pointer}
#steps tr.on{background:color-mix(in srgb,var(--cool) 18%,transparent)}
#steps tr.host td{color:var(--hot)}
td.n{text-align:right;white-space:nowrap}
td.bar{min-width:160px;position:relative;white-space:nowrap}
td.bar i{position:absolute;left:0;top:2px;bottom:2px;background:color-mix(in srgb,var(--hot) 35%,transparent);border-radius:2px}
#panes{display:grid;grid-template-columns:1fr 1fr 1fr;gap:10px;margin-top:10px}
.pane{background:var(--box);border:1px solid var(--edge);border-radius:6px;padding:8px;
max-height:520px;overflow:auto;white-space:pre;font:12px/1.45 ui-monospace,monospace;tab-size:4}
.pane b{display:block;font:600 12px system-ui,sans-serif;color:var(--dim);margin-bottom:6px}
mark{background:color-mix(in srgb,var(--cool) 30%,transparent);color:inherit}
pre{background:var(--box);padding:10px;overflow:auto;max-height:600px;font-size:12px}
svg{max-width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--fg)}
.m{text-anchor:middle}
.e{text-anchor:end}
.s{text-anchor:start}
.grid{stroke:var(--edge)}
.roof{fill:none;stroke:var(--hot);stroke-width:1.5}
circle{fill:var(--cool);fill-opacity:.45;stroke:var(--cool);cursor:pointer}
circle.on{fill:var(--hot)}
.area{fill:var(--cool);fill-opacity:.5}
.held{fill:var(--dim);fill-opacity:.5}
.arc{fill:none;stroke:var(--dim);stroke-opacity:.35}
.arc.on{stroke:var(--hot);stroke-opacity:1;stroke-width:1.5}
g[data-step]{cursor:pointer}
g.on text{fill:var(--hot);font-weight:600}
.scroll{max-height:600px;overflow:auto;border:1px solid var(--edge);border-radius:6px}
@media(max-width:900px){#panes{grid-template-columns:1fr}
}
"""

SCRIPT = """
(async()=>{
const all=(q)=>[...document.querySelectorAll(q)],raw=document.getElementById('data').textContent;
const bytes=Uint8Array.from(atob(raw),c=>c.charCodeAt(0));
const data=JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text());
const fill=(id,title,text)=>{
const pane=document.getElementById(id);
pane.textContent='';
const head=document.createElement('b');
head.textContent=title;
pane.append(head);
for(const row of text.split('\\n')){const on=row.startsWith('\\u25b6'),e=document.createElement(on?'mark':'span');
e.textContent=row+'\\n';
pane.append(e)}};
const show=(n)=>{const s=data.steps[n-1];
if(!s)return;
all('.on').forEach(e=>e.classList.remove('on'));
all(`[data-step="${n}"]`).forEach(e=>e.classList.add('on'));
all(`[data-from="${n}"],[data-to="${n}"]`).forEach(e=>e.classList.add('on'));
fill('source','Your lines',data.texts[s.source]);
fill('kernel',`Kernel ${n}: ${s.shapes}`,s.equations+'\\n\\n'+data.texts[s.kernel]);
fill('code','Code',data.texts[s.code]||'(none)')};
document.addEventListener('click',e=>{const at=e.target.closest('[data-step]');
if(at)show(+at.dataset.step)});
const body=document.querySelector('#steps tbody');
let order=-1,by=2;
all('#steps th').forEach(h=>h.addEventListener('click',()=>{const i=+h.dataset.by;
order=by===i?-order:i<2?1:-1;
by=i;
[...body.rows]
.sort((a,b)=>{const x=a.cells[i].dataset.v,y=b.cells[i].dataset.v;
return order*(isNaN(x)||isNaN(y)?x.localeCompare(y):x-y)}).forEach(r=>body.append(r))}));
all('details[data-stage]').forEach(d=>d.addEventListener('toggle',()=>{const p=d.querySelector('pre');
if(!p.textContent)p.textContent=data[d.dataset.stage]}));
if(body.rows.length)show(+body.rows[0].dataset.step);
document.body.dataset.ready='yes';
})();
"""


# An explanation as one HTML page, which needs no network and no other file.
#
# The texts of programs and kernels are compressed inside of the page, and unpacked by the browser when they are asked for.

#: Lines of the user's file that are shown around one that a kernel comes from.
_AROUND = 4
#: Characters of a kernel's code that the page holds; large matrix products have far more.
_MOST = 60_000


def page(explanation: Explanation) -> str:
    """Return the report of an explanation as a complete page."""
    title, steps = f"{explanation.name} on {explanation.device}", explanation.steps
    graph = folded(f"{len(steps)} kernels", graph_svg(steps), opened=len(steps) <= _GRAPH)
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escaped(title)}</title>"
        f"<link rel='icon' href='data:,'><style>{STYLE}</style></head><body>"
        f"<header><h1>{escaped(title)}</h1>{_numbers(explanation)}</header><main>"
        f"{_section('Where the time goes', _steps_and_code(explanation))}"
        f"{_layer_section(explanation)}"
        f"{_section('Roofline', roofline_svg(explanation))}"
        f"{_section('Memory', memory_svg(explanation))}"
        f"{_section('Graph of the program', graph)}"
        f"{_section('Passes of the compiler', _passes(explanation))}"
        f"{_section('Stages', _stages())}"
        f"</main><script id='data' type='text/plain'>{_compress_texts(explanation)}</script><script>{SCRIPT}</script></body></html>"
    )


def _layer_section(explanation: Explanation) -> str:
    rows = layer_rows(explanation)
    return _section("Layers", table(rows)) if rows else ""


def fragment(explanation: Explanation) -> str:
    """Return an explanation for a notebook: the numbers, the kernels, two charts."""
    rows = [("#", "kernel", "time", "roofline", "lines"), *[_cells(step) for step in explanation.slowest(_ROWS)]]
    layers = layer_rows(explanation)
    by_layer = folded("layers", table(layers), opened=True) if layers else ""
    charts = folded("roofline", roofline_svg(explanation)) + folded("memory", memory_svg(explanation), opened=True)
    numbers = ", ".join(f"{name} {escaped(value)}" for name, value in _entries(explanation))
    return f"<p>{numbers}</p>{folded('kernels that take the most time', table(rows), opened=True)}{by_layer}{charts}"


def _cells(step: Step) -> tuple[str, ...]:
    taken = "" if step.seconds is None else duration(step.seconds)
    reached = "" if step.fraction is None else f"{step.fraction:.0%}"
    return str(step.number), step.name, taken, reached, _lines(step)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _entries(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the numbers of the whole program by name."""
    real = [step for step in explanation.steps if step.kind != "control flow"]
    entries = [
        ("kernels", f"{len(real):,}"),
        ("operations", f"{quantity(sum(s.flops * s.runs for s in real))}FLOP"),
        ("moved", size(sum(s.bytes * s.runs for s in real))),
        ("peak memory", size(explanation.memory.peak)),
    ]
    if explanation.seconds is not None:
        entries = [("a call", duration(explanation.seconds)), ("its kernels", duration(explanation.kernel_seconds)), *entries]
    return entries


def _numbers(explanation: Explanation) -> str:
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>" for name, value in _entries(explanation)) + "</dl>"


def _steps_and_code(explanation: Explanation) -> str:
    total = max(explanation.kernel_seconds, 1e-12)
    rows = "".join(_row(step, total) for step in explanation.slowest(len(explanation.steps)))
    head = "".join(f"<th data-by='{i}'>{name}</th>" for i, name in enumerate(("#", "kernel", "time", "roofline", "FLOP", "bytes", "runs")))
    panes = "<div id='source' class='pane'></div><div id='kernel' class='pane'></div><div id='code' class='pane'></div>"
    return f"<table id='steps'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><div id='panes'>{panes}</div>"


def _row(step: Step, total: float) -> str:
    share = (step.seconds or 0.0) / total
    bar = f"<i style='width:{100 * share:.2f}%'></i>{'' if step.seconds is None else escaped(duration(step.seconds))}"
    cells = (
        (step.number, str(step.number), ""),
        (step.name, escaped(step.name), ""),
        (step.seconds or 0, bar, "bar"),
        (step.fraction or 0, "" if step.fraction is None else f"{step.fraction:.0%}", "n"),
        (step.flops, quantity(step.flops), "n"),
        (step.bytes, size(step.bytes), "n"),
        (step.runs, f"{step.runs:,}", "n"),
    )
    inner = "".join(f"<td class='{kind}' data-v='{escaped(value)}'>{text}</td>" for value, text, kind in cells)
    return f"<tr data-step='{step.number}' class='{step.kind.replace(' ', '-')}' title='{escaped(step.shapes)}'>{inner}</tr>"


def _passes(explanation: Explanation) -> str:
    head = ("pass", "before", "after", "changes", "what it does")
    rows = []
    for change in explanation.passes:
        listed = ", ".join(f"{count:+d} {name}" for name, count in sorted(change.difference.items(), key=lambda entry: -abs(entry[1])))
        rows.append((change.name, f"{change.before:,}", f"{change.after:,}", listed or "—", change.description))
    return table([head, *rows])


def _stages() -> str:
    names = (("jaxpr", "jaxpr"), ("simplified", "simplified jaxpr"), ("kernels", "kernels"))
    return "".join(f"<details data-stage='{key}'><summary>{title}</summary><pre></pre></details>" for key, title in names)


def _compress_texts(explanation: Explanation) -> str:
    """Return the texts of the page, compressed, in base64."""
    texts: dict[str, int] = {}
    steps = [
        {
            "kernel": _text_number(texts, step.text),
            "code": _text_number(texts, _truncate(step.code)),
            "source": _text_number(texts, _sources(step.user_lines)),
            "shapes": step.shapes,
            "equations": " ".join(step.equations),
        }
        for step in explanation.steps
    ]
    data: dict[str, Any] = {
        "steps": steps,
        "jaxpr": explanation.jaxpr,
        "simplified": explanation.simplified,
        "kernels": "\n\n".join(f"# {step.number}: {step.name}\n{step.text}" for step in explanation.steps),
        "texts": [*texts],
    }
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode()


def _text_number(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts))


def _truncate(code: str) -> str:
    return code if len(code) <= _MOST else f"{code[:_MOST]}\n… {len(code) - _MOST:,} more characters"


def _sources(locations: Sequence[SourceLocation]) -> str:
    """Return the user's lines, marked, with the lines around them."""
    by_file: dict[str, list[SourceLocation]] = {}
    for at in locations:
        by_file.setdefault(at.file, []).append(at)
    return "\n\n".join(_excerpt(file, some) for file, some in by_file.items()) or "(no line of the user)"


def _excerpt(file: str, locations: Iterable[SourceLocation]) -> str:
    functions: dict[str, None] = {}
    meant: set[int] = set()
    for at in locations:
        functions[at.function] = None
        meant.add(at.lineno)
    shown = sorted({n for at in meant for n in range(at - _AROUND, at + _AROUND + 1)})
    rows = [f"{file}  in {', '.join(functions)}"]
    before = 0
    for number in shown:
        text = linecache.getline(file, number)
        if not text:
            continue
        rows += ["  ⋮"] if before and number > before + 1 else []
        rows.append(f"{'▶' if number in meant else ' '}{number:5d}  {text.rstrip()}")
        before = number
    return "\n".join(rows)
