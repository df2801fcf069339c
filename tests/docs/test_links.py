"""The documents of the repository have no dead links, and the tool that looks for them finds those that are planted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_links  # noqa: E402

sys.path.pop(0)
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *(ROOT / folder for folder in ("docs", "examples", "tests", "benchmarks", "volta_fn", ".github"))]


def test_documents_have_no_dead_links() -> None:
    read = list(check_links.files(DOCUMENTS))
    assert len(read) > 70
    assert not [f"{path}: {link}" for path in read for link in check_links.dead_links(path.resolve())]


PLANTED = {
    "[a](gone.md)": "gone.md",
    "[a](other.md#no-such)": "other.md#no-such",
    "[a](#nor-here)": "#nor-here",
    "![a](gone.png)": "gone.png",
}


@pytest.mark.parametrize("text", PLANTED)
def test_a_dead_link_of_a_document_is_found(tmp_path: Path, text: str) -> None:
    check_links.read.cache_clear()
    (tmp_path / "other.md").write_text("# A heading: `x`, (y)\n\n```sh\n# none\n```\n")
    page = tmp_path / "page.md"
    good = "[good](other.md#a-heading-x-y) [here](#page) [site](https://example.org/a)"
    page.write_text(f"# Page\n\n{good} {text}\n\n```python\nx[0](gone)\n```\n`f[0](x)`\n")
    assert list(check_links.dead_links(page)) == [PLANTED[text]]


def test_dead_links_of_pages_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_links.read.cache_clear()
    (tmp_path / "index.html").write_text('<h1 id="top-of">A</h1><a href="a.html#part"></a><a href="#top-of"></a><img src="gone.png">')
    (tmp_path / "a.html").write_text('<section id="part"><a href="https://example.org/"></a><a href="index.html#gone"></a></section>')
    assert check_links.main([str(tmp_path)]) == 1
    *dead, total = capsys.readouterr().out.splitlines()
    assert [row.rpartition(": ")[2] for row in dead] == ["index.html#gone", "gone.png"]
    assert total == "5 links, 1 of them to other sites; 2 dead"
    (tmp_path / "index.html").write_text("")
    (tmp_path / "a.html").write_text("")
    check_links.read.cache_clear()
    assert check_links.main([str(tmp_path)]) == 0
