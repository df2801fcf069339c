"""The report of an explanation in headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.inspection.check_reports import look
from volta_fn import lax


def step(w: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = vnp.tanh(h @ w + x)
        return h, h

    return lax.scan(cell, vnp.zeros((4, 8)), xs)[1].mean()


def test_the_report_asks_for_nothing_and_says_nothing(tmp_path: Path) -> None:
    result = vf.explain(vf.grad(step), calls=1)(vnp.ones((8, 8)), vnp.ones((5, 4, 8)))
    seen = look(result.html(tmp_path / "report.html"), tmp_path / "picture")
    assert (seen.errors, seen.requests) == ([], [])
    assert seen.rows == len(result.steps) > 3 and seen.characters > 1000
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    script = "console.error('wrong'); new Image().src = 'http://127.0.0.1:9/picture.png'"
    body = "<section></section><section></section><div class='pane'>a</div>"
    page.write_text(f"<!doctype html><html><body>{body}<script>{script}</script></body></html>")
    seen = look(page)
    assert any("wrong" in text for text in seen.errors)
    assert seen.requests == ["http://127.0.0.1:9/picture.png"]
