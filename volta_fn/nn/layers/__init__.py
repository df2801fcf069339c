"""Layers other than recurrent ones.

`linear` has what is linear in its weights (dense and bilinear layers, embeddings, the adaptive softmax, convolutions and transposed ones),
`normalization` the norms of activations and of weights, `pooling` maxima and means of windows, and `resampling` padding, pixel shuffling
and interpolation. `containers` holds `Sequential`, functions as layers, and dropout. `multi_head_attention` has attention as a layer,
encodings of positions, and the cache of step-by-step decoding; `transformer` builds encoders, decoders and GPT on it. `arguments` has the
checks, initial weights and keys that layers share.
"""
