"""Give pages what readers do with them: download an executed page as a notebook, switch between versions, and edit a page.

The first two work from a folder of files, without a server.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

_CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
_TAGS = re.compile(r"\A(:\w+:.*\n)+")
#: Pages that are written when the site is built.
GENERATED = "reference/api/"


def is_executed(source: str) -> bool:
    """Return True if a page's cells run when the site is built."""
    return source.startswith("---\nfile_format: mystnb")


def notebook(source: str) -> dict[str, Any]:
    """Return an executed page as a notebook, without outputs."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        code = {"outputs": [], "execution_count": None} if kind == "code" else {}
        if text.strip():
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": text.strip("\n"), **code})

    for number, part in enumerate(_CELL.split(_HEADER.sub("", source))):
        add("code" if number % 2 else "markdown", _TAGS.sub("", part) if number % 2 else part)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write_notebooks(app: Any, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error is not None or app.builder.format != "html":
        return
    for page in app.env.found_docs:
        path = Path(app.env.doc2path(page))
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".md" and is_executed(source):
            target = Path(app.outdir, f"{page}.ipynb")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(notebook(source), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def add_actions(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Insert links to the notebook and to other versions below a page's heading."""
    if doctree is None or "body" not in context:
        return
    if page.startswith(GENERATED):
        context["page_source_suffix"] = ""  # by which the theme makes its links to the source
    actions = []
    path = Path(app.env.doc2path(page))
    if path.suffix == ".md" and is_executed(path.read_text(encoding="utf-8")):
        actions.append(f'<a href="{PurePosixPath(page).name}.ipynb" download>Download notebook</a>')
    actions += versions(app.config.site_versions, app.config.release, page)
    if actions:
        line = f'<p class="page-actions">{" ".join(actions)}</p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def versions(listed: list[str], current: str, page: str) -> list[str]:
    """Return a menu of versions, whose sites lie side by side, if there are several."""
    if len(listed) < 2:
        return []
    up = "../" * (page.count("/") + 1)

    def option(v: str) -> str:
        address, chosen = html.escape(f"{up}{v}/{page}.html"), " selected" if v == current else ""
        return f'<option value="{address}"{chosen}>{html.escape(v)}</option>'

    options = "".join(map(option, listed))
    return [f'<label>Version <select onchange="location.href = this.value">{options}</select></label>']


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.add_config_value("site_versions", [], "html")
    app.connect("html-page-context", add_actions)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
