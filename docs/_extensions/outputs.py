"""Prepare the outputs of cells for the site: texts as a reader sees them at the end, figures that follow the dark mode, thumbnails.

The style sheet inverts the figures that are marked as drawn on white, and leaves photographs as they are.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
from docutils import nodes

INDEX = "gallery/index"
ROOT = Path(__file__).resolve().parents[2]
#: Paths that say where the site was built, and what stands in their place.
_PATHS = [
    (re.compile(r"\S*/ipykernel_\d+/\d+\.py(?=:\d)"), "cell"),
    (re.compile(re.escape(f"{ROOT}/")), ""),
    (re.compile(re.escape(f"{tempfile.gettempdir()}/") + r"tmp\w+"), "folder"),
]
#: A line of a progress bar.
_BAR = re.compile(r"(?P<label>.+?) (?P<done>\d+)/(?P<total>\d+)(?: .*)?$")


def without_paths(text: str) -> str:
    """Return an output that does not say where the site was built."""
    for path, replacement in _PATHS:
        text = path.sub(replacement, text)
    return text


def without_progress(text: str) -> str:
    """Return an output with the last state of each progress bar alone, which overwrites the others where they are shown."""
    lines: list[str] = []
    following: dict[tuple[str, ...], int] = {}
    for line in reversed(text.split("\n")):
        if bar := _BAR.match(line):
            name, done = bar.group("label", "total"), int(bar["done"])
            is_past = following.get(name, -1) >= done
            following[name] = done
            if is_past:
                continue
        lines.append(line)
    return "\n".join(reversed(lines))


def edit_texts(app: Any, doctree: nodes.document) -> None:
    """Remove a machine's paths and the past of progress bars from the texts that cells print."""
    for block in doctree.findall(nodes.literal_block):
        if "output" in block.get("classes", ()) and (text := without_progress(without_paths(block.astext()))) != block.astext():
            block.rawsource = text
            block.children = []
            block += nodes.Text(text)


def is_on_white(path: Path) -> bool:
    """Return True if most of a picture's top row and left column is nearly white or transparent, and most of the picture is not dark."""
    pixels = np.atleast_3d(matplotlib.image.imread(path)).astype(np.float32)
    opacity = pixels[..., 3:] if pixels.shape[-1] == 4 else 1.0
    light = (pixels[..., :3] * opacity + (1 - opacity)).mean(-1)
    return bool(np.median(np.concatenate([light[0], light[:, 0]])) > 0.8 and np.median(light) > 0.5)


def figure_of(env: Any, page: str) -> str | None:
    """Return the last image on a page, or None if it has none."""
    if page not in env.all_docs:
        return None
    images = list(env.get_doctree(page).findall(nodes.image))
    return images[-1]["uri"] if images else None


def section_title(node: nodes.Node) -> str:
    """Return the title of the section that a node is in."""
    while not isinstance(node, nodes.section):
        node = node.parent
    return node.next_node(nodes.title).astext()


def add_thumbnails(app: Any, doctree: nodes.document, page: str) -> None:
    """Insert an image at the top of each card of the index that links to a page with a figure."""
    if page != INDEX:
        return
    for card in doctree.findall(lambda node: isinstance(node, nodes.Element) and "sd-card" in node.get("classes", ())):
        targets = [link["refuri"] for link in card.findall(nodes.reference) if link.get("internal")]
        uri = next(filter(None, (figure_of(app.env, f"gallery/{t.partition('.')[0].rpartition('/')[2]}") for t in targets)), None)
        if uri is not None:
            card.insert(0, nodes.image("", uri=uri, candidates={"*": uri}, alt="", classes=["sd-card-img-top", "thumbnail"]))


def mark_figures(app: Any, doctree: nodes.document, page: str) -> None:
    """Give images that are drawn on white the class ``on-white``, and figures of cells a text for screen readers."""
    for image in doctree.findall(nodes.image):
        if "alt" not in image:
            image["alt"] = f"Figure: {section_title(image)}"
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".png" and path.is_file() and is_on_white(path):
            image["classes"] = [*image.get("classes", ()), "on-white"]


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension; thumbnails, which are known when all pages have been read, are inserted before figures are marked."""
    app.connect("doctree-read", edit_texts)
    app.connect("doctree-resolved", add_thumbnails, priority=400)
    app.connect("doctree-resolved", mark_figures, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
