"""Layers other than recurrent ones and transformers.

`linear` has linear and bilinear layers and embeddings, `conv` and `conv_transpose` convolutions, `pooling` and `adaptive_pooling` pooling,
`resampling` pixel shuffling and interpolation. `batch_norm`, `layer_norm` and `weight_norm` normalise, `dropout` drops. `containers` holds
`Sequential` and functions as layers; `common` the checks, initial weights and keys that layers share.
"""
