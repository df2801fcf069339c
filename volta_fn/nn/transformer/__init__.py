"""Transformers: attention, positions, encoders and decoders.

`multi_head_attention` has attention as a function and as a layer, encodings of positions, and the cache of step-by-step decoding. `layers`
builds encoders, decoders and GPT on it.
"""
