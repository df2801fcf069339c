"""`LivePlot` draws in pages and notebooks: every line, gaps at numbers that are not finite, and few points of many steps."""

from __future__ import annotations

import re
import sys
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from volta_fn import io
from volta_fn.errors import ArgumentError, ShapeError

NAN = float("nan")


def panels(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html)]


def points(panel: ElementTree.Element) -> list[list[tuple[float, float]]]:
    lines = panel.findall("{http://www.w3.org/2000/svg}polyline")
    return [[tuple(map(float, corner.split(","))) for corner in line.get("points", "").split()] for line in lines]  # type: ignore[misc]


def test_a_page_has_a_panel_for_each_name_and_loads_itself_anew_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "losses.html"
    with io.LivePlot(path, title="a < b", interval=0) as log:
        log(0, loss=2.0)
        assert "http-equiv='refresh'" in path.read_text()
        log(1, loss=1.0, accuracy=0.5)
    html = path.read_text()
    assert "http-equiv" not in html and "<title>a &lt; b</title>" in html
    loss, accuracy = panels(html)
    ((left, right),) = points(loss)
    assert left[0] < right[0] and left[1] < right[1]  # the second is to the right and below
    assert accuracy.get("aria-label") == "accuracy by step"
    assert [file.name for file in path.parent.iterdir()] == ["losses.html"]


def test_many_steps_keep_their_extremes(tmp_path: Path) -> None:
    with io.LivePlot(tmp_path / "page.html") as log:
        for step in range(10_000):
            log(step, loss=100.0 if step == 7_777 else 1.0)
    ((*line,),) = points(panels((tmp_path / "page.html").read_text())[0])
    assert len(line) <= 500
    assert min(y for _, y in line) == 22.0  # the top of the panel


def test_numbers_that_are_not_finite_leave_a_gap_and_are_counted(tmp_path: Path) -> None:
    with io.LivePlot(tmp_path / "page.html") as log:
        for step, loss in enumerate([3.0, 2.0, NAN, float("inf"), 1.0, 2.0]):
            log(step, loss=loss)
    html = (tmp_path / "page.html").read_text()
    assert [len(line) for line in points(panels(html)[0])] == [2, 2]
    assert "2 at step 5, 2 not finite" in html


def test_a_logarithmic_axis_places_powers_evenly(tmp_path: Path) -> None:
    with io.LivePlot(tmp_path / "page.html", log_scale=["loss"]) as log:
        for step, loss in enumerate([1.0, 0.1, 0.01]):
            log(step, loss=loss)
    ((top, middle, bottom),) = points(panels((tmp_path / "page.html").read_text())[0])
    assert bottom[1] - middle[1] == pytest.approx(middle[1] - top[1], abs=0.2)


def test_a_notebook_shows_one_plot_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    class Handle:
        def update(self, plot: Any) -> None:
            shown.append(plot._repr_html_())

    def display(plot: Any, display_id: bool) -> Handle:
        shown.append(plot._repr_html_())
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    with io.LivePlot(interval=0) as log:
        log(0, loss=2.0)
        log(1, loss=1.0)
    assert len(shown) == 3 and "1 at step 1" in shown[-1]


def test_other_uses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="path of a page"):
        io.LivePlot()
    with pytest.raises(ShapeError, match="single numbers"):
        io.LivePlot(tmp_path / "page.html")(0, loss=[1.0, 2.0])
