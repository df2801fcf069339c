"""List the dead links of documents and of a built site.

python tools/check_links.py README.md docs docs/_build/html

Links within the project have to lead to a file and, with a fragment, to a heading or an element of that name. Links to other sites are
counted and not followed. Of a built site all pages are read (.html), of other folders all documents (.md).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

#: Fenced code, and code in backticks, in which brackets are no links.
_CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
#: Pages that are written when the site is built, where links to them are checked.
_GENERATED = re.compile(r"reference/api/[\w.]+\.rst$")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


class Document(NamedTuple):
    """The links of a file, and the names that fragments may have."""

    links: list[str]
    names: set[str]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.document = Document([], {"", "top"})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "data") and value and not (tag == "link" and ("rel", "preconnect") in attrs):
                self.document.links.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.document.names.add(value or "")


def slug(heading: str) -> str:
    """Return the fragment of a heading of a document."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def read(path: Path) -> Document:
    """Return the links and names of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        page = _Page()
        page.feed(text)
        return page.document
    headings = [slug(result) for result in _HEADING.findall(re.sub(r"^(`{3,}).*?^\1`*\s*$", "", text, flags=re.DOTALL | re.MULTILINE))]
    return Document(_LINK.findall(_CODE.sub("", text)), {"", *headings})


def dead_links(path: Path) -> Iterator[str]:
    """Give the links of a file that lead nowhere."""
    for link in read(path).links:
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        target = path.parent / unquote(address.path) if address.path else path
        if target.is_dir() and path.suffix == ".html":
            target /= "index.html"
        if path.suffix == ".md" and _GENERATED.search(address.path):
            continue
        has_names = target.suffix in (".html", ".md") and target.exists()
        if not target.exists() or (has_names and unquote(address.fragment) not in read(target.resolve()).names):
            yield link


def files(paths: list[Path]) -> Iterator[Path]:
    """Give the pages or documents that paths name."""
    for path in paths:
        if path.is_file():
            yield path
        else:
            built = (path / "index.html").exists()
            result = sorted(path.rglob("*.html" if built else "*.md"))
            yield from (file for file in result if built or not {"_build", ".venv"} & {*file.parts})


def main(paths: list[str]) -> int:
    """Print the dead links, and how many links there are; return the exit status."""
    dead, count, outside = 0, 0, 0
    for path in files([Path(name) for name in paths]):
        path = path.resolve()
        count += len(read(path).links)
        outside += sum(bool(urlsplit(link).netloc) for link in read(path).links)
        for link in dead_links(path):
            dead += 1
            print(f"{path}: {link}")
    print(f"{count} links, {outside} of them to other sites; {dead} dead")
    return dead > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
