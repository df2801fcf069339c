"""The glossary defines each term once, in one sentence, and has the terms of the architecture page."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
DEFINED = {term: text for term, text in ROWS if term not in ("term", "---")}


def test_each_term_is_defined_once_in_one_sentence() -> None:
    terms = [term for term, _ in ROWS if term not in ("term", "---")]
    assert len(terms) == len(set(terms)) >= 100
    assert [t for t, text in DEFINED.items() if not text.endswith(".") or re.search(r"[a-z]\. [A-Z]", text)] == []


def test_the_architecture_page_uses_defined_terms() -> None:
    page = (DOCS / "architecture.md").read_text()
    words = {word for term in DEFINED for word in re.split(r", | \(.*", term)}
    introduced = {term.removesuffix("s") for term in re.findall(r"(?<!\*)\*([a-z -]+)\*(?!\*)", page)}
    missing = {t for t in introduced if not words & {t, t.removesuffix("e")}}
    assert not missing
