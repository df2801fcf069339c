"""The settings of Sphinx, which builds the documentation: `make docs`."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

from volta_fn import errors

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "examples")]
# Cells run in processes of their own, which find the same modules.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE.parent / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])])
# Progress bars are for those who wait, and need no widgets here.
os.environ["PYTHONWARNINGS"] = 'ignore:install "ipywidgets" for Jupyter support'

project = "volta_fn"
author = copyright = "The authors of volta_fn"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "reference_pages",
    "outputs",
    "page_actions",
]
exclude_patterns = ["_build", "_extensions"]
default_role = "code"

html_theme = "furo"
html_title = "volta_fn"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
#: Versions whose sites lie side by side; the menu of versions shows them from the second one on.
release = importlib.metadata.version("volta-fn")
site_versions = [release]
# Where the project is, as https://github.com/OWNER/NAME: then each page has a link to its source.
if repository := os.environ.get("DOCS_REPOSITORY"):
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}

napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Every cell runs when the site is built, and a cell that raises ends the build, unless it says that it does.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True


def escape_signs(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the signs in docstrings that are markup in reStructuredText: |x| and (*batch, n)."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = lines[0].replace(": ", " – ", 1)  # what is before a colon would be taken for a type
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ":", "..", "Array(")):
            lines[number] = "".join(
                text if text.startswith("`") else re.sub(r"([|*])", r"\\\1", text) for text in re.split(r"(`+[^`]*`+)", line)
            )


def drop_builtin_docstrings(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Drop what Python says of dicts and the like where one is data: it is of the class, and no reStructuredText."""
    of_class = (type(obj).__doc__ or "").splitlines()
    if what == "data" and isinstance(obj, (dict, frozenset, tuple, str, int)) and lines[:1] == of_class[:1]:
        lines.clear()


def insert_errors(app: Any, page: str, source: list[str]) -> None:
    """Insert the index of errors, which is part of the package, so that `python -m volta_fn.errors` has it, into its page."""
    if page == "reference/errors":
        source[0] += Path(errors.__file__).with_name("index.md").read_text().replace("](../../docs/", "](../")


def link_errors(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link the name of an error, as docstrings have it, to its section on the page of errors."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("reftype") != "exc" or not hasattr(errors, name):
        return None
    address = app.builder.get_relative_uri(node["refdoc"], "reference/errors")
    return nodes.reference("", "", content, internal=True, refuri=f"{address}#{name.lower()}")


def setup(app: Any) -> None:
    """Connect the hooks; docstrings are seen before their sections are read."""
    app.connect("source-read", insert_errors)
    app.connect("autodoc-process-docstring", drop_builtin_docstrings, priority=300)
    app.connect("autodoc-process-docstring", escape_signs, priority=400)
    app.connect("missing-reference", link_errors)
