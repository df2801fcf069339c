"""Progress bars pass items through and show progress, with and without Rich."""

from __future__ import annotations

import sys
import types

import pytest

from volta_fn import data
from volta_fn.data import progress_bar as bars


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output seems to be a terminal."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process seems to be the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_items_pass_through_and_reports_are_shown(terminal, capsys):
    bar = data.progress(range(5), "working", total=7)
    seen = []
    for item in bar:
        seen.append(item)
        bar.report(f"loss {item}")
        bar.describe(f"round {item}")
    out = capsys.readouterr().out
    assert seen == [0, 1, 2, 3, 4]
    assert "5/7" in out
    assert "loss 4" in out
    assert "round 4" in out
    assert len(bar) == 7


def test_the_length_need_not_be_known(terminal, capsys):
    assert list(data.progress(iter("abc"))) == ["a", "b", "c"]
    assert "3/" in capsys.readouterr().out


def test_an_exception_in_the_loop_leaves_the_terminal_alone(terminal, capsys):
    def fail_at_two():
        for item in data.progress(range(5)):
            if item == 2:
                raise KeyError(item)

    with pytest.raises(KeyError):
        fail_at_two()
    assert list(data.progress(range(2))) == [0, 1]
    assert "2/2" in capsys.readouterr().out


def test_without_rich_the_progress_is_text(monkeypatch, terminal, capsys):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    bar = data.progress(range(3), "working")
    for item in bar:
        bar.report(f"loss {item}")
    bar.describe("later")
    texts = capsys.readouterr().out.split("\r")
    assert texts[1].rstrip() == "working 0/3"
    assert texts[-1] == "working 3/3 loss 2\n"
    assert list(data.progress(c for c in "ab")) == ["a", "b"]
    assert capsys.readouterr().out.endswith("\r2\n")


def test_without_rich_a_shorter_text_leaves_nothing_of_a_longer_one(monkeypatch, terminal, capsys):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    bar = data.progress(range(1), "a long description")
    for _ in bar:
        bar.describe("short")
    assert capsys.readouterr().out.split("\r")[-1] == f"{'short 1/1'.ljust(len('a long description 0/1'))}\n"


def test_a_notebook_without_ipywidgets_has_a_bar_of_text(monkeypatch, notebook, capsys):
    monkeypatch.setattr(bars, "is_installed", lambda name: name != "ipywidgets")
    assert list(data.progress(range(2), "working")) == [0, 1]
    assert capsys.readouterr().out == "\rworking 0/2\rworking 2/2\n"


def test_a_file_gets_a_line_every_ten_seconds(monkeypatch, capsys):
    times = iter([float(t) for t in range(100)])
    monkeypatch.setattr(bars.time, "monotonic", lambda: next(times))
    bar = data.progress(range(25), "working")
    for item in bar:
        bar.report(f"loss {item}")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["working 10/25 loss 9", "working 20/25 loss 19", "working 25/25 loss 24"]
