"""Conversations with language models: `python -m volta_fn.chat MODEL`.

`conversation` writes messages as the text that a model was trained on, reads tokenizers, decodes tokens one by one, and keeps the model's
cache from turn to turn. The extra `language` installs what it needs: ``pip install 'volta-fn[language]'``.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
