"""The settings of Sphinx, which builds the documentation: `make docs`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions"), str(HERE.parent / "examples")]
# Cells run in processes of their own, which find the same modules.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE.parent / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])])

project = "volta_fn"
author = copyright = "The authors of volta_fn"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "reference_pages",
]
exclude_patterns = ["_build", "_extensions"]
default_role = "code"
nitpicky = True

html_theme = "furo"
html_title = "volta_fn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False

autodoc_typehints = "none"
autodoc_member_order = "bysource"

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
# Formulas are shown by a script that is part of the site, so that it works offline.
mathjax_path = "mathjax/tex-svg.js"
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
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ":", "..", "Array(")):
            lines[number] = "".join(part if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in re.split(r"(`+[^`]*`+)", line))


def setup(app: Any) -> None:
    """Connect the hook, which sees docstrings before their sections are read."""
    app.connect("autodoc-process-docstring", escape_signs, priority=400)
