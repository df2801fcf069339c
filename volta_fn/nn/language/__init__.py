"""Language models: decoders of tokens by Hugging Face's config.json.

`config` reads a description, of one of the `FAMILIES`. `rotary` encodes positions, `caches` keep keys and values, `layers` and `experts`
are what `decoder` builds a model of. `samplers` choose tokens by logits, and `generation`, `beam_search` and `speculative` continue
prompts. Weights are read and written by `io.load_pretrained` and `io.save_pretrained`.
"""
