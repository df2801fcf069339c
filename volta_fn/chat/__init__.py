"""Conversations with language models: `python -m volta_fn.chat MODEL`.

`templates` writes the messages of a conversation as the text that a model was trained on, `tokenizer` reads tokenizers and decodes tokens
one by one, `gguf_tokenizer` reads both from GGUF files, and `conversation` keeps the model's cache from turn to turn. The extra `language`
installs what they need: ``pip install 'volta-fn[language]'``.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
