"""Language models: decoders of tokens by Hugging Face's config.json.

`config` reads a description, of one of the `FAMILIES`. `layers`, which keep keys and values, are what `decoder` builds a model of.
`generation` chooses tokens by logits and continues prompts, and `continuous_batch` generates texts that begin and end at different times.
Weights are read and written by `io.load_pretrained` and `io.save_pretrained`.
"""
