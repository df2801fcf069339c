"""Web pages that run and train models.

In the order in which to read: `function` (what a page calls), `data` (constants and parameters as bytes), `program` (a program's buffers
and dispatches as JSON), `manifest` (all of that for a page), `pages` (what a page shows), `export` (the file). `runtime/` is the JavaScript
that runs the programs, and `pages/` what the pages are made of.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
