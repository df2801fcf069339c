"""Packing panels of operands, in the order in which their memory is best read."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.loops import each
from volta_fn.targets.cpu.matmul.sources import Span


def pack_panels(
    f: Function,
    span: Span,
    panels: tuple[Value, Value],
    chunk: int | None,
    pack: Callable[[Value, Span, Value], None],
    fetch: Callable[[Span], None],
) -> None:
    """Pack a range of panels for the k of `span`: ``pack(panel, span, k)`` packs one for the k of a span which begins `k` after ours.

    With a `chunk`, so many k are packed of every panel, then the next ones: lines of memory that belong to several panels are read once.
    Before that, `fetch(span)` has the next ones' lines brought near, as they are too far apart for the machine to see what will come.
    """
    if chunk is None:
        each(f, *panels, lambda panel: pack(panel, span, i64(0)))
        return

    def piece(k: Value) -> None:
        depth = f.intrinsic("llvm.smin.i64", "i64", i64(chunk), f.binary("sub", span.depth, k))
        part = span._replace(inner=f.binary("add", span.inner, k), depth=depth)
        fetch(part._replace(inner=f.binary("add", part.inner, i64(chunk))))
        each(f, *panels, lambda panel: pack(panel, part, k))

    each(f, i64(0), span.depth, piece, chunk)
