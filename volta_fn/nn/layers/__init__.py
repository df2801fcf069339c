"""Layers other than pooling, recurrent ones and transformers.

`linear` has linear and bilinear layers and embeddings, `conv` and `conv_transpose` convolutions, `resampling` pixel shuffling and
interpolation. `batch_norm`, `layer_norm` and `weight_norm` normalise, `dropout` drops; `adaptive_softmax` classifies. `containers` holds
`Sequential` and functions as layers; `common` the checks, initial weights and keys that layers share.
"""
