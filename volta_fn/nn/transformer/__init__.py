"""Transformers: attention, positions, encoders and decoders.

`scaled_dot_product` is attention as a function, `multi_head_attention` as a layer, with the `kv_cache` of step-by-step decoding.
`positions` encodes positions, `feed_forward` is the other sublayer. `encoder` and `decoder` build layers and stacks on `base`.
"""
