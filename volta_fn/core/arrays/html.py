"""HTML that notebooks show: arrays with statistics; trees and programs that fold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from volta_fn.lazy_imports import deferred

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 16


def escaped(text: Any) -> str:
    """Escape text for HTML."""
    result: str = deferred("html").escape(str(text))
    return result


def folded(title: str, body: str, opened: bool = False) -> str:
    """Return a collapsible line of HTML, which unfolds to `body`."""
    return f"<details{' open' if opened else ''}><summary><code>{escaped(title)}</code></summary>{body}</details>"


def listed(items: Iterable[str]) -> str:
    """Return an HTML list of HTML items."""
    return "<ul style='list-style:none;margin:0'>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def preformatted(text: str) -> str:
    """Return preformatted text."""
    return f"<pre>{escaped(text)}</pre>"


def program_html(text: str) -> str:
    """Return the text of a jaxpr, whose nested programs are collapsible.

    Each of them begins at the end of a line with ``let``, and ends with a line that starts with ``in``.
    """
    head, *body = text.splitlines()
    lines, depth = [escaped(head), "\n"], 0
    for row in body:
        ends, begins = row.lstrip().startswith("in (") and depth > 0, row.endswith(" let")
        if begins and not ends:
            lines.append(f"<details open><summary style='font-family:monospace'>{escaped(row)}</summary>")
        else:
            lines.append(f"{escaped(row)}\n")
        if ends:
            lines.append("</details>")
        if ends and begins:  # the next of several programs
            lines.append("<details open><summary style='font-family:monospace'>…</summary>")
        depth += begins - ends
    return f"<pre style='font-family:monospace'>{''.join(lines)}</pre>"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table; the first row is its head."""
    head, *body = [
        "".join(f"<{tag}>{escaped(cell)}</{tag}>" for cell in row) for row, tag in zip(rows, ["th"] + ["td"] * len(rows), strict=False)
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"


def sparkline(values: np.ndarray) -> str:
    """Return the histogram of finite numbers in sixteen bars.

    >>> sparkline(np.array([0.0, 1.0, 1.0]))
    '▅▁▁▁▁▁▁▁▁▁▁▁▁▁▁█'
    """
    if not values.size:
        return ""
    values, _ = _scaled(values)
    low, width = values.min(), np.ptp(values)
    bins = np.minimum((values - low) / width * _BINS, _BINS - 1) if width else np.full(values.shape, _BINS // 2)
    counts = np.bincount(bins.astype(np.int64), minlength=_BINS)
    return "".join(_BARS[int(np.ceil(count / counts.max() * (len(_BARS) - 1)))] for count in counts)


def _scaled(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Scale finite numbers by a power of 2 to at most 1; also return its exponent."""
    # Their differences and sums neither overflow nor underflow.
    wide = values.astype(np.float64)
    exponent = int(np.frexp(np.abs(wide).max())[1])
    return np.ldexp(wide, -exponent), exponent


def statistics(values: np.ndarray) -> str:
    """Return range, mean, the number of NaN and infinite elements, and a sparkline."""
    if values.dtype.kind == "c" or not values.size:
        return ""
    wide = values.astype(np.float64).ravel()
    finite = wide[np.isfinite(wide)]
    if values.size == finite.size and finite.min() == finite.max():
        return f"{'all ' * (finite.size > 1)}{finite[0]:.4g}"
    parts = []
    if finite.size:
        scaled, exponent = _scaled(finite)
        parts.append(f"{finite.min():.4g} … {finite.max():.4g}, mean {np.ldexp(scaled.mean(), exponent):.4g}")
    counts = (("NaN", np.isnan(wide).sum()), ("infinite", np.isinf(wide).sum()))
    parts += [f"{count:,} {name}" for name, count in counts if count]
    return f"{', '.join(parts)} {sparkline(finite)}".rstrip()


def array_html(title: str, values: np.ndarray, text: str) -> str:
    """Return an array's type and statistics, which unfold to its elements."""
    return folded(f"{title}  {statistics(values)}".rstrip(), preformatted(text))
