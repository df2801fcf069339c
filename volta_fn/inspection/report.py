"""An explanation as one HTML page, which needs no network and no other file.

The texts of programs and kernels are compressed inside of the page, and unpacked by the browser when they are asked for.
"""

from __future__ import annotations

import base64
import gzip
import json
import linecache
from collections.abc import Iterable, Sequence
from typing import Any

from volta_fn.core.html import escaped, folded, table
from volta_fn.inspection.charts import graph_svg, memory_svg, roofline_svg
from volta_fn.inspection.explanation import Explanation, Step
from volta_fn.inspection.report_assets import SCRIPT, STYLE
from volta_fn.inspection.text import duration, quantity, short, size
from volta_fn.source import SourceLocation

#: Lines of the user's file that are shown around one that a kernel comes from.
_AROUND = 4
#: Characters of a kernel's code that the page holds; large matrix products have far more.
_MOST = 60_000


def page(found: Explanation) -> str:
    """Return the report of an explanation as a complete page."""
    title = f"{found.name} on {found.device}"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escaped(title)}</title>"
        f"<link rel='icon' href='data:,'><style>{STYLE}</style></head><body>"
        f"<header><h1>{escaped(title)}</h1>{_numbers(found)}</header><main>"
        f"{_section('Where the time goes', _steps_and_code(found))}"
        f"{_section('Roofline', roofline_svg(found))}"
        f"{_section('Memory', memory_svg(found))}"
        f"{_section('Graph of the program', graph_svg(found.steps))}"
        f"{_section('Passes of the compiler', _passes(found))}"
        f"{_section('Stages', _stages())}"
        f"</main><script id='data' type='text/plain'>{_packed(found)}</script><script>{SCRIPT}</script></body></html>"
    )


def fragment(found: Explanation) -> str:
    """Return an explanation for a notebook: the numbers, the kernels, two charts."""
    rows = [("#", "kernel", "time", "roofline", "lines"), *[_cells(step) for step in found.slowest(20)]]
    charts = folded("roofline", roofline_svg(found)) + folded("memory", memory_svg(found), opened=True)
    return f"{_numbers(found)}{folded('kernels that take the most time', table(rows), opened=True)}{charts}"


def _cells(step: Step) -> tuple[str, ...]:
    taken = "" if step.seconds is None else duration(step.seconds)
    reached = "" if step.fraction is None else f"{step.fraction:.0%}"
    return str(step.number), step.name, taken, reached, ", ".join(map(short, step.user_lines[:3]))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _numbers(found: Explanation) -> str:
    real = [step for step in found.steps if step.kind != "control flow"]
    entries = [
        ("kernels", f"{len(real):,}"),
        ("operations", f"{quantity(sum(s.flops * s.runs for s in real))}FLOP"),
        ("moved", size(sum(s.bytes * s.runs for s in real))),
        ("peak memory", size(found.memory.peak)),
    ]
    if found.seconds is not None:
        entries = [("a call", duration(found.seconds)), ("its kernels", duration(found.kernel_seconds)), *entries]
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>" for name, value in entries) + "</dl>"


def _steps_and_code(found: Explanation) -> str:
    total = max(found.kernel_seconds, 1e-12)
    rows = "".join(_row(step, total) for step in found.steps)
    head = "".join(f"<th data-by='{i}'>{name}</th>" for i, name in enumerate(("#", "kernel", "time", "roofline", "FLOP", "bytes", "runs")))
    panes = "<div id='source' class='pane'></div><div id='kernel' class='pane'></div><div id='code' class='pane'></div>"
    return f"<table id='steps'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><div id='panes'>{panes}</div>"


def _row(step: Step, total: float) -> str:
    share = (step.seconds or 0.0) / total
    bar = f"<i style='width:{100 * share:.2f}%'></i>{'' if step.seconds is None else escaped(duration(step.seconds))}"
    cells = (
        (step.number, str(step.number), ""),
        (step.name, f"{'&emsp;' * step.depth}{escaped(step.name)}", ""),
        (step.seconds or 0, bar, "bar"),
        (step.fraction or 0, "" if step.fraction is None else f"{step.fraction:.0%}", "n"),
        (step.flops, quantity(step.flops), "n"),
        (step.bytes, size(step.bytes), "n"),
        (step.runs, f"{step.runs:,}", "n"),
    )
    inner = "".join(f"<td class='{kind}' data-v='{escaped(value)}'>{text}</td>" for value, text, kind in cells)
    return f"<tr data-step='{step.number}' class='{step.kind.replace(' ', '-')}' title='{escaped(step.shapes)}'>{inner}</tr>"


def _passes(found: Explanation) -> str:
    head = ("pass", "before", "after", "changes", "what it does")
    rows = []
    for change in found.passes:
        listed = ", ".join(f"{count:+d} {name}" for name, count in sorted(change.difference.items(), key=lambda entry: -abs(entry[1])))
        rows.append((change.name, f"{change.before:,}", f"{change.after:,}", listed or "—", change.description))
    return table([head, *rows])


def _stages() -> str:
    names = (("jaxpr", "jaxpr"), ("simplified", "simplified jaxpr"), ("kernels", "kernels"))
    return "".join(f"<details data-stage='{key}'><summary>{title}</summary><pre></pre></details>" for key, title in names)


def _packed(found: Explanation) -> str:
    """Return the texts of the page, compressed, in base64."""
    texts: dict[str, int] = {}
    steps = [
        {
            "kernel": _numbered(texts, step.text),
            "code": _numbered(texts, _shortened(step.code)),
            "source": _numbered(texts, _sources(step.user_lines)),
            "shapes": step.shapes,
            "equations": " ".join(step.equations),
        }
        for step in found.steps
    ]
    data: dict[str, Any] = {
        "steps": steps,
        "jaxpr": found.jaxpr,
        "simplified": found.simplified,
        "kernels": "\n\n".join(f"# {step.number}: {step.name}\n{step.text}" for step in found.steps),
        "texts": [*texts],
    }
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode()


def _numbered(texts: dict[str, int], text: str) -> int:
    """Return the number of a text, which is kept once."""
    return texts.setdefault(text, len(texts))


def _shortened(code: str) -> str:
    return code if len(code) <= _MOST else f"{code[:_MOST]}\n… {len(code) - _MOST:,} more characters"


def _sources(found: Sequence[SourceLocation]) -> str:
    """Return the user's lines with those around them; those meant are marked."""
    by_file: dict[str, list[SourceLocation]] = {}
    for at in found:
        by_file.setdefault(at.file, []).append(at)
    return "\n\n".join(_excerpt(file, some) for file, some in by_file.items()) or "(no line of the user)"


def _excerpt(file: str, found: Iterable[SourceLocation]) -> str:
    functions: dict[str, None] = {}
    meant: set[int] = set()
    for at in found:
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
