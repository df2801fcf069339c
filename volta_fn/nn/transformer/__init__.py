"""Transformers: attention as function and layer, positions, and the layers and stacks of encoders and decoders."""
