"""Messages for typical mistakes have the cause and the remedy, and docs/mistakes.md shows them as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import volta_fn as vf

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import mistakes  # noqa: E402

sys.path.pop(0)
DOCUMENT = (ROOT / "docs" / "mistakes.md").read_text()
MISTAKES = mistakes.load()


@pytest.fixture(autouse=True)
def on_host() -> object:
    with vf.default_device(vf.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.title)
def test_the_message_has_the_cause_and_the_remedy(mistake: mistakes.Mistake) -> None:
    answer = mistakes.answer(mistake.volta, mistakes.own_names)
    assert mistake.cause in answer
    assert mistake.remedy in answer
    assert f"`{mistake.volta.replace(' ;; ', '; ').replace('|', chr(92) + '|')}` | {mistakes._cell(answer)} |" in DOCUMENT, (
        "run python tools/mistakes.py"
    )


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 60
    assert len({mistake.volta for mistake in MISTAKES}) == len(MISTAKES)


def test_mistakes_without_an_error_are_shown() -> None:
    assert mistakes.answer("1 + 1", mistakes.own_names) == "*Nothing*"
    assert mistakes.answer("", mistakes.own_names) == "—"
