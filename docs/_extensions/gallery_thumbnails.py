"""Put the figure of each page of the gallery on its card in the gallery's index.

The figures are outputs of the pages' cells, so that they are known when all pages have been read.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes

INDEX = "gallery/index"


def figure_of(env: Any, page: str) -> str | None:
    """Return the last image on a page, or None if it has none."""
    if page not in env.all_docs:
        return None
    images = list(env.get_doctree(page).findall(nodes.image))
    return images[-1]["uri"] if images else None


def add_thumbnails(app: Any, doctree: nodes.document, page: str) -> None:
    """Insert an image at the top of each card of the index that links to a page with a figure."""
    if page != INDEX:
        return
    for card in doctree.findall(lambda node: isinstance(node, nodes.Element) and "sd-card" in node.get("classes", ())):
        targets = [link["refuri"] for link in card.findall(nodes.reference) if link.get("internal")]
        uri = next(filter(None, (figure_of(app.env, f"gallery/{t.partition('.')[0].rpartition('/')[2]}") for t in targets)), None)
        if uri is not None:
            card.insert(0, nodes.image("", uri=uri, candidates={"*": uri}, alt="", classes=["sd-card-img-top", "thumbnail"]))


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("doctree-resolved", add_thumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
