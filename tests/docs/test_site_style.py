"""The site's style sheet: what holds for the dark mode alone, and what holds for both."""

from __future__ import annotations

import re
from pathlib import Path

CSS = re.sub(
    r"/\*.*?\*/", "", (Path(__file__).resolve().parents[2] / "docs" / "_static" / "site.css").read_text(encoding="utf-8"), flags=re.DOTALL
)


def rules(css: str) -> list[tuple[str, str]]:
    """Selectors and declarations, of rules within media queries too."""
    return [(selector.split("{")[-1].strip(), body) for selector, body in re.findall(r"([^{}]+(?:\{[^{}]+)?)\{([^{}]*)\}", css)]


def test_braces_match() -> None:
    assert CSS.count("{") == CSS.count("}")


def test_figures_are_inverted_in_the_dark_mode_alone() -> None:
    inverted = [selector for selector, body in rules(CSS) if "invert" in body]
    assert len(inverted) == 2, "by the reader's choice, and by the system's"
    assert {*inverted} == {'body[data-theme="dark"] img.on-white', 'body:not([data-theme="light"]) img.on-white'}


def test_figures_in_cells_keep_their_size() -> None:
    assert not any("height" in body for selector, body in rules(CSS) if "cell_output" in selector)
