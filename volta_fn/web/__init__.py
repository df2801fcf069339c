"""Web pages that run and train models.

`export` writes programs, constants and parameters as the data of a page, and its file, in the layout that shows a function's arguments and
results. `runtime/` is the JavaScript that runs the programs, and `pages/` holds the pages' HTML, CSS and
scripts.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
