"""Ctrl-C where an exception would do harm: it comes later."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from volta_fn.lazy_imports import load
from volta_fn.signals import InterruptDeferral

pytestmark = pytest.mark.usefixtures("default_interrupt_handler")


def test_the_handler_runs_after_the_outermost_section() -> None:
    section, seen = InterruptDeferral(), list[str]()

    def work() -> None:
        with section:
            with section:
                signal.raise_signal(signal.SIGINT)
                seen.append("inner")
            seen.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == ["inner", "outer"]


def test_what_waits_lets_it_through() -> None:
    section = InterruptDeferral()
    with section:
        section.deliver_pending()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            section.deliver_pending()


def test_one_that_was_overtaken_by_another_is_forgotten() -> None:
    section = InterruptDeferral()
    section.pending = (signal.SIGINT, None)  # as if its handler had raised for another one just before
    with section:
        pass


def test_an_import_is_not_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted_half_way.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        load("interrupted_half_way")
    assert sys.modules.pop("interrupted_half_way").whole
